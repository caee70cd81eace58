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
