//! Files of the Python original at each of its versions, from plain statements.

use std::path::Path;

use rusqlite::Connection;

/// How a file came to its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Made at that version.
    Fresh,
    /// Made at version 1, then altered step by step.
    Chain,
}

pub(crate) const SHAPES: [Shape; 2] = [Shape::Fresh, Shape::Chain];

const SESSIONS_HEAD: &str = "
    CREATE TABLE sessions (
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
        output_tokens INTEGER DEFAULT 0,";
const SESSIONS_V5: &str = "
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
        pricing_version TEXT,";
const SESSIONS_V3: &str = "
        title TEXT,";
const SESSIONS_END: &str = "
        FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
    );";
const MESSAGES_HEAD: &str = "
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id),
        role TEXT NOT NULL,
        content TEXT,
        tool_call_id TEXT,
        tool_calls TEXT,
        tool_name TEXT,
        timestamp REAL NOT NULL,
        token_count INTEGER";
const MESSAGES_V2: &str = ",
        finish_reason TEXT";
const MESSAGES_V6: &str = ",
        reasoning TEXT,
        reasoning_details TEXT,
        codex_reasoning_items TEXT";
const INDEXES: &str = "
    CREATE INDEX idx_sessions_source ON sessions(source);
    CREATE INDEX idx_sessions_parent ON sessions(parent_session_id);
    CREATE INDEX idx_sessions_started ON sessions(started_at DESC);
    CREATE INDEX idx_messages_session ON messages(session_id, timestamp);";
const TITLE_INDEX: &str = "
    CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;";
const FTS: &str = "
    CREATE VIRTUAL TABLE messages_fts USING fts5(
        content,
        content=messages,
        content_rowid=id
    );
    CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
        INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
    END;
    CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
        INSERT INTO messages_fts(messages_fts, rowid, content)
            VALUES('delete', old.id, old.content);
    END;
    CREATE TRIGGER messages_fts_update AFTER UPDATE ON messages BEGIN
        INSERT INTO messages_fts(messages_fts, rowid, content)
            VALUES('delete', old.id, old.content);
        INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
    END;";

/// The statements that lead from the version before to `version`.
fn step(version: i64) -> &'static str {
    match version {
        2 => "ALTER TABLE messages ADD COLUMN finish_reason TEXT;",
        3 => "ALTER TABLE sessions ADD COLUMN title TEXT;",
        4 => TITLE_INDEX,
        5 => {
            "ALTER TABLE sessions ADD COLUMN \"cache_read_tokens\" INTEGER DEFAULT 0;
             ALTER TABLE sessions ADD COLUMN \"cache_write_tokens\" INTEGER DEFAULT 0;
             ALTER TABLE sessions ADD COLUMN \"reasoning_tokens\" INTEGER DEFAULT 0;
             ALTER TABLE sessions ADD COLUMN \"billing_provider\" TEXT;
             ALTER TABLE sessions ADD COLUMN \"billing_base_url\" TEXT;
             ALTER TABLE sessions ADD COLUMN \"billing_mode\" TEXT;
             ALTER TABLE sessions ADD COLUMN \"estimated_cost_usd\" REAL;
             ALTER TABLE sessions ADD COLUMN \"actual_cost_usd\" REAL;
             ALTER TABLE sessions ADD COLUMN \"cost_status\" TEXT;
             ALTER TABLE sessions ADD COLUMN \"cost_source\" TEXT;
             ALTER TABLE sessions ADD COLUMN \"pricing_version\" TEXT;"
        }
        6 => {
            "ALTER TABLE messages ADD COLUMN \"reasoning\" TEXT;
             ALTER TABLE messages ADD COLUMN \"reasoning_details\" TEXT;
             ALTER TABLE messages ADD COLUMN \"codex_reasoning_items\" TEXT;"
        }
        other => panic!("no step to version {other}"),
    }
}

/// The schema of a file that was made at `version`.
fn schema(version: i64) -> String {
    let since = |first: i64, text: &'static str| if version >= first { text } else { "" };
    [
        "CREATE TABLE schema_version (version INTEGER NOT NULL);",
        SESSIONS_HEAD,
        since(5, SESSIONS_V5),
        since(3, SESSIONS_V3),
        SESSIONS_END,
        MESSAGES_HEAD,
        since(2, MESSAGES_V2),
        since(6, MESSAGES_V6),
        ");",
        INDEXES,
        since(4, TITLE_INDEX),
        FTS,
    ]
    .concat()
}

/// Makes a file without rows, in WAL mode as the original does.
pub(crate) fn make_empty(path: &Path, version: i64, shape: Shape) -> Connection {
    let file = Connection::open(path).unwrap();
    file.pragma_update(None, "journal_mode", "wal").unwrap();
    match shape {
        Shape::Fresh => file.execute_batch(&schema(version)).unwrap(),
        Shape::Chain => {
            file.execute_batch(&schema(1)).unwrap();
            for version in 2..=version {
                file.execute_batch(step(version)).unwrap();
            }
        }
    }
    file.execute(
        "INSERT INTO schema_version (version) VALUES (?1)",
        [version],
    )
    .unwrap();
    file
}

/// Makes a file with rows of all sorts, sound and odd.
pub(crate) fn make(path: &Path, version: i64, shape: Shape) -> Connection {
    let file = make_empty(path, version, shape);
    file.execute_batch(
        "INSERT INTO sessions (id, source, started_at) VALUES ('bare', 'unknown', 0);
         INSERT INTO sessions (id, source, user_id, model, model_config, system_prompt,
             parent_session_id, started_at, ended_at, end_reason, message_count,
             tool_call_count, input_tokens, output_tokens)
         VALUES ('full', 'telegram', '4711', 'm', '{\"b\":1, \"a\":2.50}', 'You are 助手.',
             'bare', 1700000000.123456789, 1.7e9, 'compression', 3, NULL, 9223372036854775807, -1),
             ('odd', CAST(x'ff41' AS TEXT), x'00ff', 'a' || char(0) || 'b', 'not json', '',
             'full', '17e8', 'never', NULL, 'many', 1.5, NULL, x'01');
         INSERT INTO messages (id, session_id, role, content, tool_call_id, tool_calls, tool_name,
             timestamp, token_count)
         VALUES (3, 'full', 'user', 'hello 数据库迁移 🚀', NULL, NULL, NULL, 1700000000.1, 7),
             (4, 'full', 'assistant', NULL, NULL, '[{\"id\":\"c\"}]', 'grep', 1700000000.2, NULL),
             (9, 'full', 'tool', 'a' || char(0) || 'word', 'c', '[', '', 1700000000.05, 1.5),
             (10, 'odd', 'system', CAST(x'ff66fe20776f7264' AS TEXT), NULL, x'00', NULL, 1e300, 'x'),
             (11, 'odd', 'weird', x'c328', NULL, '', NULL, -1, NULL);
         DELETE FROM messages WHERE id = 4;
         UPDATE messages SET content = 'hello 数据库 moved' WHERE id = 3;",
    )
    .unwrap();
    if version >= 2 {
        file.execute_batch("UPDATE messages SET finish_reason = 'stop' WHERE id = 3")
            .unwrap();
    }
    if version >= 3 {
        file.execute_batch(
            "UPDATE sessions SET title = '数据库重构' WHERE id = 'full';
             UPDATE sessions SET title = x'ff' WHERE id = 'odd';",
        )
        .unwrap();
    }
    if version >= 5 {
        file.execute_batch(
            "UPDATE sessions SET cache_read_tokens = NULL, billing_mode = 'x',
                 estimated_cost_usd = 0.1, cost_status = 'final' WHERE id = 'full'",
        )
        .unwrap();
    }
    if version >= 6 {
        file.execute_batch(
            "UPDATE messages SET reasoning = 'because', reasoning_details = '[ 1 ]' WHERE id = 3",
        )
        .unwrap();
    }
    file
}
