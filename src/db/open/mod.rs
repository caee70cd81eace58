//! From a path to a file that is current, and what was found there.

mod adopt;
mod file_system;
mod journal;
mod look;
mod place;
mod schema;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::runtime::Handle;
use tokio::time::Instant;

use self::adopt::{Adopted, adopt, known, migrator};
use self::look::{Look, State, look};
use self::place::{Log, Place};
use self::schema::SCHEMA_VERSION;
use super::code::{Failure, classify, extended, to_error};
use super::connect;
use crate::environment::{Environment, JournalMode, Warning};
use crate::error::{Error, Result};
use crate::options::{Access, StoreOptions};
use crate::retry::retry;

/// How often a failure is tried again that passes at once or not at all: a read while another
/// connection recovers or removes the log.
const PASSING_READ_FAILURES: u32 = 3;

/// A journal that needs a writer to roll it back.
const SQLITE_READONLY_ROLLBACK: i32 = 776;

/// A file that is current, or current enough for reading.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Absolute, without symbolic links, and UTF-8.
    pub(crate) path: PathBuf,
    /// Whether readers must take the file as one that nobody can change.
    pub(crate) immutable: bool,
    /// Whether `idx_messages_session_id` is there.
    pub(crate) message_index: bool,
    pub(crate) environment: Environment,
}

/// Why an attempt failed: SQLite, or our own judgement.
#[derive(Debug)]
enum Failed {
    Sqlx(sqlx::Error),
    Ours(Error),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// Finds or makes the file, and brings it up to date unless it is, or is opened read-only.
///
/// # Cancel safety
///
/// Dropping the future leaves the file as it was, or missing or empty as it was made, or wholly
/// up to date.
pub(crate) async fn open(path: &Path, options: &StoreOptions) -> Result<Opened> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    let opening = Opening {
        options,
        deadline: Instant::now() + options.deadline,
        migrator: migrator(),
    };
    let sqlite_version = safe_sqlite_version().await?;
    let place = {
        let (path, access, mode) = (path.to_owned(), options.access, options.file_mode);
        runtime
            .spawn_blocking(move || place::find(&path, access, mode))
            .await
            .map_err(|_| Error::RuntimeEnded)??
    };
    let found = match options.access {
        Access::ReadOnly => opening.read_only(&place).await?,
        Access::ReadWrite => opening.read_write(&place).await?,
    };
    Ok(found.into_opened(place, options, sqlite_version))
}

/// What was found in a file.
#[derive(Debug)]
struct Found {
    look: Look,
    journal: JournalMode,
    immutable: bool,
    warnings: Vec<Warning>,
}

impl Found {
    fn into_opened(
        mut self,
        place: Place,
        options: &StoreOptions,
        sqlite_version: String,
    ) -> Opened {
        let message_index = self.look.has_message_index();
        if !message_index {
            self.warnings.push(Warning::MessageIndexMissing);
        }
        Opened {
            environment: Environment {
                path: place.path.clone(),
                sqlite_version,
                file_system: place.file_system,
                journal_mode: self.journal,
                access: options.access,
                durability: options.durability,
                page_size: self.look.page_size,
                schema_version: SCHEMA_VERSION,
                migration: self.look.migration(),
                crate_version: env!("CARGO_PKG_VERSION"),
                warnings: self.warnings,
            },
            path: place.path,
            immutable: self.immutable,
            message_index,
        }
    }
}

/// One call of [`open`].
struct Opening<'a> {
    options: &'a StoreOptions,
    deadline: Instant,
    migrator: Migrator,
}

impl Opening<'_> {
    async fn read_write(&self, place: &Place) -> Result<Found> {
        let path = &place.path;
        let judge = |look: &Look| look.judge(path, Access::ReadWrite, &known(&self.migrator));
        let looked = match self.look_read_only(place, false).await {
            Ok(look) => Some((judge(&look)?, look)),
            // A crashed writer's journal, or a log whose shared memory a reader can't make: only a
            // writer can mend that.
            Err(Failed::Sqlx(error)) if needs_writer(&error) => None,
            Err(failed) => return Err(failure(path, failed)),
        };
        let (look, was_fresh, renamed) = match looked {
            Some((State::Current, look)) => (look, false, Vec::new()),
            looked => {
                let fresh = matches!(looked, Some((State::Fresh, _)));
                let adopted = self.adopt(place, fresh).await?;
                (adopted.look, adopted.was_fresh, adopted.renamed)
            }
        };
        let settled = journal::settle(self, place, look.journal, was_fresh).await?;
        let mut warnings: Vec<Warning> = renamed
            .into_iter()
            .map(|session_id| Warning::DuplicateTitle { session_id })
            .collect();
        warnings.extend(settled.warning);
        Ok(Found {
            look,
            journal: settled.mode,
            immutable: false,
            warnings,
        })
    }

    async fn read_only(&self, place: &Place) -> Result<Found> {
        let path = &place.path;
        if !place.folder_writable && place.log == Log::Partial {
            return Err(Error::IncompleteCopy { path: path.clone() });
        }
        let mut immutable = false;
        let mut looked = self.look_read_only(place, false).await;
        if let Err(Failed::Sqlx(error)) = &looked
            && has_hot_journal(error)
        {
            return Err(Error::NeedsRecovery { path: path.clone() });
        }
        // A file in WAL mode can't be read in the ordinary way where its log can't be made. Nobody
        // writes there; one in rollback mode can be read under its locks, which is safer.
        if !place.folder_writable
            && place.log == Log::None
            && matches!(&looked, Err(Failed::Sqlx(error)) if needs_writer(error))
        {
            immutable = true;
            looked = self.look_read_only(place, true).await;
        }
        let look = looked.map_err(|failed| failure(path, failed))?;
        let needs_migration = |found| Error::NeedsMigration {
            path: path.clone(),
            found,
        };
        match look.judge(path, Access::ReadOnly, &known(&self.migrator))? {
            State::Fresh => return Err(needs_migration(None)),
            State::Old(version) => return Err(needs_migration(Some(version))),
            State::Current => {}
        }
        // An immutable connection does not speak of the log that it does not use.
        let journal = if immutable {
            JournalMode::Wal
        } else {
            look.journal
        };
        Ok(Found {
            look,
            journal,
            immutable,
            warnings: journal::warning(journal, place.file_system)
                .into_iter()
                .collect(),
        })
    }

    /// Looks without the means to change anything.
    async fn look_read_only(&self, place: &Place, immutable: bool) -> Result<Look, Failed> {
        let left = Cell::new(PASSING_READ_FAILURES);
        let passes = move |error: &sqlx::Error| match classify(error) {
            Failure::Busy => true,
            Failure::Io => left.replace(left.get().saturating_sub(1)) > 0,
            // The log was just removed, or is not recovered yet.
            Failure::CantOpen | Failure::ReadOnly
                if place.folder_writable && !has_hot_journal(error) =>
            {
                left.replace(left.get().saturating_sub(1)) > 0
            }
            _ => false,
        };
        self.patiently(self.options.retry.waits(fastrand::f64), passes, || async {
            let mut connection = connect::reader(&place.path, self.options, immutable).await?;
            let result = async {
                let mut transaction = connection.begin().await?;
                let look = look(&mut transaction).await?;
                transaction.rollback().await?;
                Ok(look)
            }
            .await;
            closed(connection, result).await
        })
        .await
    }

    async fn adopt(&self, place: &Place, fresh: bool) -> Result<Adopted> {
        self.patiently(
            self.options.retry.waits(fastrand::f64),
            |error| classify(error) == Failure::Busy,
            || async {
                let mut connection = connect::migrator(&place.path, self.options, fresh).await?;
                let result = adopt(&mut connection, &place.path, &self.migrator).await;
                closed(connection, result).await
            },
        )
        .await
        .map_err(|failed| failure(&place.path, failed))
    }

    /// Tries again what `passes`.
    async fn patiently<T, F>(
        &self,
        waits: impl Iterator<Item = Duration>,
        passes: impl Fn(&sqlx::Error) -> bool,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let passes = move |failed: &Failed| match failed {
            Failed::Sqlx(error) => passes(error),
            Failed::Ours(_) => false,
        };
        let ((), result) = retry((), waits, self.deadline, passes, |()| {
            let attempt = attempt();
            async { ((), attempt.await) }
        })
        .await;
        result.map_err(|gave_up| match gave_up.last {
            Failed::Sqlx(error) if classify(&error) == Failure::Busy => Failed::Ours(Error::Busy {
                attempts: gave_up.attempts,
                source: error.into(),
            }),
            failed => failed,
        })
    }
}

/// Closes the connection before the result is told, so that its locks are gone by then.
async fn closed<T>(
    connection: sqlx::SqliteConnection,
    result: Result<T, Failed>,
) -> Result<T, Failed> {
    match (result, connection.close().await) {
        (Ok(value), Ok(())) => Ok(value),
        (Ok(_), Err(error)) => Err(error.into()),
        (Err(failed), _) => Err(failed),
    }
}

fn needs_writer(error: &sqlx::Error) -> bool {
    matches!(classify(error), Failure::ReadOnly | Failure::CantOpen)
}

fn has_hot_journal(error: &sqlx::Error) -> bool {
    extended(error) == Some(SQLITE_READONLY_ROLLBACK)
}

/// The error for a file that could not be opened.
fn failure(path: &Path, failed: Failed) -> Error {
    let error = match failed {
        Failed::Ours(error) => return error,
        Failed::Sqlx(error) => error,
    };
    let path = path.to_owned();
    match classify(&error) {
        Failure::NotADatabase => Error::NotADatabase {
            path,
            source: Some(error.into()),
        },
        Failure::ReadOnly => Error::PermissionDenied {
            path,
            source: error.into(),
        },
        Failure::CantOpen | Failure::Io => Error::Io {
            path,
            source: error.into(),
        },
        _ => to_error(error),
    }
}

/// The version of SQLite, asked before any file is touched.
async fn safe_sqlite_version() -> Result<String> {
    let mut connection = SqliteConnectOptions::new()
        .in_memory(true)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(to_error)?;
    let found: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut connection)
        .await
        .map_err(to_error)?;
    connection.close().await.map_err(to_error)?;
    if is_safe_version(&found) {
        Ok(found)
    } else {
        Err(Error::UnsafeSqlite { found })
    }
}

/// Whether this version of SQLite is free of the race in restarting the log that corrupts files:
/// <https://www.sqlite.org/wal.html#walresetbug>.
fn is_safe_version(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), patch) = (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some(patch) = patch.unwrap_or(Some(0)) else {
        return false;
    };
    match (major, minor) {
        (3, 44) => patch >= 6,
        (3, 50) => patch >= 7,
        (3, 51) => patch >= 3,
        other => other > (3, 51),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_safe_version, open};
    use crate::options::StoreOptions;

    #[test]
    fn opening_may_be_spawned() {
        fn assert_send(_: &impl Send) {}
        assert_send(&open(Path::new(""), &StoreOptions::new()));
    }

    #[test]
    fn only_versions_without_the_log_restart_race_are_safe() {
        for (version, safe) in [
            ("3.51.3", true),
            ("3.51.4", true),
            ("3.52.0", true),
            ("3.52", true),
            ("3.100.0", true),
            ("4.0.0", true),
            ("3.50.7", true),
            ("3.50.12", true),
            ("3.44.6", true),
            ("3.44.7", true),
            ("3.51.2", false),
            ("3.51.0", false),
            ("3.51", false),
            ("3.50.6", false),
            ("3.49.9", false),
            ("3.45.0", false),
            ("3.44.5", false),
            ("3.43.9", false),
            ("3.7.0", false),
            ("2.99.99", false),
            ("3.x.9", false),
            ("3.51.x", false),
            ("", false),
        ] {
            assert_eq!(is_safe_version(version), safe, "{version:?}");
        }
    }
}
