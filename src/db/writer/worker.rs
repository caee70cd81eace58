//! The task that owns the writing connection.

use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Phase, Target};
use crate::db::code::{self, Failure};
use crate::db::counts::Counts;
use crate::db::group::{Attempt, Failed, Link, stopped};
use crate::db::queue::Job;
use crate::db::readers::Readers;
use crate::db::wal::Log;
use crate::error::{BoxError, Error};
use crate::retry::{self, GaveUp, Reason};

/// How long the queue must be empty before the log is truncated.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// The writer's side.
pub(super) struct Worker {
    pub(super) queue: mpsc::Receiver<Box<dyn Job>>,
    /// Came out of the queue but did not fit into the group before.
    pub(super) held: Option<Box<dyn Job>>,
    pub(super) link: Option<Link>,
    /// `None` where the file has no write-ahead log.
    pub(super) log: Option<Log>,
    /// Whether the file can't have the index of messages by session. The next opening asks again.
    pub(super) index_refused: bool,
    /// When to remove the next leftovers of deleted sessions; `None` if none are known.
    pub(super) leftovers_due: Option<Instant>,
    /// Groups since leftovers were removed.
    pub(super) groups: u32,
    /// How much smaller than the largest a piece of leftovers must be to take no longer than it may.
    pub(super) divisor: i64,
    pub(super) readers: Arc<Readers>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) done: watch::Sender<bool>,
    pub(super) counts: Arc<Counts>,
    pub(super) random: fastrand::Rng,
    pub(super) target: Arc<Target>,
}

impl Worker {
    pub(super) async fn run(mut self) {
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
            let dirty = self.log.as_ref().is_some_and(Log::is_dirty);
            let indexed = self.target.status.has_message_index() || self.index_refused;
            let idle = live && (dirty || !indexed);
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
                () = tokio::time::sleep(IDLE), if idle => {
                    self.build_message_index().await;
                    self.truncate_log().await;
                }
            }
        }
    }

    /// Whether the time for writing what is queued is over.
    pub(super) fn is_stopped(&self) -> bool {
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
    pub(super) async fn transact(
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

    pub(super) async fn keep_log_short(&mut self) {
        if let Some((log, connection, target, readers)) = self.log_and_connection() {
            log.keep_short(connection, &target.options, &target.status, readers)
                .await;
        }
    }

    async fn truncate_log(&mut self) {
        if let Some((log, connection, target, readers)) = self.log_and_connection() {
            log.truncate(connection, &target.options, &target.status, readers)
                .await;
        }
    }

    /// What tidying up the log needs. No connection is opened only for that.
    fn log_and_connection(
        &mut self,
    ) -> Option<(&mut Log, &mut SqliteConnection, &Target, &Arc<Readers>)> {
        let connection = self.link.as_mut().and_then(Link::live)?;
        Some((self.log.as_mut()?, connection, &self.target, &self.readers))
    }

    /// Old files get the index that spares reads the sorting after they are open: it looks at
    /// every message, so that opening would take long.
    async fn build_message_index(&mut self) {
        let status = &self.target.status;
        let live = self.link.as_mut().and_then(Link::live);
        let wanted = !status.has_message_index() && !self.index_refused;
        let Some(connection) = live.filter(|_| wanted) else {
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
            // Reads sort until it is there: the next quiet moment tries again.
            Err(error) if code::classify(&error) == Failure::Busy => {
                tracing::debug!(%error, "the index of messages must wait");
            }
            Err(error) => {
                self.index_refused = true;
                tracing::warn!(%error, "building the index of messages failed");
            }
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
