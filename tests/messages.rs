//! Messages: what is stored, how it is counted, in which order and which part of it is read.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod support;

use futures_util::TryStreamExt as _;
use hermes_state::{
    Error, Json, Message, MessageId, MessageRange, NewMessage, Role, SessionId, SessionStore,
    Timestamp, Turn,
};
use support::{File, all, counters, create, id, integer, json, rows, store_and_session, texts};

/// A message with every field set.
fn full() -> NewMessage {
    NewMessage::new(Role::Assistant)
        .content("内容\0\n🦀")
        .tool_call_id("call_0")
        .tool_calls(json(
            r#"[ {"id":"call_1","function":{"name":"ls","arguments":"{\"a\":1}"}} ]"#,
        ))
        .tool_name("given")
        .timestamp(seconds(1_700_000_000.123_456_7))
        .token_count(42)
        .finish_reason("tool_calls")
        .reasoning("I should look.")
        .reasoning_details(json(r#"[{"b":1e3,"a":"\u00e9"}]"#))
        .codex_reasoning_items(json(r#"{"encrypted":"..."}"#))
        .extra(json(r#"{"mine":[1,2]}"#))
}

fn seconds(seconds: f64) -> Timestamp {
    Timestamp::from_unix_seconds(seconds).unwrap()
}

fn calls(text: &str) -> NewMessage {
    NewMessage::new(Role::Assistant).tool_calls(json(text))
}

#[track_caller]
fn assert_full(message: &Message) {
    assert_eq!(message.session_id, id("s"));
    assert_eq!(message.role, Role::Assistant);
    assert_eq!(message.content, Some("内容\0\n🦀".into()));
    assert_eq!(message.tool_call_id.as_deref(), Some("call_0"));
    assert_eq!(
        message.tool_calls.as_ref().map(Json::as_str),
        Some(r#"[ {"id":"call_1","function":{"name":"ls","arguments":"{\"a\":1}"}} ]"#)
    );
    assert_eq!(message.tool_name.as_deref(), Some("given"));
    assert_eq!(message.timestamp, seconds(1_700_000_000.123_456_7));
    assert_eq!(message.token_count, Some(42));
    assert_eq!(message.finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(message.reasoning.as_deref(), Some("I should look."));
    let texts = [
        &message.reasoning_details,
        &message.codex_reasoning_items,
        &message.extra,
    ];
    assert_eq!(
        texts.map(|json| json.as_ref().map(Json::as_str)),
        [
            Some(r#"[{"b":1e3,"a":"\u00e9"}]"#),
            Some(r#"{"encrypted":"..."}"#),
            Some(r#"{"mine":[1,2]}"#)
        ]
    );
}

const ROW: &str = "SELECT session_id, role, hex(content), tool_call_id, tool_calls, tool_name,
    timestamp, token_count, finish_reason, reasoning, reasoning_details, codex_reasoning_items,
    extra_json, typeof(timestamp), typeof(token_count) FROM messages ORDER BY id";

#[tokio::test]
async fn every_field_comes_back_alone_and_in_a_turn() {
    let (file, store, session) = store_and_session().await;
    let alone = store.append_message(&session, full()).await.unwrap();
    let turn = store
        .append_turn(&session, Turn::new([full(), full()]))
        .await
        .unwrap();
    assert_eq!((alone.ids.len(), turn.ids.len()), (1, 2));
    assert_eq!((alone.repeated, turn.repeated), (false, false));

    let messages = all(&store, &session).await;
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
    assert_eq!(ids, [alone.ids, turn.ids.clone()].concat());
    assert_eq!(turn.last_id(), ids.last().copied());
    messages.iter().for_each(assert_full);
    let stored = rows(&file.stock(), ROW);
    assert_eq!(
        stored[0], stored[1],
        "both ways into the file write the same row"
    );
    assert_eq!(stored[0][6], "1700000000.1234567");
    assert_eq!(&stored[0][13..], ["\"real\"", "\"integer\""]);
}

#[tokio::test]
async fn a_field_that_was_not_given_is_none_and_an_empty_one_is_empty() {
    let (file, store, session) = store_and_session().await;
    let nothing = || NewMessage::new(Role::User);
    let empty = || {
        NewMessage::user("")
            .tool_call_id("")
            .tool_name("")
            .finish_reason("")
            .reasoning("")
            .token_count(0)
    };
    store.append_message(&session, nothing()).await.unwrap();
    store.append_message(&session, empty()).await.unwrap();
    store
        .append_turn(&session, Turn::new([nothing(), empty()]))
        .await
        .unwrap();
    let stored = rows(
        &file.stock(),
        "SELECT content, tool_call_id, tool_calls, tool_name, finish_reason, reasoning,
             token_count, content_parts, reasoning_details, codex_reasoning_items, extra_json
         FROM messages ORDER BY id",
    );
    let messages = all(&store, &session).await;
    for (message, stored) in messages.iter().zip(&stored).step_by(2) {
        assert_eq!(stored, &["NULL"; 11]);
        assert_eq!((&message.content, &message.tool_call_id), (&None, &None));
        assert_eq!((&message.tool_calls, &message.tool_name), (&None, &None));
        assert_eq!((&message.finish_reason, &message.reasoning), (&None, &None));
        assert_eq!((message.token_count, &message.extra), (None, &None));
    }
    for (message, stored) in messages.iter().zip(&stored).skip(1).step_by(2) {
        assert_eq!(stored[..2], ["\"\"", "\"\""]);
        assert_eq!(message.content, Some("".into()));
        assert_eq!(message.tool_call_id.as_deref(), Some(""));
        assert_eq!(message.tool_name.as_deref(), Some(""));
        assert_eq!(message.finish_reason.as_deref(), Some(""));
        assert_eq!(message.reasoning.as_deref(), Some(""));
        assert_eq!(message.token_count, Some(0));
    }
}

#[tokio::test]
async fn any_role_survives() {
    let (file, store, session) = store_and_session().await;
    let roles = [
        (Role::System, "system"),
        (Role::Developer, "developer"),
        (Role::User, "user"),
        (Role::Assistant, "assistant"),
        (Role::Tool, "tool"),
        (Role::Other("function".to_owned()), "function"),
        (Role::Other("用户".to_owned()), "用户"),
        (Role::Other("User".to_owned()), "User"),
        (Role::Other(String::new()), ""),
    ];
    let messages = || roles.iter().map(|(role, _)| NewMessage::new(role.clone()));
    for message in messages() {
        store.append_message(&session, message).await.unwrap();
    }
    store
        .append_turn(&session, Turn::new(messages()))
        .await
        .unwrap();
    let read: Vec<Role> = all(&store, &session)
        .await
        .into_iter()
        .map(|m| m.role)
        .collect();
    let stored = rows(&file.stock(), "SELECT role FROM messages ORDER BY id");
    for (n, (role, word)) in roles.iter().chain(&roles).enumerate() {
        assert_eq!(&read[n], role);
        assert_eq!(stored[n], [format!("{word:?}")]);
    }
    assert_eq!(Role::from("tool"), Role::Tool);
}

#[tokio::test]
async fn messages_and_tool_calls_are_counted() {
    let (file, store, session) = store_and_session().await;
    let mut expected = (0, 0);
    for (message, tools) in [
        (NewMessage::user("hello"), 0),
        (calls(r#"[{"name":"a"},{"name":"b"},[1,2]]"#), 3),
        (calls(r#"{"name":"a"}"#), 1),
        (calls(r#""a string that says [1,2,3]""#), 1),
        (calls("7"), 1),
        (calls("null"), 0),
        (calls("[]"), 0),
        (calls(" [ ] "), 0),
        (NewMessage::tool("call_1", "its result"), 0),
        (NewMessage::tool("call_2", "its result").tool_name("ls"), 0),
    ] {
        store
            .append_message(&session, message.clone())
            .await
            .unwrap();
        expected = (expected.0 + 1, expected.1 + tools);
        assert_eq!(counters(&store, &session).await, expected);
        store
            .append_turn(&session, Turn::new([message.clone(), message]))
            .await
            .unwrap();
        expected = (expected.0 + 2, expected.1 + 2 * tools);
        assert_eq!(counters(&store, &session).await, expected);
    }
    let stock = file.stock();
    assert_eq!(integer(&stock, "SELECT COUNT(*) FROM messages"), expected.0);
}

#[tokio::test]
async fn no_tool_calls_are_stored_as_none() {
    let (_file, store, session) = store_and_session().await;
    let none = Turn::new([calls("null"), calls("[]"), calls("[ ]")]);
    store.append_turn(&session, none).await.unwrap();
    for message in all(&store, &session).await {
        assert_eq!((message.tool_calls, message.tool_name), (None, None));
    }
}

#[tokio::test]
async fn a_counter_that_is_null_counts_as_zero() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    let forget = "UPDATE sessions SET message_count = NULL, tool_call_count = NULL";
    let call = || calls(r#"[{"name":"a"}]"#);
    file.stock().execute(forget, []).unwrap();
    assert_eq!(counters(&store, &session).await, (0, 0));
    store.append_message(&session, call()).await.unwrap();
    assert_eq!(counters(&store, &session).await, (1, 1));

    file.stock().execute(forget, []).unwrap();
    // Two sessions, one statement.
    let (one, two) = tokio::join!(
        store.append_message(&session, call()),
        store.append_message(&other, call())
    );
    assert_eq!((one.unwrap().ids.len(), two.unwrap().ids.len()), (1, 1));
    assert_eq!(counters(&store, &session).await, (1, 1));
    assert_eq!(counters(&store, &other).await, (1, 1));
}

#[tokio::test]
async fn the_tool_name_is_that_of_the_first_call() {
    let (_file, store, session) = store_and_session().await;
    for (text, name) in [
        (
            r#"[{"id":"1","type":"function","function":{"name":"ls","arguments":"{}"}}]"#,
            Some("ls"),
        ),
        (
            r#"[{"function":{"name":"a"}},{"function":{"name":"b"}}]"#,
            Some("a"),
        ),
        (r#"[{"name":"read_file","input":{}}]"#, Some("read_file")),
        (r#"{"function":{"name":"alone"}}"#, Some("alone")),
        (
            r#"[{"function":{"arguments":"{\"name\":\"no\"}"},"name":"plain"}]"#,
            Some("plain"),
        ),
        (
            r#"[{"function":{"arguments":"{\"name\":\"no\"}","name":"安\u88c5"}}]"#,
            Some("安装"),
        ),
        (r#"[{"function":"ls","name":"plain"}]"#, Some("plain")),
        (r#"[{"function":{"name":""}}]"#, None),
        (r#"[{"function":{"name":7}}]"#, None),
        (r#"[{"id":"1"},{"name":"second"}]"#, None),
        (r#"[["x","y"]]"#, None),
        (r#"[{"function":["x","y"]}]"#, None),
        (r#"["ls"]"#, None),
        (r#""[{\"name\":\"encoded twice\"}]""#, None),
        ("5", None),
    ] {
        store.append_message(&session, calls(text)).await.unwrap();
        let last = store
            .messages(&session, MessageRange::last(1))
            .await
            .unwrap();
        assert_eq!(last[0].tool_name.as_deref(), name, "{text}");
        assert_eq!(last[0].tool_calls, Some(json(text)));

        store
            .append_message(&session, calls(text).tool_name("mine"))
            .await
            .unwrap();
        let last = store
            .messages(&session, MessageRange::last(1))
            .await
            .unwrap();
        assert_eq!(last[0].tool_name.as_deref(), Some("mine"), "{text}");
    }
}

#[tokio::test]
async fn a_message_is_said_when_it_is_appended_unless_told_otherwise() {
    let (file, store, session) = store_and_session().await;
    let before = Timestamp::now();
    store
        .append_message(&session, NewMessage::user("now"))
        .await
        .unwrap();
    let now = all(&store, &session).await[0].timestamp;
    assert!(before <= now && now <= Timestamp::now());

    store.clear_messages(&session).await.unwrap();
    let times = [
        0.0,
        -0.0,
        f64::MIN_POSITIVE,
        1.0,
        1_700_000_000.1,
        99_999_999_999.999,
    ];
    let messages = times.map(|time| NewMessage::user("then").timestamp(seconds(time)));
    for message in messages.clone() {
        store.append_message(&session, message).await.unwrap();
    }
    store
        .append_turn(&session, Turn::new(messages))
        .await
        .unwrap();
    let stored = rows(&file.stock(), "SELECT timestamp FROM messages ORDER BY id");
    for (n, message) in all(&store, &session).await.iter().enumerate() {
        let time = times[n % times.len()];
        assert_eq!(message.timestamp, seconds(time));
        assert_eq!(stored[n], [format!("{:?}", time.abs())]);
    }
}

#[test]
fn only_plausible_seconds_are_times() {
    let now_in_milliseconds = 1_700_000_000_000.0;
    for refused in [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1.0,
        -f64::MIN_POSITIVE,
        1e11,
        now_in_milliseconds,
        f64::MAX,
    ] {
        match Timestamp::from_unix_seconds(refused) {
            Err(Error::InvalidInput { what, .. }) => assert_eq!(what, "timestamp"),
            other => panic!("{refused}: {other:?}"),
        }
    }
    let last = 1e11_f64.next_down();
    assert_eq!(seconds(last).as_unix_seconds().to_bits(), last.to_bits());
    assert_eq!(seconds(-0.0).as_unix_seconds().to_bits(), 0.0_f64.to_bits());
}

/// Eleven messages in one clock tick and one after the clock was set back: the order is that of
/// appending, and the last ten are the last ten.
#[tokio::test]
async fn a_transcript_is_in_the_order_of_appending_whatever_the_clock_says() {
    let (_file, store, session) = store_and_session().await;
    let at = |n: usize, time| NewMessage::user(n.to_string()).timestamp(seconds(time));
    for n in 0..11 {
        store.append_message(&session, at(n, 1000.0)).await.unwrap();
    }
    store
        .append_message(&session, at(11, 999.96))
        .await
        .unwrap();
    store
        .append_turn(&session, Turn::new([at(12, 5.0), at(13, 4.0)]))
        .await
        .unwrap();

    let said: Vec<String> = (0..14).map(|n| n.to_string()).collect();
    assert_eq!(texts(&all(&store, &session).await), said);
    let last = store
        .messages(&session, MessageRange::last(10))
        .await
        .unwrap();
    assert_eq!(texts(&last), said[4..]);
    let conversation = store.conversation(&session).await.unwrap();
    let read: Vec<String> = conversation
        .messages
        .iter()
        .map(|message| message.content.as_ref().unwrap().text().into_owned())
        .collect();
    assert_eq!(read, said);
}

/// Ten messages `0`–`9`, with another session's between them. Returns their ids.
async fn ten(store: &SessionStore, session: &SessionId) -> Vec<MessageId> {
    let other = create(store, "t").await;
    let mut ids = Vec::new();
    for n in 0..10 {
        let message = NewMessage::user(n.to_string());
        ids.extend(
            store
                .append_message(session, message.clone())
                .await
                .unwrap()
                .ids,
        );
        store.append_message(&other, message).await.unwrap();
    }
    ids
}

#[tokio::test]
async fn a_range_gives_its_messages_in_the_order_of_the_transcript() {
    let (_file, store, session) = store_and_session().await;
    let ids = ten(&store, &session).await;
    let (min, max) = (MessageId::new(i64::MIN), MessageId::new(i64::MAX));
    let between = MessageId::new(ids[3].get() + 1);
    for (range, expected) in [
        (MessageRange::all(), "0123456789"),
        (MessageRange::default(), "0123456789"),
        (MessageRange::first(3), "012"),
        (MessageRange::last(3), "789"),
        (MessageRange::first(0), ""),
        (MessageRange::last(0), ""),
        (MessageRange::first(usize::MAX), "0123456789"),
        (MessageRange::last(usize::MAX), "0123456789"),
        (MessageRange::all().after(ids[6]), "789"),
        (MessageRange::all().before(ids[2]), "01"),
        (MessageRange::all().after(between), "456789"),
        (MessageRange::all().before(between), "0123"),
        (MessageRange::all().after(ids[2]).before(ids[6]), "345"),
        (MessageRange::first(2).after(ids[2]).before(ids[6]), "34"),
        (MessageRange::last(2).after(ids[2]).before(ids[6]), "45"),
        (MessageRange::last(9).after(ids[2]).before(ids[6]), "345"),
        (MessageRange::last(3).before(ids[5]), "234"),
        (MessageRange::first(3).after(ids[5]), "678"),
        (MessageRange::all().after(ids[6]).before(ids[2]), ""),
        (MessageRange::all().after(ids[4]).before(ids[4]), ""),
        (MessageRange::all().after(ids[9]), ""),
        (MessageRange::all().before(ids[0]), ""),
        (MessageRange::all().after(min).before(max), "0123456789"),
        (MessageRange::all().after(max), ""),
        (MessageRange::last(3).after(max), ""),
        (MessageRange::all().before(min), ""),
        (MessageRange::last(2).after(min), "89"),
    ] {
        let messages = store.messages(&session, range).await.unwrap();
        assert_eq!(texts(&messages).concat(), expected, "{range:?}");
    }
    let nobody = store
        .messages(&id("nobody"), MessageRange::all())
        .await
        .unwrap();
    assert_eq!(nobody, []);
}

/// A row may have any integer as its id when another program gives it one.
#[tokio::test]
async fn the_smallest_and_the_greatest_id_are_part_of_the_transcript() {
    let (file, store, session) = store_and_session().await;
    for id in [i64::MIN, -1, 0, 1, i64::MAX] {
        file.stock()
            .execute(
                "INSERT INTO messages(id, session_id, role, content, timestamp)
                 VALUES (?1, 's', 'user', ?1, 1.0)",
                [id],
            )
            .unwrap();
    }
    let said = [i64::MIN, -1, 0, 1, i64::MAX].map(|id| id.to_string());
    assert_eq!(texts(&all(&store, &session).await), said);
    let streamed: Vec<Message> = store.message_stream(&session).try_collect().await.unwrap();
    assert_eq!(texts(&streamed), said);
    assert_eq!(
        store.conversation(&session).await.unwrap().messages.len(),
        5
    );
    for (range, count) in [
        (MessageRange::last(2), 2),
        (MessageRange::first(2), 2),
        (MessageRange::all().after(MessageId::new(i64::MIN)), 4),
        (MessageRange::all().before(MessageId::new(i64::MAX)), 4),
        (MessageRange::all().after(MessageId::new(i64::MAX)), 0),
        (MessageRange::all().before(MessageId::new(i64::MIN)), 0),
    ] {
        assert_eq!(
            store.messages(&session, range).await.unwrap().len(),
            count,
            "{range:?}"
        );
    }
}

fn numbered(count: usize) -> Turn {
    Turn::new((0..count).map(|n| NewMessage::user(n.to_string())))
}

#[tokio::test]
async fn a_stream_gives_the_whole_transcript_page_by_page() {
    let (_file, store, session) = store_and_session().await;
    let other = create(&store, "t").await;
    for count in [0, 1, 255, 256, 257, 512, 600] {
        store.clear_messages(&session).await.unwrap();
        store.append_turn(&session, numbered(count)).await.unwrap();
        store
            .append_message(&other, NewMessage::user("not this one"))
            .await
            .unwrap();
        let streamed: Vec<Message> = store.message_stream(&session).try_collect().await.unwrap();
        assert_eq!(streamed.len(), count);
        assert_eq!(streamed, all(&store, &session).await);
    }
    let nobody: Vec<Message> = store
        .message_stream(&id("nobody"))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(nobody, []);
}

#[tokio::test]
async fn a_stream_ends_where_the_transcript_ended_when_it_began() {
    let (_file, store, session) = store_and_session().await;
    store.append_turn(&session, numbered(300)).await.unwrap();
    let mut stream = store.message_stream(&session);
    let mut streamed = vec![stream.try_next().await.unwrap().unwrap()];
    store.append_turn(&session, numbered(300)).await.unwrap();
    streamed.extend(stream.try_collect::<Vec<_>>().await.unwrap());
    let said: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    assert_eq!(texts(&streamed), said);
}

#[tokio::test]
async fn a_stream_passes_over_what_was_deleted_meanwhile() {
    let (_file, store, session) = store_and_session().await;
    store.append_turn(&session, numbered(600)).await.unwrap();
    let mut stream = store.message_stream(&session);
    let mut streamed = vec![stream.try_next().await.unwrap().unwrap()];
    store.clear_messages(&session).await.unwrap();
    streamed.extend(stream.try_collect::<Vec<_>>().await.unwrap());
    assert_eq!(streamed.len(), 256, "the page that was read before");
}

#[tokio::test]
async fn a_slow_stream_holds_nothing_in_the_database() {
    let (file, store, session) = store_and_session().await;
    store.append_turn(&session, numbered(600)).await.unwrap();
    let mut stream = store.message_stream(&session);
    stream.try_next().await.unwrap().unwrap();
    store
        .append_message(&session, NewMessage::user("later"))
        .await
        .unwrap();

    let truncated = rows(&file.stock(), "PRAGMA wal_checkpoint(TRUNCATE)");
    assert_eq!(truncated, [["0", "0", "0"]]);
    assert_eq!(stream.try_collect::<Vec<_>>().await.unwrap().len(), 599);
}

#[tokio::test]
async fn appending_to_an_unknown_session_stores_nothing() {
    let (file, store, session) = store_and_session().await;
    let before = file.dump();
    let nobody = id("nobody");
    let message = || NewMessage::user("x");
    let refused = [
        store.append_message(&nobody, message()).await.map(drop),
        store
            .append_message(&nobody, message().key("k"))
            .await
            .map(drop),
        store
            .append_turn(&nobody, Turn::new([message(), message()]))
            .await
            .map(drop),
        store.append_turn(&nobody, Turn::new([])).await.map(drop),
        store
            .append_turn(&nobody, Turn::new([]).expect_empty())
            .await
            .map(drop),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::SessionNotFound { id }) if id == nobody));
    }
    assert_eq!(file.dump(), before);

    // Written together, each has its own answer.
    let (known, unknown, again) = tokio::join!(
        store.append_message(&session, message()),
        store.append_turn(&nobody, Turn::new([message(), message()])),
        store.append_turn(&session, Turn::new([message(), message()])),
    );
    assert!(matches!(unknown, Err(Error::SessionNotFound { .. })));
    let ids = [known.unwrap().ids, again.unwrap().ids].concat();
    let read: Vec<MessageId> = all(&store, &session).await.iter().map(|m| m.id).collect();
    assert_eq!(read, ids);
    assert_eq!(counters(&store, &session).await, (3, 0));
}

/// SQLite can take a table apart from its foreign keys only by building it anew; some tools do.
#[tokio::test]
async fn an_unknown_session_is_found_out_without_a_foreign_key() {
    let file = File::new();
    file.stock()
        .execute_batch(
            "CREATE TABLE sessions(id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL);
             CREATE TABLE messages(id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
                 role TEXT NOT NULL, timestamp REAL NOT NULL);",
        )
        .unwrap();
    let store = file.open().await;
    let known = create(&store, "s").await;
    let nobody = id("nobody");
    let turn = || Turn::new(["a", "b"].map(NewMessage::user));
    let (here, there, again) = tokio::join!(
        store.append_turn(&known, turn()),
        store.append_turn(&nobody, turn()),
        store.append_turn(&known, turn()),
    );
    assert!(matches!(there, Err(Error::SessionNotFound { id }) if id == nobody));
    let ids = [here.unwrap().ids, again.unwrap().ids].concat();
    let read: Vec<MessageId> = all(&store, &known).await.iter().map(|m| m.id).collect();
    assert_eq!(read, ids);
    let before = file.dump();
    let alone = store.append_message(&nobody, NewMessage::user("x")).await;
    assert!(matches!(alone, Err(Error::SessionNotFound { id }) if id == nobody));
    assert_eq!(file.dump(), before);
}

/// The same while the store is open.
#[tokio::test]
async fn an_unknown_session_is_found_out_when_the_foreign_key_goes_away() {
    let (file, store, session) = store_and_session().await;
    store
        .append_message(&session, NewMessage::user("a"))
        .await
        .unwrap();
    file.stock()
        .execute_batch(
            "CREATE TABLE rebuilt AS SELECT * FROM messages; DROP TABLE messages;
             CREATE TABLE messages(id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
                 role TEXT NOT NULL, content TEXT, content_parts TEXT, tool_call_id TEXT,
                 tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, token_count INTEGER,
                 finish_reason TEXT, reasoning TEXT, reasoning_details TEXT,
                 codex_reasoning_items TEXT, extra_json TEXT);",
        )
        .unwrap();
    let nobody = id("nobody");
    let alone = store.append_message(&nobody, NewMessage::user("x")).await;
    assert!(matches!(alone, Err(Error::SessionNotFound { id }) if id == nobody));
    assert_eq!(integer(&file.stock(), "SELECT count(*) FROM messages"), 0);
}

#[tokio::test]
async fn an_id_is_never_given_out_twice() {
    let (file, store, session) = store_and_session().await;
    let turn = || Turn::new([NewMessage::user("a"), NewMessage::user("b")]);
    let mut last = store.append_turn(&session, turn()).await.unwrap().ids[1];
    for delete in [
        "DELETE FROM messages WHERE id = (SELECT MAX(id) FROM messages)",
        "DELETE FROM messages",
        "VACUUM",
    ] {
        file.stock().execute(delete, []).unwrap();
        let ids = store.append_turn(&session, turn()).await.unwrap().ids;
        assert_eq!(
            ids,
            [1, 2].map(|n| MessageId::new(last.get() + n)),
            "{delete}"
        );
        last = ids[1];
        store.clear_messages(&session).await.unwrap();
        let alone = store
            .append_message(&session, NewMessage::user("c"))
            .await
            .unwrap()
            .ids;
        assert_eq!(alone, [MessageId::new(last.get() + 1)], "{delete}");
        last = alone[0];
    }
}
