//! Turns: all or nothing, at the place where they belong, once; and transcripts replaced whole.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod support;

use hermes_state::{Appended, Error, MessageId, NewMessage, Role, SessionId, SessionStore, Turn};
use support::{
    all, assert_index_is_right, counters, create, id, integer, json, rows, store_and_session, texts,
};

fn turn<const N: usize>(says: [&str; N]) -> Turn {
    Turn::new(says.map(NewMessage::user))
}

async fn append(store: &SessionStore, session: &SessionId, turn: Turn) -> Appended {
    store.append_turn(session, turn).await.unwrap()
}

#[track_caller]
fn assert_conflict(result: Result<Appended, Error>, expected: Option<MessageId>) {
    match result {
        Err(Error::Conflict { actual }) => assert_eq!(actual, expected),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_turns_ids_follow_one_another() {
    let (_file, store, session) = store_and_session().await;
    let first = append(&store, &session, turn(["a", "b", "c"])).await;
    let second = append(&store, &session, turn(["d", "e"])).await;
    let ids = [first.ids, second.ids].concat();
    assert!(
        ids.windows(2)
            .all(|pair| pair[1].get() == pair[0].get() + 1)
    );
    let read: Vec<MessageId> = all(&store, &session).await.iter().map(|m| m.id).collect();
    assert_eq!(read, ids);
}

#[tokio::test]
async fn a_turn_is_stored_whole_or_not_at_all() {
    let (file, store, session) = store_and_session().await;
    file.stock()
        .execute_batch(
            "CREATE TRIGGER picky BEFORE INSERT ON messages WHEN new.content = 'refused'
             BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();
    append(&store, &session, turn(["before"])).await;
    let before = file.dump();
    let large = "x".repeat(300 * 1024);
    for says in [
        ["a", "refused", "b"],
        ["a", "b", "refused"],
        [&large, "a", "refused"],
    ] {
        for turn in [
            turn(says),
            turn(says).key("k"),
            turn(says).expect_last(MessageId::new(1)),
        ] {
            let refused = store.append_turn(&session, turn).await;
            assert!(
                matches!(refused, Err(Error::Constraint { .. })),
                "{refused:?}"
            );
            assert_eq!(file.dump(), before);
        }
    }
    let replaced = store
        .replace_transcript(&session, ["a", "refused"].map(NewMessage::user))
        .await;
    assert!(matches!(replaced, Err(Error::Constraint { .. })));
    assert_eq!(file.dump(), before);
    assert_eq!(
        append(&store, &session, turn(["a", "b"]).key("k"))
            .await
            .ids
            .len(),
        2
    );
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn a_turn_that_others_refuse_takes_no_neighbour_along() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    file.stock()
        .execute_batch(
            "CREATE TRIGGER picky BEFORE INSERT ON messages WHEN new.content = 'refused'
             BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();
    let (first, refused, second, third) = tokio::join!(
        store.append_turn(&session, turn(["a", "b"])),
        store.append_turn(&session, turn(["c", "refused"])),
        store.append_turn(&other, turn(["d"])),
        store.append_turn(&session, turn(["e"])),
    );
    assert!(matches!(refused, Err(Error::Constraint { .. })));
    assert_eq!(
        [first, second, third].map(|turn| turn.unwrap().ids.len()),
        [2, 1, 1]
    );
    assert_eq!(texts(&all(&store, &session).await), ["a", "b", "e"]);
    assert_eq!(texts(&all(&store, &other).await), ["d"]);
    assert_eq!(counters(&store, &session).await, (3, 0));
}

#[tokio::test]
async fn a_turn_that_expects_another_end_is_a_conflict() {
    let (file, store, session) = store_and_session().await;
    let nothing = file.dump();
    let early = turn(["x"]).expect_last(MessageId::new(1));
    assert_conflict(store.append_turn(&session, early).await, None);
    assert_eq!(file.dump(), nothing);

    let first = append(&store, &session, turn(["a", "b"]).expect_empty()).await;
    let [one, two] = first.ids[..] else { panic!() };
    // Another session's messages are not this one's end.
    let other = create(&store, "t").await;
    append(&store, &other, turn(["elsewhere"]).expect_empty()).await;

    let before = file.dump();
    for wrong in [
        turn(["x"]).expect_empty(),
        turn(["x"]).expect_last(one),
        turn(["x"]).expect_last(MessageId::new(two.get() + 1)),
        turn(["x"]).expect_last(MessageId::new(i64::MAX)),
        turn(["x"]).expect_last(one).key("k"),
        turn([]).expect_last(one),
    ] {
        assert_conflict(store.append_turn(&session, wrong).await, Some(two));
        assert_eq!(file.dump(), before);
    }
    let third = append(&store, &session, turn(["c"]).expect_last(two).key("k")).await;
    assert!(!third.repeated, "a conflict does not use up the key");
    store.clear_messages(&session).await.unwrap();
    let gone = turn(["x"]).expect_last(third.ids[0]);
    assert_conflict(store.append_turn(&session, gone).await, None);
    append(&store, &session, turn(["new"]).expect_empty()).await;
    assert_eq!(texts(&all(&store, &session).await), ["new"]);
}

#[tokio::test]
async fn of_two_turns_that_expect_the_same_end_one_is_stored() {
    let (_file, store, session) = store_and_session().await;
    let last = append(&store, &session, turn(["a"])).await.ids[0];
    let (one, two, free) = tokio::join!(
        store.append_turn(&session, turn(["b"]).expect_last(last)),
        store.append_turn(&session, turn(["c"]).expect_last(last)),
        store.append_turn(&session, turn(["d"])),
    );
    assert_conflict(two, one.unwrap().last_id());
    assert_eq!(free.unwrap().ids.len(), 1);
    assert_eq!(texts(&all(&store, &session).await), ["a", "b", "d"]);
}

#[tokio::test]
async fn a_key_makes_a_turn_safe_to_repeat() {
    let (file, store, session) = store_and_session().await;
    let first = append(&store, &session, turn(["a", "b"]).key("k")).await;
    assert!(!first.repeated);
    append(&store, &session, turn(["c"])).await;
    let before = file.dump();
    // The key alone tells, not what the turn says.
    for again in [
        turn(["a", "b"]).key("k"),
        turn(["other"]).key("k"),
        turn([]).key("k"),
    ] {
        let again = append(&store, &session, again).await;
        assert_eq!((again.ids, again.repeated), (first.ids.clone(), true));
        assert_eq!(file.dump(), before);
    }
    let alone = NewMessage::user("a").key("k");
    let again = store.append_message(&session, alone).await.unwrap();
    assert_eq!((again.ids, again.repeated), (first.ids.clone(), true));

    // A position that holds no longer does not stop a repeat.
    let again = append(&store, &session, turn(["a", "b"]).key("k").expect_empty()).await;
    assert_eq!((again.ids, again.repeated), (first.ids, true));
    assert_eq!(file.dump(), before);
}

#[tokio::test]
async fn a_key_outlives_its_messages() {
    let (_file, store, session) = store_and_session().await;
    let first = append(&store, &session, turn(["a", "b"]).key("k")).await;
    store
        .replace_transcript(&session, [NewMessage::user("summary")])
        .await
        .unwrap();
    let again = append(&store, &session, turn(["a", "b"]).key("k")).await;
    assert_eq!((&again.ids, again.repeated), (&first.ids, true));
    store.clear_messages(&session).await.unwrap();
    let again = append(&store, &session, turn(["a", "b"]).key("k")).await;
    assert_eq!((&again.ids, again.repeated), (&first.ids, true));
    assert_eq!(all(&store, &session).await, []);
    assert_eq!(counters(&store, &session).await, (0, 0));
}

#[tokio::test]
async fn a_key_belongs_to_one_session_and_is_exact() {
    let (_file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    let longest = "k".repeat(512);
    let keys = [
        "k", "K", "k ", "k\0", "k\0a", "1", "1.0", "键", "é", "e\u{301}", &longest,
    ];
    for key in keys {
        let here = append(&store, &session, turn(["here"]).key(key)).await;
        let there = append(&store, &other, turn(["there"]).key(key)).await;
        assert_eq!((here.repeated, there.repeated), (false, false), "{key:?}");
        assert_eq!(
            append(&store, &session, turn(["again"]).key(key)).await.ids,
            here.ids
        );
        assert_eq!(
            append(&store, &other, turn(["again"]).key(key)).await.ids,
            there.ids
        );
    }
    assert_eq!(counters(&store, &session).await.0, 11);
}

#[tokio::test]
async fn keys_die_with_their_session() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    append(&store, &session, turn(["a"]).key("k")).await;
    append(&store, &other, turn(["b"]).key("k")).await;
    file.stock()
        .execute_batch(
            "BEGIN; DELETE FROM messages WHERE session_id = 's';
             DELETE FROM sessions WHERE id = 's'; COMMIT;",
        )
        .unwrap();
    let gone = store.append_turn(&session, turn(["a"]).key("k")).await;
    assert!(matches!(gone, Err(Error::SessionNotFound { .. })));
    create(&store, "s").await;
    assert!(
        !append(&store, &session, turn(["a"]).key("k"))
            .await
            .repeated
    );
    assert!(append(&store, &other, turn(["b"]).key("k")).await.repeated);

    file.stock()
        .execute_batch("DELETE FROM messages; UPDATE sessions SET id = 'renamed' WHERE id = 's'")
        .unwrap();
    assert!(
        append(&store, &id("renamed"), turn(["a"]).key("k"))
            .await
            .repeated
    );
    assert_eq!(
        integer(&file.stock(), "SELECT COUNT(*) FROM append_keys"),
        2
    );
}

#[tokio::test]
async fn two_appends_with_the_same_key_at_once_store_once() {
    let (file, store, session) = store_and_session().await;
    let neighbour = file.open().await;
    let keyed = || turn(["a", "b"]).key("k");
    // Together in one transaction, and from a second store on the same file.
    let (one, two, three) = tokio::join!(
        store.append_turn(&session, keyed()),
        store.append_turn(&session, keyed()),
        neighbour.append_turn(&session, keyed()),
    );
    let all_three = [one.unwrap(), two.unwrap(), three.unwrap()];
    assert_eq!(
        all_three
            .iter()
            .filter(|appended| !appended.repeated)
            .count(),
        1
    );
    assert!(
        all_three
            .iter()
            .all(|appended| appended.ids == all_three[0].ids)
    );
    assert_eq!(texts(&all(&store, &session).await), ["a", "b"]);
    assert_eq!(counters(&store, &session).await, (2, 0));
}

#[tokio::test]
async fn an_empty_turn_stores_nothing_but_its_key() {
    let (_file, store, session) = store_and_session().await;
    let empty = append(&store, &session, turn([])).await;
    assert_eq!(
        (empty.last_id(), empty.ids, empty.repeated),
        (None, vec![], false)
    );
    let keyed = append(&store, &session, turn([]).key("k")).await;
    assert_eq!((keyed.ids, keyed.repeated), (vec![], false));
    let again = append(&store, &session, turn(["late"]).key("k")).await;
    assert_eq!((again.ids, again.repeated), (vec![], true));
    let end = append(&store, &session, turn(["a"])).await.ids[0];
    append(&store, &session, turn([]).expect_last(end)).await;
    assert_eq!(counters(&store, &session).await, (1, 0));
}

#[tokio::test]
async fn many_appends_at_once_each_get_their_own_ids() {
    let (_file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    let appends = (0..40).map(|n| {
        let (store, session) = (&store, if n % 3 == 0 { &other } else { &session });
        async move {
            let says = (0..n % 4).map(|m| NewMessage::user(format!("{n}.{m}")));
            let mut turn = Turn::new(says);
            if n % 5 == 0 {
                turn = turn.key(n.to_string());
            }
            (n, store.append_turn(session, turn).await.unwrap().ids)
        }
    });
    let appended = futures_util::future::join_all(appends).await;
    let (here, there) = (all(&store, &session).await, all(&store, &other).await);
    for (n, ids) in appended {
        assert_eq!(ids.len(), n % 4);
        for (m, id) in ids.into_iter().enumerate() {
            let place = if n % 3 == 0 { &there } else { &here };
            let message = place.iter().find(|message| message.id == id).unwrap();
            assert_eq!(message.content, Some(format!("{n}.{m}").into()));
        }
    }
    assert_eq!(
        counters(&store, &session).await.0,
        i64::try_from(here.len()).unwrap()
    );
    assert_eq!(
        counters(&store, &other).await.0,
        i64::try_from(there.len()).unwrap()
    );
}

/// Statements exist for some numbers of rows only; the numbers between must not show.
#[tokio::test]
async fn turns_of_any_length_are_stored_as_they_are() {
    let (file, store, session) = store_and_session().await;
    let mut said = Vec::new();
    let lengths = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33,
    ];
    for length in lengths
        .into_iter()
        .chain([47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 257])
    {
        let says: Vec<String> = (0..length).map(|n| format!("{n} of {length}")).collect();
        let turn = || Turn::new(says.iter().map(|text| NewMessage::user(text.as_str())));
        // Once as a transaction in one piece, once statement by statement.
        for turn in [turn(), turn().key(length.to_string())] {
            let ids = append(&store, &session, turn).await.ids;
            assert_eq!(ids.len(), length);
            said.extend(ids.into_iter().zip(says.clone()));
        }
    }
    let read = all(&store, &session).await;
    let read: Vec<_> = read
        .iter()
        .map(|message| message.id)
        .zip(texts(&read))
        .collect();
    assert!(read == said, "the messages differ");
    let count = i64::try_from(said.len()).unwrap();
    assert_eq!(counters(&store, &session).await, (count, 0));
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn large_and_small_rows_of_a_turn_keep_their_order() {
    let (file, store, session) = store_and_session().await;
    let large = 256 * 1024;
    let sizes = [
        1,
        2,
        large,
        3,
        large - 8,
        4,
        5,
        large + 1,
        2 * large,
        6,
        7,
        large,
        large,
    ];
    let says: Vec<String> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| {
            let n = char::from_digit(u32::try_from(n).unwrap(), 36).unwrap();
            n.to_string().repeat(*size)
        })
        .collect();
    let turn = Turn::new(says.iter().map(|text| NewMessage::user(text.as_str())));
    let ids = append(&store, &session, turn).await.ids;
    let read = all(&store, &session).await;
    assert_eq!(
        read.iter().map(|message| message.id).collect::<Vec<_>>(),
        ids
    );
    assert!(texts(&read) == says, "the texts differ");
    assert!(
        ids.windows(2)
            .all(|pair| pair[1].get() == pair[0].get() + 1)
    );
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn a_turn_over_four_mebibytes_is_stored_whole() {
    let (file, store, session) = store_and_session().await;
    // Each row is small enough to share a statement; all of them are not.
    let says: Vec<String> = (0..60).map(|n| format!("{n} ").repeat(35_000)).collect();
    let turn = Turn::new(says.iter().map(|text| NewMessage::user(text.as_str()))).key("big");
    let (big, small) = tokio::join!(
        store.append_turn(&session, turn),
        store.append_message(&session, NewMessage::user("small")),
    );
    let (big, small) = (big.unwrap().ids, small.unwrap().ids);
    let read = all(&store, &session).await;
    assert_eq!(read.len(), 61);
    assert!(
        read.iter()
            .zip([big, small].concat())
            .all(|(message, id)| message.id == id)
    );
    assert!(texts(&read[..60]) == says, "the texts differ");
    assert_eq!(counters(&store, &session).await, (61, 0));
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn a_turn_may_have_ten_thousand_messages() {
    let (file, store, session) = store_and_session().await;
    let says = (0..10_000).map(|n| match n % 3 {
        0 => NewMessage::user(n.to_string()),
        1 => NewMessage::new(Role::Assistant).tool_calls(json(r#"[{"name":"a"},{"name":"b"}]"#)),
        _ => NewMessage::tool("c", n.to_string()),
    });
    let ids = append(&store, &session, Turn::new(says)).await.ids;
    assert_eq!(ids.len(), 10_000);
    assert_eq!(counters(&store, &session).await, (10_000, 2 * 3333));
    let read = all(&store, &session).await;
    for (n, (message, id)) in read.iter().zip(ids).enumerate() {
        let text = (n % 3 != 1).then(|| n.to_string().into());
        assert_eq!((message.id, &message.content), (id, &text));
    }
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn a_transcript_is_replaced_with_its_counters_and_its_index() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    append(&store, &other, turn(["keep me"])).await;
    let call = |calls: &str| NewMessage::new(Role::Assistant).tool_calls(json(calls));
    let old = Turn::new([
        NewMessage::user("alpha"),
        call(r#"[{"name":"x"},{"name":"y"}]"#),
    ]);
    let old = append(&store, &session, old).await.ids;

    let new = [
        NewMessage::system("summary beta"),
        call(r#"{"name":"z"}"#),
        NewMessage::user("c"),
    ];
    let ids = store.replace_transcript(&session, new).await.unwrap();
    assert!(ids.len() == 3 && ids[0] > old[1]);
    let read = all(&store, &session).await;
    assert_eq!(
        read.iter().map(|message| message.id).collect::<Vec<_>>(),
        ids
    );
    assert_eq!(texts(&read), ["summary beta", "-", "c"]);
    assert_eq!(counters(&store, &session).await, (3, 1));
    assert_eq!(texts(&all(&store, &other).await), ["keep me"]);
    assert_eq!(counters(&store, &other).await, (1, 0));

    let stock = file.stock();
    let found = |word: &str| {
        let sql = format!("SELECT rowid FROM messages_fts WHERE messages_fts MATCH '{word}'");
        rows(&stock, &sql).concat()
    };
    assert_eq!(found("alpha"), Vec::<String>::new());
    assert_eq!(found("beta"), [ids[0].to_string()]);
    assert_index_is_right(&stock);
}

#[tokio::test]
async fn a_transcript_may_be_replaced_with_nothing() {
    let (file, store, session) = store_and_session().await;
    append(&store, &session, turn(["a", "b"])).await;
    assert_eq!(store.replace_transcript(&session, []).await.unwrap(), []);
    assert_eq!(all(&store, &session).await, []);
    assert_eq!(counters(&store, &session).await, (0, 0));
    let ids = store
        .replace_transcript(&session, [NewMessage::user("c")])
        .await
        .unwrap();
    assert_eq!(ids.len(), 1);
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn replacing_in_an_unknown_session_stores_nothing() {
    let (file, store, _session) = store_and_session().await;
    let before = file.dump();
    let refused = store
        .replace_transcript(&id("nobody"), [NewMessage::user("x")])
        .await;
    assert!(matches!(refused, Err(Error::SessionNotFound { id: i }) if i == id("nobody")));
    let refused = store.clear_messages(&id("nobody")).await;
    assert!(matches!(refused, Err(Error::SessionNotFound { id: i }) if i == id("nobody")));
    assert_eq!(file.dump(), before);
}

/// A trigger may leave rows out without an error: such a turn was once acknowledged.
#[tokio::test]
async fn a_turn_whose_rows_a_trigger_leaves_out_is_refused() {
    let (file, store, session) = store_and_session().await;
    append(&store, &session, turn(["one"])).await;
    file.stock()
        .execute_batch(
            "CREATE TRIGGER silent BEFORE INSERT ON messages WHEN new.content = 'ignored'
             BEGIN SELECT RAISE(IGNORE); END",
        )
        .unwrap();
    let before = file.dump();
    let ignored = [
        turn(["ignored"]),
        turn(["fine", "ignored"]),
        turn(["ignored"]).key("key"),
    ];
    for turn in ignored {
        let refused = store.append_turn(&session, turn).await;
        assert!(
            matches!(refused, Err(Error::Constraint { .. })),
            "{refused:?}"
        );
        assert_eq!(file.dump(), before);
    }
    append(&store, &session, turn(["two"])).await;
    assert_eq!(texts(&all(&store, &session).await), ["one", "two"]);
    assert_eq!(counters(&store, &session).await, (2, 0));
}
