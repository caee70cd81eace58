//! Messages and turns on their way in.

use std::fmt;

use super::content::{Content, first_tool_name, project};
use super::role::Role;
use crate::error::{Error, Result};
use crate::id::MessageId;
use crate::json::Json;
use crate::time::Timestamp;
use crate::usage::Usage;

const MAX_KEY_BYTES: usize = 512;

/// A message to be stored.
///
/// ```
/// use hermes_state::{Json, NewMessage, Role};
///
/// let question = NewMessage::user("What is in src?");
/// let call = NewMessage::new(Role::Assistant)
///     .reasoning("I should look.")
///     .tool_calls(Json::parse(
///         r#"[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{}"}}]"#,
///     )?)
///     .finish_reason("tool_calls");
/// let result = NewMessage::tool("c1", "lib.rs");
/// # Ok::<(), hermes_state::Error>(())
/// ```
///
/// `Debug` shows no content.
#[derive(Clone)]
#[must_use]
pub struct NewMessage {
    pub(super) role: Role,
    pub(super) content: Option<Content>,
    pub(super) tool_call_id: Option<String>,
    pub(super) tool_calls: Option<Json>,
    pub(super) tool_name: Option<String>,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) token_count: Option<u64>,
    pub(super) finish_reason: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) reasoning_details: Option<Json>,
    pub(super) codex_reasoning_items: Option<Json>,
    pub(super) extra: Option<Json>,
    pub(super) key: Option<String>,
}

impl NewMessage {
    /// A message without content.
    pub const fn new(role: Role) -> Self {
        Self {
            role,
            content: None,
            tool_call_id: None,
            tool_calls: None,
            tool_name: None,
            timestamp: None,
            token_count: None,
            finish_reason: None,
            reasoning: None,
            reasoning_details: None,
            codex_reasoning_items: None,
            extra: None,
            key: None,
        }
    }

    /// A message of the system.
    pub fn system(content: impl Into<Content>) -> Self {
        Self::new(Role::System).content(content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::new(Role::User).content(content)
    }

    /// A message of the assistant.
    pub fn assistant(content: impl Into<Content>) -> Self {
        Self::new(Role::Assistant).content(content)
    }

    /// The result of the tool call `tool_call_id`.
    pub fn tool(tool_call_id: impl Into<String>, content: impl Into<Content>) -> Self {
        Self::new(Role::Tool)
            .content(content)
            .tool_call_id(tool_call_id)
    }

    /// What it says: a text, or [`Json`] with an array of parts.
    pub fn content(mut self, content: impl Into<Content>) -> Self {
        self.content = Some(content.into());
        self
    }

    /// The call that this message answers.
    pub fn tool_call_id(mut self, id: impl Into<String>) -> Self {
        self.tool_call_id = Some(id.into());
        self
    }

    /// The tools that the assistant calls: an array of calls. `null` and an empty array count as
    /// none.
    pub fn tool_calls(mut self, calls: Json) -> Self {
        self.tool_calls = Some(calls);
        self
    }

    /// The tool that ran. If it is not given, the first name in
    /// [`tool_calls`](Self::tool_calls) is taken.
    pub fn tool_name(mut self, name: impl Into<String>) -> Self {
        self.tool_name = Some(name.into());
        self
    }

    /// When it was said. Default: when the store is called. Does not change the order of a
    /// transcript, which is the order of appending.
    pub const fn timestamp(mut self, time: Timestamp) -> Self {
        self.timestamp = Some(time);
        self
    }

    /// Tokens of this message.
    pub const fn token_count(mut self, tokens: u64) -> Self {
        self.token_count = Some(tokens);
        self
    }

    /// Why the model stopped, such as `stop` or `tool_calls`.
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = Some(reason.into());
        self
    }

    /// The model's reasoning, as text.
    pub fn reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = Some(reasoning.into());
        self
    }

    /// The model's reasoning, in the provider's form, to be sent back verbatim.
    pub fn reasoning_details(mut self, details: Json) -> Self {
        self.reasoning_details = Some(details);
        self
    }

    /// Reasoning items of a Codex model, to be sent back verbatim.
    pub fn codex_reasoning_items(mut self, items: Json) -> Self {
        self.codex_reasoning_items = Some(items);
        self
    }

    /// Anything that the caller wants back verbatim, such as its own message type. Other programs
    /// do not see it.
    pub fn extra(mut self, extra: Json) -> Self {
        self.extra = Some(extra);
        self
    }

    /// Makes appending this message safe to repeat: see [`Turn::key`]. For
    /// [`append_message`](crate::SessionStore::append_message); in a turn the key belongs to the
    /// turn.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl fmt::Debug for NewMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("role", &self.role)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// The messages of one exchange and what it used, stored together or not at all.
///
/// ```
/// use hermes_state::{NewMessage, Turn};
///
/// let turn = Turn::new([NewMessage::user("2 + 2?"), NewMessage::assistant("4")])
///     .key("request-4711");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Turn {
    pub(super) messages: Vec<NewMessage>,
    pub(super) key: Option<String>,
    pub(super) expected: Option<Position>,
    pub(super) usage: Option<Usage>,
}

/// Where a transcript ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    Empty,
    After(MessageId),
}

impl Turn {
    /// Messages in the order in which they were said.
    pub fn new(messages: impl IntoIterator<Item = NewMessage>) -> Self {
        Self {
            messages: messages.into_iter().collect(),
            key: None,
            expected: None,
            usage: None,
        }
    }

    /// Makes the append safe to repeat: when the same session has seen the same key before,
    /// nothing is stored and the first ids are returned, with
    /// [`Appended::repeated`](crate::Appended::repeated) set, even if the messages were cleared or
    /// replaced since. A key is a non-empty string of at most 512 bytes and lives as long as its
    /// session.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Stores the turn only if the transcript still ends with this message; otherwise the append
    /// fails with [`Error::Conflict`].
    pub const fn expect_last(mut self, last: MessageId) -> Self {
        self.expected = Some(Position::After(last));
        self
    }

    /// Stores the turn only if the transcript is still empty; otherwise the append fails with
    /// [`Error::Conflict`].
    pub const fn expect_empty(mut self) -> Self {
        self.expected = Some(Position::Empty);
        self
    }

    /// What the exchange used, added to the session's totals in the same transaction, as by
    /// [`record_usage`](crate::SessionStore::record_usage). A repeated append adds nothing.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }
}

/// A message as its row will be: checked, and with everything computed that a transaction need not
/// wait for.
pub(super) struct Row {
    pub(super) role: String,
    pub(super) content: Option<String>,
    pub(super) content_parts: Option<String>,
    pub(super) tool_call_id: Option<String>,
    pub(super) tool_calls: Option<String>,
    pub(super) tool_name: Option<String>,
    pub(super) timestamp: f64,
    pub(super) token_count: Option<i64>,
    pub(super) finish_reason: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) reasoning_details: Option<String>,
    pub(super) codex_reasoning_items: Option<String>,
    pub(super) extra_json: Option<String>,
    /// How many tools it calls.
    pub(super) calls: i64,
}

impl Row {
    /// Checks a message against the store's `limit` of bytes.
    pub(super) fn new(message: NewMessage, limit: usize) -> Result<Self> {
        if message.key.is_some() {
            return Err(Error::invalid(
                "key of a message",
                "must be given to its turn",
            ));
        }
        let (content, content_parts) = match message.content {
            None => (None, None),
            Some(Content::Text(text)) => (Some(text), None),
            Some(Content::Parts(parts)) if parts.is_array() => {
                (Some(project(&parts)), Some(parts.as_str().to_owned()))
            }
            Some(Content::Parts(_)) => {
                return Err(Error::invalid(
                    "content",
                    "must be a text or a JSON array of parts",
                ));
            }
        };
        let tool_calls = message
            .tool_calls
            .filter(|calls| !calls.is_null_or_empty_array());
        let calls = tool_calls
            .as_ref()
            .map_or(0, |calls| calls.array_len().unwrap_or(1));
        let tool_name = message
            .tool_name
            .or_else(|| tool_calls.as_ref().and_then(first_tool_name));
        let token_count = message
            .token_count
            .map(|tokens| {
                i64::try_from(tokens)
                    .map_err(|_| Error::invalid("token count", "must be below 2^63"))
            })
            .transpose()?;
        let text = |json: Json| json.as_str().to_owned();
        let row = Self {
            role: message.role.as_str().to_owned(),
            content,
            content_parts,
            tool_call_id: message.tool_call_id,
            tool_calls: tool_calls.map(text),
            tool_name,
            timestamp: message
                .timestamp
                .unwrap_or_else(Timestamp::now)
                .as_unix_seconds(),
            token_count,
            finish_reason: message.finish_reason,
            reasoning: message.reasoning,
            reasoning_details: message.reasoning_details.map(text),
            codex_reasoning_items: message.codex_reasoning_items.map(text),
            extra_json: message.extra.map(text),
            calls: i64::try_from(calls).unwrap_or(i64::MAX),
        };
        let bytes = row.bytes();
        if bytes > limit {
            return Err(Error::MessageTooLarge { bytes, limit });
        }
        Ok(row)
    }

    /// Bytes of all texts.
    pub(super) fn bytes(&self) -> usize {
        let optional = [
            &self.content,
            &self.content_parts,
            &self.tool_call_id,
            &self.tool_calls,
            &self.tool_name,
            &self.finish_reason,
            &self.reasoning,
            &self.reasoning_details,
            &self.codex_reasoning_items,
            &self.extra_json,
        ];
        self.role.len()
            + optional
                .into_iter()
                .flatten()
                .map(String::len)
                .sum::<usize>()
    }
}

/// Checks a key that the caller chose.
pub(super) fn valid_key(key: String) -> Result<String> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(Error::invalid("key", "must have between 1 and 512 bytes"));
    }
    Ok(key)
}
