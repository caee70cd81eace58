//! Cells of rows that any program may have written: reading them never fails.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::json::Json;

/// Cells of one stored row, with the words to name it in a warning.
pub(crate) struct Cells<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) session: &'a str,
    /// `None` for a row of `sessions`.
    pub(crate) message: Option<i64>,
    /// Set in place of a warning, if the row will be read once more.
    pub(crate) damaged: Option<&'a AtomicBool>,
}

/// Where cells come from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A row of the driver, a cell a column.
    Row(&'a SqliteRow),
    /// One of many rows that came as one.
    Packed(&'a [Option<&'a [u8]>]),
}

/// The count that a statement of ours computed: an integer, never NULL or negative.
pub(crate) fn count(row: &SqliteRow) -> u64 {
    let count: i64 = row.try_get_unchecked(0).unwrap_or_default();
    u64::try_from(count).unwrap_or_default()
}

impl<'a> Cells<'a> {
    fn bytes(&self, index: usize) -> Option<&'a [u8]> {
        match self.source {
            // A `str` would fail the whole row on a bad byte.
            Source::Row(row) => row.try_get_unchecked(index).ok()?,
            Source::Packed(cells) => *cells.get(index)?,
        }
    }

    /// Text, lossily where it is not UTF-8. Numbers and blobs that another program put into a text
    /// column are read as text.
    pub(crate) fn text(&self, index: usize, column: &'static str) -> Option<String> {
        let text = String::from_utf8_lossy(self.bytes(index)?);
        if matches!(text, Cow::Owned(_)) {
            self.warn(column, "invalid UTF-8, read lossily");
        }
        Some(text.into_owned())
    }

    /// Text where NULL counts as empty: columns that the schema keeps NULL out of.
    pub(crate) fn text_or_empty(&self, index: usize, column: &'static str) -> String {
        self.text(index, column).unwrap_or_default()
    }

    /// JSON; what is none is `None`.
    pub(crate) fn json(&self, index: usize, column: &'static str) -> Option<Json> {
        self.parsed(index, column, "broken JSON, ignored")?
    }

    /// A JSON list; what is none is an empty one.
    pub(crate) fn json_list(&self, index: usize, column: &'static str) -> Option<Json> {
        let json = self.parsed(index, column, "broken JSON, read as an empty list")?;
        Some(json.unwrap_or_else(Json::empty_array))
    }

    /// `None` for an empty cell, `Some(None)` for one that holds no JSON.
    #[allow(clippy::option_option, reason = "the two are treated differently")]
    fn parsed(
        &self,
        index: usize,
        column: &'static str,
        what: &'static str,
    ) -> Option<Option<Json>> {
        let text = String::from_utf8_lossy(self.bytes(index)?);
        if text.is_empty() {
            return None;
        }
        let is_lossy = matches!(text, Cow::Owned(_));
        let json = Json::parse(text);
        if json.is_err() {
            self.warn(column, what);
        } else if is_lossy {
            self.warn(column, "invalid UTF-8, read lossily");
        }
        Some(json.ok())
    }

    pub(crate) fn integer(&self, index: usize) -> Option<i64> {
        match self.source {
            Source::Row(row) => row.try_get_unchecked(index).ok()?,
            Source::Packed(_) => std::str::from_utf8(self.bytes(index)?).ok()?.parse().ok(),
        }
    }

    pub(crate) fn real(&self, index: usize) -> Option<f64> {
        match self.source {
            Source::Row(row) => row.try_get_unchecked(index).ok()?,
            // The text form of a real number is not exact: such columns are not packed.
            Source::Packed(_) => None,
        }
    }

    fn warn(&self, column: &'static str, what: &'static str) {
        if let Some(damaged) = self.damaged {
            damaged.store(true, Ordering::Relaxed);
            return;
        }
        tracing::warn!(
            session = self.session,
            message_id = self.message,
            column,
            "{what}"
        );
    }
}
