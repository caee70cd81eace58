//! Rows into `messages`, in few statements.

use serde::Serialize;
use sqlx::SqliteConnection;

use super::new::Row;
use crate::id::{MessageId, SessionId};

/// Rows above this go by themselves: as JSON they would be held three times over.
const LARGE_ROW: usize = 256 * 1024;

/// What a row needs in JSON beside its texts.
const ROW_OVERHEAD: usize = 128;

/// Bytes of one JSON argument.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Inserts rows in order; returns their ids.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    rows: &[(&SessionId, &Row)],
) -> sqlx::Result<Vec<MessageId>> {
    let mut ids = Vec::with_capacity(rows.len());
    let mut rest = rows;
    while let Some(((session, first), _)) = rest.split_first() {
        let batch = batch_len(rest);
        let (now, later) = rest.split_at(batch.max(1));
        let last = if batch <= 1 {
            insert_one(connection, session, first).await?
        } else {
            insert_batch(connection, now).await?
        };
        // One statement of the only writer gives ids without gaps.
        let count = i64::try_from(now.len()).unwrap_or(i64::MAX);
        ids.extend((last - count + 1..=last).map(MessageId::new));
        rest = later;
    }
    Ok(ids)
}

/// How many rows from the first on go into one JSON argument.
fn batch_len(rows: &[(&SessionId, &Row)]) -> usize {
    let mut bytes = 0;
    rows.iter()
        .take_while(|(session, row)| {
            let size = row.bytes() + session.as_str().len() + ROW_OVERHEAD;
            bytes += size;
            size <= LARGE_ROW && bytes <= BATCH_BYTES && fraction(row.timestamp).is_some()
        })
        .count()
}

/// A time as numerator and denominator, which SQLite divides without loss; of a decimal number it
/// promises fifteen digits only. `None` for the first millisecond of 1970, whose denominators are
/// too large.
fn fraction(seconds: f64) -> Option<(u64, u64)> {
    const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    const BIAS: u64 = 1075;
    let bits = seconds.to_bits();
    if bits == 0 {
        return Some((0, 1));
    }
    let shift = u32::try_from(BIAS.checked_sub(bits >> MANTISSA_BITS)?).ok()?;
    let implicit = 1 << MANTISSA_BITS;
    let numerator = bits & (implicit - 1) | implicit;
    (shift <= 62).then(|| (numerator, 1 << shift))
}

async fn insert_one(
    connection: &mut SqliteConnection,
    session: &SessionId,
    row: &Row,
) -> sqlx::Result<i64> {
    let session = session.as_str();
    let inserted = sqlx::query!(
        "INSERT INTO messages(session_id, role, content, content_parts, tool_call_id, tool_calls,
             tool_name, timestamp, token_count, finish_reason, reasoning, reasoning_details,
             codex_reasoning_items, extra_json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        session,
        row.role,
        row.content,
        row.content_parts,
        row.tool_call_id,
        row.tool_calls,
        row.tool_name,
        row.timestamp,
        row.token_count,
        row.finish_reason,
        row.reasoning,
        row.reasoning_details,
        row.codex_reasoning_items,
        row.extra_json,
    )
    .execute(connection)
    .await?;
    Ok(inserted.last_insert_rowid())
}

/// A row as a JSON array, in the order of the statement's columns.
#[derive(Serialize)]
struct Cells<'a>(
    &'a str,
    &'a str,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
    u64,
    u64,
    Option<i64>,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
    &'a Option<String>,
);

/// One statement for many rows: fewer hops to the connection's thread, and the full-text index is
/// flushed once.
async fn insert_batch(
    connection: &mut SqliteConnection,
    rows: &[(&SessionId, &Row)],
) -> sqlx::Result<i64> {
    let cells: Vec<Cells<'_>> = rows
        .iter()
        .map(|(session, row)| {
            let (numerator, denominator) = fraction(row.timestamp).unwrap_or((0, 1));
            Cells(
                session.as_str(),
                &row.role,
                &row.content,
                &row.content_parts,
                &row.tool_call_id,
                &row.tool_calls,
                &row.tool_name,
                numerator,
                denominator,
                row.token_count,
                &row.finish_reason,
                &row.reasoning,
                &row.reasoning_details,
                &row.codex_reasoning_items,
                &row.extra_json,
            )
        })
        .collect();
    let cells = serde_json::to_string(&cells).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let inserted = sqlx::query!(
        "INSERT INTO messages(session_id, role, content, content_parts, tool_call_id, tool_calls,
             tool_name, timestamp, token_count, finish_reason, reasoning, reasoning_details,
             codex_reasoning_items, extra_json)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
             value ->> 6, CAST(value ->> 7 AS REAL) / (value ->> 8), value ->> 9, value ->> 10,
             value ->> 11, value ->> 12, value ->> 13, value ->> 14
         FROM json_each(?1)",
        cells,
    )
    .execute(connection)
    .await?;
    Ok(inserted.last_insert_rowid())
}
