//! Rows of other programs: whatever they hold, no read fails, and each damaged cell is told once.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::future_not_send,
    reason = "a test crate, whose other program's connection stays on its thread"
)]

#[path = "support/log.rs"]
mod log;
mod support;

use futures_util::TryStreamExt as _;
use hermes_state::{
    Content, Conversation, EndReason, Json, Message, MessageRange, NewMessage, NewSession, Role,
    Scope, Session, SessionId, SessionStore, Timestamp, Turn,
};
use log::Log;
use rusqlite::Connection;
use support::{File, all, assert_index_is_right, counters, id, json, texts};

/// One field of a session.
type Field = fn(Session) -> Option<String>;

const MESSAGE: &str = "INSERT INTO messages(id, session_id, role, timestamp)
    VALUES (1, 's', 'assistant', 2.5)";

/// A store on a file in which another program left session `s` with one message.
async fn left_by_another_program() -> (File, SessionStore, SessionId, Connection) {
    let file = File::new();
    let store = file.open().await;
    let stock = file.stock();
    stock
        .execute_batch("INSERT INTO sessions(id, source, started_at) VALUES ('s', 'cli', 1.5)")
        .unwrap();
    stock.execute_batch(MESSAGE).unwrap();
    (file, store, id("s"), stock)
}

/// Sets one cell of the message, and reads it in all the ways there are.
async fn read_with(
    (store, session, stock): (&SessionStore, &SessionId, &Connection),
    (column, value): (&str, &str),
    log: &Log,
) -> (Message, Conversation, Vec<String>) {
    stock
        .execute_batch(&format!(
            "DELETE FROM messages; {MESSAGE}; UPDATE messages SET {column} = {value}"
        ))
        .unwrap();
    log.warnings();
    let message = all(store, session).await.remove(0);
    let warnings = log.warnings();
    let streamed: Vec<Message> = store.message_stream(session).try_collect().await.unwrap();
    assert_eq!(
        log.warnings(),
        warnings,
        "each read tells once: {column} = {value}"
    );
    assert_eq!(streamed[0], message);
    let conversation = store.conversation(session).await.unwrap();
    // A conversation has fewer columns.
    let expected = if column == "timestamp" {
        vec![]
    } else {
        warnings.clone()
    };
    assert_eq!(log.warnings(), expected, "{column} = {value}");
    serde_json::to_string(&conversation.stored()).unwrap();
    serde_json::to_string(&conversation.chat().messages).unwrap();
    (message, conversation, warnings)
}

const BROKEN_JSON: [&str; 7] = [
    "'{\"hunter2\":'",
    "'[hunter2]'",
    "'{''hunter2'': None}'",
    "'hunter2'",
    "'NaN'",
    "'[1] hunter2'",
    "CAST(x'5bff5d' AS TEXT)",
];

#[tokio::test]
async fn broken_json_of_a_message_falls_back_and_is_told() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    let at = (&store, &session, &stock);
    for value in BROKEN_JSON {
        for column in [
            "tool_calls",
            "reasoning_details",
            "codex_reasoning_items",
            "extra_json",
            "content_parts",
        ] {
            let (message, conversation, warnings) = read_with(at, (column, value), &log).await;
            assert_eq!(warnings, [format!("s 1 {column}")], "{value}");
            let calls = (column == "tool_calls").then(|| json("[]"));
            assert_eq!(message.tool_calls, calls, "{value}");
            assert_eq!(
                (
                    &message.reasoning_details,
                    &message.codex_reasoning_items,
                    &message.extra
                ),
                (&None, &None, &None)
            );
            assert_eq!(message.content, None);
            let expected = match column {
                "tool_calls" => r#"{"role":"assistant","content":null,"tool_calls":[]}"#,
                _ => r#"{"role":"assistant","content":null}"#,
            };
            let stored = serde_json::to_string(&conversation.stored()[0]).unwrap();
            assert_eq!(stored, expected);
            let chat = serde_json::to_string(&conversation.chat().messages[0]).unwrap();
            assert_eq!(chat, r#"{"role":"assistant","content":""}"#);
        }
    }
}

#[tokio::test]
async fn an_empty_cell_is_no_broken_json() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    for value in ["''", "NULL", "x''"] {
        for column in [
            "tool_calls",
            "reasoning_details",
            "codex_reasoning_items",
            "extra_json",
            "content_parts",
        ] {
            let at = (&store, &session, &stock);
            let (message, _, warnings) = read_with(at, (column, value), &log).await;
            assert_eq!(
                (message.tool_calls, warnings),
                (None, vec![]),
                "{column} = {value}"
            );
        }
    }
}

#[tokio::test]
async fn text_that_is_no_utf8_is_read_as_far_as_possible_and_told() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    let value = "CAST(x'41ff42' AS TEXT)";
    let lossy = Some("A\u{fffd}B".to_owned());
    for column in [
        "content",
        "tool_call_id",
        "tool_name",
        "finish_reason",
        "reasoning",
        "role",
    ] {
        let at = (&store, &session, &stock);
        let (message, conversation, warnings) = read_with(at, (column, value), &log).await;
        assert_eq!(warnings, [format!("s 1 {column}")]);
        let (read, again) = match column {
            "content" => {
                let text = |content: &Option<Content>| {
                    content.as_ref().map(|content| content.text().into_owned())
                };
                (
                    text(&message.content),
                    text(&conversation.messages[0].content),
                )
            }
            "tool_call_id" => (
                message.tool_call_id,
                conversation.messages[0].tool_call_id.clone(),
            ),
            "tool_name" => (
                message.tool_name,
                conversation.messages[0].tool_name.clone(),
            ),
            "finish_reason" => (
                message.finish_reason,
                conversation.messages[0].finish_reason.clone(),
            ),
            "reasoning" => (
                message.reasoning,
                conversation.messages[0].reasoning.clone(),
            ),
            _ => {
                let name = |role: &Role| Some(role.as_str().to_owned());
                (name(&message.role), name(&conversation.messages[0].role))
            }
        };
        assert_eq!((&read, &again), (&lossy, &lossy), "{column}");
    }
}

#[tokio::test]
async fn values_of_other_types_are_read_as_text_or_numbers() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    let at = (&store, &session, &stock);
    let texts = [
        ("content", "7", "7"),
        ("content", "1.5", "1.5"),
        ("content", "x'e6958a'", "\u{654a}"),
        ("content", "CAST('a' || char(0) || 'b' AS BLOB)", "a\0b"),
        ("tool_name", "x'6c73'", "ls"),
        ("tool_name", "-1", "-1"),
    ];
    for (column, value, expected) in texts {
        let (message, _, warnings) = read_with(at, (column, value), &log).await;
        let content = message.content.map(|content| content.text().into_owned());
        assert_eq!(
            content.or(message.tool_name).as_deref(),
            Some(expected),
            "{column} = {value}"
        );
        assert_eq!(warnings, Vec::<String>::new());
    }
    for (value, expected) in [
        ("5", "5"),
        ("x'5b315d'", "[1]"),
        ("1.5", "1.5"),
        ("'  [1]  '", "[1]"),
    ] {
        let (message, _, warnings) = read_with(at, ("tool_calls", value), &log).await;
        assert_eq!(
            message.tool_calls.as_ref().map(Json::as_str),
            Some(expected)
        );
        assert_eq!(warnings, Vec::<String>::new());
    }
    for (value, expected) in [
        ("'12'", 12),
        ("'many'", 0),
        ("1.5", 1),
        ("-3", -3),
        ("9e99", i64::MAX),
    ] {
        let (message, _, _) = read_with(at, ("token_count", value), &log).await;
        assert_eq!(message.token_count, Some(expected), "{value}");
    }
    for (value, expected) in [
        ("'noon'", 0.0),
        ("''", 0.0),
        ("x'00'", 0.0),
        ("'7.5'", 7.5),
        ("3", 3.0),
        ("9e999", f64::INFINITY),
        ("-9e999", f64::NEG_INFINITY),
        ("-1.5", -1.5),
        ("1.7e12", 1.7e12),
    ] {
        let (message, _, _) = read_with(at, ("timestamp", value), &log).await;
        assert_eq!(
            message.timestamp.as_unix_seconds().to_bits(),
            f64::to_bits(expected),
            "{value}"
        );
    }
    let (message, conversation, _) = read_with(at, ("role", "''"), &log).await;
    assert_eq!(message.role, Role::Other(String::new()));
    assert_eq!(conversation.chat().left_out, 1);
}

#[tokio::test]
async fn a_damaged_session_is_read_as_far_as_possible_and_told() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    let lossy = Some("A\u{fffd}B".to_owned());
    let texts: [(&str, Field); 13] = [
        ("source", |s| Some(s.source)),
        ("user_id", |s| s.user_id),
        ("model", |s| s.model),
        ("system_prompt", |s| s.system_prompt),
        ("parent_session_id", |s| {
            s.parent_session_id.map(String::from)
        }),
        ("end_reason", |s| {
            s.end_reason.map(|reason| reason.as_str().to_owned())
        }),
        ("billing_provider", |s| s.billing_provider),
        ("billing_base_url", |s| s.billing_base_url),
        ("billing_mode", |s| s.billing_mode),
        ("cost_status", |s| s.cost_status),
        ("cost_source", |s| s.cost_source),
        ("pricing_version", |s| s.pricing_version),
        ("title", |s| s.title),
    ];
    stock.pragma_update(None, "foreign_keys", false).unwrap();
    let set = |column: &str, value: &str| {
        stock
            .execute(&format!("UPDATE sessions SET {column} = {value}"), [])
            .unwrap();
        log.warnings();
    };
    for (column, field) in texts {
        for (value, expected, warnings) in [
            (
                "CAST(x'41ff42' AS TEXT)",
                &lossy,
                vec![format!("s - {column}")],
            ),
            ("x'41ff42'", &lossy, vec![format!("s - {column}")]),
            ("x'6c73'", &Some("ls".to_owned()), vec![]),
            ("7", &Some("7".to_owned()), vec![]),
            ("''", &Some(String::new()), vec![]),
        ] {
            set(column, value);
            let read = store.session(&session).await.unwrap().unwrap();
            assert_eq!(&field(read), expected, "{column} = {value}");
            assert_eq!(log.warnings(), warnings, "{column} = {value}");
        }
        set(column, if column == "source" { "'cli'" } else { "NULL" });
    }
    for value in BROKEN_JSON {
        set("model_config", value);
        let read = store.session(&session).await.unwrap().unwrap();
        assert_eq!(read.model_config, None);
        assert_eq!(log.warnings(), ["s - model_config"]);
    }
    set("model_config", "''");
    assert_eq!(
        store.session(&session).await.unwrap().unwrap().model_config,
        None
    );
    assert_eq!(log.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn numbers_of_a_session_may_be_anything() {
    let (_file, store, session, stock) = left_by_another_program().await;
    stock
        .execute_batch(
            "UPDATE sessions SET started_at = 9e999, ended_at = 'noon', message_count = NULL,
                 tool_call_count = 'many', input_tokens = NULL, output_tokens = -5,
                 cache_read_tokens = 9e99, cache_write_tokens = '12', reasoning_tokens = NULL,
                 estimated_cost_usd = 'free', actual_cost_usd = -9e999",
        )
        .unwrap();
    let read = store.session(&session).await.unwrap().unwrap();
    assert_eq!(
        read.started_at.as_unix_seconds().to_bits(),
        f64::INFINITY.to_bits()
    );
    assert_eq!(
        read.ended_at,
        Some(Timestamp::from_unix_seconds(0.0).unwrap())
    );
    assert_eq!((read.message_count, read.tool_call_count), (0, 0));
    assert_eq!((read.input_tokens, read.output_tokens), (0, -5));
    assert_eq!(
        (read.cache_read_tokens, read.cache_write_tokens),
        (i64::MAX, 12)
    );
    assert_eq!(read.reasoning_tokens, 0);
    assert_eq!(read.estimated_cost_usd, Some(0.0));
    assert_eq!(read.actual_cost_usd, Some(f64::NEG_INFINITY));

    // And the store goes on counting from there.
    store
        .append_message(&session, NewMessage::user("x"))
        .await
        .unwrap();
    assert_eq!(counters(&store, &session).await, (1, 0));
    store
        .create_session(NewSession::new("cli").id(id("child")).parent(session))
        .await
        .unwrap();
}

#[tokio::test]
async fn one_damaged_row_does_not_hide_the_others() {
    let (log, _guard) = Log::listen();
    let (file, store, session, stock) = left_by_another_program().await;
    store
        .append_turn(&session, Turn::new(["a", "b", "c"].map(NewMessage::user)))
        .await
        .unwrap();
    stock
        .execute_batch(
            "UPDATE messages SET content = CAST(x'68756e74657232ff' AS TEXT), tool_calls = '{'
             WHERE id = 3;
             INSERT INTO messages(id, session_id, role, content, timestamp)
             VALUES (-7, 's', 'user', 'from before', 9e999);",
        )
        .unwrap();
    let read = all(&store, &session).await;
    assert_eq!(
        texts(&read),
        ["from before", "-", "a", "hunter2\u{fffd}", "c"]
    );
    assert_eq!(read[3].tool_calls, Some(json("[]")));
    assert_eq!(log.warnings(), ["s 3 content", "s 3 tool_calls"]);
    assert_eq!(
        store
            .messages(&session, MessageRange::first(1))
            .await
            .unwrap()[0],
        read[0]
    );
    assert_eq!(
        store.message_count(Scope::Session(&session)).await.unwrap(),
        5
    );

    assert_index_is_right(&file.stock());
    assert_eq!(store.clear_messages(&session).await.unwrap(), 5);
    assert_index_is_right(&file.stock());
    assert!(store.end_session(&session, EndReason::Reset).await.unwrap());
}

/// Long conversations are read in another way, which must not show.
#[tokio::test]
async fn a_long_conversation_is_read_like_its_messages() {
    let (log, _guard) = Log::listen();
    let (_file, store, session, stock) = left_by_another_program().await;
    let values = [
        "NULL",
        "''",
        "'text'",
        "'{\"hunter2\":'",
        "'[1, \"a\"]'",
        "'[]'",
        "CAST(x'41ff42' AS TEXT)",
        "x'41ff42'",
        "x'6c7300'",
        "x''",
        "7",
        "1.5",
        "9e99",
        "'3:abc' || char(0) || ':4:'",
        "CAST(x'5bff5d' AS TEXT)",
        "'数据🦀'",
        "zeroblob(9)",
    ];
    let mut at = 1;
    for column in [
        "role",
        "content",
        "content_parts",
        "tool_call_id",
        "tool_calls",
        "tool_name",
        "finish_reason",
        "reasoning",
        "reasoning_details",
        "codex_reasoning_items",
        "extra_json",
    ] {
        for value in values.into_iter().skip(usize::from(column == "role")) {
            at += 1;
            stock
                .execute_batch(&format!(
                    "INSERT INTO messages(id, session_id, role, timestamp)
                     VALUES ({at}, 's', 'assistant', 2.5);
                     UPDATE messages SET {column} = {value} WHERE id = {at}"
                ))
                .unwrap();
        }
    }
    log.warnings();
    let messages = all(&store, &session).await;
    assert_eq!(messages.len(), at);
    let warnings = log.warnings();
    let conversation = store.conversation(&session).await.unwrap();
    assert_eq!(log.warnings(), warnings);
    assert_eq!(conversation.messages.len(), at);
    for (message, read) in messages.iter().zip(&conversation.messages) {
        let id = message.id;
        assert_eq!(
            (&message.role, &message.content),
            (&read.role, &read.content),
            "{id}"
        );
        assert_eq!(message.tool_call_id, read.tool_call_id, "{id}");
        assert_eq!(message.tool_calls, read.tool_calls, "{id}");
        assert_eq!(message.tool_name, read.tool_name, "{id}");
        assert_eq!(message.finish_reason, read.finish_reason, "{id}");
        assert_eq!(message.reasoning, read.reasoning, "{id}");
        assert_eq!(message.reasoning_details, read.reasoning_details, "{id}");
        assert_eq!(
            message.codex_reasoning_items, read.codex_reasoning_items,
            "{id}"
        );
        assert_eq!(message.extra, read.extra, "{id}");
    }
}
