//! What a message says: text, or parts and the text that stands for them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::json::Json;

/// Longest name of an unknown kind of part in its placeholder.
const MAX_KIND: usize = 32;

/// What a message says.
///
/// `Debug` shows lengths only.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// Plain text. May hold any character, NUL included.
    Text(String),
    /// A JSON array of parts (text, images, files), kept byte for byte. Other programs see its
    /// text: text parts joined by newlines, a placeholder such as `[image]` for the rest.
    Parts(Json),
}

impl Content {
    /// The text, as other programs see it.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => Cow::Owned(project(parts)),
        }
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Json> for Content {
    fn from(parts: Json) -> Self {
        Self::Parts(parts)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Parts(parts) => write!(f, "Parts({} bytes)", parts.len()),
        }
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Parts(parts) => parts.serialize(serializer),
        }
    }
}

/// The text that stands for parts. Part of the file's format: parts whose text is another than the
/// stored one count as outdated.
pub(super) fn project(parts: &Json) -> String {
    // An array, as the caller was made to give; a stored one that is none has no text.
    let parts: Vec<&RawValue> = serde_json::from_str(parts.as_str()).unwrap_or_default();
    let texts: Vec<String> = parts.into_iter().map(project_part).collect();
    texts.join("\n")
}

fn project_part(part: &RawValue) -> String {
    #[derive(Deserialize, Default)]
    struct Part<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }

    if let Some(text) = string(Some(part)) {
        return text;
    }
    // Parts of any shape are allowed: what is not as expected gets a placeholder.
    let part: Part<'_> = object(part).unwrap_or_default();
    let kind = string(part.kind).unwrap_or_default();
    let text = match kind.as_str() {
        // First of all, because their data may be anywhere.
        "image" | "image_url" | "input_image" => return "[image]".to_owned(),
        "audio" | "input_audio" | "audio_url" => return "[audio]".to_owned(),
        "video" | "video_url" | "input_video" => return "[video]".to_owned(),
        "file" | "input_file" | "document" => return "[file]".to_owned(),
        "text" | "input_text" | "output_text" | "tool_result" => {
            string(part.text).or_else(|| string(part.content))
        }
        _ => string(part.text),
    };
    text.unwrap_or_else(|| {
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let kind: String = kind.chars().filter(plain).take(MAX_KIND).collect();
        if kind.is_empty() {
            "[part]".to_owned()
        } else {
            format!("[{kind}]")
        }
    })
}

/// The name of the first tool that a list of tool calls calls.
pub(super) fn first_tool_name(tool_calls: &Json) -> Option<String> {
    #[derive(Deserialize)]
    struct Call<'a> {
        #[serde(borrow)]
        function: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }

    let first: &RawValue = if tool_calls.is_array() {
        let calls: Vec<&RawValue> = serde_json::from_str(tool_calls.as_str()).ok()?;
        calls.into_iter().next()?
    } else {
        serde_json::from_str(tool_calls.as_str()).ok()?
    };
    let call: Call<'_> = object(first)?;
    let nested = call
        .function
        .and_then(|function| string(object::<Call<'_>>(function)?.name));
    nested
        .or_else(|| string(call.name))
        .filter(|name| !name.is_empty())
}

/// Reads an object. A derived `Deserialize` alone would take an array for one.
fn object<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    let json = json.get();
    if !json.starts_with('{') {
        return None;
    }
    serde_json::from_str(json).ok()
}

/// The text of a JSON string; lone surrogates, which JSON allows and UTF-8 does not, become
/// replacement characters.
fn string(json: Option<&RawValue>) -> Option<String> {
    struct Lossy(String);

    impl<'de> Deserialize<'de> for Lossy {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Bytes;
            impl Visitor<'_> for Bytes {
                type Value = Lossy;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a string")
                }

                fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Lossy, E> {
                    Ok(Lossy(String::from_utf8_lossy(bytes).into_owned()))
                }

                fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Lossy, E> {
                    Ok(Lossy(text.to_owned()))
                }

                fn visit_none<E: serde::de::Error>(self) -> Result<Lossy, E> {
                    Err(E::custom("null"))
                }
            }
            deserializer
                .deserialize_bytes(Bytes)
                .map_err(D::Error::custom)
        }
    }

    let json = json?.get();
    if !json.starts_with('"') {
        return None;
    }
    serde_json::from_str::<Lossy>(json)
        .ok()
        .map(|Lossy(text)| text)
}
