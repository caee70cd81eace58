//! What a current file holds, piece by piece, each with the statement that adds it.

/// The `schema_version` of the Python original that this crate works with.
pub(super) const SCHEMA_VERSION: i64 = 6;

/// Name of the table in which our migrations are recorded. Not sqlx's default, which a host
/// application may use in the same file.
pub(super) const HISTORY_TABLE: &str = "hermes_state_migrations";

/// Something that a current file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Table(&'static str),
    /// Table, column, and the schema version that brought it.
    Column(&'static str, &'static str, i64),
    Index(&'static str),
    Trigger(&'static str),
    /// The only row of `hermes_state_compat`.
    CompatRow,
}

use Piece::{Column, CompatRow, Index, Table, Trigger};

pub(super) const TITLE_INDEX: Piece = Index("idx_sessions_title_unique");
pub(super) const MESSAGES_FTS: Piece = Table("messages_fts");

/// Schema version 6, in an order in which each piece finds what it needs.
pub(super) const V6: &[(Piece, &str)] = &[
    (
        Table("schema_version"),
        "CREATE TABLE schema_version (
    version INTEGER NOT NULL
)",
    ),
    (
        Table("sessions"),
        "CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    model TEXT,
    model_config TEXT,
    system_prompt TEXT,
    parent_session_id TEXT,
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0,
    billing_provider TEXT,
    billing_base_url TEXT,
    billing_mode TEXT,
    estimated_cost_usd REAL,
    actual_cost_usd REAL,
    cost_status TEXT,
    cost_source TEXT,
    pricing_version TEXT,
    title TEXT,
    FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
)",
    ),
    (
        Table("messages"),
        "CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    timestamp REAL NOT NULL,
    token_count INTEGER,
    finish_reason TEXT,
    reasoning TEXT,
    reasoning_details TEXT,
    codex_reasoning_items TEXT
)",
    ),
    (
        Column("sessions", "user_id", 1),
        "ALTER TABLE sessions ADD COLUMN user_id TEXT",
    ),
    (
        Column("sessions", "model", 1),
        "ALTER TABLE sessions ADD COLUMN model TEXT",
    ),
    (
        Column("sessions", "model_config", 1),
        "ALTER TABLE sessions ADD COLUMN model_config TEXT",
    ),
    (
        Column("sessions", "system_prompt", 1),
        "ALTER TABLE sessions ADD COLUMN system_prompt TEXT",
    ),
    (
        Column("sessions", "parent_session_id", 1),
        "ALTER TABLE sessions ADD COLUMN parent_session_id TEXT REFERENCES sessions(id)",
    ),
    (
        Column("sessions", "ended_at", 1),
        "ALTER TABLE sessions ADD COLUMN ended_at REAL",
    ),
    (
        Column("sessions", "end_reason", 1),
        "ALTER TABLE sessions ADD COLUMN end_reason TEXT",
    ),
    (
        Column("sessions", "message_count", 1),
        "ALTER TABLE sessions ADD COLUMN message_count INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "tool_call_count", 1),
        "ALTER TABLE sessions ADD COLUMN tool_call_count INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "input_tokens", 1),
        "ALTER TABLE sessions ADD COLUMN input_tokens INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "output_tokens", 1),
        "ALTER TABLE sessions ADD COLUMN output_tokens INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "title", 3),
        "ALTER TABLE sessions ADD COLUMN title TEXT",
    ),
    (
        Column("sessions", "cache_read_tokens", 5),
        "ALTER TABLE sessions ADD COLUMN cache_read_tokens INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "cache_write_tokens", 5),
        "ALTER TABLE sessions ADD COLUMN cache_write_tokens INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "reasoning_tokens", 5),
        "ALTER TABLE sessions ADD COLUMN reasoning_tokens INTEGER DEFAULT 0",
    ),
    (
        Column("sessions", "billing_provider", 5),
        "ALTER TABLE sessions ADD COLUMN billing_provider TEXT",
    ),
    (
        Column("sessions", "billing_base_url", 5),
        "ALTER TABLE sessions ADD COLUMN billing_base_url TEXT",
    ),
    (
        Column("sessions", "billing_mode", 5),
        "ALTER TABLE sessions ADD COLUMN billing_mode TEXT",
    ),
    (
        Column("sessions", "estimated_cost_usd", 5),
        "ALTER TABLE sessions ADD COLUMN estimated_cost_usd REAL",
    ),
    (
        Column("sessions", "actual_cost_usd", 5),
        "ALTER TABLE sessions ADD COLUMN actual_cost_usd REAL",
    ),
    (
        Column("sessions", "cost_status", 5),
        "ALTER TABLE sessions ADD COLUMN cost_status TEXT",
    ),
    (
        Column("sessions", "cost_source", 5),
        "ALTER TABLE sessions ADD COLUMN cost_source TEXT",
    ),
    (
        Column("sessions", "pricing_version", 5),
        "ALTER TABLE sessions ADD COLUMN pricing_version TEXT",
    ),
    (
        Column("messages", "content", 1),
        "ALTER TABLE messages ADD COLUMN content TEXT",
    ),
    (
        Column("messages", "tool_call_id", 1),
        "ALTER TABLE messages ADD COLUMN tool_call_id TEXT",
    ),
    (
        Column("messages", "tool_calls", 1),
        "ALTER TABLE messages ADD COLUMN tool_calls TEXT",
    ),
    (
        Column("messages", "tool_name", 1),
        "ALTER TABLE messages ADD COLUMN tool_name TEXT",
    ),
    (
        Column("messages", "token_count", 1),
        "ALTER TABLE messages ADD COLUMN token_count INTEGER",
    ),
    (
        Column("messages", "finish_reason", 2),
        "ALTER TABLE messages ADD COLUMN finish_reason TEXT",
    ),
    (
        Column("messages", "reasoning", 6),
        "ALTER TABLE messages ADD COLUMN reasoning TEXT",
    ),
    (
        Column("messages", "reasoning_details", 6),
        "ALTER TABLE messages ADD COLUMN reasoning_details TEXT",
    ),
    (
        Column("messages", "codex_reasoning_items", 6),
        "ALTER TABLE messages ADD COLUMN codex_reasoning_items TEXT",
    ),
    (
        Index("idx_sessions_source"),
        "CREATE INDEX idx_sessions_source ON sessions(source)",
    ),
    (
        Index("idx_sessions_parent"),
        "CREATE INDEX idx_sessions_parent ON sessions(parent_session_id)",
    ),
    (
        Index("idx_sessions_started"),
        "CREATE INDEX idx_sessions_started ON sessions(started_at DESC)",
    ),
    (
        Index("idx_messages_session"),
        "CREATE INDEX idx_messages_session ON messages(session_id, timestamp)",
    ),
    (
        TITLE_INDEX,
        "CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL",
    ),
    (
        MESSAGES_FTS,
        "CREATE VIRTUAL TABLE messages_fts USING fts5(
    content,
    content=messages,
    content_rowid=id
)",
    ),
    (
        Trigger("messages_fts_insert"),
        "CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
END",
    ),
    (
        Trigger("messages_fts_delete"),
        "CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content)
        VALUES('delete', old.id, old.content);
END",
    ),
    (
        Trigger("messages_fts_update"),
        "CREATE TRIGGER messages_fts_update AFTER UPDATE ON messages BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content)
        VALUES('delete', old.id, old.content);
    INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
END",
    ),
];

/// What our own migrations add, for files from which another program took some of it, for
/// example by building a table anew.
pub(super) const OURS: &[(Piece, &str)] = &[
    (
        Column("messages", "content_parts", 7),
        "ALTER TABLE messages ADD COLUMN content_parts TEXT",
    ),
    (
        Column("messages", "extra_json", 7),
        "ALTER TABLE messages ADD COLUMN extra_json TEXT",
    ),
    (
        Table("append_keys"),
        "CREATE TABLE append_keys (
    session_id TEXT NOT NULL,
    key TEXT NOT NULL,
    first_id INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (session_id, key)
) WITHOUT ROWID",
    ),
    (
        Trigger("append_keys_session_delete"),
        "CREATE TRIGGER append_keys_session_delete AFTER DELETE ON sessions BEGIN
    DELETE FROM append_keys WHERE session_id = old.id;
END",
    ),
    (
        Trigger("append_keys_session_rename"),
        "CREATE TRIGGER append_keys_session_rename AFTER UPDATE OF id ON sessions
WHEN old.id IS NOT new.id AND new.id IS NOT NULL BEGIN
    DELETE FROM append_keys WHERE session_id = new.id;
    UPDATE append_keys SET session_id = new.id WHERE session_id = old.id;
END",
    ),
    (
        Table("deleted_sessions"),
        "CREATE TABLE deleted_sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    last_id INTEGER NOT NULL
) WITHOUT ROWID",
    ),
    (
        Trigger("deleted_sessions_session_insert"),
        "CREATE TRIGGER deleted_sessions_session_insert AFTER INSERT ON sessions
WHEN EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = new.id) BEGIN
    DELETE FROM messages WHERE session_id = new.id
        AND id <= (SELECT last_id FROM deleted_sessions WHERE session_id = new.id);
    DELETE FROM deleted_sessions WHERE session_id = new.id;
END",
    ),
    (
        Trigger("deleted_sessions_session_rename"),
        "CREATE TRIGGER deleted_sessions_session_rename AFTER UPDATE OF id ON sessions
WHEN old.id IS NOT new.id AND EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = new.id) BEGIN
    DELETE FROM messages WHERE session_id = new.id
        AND id <= (SELECT last_id FROM deleted_sessions WHERE session_id = new.id);
    DELETE FROM deleted_sessions WHERE session_id = new.id;
END",
    ),
    (
        Table("hermes_state_compat"),
        "CREATE TABLE hermes_state_compat (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    read_needs INTEGER NOT NULL,
    write_needs INTEGER NOT NULL
)",
    ),
    // Only where no later migration is recorded, whose demand would be lost.
    (
        CompatRow,
        "INSERT INTO hermes_state_compat (id, read_needs, write_needs) VALUES (1, 1, 7)",
    ),
];

/// The index that makes reading a long transcript fast. Built here only where it costs nothing.
pub(super) const MESSAGE_INDEX: Piece = Index("idx_messages_session_id");
pub(super) const CREATE_MESSAGE_INDEX: &str =
    "CREATE INDEX idx_messages_session_id ON messages(session_id)";
