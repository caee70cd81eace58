"""The Python original's design, re-created from its description: one connection behind a lock,
BEGIN IMMEDIATE, retries with jitter, a PASSIVE checkpoint every 50 writes.

Only what the benchmarks need: append, and load as a conversation.
"""

import json
import logging
import random
import sqlite3
import threading
import time
from pathlib import Path

logger = logging.getLogger(__name__)

SCHEMA = (Path(__file__).parent.parent / "raw" / "schema.sql").read_text(encoding="utf-8")


class SessionDB:
    _WRITE_MAX_RETRIES = 15
    _WRITE_RETRY_MIN_S = 0.020
    _WRITE_RETRY_MAX_S = 0.150
    _CHECKPOINT_EVERY_N_WRITES = 50

    def __init__(self, path, synchronous):
        self._lock = threading.Lock()
        self._write_count = 0
        fresh = not Path(path).exists()
        self._conn = sqlite3.connect(
            path, check_same_thread=False, timeout=1.0, isolation_level=None
        )
        self._conn.row_factory = sqlite3.Row
        self._conn.execute("PRAGMA journal_mode=WAL")
        self._conn.execute("PRAGMA foreign_keys=ON")
        self._conn.execute(f"PRAGMA synchronous={synchronous}")
        if fresh:
            self._conn.executescript(SCHEMA)

    def close(self):
        self._try_wal_checkpoint()
        self._conn.close()

    def _execute_write(self, fn):
        last_err = None
        for attempt in range(self._WRITE_MAX_RETRIES):
            try:
                with self._lock:
                    self._conn.execute("BEGIN IMMEDIATE")
                    try:
                        result = fn(self._conn)
                        self._conn.commit()
                    except BaseException:
                        self._conn.rollback()
                        raise
                self._write_count += 1
                if self._write_count % self._CHECKPOINT_EVERY_N_WRITES == 0:
                    self._try_wal_checkpoint()
                return result
            except sqlite3.OperationalError as exc:
                err_msg = str(exc).lower()
                if "locked" in err_msg or "busy" in err_msg:
                    last_err = exc
                    if attempt < self._WRITE_MAX_RETRIES - 1:
                        time.sleep(
                            random.uniform(self._WRITE_RETRY_MIN_S, self._WRITE_RETRY_MAX_S)
                        )
                        continue
                raise
        raise last_err or sqlite3.OperationalError("database is locked")

    def _try_wal_checkpoint(self):
        try:
            with self._lock:
                self._conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Exception:  # Best effort, as in the original.
            pass

    def create_session(self, session_id, source):
        def _do(conn):
            conn.execute(
                "INSERT OR IGNORE INTO sessions (id, source, started_at) VALUES (?, ?, ?)",
                (session_id, source, time.time()),
            )

        self._execute_write(_do)
        return session_id

    def append_message(
        self,
        session_id,
        role,
        content=None,
        tool_name=None,
        tool_calls=None,
        tool_call_id=None,
        token_count=None,
        finish_reason=None,
        reasoning=None,
        reasoning_details=None,
        codex_reasoning_items=None,
    ):
        tool_calls_json = json.dumps(tool_calls) if tool_calls else None
        reasoning_details_json = json.dumps(reasoning_details) if reasoning_details else None
        codex_items_json = json.dumps(codex_reasoning_items) if codex_reasoning_items else None
        num_tool_calls = 0
        if tool_calls is not None:
            num_tool_calls = len(tool_calls) if isinstance(tool_calls, list) else 1

        def _do(conn):
            cursor = conn.execute(
                """INSERT INTO messages (session_id, role, content, tool_call_id,
                   tool_calls, tool_name, timestamp, token_count, finish_reason,
                   reasoning, reasoning_details, codex_reasoning_items)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (
                    session_id,
                    role,
                    content,
                    tool_call_id,
                    tool_calls_json,
                    tool_name,
                    time.time(),
                    token_count,
                    finish_reason,
                    reasoning,
                    reasoning_details_json,
                    codex_items_json,
                ),
            )
            msg_id = cursor.lastrowid
            if num_tool_calls > 0:
                conn.execute(
                    """UPDATE sessions SET message_count = message_count + 1,
                       tool_call_count = tool_call_count + ? WHERE id = ?""",
                    (num_tool_calls, session_id),
                )
            else:
                conn.execute(
                    "UPDATE sessions SET message_count = message_count + 1 WHERE id = ?",
                    (session_id,),
                )
            return msg_id

        return self._execute_write(_do)

    def get_messages_as_conversation(self, session_id):
        with self._lock:
            rows = self._conn.execute(
                """SELECT role, content, tool_call_id, tool_calls, tool_name, finish_reason,
                          reasoning, reasoning_details, codex_reasoning_items
                   FROM messages WHERE session_id = ? ORDER BY timestamp, id""",
                (session_id,),
            ).fetchall()
        messages = []
        for row in rows:
            msg = {"role": row["role"], "content": row["content"]}
            if row["tool_call_id"]:
                msg["tool_call_id"] = row["tool_call_id"]
            if row["tool_name"]:
                msg["tool_name"] = row["tool_name"]
            if row["tool_calls"]:
                try:
                    msg["tool_calls"] = json.loads(row["tool_calls"])
                except (json.JSONDecodeError, TypeError):
                    logger.warning("Failed to deserialize tool_calls, falling back to []")
                    msg["tool_calls"] = []
            if row["role"] == "assistant":
                if row["finish_reason"]:
                    msg["finish_reason"] = row["finish_reason"]
                if row["reasoning"]:
                    msg["reasoning"] = row["reasoning"]
                for column in ("reasoning_details", "codex_reasoning_items"):
                    if row[column]:
                        try:
                            msg[column] = json.loads(row[column])
                        except (json.JSONDecodeError, TypeError):
                            logger.warning("Failed to deserialize %s", column)
                            msg[column] = None
            messages.append(msg)
        return messages
