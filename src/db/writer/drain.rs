//! The writer's own work between the callers' writes: removing what deleted sessions left behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::worker::{IDLE, Worker};
use crate::db::group::{Failed, Link};
use crate::db::leftovers::{self, Budget, Left, RemoveLeftovers};
use crate::db::queue::Pending;
use crate::db::ticket::Ticket;

/// How long the queue must be empty before leftovers of deleted sessions are removed.
const LULL: Duration = Duration::from_millis(5);

/// After how many groups without a lull they are removed all the same, a piece each time.
const GROUPS_BETWEEN: u32 = 64;

/// A piece that took longer is followed by one of half the size, down to one of `SMALLEST` parts.
const LONG: Duration = Duration::from_millis(30);
const SMALLEST: i64 = 32;

impl Worker {
    /// Whether there is anything to remove; at the start, what a killed program has left.
    pub(super) async fn look_for_leftovers(&mut self) {
        let Some(connection) = self.link.as_mut().and_then(Link::live) else {
            return;
        };
        match leftovers::any(connection).await {
            Ok(true) => self.leftovers_due = Some(Instant::now()),
            Ok(false) => {}
            // The next opening looks again.
            Err(error) => {
                tracing::warn!(%error, "looking for leftovers of deleted sessions failed");
            }
        }
    }

    /// After a group: callers go first, but not for ever. `orphans`: it may have left some.
    pub(super) async fn make_way_for_leftovers(&mut self, orphans: bool) {
        if self.leftovers_due.is_none() && orphans {
            self.look_for_leftovers().await;
        }
        let Some(due) = self.leftovers_due else {
            return;
        };
        self.groups += 1;
        if self.groups < GROUPS_BETWEEN {
            self.leftovers_due = Some(due.max(Instant::now() + LULL));
        } else {
            self.remove_leftovers().await;
        }
    }

    /// Removes a piece of what deleted sessions left behind.
    pub(super) async fn remove_leftovers(&mut self) {
        self.groups = 0;
        let now = Instant::now();
        let deadline = now + self.target.options.deadline;
        let (reply, mut answer) = oneshot::channel();
        let job = Pending {
            operation: RemoveLeftovers {
                session: None,
                budget: Budget::part(self.divisor),
            },
            ticket: Arc::new(Ticket::new(deadline)),
            queued: now,
            deadline,
            reply,
            outcome: None,
            _room: None,
        };
        let (group, _, result) = self.transact(vec![Box::new(job)], false).await;
        let elapsed = now.elapsed();
        self.divisor = match elapsed {
            elapsed if elapsed > LONG => (self.divisor * 2).min(SMALLEST),
            elapsed if elapsed < LONG / 4 => (self.divisor / 2).max(1),
            _ => self.divisor,
        };
        match result {
            Ok(()) => {
                if let Some(log) = &mut self.log {
                    log.committed(0);
                }
                for job in group {
                    job.finish();
                }
                self.leftovers_due = match answer.try_recv() {
                    Ok(Ok(Left::More)) => Some(Instant::now()),
                    _ => None,
                };
                self.keep_log_short().await;
            }
            Err(gave_up) => {
                tracing::warn!(
                    code = gave_up.last.code(),
                    "removing leftovers of a deleted session failed"
                );
                // Any other failure is the next opening's.
                self.leftovers_due = match gave_up.last {
                    Failed::Busy(_) => Some(Instant::now() + IDLE),
                    _ => None,
                };
            }
        }
    }

    /// At the end, as far as there is time; another process that keeps the lock is not waited for.
    pub(super) async fn remove_all_leftovers(&mut self) {
        while self
            .leftovers_due
            .is_some_and(|due| due <= Instant::now() + LULL)
            && !self.is_stopped()
        {
            self.remove_leftovers().await;
        }
    }
}
