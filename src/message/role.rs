//! Who speaks.

use serde::{Serialize, Serializer};

/// Who speaks in a message. Any stored role survives a round trip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// The instructions to the model.
    System,
    /// The instructions to the model, as newer models call them.
    Developer,
    /// The person, or whoever asks.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
    /// Any other role, by its name.
    Other(String),
}

impl Role {
    /// The role's name in the file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for Role {
    fn from(name: String) -> Self {
        match name.as_str() {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Other(name),
        }
    }
}

impl From<&str> for Role {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
