//! Trying again what failed for a passing reason.
//!
//! Knows nothing of databases: the caller says what may be tried again, where random numbers come
//! from, and until when.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Result};

/// How often something is tried, and how long to wait in between.
///
/// The wait before each new try is drawn evenly from a range, so that programs that collided once
/// do not collide again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RetryPolicy {
    tries: u32,
    min_wait: Duration,
    max_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryPolicy {
    /// 15 tries, 20–150 ms between them.
    pub const fn new() -> Self {
        Self {
            tries: 15,
            min_wait: Duration::from_millis(20),
            max_wait: Duration::from_millis(150),
        }
    }

    /// How often it is tried at most, the first time included. Default: 15.
    pub const fn tries(mut self, tries: NonZeroU32) -> Self {
        self.tries = tries.get();
        self
    }

    /// Bounds of the wait between two tries. Default: 20–150 ms.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] if `min` is above `max`, or `max` above one hour.
    pub fn wait(mut self, min: Duration, max: Duration) -> Result<Self> {
        if min > max || max > Duration::from_hours(1) {
            return Err(Error::invalid(
                "retry wait",
                "must go from a shorter to a longer time of at most one hour",
            ));
        }
        self.min_wait = min;
        self.max_wait = max;
        Ok(self)
    }

    /// The waits between the tries, one fewer than tries. `unit` gives evenly spread numbers from
    /// 0 to 1; any other number counts as 1.
    pub fn waits(self, mut unit: impl FnMut() -> f64) -> impl Iterator<Item = Duration> {
        let spread = self.max_wait.saturating_sub(self.min_wait);
        (1..self.tries).map(move |_| {
            let unit = unit();
            // NaN is in no range; `Duration::mul_f64` would panic on it.
            let unit = if (0.0..=1.0).contains(&unit) {
                unit
            } else {
                1.0
            };
            self.min_wait + spread.mul_f64(unit)
        })
    }
}

/// Why trying ended without success.
#[derive(Debug)]
pub struct GaveUp<E> {
    /// How often it was tried.
    pub attempts: u32,
    /// What ended it.
    pub reason: Reason,
    /// The last failure.
    pub last: E,
}

/// What ended the trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The failure was none that passes.
    Permanent,
    /// All tries were used.
    Exhausted,
    /// The next try would have come after the deadline.
    Deadline,
}

impl<E: fmt::Display> fmt::Display for GaveUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gave up after {} attempts", self.attempts)
    }
}

impl<E: std::error::Error + 'static> std::error::Error for GaveUp<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.last)
    }
}

/// Runs `attempt` until it succeeds, fails for a reason that is not `passing`, `waits` ends, or the
/// next try would come after `deadline`.
///
/// `state` is handed to each attempt and comes back with the result, so that an attempt may own a
/// connection while it runs.
///
/// # Cancel safety
///
/// As safe as `attempt`: dropping the future drops the attempt that is running, with the state.
pub async fn retry<S, T, E, F>(
    state: S,
    waits: impl Iterator<Item = Duration>,
    deadline: Instant,
    passing: impl Fn(&E) -> bool,
    attempt: impl FnMut(S) -> F,
) -> (S, Result<T, GaveUp<E>>)
where
    F: Future<Output = (S, Result<T, E>)>,
{
    retry_pausing(state, waits, deadline, passing, tokio::time::sleep, attempt).await
}

/// [`retry`], where `pause` spends the wait before the next try, or less.
pub(crate) async fn retry_pausing<S, T, E, F, P>(
    state: S,
    waits: impl Iterator<Item = Duration>,
    deadline: Instant,
    passing: impl Fn(&E) -> bool,
    mut pause: impl FnMut(Duration) -> P,
    mut attempt: impl FnMut(S) -> F,
) -> (S, Result<T, GaveUp<E>>)
where
    F: Future<Output = (S, Result<T, E>)>,
    P: Future<Output = ()>,
{
    let mut state = state;
    let mut waits = waits;
    let mut attempts = 0;
    loop {
        let (returned, result) = attempt(state).await;
        state = returned;
        attempts += 1;
        let last = match result {
            Ok(value) => return (state, Ok(value)),
            Err(error) => error,
        };
        if !passing(&last) {
            return (
                state,
                Err(GaveUp {
                    attempts,
                    reason: Reason::Permanent,
                    last,
                }),
            );
        }
        let Some(wait) = waits.next() else {
            return (
                state,
                Err(GaveUp {
                    attempts,
                    reason: Reason::Exhausted,
                    last,
                }),
            );
        };
        // An end beyond what the clock can count is past any deadline.
        let next = Instant::now().checked_add(wait);
        if next.is_none_or(|next| next > deadline) {
            return (
                state,
                Err(GaveUp {
                    attempts,
                    reason: Reason::Deadline,
                    last,
                }),
            );
        }
        tracing::debug!(attempts, ?wait, "busy, trying again");
        pause(wait).await;
    }
}
