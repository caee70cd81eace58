//! Writes on their way to the writer: what they are, how many may wait, who still wants them.

use std::any::{Any, TypeId};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::ticket::Ticket;
use crate::error::{Error, Result};

/// One write, as a value with owned arguments.
///
/// It is applied inside the transaction of its group, perhaps more than once (a group that failed
/// is replayed write by write): it has no effects outside the transaction.
pub(crate) trait Operation: Send + Sync + 'static {
    /// What the caller gets once the transaction is committed.
    type Output: Send + 'static;

    /// Whether it may leave messages behind whose session is gone. Transaction and connection are
    /// its own, and the only ones in which foreign keys are off.
    const LEAVES_ORPHANS: bool = false;

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

    /// The whole transaction of writes of this kind as one script, if they allow it: nothing must
    /// be read between its statements. It saves the hops to the connection's thread.
    ///
    /// A script may fail where statements would refuse a single write; these are tried then.
    fn script(_run: &[&Self]) -> Option<Script> {
        None
    }

    /// The outcomes of a script that was committed, from what each of its statements reported.
    fn outcomes(_run: &[&Self], _done: &[SqliteQueryResult]) -> Vec<Self::Output> {
        Vec::new()
    }
}

/// A transaction in one piece: `BEGIN IMMEDIATE`, statements without rows, `COMMIT`.
pub(crate) struct Script {
    pub(crate) sql: &'static str,
    pub(crate) arguments: SqliteArguments,
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

/// A write in the queue, whatever its kind.
pub(crate) trait Job: Send {
    fn bytes(&self) -> usize;
    fn deadline(&self) -> Instant;
    fn kind(&self) -> TypeId;
    fn leaves_orphans(&self) -> bool;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    /// Whether its caller still waits and has time left.
    fn is_wanted(&self) -> bool;
    /// Makes the write part of the transaction that has begun, unless its caller has given up or
    /// its time is over.
    fn take(&self) -> bool;
    /// Applies this write and the ones of its kind that follow it.
    fn apply_with<'a>(
        &'a mut self,
        rest: &'a mut [Box<dyn Job>],
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<()>>;
    /// This write and the ones that follow it as a script, if they are of one kind that allows it.
    fn script_with(&self, rest: &[Box<dyn Job>]) -> Option<Script>;
    /// Takes the outcomes of a script.
    fn take_outcomes(&mut self, rest: &mut [Box<dyn Job>], done: &[SqliteQueryResult]);
    fn ticket(&self) -> &Arc<Ticket>;
    /// Whether the transaction did what it was asked.
    fn is_done(&self) -> bool;
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
    /// Gives the queue its bytes back when the write is done. `None`: it was not queued.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
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

    fn leaves_orphans(&self) -> bool {
        O::LEAVES_ORPHANS
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn is_wanted(&self) -> bool {
        !self.ticket.is_expired() && !self.ticket.is_given_up()
    }

    fn take(&self) -> bool {
        self.ticket.take()
    }

    fn apply_with<'a>(
        &'a mut self,
        rest: &'a mut [Box<dyn Job>],
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<()>> {
        Box::pin(async move {
            let results = O::apply_run(self.run(rest), connection).await?;
            self.take_results(rest, results);
            Ok(())
        })
    }

    fn script_with(&self, rest: &[Box<dyn Job>]) -> Option<Script> {
        let run = self.run(rest);
        if run.len() == rest.len() + 1 {
            O::script(&run)
        } else {
            None
        }
    }

    fn take_outcomes(&mut self, rest: &mut [Box<dyn Job>], done: &[SqliteQueryResult]) {
        let outcomes = O::outcomes(&self.run(rest), done);
        self.take_results(rest, outcomes.into_iter().map(Ok).collect());
    }

    fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    fn is_done(&self) -> bool {
        matches!(self.outcome, Some(Ok(_)))
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

impl<O: Operation> Pending<O> {
    /// This operation and those of the same kind in `rest`.
    fn run<'a>(&'a self, rest: &'a [Box<dyn Job>]) -> Vec<&'a O> {
        let others = rest
            .iter()
            .filter_map(|job| job.as_any().downcast_ref::<Self>());
        std::iter::once(self)
            .chain(others)
            .map(|job| &job.operation)
            .collect()
    }

    fn take_results(&mut self, rest: &mut [Box<dyn Job>], results: Vec<Result<O::Output>>) {
        let others = rest
            .iter_mut()
            .filter_map(|job| job.as_any_mut().downcast_mut::<Self>());
        for (job, result) in std::iter::once(self).chain(others).zip(results) {
            job.outcome = Some(result);
        }
    }
}
