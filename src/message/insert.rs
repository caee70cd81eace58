//! Rows into `messages`, in few statements.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, SqliteConnection};

use super::new::Row;
use crate::db::code;
use crate::id::{MessageId, SessionId};

/// How many rows a statement may take. A fixed set of shapes, so that all of them stay prepared;
/// fewer rows take the next larger shape and leave the rest of it NULL.
const SIZES: [usize; 15] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Most rows of one statement.
pub(super) const MAX_ROWS: usize = 128;

/// Bytes of the rows of one statement: they are held twice while it runs.
pub(super) const MAX_BYTES: usize = 4 * 1024 * 1024;

const COLUMNS: usize = 14;

/// The statements for a number of rows.
pub(super) struct Shape {
    rows: usize,
    insert: String,
    /// The transaction that counts messages of one session and inserts them.
    pub(super) script_for_one: String,
    /// The transaction that counts messages of several sessions and inserts them.
    pub(super) script_for_many: String,
}

/// The same texts for the whole life of the process: prepared statements are found by them.
static SHAPES: LazyLock<Vec<Shape>> = LazyLock::new(|| SIZES.into_iter().map(Shape::new).collect());

impl Shape {
    fn new(rows: usize) -> Self {
        let mut insert = String::from(
            "INSERT INTO messages(session_id, role, content, content_parts, tool_call_id, \
             tool_calls, tool_name, timestamp, token_count, finish_reason, reasoning, \
             reasoning_details, codex_reasoning_items, extra_json) ",
        );
        let row = format!("({})", vec!["?"; COLUMNS].join(", "));
        let rows_of_values = vec![row; rows].join(", ");
        let columns: Vec<String> = (1..=COLUMNS).map(|n| format!("column{n}")).collect();
        // Writing to a string does not fail.
        let _infallible = write!(
            insert,
            "SELECT {} FROM (VALUES {rows_of_values}) \
             WHERE EXISTS (SELECT 1 FROM sessions WHERE id = column1)",
            columns.join(", "),
        );
        Self {
            rows,
            script_for_one: script(super::append::COUNT_ONE, &insert),
            script_for_many: script(super::append::COUNT_MANY, &insert),
            insert,
        }
    }

    /// The smallest shape that holds `rows`, `None` above [`MAX_ROWS`].
    pub(super) fn for_rows(rows: usize) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.rows >= rows)
    }

    /// Adds the cells of `rows`, and NULL for the rows that are left.
    pub(super) fn bind(
        &self,
        arguments: &mut SqliteArguments,
        rows: &[(&SessionId, &Row)],
    ) -> sqlx::Result<()> {
        arguments.reserve(self.rows * COLUMNS, 0);
        for (session, row) in rows {
            bind(arguments, session, row).map_err(sqlx::Error::Encode)?;
        }
        for _ in rows.len() * COLUMNS..self.rows * COLUMNS {
            arguments.add(None::<i64>).map_err(sqlx::Error::Encode)?;
        }
        Ok(())
    }
}

fn script(count: &str, insert: &str) -> String {
    format!("BEGIN IMMEDIATE; {count}; {insert}; {CHECK}; COMMIT")
}

/// Fails unless the statement before inserted so many rows: messages of unknown sessions are left
/// out, and a trigger of another program may leave any out without an error.
const CHECK: &str = "SELECT 1 WHERE json(iif(changes() = ?, 'null', '-')) IS NULL";

fn bind(
    arguments: &mut SqliteArguments,
    session: &SessionId,
    row: &Row,
) -> Result<(), sqlx::error::BoxDynError> {
    arguments.add(session.as_str())?;
    arguments.add(&row.role)?;
    arguments.add(&row.content)?;
    arguments.add(&row.content_parts)?;
    arguments.add(&row.tool_call_id)?;
    arguments.add(&row.tool_calls)?;
    arguments.add(&row.tool_name)?;
    arguments.add(row.timestamp)?;
    arguments.add(row.token_count)?;
    arguments.add(&row.finish_reason)?;
    arguments.add(&row.reasoning)?;
    arguments.add(&row.reasoning_details)?;
    arguments.add(&row.codex_reasoning_items)?;
    arguments.add(&row.extra_json)
}

/// Inserts rows in order; returns their ids.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    rows: &[(&SessionId, &Row)],
) -> sqlx::Result<Vec<MessageId>> {
    let mut ids = Vec::with_capacity(rows.len());
    let mut rest = rows;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(batch_len(rest));
        let Some(shape) = Shape::for_rows(now.len()) else {
            break;
        };
        let mut arguments = SqliteArguments::default();
        shape.bind(&mut arguments, now)?;
        let statement: &'static str = &shape.insert;
        let inserted = sqlx::query_with(statement, arguments)
            .execute(&mut *connection)
            .await?;
        if usize::try_from(inserted.rows_affected()) != Ok(now.len()) {
            return Err(code::rows_left_out());
        }
        ids.extend(ids_up_to(inserted.last_insert_rowid(), now.len()));
        rest = later;
    }
    Ok(ids)
}

/// The ids that one statement gave to `rows` rows: without gaps, for nobody else writes inside its
/// transaction.
pub(super) fn ids_up_to(last: i64, rows: usize) -> impl Iterator<Item = MessageId> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    (last - rows + 1..=last).map(MessageId::new)
}

/// How many rows from the first on go into one statement; at least one.
fn batch_len(rows: &[(&SessionId, &Row)]) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take(MAX_ROWS).take_while(|(_, row)| {
        bytes += row.bytes();
        bytes <= MAX_BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deferred one would meet the lock in the middle, where a caller no longer sees that its
    /// write has not begun.
    #[test]
    fn every_script_asks_for_the_write_lock_first() {
        for shape in SHAPES.iter() {
            for script in [&shape.script_for_one, &shape.script_for_many] {
                assert!(script.starts_with("BEGIN IMMEDIATE;"), "{}", shape.rows);
            }
        }
    }
}
