-- Schema version 3: people name their sessions.

ALTER TABLE sessions ADD COLUMN title TEXT;

UPDATE schema_version SET version = 3;
