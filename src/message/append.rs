//! The writes: append, clear, replace.

use std::collections::{HashMap, HashSet};

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult};
use sqlx::{Arguments as _, SqliteConnection};

use super::Appended;
use super::insert::{MAX_BYTES, Shape, ids_up_to, insert};
use super::new::{Position, Row};
use crate::db::queue::{Fault, Operation, Script};
use crate::error::{Error, Result};
use crate::id::{MessageId, SessionId};
use crate::session::ensure_exists;
use crate::usage::Usage;

/// Appends the messages of one turn.
pub(super) struct Append {
    pub(super) session: SessionId,
    pub(super) rows: Vec<Row>,
    pub(super) key: Option<String>,
    pub(super) expected: Option<Position>,
    pub(super) usage: Option<Usage>,
}

impl Append {
    /// Whether it can be written in one statement with others: nothing must be read first.
    fn is_plain(&self) -> bool {
        self.key.is_none() && self.expected.is_none() && self.usage.is_none()
    }

    fn calls(&self) -> i64 {
        self.rows
            .iter()
            .fold(0, |sum, row| sum.saturating_add(row.calls))
    }

    fn rows(&self) -> impl Iterator<Item = (&SessionId, &Row)> {
        self.rows.iter().map(|row| (&self.session, row))
    }

    fn count(&self) -> i64 {
        i64::try_from(self.rows.len()).unwrap_or(i64::MAX)
    }
}

/// Adds to the counters of one session: messages, tool calls, id.
pub(super) const COUNT_ONE: &str = "UPDATE sessions \
     SET message_count = COALESCE(message_count, 0) + ?, \
         tool_call_count = COALESCE(tool_call_count, 0) + ? \
     WHERE id = ?";

/// Adds to the counters of several sessions: a JSON array of arrays of id, messages, tool calls.
pub(super) const COUNT_MANY: &str = "UPDATE sessions \
     SET message_count = COALESCE(message_count, 0) + (sums.value ->> 1), \
         tool_call_count = COALESCE(tool_call_count, 0) + (sums.value ->> 2) \
     FROM json_each(?) AS sums \
     WHERE sessions.id = sums.value ->> 0";

impl Operation for Append {
    type Output = Appended;

    fn bytes(&self) -> usize {
        // A row costs something even when it says nothing.
        self.session.as_str().len()
            + self.rows.iter().map(|row| row.bytes() + 64).sum::<usize>()
            + self.usage.as_ref().map_or(0, Usage::bytes)
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Appended, Fault>> {
        Box::pin(async move {
            if let Some(key) = &self.key
                && let Some(before) = find_key(connection, &self.session, key).await?
            {
                return Ok(before);
            }
            if let Some(expected) = self.expected {
                ensure_exists(connection, &self.session).await?;
                let actual = last_id(connection, &self.session).await?;
                let holds = match expected {
                    Position::Empty => actual.is_none(),
                    Position::After(last) => actual == Some(last),
                };
                if !holds {
                    return Err(Error::Conflict { actual }.into());
                }
            }
            // A refusal must come before anything is changed.
            let totals = match &self.usage {
                Some(usage) => Some(usage.added_to(connection, &self.session).await?),
                None => None,
            };
            let mut results = append_all(connection, &[self]).await?;
            let appended = results.pop().unwrap_or(Err(Error::Closed))?;
            if let Some(totals) = totals {
                totals.store(connection, &self.session).await?;
            }
            if let Some(key) = &self.key {
                remember_key(connection, &self.session, key, &appended.ids).await?;
            }
            Ok(appended)
        })
    }

    fn apply_run<'a>(
        run: Vec<&'a Self>,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, sqlx::Result<Vec<Result<Appended>>>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(run.len());
            for stretch in run.chunk_by(|a, b| a.is_plain() && b.is_plain()) {
                match stretch {
                    [one] if !one.is_plain() => match one.apply(connection).await {
                        Ok(appended) => results.push(Ok(appended)),
                        Err(Fault::Refused(error)) => results.push(Err(error)),
                        Err(Fault::Database(error)) => return Err(error),
                    },
                    plain => results.extend(append_all(connection, plain).await?),
                }
            }
            Ok(results)
        })
    }

    fn script(run: &[&Self]) -> Option<Script> {
        // An unknown session shows by the rows that are not inserted; without rows there are none.
        if !run
            .iter()
            .all(|append| append.is_plain() && !append.rows.is_empty())
        {
            return None;
        }
        let rows: Vec<(&SessionId, &Row)> = run.iter().flat_map(|append| append.rows()).collect();
        if rows.iter().map(|(_, row)| row.bytes()).sum::<usize>() > MAX_BYTES {
            return None;
        }
        let shape = Shape::for_rows(rows.len())?;
        let mut arguments = SqliteArguments::default();
        let sums = sums(run);
        let sql = if let [first, ..] = run
            && sums.len() == 1
        {
            let (messages, calls) = sums.into_values().next()?;
            arguments.add(messages).ok()?;
            arguments.add(calls).ok()?;
            arguments.add(first.session.as_str()).ok()?;
            &shape.script_for_one
        } else {
            let sums: Vec<(&str, i64, i64)> = sums
                .into_iter()
                .map(|(id, (messages, calls))| (id, messages, calls))
                .collect();
            arguments.add(serde_json::to_string(&sums).ok()?).ok()?;
            &shape.script_for_many
        };
        shape.bind(&mut arguments, &rows).ok()?;
        arguments.add(i64::try_from(rows.len()).ok()?).ok()?;
        Some(Script { sql, arguments })
    }

    fn outcomes(run: &[&Self], done: &[SqliteQueryResult]) -> Vec<Appended> {
        // BEGIN, counters, rows, check, COMMIT.
        let last = done.get(2).map_or(0, SqliteQueryResult::last_insert_rowid);
        let rows = run.iter().map(|append| append.rows.len()).sum();
        let mut ids = ids_up_to(last, rows);
        let appended = run.iter().map(|append| Appended {
            ids: ids.by_ref().take(append.rows.len()).collect(),
            repeated: false,
        });
        appended.collect()
    }
}

/// Counts and inserts the rows of several appends. Sessions that do not exist are refused.
async fn append_all(
    connection: &mut SqliteConnection,
    appends: &[&Append],
) -> sqlx::Result<Vec<Result<Appended>>> {
    let mut known = HashSet::new();
    for (session, (messages, calls)) in sums(appends) {
        let counted = sqlx::query(COUNT_ONE)
            .bind(messages)
            .bind(calls)
            .bind(session)
            .execute(&mut *connection)
            .await?;
        if counted.rows_affected() > 0 {
            known.insert(session);
        }
    }
    let is_known = |append: &Append| known.contains(append.session.as_str());
    let rows: Vec<(&SessionId, &Row)> = appends
        .iter()
        .filter(|append| is_known(append))
        .flat_map(|append| append.rows())
        .collect();
    let mut ids = insert(connection, &rows).await?.into_iter();
    let results = appends.iter().map(|append| {
        if is_known(append) {
            Ok(Appended {
                ids: ids.by_ref().take(append.rows.len()).collect(),
                repeated: false,
            })
        } else {
            Err(Error::SessionNotFound {
                id: append.session.clone(),
            })
        }
    });
    Ok(results.collect())
}

/// Messages and tool calls to be added to each session's counters.
fn sums<'a>(appends: &[&'a Append]) -> HashMap<&'a str, (i64, i64)> {
    let mut sums: HashMap<&str, (i64, i64)> = HashMap::new();
    for append in appends {
        let (messages, calls) = sums.entry(append.session.as_str()).or_default();
        *messages = messages.saturating_add(append.count());
        *calls = calls.saturating_add(append.calls());
    }
    sums
}

async fn last_id(
    connection: &mut SqliteConnection,
    session: &SessionId,
) -> sqlx::Result<Option<MessageId>> {
    let id = session.as_str();
    let last = sqlx::query_scalar!(
        r#"SELECT MAX(id) AS "id: i64" FROM messages WHERE session_id = ?1"#,
        id
    )
    .fetch_one(connection)
    .await?;
    Ok(last.map(MessageId::new))
}

async fn find_key(
    connection: &mut SqliteConnection,
    session: &SessionId,
    key: &str,
) -> sqlx::Result<Option<Appended>> {
    let id = session.as_str();
    let found = sqlx::query!(
        r#"SELECT first_id AS "first_id!: i64", count AS "count!: i64"
           FROM append_keys WHERE session_id = ?1 AND key = ?2"#,
        id,
        key,
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.map(|found| Appended {
        ids: (0..found.count)
            .map(|n| MessageId::new(found.first_id + n))
            .collect(),
        repeated: true,
    }))
}

/// The ids of one append follow one another: nobody else writes inside its transaction.
async fn remember_key(
    connection: &mut SqliteConnection,
    session: &SessionId,
    key: &str,
    ids: &[MessageId],
) -> sqlx::Result<()> {
    let id = session.as_str();
    let first = ids.first().map_or(0, |id| id.get());
    let count = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    sqlx::query!(
        "INSERT INTO append_keys(session_id, key, first_id, count) VALUES (?1, ?2, ?3, ?4)",
        id,
        key,
        first,
        count,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes a transcript.
pub(super) struct Clear {
    pub(super) session: SessionId,
}

impl Operation for Clear {
    type Output = u64;

    fn bytes(&self) -> usize {
        self.session.as_str().len()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<u64, Fault>> {
        Box::pin(async move {
            set_counters(connection, &self.session, 0, 0).await?;
            Ok(delete_messages(connection, &self.session).await?)
        })
    }
}

/// Puts new messages in the place of a transcript.
pub(super) struct Replace {
    pub(super) session: SessionId,
    pub(super) rows: Vec<Row>,
}

impl Operation for Replace {
    type Output = Vec<MessageId>;

    fn bytes(&self) -> usize {
        self.session.as_str().len() + self.rows.iter().map(|row| row.bytes() + 64).sum::<usize>()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Vec<MessageId>, Fault>> {
        Box::pin(async move {
            let messages = i64::try_from(self.rows.len()).unwrap_or(i64::MAX);
            let calls = self
                .rows
                .iter()
                .fold(0_i64, |sum, row| sum.saturating_add(row.calls));
            set_counters(connection, &self.session, messages, calls).await?;
            delete_messages(connection, &self.session).await?;
            let rows: Vec<(&SessionId, &Row)> =
                self.rows.iter().map(|row| (&self.session, row)).collect();
            Ok(insert(connection, &rows).await?)
        })
    }
}

/// Sets both counters; fails unless the session exists.
async fn set_counters(
    connection: &mut SqliteConnection,
    session: &SessionId,
    messages: i64,
    calls: i64,
) -> Result<(), Fault> {
    let id = session.as_str();
    let updated = sqlx::query!(
        "UPDATE sessions SET message_count = ?2, tool_call_count = ?3 WHERE id = ?1",
        id,
        messages,
        calls,
    )
    .execute(connection)
    .await?;
    if updated.rows_affected() == 0 {
        return Err(Error::SessionNotFound {
            id: session.clone(),
        }
        .into());
    }
    Ok(())
}

async fn delete_messages(
    connection: &mut SqliteConnection,
    session: &SessionId,
) -> sqlx::Result<u64> {
    let id = session.as_str();
    let deleted = sqlx::query!("DELETE FROM messages WHERE session_id = ?1", id)
        .execute(connection)
        .await?;
    Ok(deleted.rows_affected())
}
