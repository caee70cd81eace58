//! Which journal a file keeps. WAL is set once, on one connection, and never taken back.

use super::place::Place;
use super::{Failed, Opening, closed, failure};
use crate::db::code::{Failure, classify};
use crate::db::connect;
use crate::db::open::look::journal_mode;
use crate::environment::{FileSystem, JournalMode, Warning};
use crate::error::{Error, Result};
use crate::options::Journal;

/// Switching needs a moment in which nobody else reads or writes. A file can be used without it, so
/// that a few tries are enough.
const SWITCH_TRIES: usize = 6;

/// What to do about a file's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plan {
    Keep(Option<Warning>),
    SwitchToWal,
}

/// The journal that a file has in the end.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) mode: JournalMode,
    pub(super) warning: Option<Warning>,
}

/// Switches the file to WAL where that is wanted and safe.
pub(super) async fn settle(
    opening: &Opening<'_>,
    place: &Place,
    mode: JournalMode,
    new: bool,
) -> Result<Settled> {
    match plan(mode, place.file_system, opening.options.journal, new) {
        Plan::Keep(warning) => Ok(Settled { mode, warning }),
        Plan::SwitchToWal => {
            let mode = switch_to_wal(opening, place).await?;
            Ok(Settled {
                mode,
                warning: (mode != JournalMode::Wal).then_some(Warning::WalRefused),
            })
        }
    }
}

fn plan(mode: JournalMode, file_system: FileSystem, wanted: Journal, new: bool) -> Plan {
    match (mode, file_system, wanted) {
        (JournalMode::Wal, ..) => Plan::Keep(warning(mode, file_system)),
        (JournalMode::Rollback, _, Journal::Rollback) => Plan::Keep(None),
        (JournalMode::Rollback, FileSystem::Remote(_), Journal::Auto) => {
            Plan::Keep(new.then_some(Warning::RollbackJournalOnRemote))
        }
        (JournalMode::Rollback, FileSystem::Local | FileSystem::Unknown, Journal::Auto) => {
            Plan::SwitchToWal
        }
    }
}

/// What there is to say about a file that is used as it is.
pub(super) fn warning(mode: JournalMode, file_system: FileSystem) -> Option<Warning> {
    match (mode, file_system) {
        (JournalMode::Wal, FileSystem::Remote(_)) => Some(Warning::WalOnRemote),
        _ => None,
    }
}

async fn switch_to_wal(opening: &Opening<'_>, place: &Place) -> Result<JournalMode> {
    // SQLite does not wait for this lock by itself.
    let waits = opening
        .options
        .retry
        .waits(fastrand::f64)
        .take(SWITCH_TRIES - 1);
    let switched = opening
        .patiently(
            waits,
            |error| classify(error) == Failure::Busy,
            || async {
                let mut connection = connect::migrator(&place.path, opening.options, false).await?;
                let result = sqlx::query("PRAGMA journal_mode = WAL")
                    .execute(&mut connection)
                    .await;
                let result = match result {
                    // Asked again, because the pragma may have been refused silently.
                    Ok(_) => journal_mode(&mut connection).await,
                    Err(error) => Err(error),
                };
                closed(connection, result.map_err(Failed::from)).await
            },
        )
        .await;
    match switched {
        Err(Failed::Ours(Error::Busy { .. })) => Ok(JournalMode::Rollback),
        switched => switched.map_err(|failed| failure(&place.path, failed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_begun_only_on_local_disks_and_never_ended() {
        use FileSystem::{Local, Remote, Unknown};
        use Journal::{Auto, Rollback};
        use JournalMode::Wal;

        let delete = JournalMode::Rollback;
        let nfs = Remote("nfs");
        let on_remote = Plan::Keep(Some(Warning::WalOnRemote));
        for (mode, file_system, wanted, new, expected) in [
            (delete, Local, Auto, true, Plan::SwitchToWal),
            (delete, Local, Auto, false, Plan::SwitchToWal),
            (delete, Unknown, Auto, false, Plan::SwitchToWal),
            (delete, Local, Rollback, true, Plan::Keep(None)),
            (delete, nfs, Rollback, true, Plan::Keep(None)),
            (delete, nfs, Auto, false, Plan::Keep(None)),
            (
                delete,
                nfs,
                Auto,
                true,
                Plan::Keep(Some(Warning::RollbackJournalOnRemote)),
            ),
            (Wal, Local, Auto, false, Plan::Keep(None)),
            (Wal, Local, Rollback, false, Plan::Keep(None)),
            (Wal, nfs, Auto, false, on_remote.clone()),
            (Wal, nfs, Rollback, false, on_remote),
        ] {
            assert_eq!(
                plan(mode, file_system, wanted, new),
                expected,
                "{mode:?} {file_system:?} {wanted:?} {new}"
            );
        }
    }
}
