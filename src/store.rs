//! The door: what a store is made of, how it opens and closes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::db::open;
use crate::db::presence::Presence;
use crate::db::queue::Operation;
use crate::db::readers::{Length, ReadGuard, Readers};
use crate::db::status::Status;
use crate::db::task::Task;
use crate::db::writer::{Target, Writer};
use crate::environment::{Environment, Warning};
use crate::error::{Error, Result};
use crate::options::{Access, StoreOptions, valid_deadline};

pub use crate::db::counts::ShutdownReport;

/// A store of sessions: one database file, one connection that writes, a few that read.
///
/// Cheap to clone; all clones share the connections. Several processes, and several stores opened
/// in one process, may share the file; sharing one store by cloning is faster.
///
/// Every call must be made inside a tokio runtime with its timer enabled. The runtime that opened
/// the store runs its writer: when it ends, calls fail with [`Error::RuntimeEnded`].
///
/// Nothing acknowledged is ever lost, also when the last clone is dropped without
/// [`close`](Self::close). Closing gives the rest: it waits for queued writes and leaves a single
/// file without a log beside it.
#[derive(Clone)]
pub struct SessionStore {
    shared: Arc<Shared>,
    /// Longest time of a call through this clone.
    deadline: Duration,
}

struct Shared {
    environment: Environment,
    options: StoreOptions,
    status: Arc<Status>,
    readers: Arc<Readers>,
    /// `None`: read-only.
    writer: Option<Writer>,
    process: u32,
    /// Removed after everything else.
    _folder: Option<TemporaryFolder>,
}

impl SessionStore {
    /// Opens the store at `path` with the default [options](StoreOptions); creates the file and its
    /// folders if they do not exist.
    ///
    /// A file of the Python Hermes agent, at any schema version from 1 to 6, is adopted: what is
    /// missing is added, every stored byte stays, and the Python program can go on using it. A file
    /// that is up to date is opened without the write lock. An index that an old file lacks is built
    /// after opening, while the first writes wait, about a second per million messages; where even the
    /// original's full-text index is gone, opening waits for it.
    ///
    /// # Errors
    ///
    /// - [`Error::NewerSchema`], [`Error::NewerStore`]: a newer program wrote the file.
    /// - [`Error::NotADatabase`], [`Error::NotAFile`], [`Error::Truncated`], [`Error::Utf16`],
    ///   [`Error::ForeignDatabase`], [`Error::Corrupt`]: the path leads to something else.
    /// - [`Error::OrphanedLog`]: the file is gone, but its log is there.
    /// - Read-only, [`Error::FileNotFound`], [`Error::NeedsMigration`],
    ///   [`Error::NeedsRecovery`], [`Error::IncompleteCopy`]: something must be done to the file
    ///   first.
    /// - [`Error::PermissionDenied`], [`Error::Io`], [`Error::DiskFull`]: the system refused.
    /// - [`Error::Busy`]: the file must be brought up to date and another process held the write
    ///   lock all the time.
    /// - [`Error::UnsafeSqlite`]: the linked SQLite corrupts files.
    /// - [`Error::NoRuntime`].
    ///
    /// In all of these cases the file is as it was.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the file either as it was or wholly up to date.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        StoreOptions::new().open(path).await
    }

    pub(crate) async fn open_with(path: &Path, options: StoreOptions) -> Result<Self> {
        Self::open_in(path.to_owned(), options, None).await
    }

    pub(crate) async fn open_temporary_with(options: StoreOptions) -> Result<Self> {
        if options.access == Access::ReadOnly {
            return Err(Error::invalid(
                "a temporary store",
                "can't be read-only: it starts empty",
            ));
        }
        runtime()?;
        let name = format!("hermes-state-{}", uuid::Uuid::new_v4());
        let folder = TemporaryFolder(std::env::temp_dir().join(name));
        let path = folder.0.join("state.db");
        Self::open_in(path, options, Some(folder)).await
    }

    /// Opens in a task of its own, so that timers and blocking work belong to the runtime whoever
    /// polls the future.
    async fn open_in(
        path: PathBuf,
        options: StoreOptions,
        folder: Option<TemporaryFolder>,
    ) -> Result<Self> {
        let runtime = runtime()?;
        let opening = Self::open_on(runtime.clone(), path, options, folder);
        let mut task = Task::new(runtime.spawn(opening));
        task.join().await?
    }

    async fn open_on(
        runtime: Handle,
        path: PathBuf,
        options: StoreOptions,
        folder: Option<TemporaryFolder>,
    ) -> Result<Self> {
        let opened = open::open(&path, &options).await?;
        let watched = opened.path.clone();
        let presence = tokio::task::spawn_blocking(move || Presence::of(&watched))
            .await
            .map_err(|_| Error::RuntimeEnded)?;
        let status = Arc::new(Status::new(presence, opened.message_index));
        let readers = Readers::new(
            opened.path.clone(),
            options.clone(),
            opened.immutable,
            Arc::clone(&status),
            runtime,
        );
        let writer = match options.access {
            Access::ReadOnly => None,
            Access::ReadWrite => {
                let target = Target {
                    path: opened.path,
                    options: options.clone(),
                    journal: opened.environment.journal_mode,
                    page_size: opened.environment.page_size,
                    status: Arc::clone(&status),
                    claims: Arc::default(),
                };
                Some(Writer::start(Arc::new(target), Arc::clone(&readers)).await?)
            }
        };
        Ok(Self {
            deadline: options.deadline,
            shared: Arc::new(Shared {
                environment: opened.environment,
                options,
                status,
                readers,
                writer,
                process: std::process::id(),
                _folder: folder,
            }),
        })
    }

    /// The same store with another longest time for calls through the value returned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use hermes_state::{NewMessage, NewSession, StoreOptions};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let id = store.create_session(NewSession::new("cli")).await?;
    /// let impatient = store.with_deadline(Duration::from_millis(500))?;
    /// impatient.append_message(&id, NewMessage::user("hello")).await?;
    /// # Ok::<(), hermes_state::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for zero or more than a day.
    pub fn with_deadline(&self, deadline: Duration) -> Result<Self> {
        Ok(Self {
            deadline: valid_deadline(deadline)?,
            shared: Arc::clone(&self.shared),
        })
    }

    /// What the store found where it was opened, and what deserves attention now.
    pub fn environment(&self) -> Environment {
        let mut environment = self.shared.environment.clone();
        let status = &self.shared.status;
        environment
            .warnings
            .retain(|warning| *warning != Warning::MessageIndexMissing);
        if !status.has_message_index() {
            environment.warnings.push(Warning::MessageIndexMissing);
        }
        match status.log_held() {
            0 => {}
            bytes => environment
                .warnings
                .push(Warning::LogHeldByOthers { bytes }),
        }
        environment
    }

    /// Refuses new calls, writes what is queued, copies the log into the database, and closes all
    /// connections. Closing a closed store does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::RuntimeEnded`] if the runtime that opened the store has ended before.
    ///
    /// # Cancel safety
    ///
    /// Closing goes on when the future is dropped.
    pub async fn close(&self) -> Result<()> {
        self.close_until(None).await.map(drop)
    }

    /// Like [`close`](Self::close), within `limit`: what has not begun by then is refused with
    /// [`Error::Closed`]. A transaction that has begun by then is waited for, two seconds at most;
    /// connections that are still reading close when their reads end.
    ///
    /// # Errors
    ///
    /// [`Error::RuntimeEnded`] if the runtime that opened the store has ended before.
    ///
    /// # Cancel safety
    ///
    /// Closing goes on when the future is dropped.
    pub async fn shutdown(&self, limit: Duration) -> Result<ShutdownReport> {
        // A limit beyond the clock's range is none.
        self.close_until(Instant::now().checked_add(limit)).await
    }

    async fn close_until(&self, until: Option<Instant>) -> Result<ShutdownReport> {
        let runtime = self.check()?;
        if let Some(writer) = &self.shared.writer {
            return writer.close(until).await;
        }
        let readers = Arc::clone(&self.shared.readers);
        readers.refuse();
        // Goes on when nobody waits for it.
        let closing = runtime.spawn(async move { readers.close(until).await });
        closing.await.map_err(|_| Error::RuntimeEnded)?;
        Ok(ShutdownReport::default())
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    /// Whether calls make sense here at all.
    fn check(&self) -> Result<Handle> {
        let runtime = runtime()?;
        if self.shared.process != std::process::id() {
            return Err(Error::Forked);
        }
        Ok(runtime)
    }

    /// Fails if the store was opened read-only.
    pub(crate) fn ensure_writable(&self) -> Result<()> {
        match self.shared.writer {
            Some(_) => Ok(()),
            None => Err(Error::ReadOnly),
        }
    }

    /// Has `operation` written, and waits for its commit.
    pub(crate) async fn write<O: Operation>(&self, operation: O) -> Result<O::Output> {
        self.check()?;
        let writer = self.shared.writer.as_ref().ok_or(Error::ReadOnly)?;
        self.shared.status.presence.ensure()?;
        writer.submit(operation, self.deadline).await
    }

    /// Begins a read that ends in time.
    pub(crate) fn read(&self, length: Length) -> Result<Read<'_>> {
        let runtime = self.check()?;
        if let Some(writer) = &self.shared.writer {
            writer.ensure_open()?;
        }
        Ok(Read {
            readers: &self.shared.readers,
            runtime,
            length,
            started: Instant::now(),
            wait: self.deadline,
        })
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore")
            .field("path", &self.shared.environment.path)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// One read.
pub(crate) struct Read<'a> {
    readers: &'a Arc<Readers>,
    runtime: Handle,
    length: Length,
    started: Instant,
    wait: Duration,
}

impl Read<'_> {
    /// The statements of this read.
    pub(crate) fn statements(&self) -> ReadGuard {
        ReadGuard {
            readers: Arc::clone(self.readers),
            runtime: self.runtime.clone(),
            length: self.length,
            started: self.started,
            wait: self.wait,
        }
    }

    /// Runs the read, and stops it when its time is over.
    pub(crate) async fn run<T>(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout_at(self.started + self.wait, read)
            .await
            .unwrap_or_else(|_| {
                Err(Error::ReadTimeout {
                    waited: self.started.elapsed(),
                })
            })
    }
}

/// Tokio's timers and tasks panic outside a runtime.
fn runtime() -> Result<Handle> {
    Handle::try_current().map_err(|_| Error::NoRuntime)
}

struct TemporaryFolder(PathBuf);

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "removing a temporary store");
        }
    }
}
