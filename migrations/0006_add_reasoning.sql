-- Schema version 6: without its reasoning items, a provider refuses a conversation that is resumed.

ALTER TABLE messages ADD COLUMN reasoning TEXT;
ALTER TABLE messages ADD COLUMN reasoning_details TEXT;
ALTER TABLE messages ADD COLUMN codex_reasoning_items TEXT;

UPDATE schema_version SET version = 6;
