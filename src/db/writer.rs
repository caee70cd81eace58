//! The one connection that writes: what it leads to, and the callers' way to it.

mod drain;
mod worker;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use self::worker::Worker;
use super::code;
use super::connect;
use super::counts::{Counts, ShutdownReport};
use super::group::Link;
use super::queue::{Job, Operation, Pending};
use super::readers::Readers;
use super::status::Status;
use super::ticket::{Claims, Ticket};
use super::wal::Log;
use crate::environment::JournalMode;
use crate::error::{Error, Result};
use crate::options::StoreOptions;

/// How long a shutdown waits, beyond its limit, for a transaction that has begun.
const GRACE: Duration = Duration::from_secs(2);

/// Whether the store still takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// Only what is queued is written, and only what begins before `until`.
    Closing {
        until: Option<Instant>,
    },
}

/// What the writer's connection leads to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) options: StoreOptions,
    pub(crate) journal: JournalMode,
    pub(crate) page_size: u32,
    pub(crate) status: Arc<Status>,
    /// Of the transaction that is running.
    pub(crate) claims: Arc<Claims>,
}

impl Target {
    pub(crate) async fn connect(&self) -> sqlx::Result<SqliteConnection> {
        let mut connection = connect::writer(&self.path, &self.options, self.journal).await?;
        // A connection opens its log with its first read, and the check below must find it.
        sqlx::query("SELECT 1 FROM sqlite_schema LIMIT 1")
            .fetch_optional(&mut connection)
            .await?;
        let claims = Arc::clone(&self.claims);
        let check = self
            .status
            .presence
            .commit_check(self.journal, claims)
            .await;
        connection.lock_handle().await?.set_commit_hook(check);
        Ok(connection)
    }
}

/// The callers' side of the writer.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Box<dyn Job>>,
    room: Arc<Semaphore>,
    room_total: u32,
    phase: watch::Sender<Phase>,
    /// Becomes `true` when the last connection is closed.
    done: watch::Receiver<bool>,
    counts: Arc<Counts>,
}

impl Writer {
    /// Starts the task that owns `connection`. It ends when the last handle is dropped or the
    /// store is closed, with an empty queue.
    pub(crate) async fn start(target: Arc<Target>, readers: Arc<Readers>) -> Result<Self> {
        let connection = target.connect().await.map_err(code::to_error)?;
        let (jobs, queue) = mpsc::channel(target.options.queue_writes);
        let (phase, phase_seen) = watch::channel(Phase::Open);
        let (done, done_seen) = watch::channel(false);
        let counts = Arc::new(Counts::default());
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let room_total = target.options.queue_bytes.min(most);
        let worker = Worker {
            queue,
            held: None,
            link: Some(Link::new(Arc::clone(&target), connection)),
            log: (target.journal == JournalMode::Wal).then(|| Log::new(target.page_size)),
            index_refused: false,
            leftovers_due: None,
            groups: 0,
            divisor: 1,
            readers,
            phase: phase_seen,
            done,
            counts: Arc::clone(&counts),
            random: fastrand::Rng::new(),
            target,
        };
        tokio::spawn(worker.run());
        Ok(Self {
            jobs,
            room: Arc::new(Semaphore::new(
                usize::try_from(room_total).unwrap_or(usize::MAX),
            )),
            room_total,
            phase,
            done: done_seen,
            counts,
        })
    }

    /// Fails once the store is closed, or the task that writes is gone.
    pub(crate) fn ensure_open(&self) -> Result<()> {
        if *self.phase.borrow() == Phase::Open && !self.jobs.is_closed() {
            Ok(())
        } else {
            Err(self.ended())
        }
    }

    fn ended(&self) -> Error {
        if *self.phase.borrow() == Phase::Open {
            Error::RuntimeEnded
        } else {
            Error::Closed
        }
    }

    /// Has `operation` written, and waits for its commit.
    pub(crate) async fn submit<O: Operation>(
        &self,
        operation: O,
        wait: Duration,
    ) -> Result<O::Output> {
        self.ensure_open()?;
        let deadline = Instant::now() + wait;
        let ticket = Arc::new(Ticket::new(deadline));
        let (reply, mut answer) = oneshot::channel();
        // One timer, made while the runtime is known to be there.
        let mut too_late = pin!(tokio::time::sleep_until(deadline));
        tokio::select! {
            biased;
            queued = self.enqueue(operation, Arc::clone(&ticket), deadline, reply) => queued?,
            () = &mut too_late => return Err(Error::Overloaded { waited: wait }),
        }
        // A caller that goes away takes its write back, if that is still possible.
        let _take_back = TakeBack(&ticket);
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = &mut too_late => {
                if ticket.give_up() {
                    return Err(Error::Overloaded { waited: wait });
                }
                // The transaction has begun: only its outcome tells the truth.
                answer.await
            }
        };
        match answered {
            Ok(result) => result,
            // Nobody answered. If the write is not settled yet, it is now: it never runs.
            Err(_) if !ticket.give_up() && !ticket.is_given_up() => Err(Error::OutcomeUnknown {
                source: "the writer ended during the commit".into(),
            }),
            Err(_) if Instant::now() >= deadline => Err(Error::Overloaded { waited: wait }),
            Err(_) => Err(self.ended()),
        }
    }

    async fn enqueue<O: Operation>(
        &self,
        operation: O,
        ticket: Arc<Ticket>,
        deadline: Instant,
        reply: oneshot::Sender<Result<O::Output>>,
    ) -> Result<()> {
        let entering = self.counts.enter();
        // A write larger than the whole queue may enter when it is alone.
        let bytes = u32::try_from(operation.bytes())
            .unwrap_or(u32::MAX)
            .min(self.room_total);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await;
        let (Ok(room), Ok(slot)) = (room, self.jobs.reserve().await) else {
            entering.stay();
            return Err(self.ended());
        };
        let queued = Instant::now();
        let outcome = None;
        slot.send(Box::new(Pending {
            operation,
            ticket,
            queued,
            deadline,
            reply,
            outcome,
            _room: Some(room),
        }));
        Ok(())
    }

    /// Stops taking writes, has the queue written until `until`, and waits until the last
    /// connection is closed.
    pub(crate) async fn close(&self, until: Option<Instant>) -> Result<ShutdownReport> {
        let before = self.counts.report();
        self.phase.send_if_modified(|phase| {
            let sooner = match *phase {
                Phase::Open => true,
                Phase::Closing { until: None } => until.is_some(),
                Phase::Closing { until: Some(set) } => until.is_some_and(|until| until < set),
            };
            if sooner {
                *phase = Phase::Closing { until };
            }
            sooner
        });
        let mut done = self.done.clone();
        let closed = done.wait_for(|done| *done);
        match until {
            None => closed.await.map_err(|_| Error::RuntimeEnded)?,
            Some(until) => {
                match tokio::time::timeout_at(until.checked_add(GRACE).unwrap_or(until), closed)
                    .await
                {
                    Ok(closed) => closed.map_err(|_| Error::RuntimeEnded)?,
                    // A long transaction, or a runtime that nobody drives: it ends without us.
                    Err(_) => return Ok(self.counts.report().since(before)),
                }
            }
        };
        Ok(self.counts.report().since(before))
    }
}

struct TakeBack<'a>(&'a Ticket);

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
