//! Finding a session by its title, the beginning of its id, and what it continues.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test crate")]

mod support;

use hermes_state::{NewSession, Resolved, SessionId, SessionStore, Timestamp, TitleClash};
use rusqlite::{Connection, params};
use support::{File, create, id, store};

/// A store with one session a title: `0`, `1`, ….
async fn titled(titles: &[&str]) -> (File, SessionStore) {
    let (file, store) = store().await;
    let stock = file.stock();
    for (n, title) in titles.iter().enumerate() {
        stock
            .execute(
                "INSERT INTO sessions(id, source, started_at, title) VALUES (?1, 'x', 1, ?2)",
                params![n.to_string(), title],
            )
            .unwrap();
    }
    (file, store)
}

/// Titles, of which the one looked up finds the one at the place given.
async fn check_resolved(titles: &[&str], title: &str, expected: Option<usize>) {
    let (_file, store) = titled(titles).await;
    let found = store.resolve_session_by_title(title).await.unwrap();
    let expected = expected.map(|n| id(&n.to_string()));
    assert_eq!(found, expected, "{title:?} in {titles:?}");
    let exact = titles.iter().position(|other| *other == title);
    let found = store.session_by_title(title).await.unwrap();
    assert_eq!(
        found.map(|session| (session.id, session.title)),
        exact.map(|n| (id(&n.to_string()), Some(title.to_owned()))),
        "{title:?} exactly in {titles:?}"
    );
}

#[tokio::test]
async fn a_title_finds_the_variant_with_the_greatest_number_else_itself() {
    check_resolved(&[], "a", None).await;
    check_resolved(&["b"], "a", None).await;
    check_resolved(&["a"], "a", Some(0)).await;
    check_resolved(&["a", "a #2"], "a", Some(1)).await;
    check_resolved(&["a #2"], "a", Some(0)).await;
    check_resolved(&["a #9", "a #10", "a", "a #2"], "a", Some(1)).await;
    check_resolved(&["a #90", "a #9999999999", "a #11"], "a", Some(1)).await;
    check_resolved(&["a", "a #0"], "a", Some(1)).await;
    check_resolved(&["a #2", "a"], "a #2", Some(0)).await;
    check_resolved(&["a #2", "a #2 #3", "a #2 #1"], "a #2", Some(1)).await;
    check_resolved(&["数据🦀", "数据🦀 #4"], "数据🦀", Some(1)).await;
    check_resolved(&["a #7", "a #007", "a #6"], "a", Some(0)).await;
    check_resolved(&["a #007", "a #6"], "a", Some(0)).await;
    check_resolved(&["", " #5"], "", Some(0)).await;
}

#[tokio::test]
async fn what_is_no_number_is_no_variant() {
    let none = [
        "a #abc", "a #", "a #-3", "a #+3", "a #2x", "a #٣", "a#9", "a  #9", "a #5 #6",
    ];
    check_resolved(&none, "a", None).await;
    let beyond = [
        "a #18446744073709551616",
        "a",
        "a #99999999999999999999999",
        "a #3",
    ];
    check_resolved(&beyond, "a", Some(3)).await;
    check_resolved(&beyond, "a #18446744073709551616", Some(0)).await;
    let last = ["a #18446744073709551615", "a #18446744073709551614"];
    check_resolved(&last, "a", Some(0)).await;
    let padded = ["a #00000000000000000000000000012", "a #11"];
    check_resolved(&padded, "a", Some(0)).await;
}

#[tokio::test]
async fn every_character_of_a_title_stands_for_itself() {
    let titles = [
        "100%", "100x", "100x #9", "a_b", "axb", "axb #9", "c\\", "c", "c #9", "A", "a*",
    ];
    check_resolved(&titles, "100%", Some(0)).await;
    check_resolved(&titles, "a_b", Some(3)).await;
    check_resolved(&titles, "c\\", Some(6)).await;
    check_resolved(&titles, "a", None).await;
    check_resolved(&titles, "%", None).await;
    check_resolved(&titles, "_", None).await;
    check_resolved(&["x' OR 1=1 --", "\"", "\0", "a\0b"], "a\0b", Some(3)).await;
    check_resolved(&["\u{10ffff}", "\u{10ffff} #3"], "\u{10ffff}", Some(1)).await;
}

#[tokio::test]
async fn a_title_that_is_no_text_is_nobodys() {
    let (file, store) = titled(&["a #1"]).await;
    file.stock()
        .execute_batch(
            "INSERT INTO sessions(id, source, started_at, title) VALUES
                 ('blob', 'x', 1, x'61'), ('bytes', 'x', 1, CAST(x'61202339ff' AS TEXT)),
                 ('none', 'x', 1, NULL)",
        )
        .unwrap();
    let found = store.resolve_session_by_title("a").await.unwrap();
    assert_eq!(found, Some(id("0")));
    assert!(store.session_by_title("a").await.unwrap().is_none());
}

async fn check_next(titles: &[&str], title: &str, expected: &str) {
    let (_file, store) = titled(titles).await;
    let next = store.next_title_in_lineage(title).await.unwrap();
    assert_eq!(next, expected, "{title:?} among {titles:?}");
    assert!(next.chars().count() <= 100);
    // It is free, and is stored as it is.
    let session = create(&store, "next").await;
    let stored = store
        .set_session_title(&session, &next, TitleClash::Refuse)
        .await
        .unwrap();
    assert_eq!(stored.as_deref(), Some(expected));
}

#[tokio::test]
async fn the_next_title_is_one_behind_the_greatest_number() {
    check_next(&[], "数据库重构", "数据库重构").await;
    check_next(&["b", "A"], "a #7", "a").await;
    check_next(&["数据库重构"], "数据库重构", "数据库重构 #2").await;
    check_next(&["a", "a #2", "a #9", "a #10", "b #40"], "a #2", "a #11").await;
    check_next(&["a #2"], "a", "a #3").await;
    check_next(&["a #2 #5", "a #abc"], "a", "a").await;
    check_next(&["a #2 #5"], "a #2 #5", "a #2 #6").await;
    check_next(&["100x", "100x #4", "100%"], "100%", "100% #2").await;
    check_next(&["axb #4", "a_b"], "a_b", "a_b #2").await;
    check_next(&["c #4", "c\\"], "c\\", "c\\ #2").await;
    check_next(&["a", "a #18446744073709551616"], "a", "a #2").await;
    check_next(&["a", "a #18446744073709551615"], "a", "a #2").await;
}

#[tokio::test]
async fn a_long_base_is_shortened_and_its_lineage_still_known() {
    let base = |chars: usize, number: &str| format!("{}{number}", "🦀".repeat(chars));
    let (whole, nine, ten) = (base(100, ""), base(97, " #9"), base(96, " #10"));
    check_next(&[&whole], &whole, &base(97, " #2")).await;
    check_next(&[&whole, &nine], &whole, &ten).await;
    check_next(&[&whole, &nine, &ten], &whole, &base(96, " #11")).await;
    check_next(&[&nine], &nine, &ten).await;
    // As long as 20 digits leave room for, and one character longer.
    for chars in [78, 79] {
        let plain = base(chars, "");
        check_next(
            &[&plain, &base(chars, " #41")],
            &plain,
            &base(chars, " #42"),
        )
        .await;
    }
    check_next(&[], &"x".repeat(150), &"x".repeat(100)).await;
}

fn found(ids: &[&str]) -> Resolved {
    match ids {
        [] => Resolved::None,
        [one] => Resolved::One(id(one)),
        several => Resolved::Several(several.iter().map(|name| id(name)).collect()),
    }
}

async fn check_prefix(store: &SessionStore, prefix: &str, expected: &[&str]) {
    let resolved = store.resolve_session_id(prefix).await.unwrap();
    assert_eq!(resolved, found(expected), "{prefix:?}");
}

async fn with_ids(ids: &[&str]) -> (File, SessionStore) {
    let (file, store) = store().await;
    for name in ids {
        create(&store, name).await;
    }
    (file, store)
}

#[tokio::test]
async fn a_prefix_finds_the_only_session_or_says_which_ones() {
    let (_file, store) = with_ids(&["abc", "abd", "b", "ba", "数据", "数字", "🦀x"]).await;
    check_prefix(&store, "abc", &["abc"]).await;
    check_prefix(&store, "ab", &["abc", "abd"]).await;
    check_prefix(&store, "abcd", &[]).await;
    check_prefix(&store, "c", &[]).await;
    check_prefix(&store, "数", &["数字", "数据"]).await;
    check_prefix(&store, "数据", &["数据"]).await;
    check_prefix(&store, "🦀", &["🦀x"]).await;
    // Exactly this one, although it is the beginning of another.
    check_prefix(&store, "b", &["b"]).await;
    check_prefix(&store, &"x".repeat(10_000), &[]).await;
}

#[tokio::test]
async fn the_empty_prefix_finds_nothing() {
    let (file, store) = with_ids(&["only"]).await;
    check_prefix(&store, "", &[]).await;
    let empty = "INSERT INTO sessions(id, source, started_at) VALUES ('', 'x', 1), (NULL, 'x', 1)";
    file.stock().execute(empty, []).unwrap();
    check_prefix(&store, "", &[]).await;
    check_prefix(&store, "o", &["only"]).await;
}

#[tokio::test]
async fn every_character_of_a_prefix_stands_for_itself() {
    let (_file, store) = with_ids(&["a%b", "axb", "a_c", "a\\d", "A", "é", "e\u{301}", "a*"]).await;
    check_prefix(&store, "a%", &["a%b"]).await;
    check_prefix(&store, "a_", &["a_c"]).await;
    check_prefix(&store, "a\\", &["a\\d"]).await;
    check_prefix(&store, "a*", &["a*"]).await;
    check_prefix(&store, "%", &[]).await;
    check_prefix(&store, "AX", &[]).await;
    check_prefix(&store, "E", &[]).await;
    check_prefix(&store, "e", &["e\u{301}"]).await;
    check_prefix(&store, " a", &[]).await;
    check_prefix(&store, "a\0", &[]).await;
}

#[tokio::test]
async fn prefixes_at_the_ends_of_the_alphabet() {
    let (file, store) = with_ids(&[
        "a\u{d7ff}1",
        "a\u{e000}1",
        "a\u{10ffff}1",
        "a\u{10ffff}2",
        "b",
        "\u{10ffff}\u{10ffff}z",
        "z\u{7f}1",
        "z\u{80}1",
    ])
    .await;
    file.stock()
        .execute_batch(
            // Ids of other programs: no UTF-8, inside the ranges by their bytes, or blobs.
            "INSERT INTO sessions(id, source, started_at) VALUES
                 (CAST(x'61ff' AS TEXT), 'x', 1), (CAST(x'61eda08031' AS TEXT), 'x', 1),
                 (CAST(x'7a8031' AS TEXT), 'x', 1), (CAST(x'ff' AS TEXT), 'x', 1),
                 (x'f48fbfbff48fbfbf', 'x', 1), (x'7a7f32', 'x', 1)",
        )
        .unwrap();
    check_prefix(&store, "a\u{d7ff}", &["a\u{d7ff}1"]).await;
    check_prefix(&store, "a\u{e000}", &["a\u{e000}1"]).await;
    check_prefix(&store, "a\u{10ffff}", &["a\u{10ffff}1", "a\u{10ffff}2"]).await;
    check_prefix(&store, "\u{10ffff}", &["\u{10ffff}\u{10ffff}z"]).await;
    check_prefix(&store, "\u{10ffff}\u{10ffff}", &["\u{10ffff}\u{10ffff}z"]).await;
    check_prefix(&store, "z\u{7f}", &["z\u{7f}1"]).await;
    check_prefix(&store, "z\u{80}", &["z\u{80}1"]).await;
}

#[tokio::test]
async fn at_most_ten_candidates_are_named() {
    let names: Vec<String> = (10..30).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (_file, store) = with_ids(&names).await;
    let ten = names.get(..10).unwrap();
    check_prefix(&store, "s", ten).await;
    check_prefix(&store, "s1", ten).await;
    check_prefix(&store, "s29", &["s29"]).await;
    create(&store, "s").await;
    check_prefix(&store, "s", &["s"]).await;
}

#[tokio::test]
async fn a_uuid_is_found_by_its_first_digits() {
    let (_file, store) = store().await;
    let session = store.create_session(NewSession::new("cli")).await.unwrap();
    let prefix = session.as_str().get(..8).unwrap();
    let resolved = store.resolve_session_id(prefix).await.unwrap();
    assert_eq!(resolved, Resolved::One(session));
}

/// A session as another program may have left it.
fn put<'a>(
    stock: &Connection,
    name: &str,
    parent: Option<&str>,
    start: f64,
    end: impl Into<Option<(f64, &'a str)>>,
) {
    let (time, reason) = end.into().unzip();
    stock
        .execute(
            "INSERT INTO sessions(id, source, parent_session_id, started_at, ended_at, end_reason)
             VALUES (?1, 'x', ?2, ?3, ?4, ?5)",
            params![name, parent, start, time, reason],
        )
        .unwrap();
}

/// How a session ends that goes on in another.
fn compressed(time: f64) -> (f64, &'static str) {
    (time, "compression")
}

async fn check_tip(store: &SessionStore, from: &str, expected: Option<&str>) {
    let tip = store.compression_tip(&id(from)).await.unwrap();
    assert_eq!(tip, expected.map(id), "from {from}");
}

/// A store and another program on its file that does not mind broken links.
async fn loose() -> (File, SessionStore, Connection) {
    let (file, store) = store().await;
    let stock = file.stock();
    stock.pragma_update(None, "foreign_keys", false).unwrap();
    (file, store, stock)
}

#[tokio::test]
async fn the_tip_is_the_last_continuation() {
    let (_file, store, stock) = loose().await;
    put(&stock, "root", None, 1.0, compressed(2.0));
    put(&stock, "mid", Some("root"), 2.0, compressed(3.0));
    put(&stock, "tip", Some("mid"), 3.5, None);
    for from in ["root", "mid", "tip"] {
        check_tip(&store, from, Some("tip")).await;
    }
    check_tip(&store, "nobody", None).await;
    check_tip(&store, "roo", None).await;
}

#[tokio::test]
async fn only_a_child_that_started_when_its_parent_was_compressed_or_later_continues_it() {
    let (_file, store, stock) = loose().await;
    // Another reason, none, a child from before, no time.
    put(&stock, "left", None, 1.0, (2.0, "user_exit"));
    put(&stock, "left's", Some("left"), 3.0, None);
    put(&stock, "open", None, 1.0, None);
    put(&stock, "open's", Some("open"), 3.0, None);
    put(&stock, "branched", None, 1.0, compressed(2.0));
    put(&stock, "branch", Some("branched"), 1.999_999, None);
    put(&stock, "Compression", None, 1.0, (2.0, "Compression"));
    put(&stock, "child", Some("Compression"), 3.0, None);
    put(&stock, "timeless", None, 1.0, compressed(2.0));
    put(&stock, "timeless's", Some("timeless"), 3.0, None);
    let forget = "UPDATE sessions SET ended_at = NULL WHERE id = 'timeless'";
    stock.execute(forget, []).unwrap();
    for alone in ["left", "open", "branched", "Compression", "timeless"] {
        check_tip(&store, alone, Some(alone)).await;
    }
}

#[tokio::test]
async fn of_several_continuations_the_newest_then_the_greatest_id_counts() {
    let (_file, store, stock) = loose().await;
    put(&stock, "root", None, 1.0, compressed(2.0));
    put(&stock, "z", Some("root"), 3.0, None);
    put(&stock, "before", Some("root"), 1.5, None);
    check_tip(&store, "root", Some("z")).await;
    put(&stock, "b", Some("root"), 4.0, None);
    put(&stock, "a", Some("root"), 4.0, None);
    check_tip(&store, "root", Some("b")).await;
    put(&stock, "数", Some("root"), 4.0, None);
    check_tip(&store, "root", Some("数")).await;
    put(&stock, "0", Some("root"), 4.000_001, compressed(5.0));
    check_tip(&store, "root", Some("0")).await;
    put(&stock, "1", Some("0"), 5.0, None);
    check_tip(&store, "root", Some("1")).await;
}

#[tokio::test]
async fn a_broken_chain_ends_where_it_breaks() {
    let (_file, store, stock) = loose().await;
    put(&stock, "root", None, 1.0, compressed(2.0));
    put(&stock, "mid", Some("root"), 2.0, compressed(3.0));
    put(&stock, "tip", Some("mid"), 3.0, None);
    put(&stock, "orphan", Some("never was"), 3.0, compressed(4.0));
    stock
        .execute("DELETE FROM sessions WHERE id = 'mid'", [])
        .unwrap();
    check_tip(&store, "root", Some("root")).await;
    check_tip(&store, "mid", None).await;
    check_tip(&store, "tip", Some("tip")).await;
    check_tip(&store, "orphan", Some("orphan")).await;
}

#[tokio::test]
async fn a_chain_that_comes_back_to_itself_ends_before_it() {
    let (_file, store, stock) = loose().await;
    put(&stock, "self", Some("self"), 2.0, compressed(2.0));
    check_tip(&store, "self", Some("self")).await;
    put(&stock, "a", Some("c"), 2.0, compressed(2.0));
    put(&stock, "b", Some("a"), 2.0, compressed(2.0));
    put(&stock, "c", Some("b"), 2.0, compressed(2.0));
    check_tip(&store, "a", Some("c")).await;
    check_tip(&store, "b", Some("a")).await;
    put(&stock, "in", None, 1.0, compressed(1.0));
    stock
        .execute(
            "UPDATE sessions SET parent_session_id = 'in' WHERE id = 'a'",
            [],
        )
        .unwrap();
    put(&stock, "a2", Some("c"), 2.0, compressed(2.0));
    check_tip(&store, "in", Some("a2")).await;
}

#[tokio::test]
async fn a_chain_is_followed_for_1000_steps() {
    let (_file, store, stock) = loose().await;
    stock.execute_batch("BEGIN").unwrap();
    put(&stock, "0", None, 0.0, compressed(1.0));
    for n in 1..1200_u32 {
        let (name, parent, time) = (n.to_string(), (n - 1).to_string(), f64::from(n));
        put(&stock, &name, Some(&parent), time, compressed(time + 1.0));
    }
    stock.execute_batch("COMMIT").unwrap();
    check_tip(&store, "0", Some("1000")).await;
    check_tip(&store, "199", Some("1199")).await;
    check_tip(&store, "198", Some("1198")).await;
    check_tip(&store, "200", Some("1199")).await;
}

/// Were each compared with all the others, this would take minutes.
#[tokio::test]
async fn many_children_cost_what_they_are() {
    let (_file, store, stock) = loose().await;
    stock.execute_batch("BEGIN").unwrap();
    put(&stock, "root", None, 0.0, compressed(1.0));
    for n in 0..20_000_u32 {
        put(&stock, &format!("c{n:05}"), Some("root"), 2.0, None);
    }
    stock.execute_batch("COMMIT").unwrap();
    let hasty = store
        .with_deadline(std::time::Duration::from_secs(2))
        .unwrap();
    let tip = hasty.compression_tip(&id("root")).await.unwrap();
    assert_eq!(tip, Some(id("c19999")));
}

#[tokio::test]
async fn a_chain_that_this_crate_wrote() {
    let (_file, store) = store().await;
    let mut last = create(&store, "first").await;
    for n in 0..3 {
        store.end_session(&last, "compression").await.unwrap();
        let next = NewSession::new("cli")
            .id(SessionId::new(format!("next-{n}")).unwrap())
            .started_at(Timestamp::now())
            .parent(last);
        last = store.create_session(next).await.unwrap();
    }
    check_tip(&store, "first", Some("next-2")).await;
    // Opened again, it is not continued any more.
    store.reopen_session(&id("next-0")).await.unwrap();
    check_tip(&store, "first", Some("next-0")).await;
}
