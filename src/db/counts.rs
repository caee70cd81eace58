//! How many writes were committed and refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// Writes since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    committed: AtomicU64,
    refused: AtomicU64,
    /// Callers that wait to enter the queue, or were still waiting when it was closed.
    entering: AtomicU64,
}

/// What became of the writes that waited when the store was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Writes that were committed after the call.
    pub committed: u64,
    /// Writes that were refused with [`Error::Closed`](crate::Error::Closed): they never ran.
    pub refused: u64,
}

impl ShutdownReport {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            committed: self.committed - before.committed,
            refused: self.refused - before.refused,
        }
    }
}

impl Counts {
    pub(crate) fn report(&self) -> ShutdownReport {
        ShutdownReport {
            committed: self.committed.load(Ordering::Acquire),
            refused: self.refused.load(Ordering::Acquire),
        }
    }

    pub(crate) fn commit(&self, writes: usize) {
        let writes = u64::try_from(writes).unwrap_or(u64::MAX);
        self.committed.fetch_add(writes, Ordering::AcqRel);
    }

    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn enter(&self) -> Entering<'_> {
        self.entering.fetch_add(1, Ordering::AcqRel);
        Entering(&self.entering)
    }

    /// The queue is closed: those who wait to enter it never will.
    pub(crate) fn refuse_entering(&self) {
        let entering = self.entering.load(Ordering::Acquire);
        self.refused.fetch_add(entering, Ordering::AcqRel);
    }
}

/// A caller that waits to enter the queue, until this is dropped.
pub(crate) struct Entering<'a>(&'a AtomicU64);

impl Entering<'_> {
    /// It was still waiting when the queue was closed.
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
