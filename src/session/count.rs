//! How many sessions and messages there are.

use crate::db::cell;
use crate::db::leftovers::first_id;
use crate::db::readers::ReadGuard;
use crate::error::Result;
use crate::id::SessionId;

/// What to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope<'a> {
    /// The whole store.
    All,
    /// Sessions from one source.
    Source(&'a str),
    /// One session.
    Session(&'a SessionId),
}

pub(super) async fn sessions(reader: &mut ReadGuard, scope: Scope<'_>) -> Result<u64> {
    let statement = match scope {
        Scope::All => "SELECT COUNT(*) FROM sessions",
        Scope::Source(_) => "SELECT COUNT(*) FROM sessions WHERE source = ?1",
        Scope::Session(_) => "SELECT COUNT(*) FROM sessions WHERE id = ?1",
    };
    count(reader, statement, scope).await
}

pub(super) async fn messages(reader: &mut ReadGuard, scope: Scope<'_>) -> Result<u64> {
    let statement = match scope {
        Scope::All => {
            "SELECT (SELECT COUNT(*) FROM messages) - (
                 SELECT COUNT(*) FROM deleted_sessions AS gone CROSS JOIN messages
                 ON messages.session_id = gone.session_id AND messages.id <= gone.last_id)"
        }
        Scope::Source(_) => {
            "SELECT COUNT(*) FROM sessions CROSS JOIN messages
             ON messages.session_id = sessions.id WHERE sessions.source = ?1"
        }
        Scope::Session(_) => concat!(
            "SELECT COUNT(*) FROM messages WHERE session_id = ?1 AND id >= ",
            first_id!("-9223372036854775808")
        ),
    };
    count(reader, statement, scope).await
}

async fn count(reader: &mut ReadGuard, statement: &'static str, scope: Scope<'_>) -> Result<u64> {
    let mut count = 0;
    let query = || match scope {
        Scope::All => sqlx::query(statement),
        Scope::Source(source) => sqlx::query(statement).bind(source),
        Scope::Session(id) => sqlx::query(statement).bind(id.as_str()),
    };
    reader.each(query, |row| count = cell::count(row)).await?;
    Ok(count)
}
