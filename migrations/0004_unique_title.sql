-- Schema version 4: a title leads to one session.

CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;

UPDATE schema_version SET version = 4;
