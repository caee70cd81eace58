-- A long session is deleted in pieces, but is gone at once: its row in sessions goes first, and this table says which
-- of its messages are still to go. Messages up to last_id of a session that stands here count as deleted; nobody else's
-- rows change. No list, title, count of sessions or join with them can show such a session, in any program.

CREATE TABLE deleted_sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    last_id INTEGER NOT NULL
) WITHOUT ROWID;

-- Whoever makes a session of that id anew, whatever the program: the old messages must not come back in it.
CREATE TRIGGER deleted_sessions_session_insert AFTER INSERT ON sessions
WHEN EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = new.id) BEGIN
    DELETE FROM messages WHERE session_id = new.id
        AND id <= (SELECT last_id FROM deleted_sessions WHERE session_id = new.id);
    DELETE FROM deleted_sessions WHERE session_id = new.id;
END;

CREATE TRIGGER deleted_sessions_session_rename AFTER UPDATE OF id ON sessions
WHEN old.id IS NOT new.id AND EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = new.id) BEGIN
    DELETE FROM messages WHERE session_id = new.id
        AND id <= (SELECT last_id FROM deleted_sessions WHERE session_id = new.id);
    DELETE FROM deleted_sessions WHERE session_id = new.id;
END;

-- hermes_state_compat stays as it is: a program that does not know this table does not see the session either, can't
-- append to it, and may create it anew. It shows the messages that are left only when asked for them by the deleted id,
-- and counts them; the next program that knows the table removes them.
