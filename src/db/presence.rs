//! Whether the file that a store has open is still the file at its path.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::{JoinError, spawn_blocking};

use super::ticket::Claims;
use crate::environment::JournalMode;
use crate::error::{Error, Result};

/// Device and inode: what `stat` says a path leads to.
pub(crate) type Identity = (u64, u64);

/// Watches the database file and its log. Looks by `stat` only: opening and closing either by
/// hand would drop this process's locks on it.
#[derive(Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    wal_path: PathBuf,
    /// What was there when the store was opened.
    opened: Seen,
    replaced: AtomicBool,
    wal_bytes: AtomicU64,
}

impl Presence {
    /// Remembers which file is at `path` now. Blocks for one `stat`.
    pub(crate) fn of(path: &Path) -> Self {
        let mut wal_path = path.as_os_str().to_owned();
        wal_path.push("-wal");
        Self {
            path: path.to_owned(),
            wal_path: wal_path.into(),
            opened: look(path),
            replaced: AtomicBool::new(false),
            wal_bytes: AtomicU64::new(0),
        }
    }

    /// A check for the commits of one connection, just opened: of the file, its log, and who still
    /// wants what is written. It runs on the connection's own thread, right before the commit, so
    /// that it costs no hop and blocks no caller; `false` turns the commit down.
    pub(crate) async fn commit_check(
        self: &Arc<Self>,
        journal: JournalMode,
        claims: Arc<Claims>,
    ) -> impl FnMut() -> bool + Send + use<> {
        let presence = Arc::clone(self);
        // A connection keeps its log, and keeps others from removing it, from when it was opened.
        let log = match journal {
            // Nobody answers only when the runtime ends, and then nothing is committed any more.
            JournalMode::Wal => self
                .ask(|presence| look(&presence.wal_path))
                .await
                .unwrap_or(Seen::Unknown),
            JournalMode::Rollback => Seen::Unknown,
        };
        move || {
            let mut there = presence.is_there_now();
            if journal == JournalMode::Wal {
                let now = look(&presence.wal_path);
                presence.wal_bytes.store(now.bytes(), Ordering::Relaxed);
                there &= now.may_be(log);
            }
            if !there {
                presence.mark_replaced();
            }
            there && claims.take()
        }
    }

    /// Whether the file is still at its path; if it is not, that is the end of the store.
    pub(crate) async fn is_there(self: &Arc<Self>) -> bool {
        // Nobody answers when the runtime ends, and then nobody waits for the answer either.
        let there = self.ask(Self::is_there_now).await.unwrap_or(true);
        if !there {
            self.mark_replaced();
        }
        there
    }

    /// Looks on a thread that may wait for the file system.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> std::result::Result<T, JoinError> {
        let presence = Arc::clone(self);
        spawn_blocking(move || question(&presence)).await
    }

    fn is_there_now(&self) -> bool {
        look(&self.path).may_be(self.opened)
    }

    /// Notes that the file is gone.
    pub(crate) fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Fails once the file is known to be gone, for ever.
    pub(crate) fn ensure(&self) -> Result<()> {
        if self.is_replaced() {
            Err(self.error())
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    pub(crate) fn error(&self) -> Error {
        Error::FileReplaced {
            path: self.path.clone(),
        }
    }

    /// Length of the log file at the last commit, in bytes.
    pub(crate) fn wal_bytes(&self) -> u64 {
        self.wal_bytes.load(Ordering::Relaxed)
    }
}

/// What `stat` says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    There(Identity, u64),
    Gone,
    /// The file system did not answer: nothing is known.
    Unknown,
}

impl Seen {
    fn bytes(self) -> u64 {
        match self {
            Self::There(_, bytes) => bytes,
            Self::Gone | Self::Unknown => 0,
        }
    }

    /// Whether this may be the file that was seen `before`.
    fn may_be(self, before: Self) -> bool {
        match (self, before) {
            (Self::Gone, _) | (_, Self::Gone) => false,
            (Self::There(now, _), Self::There(then, _)) => now == then,
            (Self::Unknown, _) | (_, Self::Unknown) => true,
        }
    }
}

fn look(path: &Path) -> Seen {
    match std::fs::metadata(path) {
        Ok(metadata) => Seen::There(identity(&metadata), metadata.len()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Seen::Gone
        }
        Err(_) => Seen::Unknown,
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

/// Without inodes a file can at least be missed.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_file_or_none_is_a_replaced_one() {
        let file = |inode| Seen::There((1, inode), 0);
        for (now, then, may_be) in [
            (file(2), Seen::There((1, 2), 4096), true),
            (file(3), file(2), false),
            (Seen::Gone, file(2), false),
            (file(2), Seen::Gone, false),
            (Seen::Unknown, file(2), true),
            (file(2), Seen::Unknown, true),
            (Seen::Gone, Seen::Unknown, false),
        ] {
            assert_eq!(now.may_be(then), may_be, "{now:?} after {then:?}");
        }
    }

    /// A folder that denies access, or a file system that fails, says nothing about the file.
    #[test]
    fn what_is_no_answer_is_not_taken_for_a_missing_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(look(&folder.path().join("missing")), Seen::Gone);
        let too_long = folder.path().join("x".repeat(5000));
        assert_eq!(look(&too_long), Seen::Unknown);
    }
}
