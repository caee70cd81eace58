//! The one connection that writes, and the task that owns it.

mod drain;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::code::{self, Failure};
use super::connect;
use super::counts::{Counts, ShutdownReport};
use super::group::{Attempt, Failed, Link, stopped};
use super::queue::{Job, Operation, Pending};
use super::readers::Readers;
use super::status::Status;
use super::ticket::{Claims, Ticket};
use super::wal::Log;
use crate::environment::JournalMode;
use crate::error::{BoxError, Error, Result};
use crate::options::StoreOptions;
use crate::retry::{self, GaveUp, Reason};

/// How long the queue must be empty before the log is truncated.
const IDLE: Duration = Duration::from_secs(1);

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
        let task = Task {
            queue,
            held: None,
            link: Some(Link::new(Arc::clone(&target), connection)),
            log: (target.journal == JournalMode::Wal).then(|| Log::new(target.page_size)),
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
        tokio::spawn(task.run());
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

/// The writer's side.
struct Task {
    queue: mpsc::Receiver<Box<dyn Job>>,
    /// Came out of the queue but did not fit into the group before.
    held: Option<Box<dyn Job>>,
    link: Option<Link>,
    /// `None` where the file has no write-ahead log.
    log: Option<Log>,
    /// When to remove the next leftovers of deleted sessions; `None` if none are known.
    leftovers_due: Option<Instant>,
    /// Groups since leftovers were removed.
    groups: u32,
    /// How much smaller than the largest a piece of leftovers must be to take no longer than it may.
    divisor: i64,
    readers: Arc<Readers>,
    phase: watch::Receiver<Phase>,
    done: watch::Sender<bool>,
    counts: Arc<Counts>,
    random: fastrand::Rng,
    target: Arc<Target>,
}

impl Task {
    async fn run(mut self) {
        self.build_message_index().await;
        self.look_for_leftovers().await;
        while let Some(first) = self.next().await {
            if self.is_stopped() {
                self.refuse(first);
                continue;
            }
            let group = self.gather(first).await;
            let orphans = group.iter().any(|job| job.leaves_orphans());
            self.write(group).await;
            self.keep_log_short().await;
            self.make_way_for_leftovers(orphans).await;
        }
        self.finish().await;
    }

    /// The next write; `None` when no more can come.
    async fn next(&mut self) -> Option<Box<dyn Job>> {
        if let Some(job) = self.held.take() {
            return Some(job);
        }
        let mut watching = true;
        loop {
            let live = self.link.as_ref().is_some_and(Link::is_live);
            let idle = live && self.log.as_ref().is_some_and(Log::is_dirty);
            let due = self.leftovers_due;
            tokio::select! {
                biased;
                job = self.queue.recv() => return job,
                changed = self.phase.changed(), if watching => match changed {
                    Ok(()) => self.queue.close(),
                    // The last handle is gone, and the queue's other end with it.
                    Err(_) => watching = false,
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.remove_leftovers().await;
                }
                () = tokio::time::sleep(IDLE), if idle => self.truncate_log().await,
            }
        }
    }

    /// Whether the time for writing what is queued is over.
    fn is_stopped(&self) -> bool {
        match *self.phase.borrow() {
            Phase::Closing { until: Some(until) } => Instant::now() >= until,
            _ => false,
        }
    }

    fn refuse(&self, job: Box<dyn Job>) {
        if job.is_wanted() {
            self.counts.refuse();
            job.fail(Error::Closed);
        } else {
            job.expire();
        }
    }

    /// `first` and what waits behind it, within the limits of a group.
    async fn gather(&mut self, first: Box<dyn Job>) -> Vec<Box<dyn Job>> {
        // Lets the callers that were just answered queue their next writes.
        tokio::task::yield_now().await;
        let options = &self.target.options;
        let mut bytes = first.bytes();
        let alone = first.leaves_orphans();
        let mut group = vec![first];
        while !alone && group.len() < options.group_writes {
            let Ok(job) = self.queue.try_recv() else {
                break;
            };
            bytes = bytes.saturating_add(job.bytes());
            if bytes > options.group_bytes || job.leaves_orphans() {
                self.held = Some(job);
                break;
            }
            group.push(job);
        }
        group
    }

    /// Writes a group, and answers each of its callers.
    async fn write(&mut self, group: Vec<Box<dyn Job>>) {
        let (group, taken, result) = self.transact(group, false).await;
        match result {
            Err(GaveUp { last, .. }) if group.len() > 1 && may_be_one_writes_fault(&last) => {
                tracing::debug!(
                    writes = group.len(),
                    code = last.code(),
                    "a group failed; writing one by one"
                );
                for job in group {
                    let (job, _, result) = self.transact(vec![job], taken).await;
                    self.answer(job, result);
                }
            }
            result => self.answer(group, result),
        }
    }

    /// Runs one transaction, again while the database is locked elsewhere. `taken` says, and comes
    /// back saying, whether the callers wait for the outcome however long it takes.
    async fn transact(
        &mut self,
        group: Vec<Box<dyn Job>>,
        taken: bool,
    ) -> (Vec<Box<dyn Job>>, bool, Result<(), GaveUp<Failed>>) {
        let Some(link) = self.link.take() else {
            return (group, taken, Ok(()));
        };
        let deadline = group
            .iter()
            .map(|job| job.deadline())
            .max()
            .unwrap_or_else(Instant::now);
        let random = &mut self.random;
        let waits = self.target.options.retry.waits(|| random.f64());
        let attempt = Attempt {
            link,
            group,
            taken,
            phase: self.phase.clone(),
        };
        let busy = |failed: &Failed| matches!(failed, Failed::Busy(_));
        let phase = &self.phase;
        let pause = |wait| {
            let mut phase = phase.clone();
            async move {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = stopped(&mut phase) => {}
                }
            }
        };
        let (attempt, result) =
            retry::retry_pausing(attempt, waits, deadline, busy, pause, Attempt::run).await;
        self.link = Some(attempt.link);
        (attempt.group, attempt.taken, result)
    }

    fn answer(&mut self, group: Vec<Box<dyn Job>>, result: Result<(), GaveUp<Failed>>) {
        let Err(gave_up) = result else {
            let bytes: usize = group.iter().map(|job| job.bytes()).sum();
            if let Some(log) = &mut self.log {
                log.committed(u64::try_from(bytes).unwrap_or(u64::MAX));
            }
            let stored = group.iter().filter(|job| job.is_done()).count();
            self.counts.commit(stored);
            for job in group {
                job.finish();
            }
            return;
        };
        let GaveUp {
            attempts,
            reason,
            last,
        } = gave_up;
        match last {
            Failed::Stopped => group.into_iter().for_each(|job| self.refuse(job)),
            Failed::Busy(_) if reason == Reason::Deadline => {
                for job in group {
                    job.expire();
                }
            }
            Failed::Busy(error) => {
                fail_each(group, error, |source| Error::Busy { attempts, source });
            }
            Failed::Unknown(error) => {
                fail_each(group, error, |source| Error::OutcomeUnknown { source });
            }
            Failed::Replaced => {
                self.target.status.presence.mark_replaced();
                for job in group {
                    job.fail(self.target.status.presence.error());
                }
            }
            Failed::Guilty(error) | Failed::Broken(error) => {
                let failure = code::classify(&error);
                fail_each(group, error, |source| code::to_error_from(failure, source));
            }
        }
    }

    async fn keep_log_short(&mut self) {
        // None is opened only to tidy up.
        let live = self.link.as_mut().and_then(Link::live);
        let (Some(log), Some(connection)) = (&mut self.log, live) else {
            return;
        };
        let Target {
            options, status, ..
        } = &*self.target;
        log.keep_short(connection, options, status, &self.readers)
            .await;
    }

    async fn truncate_log(&mut self) {
        let live = self.link.as_mut().and_then(Link::live);
        let (Some(log), Some(connection)) = (&mut self.log, live) else {
            return;
        };
        let Target {
            options, status, ..
        } = &*self.target;
        log.truncate(connection, options, status, &self.readers)
            .await;
    }

    /// Old files get the index that spares reads the sorting after they are open: it looks at
    /// every message, so that opening would take long.
    async fn build_message_index(&mut self) {
        let status = &self.target.status;
        let live = self.link.as_mut().and_then(Link::live);
        let Some(connection) = live.filter(|_| !status.has_message_index()) else {
            return;
        };
        let built = sqlx::query(
            "CREATE INDEX IF NOT EXISTS idx_messages_session_id ON messages(session_id)",
        )
        .execute(connection);
        match built.await {
            Ok(_) => {
                tracing::info!("built the index of messages by session");
                status.set_message_index();
            }
            // The next opening tries again; until then reads sort.
            Err(error) => tracing::warn!(%error, "building the index of messages failed"),
        }
    }

    async fn finish(mut self) {
        let until = match *self.phase.borrow() {
            Phase::Closing { until } => until,
            Phase::Open => None,
        };
        // The queue is closed: nobody enters any more.
        self.counts.refuse_entering();
        self.remove_all_leftovers().await;
        self.readers.close(until).await;
        if !self.is_stopped() {
            self.truncate_log().await;
        }
        if let Some(mut link) = self.link.take() {
            link.discard().await;
        }
        self.done.send_replace(true);
    }
}

/// Whether the other writes of a group that failed so may still be stored. A full disk or a failing
/// one is everybody's.
fn may_be_one_writes_fault(failed: &Failed) -> bool {
    match failed {
        Failed::Guilty(_) => true,
        Failed::Broken(error) => {
            matches!(
                code::classify(error),
                Failure::Other | Failure::Corrupt | Failure::TooBig
            )
        }
        _ => false,
    }
}

fn fail_each(group: Vec<Box<dyn Job>>, error: sqlx::Error, to_error: impl Fn(BoxError) -> Error) {
    let error: Arc<dyn std::error::Error + Send + Sync> = code::cause(error).into();
    for job in group {
        job.fail(to_error(Arc::clone(&error).into()));
    }
}
