-- Schema version 2: why the model stopped.

ALTER TABLE messages ADD COLUMN finish_reason TEXT;

UPDATE schema_version SET version = 2;
