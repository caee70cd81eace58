//! What a deleted session leaves behind for a while, and its removal in pieces.
//!
//! A session that is long is deleted by deleting its row alone: it is gone for every program at
//! once. Its messages up to `deleted_sessions.last_id` count as deleted and are removed later.

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use super::queue::{Fault, Operation};

/// SQL for the first id from `$least` on that counts in the session `?1`.
macro_rules! first_id {
    ($least:literal) => {
        concat!(
            "COALESCE((SELECT max(last_id + 1, ",
            $least,
            ") FROM deleted_sessions WHERE session_id = ?1), ",
            $least,
            ")"
        )
    };
}
pub(crate) use first_id;

/// What one transaction may still remove, so that it takes at most about 50 ms.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    messages: i64,
    /// Of the texts, which the index of words has to read again: its work depends on their words, up
    /// to ten times.
    bytes: i64,
}

impl Budget {
    pub(crate) const fn new() -> Self {
        Self::part(1)
    }

    /// One `divisor`-th of the most, for where the disk or the words are slow.
    pub(crate) const fn part(divisor: i64) -> Self {
        Self {
            messages: 1000 / divisor,
            bytes: 256 * 1024 / divisor,
        }
    }

    pub(crate) const fn is_used_up(&self) -> bool {
        self.messages <= 0 || self.bytes <= 0
    }
}

/// Removes a piece of what is left of the deleted session with this id, or of any.
pub(crate) struct RemoveLeftovers {
    pub(crate) session: Option<String>,
    pub(crate) budget: Budget,
}

/// Whether there is more to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    More,
}

impl Operation for RemoveLeftovers {
    type Output = Left;

    fn bytes(&self) -> usize {
        self.session.as_ref().map_or(0, String::len)
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Left, Fault>> {
        Box::pin(async move {
            let mut budget = self.budget.clone();
            while !budget.is_used_up() {
                let found = sqlx::query!(
                    r#"SELECT session_id AS "id!", last_id AS "last!: i64" FROM deleted_sessions
                       WHERE ?1 IS NULL OR session_id = ?1 LIMIT 1"#,
                    self.session,
                )
                .fetch_optional(&mut *connection)
                .await?;
                let Some(found) = found else {
                    return Ok(Left::Nothing);
                };
                match remove(connection, &found.id, found.last, &mut budget).await? {
                    Left::Nothing => forget(connection, &found.id).await?,
                    Left::More => return Ok(Left::More),
                }
            }
            Ok(Left::More)
        })
    }
}

/// Removes messages up to `last`, as far as the budget goes; at least one, unless it is used up.
pub(crate) async fn remove(
    connection: &mut SqliteConnection,
    session: &str,
    last: i64,
    budget: &mut Budget,
) -> sqlx::Result<Left> {
    if !budget.is_used_up() {
        let piece = sqlx::query!(
            r#"SELECT MAX(id) AS "end: i64", COUNT(*) AS "messages!: i64", MAX(bytes) AS "bytes: i64"
               FROM (
                   SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS place,
                       SUM(bytes) OVER (ORDER BY id) AS bytes
                   FROM (
                       SELECT id, COALESCE(octet_length(content), 0)
                           + COALESCE(octet_length(tool_calls), 0)
                           + COALESCE(octet_length(reasoning), 0)
                           + COALESCE(octet_length(reasoning_details), 0)
                           + COALESCE(octet_length(content_parts), 0) AS bytes
                       FROM messages WHERE session_id = ?1 AND id <= ?2 ORDER BY id LIMIT ?3
                   )
               )
               WHERE place = 1 OR bytes <= ?4"#,
            session,
            last,
            budget.messages,
            budget.bytes,
        )
        .fetch_one(&mut *connection)
        .await?;
        let Some(end) = piece.end else {
            return Ok(Left::Nothing);
        };
        sqlx::query!(
            "DELETE FROM messages WHERE session_id = ?1 AND id <= ?2",
            session,
            end,
        )
        .execute(&mut *connection)
        .await?;
        budget.messages -= piece.messages;
        // NULL: a sum over messages without any text.
        budget.bytes -= piece.bytes.unwrap_or_default();
    }
    let more = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM messages WHERE session_id = ?1 AND id <= ?2) AS "more!: bool""#,
        session,
        last,
    )
    .fetch_one(connection)
    .await?;
    Ok(if more { Left::More } else { Left::Nothing })
}

/// Notes that the messages up to `last` are still there although the session is gone.
pub(crate) async fn remember(
    connection: &mut SqliteConnection,
    session: &str,
    last: i64,
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO deleted_sessions(session_id, last_id) VALUES (?1, ?2)
         ON CONFLICT(session_id) DO UPDATE SET last_id = max(last_id, excluded.last_id)",
        session,
        last,
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn forget(connection: &mut SqliteConnection, session: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM deleted_sessions WHERE session_id = ?1",
        session
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether there is anything to be removed.
pub(crate) async fn any(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"SELECT EXISTS (SELECT 1 FROM deleted_sessions) AS "any!: bool""#)
        .fetch_one(connection)
        .await
}
