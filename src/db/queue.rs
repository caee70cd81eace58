//! Writes on their way to the writer: what they are, how many may wait, who still wants them.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// One write, as a value with owned arguments.
///
/// It is applied inside the transaction of its group, perhaps more than once (a group that failed
/// is replayed write by write): it has no effects outside the transaction.
pub(crate) trait Operation: Send + Sync + 'static {
    /// What the caller gets once the transaction is committed.
    type Output: Send + 'static;

    /// Bytes that the write holds, for the limits of queue and group.
    fn bytes(&self) -> usize;

    /// Does the write. [`Fault::Refused`] must come before anything is changed.
    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Self::Output, Fault>>;

    /// Does writes of this kind that stand next to each other, in order. An error is the
    /// database's and ends the transaction; a refusal is one write's own.
    fn apply_run<'a>(
        run: Vec<&'a Self>,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<Vec<Result<Self::Output>>>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(run.len());
            for operation in run {
                results.push(match operation.apply(connection).await {
                    Ok(output) => Ok(output),
                    Err(Fault::Refused(error)) => Err(error),
                    Err(Fault::Database(error)) => return Err(error),
                });
            }
            Ok(results)
        })
    }
}

/// Why an operation did not take place.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It may not: the caller's error. Nothing was changed and the group goes on.
    Refused(Error),
    /// The database failed.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Settles between caller and writer, once, whether a write runs.
#[derive(Debug, Default)]
pub(crate) struct Ticket(AtomicU8);

impl Ticket {
    /// The writer's side: the transaction has begun and the write is part of it.
    fn take(&self) -> bool {
        self.settle(TAKEN)
    }

    /// The caller's side: `true` means that the write never runs.
    pub(crate) fn give_up(&self) -> bool {
        self.settle(GIVEN_UP)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) == TAKEN
    }

    fn settle(&self, state: u8) -> bool {
        self.0
            .compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// A write in the queue, whatever its kind.
pub(crate) trait Job: Send {
    fn bytes(&self) -> usize;
    fn deadline(&self) -> Instant;
    fn kind(&self) -> TypeId;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    /// Makes the write part of the transaction that has begun, unless its caller has given up or
    /// its time is over.
    fn take(&self) -> bool;
    /// Applies this write and the ones of its kind that follow it.
    fn apply_with<'a>(
        &'a mut self,
        rest: &'a mut [Box<dyn Job>],
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<()>>;
    /// Answers with the outcome: the transaction is committed.
    fn finish(self: Box<Self>);
    /// Answers that the transaction failed.
    fn fail(self: Box<Self>, error: Error);
    /// Answers that the write did not begin in time.
    fn expire(self: Box<Self>);
}

pub(crate) struct Pending<O: Operation> {
    pub(crate) operation: O,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) queued: Instant,
    pub(crate) deadline: Instant,
    pub(crate) reply: oneshot::Sender<Result<O::Output>>,
    pub(crate) outcome: Option<Result<O::Output>>,
    /// Gives the queue its bytes back when the write is done.
    pub(crate) _room: OwnedSemaphorePermit,
}

impl<O: Operation> Job for Pending<O> {
    fn bytes(&self) -> usize {
        self.operation.bytes()
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn kind(&self) -> TypeId {
        TypeId::of::<O>()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn take(&self) -> bool {
        Instant::now() < self.deadline && self.ticket.take()
    }

    fn apply_with<'a>(
        &'a mut self,
        rest: &'a mut [Box<dyn Job>],
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<()>> {
        Box::pin(async move {
            let mut run = Vec::with_capacity(rest.len() + 1);
            run.push(&self.operation);
            run.extend(
                rest.iter()
                    .filter_map(|job| job.as_any().downcast_ref::<Self>())
                    .map(|job| &job.operation),
            );
            let results = O::apply_run(run, connection).await?;
            let others = rest
                .iter_mut()
                .filter_map(|job| job.as_any_mut().downcast_mut::<Self>());
            for (job, result) in std::iter::once(self).chain(others).zip(results) {
                job.outcome = Some(result);
            }
            Ok(())
        })
    }

    fn finish(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            // The caller may have gone; its write is committed all the same.
            drop(self.reply.send(outcome));
        }
    }

    fn fail(self: Box<Self>, error: Error) {
        drop(self.reply.send(Err(error)));
    }

    fn expire(self: Box<Self>) {
        let waited = self.queued.elapsed();
        self.fail(Error::Overloaded { waited });
    }
}
