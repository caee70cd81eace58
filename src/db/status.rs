//! What writer, readers and callers must all know of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::presence::Presence;

#[derive(Debug)]
pub(crate) struct Status {
    /// Whether the file is still at its path.
    pub(crate) presence: Arc<Presence>,
    message_index: AtomicBool,
    log_held: AtomicU64,
}

impl Status {
    pub(crate) fn new(presence: Presence, message_index: bool) -> Self {
        Self {
            presence: Arc::new(presence),
            message_index: AtomicBool::new(message_index),
            log_held: AtomicU64::new(0),
        }
    }

    /// Whether messages of a session can be read in order without sorting.
    pub(crate) fn has_message_index(&self) -> bool {
        self.message_index.load(Ordering::Acquire)
    }

    pub(crate) fn set_message_index(&self) {
        self.message_index.store(true, Ordering::Release);
    }

    pub(crate) fn clear_message_index(&self) {
        self.message_index.store(false, Ordering::Release);
    }

    /// Length of a log that readers of other programs hold, 0 if none does.
    pub(crate) fn log_held(&self) -> u64 {
        self.log_held.load(Ordering::Relaxed)
    }

    pub(crate) fn set_log_held(&self, bytes: u64) {
        self.log_held.store(bytes, Ordering::Relaxed);
    }
}
