//! Stored messages as typed values.

use std::fmt;

use sqlx::sqlite::SqliteRow;

use super::content::{Content, project};
use super::role::Role;
use crate::db::cell::{Cells, Source};
use crate::db::leftovers::first_id;
use crate::db::readers::ReadGuard;
use crate::error::Result;
use crate::id::{MessageId, SessionId};
use crate::json::Json;
use crate::time::Timestamp;

/// A stored message.
///
/// `Debug` shows no content.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Its id, which tells the order of the transcript.
    pub id: MessageId,
    /// Its session.
    pub session_id: SessionId,
    /// Who speaks.
    pub role: Role,
    /// What it says.
    pub content: Option<Content>,
    /// The call that it answers.
    pub tool_call_id: Option<String>,
    /// The tools that the assistant calls. An empty array stands for JSON that can't be read.
    pub tool_calls: Option<Json>,
    /// The tool that ran, or the first one called.
    pub tool_name: Option<String>,
    /// When it was said.
    pub timestamp: Timestamp,
    /// Its tokens.
    pub token_count: Option<i64>,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// The model's reasoning, as text.
    pub reasoning: Option<String>,
    /// The model's reasoning, in the provider's form.
    pub reasoning_details: Option<Json>,
    /// Reasoning items of a Codex model.
    pub codex_reasoning_items: Option<Json>,
    /// What the caller stored with it.
    pub extra: Option<Json>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("session_id", &self.session_id)
            .field("role", &self.role)
            .field("content", &self.content)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

/// Which messages of a session to read. Messages come in the order of the transcript, whichever
/// end is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct MessageRange {
    after: Option<i64>,
    before: Option<i64>,
    limit: i64,
    from: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

impl Default for MessageRange {
    fn default() -> Self {
        Self::all()
    }
}

impl MessageRange {
    /// The whole transcript.
    pub const fn all() -> Self {
        Self {
            after: None,
            before: None,
            limit: i64::MAX,
            from: End::First,
        }
    }

    /// The first `count` messages.
    pub fn first(count: usize) -> Self {
        Self {
            from: End::First,
            limit: limit(count),
            ..Self::all()
        }
    }

    /// The last `count` messages.
    pub fn last(count: usize) -> Self {
        Self {
            from: End::Last,
            limit: limit(count),
            ..Self::all()
        }
    }

    /// Of these, only messages after `id`.
    pub const fn after(mut self, id: MessageId) -> Self {
        self.after = Some(id.get());
        self
    }

    /// Of these, only messages before `id`.
    pub const fn before(mut self, id: MessageId) -> Self {
        self.before = Some(id.get());
        self
    }

    /// Of these, only messages up to `id`.
    pub(super) const fn until(mut self, id: MessageId) -> Self {
        self.before = id.get().checked_add(1);
        self
    }

    /// The smallest and the greatest id that belong to the range, if any can.
    fn bounds(self) -> Option<(i64, i64)> {
        let first = self.after.map_or(Some(i64::MIN), |id| id.checked_add(1))?;
        let last = self.before.map_or(Some(i64::MAX), |id| id.checked_sub(1))?;
        Some((first, last))
    }
}

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The statement of a page of messages. `INDEXED BY`: with misleading statistics SQLite would walk
/// the whole table in id order, or sort.
macro_rules! page {
    ($index:literal, $order:literal) => {
        concat!(
            "SELECT id, role, content, content_parts, tool_call_id, tool_calls, tool_name, \
             timestamp, token_count, finish_reason, reasoning, reasoning_details, \
             codex_reasoning_items, extra_json FROM messages ",
            $index,
            " WHERE session_id = ?1 AND id >= ",
            first_id!("?2"),
            " AND id <= ?3 ORDER BY id ",
            $order,
            " LIMIT ?4"
        )
    };
}

const FORWARDS: &str = page!("INDEXED BY idx_messages_session_id", "ASC");
const BACKWARDS: &str = page!("INDEXED BY idx_messages_session_id", "DESC");
const FORWARDS_SORTED: &str = page!("", "ASC");
const BACKWARDS_SORTED: &str = page!("", "DESC");

macro_rules! last_id {
    ($index:literal) => {
        concat!(
            "SELECT MAX(id) FROM messages ",
            $index,
            " WHERE session_id = ?1 AND id >= ",
            first_id!("-9223372036854775808")
        )
    };
}

const LAST_ID: &str = last_id!("INDEXED BY idx_messages_session_id");
const LAST_ID_SORTED: &str = last_id!("");

/// Messages of a session, in the order of the transcript.
pub(super) async fn page(
    reader: &mut ReadGuard,
    session: &SessionId,
    range: MessageRange,
) -> Result<Vec<Message>> {
    let Some((first, last)) = range.bounds() else {
        return Ok(Vec::new());
    };
    let mut messages = Vec::new();
    loop {
        let statement = match (range.from, reader.has_message_index()) {
            (End::First, true) => FORWARDS,
            (End::Last, true) => BACKWARDS,
            (End::First, false) => FORWARDS_SORTED,
            (End::Last, false) => BACKWARDS_SORTED,
        };
        let query = || {
            sqlx::query(statement)
                .bind(session.as_str())
                .bind(first)
                .bind(last)
                .bind(range.limit)
        };
        let read = reader.each(query, |row| messages.push(message(row, session)));
        match read.await {
            Err(error) if reader.lost_message_index(&error) => messages.clear(),
            read => break read?,
        }
    }
    if range.from == End::Last {
        messages.reverse();
    }
    Ok(messages)
}

/// The greatest id of the session's messages now.
pub(super) async fn last_id(
    reader: &mut ReadGuard,
    session: &SessionId,
) -> Result<Option<MessageId>> {
    let mut last = None;
    loop {
        let statement = if reader.has_message_index() {
            LAST_ID
        } else {
            LAST_ID_SORTED
        };
        let query = || sqlx::query(statement).bind(session.as_str());
        let read = reader.each(query, |row| {
            // NULL where there is no message; an id is never anything but an integer.
            last = sqlx::Row::try_get_unchecked(row, 0).unwrap_or_default();
        });
        match read.await {
            Err(error) if reader.lost_message_index(&error) => {}
            read => break read?,
        }
    }
    Ok(last.map(MessageId::new))
}

fn message(row: &SqliteRow, session: &SessionId) -> Message {
    let mut cells = Cells {
        source: Source::Row(row),
        session: session.as_str(),
        message: None,
        damaged: None,
    };
    let id = cells.integer(0).unwrap_or_default();
    cells.message = Some(id);
    Message {
        id: MessageId::new(id),
        session_id: session.clone(),
        role: Role::from(cells.text_or_empty(1, "role")),
        content: content(&cells, 2, 3),
        tool_call_id: cells.text(4, "tool_call_id"),
        tool_calls: cells.json_list(5, "tool_calls"),
        tool_name: cells.text(6, "tool_name"),
        timestamp: Timestamp::from_row(cells.real(7).unwrap_or_default()),
        token_count: cells.integer(8),
        finish_reason: cells.text(9, "finish_reason"),
        reasoning: cells.text(10, "reasoning"),
        reasoning_details: cells.json(11, "reasoning_details"),
        codex_reasoning_items: cells.json(12, "codex_reasoning_items"),
        extra: cells.json(13, "extra_json"),
    }
}

/// The parts of a message, or its text if it has none. The text alone counts where it is not that
/// of the parts: a program that does not know them changed it, perhaps to take something back.
pub(super) fn content(cells: &Cells<'_>, text: usize, parts: usize) -> Option<Content> {
    let text = cells.text(text, "content");
    match cells.json(parts, "content_parts") {
        Some(parts) if text.as_deref() == Some(project(&parts).as_str()) => {
            Some(Content::Parts(parts))
        }
        _ => text.map(Content::Text),
    }
}
