//! A conversation out of the file.
//!
//! The driver's cost is a copy a cell and a wake-up a row, more than SQLite's own work. So a
//! conversation comes as few rows, each with many messages: every cell as its length in bytes, a
//! colon and its bytes; NULL without a length.

use std::sync::atomic::{AtomicBool, Ordering};

use super::content::Content;
use super::conversation::{Conversation, ConversationMessage};
use super::read::content;
use super::role::Role;
use crate::db::cell::{Cells, Source};
use crate::db::code;
use crate::db::leftovers::first_id;
use crate::db::readers::ReadGuard;
use crate::error::Result;
use crate::id::SessionId;
use crate::json::Json;

/// Most messages of one packed row, and about how many bytes.
const MAX_PACK: i64 = 128;
const PACK_BYTES: usize = 512 * 1024;

/// Up to so many messages, packing costs more than it saves.
const SHORT: usize = 64;

const ALL: usize = usize::MAX;

/// Cells of a message, in the order of the statements below.
const CELLS: usize = 12;

macro_rules! packed {
    ($index:literal, $($column:literal),+) => {
        concat!(
            "WITH RECURSIVE chunk(low, high) AS (
                 SELECT ", first_id!("?2"), ", (SELECT MAX(id) FROM (
                     SELECT id FROM messages ", $index, "
                     WHERE session_id = ?1 AND id >= ", first_id!("?2"), " ORDER BY id LIMIT ?3))
                 UNION ALL
                 SELECT high + 1, (SELECT MAX(id) FROM (
                     SELECT id FROM messages ", $index, "
                     WHERE session_id = ?1 AND id > high ORDER BY id LIMIT ?3))
                 FROM chunk WHERE high IS NOT NULL
             )
             SELECT (SELECT group_concat(concat(octet_length(id), ':', id",
            $(", octet_length(", $column, "), ':', ", $column,)+
            "), '') FROM (
                 SELECT id", $(", ", $column,)+ " FROM messages ", $index, "
                 WHERE session_id = ?1 AND id BETWEEN low AND high ORDER BY id))
             FROM chunk WHERE high IS NOT NULL"
        )
    };
}

macro_rules! plain {
    ($index:literal, $($column:literal),+) => {
        concat!(
            "SELECT id", $(", ", $column,)+ " FROM messages ", $index,
            " WHERE session_id = ?1 AND id >= ", first_id!("-9223372036854775808"),
            " ORDER BY id LIMIT ?2"
        )
    };
}

macro_rules! statement {
    ($shape:ident, $index:literal) => {
        $shape!(
            $index,
            "role",
            "content",
            "content_parts",
            "tool_call_id",
            "tool_calls",
            "tool_name",
            "finish_reason",
            "reasoning",
            "reasoning_details",
            "codex_reasoning_items",
            "extra_json"
        )
    };
}

const PACKED: &str = statement!(packed, "INDEXED BY idx_messages_session_id");
const PLAIN: &str = statement!(plain, "INDEXED BY idx_messages_session_id");
const PLAIN_SORTED: &str = statement!(plain, "");

/// The whole conversation of a session.
pub(super) async fn conversation(
    reader: &mut ReadGuard,
    session: &SessionId,
) -> Result<Conversation> {
    match with_index(reader, session).await {
        Err(error) if reader.lost_message_index(&error) => with_index(reader, session).await,
        read => read,
    }
}

/// Uses the index of messages by session if it is there.
async fn with_index(reader: &mut ReadGuard, session: &SessionId) -> Result<Conversation> {
    if !reader.has_message_index() {
        let messages = plain(reader, PLAIN_SORTED, session, ALL, None).await?;
        return Ok(Conversation { messages });
    }
    // Warnings wait until it is clear that these messages are the ones to be returned.
    let damaged = AtomicBool::new(false);
    let mut messages = plain(reader, PLAIN, session, SHORT + 1, Some(&damaged)).await?;
    if messages.len() <= SHORT {
        if damaged.load(Ordering::Relaxed) {
            messages = plain(reader, PLAIN, session, ALL, None).await?;
        }
        return Ok(Conversation { messages });
    }
    // Each statement sees one state of the file; what was read before is no part of it.
    let messages = match packed(reader, session, pack_size(&messages)).await? {
        Some(messages) => messages,
        None => plain(reader, PLAIN, session, ALL, None).await?,
    };
    Ok(Conversation { messages })
}

async fn plain(
    reader: &mut ReadGuard,
    statement: &'static str,
    session: &SessionId,
    limit: usize,
    damaged: Option<&AtomicBool>,
) -> Result<Vec<ConversationMessage>> {
    let mut messages = Vec::new();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = || sqlx::query(statement).bind(session.as_str()).bind(limit);
    reader
        .each(query, |row| {
            messages.push(message(Source::Row(row), session, damaged));
        })
        .await?;
    Ok(messages)
}

/// How many messages go into a packed row: it is taken apart in one go.
fn pack_size(sample: &[ConversationMessage]) -> i64 {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let json = |json: &Option<Json>| json.as_ref().map_or(0, Json::len);
    let bytes: usize = sample
        .iter()
        .map(|message| {
            let content = match &message.content {
                Some(Content::Text(text)) => text.len(),
                Some(Content::Parts(parts)) => parts.len(),
                None => 0,
            };
            content
                + text(&message.reasoning)
                + json(&message.tool_calls)
                + json(&message.reasoning_details)
                + json(&message.codex_reasoning_items)
                + json(&message.extra)
        })
        .sum();
    let average = (bytes / sample.len().max(1)).max(1);
    i64::try_from(PACK_BYTES / average)
        .unwrap_or(MAX_PACK)
        .clamp(1, MAX_PACK)
}

/// `None` if the messages do not go into packed rows: texts that are too large together, or an order
/// that SQLite did not keep.
async fn packed(
    reader: &mut ReadGuard,
    session: &SessionId,
    pack: i64,
) -> Result<Option<Vec<ConversationMessage>>> {
    let mut messages = Some(Vec::new());
    let query = || {
        sqlx::query(PACKED)
            .bind(session.as_str())
            .bind(i64::MIN)
            .bind(pack)
    };
    let read = reader
        .each(query, |row| {
            // What is no pack ends the packed way; the plain one then tells why.
            let pack: Option<&[u8]> = sqlx::Row::try_get_unchecked(row, 0).ok();
            messages = messages
                .take()
                .and_then(|messages| unpack(pack?, messages, session));
        })
        .await;
    match read {
        Err(error) if code::is_too_big(&error) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok(messages),
    }
}

/// Adds the messages of a packed row.
fn unpack(
    mut pack: &[u8],
    mut messages: Vec<ConversationMessage>,
    session: &SessionId,
) -> Option<Vec<ConversationMessage>> {
    // SQLite keeps the order of the rows that it joins, but does not promise it.
    let mut last = None;
    while !pack.is_empty() {
        let mut cells = [None; CELLS];
        for cell in &mut cells {
            (*cell, pack) = unpack_cell(pack)?;
        }
        let cells = Cells {
            source: Source::Packed(&cells),
            session: session.as_str(),
            message: None,
            damaged: None,
        };
        let id = cells.integer(0);
        if id.is_none() || id <= last {
            return None;
        }
        last = id;
        messages.push(message(cells.source, session, None));
    }
    Some(messages)
}

/// A cell, and what follows it.
fn unpack_cell(pack: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let colon = pack.iter().position(|byte| *byte == b':')?;
    let (digits, rest) = (pack.get(..colon)?, pack.get(colon + 1..)?);
    if digits.is_empty() {
        return Some((None, rest));
    }
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((Some(rest.get(..length)?), rest.get(length..)?))
}

fn message(
    source: Source<'_>,
    session: &SessionId,
    damaged: Option<&AtomicBool>,
) -> ConversationMessage {
    let mut cells = Cells {
        source,
        session: session.as_str(),
        message: None,
        damaged,
    };
    cells.message = cells.integer(0);
    ConversationMessage {
        role: Role::from(cells.text_or_empty(1, "role")),
        content: content(&cells, 2, 3),
        tool_call_id: cells.text(4, "tool_call_id"),
        tool_calls: cells.json_list(5, "tool_calls"),
        tool_name: cells.text(6, "tool_name"),
        finish_reason: cells.text(7, "finish_reason"),
        reasoning: cells.text(8, "reasoning"),
        reasoning_details: cells.json(9, "reasoning_details"),
        codex_reasoning_items: cells.json(10, "codex_reasoning_items"),
        extra: cells.json(11, "extra_json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_do_not_fit_their_lengths_are_refused() {
        assert_eq!(
            unpack_cell(b"2:ab1:c"),
            Some((Some(&b"ab"[..]), &b"1:c"[..]))
        );
        assert_eq!(unpack_cell(b":1:c"), Some((None, &b"1:c"[..])));
        assert_eq!(unpack_cell(b"0:"), Some((Some(&b""[..]), &b""[..])));
        for broken in [&b"3:ab"[..], b"x:ab", b"-1:ab", b"2", b""] {
            assert_eq!(unpack_cell(broken), None);
        }
    }
}
