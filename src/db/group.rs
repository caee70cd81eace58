//! One transaction for a group of writes.

use std::pin::pin;
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::{Connection as _, Either, Executor as _, SqliteConnection};
use tokio::sync::watch;

use super::code::{self, Failure};
use super::queue::{Job, Script};
use super::writer::{Phase, Target};

/// How many statements of a script come before its COMMIT: BEGIN, counters, rows, check.
const SCRIPT_COMMIT: usize = 4;

/// The statement before it, which fails if rows were left out.
const SCRIPT_CHECK: usize = 3;

/// Why a group's transaction did not come to its commit.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A lock was held elsewhere. Rolled back; may be tried again.
    Busy(sqlx::Error),
    /// One of the writes can't be stored. Rolled back; the others may be.
    Guilty(sqlx::Error),
    /// The database failed. SQLite rolled back, the connection is gone.
    Broken(sqlx::Error),
    /// The commit itself failed half-way. The connection is gone.
    Unknown(sqlx::Error),
    /// The file is not at its path any more. Nothing was written.
    Replaced,
    /// The store was told to stop before the transaction had begun.
    Stopped,
}

impl Failed {
    /// SQLite's code. Its words may quote the rows.
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Self::Busy(error)
            | Self::Guilty(error)
            | Self::Broken(error)
            | Self::Unknown(error) => code::extended(error),
            Self::Replaced | Self::Stopped => None,
        }
    }
}

/// The writer's connection, opened again after it had to be dropped.
pub(crate) struct Link {
    target: Arc<Target>,
    connection: Option<SqliteConnection>,
}

impl Link {
    pub(crate) fn new(target: Arc<Target>, connection: SqliteConnection) -> Self {
        Self {
            target,
            connection: Some(connection),
        }
    }

    /// The connection, opened again if it was dropped.
    async fn ready(&mut self) -> Result<&mut SqliteConnection, Failed> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Opens the file at the path, which must not be another one by now: opening and closing alone
    /// may change that.
    async fn connect(&self) -> Result<SqliteConnection, Failed> {
        if !self.target.status.presence.is_there().await {
            return Err(Failed::Replaced);
        }
        self.target
            .connect()
            .await
            .map_err(|error| match code::classify(&error) {
                Failure::Busy => Failed::Busy(error),
                _ => Failed::Broken(error),
            })
    }

    /// The connection, if there is one.
    pub(crate) fn live(&mut self) -> Option<&mut SqliteConnection> {
        self.connection.as_mut()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.connection.is_some()
    }

    /// The connection on which a transaction has begun.
    fn begun(&mut self) -> sqlx::Result<&mut SqliteConnection> {
        self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// Closes the connection. SQLite may have left the transaction by itself, so that a further
    /// statement would run, and stay, outside of any.
    pub(crate) async fn discard(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "closing a failed connection");
        }
    }
}

/// What is handed from try to try.
pub(crate) struct Attempt {
    pub(crate) link: Link,
    pub(crate) group: Vec<Box<dyn Job>>,
    /// Whether the writes are already part of a transaction that has begun once.
    pub(crate) taken: bool,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl Attempt {
    /// Tries the group's transaction once. After `Ok` each write of the group has its outcome and
    /// is committed.
    pub(crate) async fn run(mut self) -> (Self, Result<(), Failed>) {
        let result = if self.group.iter().any(|job| job.leaves_orphans()) {
            self.transact_without_foreign_keys().await
        } else {
            self.transact().await
        };
        (self, result)
    }

    /// On a connection of its own: on one that goes on, SQLite was seen to find no tables after the
    /// keys were switched and another program had changed the schema.
    async fn transact_without_foreign_keys(&mut self) -> Result<(), Failed> {
        let ordinary = self.link.connection.take();
        let result = self.transact_apart().await;
        self.link.discard().await;
        self.link.connection = ordinary;
        result
    }

    async fn transact_apart(&mut self) -> Result<(), Failed> {
        let connection = self.link.ready().await?;
        let off = sqlx::query("PRAGMA foreign_keys = OFF");
        if let Err(error) = off.execute(connection).await {
            return Err(self.give_up(error).await);
        }
        self.transact().await
    }

    async fn transact(&mut self) -> Result<(), Failed> {
        if !self.taken {
            self.group.retain(|job| job.is_wanted());
            if self.group.is_empty() {
                return Ok(());
            }
        }
        if self.try_script().await? {
            return Ok(());
        }
        self.begin().await?;
        if !self.taken {
            self.group.retain(|job| job.take());
            self.taken = true;
        }
        if self.group.is_empty() {
            self.roll_back().await;
            return Ok(());
        }
        if let Err(error) = self.apply().await {
            return Err(self.give_up(error).await);
        }
        self.commit().await
    }

    /// Sends the group's transaction as one script, if its writes allow it. `false`: nothing was
    /// written, and the statements must tell which write is to blame, or has no caller any more.
    async fn try_script(&mut self) -> Result<bool, Failed> {
        let script = match self.group.split_first() {
            Some((first, rest)) if !self.taken => first.script_with(rest),
            _ => None,
        };
        let Some(Script { sql, arguments }) = script else {
            return Ok(false);
        };
        let claims = Arc::clone(&self.link.target.claims);
        let tickets = self
            .group
            .iter()
            .map(|job| Arc::clone(job.ticket()))
            .collect();
        let mut done = Vec::new();
        let error = {
            let connection = self.link.ready().await?;
            // Not before there is a connection: what is armed must be disarmed.
            claims.arm(tickets);
            let mut steps = connection.fetch_many(sqlx::query_with(sql, arguments));
            let mut run = pin!(async {
                loop {
                    match steps.try_next().await {
                        Ok(Some(Either::Left(result))) => done.push(result),
                        Ok(Some(Either::Right(_))) => {}
                        Ok(None) => return None,
                        Err(error) => return Some(error),
                    }
                }
            });
            tokio::select! {
                error = &mut run => Some(error),
                () = stopped(&mut self.phase) => {
                    if claims.refuse() { None } else { Some(run.await) }
                }
            }
        };
        let Some(error) = error else {
            // The connection still waits for the lock: it rolls back when it closes. The refusal
            // stays, should it come to its commit before that.
            self.link.connection = None;
            return Err(Failed::Stopped);
        };
        claims.disarm();
        let Some(error) = error else {
            if let Some((first, rest)) = self.group.split_first_mut() {
                first.take_outcomes(rest, &done);
            }
            return Ok(true);
        };
        match (done.len(), code::classify(&error)) {
            // The transaction has not begun.
            (0, Failure::Busy) => Err(Failed::Busy(error)),
            (_, Failure::Busy) => {
                self.roll_back().await;
                Err(Failed::Busy(error))
            }
            (_, Failure::Constraint) | (SCRIPT_CHECK, Failure::Other) => {
                self.roll_back().await;
                Ok(false)
            }
            // Somebody gave up.
            (_, Failure::TurnedDown) if !self.link.target.status.presence.is_replaced() => {
                Ok(false)
            }
            (_, Failure::TurnedDown | Failure::Moved | Failure::Full) | (..SCRIPT_COMMIT, _) => {
                Err(self.give_up(error).await)
            }
            _ => {
                self.link.discard().await;
                Err(Failed::Unknown(error))
            }
        }
    }

    /// IMMEDIATE: a deferred transaction that turns from reading to writing fails at once with
    /// `BUSY_SNAPSHOT`, which no busy timeout waits for.
    async fn begin(&mut self) -> Result<(), Failed> {
        let connection = self.link.ready().await?;
        let begun = sqlx::query("BEGIN IMMEDIATE").execute(connection);
        let result = tokio::select! {
            result = begun => Some(result),
            () = stopped(&mut self.phase) => None,
        };
        match result {
            Some(Ok(_)) => Ok(()),
            // There is no transaction to be rolled back.
            Some(Err(error)) if code::classify(&error) == Failure::Busy => Err(Failed::Busy(error)),
            Some(Err(error)) => Err(self.give_up(error).await),
            None => {
                // The connection is still waiting for the lock: it rolls back when it closes, on
                // its own thread.
                self.link.connection = None;
                Err(Failed::Stopped)
            }
        }
    }

    async fn apply(&mut self) -> sqlx::Result<()> {
        let connection = self.link.begun()?;
        let mut rest = self.group.as_mut_slice();
        while let Some((first, others)) = rest.split_first_mut() {
            let same = others
                .iter()
                .take_while(|job| job.kind() == first.kind())
                .count();
            let (run, further) = others.split_at_mut(same);
            first.apply_with(run, connection).await?;
            rest = further;
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), Failed> {
        let connection = self.link.begun().map_err(Failed::Broken)?;
        let Err(error) = sqlx::query("COMMIT").execute(connection).await else {
            return Ok(());
        };
        match code::classify(&error) {
            // Known not to have happened: a rollback journal whose readers stayed, a deferred
            // constraint, a log or journal that found no space, our own check of the file.
            Failure::Busy
            | Failure::Constraint
            | Failure::Full
            | Failure::Moved
            | Failure::TurnedDown => Err(self.give_up(error).await),
            _ => {
                self.link.discard().await;
                Err(Failed::Unknown(error))
            }
        }
    }

    /// Leaves the transaction as the failure demands.
    async fn give_up(&mut self, error: sqlx::Error) -> Failed {
        match code::classify(&error) {
            Failure::Busy => {
                self.roll_back().await;
                Failed::Busy(error)
            }
            Failure::Constraint => {
                self.roll_back().await;
                Failed::Guilty(error)
            }
            Failure::Moved | Failure::TurnedDown => {
                self.link.discard().await;
                Failed::Replaced
            }
            _ => {
                self.link.discard().await;
                Failed::Broken(error)
            }
        }
    }

    /// "No transaction is active" is what was wanted, so that a connection which can't roll back
    /// is dropped rather than reported.
    async fn roll_back(&mut self) {
        if let Some(connection) = &mut self.link.connection
            && sqlx::query("ROLLBACK").execute(connection).await.is_err()
        {
            self.link.discard().await;
        }
    }
}

/// Ends when the store may not begin another transaction.
pub(super) async fn stopped(phase: &mut watch::Receiver<Phase>) {
    loop {
        let until = match *phase.borrow_and_update() {
            Phase::Closing { until } => until,
            Phase::Open => None,
        };
        let changed = phase.changed();
        match until {
            Some(until) => tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                _ = changed => {}
            },
            None => {
                if changed.await.is_err() {
                    // No handle is left to stop the writer: it finishes its queue.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::db::presence::Presence;
    use crate::db::status::Status;
    use crate::options::StoreOptions;

    #[tokio::test]
    async fn a_lock_held_elsewhere_does_not_cost_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let options = StoreOptions::new().busy_timeout(Duration::ZERO).unwrap();
        let store = options.clone().open(&path).await.unwrap();
        let environment = store.environment();
        let target = Arc::new(Target {
            status: Arc::new(Status::new(Presence::of(&environment.path), true)),
            path: environment.path,
            options,
            journal: environment.journal_mode,
            page_size: environment.page_size,
            claims: Arc::default(),
        });
        let connection = target.connect().await.unwrap();
        let (_open, phase) = watch::channel(Phase::Open);
        let mut attempt = Attempt {
            link: Link::new(target, connection),
            group: Vec::new(),
            taken: true,
            phase,
        };
        let rival = rusqlite::Connection::open(&path).unwrap();
        rival.execute_batch("BEGIN IMMEDIATE").unwrap();

        assert!(matches!(attempt.begin().await, Err(Failed::Busy(_))));
        assert!(attempt.link.is_live());

        rival.execute_batch("COMMIT").unwrap();
        assert!(matches!(attempt.begin().await, Ok(())));
    }
}
