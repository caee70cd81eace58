//! Identifiers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Longest session id, in bytes.
const MAX_SESSION_ID_BYTES: usize = 512;

/// Identifies a session: a non-empty string of at most 512 bytes without NUL.
///
/// Ids are exact: case and every byte count.
///
/// ```
/// use hermes_state::SessionId;
///
/// let chosen: SessionId = "telegram:4711".parse()?;
/// let generated = SessionId::generate(); // a version 4 UUID
/// assert_ne!(chosen, generated);
/// # Ok::<(), hermes_state::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// Checks and wraps an id that the caller chose.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for an empty string, one with NUL, or one over 512 bytes.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if id.is_empty() {
            return Err(Error::invalid("session id", "must not be empty"));
        }
        if id.contains('\0') {
            return Err(Error::invalid("session id", "must not contain NUL"));
        }
        if id.len() > MAX_SESSION_ID_BYTES {
            return Err(Error::invalid(
                "session id",
                format!(
                    "has {} bytes; at most {MAX_SESSION_ID_BYTES} are allowed",
                    id.len()
                ),
            ));
        }
        Ok(Self(id))
    }

    /// Makes a new random id, a version 4 UUID.
    pub fn generate() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Wraps the id of a stored row as it is: other programs may have chosen it.
    pub(crate) fn from_row(id: String) -> Self {
        Self(id)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({:?})", self.0)
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(id: String) -> Result<Self> {
        Self::new(id)
    }
}

impl TryFrom<&str> for SessionId {
    type Error = Error;

    fn try_from(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl AsRef<str> for SessionId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Identifies a message. The store gives ids out in growing order and never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(i64);

impl MessageId {
    /// Wraps an id that an earlier call returned.
    pub const fn new(id: i64) -> Self {
        Self(id)
    }

    /// The id as a number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
