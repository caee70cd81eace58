//! Keeping the write-ahead log short.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Row as _, SqliteConnection};
use tokio::time::Instant;

use super::readers::Readers;
use super::status::Status;
use crate::options::StoreOptions;

/// How long new reads of this store may be held back so that the log can begin anew.
///
/// Half of it waits for running reads, half for those of other programs.
const HOLD: Duration = Duration::from_millis(50);

/// How long reads are left alone after they could not be held back.
const REST: Duration = Duration::from_secs(1);

/// Frames carry a header of this many bytes before each page.
const FRAME_HEADER: u64 = 24;

/// What the writer knows of the log between two checkpoints.
#[derive(Debug)]
pub(crate) struct Log {
    page_size: u64,
    commits: u32,
    /// Bytes written since the last checkpoint, as far as the writes themselves tell.
    written: u64,
    /// Length of the log file at the last checkpoint, or since, if it was cut.
    file_bytes: u64,
    /// Length of the log when a restart was last turned down.
    refused_at: Option<u64>,
    /// When reads may be held back again.
    not_before: Option<Instant>,
    dirty: bool,
}

/// What a checkpoint reports: <https://www.sqlite.org/pragma.html#pragma_wal_checkpoint>.
struct Checkpointed {
    busy: bool,
    /// Length of the log itself. The file may be longer: it is not cut when the log begins anew.
    log_bytes: u64,
}

impl Log {
    pub(crate) fn new(page_size: u32) -> Self {
        Self {
            page_size: u64::from(page_size),
            commits: 0,
            written: 0,
            file_bytes: 0,
            refused_at: None,
            not_before: None,
            // The process before may have left a log behind.
            dirty: true,
        }
    }

    /// Notes a commit of `bytes`.
    pub(crate) fn committed(&mut self, bytes: u64) {
        self.commits += 1;
        self.written += bytes;
        self.dirty = true;
    }

    /// Whether there is something to truncate when the writer has nothing to do.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    fn is_due(&mut self, options: &StoreOptions, status: &Status) -> bool {
        let bytes = status.presence.wal_bytes();
        // The file is cut when the log begins anew.
        self.file_bytes = self.file_bytes.min(bytes);
        let grown = bytes - self.file_bytes;
        self.commits >= options.checkpoint_commits
            || self.written.max(grown) >= options.checkpoint_bytes.min(options.wal_limit / 2)
    }

    /// Copies the log into the database when it is time to, and makes it begin anew when it is
    /// long. Failures are logged: the commits before are safe.
    pub(crate) async fn keep_short(
        &mut self,
        connection: &mut SqliteConnection,
        options: &StoreOptions,
        status: &Status,
        readers: &Arc<Readers>,
    ) {
        if !self.is_due(options, status) {
            return;
        }
        let passive = self
            .checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)")
            .await;
        self.commits = 0;
        self.written = 0;
        self.file_bytes = status.presence.wal_bytes();
        let Some(passive) = passive else { return };
        if passive.log_bytes < options.wal_limit / 2 {
            self.refused_at = None;
            status.set_log_held(0);
            return;
        }
        let rested = self.not_before.is_none_or(|at| Instant::now() >= at);
        let again = rested
            && self.refused_at.is_none_or(|at| {
                passive.log_bytes < at || passive.log_bytes - at >= options.checkpoint_bytes
            });
        if again {
            self.restart(connection, passive.log_bytes, options, status, readers)
                .await;
        }
    }

    /// PASSIVE never ends while reads overlap: each keeps the part of the log that it looks at.
    async fn restart(
        &mut self,
        connection: &mut SqliteConnection,
        log_bytes: u64,
        options: &StoreOptions,
        status: &Status,
        readers: &Arc<Readers>,
    ) {
        let Some(_held) = readers.hold(Instant::now() + HOLD).await else {
            // A read of ours goes on for long: writers and readers must not wait again and again.
            self.not_before = Some(Instant::now() + REST);
            return;
        };
        self.not_before = None;
        let restarted = self
            .impatiently(connection, options, "PRAGMA wal_checkpoint(RESTART)")
            .await;
        if matches!(restarted, Some(Checkpointed { busy: false, .. })) {
            self.refused_at = None;
            status.set_log_held(0);
            return;
        }
        if self.refused_at.is_none() {
            tracing::warn!(
                log_bytes,
                "another program keeps the write-ahead log from shrinking"
            );
        }
        self.refused_at = Some(log_bytes);
        status.set_log_held(log_bytes);
    }

    /// Copies all of the log and cuts the file, if nobody is in the way.
    pub(crate) async fn truncate(
        &mut self,
        connection: &mut SqliteConnection,
        options: &StoreOptions,
        status: &Status,
        readers: &Arc<Readers>,
    ) {
        self.dirty = false;
        let Some(_held) = readers.hold(Instant::now() + HOLD).await else {
            return;
        };
        let truncated = self
            .impatiently(connection, options, "PRAGMA wal_checkpoint(TRUNCATE)")
            .await;
        if matches!(truncated, Some(Checkpointed { busy: false, .. })) {
            self.commits = 0;
            self.written = 0;
            self.file_bytes = 0;
            self.refused_at = None;
            status.set_log_held(0);
        }
    }

    /// RESTART and TRUNCATE wait for readers with the write lock in hand: others must not wait
    /// that long for this process's housekeeping.
    async fn impatiently(
        &mut self,
        connection: &mut SqliteConnection,
        options: &StoreOptions,
        pragma: &'static str,
    ) -> Option<Checkpointed> {
        run(connection, "PRAGMA busy_timeout = 50").await;
        let result = self.checkpoint(connection, pragma).await;
        let restore = format!("PRAGMA busy_timeout = {}", options.busy_timeout.as_millis());
        run(connection, sqlx::AssertSqlSafe(restore)).await;
        result
    }

    async fn checkpoint(
        &self,
        connection: &mut SqliteConnection,
        pragma: &'static str,
    ) -> Option<Checkpointed> {
        match sqlx::query(pragma).fetch_one(connection).await {
            Ok(row) => Some(Checkpointed {
                busy: row.try_get::<i64, _>(0).unwrap_or(1) != 0,
                log_bytes: u64::try_from(row.try_get::<i64, _>(1).unwrap_or(0)).unwrap_or(0)
                    * (self.page_size + FRAME_HEADER),
            }),
            Err(error) => {
                tracing::debug!(%error, pragma, "checkpoint failed");
                None
            }
        }
    }
}

async fn run(connection: &mut SqliteConnection, pragma: impl sqlx::SqlSafeStr) {
    if let Err(error) = sqlx::query(pragma).execute(connection).await {
        tracing::debug!(%error, "setting the busy timeout failed");
    }
}
