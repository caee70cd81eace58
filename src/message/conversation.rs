//! A transcript as chat objects, to be sent to a model again.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::content::{Content, first_tool_name};
use super::role::Role;
use crate::json::Json;

/// A transcript, with what a model needs of it. Two renderings turn it into JSON:
/// [`stored`](Self::stored) and [`chat`](Self::chat).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Conversation {
    /// The messages, in the order of the transcript.
    pub messages: Vec<ConversationMessage>,
}

/// A message of a [`Conversation`].
///
/// `Debug` shows no content.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ConversationMessage {
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
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// The model's reasoning, as text.
    pub reasoning: Option<String>,
    /// The model's reasoning, in the provider's form.
    pub reasoning_details: Option<Json>,
    /// Reasoning items of a Codex model.
    pub codex_reasoning_items: Option<Json>,
    /// What the caller stored with it. In neither rendering.
    pub extra: Option<Json>,
}

impl fmt::Debug for ConversationMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversationMessage")
            .field("role", &self.role)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// A message with everything that was stored for a replay. Made by [`Conversation::stored`].
///
/// `Debug` shows no content.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StoredMessage<'a> {
    /// Who speaks.
    pub role: &'a Role,
    /// What it says; `null` if there is nothing.
    pub content: Option<&'a Content>,
    /// The call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<&'a str>,
    /// The tool that ran, or the first one called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<&'a str>,
    /// The tools that the assistant calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<&'a Json>,
    /// Of the assistant: why the model stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<&'a str>,
    /// Of the assistant: its reasoning, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    /// Of the assistant: its reasoning, in the provider's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_details: Option<&'a Json>,
    /// Of the assistant: reasoning items of a Codex model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codex_reasoning_items: Option<&'a Json>,
}

impl fmt::Debug for StoredMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredMessage")
            .field("role", &self.role)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// A message with only what the chat-completions schema allows. Made by [`Conversation::chat`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ChatMessage<'a> {
    /// Who speaks.
    pub role: &'a Role,
    /// What it says. `None`, which becomes `null`, only beside tool calls: the schema allows it
    /// nowhere else.
    pub content: Option<Cow<'a, Content>>,
    /// A name that the caller gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// The tools that the assistant calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Cow<'a, Json>>,
    /// The call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<&'a str>,
}

/// A conversation as the chat-completions schema wants it. Made by [`Conversation::chat`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Chat<'a> {
    /// The messages, in the order of the transcript.
    pub messages: Vec<ChatMessage<'a>>,
    /// How many messages were left out, because the schema does not know their role.
    pub left_out: usize,
}

impl Conversation {
    /// Everything that was stored for a replay: for providers that take their own reasoning back,
    /// and for agents that keep messages in this shape.
    pub fn stored(&self) -> Vec<StoredMessage<'_>> {
        self.messages
            .iter()
            .map(ConversationMessage::stored)
            .collect()
    }

    /// Only what the chat-completions schema allows: role, content, name, `tool_calls` and
    /// `tool_call_id`. The system prompt is the session's
    /// ([`Session::system_prompt`](crate::Session::system_prompt)): put it in front.
    pub fn chat(&self) -> Chat<'_> {
        let messages: Vec<_> = self
            .messages
            .iter()
            .filter_map(ConversationMessage::chat)
            .collect();
        Chat {
            left_out: self.messages.len() - messages.len(),
            messages,
        }
    }
}

impl ConversationMessage {
    fn stored(&self) -> StoredMessage<'_> {
        let assistant = self.role == Role::Assistant;
        StoredMessage {
            role: &self.role,
            content: self.content.as_ref(),
            tool_call_id: present(self.tool_call_id.as_deref()),
            tool_name: present(self.tool_name.as_deref()),
            tool_calls: self.tool_calls.as_ref(),
            finish_reason: present(self.finish_reason.as_deref()).filter(|_| assistant),
            reasoning: present(self.reasoning.as_deref()).filter(|_| assistant),
            reasoning_details: self.reasoning_details.as_ref().filter(|_| assistant),
            codex_reasoning_items: self.codex_reasoning_items.as_ref().filter(|_| assistant),
        }
    }

    fn chat(&self) -> Option<ChatMessage<'_>> {
        if matches!(self.role, Role::Other(_)) {
            return None;
        }
        let tool_calls = self.tool_calls.as_ref().and_then(call_list);
        let content = match &self.content {
            Some(content) => Some(Cow::Borrowed(content)),
            None if tool_calls.is_some() => None,
            None => Some(Cow::Owned(Content::Text(String::new()))),
        };
        Some(ChatMessage {
            role: &self.role,
            content,
            name: self.given_name(),
            tool_calls,
            tool_call_id: present(self.tool_call_id.as_deref()),
        })
    }

    /// The tool name, unless the store took it from the first tool call.
    fn given_name(&self) -> Option<&str> {
        let name = present(self.tool_name.as_deref())?;
        let first = self.tool_calls.as_ref().and_then(first_tool_name);
        (first.as_deref() != Some(name)).then_some(name)
    }
}

fn present(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Tool calls as the schema wants them: a list that is not empty.
fn call_list(calls: &Json) -> Option<Cow<'_, Json>> {
    if calls.is_object() {
        // One call that was stored without a list around it.
        return Json::parse(format!("[{}]", calls.as_str()))
            .ok()
            .map(Cow::Owned);
    }
    (calls.is_array() && !calls.is_null_or_empty_array()).then_some(Cow::Borrowed(calls))
}
