//! What the tests of writing, reading and failing share: a file, rivals for it, child processes.

#![allow(dead_code, reason = "each test crate uses its part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hermes_state::{NewMessage, NewSession, RetryPolicy, SessionId, SessionStore, StoreOptions};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::time::Instant;

/// Far above what anything in these tests takes, so that a hang fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A database file in a folder of its own.
pub(crate) struct File {
    folder: TempDir,
    pub(crate) path: PathBuf,
}

impl File {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        Self { folder, path }
    }

    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        beside(&self.path, suffix)
    }

    /// A store, and its session.
    pub(crate) async fn open(&self) -> (SessionStore, SessionId) {
        self.open_with(StoreOptions::new()).await
    }

    pub(crate) async fn open_with(&self, options: StoreOptions) -> (SessionStore, SessionId) {
        let store = options.open(&self.path).await.unwrap();
        let new = NewSession::new("test").id(SessionId::new("s").unwrap());
        let session = store.create_session(new).await.unwrap();
        (store, session)
    }

    pub(crate) fn rival(&self) -> Connection {
        rival(&self.path)
    }

    /// Another program's connection, which holds the write lock until it is dropped.
    pub(crate) fn lock(&self) -> Connection {
        let rival = self.rival();
        rival.busy_timeout(PATIENCE).unwrap();
        rival.execute_batch("BEGIN IMMEDIATE").unwrap();
        rival
    }

    pub(crate) fn contents(&self) -> Vec<String> {
        contents(&self.rival())
    }

    /// How many transactions the log holds: up to where the salt of its header ends.
    pub(crate) fn commits_in_log(&self) -> usize {
        let log = std::fs::read(self.beside("-wal")).unwrap();
        let word = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
        let frame = 24 + usize::try_from(word(8)).unwrap();
        (32..log.len())
            .step_by(frame)
            .filter(|at| at + frame <= log.len())
            .take_while(|at| (word(at + 8), word(at + 12)) == (word(16), word(20)))
            .filter(|at| word(at + 4) != 0)
            .count()
    }
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    format!("{}{suffix}", path.display()).into()
}

/// Another program's connection, which gives up at once when it meets a lock.
pub(crate) fn rival(path: &Path) -> Connection {
    let rival = Connection::open(path).unwrap();
    rival.busy_timeout(Duration::ZERO).unwrap();
    rival
}

/// Contents of all messages, in the order of their ids.
pub(crate) fn contents(rival: &Connection) -> Vec<String> {
    let mut statement = rival
        .prepare("SELECT content FROM messages ORDER BY id")
        .unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

pub(crate) fn cell(rival: &Connection, sql: &str) -> i64 {
    rival.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The file is sound, its index of words fits the messages, and every session counts its own.
pub(crate) fn assert_sound(path: &Path) {
    let rival = rival(path);
    rival.busy_timeout(PATIENCE).unwrap();
    let verdict: String = rival
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok");
    rival
        .execute_batch("INSERT INTO messages_fts(messages_fts, rank) VALUES ('integrity-check', 1)")
        .unwrap();
    let wrong = "SELECT COUNT(*) FROM sessions WHERE message_count <>
                 (SELECT COUNT(*) FROM messages WHERE session_id = sessions.id)";
    assert_eq!(cell(&rival, wrong), 0);
}

pub(crate) fn text(content: impl Into<String>) -> NewMessage {
    NewMessage::user(content.into())
}

/// Tries `times` times without waiting, neither inside SQLite nor between the tries.
pub(crate) fn impatient(times: u32) -> StoreOptions {
    let policy = RetryPolicy::new().tries(times.try_into().unwrap());
    let policy = policy.wait(Duration::ZERO, Duration::ZERO).unwrap();
    let options = StoreOptions::new().retry(policy);
    options.busy_timeout(Duration::ZERO).unwrap()
}

/// Waits until `condition` holds; fails when it does not for too long.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

const CHILD: &str = "HERMES_STATE_TEST_CHILD";

/// Runs the test `name` of this crate in a process of its own, with `argument`.
pub(crate) fn child(name: &str, argument: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, argument);
    command
}

/// In the child: its argument.
pub(crate) fn child_argument() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}
