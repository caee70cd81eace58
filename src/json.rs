//! JSON that comes back byte for byte.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::{BoxError, Error, Result};

/// A JSON text, kept verbatim: key order, number text and escapes survive storage.
///
/// ```
/// use hermes_state::Json;
///
/// let json = Json::parse(r#"{"b":1e3,"a":"\u00e9"}"#)?;
/// assert_eq!(json.as_str(), r#"{"b":1e3,"a":"\u00e9"}"#);
/// # Ok::<(), hermes_state::Error>(())
/// ```
///
/// `Debug` shows the length only: JSON columns hold what was said.
#[derive(Clone)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Checks that `text` is one JSON value and keeps it, without the white space around it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidJson`] if it is not.
    pub fn parse(text: impl Into<String>) -> Result<Self> {
        Ok(Self(Self::raw(text.into())?))
    }

    fn raw(text: String) -> Result<Box<RawValue>> {
        // `from_string` borrows the whole text as one value, so that surrounding space must go.
        let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
        let text = if trimmed.len() == text.len() {
            text
        } else {
            trimmed.to_owned()
        };
        RawValue::from_string(text).map_err(invalid)
    }

    /// Serialises a value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidJson`] if the value has no JSON form, such as a map with keys that are not
    /// strings.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        serde_json::value::to_raw_value(value)
            .map(Self)
            .map_err(invalid)
    }

    /// Reads the text into a type of the caller's.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidJson`] if the text does not fit the type.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.as_str()).map_err(invalid)
    }

    /// The empty array, which stands in for tool calls that can't be read.
    pub(crate) fn empty_array() -> Self {
        Self(RawValue::from_string("[]".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.as_str().len()
    }

    pub(crate) fn is_array(&self) -> bool {
        self.as_str().starts_with('[')
    }

    pub(crate) fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    /// `null` or an array without elements.
    pub(crate) fn is_null_or_empty_array(&self) -> bool {
        let text = self.as_str();
        text == "null" || self.array_len() == Some(0)
    }

    /// Number of elements, `None` if this is no array.
    pub(crate) fn array_len(&self) -> Option<usize> {
        if !self.is_array() {
            return None;
        }
        let elements: Vec<serde::de::IgnoredAny> = serde_json::from_str(self.as_str()).ok()?;
        Some(elements.len())
    }
}

/// JSON that is not what a type wants. Serde's own words for it quote the value.
#[derive(Debug, thiserror::Error)]
#[error("data that does not fit the type at line {line} column {column}")]
struct Misfit {
    line: usize,
    column: usize,
}

fn invalid(error: serde_json::Error) -> Error {
    let source: BoxError = if error.is_data() {
        let (line, column) = (error.line(), error.column());
        Misfit { line, column }.into()
    } else {
        error.into()
    };
    Error::InvalidJson { source }
}

impl PartialEq for Json {
    /// Equal texts; `1e3` and `1000` differ.
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.len())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        // A `Value` always has a JSON text.
        Self(RawValue::from_string(value.to_string()).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }
}

impl From<Box<RawValue>> for Json {
    fn from(raw: Box<RawValue>) -> Self {
        Self(raw)
    }
}
