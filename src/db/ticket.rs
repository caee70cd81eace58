//! Who still wants a write: settled between caller and writer, once.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Settles whether a write runs.
#[derive(Debug)]
pub(crate) struct Ticket {
    state: AtomicU8,
    /// After this the write may not become part of a transaction any more.
    deadline: Instant,
}

impl Ticket {
    pub(crate) fn new(deadline: Instant) -> Self {
        Self {
            state: AtomicU8::new(WAITING),
            deadline,
        }
    }

    pub(crate) fn is_expired(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// The writer's side: the write is part of a transaction.
    pub(crate) fn take(&self) -> bool {
        !self.is_expired() && self.settle(WAITING, TAKEN)
    }

    /// The writer's side: the transaction did not take place after all.
    fn put_back(&self) {
        self.settle(TAKEN, WAITING);
    }

    /// The caller's side: `true` means that the write never runs.
    pub(crate) fn give_up(&self) -> bool {
        self.settle(WAITING, GIVEN_UP)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == GIVEN_UP
    }

    fn settle(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// The tickets of a transaction that is sent as a whole, and so takes them at its commit: all of
/// them, or the commit is turned down.
///
/// The commit hook runs on the connection's thread; the lock is held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The transaction has taken its tickets itself.
    #[default]
    None,
    Waiting(Vec<Arc<Ticket>>),
    Taken,
    Refused,
}

impl Claims {
    pub(crate) fn arm(&self, tickets: Vec<Arc<Ticket>>) {
        *self.lock() = State::Waiting(tickets);
    }

    pub(crate) fn disarm(&self) {
        *self.lock() = State::None;
    }

    /// In the commit hook: whether the commit may go on.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.lock();
        match &*state {
            State::None | State::Taken => true,
            State::Refused => false,
            State::Waiting(tickets) => {
                let taken = tickets.iter().take_while(|ticket| ticket.take()).count();
                let all = taken == tickets.len();
                if !all {
                    tickets
                        .iter()
                        .take(taken)
                        .for_each(|ticket| ticket.put_back());
                }
                *state = if all { State::Taken } else { State::Refused };
                all
            }
        }
    }

    /// Has the commit turned down; `false` if it is already under way.
    pub(crate) fn refuse(&self) -> bool {
        let mut state = self.lock();
        let refused = !matches!(*state, State::Taken);
        if refused {
            *state = State::Refused;
        }
        refused
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
