-- First of our own: content in parts and callers' fields come back verbatim; a repeated append stores nothing.
-- The Python original neither knows nor minds these; schema_version stays 6 from here on.

ALTER TABLE messages ADD COLUMN content_parts TEXT;
ALTER TABLE messages ADD COLUMN extra_json TEXT;

-- No foreign key: it would block programs that delete sessions and do not know this table.
CREATE TABLE append_keys (
    session_id TEXT NOT NULL,
    key TEXT NOT NULL,
    first_id INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (session_id, key)
) WITHOUT ROWID;

CREATE TRIGGER append_keys_session_delete AFTER DELETE ON sessions BEGIN
    DELETE FROM append_keys WHERE session_id = old.id;
END;

-- What the new id holds already was left by a session that REPLACE removed without firing triggers.
CREATE TRIGGER append_keys_session_rename AFTER UPDATE OF id ON sessions
WHEN old.id IS NOT new.id AND new.id IS NOT NULL BEGIN
    DELETE FROM append_keys WHERE session_id = new.id;
    UPDATE append_keys SET session_id = new.id WHERE session_id = old.id;
END;

-- The migrations that a program must know to read, and to write, this file.
CREATE TABLE hermes_state_compat (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    read_needs INTEGER NOT NULL,
    write_needs INTEGER NOT NULL
);

INSERT INTO hermes_state_compat (id, read_needs, write_needs) VALUES (1, 1, 7);
