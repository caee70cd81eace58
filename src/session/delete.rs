//! Deleting sessions.

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use crate::db::leftovers::{self, Budget, Left};
use crate::db::queue::{Fault, Operation};
use crate::id::SessionId;

/// Deletes a session, and as many of its messages as one transaction may.
pub(super) struct Delete {
    pub(super) id: SessionId,
}

impl Operation for Delete {
    /// Whether it existed.
    type Output = bool;

    const LEAVES_ORPHANS: bool = true;

    fn bytes(&self) -> usize {
        self.id.as_str().len()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<bool, Fault>> {
        Box::pin(async move { Ok(delete(connection, self.id.as_str(), &mut Budget::new()).await?) })
    }
}

/// Deletes a session within a transaction that may leave messages without their session behind.
/// Returns whether it existed.
pub(super) async fn delete(
    connection: &mut SqliteConnection,
    id: &str,
    budget: &mut Budget,
) -> sqlx::Result<bool> {
    let deleted = sqlx::query!("DELETE FROM sessions WHERE id = ?1", id)
        .execute(&mut *connection)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?1",
        id,
    )
    .execute(&mut *connection)
    .await?;
    let last = sqlx::query_scalar!(
        r#"SELECT MAX(id) AS "last: i64" FROM messages WHERE session_id = ?1"#,
        id,
    )
    .fetch_one(&mut *connection)
    .await?;
    if let Some(last) = last
        && leftovers::remove(connection, id, last, budget).await? == Left::More
    {
        leftovers::remember(connection, id, last).await?;
    }
    Ok(true)
}
