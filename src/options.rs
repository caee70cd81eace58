//! How a store is opened.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::retry::RetryPolicy;
use crate::store::SessionStore;

const MIB: usize = 1024 * 1024;

/// SQLite itself refuses texts from 10⁹ bytes on; a row holds several.
const MAX_MESSAGE_LIMIT: usize = 512 * MIB;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A power cut: every commit is synced to the disk before it is acknowledged
    /// ([`synchronous=FULL`](https://www.sqlite.org/pragma.html#pragma_synchronous) in WAL mode,
    /// `EXTRA` otherwise).
    #[default]
    Full,
    /// The end of the process, however sudden. A power cut may take the last commits, never the
    /// file's integrity (`synchronous=NORMAL`).
    Normal,
}

/// Which journal a new file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Journal {
    /// WAL where the file system carries it, a rollback journal on network and FUSE file systems.
    #[default]
    Auto,
    /// A rollback journal (`DELETE`). An existing WAL file is opened as it is.
    Rollback,
}

/// Whether a store may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Access {
    /// Reads and writes; creates the file, or brings it up to date, when it is opened.
    #[default]
    ReadWrite,
    /// Reads only. Never changes a byte of the database.
    ReadOnly,
}

/// How to open a [`SessionStore`].
///
/// ```
/// use hermes_state::{Durability, StoreOptions};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("state.db");
/// let store = StoreOptions::new()
///     .durability(Durability::Normal)
///     .readers(8)?
///     .open(&path)
///     .await?;
/// # store.close().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct StoreOptions {
    pub(crate) access: Access,
    pub(crate) durability: Durability,
    pub(crate) journal: Journal,
    pub(crate) file_mode: u32,
    pub(crate) busy_timeout: Duration,
    pub(crate) retry: RetryPolicy,
    pub(crate) deadline: Duration,
    pub(crate) message_limit: usize,
    pub(crate) readers: u32,
    pub(crate) reader_idle: Duration,
    pub(crate) queue_writes: usize,
    pub(crate) queue_bytes: u32,
    pub(crate) group_writes: usize,
    pub(crate) group_bytes: usize,
    pub(crate) checkpoint_commits: u32,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) wal_limit: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            access: Access::ReadWrite,
            durability: Durability::Full,
            journal: Journal::Auto,
            file_mode: 0o600,
            busy_timeout: Duration::from_secs(1),
            retry: RetryPolicy::new(),
            deadline: Duration::from_secs(30),
            message_limit: 16 * MIB,
            readers: 4,
            reader_idle: Duration::from_mins(1),
            queue_writes: 1024,
            queue_bytes: 64 * 1024 * 1024,
            group_writes: 128,
            group_bytes: 4 * MIB,
            checkpoint_commits: 50,
            checkpoint_bytes: 8 * 1024 * 1024,
            wal_limit: 64 * 1024 * 1024,
        }
    }

    /// Whether the store may write. Default: [`Access::ReadWrite`].
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Opens for reading only: short for `access(Access::ReadOnly)`.
    pub const fn read_only(self) -> Self {
        self.access(Access::ReadOnly)
    }

    /// What an acknowledged write survives. Default: [`Durability::Full`].
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Which journal a new file gets. Default: [`Journal::Auto`].
    pub const fn journal(mut self, journal: Journal) -> Self {
        self.journal = journal;
        self
    }

    /// Permission bits of a file that is created, on Unix. Default: `0o600`. The mode of an
    /// existing file is never changed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for bits beyond `0o777`, or if the owner may not read and write.
    pub fn file_mode(mut self, mode: u32) -> Result<Self> {
        if mode & !0o777 != 0 || mode & 0o600 != 0o600 {
            return Err(Error::invalid(
                "file mode",
                format!("must be permission bits that let the owner read and write, not {mode:o}"),
            ));
        }
        self.file_mode = mode;
        Ok(self)
    }

    /// How long SQLite itself waits for a lock in each attempt. Default: 1 s.
    ///
    /// With the default [`RetryPolicy`] a write gives up after 15 × 1 s + 14 × 0.15 s ≈ 17 s at
    /// the latest. Below about 1 s a busy neighbour may starve this process.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] above one hour.
    pub fn busy_timeout(mut self, timeout: Duration) -> Result<Self> {
        if timeout > Duration::from_hours(1) {
            return Err(Error::invalid("busy timeout", "must not exceed one hour"));
        }
        self.busy_timeout = timeout;
        Ok(self)
    }

    /// How often a locked database is tried. Default: 15 tries, 20–150 ms between them.
    pub const fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Longest time that a call takes. Default: 30 s.
    ///
    /// A write that has not begun by then never runs ([`Error::Overloaded`]); one that has begun is
    /// waited for. A read is stopped ([`Error::ReadTimeout`]).
    /// [`SessionStore::with_deadline`] sets it for single calls.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero or more than a day.
    pub fn deadline(mut self, deadline: Duration) -> Result<Self> {
        self.deadline = valid_deadline(deadline)?;
        Ok(self)
    }

    /// Most bytes of all texts of one message. Default: 16 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero or more than 512 MiB.
    pub fn message_limit(mut self, bytes: usize) -> Result<Self> {
        if bytes == 0 || bytes > MAX_MESSAGE_LIMIT {
            return Err(Error::invalid(
                "message limit",
                "must be between 1 byte and 512 MiB",
            ));
        }
        self.message_limit = bytes;
        Ok(self)
    }

    /// Most connections that read at the same time. Default: 4. They are opened when needed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero or more than 64.
    pub fn readers(mut self, readers: u32) -> Result<Self> {
        if !(1..=64).contains(&readers) {
            return Err(Error::invalid("readers", "must be between 1 and 64"));
        }
        self.readers = readers;
        Ok(self)
    }

    /// Closes a reading connection that was not used for so long. Default: 60 s.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero or more than a day.
    pub fn reader_idle(mut self, idle: Duration) -> Result<Self> {
        if idle.is_zero() || idle > DAY {
            return Err(Error::invalid(
                "reader idle time",
                "must be above zero and at most a day",
            ));
        }
        self.reader_idle = idle;
        Ok(self)
    }

    /// Most writes, and most bytes of writes, that wait or run at the same time; further callers
    /// wait until their deadline. Default: 1,024 and 64 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero, more than 1,000,000 writes, or 4 GiB and more.
    pub fn queue_limit(mut self, writes: usize, bytes: u64) -> Result<Self> {
        if !(1..=1_000_000).contains(&writes) {
            return Err(Error::invalid(
                "queue limit",
                "must be 1 to 1,000,000 writes",
            ));
        }
        match u32::try_from(bytes) {
            Ok(bytes) if bytes > 0 => self.queue_bytes = bytes,
            _ => {
                return Err(Error::invalid(
                    "queue limit",
                    "must be above zero and below 4 GiB",
                ));
            }
        }
        self.queue_writes = writes;
        Ok(self)
    }

    /// Most writes, and most bytes of writes, that one transaction takes. Default: 128 and 4 MiB.
    /// A larger write goes alone.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero, more than 1,024 writes or more than 64 MiB.
    pub fn group_limit(mut self, writes: usize, bytes: usize) -> Result<Self> {
        if !(1..=1024).contains(&writes) {
            return Err(Error::invalid("group limit", "must be 1 to 1,024 writes"));
        }
        if !(1..=64 * MIB).contains(&bytes) {
            return Err(Error::invalid("group limit", "must be 1 byte to 64 MiB"));
        }
        self.group_writes = writes;
        self.group_bytes = bytes;
        Ok(self)
    }

    /// After how many commits, or bytes of log, the log is copied into the database. Default: 50
    /// and 8 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero.
    pub fn checkpoint_every(mut self, commits: u32, bytes: u64) -> Result<Self> {
        if commits == 0 || bytes == 0 {
            return Err(Error::invalid("checkpoint distance", "must be above zero"));
        }
        self.checkpoint_commits = commits;
        self.checkpoint_bytes = bytes;
        Ok(self)
    }

    /// Length that the write-ahead log stays under, one larger transaction and readers of other
    /// programs aside. Default: 64 MiB. From half of it on, new reads of this store are held back
    /// for at most 100 ms so that the log can begin anew.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] below 1 MiB or above 1 TiB.
    pub fn wal_limit(mut self, bytes: u64) -> Result<Self> {
        if !(1024 * 1024..=1 << 40).contains(&bytes) {
            return Err(Error::invalid(
                "WAL limit",
                "must be between 1 MiB and 1 TiB",
            ));
        }
        self.wal_limit = bytes;
        Ok(self)
    }

    /// Opens the file at `path`; creates it and its folders, or brings it up to date, unless the
    /// options say read-only.
    ///
    /// # Errors
    ///
    /// See [`SessionStore::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the file either as it was or wholly up to date.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SessionStore> {
        SessionStore::open_with(path.as_ref(), self).await
    }

    /// Opens a new store in a folder of its own below the system's folder for temporary files. The
    /// folder is removed when the last clone is dropped. For tests.
    ///
    /// # Errors
    ///
    /// See [`SessionStore::open`].
    pub async fn open_temporary(self) -> Result<SessionStore> {
        SessionStore::open_temporary_with(self).await
    }
}

const DAY: Duration = Duration::from_hours(24);

/// Checks the longest time of a call.
pub(crate) fn valid_deadline(deadline: Duration) -> Result<Duration> {
    if deadline.is_zero() || deadline > DAY {
        return Err(Error::invalid(
            "deadline",
            "must be above zero and at most a day",
        ));
    }
    Ok(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another number here is another contract.
    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let options = StoreOptions::default();
        assert_eq!(options.access, Access::ReadWrite);
        assert_eq!(options.durability, Durability::Full);
        assert_eq!(options.journal, Journal::Auto);
        assert_eq!(options.file_mode, 0o600);
        assert_eq!(options.busy_timeout, Duration::from_secs(1));
        assert_eq!(options.retry, RetryPolicy::default());
        assert_eq!(options.deadline, Duration::from_secs(30));
        assert_eq!(options.message_limit, 16 << 20);
        assert_eq!(options.readers, 4);
        assert_eq!(
            (options.queue_writes, options.queue_bytes),
            (1024, 64 << 20)
        );
        assert_eq!((options.group_writes, options.group_bytes), (128, 4 << 20));
        let checkpoint = (options.checkpoint_commits, options.checkpoint_bytes);
        assert_eq!(checkpoint, (50, 8 << 20));
        assert_eq!(options.wal_limit, 64 << 20);
    }
}
