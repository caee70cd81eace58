"""The original program's statements at schema version 6, with nothing but Python's own sqlite3.

usage: stock.py PATH < commands

Commands are a JSON array of [name, argument, ...]; their results are printed as a JSON array.
"""

import json
import sqlite3
import sys
import time


class SessionDB:
    def __init__(self, path):
        self.conn = sqlite3.connect(path, timeout=20.0, isolation_level=None)
        self.conn.row_factory = sqlite3.Row
        self.conn.execute("PRAGMA journal_mode=WAL")
        self.conn.execute("PRAGMA foreign_keys=ON")
        # Older versions of SQLite have a race between checkpoints of two processes.
        self.conn.execute("PRAGMA wal_autocheckpoint=0")

    def write(self, work):
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            result = work(self.conn)
            self.conn.execute("COMMIT")
            return result
        except BaseException:
            self.conn.execute("ROLLBACK")
            raise

    def create_session(self, session_id, source, model=None, model_config=None, system_prompt=None,
                       user_id=None, parent_session_id=None):
        self.write(lambda conn: conn.execute(
            """INSERT OR IGNORE INTO sessions
               (id, source, user_id, model, model_config, system_prompt, parent_session_id, started_at)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
            (session_id, source, user_id, model,
             json.dumps(model_config) if model_config else None,
             system_prompt, parent_session_id, time.time())))
        return session_id

    def append_message(self, session_id, role, content=None, tool_name=None, tool_calls=None,
                       tool_call_id=None, token_count=None, finish_reason=None, reasoning=None,
                       reasoning_details=None, codex_reasoning_items=None):
        calls = json.dumps(tool_calls) if tool_calls else None
        details = json.dumps(reasoning_details) if reasoning_details else None
        items = json.dumps(codex_reasoning_items) if codex_reasoning_items else None
        count = 0
        if tool_calls is not None:
            count = len(tool_calls) if isinstance(tool_calls, list) else 1

        def work(conn):
            cursor = conn.execute(
                """INSERT INTO messages (session_id, role, content, tool_call_id, tool_calls,
                   tool_name, timestamp, token_count, finish_reason, reasoning, reasoning_details,
                   codex_reasoning_items) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (session_id, role, content, tool_call_id, calls, tool_name, time.time(),
                 token_count, finish_reason, reasoning, details, items))
            conn.execute(
                """UPDATE sessions SET message_count = message_count + 1,
                   tool_call_count = tool_call_count + ? WHERE id = ?""", (count, session_id))
            return cursor.lastrowid

        return self.write(work)

    def append_many(self, session_id, prefix, count):
        return [self.append_message(session_id, "user", f"{prefix} {n}") for n in range(count)]

    def get_session(self, session_id):
        row = self.conn.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return dict(row) if row else None

    def get_messages(self, session_id):
        rows = self.conn.execute(
            "SELECT * FROM messages WHERE session_id = ? ORDER BY timestamp, id", (session_id,))
        messages = [dict(row) for row in rows]
        for message in messages:
            if message["tool_calls"]:
                message["tool_calls"] = json.loads(message["tool_calls"])
        return messages

    def search(self, query):
        rows = self.conn.execute(
            """SELECT m.id FROM messages_fts JOIN messages m ON m.id = messages_fts.rowid
               WHERE messages_fts MATCH ? ORDER BY m.id""", (query,))
        return [row["id"] for row in rows]

    def update_message(self, message_id, content):
        self.write(lambda conn: conn.execute(
            "UPDATE messages SET content = ? WHERE id = ?", (content, message_id)))

    def delete_message(self, message_id):
        self.write(lambda conn: conn.execute("DELETE FROM messages WHERE id = ?", (message_id,)))

    def end_session(self, session_id, end_reason):
        self.write(lambda conn: conn.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?",
            (time.time(), end_reason, session_id)))

    def delete_session(self, session_id):
        def work(conn):
            conn.execute("UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?",
                         (session_id,))
            conn.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))
            conn.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        self.write(work)

    def checked(self):
        self.conn.execute("INSERT INTO messages_fts(messages_fts) VALUES ('integrity-check')")
        return [row[0] for row in self.conn.execute("PRAGMA integrity_check")]


def main():
    db = SessionDB(sys.argv[1])
    commands = json.load(sys.stdin)
    results = [getattr(db, name)(*arguments) for name, *arguments in commands]
    db.conn.close()
    json.dump(results, sys.stdout)


main()
