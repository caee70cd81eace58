//! What a store found where it was opened.

use std::path::PathBuf;

use crate::options::{Access, Durability};

/// What a store found where it was opened. Facts about SQLite and the file, for people who look
/// after a system; programs should not need it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// The database file, as SQLite knows it.
    pub path: PathBuf,
    /// Version of the linked SQLite, such as `3.51.3`.
    pub sqlite_version: String,
    /// What kind of file system holds the file.
    pub file_system: FileSystem,
    /// How the file keeps a transaction until it is whole.
    pub journal_mode: JournalMode,
    /// Whether the store may write.
    pub access: Access,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// The file's page size in bytes.
    pub page_size: u32,
    /// The file's `schema_version`.
    pub schema_version: i64,
    /// The last of this crate's migrations that the file has seen.
    pub migration: i64,
    /// Version of this crate.
    pub crate_version: &'static str,
    /// What deserves attention, now.
    pub warnings: Vec<Warning>,
}

/// What kind of file system holds a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileSystem {
    /// One that carries a write-ahead log.
    Local,
    /// A network, shared-folder or FUSE file system, by name: locks or shared memory of a
    /// write-ahead log may not work there.
    Remote(&'static str),
    /// This platform does not tell.
    Unknown,
}

/// How a file keeps a transaction until it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JournalMode {
    /// A write-ahead log: readers never wait for the writer.
    Wal,
    /// A rollback journal: readers wait while a commit is written.
    Rollback,
}

/// What deserves the attention of whoever looks after a system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The file system may not carry a write-ahead log, so that the new file got a rollback
    /// journal.
    RollbackJournalOnRemote,
    /// The file is in WAL mode on a file system that may not carry it. It is used as it is; move
    /// it to a local disk.
    WalOnRemote,
    /// The file could not be switched to WAL mode, because others use it.
    WalRefused,
    /// Two sessions had the same title: the older one got another.
    DuplicateTitle {
        /// The session that was given another title.
        session_id: String,
    },
    /// The index that makes reading a long transcript fast is not built yet.
    MessageIndexMissing,
    /// A reader of another program keeps the write-ahead log from shrinking.
    LogHeldByOthers {
        /// The log's length in bytes when it was last looked at.
        bytes: u64,
    },
}
