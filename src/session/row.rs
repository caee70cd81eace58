//! Stored sessions as typed values.

use std::fmt;

use sqlx::sqlite::SqliteRow;

use crate::db::cell::{Cells, Source};
use crate::db::readers::ReadGuard;
use crate::error::Result;
use crate::id::SessionId;
use crate::json::Json;
use crate::time::Timestamp;

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// The user left.
    UserExit,
    /// Nobody said anything for too long.
    Timeout,
    /// The user began anew.
    Reset,
    /// Something failed.
    Error,
    /// The conversation goes on, compressed, in a child session.
    Compression,
    /// Any other reason, by its name.
    Other(String),
}

impl EndReason {
    /// The reason's name in the file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::UserExit => "user_exit",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Error => "error",
            Self::Compression => "compression",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for EndReason {
    fn from(name: String) -> Self {
        match name.as_str() {
            "user_exit" => Self::UserExit,
            "timeout" => Self::Timeout,
            "reset" => Self::Reset,
            "error" => Self::Error,
            "compression" => Self::Compression,
            _ => Self::Other(name),
        }
    }
}

impl From<&str> for EndReason {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

/// A stored session.
///
/// Counters and tokens are 0 where the file holds NULL.
///
/// `Debug` shows neither the system prompt nor the title.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// The platform that it came from.
    pub source: String,
    /// Whose it is, by the platform's id.
    pub user_id: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// The model's parameters.
    pub model_config: Option<Json>,
    /// The system prompt, as assembled.
    pub system_prompt: Option<String>,
    /// The session that it continues or branches from.
    pub parent_session_id: Option<SessionId>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    pub end_reason: Option<EndReason>,
    /// Messages of its transcript.
    pub message_count: i64,
    /// Tools called in its transcript.
    pub tool_call_count: i64,
    /// Tokens sent.
    pub input_tokens: i64,
    /// Tokens received.
    pub output_tokens: i64,
    /// Tokens read from the provider's cache.
    pub cache_read_tokens: i64,
    /// Tokens written to the provider's cache.
    pub cache_write_tokens: i64,
    /// Tokens of reasoning.
    pub reasoning_tokens: i64,
    /// Who bills.
    pub billing_provider: Option<String>,
    /// Where requests go.
    pub billing_base_url: Option<String>,
    /// How it is billed.
    pub billing_mode: Option<String>,
    /// Estimated cost in US dollars.
    pub estimated_cost_usd: Option<f64>,
    /// Cost in US dollars as the provider says.
    pub actual_cost_usd: Option<f64>,
    /// Whether the cost is final.
    pub cost_status: Option<String>,
    /// Where the cost comes from.
    pub cost_source: Option<String>,
    /// Version of the price list.
    pub pricing_version: Option<String>,
    /// Its title.
    pub title: Option<String>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("parent_session_id", &self.parent_session_id)
            .field("started_at", &self.started_at)
            .field("ended_at", &self.ended_at)
            .field("message_count", &self.message_count)
            .finish_non_exhaustive()
    }
}

macro_rules! select {
    ($rows:literal) => {
        concat!(
            "SELECT source, user_id, model, model_config, system_prompt, parent_session_id, \
             started_at, ended_at, end_reason, message_count, tool_call_count, input_tokens, \
             output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, \
             billing_provider, billing_base_url, billing_mode, estimated_cost_usd, \
             actual_cost_usd, cost_status, cost_source, pricing_version, title, id \
             FROM sessions ",
            $rows
        )
    };
}

const FIND: &str = select!("WHERE id = ?1");
pub(crate) const FIND_BY_TITLE: &str =
    select!("INDEXED BY idx_sessions_title_unique WHERE title = ?1");

pub(super) async fn find(reader: &mut ReadGuard, id: &SessionId) -> Result<Option<Session>> {
    let mut found = None;
    let query = || sqlx::query(FIND).bind(id.as_str());
    reader.each(query, |row| found = Some(session(row))).await?;
    Ok(found)
}

pub(crate) async fn find_by_title(reader: &mut ReadGuard, title: &str) -> Result<Option<Session>> {
    let mut found = None;
    let query = || sqlx::query(FIND_BY_TITLE).bind(title);
    reader.each(query, |row| found = Some(session(row))).await?;
    Ok(found)
}

/// The session id in a column of a row.
pub(crate) fn id_at(row: &SqliteRow, index: usize) -> SessionId {
    let cells = Cells {
        source: Source::Row(row),
        session: "",
        message: None,
        damaged: None,
    };
    SessionId::from_row(cells.text_or_empty(index, "id"))
}

fn session(row: &SqliteRow) -> Session {
    let id = id_at(row, 25);
    let cells = Cells {
        source: Source::Row(row),
        session: id.as_str(),
        message: None,
        damaged: None,
    };
    let time = |index| cells.real(index).map(Timestamp::from_row);
    let count = |index| cells.integer(index).unwrap_or_default();
    Session {
        id: id.clone(),
        source: cells.text_or_empty(0, "source"),
        user_id: cells.text(1, "user_id"),
        model: cells.text(2, "model"),
        model_config: cells.json(3, "model_config"),
        system_prompt: cells.text(4, "system_prompt"),
        parent_session_id: cells.text(5, "parent_session_id").map(SessionId::from_row),
        started_at: time(6).unwrap_or(Timestamp::from_row(0.0)),
        ended_at: time(7),
        end_reason: cells.text(8, "end_reason").map(EndReason::from),
        message_count: count(9),
        tool_call_count: count(10),
        input_tokens: count(11),
        output_tokens: count(12),
        cache_read_tokens: count(13),
        cache_write_tokens: count(14),
        reasoning_tokens: count(15),
        billing_provider: cells.text(16, "billing_provider"),
        billing_base_url: cells.text(17, "billing_base_url"),
        billing_mode: cells.text(18, "billing_mode"),
        estimated_cost_usd: cells.real(19),
        actual_cost_usd: cells.real(20),
        cost_status: cells.text(21, "cost_status"),
        cost_source: cells.text(22, "cost_source"),
        pricing_version: cells.text(23, "pricing_version"),
        title: cells.text(24, "title"),
    }
}
