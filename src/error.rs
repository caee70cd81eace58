//! What can go wrong, one variant for each thing that a caller would do differently.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::id::{MessageId, SessionId};

/// The cause of an error, from the layer below.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
///
/// No text of an error contains what was said in a conversation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // What the caller gave.
    /// A value that the caller gave is not allowed. Nothing was stored.
    #[error("{what} {problem}")]
    InvalidInput {
        /// The value, in words.
        what: &'static str,
        /// What is wrong with it and what is allowed.
        problem: Cow<'static, str>,
    },
    /// A text is not JSON, or not the JSON that was asked for. Nothing was stored.
    #[error("not the expected JSON")]
    InvalidJson {
        /// Where and why.
        source: BoxError,
    },
    /// A message is larger than the store's limit. Nothing was stored: shorten it, or raise
    /// [`StoreOptions::message_limit`](crate::StoreOptions::message_limit).
    #[error("message of {bytes} bytes is over the limit of {limit} bytes")]
    MessageTooLarge {
        /// Bytes of all texts of the message.
        bytes: usize,
        /// The store's limit.
        limit: usize,
    },
    /// The session that the caller named does not exist. Nothing was stored.
    #[error("session {id} does not exist; create it first")]
    SessionNotFound {
        /// The session.
        id: SessionId,
    },
    /// The parent that the caller named does not exist. Nothing was stored.
    #[error("parent session {parent} does not exist; create it first")]
    ParentNotFound {
        /// The parent.
        parent: SessionId,
    },
    /// The parent that the caller named descends from the session itself. Nothing was stored.
    #[error(
        "session {parent} can't be the parent of {id}: it is the session itself or descends from it"
    )]
    LineageCycle {
        /// The session.
        id: SessionId,
        /// The parent that was asked for.
        parent: SessionId,
    },
    /// The transcript does not end where the caller expected: somebody else appended. Nothing was
    /// stored: read what is new, then append again.
    #[error("the transcript does not end where the caller expected; read what is new")]
    Conflict {
        /// Id of the last message, `None` if there is none.
        actual: Option<MessageId>,
    },
    /// A title has too many characters. Nothing was stored.
    #[error("a title of {chars} characters is over the limit of {limit}")]
    TitleTooLong {
        /// Characters (Unicode scalar values) of the title, cleaned.
        chars: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// The title belongs to another session. Nothing was stored: choose another one, or ask for
    /// [`TitleClash::NextNumber`](crate::TitleClash::NextNumber).
    // The text does not say which session: it may be somebody else's.
    #[error("the title is taken by another session")]
    TitleTaken {
        /// The session that has it.
        by: SessionId,
    },
    /// The session has another title than the caller expected: somebody changed it. Nothing was
    /// stored.
    #[error("the session's title is not the one that the caller expected")]
    TitleChanged,

    // Load and time.
    /// The write did not begin before its deadline. It never ran: try again later.
    #[error("the write did not begin within {waited:?}: the store is overloaded")]
    Overloaded {
        /// How long the call waited.
        waited: Duration,
    },
    /// Another process held the write lock for longer than the retry policy allows. The write
    /// did not take effect: try again later.
    #[error("the database was still locked by another process after {attempts} attempts")]
    Busy {
        /// How often it was tried.
        attempts: u32,
        /// The last answer.
        source: BoxError,
    },
    /// A read did not end before its deadline. It was stopped.
    #[error("the read did not end within {waited:?}")]
    ReadTimeout {
        /// How long the call waited.
        waited: Duration,
    },

    // The store's own state.
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The store was opened for reading only.
    #[error("the store was opened read-only")]
    ReadOnly,
    /// The runtime that opened the store has ended, and the store's writer with it. Open it anew.
    #[error("the runtime that opened the store has ended; open the store again")]
    RuntimeEnded,
    /// The call was not made inside a tokio runtime.
    #[error("not inside a tokio runtime; await the store's futures from a tokio task")]
    NoRuntime,
    /// The store was opened in another process, of which this one is a fork. SQLite connections
    /// do not survive a fork: open the store in the child.
    #[error("the store was opened before this process was forked; open it again in the child")]
    Forked,

    // The disk.
    /// The disk is full. The write did not take effect; the store works again when there is space.
    #[error("the disk is full; nothing of this write was stored")]
    DiskFull {
        /// The database's answer.
        source: BoxError,
    },
    /// The database failed at the moment of commit: the write is stored either whole or not at
    /// all, and only the file can tell. Append again with an idempotency key.
    #[error(
        "the commit failed half-way; the write may or may not be stored: append again with the same key"
    )]
    OutcomeUnknown {
        /// The database's answer.
        source: BoxError,
    },
    /// A constraint or trigger of the file refused the write. Nothing of it was stored.
    #[error("a constraint of the database refused the write")]
    Constraint {
        /// The database's answer.
        source: BoxError,
    },
    /// The file is damaged. Nothing of the write was stored; keep the file, and restore a backup or
    /// recover its rows into a new one.
    #[error("the database is damaged; keep the file and restore a backup")]
    Corrupt {
        /// The database's answer.
        source: BoxError,
    },
    /// The database file was deleted, moved or replaced while the store was open. Nothing more is
    /// read or written through this store: put the file back and open it again.
    #[error("{} was deleted, moved or replaced while the store was open; put it back and open it again", path.display())]
    FileReplaced {
        /// The database.
        path: PathBuf,
    },
    /// Any other failure of the database. Nothing of the write was stored.
    #[error("the database failed")]
    Database {
        /// The database's answer.
        source: BoxError,
    },

    // Opening.
    /// There is no such file, and it may not be created read-only.
    #[error("{} does not exist", path.display())]
    FileNotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The path leads to a directory or device, not to a file.
    #[error("{} is not a regular file; name a database file", path.display())]
    NotAFile {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is no SQLite database, or an encrypted one. It was not changed.
    #[error("{} is not an SQLite database, or it is encrypted; name another file", path.display())]
    NotADatabase {
        /// The path that was asked for.
        path: PathBuf,
        /// The database's answer, if it came to that.
        source: Option<BoxError>,
    },
    /// The file is shorter than the smallest database: a copy that was cut off. It was not changed.
    #[error("{} has only {bytes} bytes, less than the smallest database; restore it from a complete copy", path.display())]
    Truncated {
        /// The path that was asked for.
        path: PathBuf,
        /// The file's length.
        bytes: u64,
    },
    /// The file is an SQLite database of another program. It was not changed.
    #[error("{} is a database of another program; name another file", path.display())]
    ForeignDatabase {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The database stores its texts as UTF-16, which this crate does not read. It was not changed:
    /// copy it into a UTF-8 database, for example with the `.dump` of SQLite's shell.
    #[error("{} stores its texts as UTF-16; dump it into a UTF-8 database", path.display())]
    Utf16 {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// A newer program wrote the file. It was not changed: use a newer version of this crate.
    #[error("{} has schema version {found}, this program knows up to {supported}; use a newer version of it", path.display())]
    NewerSchema {
        /// The path that was asked for.
        path: PathBuf,
        /// The file's `schema_version`.
        found: i64,
        /// The greatest that this crate knows.
        supported: i64,
    },
    /// A newer version of this crate changed the file in a way that this one can't work with. It
    /// was not changed: use a newer version of this crate.
    #[error("{} needs a hermes-state that knows migration {needed}, this one knows up to {supported}; use a newer version", path.display())]
    NewerStore {
        /// The path that was asked for.
        path: PathBuf,
        /// The migration that a program must know.
        needed: i64,
        /// The last one that this crate knows.
        supported: i64,
    },
    /// The file is older than this crate and was opened read-only. It was not changed: open it
    /// once for writing.
    #[error("{} must be brought up to date; open it once for writing", path.display())]
    NeedsMigration {
        /// The path that was asked for.
        path: PathBuf,
        /// The file's schema version, `None` if it has no tables yet.
        found: Option<i64>,
    },
    /// A program crashed half-way through a write and left a journal that only a writer can roll
    /// back, but the file was opened read-only. It was not changed: open it once for writing.
    #[error("{} was left by a program that crashed in the middle of a write; open it once for writing", path.display())]
    NeedsRecovery {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// A read-only folder holds the database with a part of its log only, so that some rows would
    /// be missing. Copy the database, `-wal` and `-shm` together.
    #[error("{} lies in a read-only folder without all of its log; copy the file, its -wal and its -shm together", path.display())]
    IncompleteCopy {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is missing or empty, but its log is there: it was moved away without its `-wal`,
    /// which may hold turns. Nothing was changed: put the file back, or move the log away too.
    #[error("{} is missing or empty, but its log is there; put the file back beside it, or move the -wal and -shm away", path.display())]
    OrphanedLog {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file or its folder may not be read, written or created.
    #[error("no permission for {}; check its mode and owner, or open it read-only", path.display())]
    PermissionDenied {
        /// The path that was asked for.
        path: PathBuf,
        /// The system's answer.
        source: BoxError,
    },
    /// The system failed at the file or its folder.
    #[error("can't open {}", path.display())]
    Io {
        /// The path that was asked for.
        path: PathBuf,
        /// The system's answer.
        source: BoxError,
    },
    /// The linked SQLite has a race that corrupts files in WAL mode. No file was touched.
    #[error(
        "SQLite {found} can corrupt files; link 3.51.3 or later (or 3.50.7, 3.44.6), or use the feature \"bundled\""
    )]
    UnsafeSqlite {
        /// Its version.
        found: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidInput {
            what,
            problem: problem.into(),
        }
    }

    /// Whether the call certainly had no effect and may succeed when it is made again later,
    /// unchanged.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Overloaded { .. } | Self::Busy { .. } | Self::ReadTimeout { .. }
        )
    }

    /// Whether the caller named something that does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::SessionNotFound { .. } | Self::ParentNotFound { .. } | Self::FileNotFound { .. }
        )
    }
}
