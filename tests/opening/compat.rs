//! Other programs at our files: later versions of this crate, and stock SQLite.

use std::process::Command;

use hermes_state::{Error, StoreOptions};

use crate::original::{Shape, make};
use crate::support::{
    assert_sound, connect, integer, open, open_read_only, open_with, place, schema,
};

/// A current file that a later version of this crate has changed.
fn changed_by_a_later_version(path: &std::path::Path, read_needs: i64, write_needs: i64) {
    connect(path)
        .execute_batch(&format!(
            "ALTER TABLE messages ADD COLUMN from_the_future TEXT;
             INSERT INTO hermes_state_migrations (version, description, success, checksum, execution_time)
                 VALUES (9, 'later', TRUE, x'00', -1);
             UPDATE hermes_state_compat SET read_needs = {read_needs}, write_needs = {write_needs};"
        ))
        .unwrap();
}

#[tokio::test]
async fn a_file_with_harmless_later_migrations_opens() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    changed_by_a_later_version(&path, 1, 7);
    let before = schema(&connect(&path));
    assert_eq!(open(&path).await.unwrap().migration, 9);
    assert_eq!(open_read_only(&path).await.unwrap().migration, 9);
    // Also when something of the original is missing.
    connect(&path)
        .execute_batch("DROP INDEX idx_sessions_source")
        .unwrap();
    assert_eq!(open(&path).await.unwrap().migration, 9);
    assert_eq!(schema(&connect(&path)), before);
}

#[tokio::test]
async fn a_file_that_only_later_versions_may_write_can_be_read() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    changed_by_a_later_version(&path, 7, 9);
    let before = std::fs::read(&path).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NewerStore {
                needed: 9,
                supported: 8,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(open_read_only(&path).await.unwrap().migration, 9);
}

#[tokio::test]
async fn a_file_that_only_later_versions_may_read_is_refused() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    changed_by_a_later_version(&path, 9, 9);
    for options in [StoreOptions::new(), StoreOptions::new().read_only()] {
        let error = open_with(options, &path).await.unwrap_err();
        assert!(
            matches!(error, Error::NewerStore { needed: 9, .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn later_migrations_without_their_demands_are_taken_to_demand_themselves() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    changed_by_a_later_version(&path, 1, 7);
    connect(&path)
        .execute_batch("DELETE FROM hermes_state_compat")
        .unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(
        matches!(error, Error::NewerStore { needed: 9, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn stock_sqlite_reads_and_writes_an_adopted_file() {
    let (_folder, path) = place();
    drop(make(&path, 1, Shape::Fresh));
    open(&path).await.unwrap();
    connect(&path)
        .execute_batch(
            "INSERT INTO append_keys VALUES ('full', 'k', 3, 1), ('bare', 'k', 1, 2), ('x', 'k', 1, 1)",
        )
        .unwrap();
    let script = r#"
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("PRAGMA foreign_keys = ON")
file.execute("INSERT INTO sessions (id, source, started_at, title) VALUES ('py', 'cli', 5, 'by stock')")
file.execute("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('py', 'user', 'stockword here', 6)")
assert file.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'stockword'").fetchall()
file.execute("UPDATE messages SET content = 'otherword' WHERE session_id = 'py'")
assert not file.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'stockword'").fetchall()
file.execute("INSERT OR REPLACE INTO sessions (id, source, started_at) VALUES ('new', 'cli', 7)")
file.execute("INSERT OR IGNORE INTO sessions (id, source, started_at) VALUES ('new', 'cli', 7)")
# 'x' is the rest of a session that was replaced: no reason to refuse the name.
file.execute("PRAGMA foreign_keys = OFF")
file.execute("UPDATE sessions SET id = 'x' WHERE id = 'full'")
file.execute("DELETE FROM messages WHERE session_id = 'bare'")
file.execute("DELETE FROM sessions WHERE id = 'bare'")
file.execute("UPDATE sessions SET title = NULL")
file.execute("DELETE FROM messages WHERE session_id = 'py'")
file.execute("DELETE FROM sessions WHERE id IN ('py', 'new')")
assert file.execute("SELECT session_id, key, first_id, count FROM append_keys").fetchall() == [('x', 'k', 3, 1)]
assert file.execute("PRAGMA integrity_check").fetchall() == [('ok',)]
print(sqlite3.sqlite_version)
"#;
    let output = Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(&path)
        .output()
        .expect("python3 must be there, with its own SQLite");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let file = connect(&path);
    assert_sound(&file);
    assert_eq!(integer(&file, "SELECT count(*) FROM sessions"), 2);
    drop(file);
    open(&path).await.unwrap();
}
