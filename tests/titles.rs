//! Titles: cleaned, unique, numbered, set only where they are expected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test crate")]

mod support;

use hermes_state::TitleClash::{NextNumber, Refuse};
use hermes_state::{Error, NewSession, SessionId, SessionStore, TitleClash, sanitize_title};
use support::{create, id, rows, store, store_and_session};

#[track_caller]
fn check(title: &str, expected: &str) {
    let clean = sanitize_title(title).unwrap();
    assert_eq!(clean.as_deref().unwrap_or(""), expected, "{title:?}");
    assert_ne!(clean.as_deref(), Some(""), "{title:?}");
    assert_eq!(sanitize_title(expected).unwrap(), clean, "cleaned twice");
}

#[test]
fn control_characters_that_are_no_white_space_are_removed() {
    for byte in (0..0x20_u8).chain([0x7f]) {
        let c = char::from(byte);
        let expected = if c.is_whitespace() { "a b" } else { "ab" };
        check(&format!("a{c}b"), expected);
    }
    // What is beyond ASCII is text, or white space.
    check("a\u{80}b", "a\u{80}b");
    check("a\u{85}b", "a b");
}

#[test]
fn characters_that_nobody_sees_are_removed_and_their_neighbours_are_not() {
    for (first, last) in [
        (0x200b, 0x200f),
        (0x2028, 0x2029),
        (0x202a, 0x202e),
        (0x2060, 0x2065),
        (0x2066, 0x2069),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffc),
    ] {
        // U+2065 is not assigned, but it is a character.
        for c in (first..=last).filter_map(char::from_u32) {
            check(&format!("a{c}b"), "ab");
            check(&format!("{c}a {c} b{c}"), "a b");
        }
    }
    for c in [
        '\u{2010}', '\u{2027}', '\u{206a}', '\u{fefe}', '\u{fff8}', '\u{fffd}',
    ] {
        check(&format!("a{c}b"), &format!("a{c}b"));
    }
    for c in ['\u{200a}', '\u{202f}'] {
        check(&format!("a{c}b"), "a b");
    }
}

#[test]
fn white_space_is_collapsed_and_trimmed() {
    check("  a \t\r\n  b\u{3000}\u{a0}c \u{2003}", "a b c");
    check("a\u{200b} \u{200b}b", "a b");
    check("数据库\n重构 🦀 e\u{301}", "数据库 重构 🦀 e\u{301}");
    check("100%_\\ #5", "100%_\\ #5");
}

#[test]
fn what_is_empty_is_no_title() {
    for nothing in [
        "",
        " ",
        "\t\n\u{3000}",
        "\u{200b}\u{feff}\0",
        "\u{202e} \u{7f}",
    ] {
        check(nothing, "");
    }
}

#[test]
fn a_title_has_at_most_100_characters() {
    for c in ["a", "长", "🦀", "\u{10ffff}"] {
        check(&c.repeat(100), &c.repeat(100));
        let long = sanitize_title(&c.repeat(101));
        assert!(
            matches!(
                long,
                Err(Error::TitleTooLong {
                    chars: 101,
                    limit: 100
                })
            ),
            "{long:?}"
        );
    }
    // Counted when it is clean.
    check(
        &format!("  {}\u{200b}\n", "a".repeat(100)),
        &"a".repeat(100),
    );
    check(
        &format!("{}   b", "a".repeat(98)),
        &format!("{} b", "a".repeat(98)),
    );
    let many = sanitize_title(&"🦀".repeat(1_000_000)).unwrap_err();
    assert_eq!(
        many.to_string(),
        "a title of 1000000 characters is over the limit of 100"
    );
}

async fn set(
    store: &SessionStore,
    session: &SessionId,
    title: &str,
    clash: TitleClash,
) -> Option<String> {
    store
        .set_session_title(session, title, clash)
        .await
        .unwrap()
}

async fn title(store: &SessionStore, session: &SessionId) -> Option<String> {
    store.session(session).await.unwrap().unwrap().title
}

#[tokio::test]
async fn a_title_is_stored_clean_and_returned_as_stored() {
    let (file, store, s) = store_and_session().await;
    for clash in [Refuse, NextNumber] {
        let stored = set(&store, &s, "\u{202e} a\t b\0", clash).await;
        assert_eq!(stored.as_deref(), Some("a b"));
        assert_eq!(title(&store, &s).await, stored);
        assert_eq!(
            rows(&file.stock(), "SELECT title FROM sessions"),
            [["\"a b\""]]
        );
    }
}

#[tokio::test]
async fn an_empty_title_clears() {
    let (file, store, s) = store_and_session().await;
    let other = create(&store, "other").await;
    for empty in ["", " \u{200b}\n"] {
        for (session, clash) in [(&s, Refuse), (&other, NextNumber)] {
            set(&store, session, "a", Refuse).await;
            assert_eq!(set(&store, session, empty, clash).await, None);
            assert_eq!(title(&store, session).await, None);
        }
    }
    // NULL, not an empty string, so that many sessions may have none.
    let titles = rows(&file.stock(), "SELECT title FROM sessions");
    assert_eq!(titles, [["NULL"], ["NULL"]]);
}

#[tokio::test]
async fn a_title_that_another_session_has_is_refused_and_its_owner_named() {
    let (file, store, s) = store_and_session().await;
    let owner = create(&store, "owner").await;
    set(&store, &owner, "hunter2", Refuse).await;
    set(&store, &s, "mine", Refuse).await;
    let before = file.dump();
    let refused = store
        .set_session_title(&s, " hunter2\n", Refuse)
        .await
        .unwrap_err();
    assert!(matches!(&refused, Error::TitleTaken { by } if *by == owner));
    // Neither the title nor the owner, who may be somebody else's session.
    assert_eq!(refused.to_string(), "the title is taken by another session");
    assert!(!format!("{refused:?}").contains("hunter2"));
    assert!(!refused.is_retryable());
    assert_eq!(file.dump(), before);
    // Its own title is not another's; case counts.
    assert_eq!(
        set(&store, &owner, "hunter2", Refuse).await.as_deref(),
        Some("hunter2")
    );
    assert_eq!(
        set(&store, &s, "Hunter2", Refuse).await.as_deref(),
        Some("Hunter2")
    );
}

#[tokio::test]
async fn a_title_that_another_session_gave_up_is_free() {
    let (file, store, s) = store_and_session().await;
    let owner = create(&store, "owner").await;
    for give_up in ["", "else"] {
        set(&store, &owner, "a", Refuse).await;
        set(&store, &owner, give_up, Refuse).await;
        assert_eq!(set(&store, &s, "a", Refuse).await.as_deref(), Some("a"));
        set(&store, &s, "", Refuse).await;
    }
    set(&store, &owner, "a", Refuse).await;
    file.stock()
        .execute("DELETE FROM sessions WHERE id = 'owner'", [])
        .unwrap();
    assert_eq!(set(&store, &s, "a", Refuse).await.as_deref(), Some("a"));
}

#[tokio::test]
async fn on_request_a_taken_title_becomes_the_next_of_its_lineage() {
    let (_file, store, s) = store_and_session().await;
    for (n, (wanted, expected)) in [
        ("数据 100%_\\", "数据 100%_\\"),
        ("数据 100%_\\", "数据 100%_\\ #2"),
        ("数据 100%_\\", "数据 100%_\\ #3"),
        ("数据 100%_\\ #2", "数据 100%_\\ #4"),
        ("数据 100%_\\ #9", "数据 100%_\\ #9"),
        ("数据 100%_\\ #9", "数据 100%_\\ #10"),
        ("b #18446744073709551616", "b #18446744073709551616"),
        ("b #18446744073709551616", "b #18446744073709551616 #2"),
        ("b #18446744073709551615", "b #18446744073709551615"),
        ("b #18446744073709551615", "b #2"),
    ]
    .into_iter()
    .enumerate()
    {
        let session = create(&store, &format!("{n}")).await;
        let stored = set(&store, &session, wanted, NextNumber).await;
        assert_eq!(stored.as_deref(), Some(expected), "{wanted}");
        // Again, after a lost answer: the same.
        assert_eq!(
            set(&store, &session, wanted, NextNumber).await,
            stored,
            "{wanted}"
        );
    }
    // A title that is free is taken as it is, whatever numbers there are.
    assert_eq!(set(&store, &s, "b", NextNumber).await.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_numbered_title_stays_within_the_limit() {
    let (_file, store, _) = store_and_session().await;
    let long = "长".repeat(100);
    let mut numbers = Vec::new();
    for n in 1..=12_usize {
        let session = create(&store, &format!("{n}")).await;
        let stored = set(&store, &session, &long, NextNumber).await.unwrap();
        assert!(stored.chars().count() <= 100);
        numbers.push(stored.trim_start_matches('长').to_owned());
    }
    let mut expected: Vec<String> = (1..=12).map(|n| format!(" #{n}")).collect();
    expected.first_mut().unwrap().clear();
    assert_eq!(numbers, expected);
}

/// Two sessions that were named alike used to leave one of them without a title.
#[tokio::test]
async fn sessions_that_are_named_alike_at_the_same_time_get_different_numbers() {
    let (file, store) = store().await;
    let mut sessions = Vec::new();
    for n in 0..20 {
        sessions.push(create(&store, &format!("s{n}")).await);
    }
    let second = file.open().await;
    let set = sessions.iter().enumerate().map(|(n, session)| {
        let store = if n % 2 == 0 { &store } else { &second };
        store.set_session_title(session, "a", NextNumber)
    });
    let mut titles: Vec<String> = futures_util::future::join_all(set)
        .await
        .into_iter()
        .map(|title| title.unwrap().unwrap())
        .collect();
    titles.sort_by_key(String::len);
    assert_eq!(titles.first().unwrap(), "a");
    titles.sort();
    titles.dedup();
    assert_eq!(titles.len(), 20);
    assert!(titles.contains(&"a #20".to_owned()));
}

/// A title that a model made up while a person chose one used to win, because it came later.
#[tokio::test]
async fn an_expected_title_is_replaced_and_no_other() {
    let (file, store, s) = store_and_session().await;
    let set_if = async |expected, title| {
        store
            .set_session_title_if(&s, expected, title, Refuse)
            .await
    };
    assert_eq!(
        set_if(None, "made up").await.unwrap().as_deref(),
        Some("made up")
    );
    assert_eq!(
        set_if(Some("made up"), "better").await.unwrap().as_deref(),
        Some("better")
    );
    set(&store, &s, "chosen", Refuse).await;
    let before = file.dump();
    for expected in [
        None,
        Some("better"),
        Some("Chosen"),
        Some(" chosen"),
        Some(""),
    ] {
        for title in ["x", "", "chosen"] {
            let refused = set_if(expected, title).await;
            assert!(matches!(refused, Err(Error::TitleChanged)), "{expected:?}");
        }
    }
    assert_eq!(file.dump(), before);
    assert_eq!(set_if(Some("chosen"), "").await.unwrap(), None);
    assert_eq!(
        set_if(None, "again").await.unwrap().as_deref(),
        Some("again")
    );
}

#[tokio::test]
async fn of_many_titles_made_up_at_the_same_time_one_is_stored() {
    let (_file, store, s) = store_and_session().await;
    let titles: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let set = titles
        .iter()
        .map(|title| store.set_session_title_if(&s, None, title, NextNumber));
    let results = futures_util::future::join_all(set).await;
    let stored: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
    assert_eq!(stored, [title(&store, &s).await]);
}

#[tokio::test]
async fn titles_of_other_programs_that_are_no_utf8_are_in_nobodys_way() {
    let (file, store, s) = store_and_session().await;
    let other = create(&store, "other").await;
    file.stock()
        .execute_batch(
            "UPDATE sessions SET title = CAST(x'61ff' AS TEXT) WHERE id = 's';
             UPDATE sessions SET title = CAST(x'61202332ff' AS TEXT) WHERE id = 'other';
             INSERT INTO sessions(id, source, started_at, title)
                 VALUES (NULL, 'x', 1, 'nobody'), ('blob', 'x', 1, x'61');",
        )
        .unwrap();
    let read = title(&store, &s).await.unwrap();
    assert_eq!(read, "a\u{fffd}");
    let stored = store
        .set_session_title_if(&s, Some(&read), "a", Refuse)
        .await
        .unwrap();
    assert_eq!(stored.as_deref(), Some("a"));
    assert_eq!(
        set(&store, &other, "a", NextNumber).await.as_deref(),
        Some("a #2")
    );
    // A row without an id has a title all the same.
    let taken = store.set_session_title(&s, "nobody", Refuse).await;
    assert!(matches!(taken, Err(Error::TitleTaken { by }) if by.as_str().is_empty()));
    assert_eq!(
        set(&store, &s, "nobody", NextNumber).await.as_deref(),
        Some("nobody #2")
    );
    assert_eq!(
        store.next_title_in_lineage("nobody").await.unwrap(),
        "nobody #3"
    );
}

#[tokio::test]
async fn a_title_is_no_reason_to_make_a_session() {
    let (file, store, _) = store_and_session().await;
    let before = file.dump();
    for title in ["a", ""] {
        let refused = store
            .set_session_title(&id("nobody"), title, NextNumber)
            .await;
        assert!(matches!(refused, Err(Error::SessionNotFound { id }) if id.as_str() == "nobody"));
    }
    assert_eq!(file.dump(), before);
    // A child has none of its parent's title.
    let child = NewSession::new("cli").parent(id("s"));
    let child = store.create_session(child).await.unwrap();
    assert_eq!(title(&store, &child).await, None);
}
