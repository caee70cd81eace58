//! Titles: what may be one, and those of one lineage: `base`, `base #2`, `base #3`, …

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// Longest title, in Unicode scalar values.
pub(crate) const MAX_TITLE_CHARS: usize = 100;

/// The title that [`set_session_title`](crate::SessionStore::set_session_title) stores for `title`.
///
/// Removed are ASCII control characters that are no white space, zero-width characters
/// (U+200B–200F, U+FEFF), direction controls (U+202A–202E, U+2066–2069), and U+2028–2029,
/// U+2060–2065, U+FFF9–FFFC. Then each run of white space, as Unicode understands it, becomes one
/// space, and none is left at the ends. `None`: nothing is left.
///
/// ```
/// use hermes_state::sanitize_title;
///
/// let title = sanitize_title("  数据库\t\u{202e}重构\n")?;
/// assert_eq!(title.as_deref(), Some("数据库 重构"));
/// assert_eq!(sanitize_title("\u{200b} ")?, None);
/// # Ok::<(), hermes_state::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::TitleTooLong`]: more than 100 characters (Unicode scalar values) are left.
pub fn sanitize_title(title: &str) -> Result<Option<String>> {
    let kept: String = title.chars().filter(|&c| !is_unseen(c)).collect();
    let mut clean = String::new();
    for word in kept.split_whitespace() {
        if !clean.is_empty() {
            clean.push(' ');
        }
        clean.push_str(word);
    }
    let chars = clean.chars().count();
    if chars > MAX_TITLE_CHARS {
        return Err(Error::TitleTooLong {
            chars,
            limit: MAX_TITLE_CHARS,
        });
    }
    Ok((chars > 0).then_some(clean))
}

fn is_unseen(c: char) -> bool {
    (c.is_ascii_control() && !c.is_whitespace())
        || matches!(
            c,
            '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffc}'
        )
}

/// Takes a title apart into its base and its number. A number is ASCII digits that fit a `u64`;
/// what looks like one but does not fit is part of the base.
pub(crate) fn split(title: &str) -> (&str, Option<u64>) {
    let Some((base, digits)) = title.rsplit_once(" #") else {
        return (title, None);
    };
    // `u64::from_str` would also take a sign.
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(number) if all_digits && !base.is_empty() => (base, Some(number)),
        _ => (title, None),
    }
}

/// The next title in the lineage of `title`: one above the greatest number in `taken`, where the
/// plain base counts as 1; the plain base if nothing of the lineage is taken. At most 100
/// characters: the base is shortened, never the number.
pub(crate) fn next_in_lineage<'a>(title: &str, taken: impl Iterator<Item = &'a str>) -> String {
    let (base, _) = split(title);
    let plain = plain_title(title);
    let mut plain_taken = false;
    let mut numbers = BTreeSet::new();
    for other in taken {
        match split(other) {
            (other, Some(number)) if other == base || other == base_before(base, number) => {
                numbers.insert(number);
            }
            (other, None) if other == base || other == plain => plain_taken = true,
            _ => {}
        }
    }
    let greatest = match numbers.last() {
        Some(&number) => number.max(1),
        None if plain_taken => 1,
        None => return plain.to_owned(),
    };
    // Behind the greatest possible number only gaps are left.
    let next = greatest
        .checked_add(1)
        .or_else(|| (2..u64::MAX).find(|number| !numbers.contains(number)))
        .unwrap_or(2);
    format!("{} #{next}", base_before(base, next))
}

/// The first title in the lineage of `title`: its base, at most 100 characters of it.
pub(crate) fn plain_title(title: &str) -> &str {
    let (base, _) = split(title);
    shortened(base, MAX_TITLE_CHARS)
}

/// What every title in the lineage of `title` begins with.
pub(crate) fn lineage_prefix(title: &str) -> &str {
    let (base, _) = split(title);
    base_before(base, u64::MAX)
}

/// The base, cut so that ` #number` fits behind it.
fn base_before(base: &str, number: u64) -> &str {
    let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
    shortened(base, MAX_TITLE_CHARS.saturating_sub(2 + digits))
}

/// The first `room` characters, without white space at the end.
fn shortened(base: &str, room: usize) -> &str {
    match base.char_indices().nth(room) {
        Some((end, _)) => base.get(..end).unwrap_or(base).trim_end(),
        None => base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(title: &str, taken: &[&str], expected: &str) {
        let next = next_in_lineage(title, taken.iter().copied());
        assert_eq!(next, expected, "{title:?} among {taken:?}");
        assert!(!taken.contains(&expected), "{expected:?} is taken");
        assert!(next.chars().count() <= MAX_TITLE_CHARS);
        assert!(next.starts_with(lineage_prefix(title)));
    }

    #[test]
    fn the_next_number_is_one_above_the_greatest() {
        check("数据库重构", &[], "数据库重构");
        check("数据库重构", &["数据库重构"], "数据库重构 #2");
        check("a", &["a", "a #2", "a #9", "b #40"], "a #10");
        check("a #2", &["a", "a #2"], "a #3");
        check("a #2", &["a #2"], "a #3");
        check("a #7", &[], "a");
        check("a", &["a #2"], "a #3");
        check("a", &["a #0"], "a #2");
        check("a", &["a #007"], "a #8");
        check("a #2", &["a #2 #5"], "a");
        check("a #2 #5", &["a #2 #5"], "a #2 #6");
    }

    #[test]
    fn what_is_no_number_is_text() {
        check(
            "a",
            &["a", "a #x", "a #", "a #-3", "a #+3", "a #٣", "a#9"],
            "a #2",
        );
        check("#5", &["#5"], "#5 #2");
        check(" #5", &[" #5"], " #5 #2");
        let beyond = "a #18446744073709551616";
        check("a", &["a", beyond], "a #2");
        check(beyond, &["a", beyond], "a #18446744073709551616 #2");
    }

    #[test]
    fn behind_the_greatest_number_the_first_gap_is_taken() {
        let last = "a #18446744073709551615";
        check("a", &["a", last], "a #2");
        check("a", &["a", "a #2", "a #3", last], "a #4");
    }

    #[test]
    fn a_long_base_is_shortened_never_the_number() {
        let long = "长".repeat(100);
        let nine = format!("{} #9", "长".repeat(97));
        let ten = format!("{} #10", "长".repeat(96));
        check(&long, &[&long], &format!("{} #2", "长".repeat(97)));
        check(&long, &[&long, &nine], &ten);
        check(
            &long,
            &[&long, &nine, &ten],
            &format!("{} #11", "长".repeat(96)),
        );
        check(&ten, &[&ten], &format!("{} #11", "长".repeat(96)));
        let spaced = format!("{} {}", "a".repeat(96), "b".repeat(3));
        check(&spaced, &[&spaced], &format!("{} #2", "a".repeat(96)));
        let overlong = "x".repeat(150);
        check(&overlong, &[&overlong], &format!("{} #2", "x".repeat(97)));
    }
}
