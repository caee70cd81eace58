//! Ranges of an index that hold texts with a common beginning.

use crate::title::{lineage_prefix, plain_title, split};

/// Texts from `first` on, up to but without `end`.
///
/// In SQL: `text >= first AND text < coalesce(end, x'')`, where no text is behind the empty blob.
/// Text of other programs that is not UTF-8 may lie in the range although it begins differently.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: String,
    /// `None`: all texts that come after `first`.
    pub(super) end: Option<String>,
}

impl Range {
    /// Every text that begins with `prefix`.
    pub(super) fn of_prefix(prefix: &str) -> Self {
        // The order of UTF-8 is that of its characters, so that the next character at the last
        // place where there is one ends the range.
        let mut chars = prefix.chars();
        let mut end = None;
        while let Some(last) = chars.next_back() {
            if let Some(next) = (last..=char::MAX).nth(1) {
                let mut text = chars.as_str().to_owned();
                text.push(next);
                end = Some(text);
                break;
            }
        }
        Self {
            first: prefix.to_owned(),
            end,
        }
    }

    /// Every `base #number`, and what only begins like one.
    pub(super) fn of_numbered(base: &str) -> Self {
        // The character behind `9`.
        Self {
            first: format!("{base} #0"),
            end: Some(format!("{base} #:")),
        }
    }

    /// Every numbered title in the lineage of `title`, and others.
    pub(super) fn of_lineage(title: &str) -> Self {
        let prefix = lineage_prefix(title);
        if split(title).0 == prefix {
            Self::of_numbered(prefix)
        } else {
            // Each number of digits shortens the base in another way.
            Self::of_prefix(prefix)
        }
    }
}

/// What to look for so as to find every title in the lineage of `title`: two titles and a range.
pub(super) fn lineage(title: &str) -> (&str, &str, Range) {
    (split(title).0, plain_title(title), Range::of_lineage(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(prefix: &str, end: Option<&str>) {
        let range = Range::of_prefix(prefix);
        assert_eq!(range.first, prefix);
        assert_eq!(range.end.as_deref(), end, "{prefix:?}");
    }

    #[test]
    fn a_range_ends_before_the_next_text_that_begins_differently() {
        check("a", Some("b"));
        check("aZ", Some("a["));
        check("a\0", Some("a\u{1}"));
        check("a\u{7f}", Some("a\u{80}"));
        check("数", Some("敱"));
        check("a\u{d7ff}", Some("a\u{e000}"));
        check("a\u{ffff}", Some("a\u{10000}"));
        check("a\u{10ffff}", Some("b"));
        check("a\u{10ffff}\u{10ffff}", Some("b"));
        check("\u{10ffff}", None);
        check("", None);
    }

    #[test]
    fn a_lineage_is_one_range_however_long_its_base() {
        let numbered = Range::of_numbered("a");
        assert_eq!(Range::of_lineage("a #7"), numbered);
        assert_eq!(numbered.first, "a #0");
        assert_eq!(numbered.end.as_deref(), Some("a #:"));
        let long = "长".repeat(90);
        assert_eq!(Range::of_lineage(&long).first, "长".repeat(78));
    }
}
