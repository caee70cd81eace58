//! Connections with the pragmas that the contract asks for.

use std::path::Path;

use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqliteConnection};

use crate::environment::JournalMode;
use crate::options::{Durability, StoreOptions};

/// Most bytes that the log file keeps when it begins anew; what is above is given back.
const JOURNAL_SIZE_LIMIT: u64 = 16 * 1024 * 1024;

/// What readers and the writer have in common.
fn common(path: &Path, options: &StoreOptions) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .busy_timeout(options.busy_timeout)
        .foreign_keys(true)
        .pragma("temp_store", "MEMORY")
        .pragma("trusted_schema", "OFF")
        .pragma("cell_size_check", "ON")
        .pragma("mmap_size", "0")
        .disable_statement_logging()
}

/// A connection that never writes. `immutable` is for a folder in which nobody can write.
pub(crate) async fn reader(
    path: &Path,
    options: &StoreOptions,
    immutable: bool,
) -> sqlx::Result<SqliteConnection> {
    common(path, options)
        .read_only(true)
        .immutable(immutable)
        // Fewer wake-ups of the reading task on long transcripts.
        .row_buffer_size(256)
        .connect()
        .await
}

/// The connection that writes, to a file whose journal mode is settled.
pub(crate) async fn writer(
    path: &Path,
    options: &StoreOptions,
    journal: JournalMode,
) -> sqlx::Result<SqliteConnection> {
    let synchronous = match (options.durability, journal) {
        (Durability::Normal, _) => SqliteSynchronous::Normal,
        (Durability::Full, JournalMode::Wal) => SqliteSynchronous::Full,
        // FULL does not sync the folder after the journal is deleted: a power cut could bring the
        // journal back, and with it the state before an acknowledged commit.
        (Durability::Full, JournalMode::Rollback) => SqliteSynchronous::Extra,
    };
    // A log that began anew inside a long file grows unseen until it reaches the file's end.
    let kept = JOURNAL_SIZE_LIMIT.min(options.checkpoint_bytes);
    let mut connection = common(path, options)
        .synchronous(synchronous)
        .pragma("journal_size_limit", kept.to_string());
    if journal == JournalMode::Wal {
        // The writer checkpoints after it has answered. Where there is no log now, SQLite does it,
        // should another program switch the file to one.
        connection = connection.pragma("wal_autocheckpoint", "0");
    }
    if cfg!(target_vendor = "apple") {
        // Without these, `fsync` there leaves data in the drive's cache.
        connection = connection
            .pragma("fullfsync", "ON")
            .pragma("checkpoint_fullfsync", "ON");
    }
    connection.connect().await
}

/// The connection that brings a file up to date. `new` asks for the settings that only an empty
/// file takes.
pub(crate) async fn migrator(
    path: &Path,
    options: &StoreOptions,
    new: bool,
) -> sqlx::Result<SqliteConnection> {
    let mut connection = common(path, options)
        .synchronous(SqliteSynchronous::Extra)
        .pragma("wal_autocheckpoint", "0");
    if new {
        connection = connection.auto_vacuum(SqliteAutoVacuum::Incremental);
    }
    connection.connect().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tempfile::TempDir;
    use tokio::runtime::Handle;
    use tokio::time::Instant;

    use super::*;
    use crate::db::code::{Failure, classify};
    use crate::db::presence::Presence;
    use crate::db::readers::{Length, Readers};
    use crate::db::status::Status;
    use crate::db::writer::Target;
    use crate::options::Journal;

    /// A file as the store makes it, and what the store connects with.
    async fn file(options: &StoreOptions) -> (TempDir, Target) {
        let folder = tempfile::tempdir().unwrap();
        let store = options.clone().open(folder.path().join("state.db")).await;
        let store = store.unwrap();
        store.close().await.unwrap();
        let environment = store.environment();
        let presence = Presence::of(&environment.path);
        let target = Target {
            path: environment.path,
            options: options.clone(),
            journal: environment.journal_mode,
            page_size: environment.page_size,
            status: Arc::new(Status::new(presence, true)),
            claims: Arc::default(),
        };
        (folder, target)
    }

    const COMMON: [(&str, &str); 6] = [
        ("PRAGMA foreign_keys", "1"),
        ("PRAGMA temp_store", "2"),
        ("PRAGMA trusted_schema", "0"),
        ("PRAGMA cell_size_check", "1"),
        ("PRAGMA mmap_size", "0"),
        ("PRAGMA busy_timeout", "1234"),
    ];

    async fn read_back(connection: &mut SqliteConnection, pragma: &'static str) -> String {
        let row = sqlx::query(pragma).fetch_one(connection).await.unwrap();
        let number: i64 = sqlx::Row::try_get_unchecked(&row, 0).unwrap();
        number.to_string()
    }

    fn options() -> StoreOptions {
        StoreOptions::new()
            .busy_timeout(Duration::from_millis(1234))
            .unwrap()
    }

    #[tokio::test]
    async fn the_writer_is_set_up_as_the_contract_says() {
        let rollback = options().journal(Journal::Rollback);
        let normal = options().durability(Durability::Normal);
        for (options, synchronous, autocheckpoint) in [
            (options(), "2", "0"),
            (rollback, "3", "1000"),
            (normal, "1", "0"),
        ] {
            let (_folder, target) = file(&options).await;
            let mut connection = target.connect().await.unwrap();
            let own = [
                ("PRAGMA synchronous", synchronous),
                ("PRAGMA wal_autocheckpoint", autocheckpoint),
                ("PRAGMA journal_size_limit", "8388608"),
                ("PRAGMA auto_vacuum", "2"),
                ("PRAGMA query_only", "0"),
            ];
            for (pragma, expected) in COMMON.into_iter().chain(own) {
                let found = read_back(&mut connection, pragma).await;
                assert_eq!(found, expected, "{pragma} {:?}", target.journal);
            }
        }
    }

    /// What is adopted must survive a power cut as it is: never less than a write of the store.
    #[tokio::test]
    async fn the_migrator_is_set_up_as_the_contract_says() {
        let (_folder, target) = file(&options()).await;
        let mut connection = migrator(&target.path, &options(), false).await.unwrap();
        let own = [
            ("PRAGMA synchronous", "3"),
            ("PRAGMA wal_autocheckpoint", "0"),
        ];
        for (pragma, expected) in COMMON.into_iter().chain(own) {
            assert_eq!(
                read_back(&mut connection, pragma).await,
                expected,
                "{pragma}"
            );
        }
    }

    #[tokio::test]
    async fn a_reader_is_set_up_as_the_contract_says_and_can_not_write() {
        let (_folder, target) = file(&options()).await;
        let readers = Readers::new(
            target.path,
            options(),
            false,
            target.status,
            Handle::current(),
        );
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut lease = readers.lease(Length::Short, deadline).await.unwrap();
        let connection = &mut lease.reader.as_mut().unwrap().connection;
        for (pragma, expected) in COMMON {
            assert_eq!(read_back(connection, pragma).await, expected, "{pragma}");
        }
        for statement in [
            "DELETE FROM messages",
            "PRAGMA user_version = 1",
            "CREATE TABLE t (x)",
        ] {
            let refused = sqlx::query(statement).execute(&mut *connection).await;
            let failure = classify(&refused.unwrap_err());
            assert_eq!(failure, Failure::ReadOnly, "{statement}");
        }
    }
}
