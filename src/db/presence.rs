//! Whether the file that a store has open is still the file at its path.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ticket::Claims;
use crate::error::{Error, Result};

/// Device and inode: what `stat` says a path leads to.
pub(crate) type Identity = (u64, u64);

/// Watches the database file and its log. Looks by `stat` only: opening and closing either by
/// hand would drop this process's locks on it.
#[derive(Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    wal_path: PathBuf,
    identity: Option<Identity>,
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
            identity: look(path).map(|(identity, _)| identity),
            replaced: AtomicBool::new(false),
            wal_bytes: AtomicU64::new(0),
        }
    }

    /// A check for one connection's commits, of the file and of who still wants what is written. It
    /// runs on the connection's own thread, right before
    /// the commit, so that it costs no hop and blocks no caller; `false` turns the commit down.
    pub(crate) fn commit_check(
        self: Arc<Self>,
        claims: Arc<Claims>,
    ) -> impl FnMut() -> bool + Send {
        // The log exists from the connection's first transaction until its last connection closes.
        let mut log: Option<Identity> = None;
        move || {
            let mut there = look(&self.path).map(|(identity, _)| identity) == self.identity;
            match look(&self.wal_path) {
                Some((identity, bytes)) => {
                    self.wal_bytes.store(bytes, Ordering::Relaxed);
                    there &= *log.get_or_insert(identity) == identity;
                }
                None => there &= log.is_none(),
            }
            if !there {
                self.replaced.store(true, Ordering::Release);
            }
            there && claims.take()
        }
    }

    /// Notes that SQLite itself saw the file moved.
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

#[cfg(unix)]
fn look(path: &Path) -> Option<(Identity, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some(((metadata.dev(), metadata.ino()), metadata.len()))
}

/// Without inodes a file can at least be missed.
#[cfg(not(unix))]
fn look(path: &Path) -> Option<(Identity, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(((0, 0), metadata.len()))
}
