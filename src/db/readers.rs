//! Connections that read: opened when needed, closed when idle, stopped when nobody waits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Connection as _, Sqlite, SqliteConnection, query::Query};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::code::{self, Failure};
use super::connect;
use super::status::Status;
use super::task::Task;
use crate::error::{Error, Result};
use crate::options::StoreOptions;

/// After how many steps of SQLite's virtual machine a reader looks whether it should stop: some
/// microseconds.
const STEPS: i32 = 1000;

/// How often a read is tried that failed because another process was just recovering the log.
const TRIES: u32 = 5;

/// How long rows are taken before other tasks may run.
const LONGEST_POLL: Duration = Duration::from_micros(500);

/// How long a read may take, as its operation knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// What somebody waits for: a row, a transcript to be resumed. One connection is always kept
    /// for these.
    Short,
    /// What looks at many sessions, or goes on for long.
    Long,
}

/// The store's reading connections.
pub(crate) struct Readers {
    path: PathBuf,
    options: StoreOptions,
    immutable: bool,
    status: Arc<Status>,
    /// One permit for each connection in use.
    permits: Arc<Semaphore>,
    total: u32,
    /// Fewer permits: what long reads may use.
    long: Arc<Semaphore>,
    idle: Mutex<Vec<Reader>>,
    closing: AtomicBool,
    runtime: Handle,
    sweeper: Mutex<Option<AbortHandle>>,
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers")
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

/// No read runs as long as this lives.
pub(crate) struct Held<'a>(
    /// `None` where reads were closed before.
    #[expect(dead_code, reason = "reads go on when it is dropped")]
    Option<SemaphorePermit<'a>>,
);

pub(super) struct Reader {
    pub(super) connection: SqliteConnection,
    brake: Arc<Brake>,
    used: Instant,
    /// `false`: a statement may still be running, because its caller went away.
    settled: bool,
}

/// Stops a statement from another thread.
struct Brake {
    epoch: Instant,
    pulled: AtomicBool,
    /// Milliseconds after `epoch`.
    deadline: AtomicU64,
}

impl Brake {
    fn new() -> Self {
        Self {
            epoch: Instant::now(),
            pulled: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
        }
    }

    fn release(&self, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.epoch).as_millis();
        self.deadline
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
        self.pulled.store(false, Ordering::Release);
    }

    fn pull(&self) {
        self.pulled.store(true, Ordering::Release);
    }

    fn may_go_on(&self) -> bool {
        !self.pulled.load(Ordering::Acquire)
            && self.epoch.elapsed().as_millis() < u128::from(self.deadline.load(Ordering::Acquire))
    }
}

impl Readers {
    pub(crate) fn new(
        path: PathBuf,
        options: StoreOptions,
        immutable: bool,
        status: Arc<Status>,
        runtime: Handle,
    ) -> Arc<Self> {
        let total = options.readers;
        Arc::new(Self {
            path,
            immutable,
            status,
            permits: Arc::new(Semaphore::new(usize::try_from(total).unwrap_or(1))),
            long: Arc::new(Semaphore::new(
                usize::try_from(total.saturating_sub(1).max(1)).unwrap_or(1),
            )),
            total,
            options,
            idle: Mutex::new(Vec::new()),
            closing: AtomicBool::new(false),
            runtime,
            sweeper: Mutex::new(None),
        })
    }

    /// A connection for one statement that must end by `deadline`.
    pub(super) async fn lease(
        self: &Arc<Self>,
        length: Length,
        deadline: Instant,
    ) -> Result<Lease> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let long = match length {
            Length::Short => None,
            Length::Long => Some(owned(&self.long).await?),
        };
        let permit = owned(&self.permits).await?;
        let taken = lock(&self.idle).pop();
        let mut reader = match taken {
            Some(reader) => reader,
            None => self.open().await?,
        };
        if !reader.settled {
            // Answered once the interrupted statement has ended.
            match reader.connection.ping().await {
                Ok(()) => reader.settled = true,
                Err(_) => reader = self.open().await?,
            }
        }
        reader.brake.release(deadline);
        Ok(Lease {
            readers: Arc::clone(self),
            reader: Some(reader),
            _permit: permit,
            _long: long,
        })
    }

    /// Reads the rows of a statement. The caller may stop asking for them: the connection comes
    /// back by the deadline all the same.
    async fn rows(
        self: Arc<Self>,
        query: Query<'static, Sqlite, SqliteArguments>,
        length: Length,
        deadline: Instant,
    ) -> std::result::Result<Vec<SqliteRow>, Failed> {
        let mut lease = self.lease(length, deadline).await?;
        let Some(reader) = &mut lease.reader else {
            return Ok(Vec::new());
        };
        reader.settled = false;
        let result = query.fetch_all(&mut reader.connection).await;
        reader.settled = true;
        if let Err(error) = &result
            && !matches!(
                code::classify(error),
                Failure::Interrupted | Failure::Busy | Failure::TooBig
            )
        {
            // What is wrong with the connection must not meet the next caller.
            lease.reader = None;
        }
        result.map_err(Failed::Sqlx)
    }

    async fn open(&self) -> Result<Reader> {
        let connect = async {
            let mut connection = connect::reader(&self.path, &self.options, self.immutable).await?;
            let brake = Arc::new(Brake::new());
            let watched = Arc::clone(&brake);
            // Taking the handle for each read instead was seen to deadlock.
            connection
                .lock_handle()
                .await?
                .set_progress_handler(STEPS, move || watched.may_go_on());
            Ok(Reader {
                connection,
                brake,
                used: Instant::now(),
                settled: true,
            })
        };
        let opened = connect.await;
        // It was opened by its path, which may lead to another file by now.
        if !self.status.presence.is_there().await {
            return Err(self.status.presence.error());
        }
        opened.map_err(code::to_error)
    }

    /// Holds back new reads and waits for the running ones; `None` if they do not end by
    /// `deadline`. Reads go on when the value is dropped.
    pub(crate) async fn hold(&self, deadline: Instant) -> Option<Held<'_>> {
        let all = self.permits.acquire_many(self.total);
        let held = tokio::time::timeout_at(deadline, all).await.ok()?;
        Some(Held(held.ok()))
    }

    /// Refuses new reads from now on.
    pub(crate) fn refuse(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Refuses new reads, waits for the running ones until `deadline`, closes all connections.
    pub(crate) async fn close(&self, deadline: Option<Instant>) {
        self.refuse();
        self.long.close();
        let longest = Instant::now() + self.options.deadline;
        let running = self.hold(deadline.unwrap_or(longest).min(longest)).await;
        self.permits.close();
        drop(running);
        if let Some(sweeper) = lock(&self.sweeper).take() {
            sweeper.abort();
        }
        let idle = std::mem::take(&mut *lock(&self.idle));
        for reader in idle {
            if let Err(error) = reader.connection.close().await {
                tracing::debug!(%error, "closing a reader");
            }
        }
    }

    fn give_back(self: &Arc<Self>, mut reader: Reader) {
        reader.used = Instant::now();
        {
            let mut idle = lock(&self.idle);
            // Whoever closes takes the list after it closed the permits.
            if self.permits.is_closed() {
                return;
            }
            idle.push(reader);
        }
        let mut sweeper = lock(&self.sweeper);
        if sweeper.is_none() {
            let readers = Arc::downgrade(self);
            let idle = self.options.reader_idle;
            *sweeper = Some(self.runtime.spawn(sweep(readers, idle)).abort_handle());
        }
    }

    /// Closes what has been idle for `idle`; returns how long until the next one may be, if any is
    /// left.
    fn close_idle(&self, idle: Duration) -> Option<Duration> {
        let mut readers = lock(&self.idle);
        // Dropping a connection closes it on its own thread.
        readers.retain(|reader| reader.used.elapsed() < idle);
        let oldest = readers.iter().map(|reader| reader.used).min();
        if oldest.is_none() {
            *lock(&self.sweeper) = None;
        }
        oldest.map(|used| idle.saturating_sub(used.elapsed()))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if let Some(sweeper) = lock(&self.sweeper).take() {
            sweeper.abort();
        }
    }
}

async fn sweep(readers: Weak<Readers>, idle: Duration) {
    let mut wait = idle;
    loop {
        tokio::time::sleep(wait).await;
        let Some(next) = readers
            .upgrade()
            .and_then(|readers| readers.close_idle(idle))
        else {
            return;
        };
        wait = next.max(Duration::from_millis(10));
    }
}

/// The lists behind these locks are whole at any time, so that a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why rows did not come.
enum Failed {
    Ours(Error),
    Sqlx(sqlx::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

async fn owned(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    Arc::clone(permits)
        .acquire_owned()
        .await
        .map_err(|_| Error::Closed)
}

/// A connection for one statement. When it is dropped in the middle, the statement is stopped.
pub(super) struct Lease {
    readers: Arc<Readers>,
    pub(super) reader: Option<Reader>,
    _permit: OwnedSemaphorePermit,
    _long: Option<OwnedSemaphorePermit>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            if !reader.settled {
                reader.brake.pull();
            }
            self.readers.give_back(reader);
        }
    }
}

/// The reads of one call.
///
/// Each statement runs in a task of its own: a caller that is not polled keeps neither a connection
/// nor a state of the file beyond the deadline.
pub(crate) struct ReadGuard {
    pub(crate) readers: Arc<Readers>,
    pub(crate) runtime: Handle,
    pub(crate) length: Length,
    pub(crate) started: Instant,
    pub(crate) wait: Duration,
}

impl ReadGuard {
    /// Whether messages of a session can be read in order without sorting.
    pub(crate) fn has_message_index(&self) -> bool {
        self.readers.status.has_message_index()
    }

    /// Whether a read failed because another program took the index of messages by session away.
    /// From then on reads do without it.
    pub(crate) fn lost_message_index(&self, error: &Error) -> bool {
        let lost = self.has_message_index() && code::is_sql_error(error);
        if lost {
            self.readers.status.clear_message_index();
        }
        lost
    }

    /// Hands each row of a statement to `take`.
    pub(crate) async fn each(
        &mut self,
        mut query: impl FnMut() -> Query<'static, Sqlite, SqliteArguments>,
        mut take: impl FnMut(&SqliteRow),
    ) -> Result<()> {
        self.readers.status.presence.ensure()?;
        for attempt in 1.. {
            let deadline = self.started + self.wait;
            let rows = Arc::clone(&self.readers).rows(query(), self.length, deadline);
            let timed = async move { tokio::time::timeout_at(deadline, rows).await };
            let mut task = Task::new(self.runtime.spawn(timed));
            let error = match task.join().await? {
                Ok(Ok(rows)) => {
                    let mut since = std::time::Instant::now();
                    for row in rows {
                        take(&row);
                        // Large rows must not keep other tasks from running.
                        if since.elapsed() > LONGEST_POLL {
                            tokio::task::yield_now().await;
                            since = std::time::Instant::now();
                        }
                    }
                    return Ok(());
                }
                Ok(Err(Failed::Ours(error))) => return Err(error),
                Ok(Err(Failed::Sqlx(error))) => error,
                Err(_elapsed) => return Err(self.timeout()),
            };
            match code::classify(&error) {
                // Another process is recovering the log: for a moment neither it nor the index
                // beside it can be read.
                Failure::Busy | Failure::Io | Failure::CantOpen if attempt < TRIES => {
                    tracing::debug!(attempt, %error, "reading again");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Failure::Interrupted => return Err(self.timeout()),
                Failure::Busy => {
                    return Err(Error::Busy {
                        attempts: attempt,
                        source: code::cause(error),
                    });
                }
                failure => return Err(code::to_error_from(failure, code::cause(error))),
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Error {
        Error::ReadTimeout {
            // The connection's clock counts whole milliseconds.
            waited: self.started.elapsed().max(self.wait),
        }
    }
}
