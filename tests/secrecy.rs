//! No error, `Debug` or trace shows what was said in a conversation.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test crate")]

#[path = "support/log.rs"]
mod log;
mod support;

use std::error::Error as _;
use std::fmt::Debug;

use hermes_state::{
    Content, Error, Json, MessageId, NewMessage, NewSession, Role, SessionId, SessionStore,
    StoreOptions, Timestamp, TitleClash, Turn, sanitize_title,
};
use log::{Log, SECRET};
use support::{File, all, id, json, store, store_and_session};

#[track_caller]
fn assert_silent(value: &impl Debug) {
    for shown in [format!("{value:?}"), format!("{value:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// An error, the text of its whole chain, and what `Debug` makes of it.
#[track_caller]
fn assert_tells_nothing(error: &Error) {
    assert_silent(error);
    let mut chain = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        chain.push_str(": ");
        chain.push_str(&error.to_string());
        cause = error.source();
    }
    assert!(!chain.contains(SECRET), "{chain}");
}

/// Says the secret in every field.
fn telling(role: Role) -> NewMessage {
    let secret = || json(r#"[{"name":"hunter2","type":"text","text":"hunter2"}]"#);
    NewMessage::new(role)
        .content(secret())
        .tool_calls(secret())
        .finish_reason("stop")
        .reasoning(SECRET)
        .reasoning_details(secret())
        .codex_reasoning_items(secret())
        .extra(secret())
}

#[tokio::test]
async fn debug_shows_nothing_that_was_said() {
    let (file, store) = store().await;
    let new = NewSession::new("cli")
        .id(id("s"))
        .system_prompt(SECRET)
        .model_config(json(r#"{"hunter2":"hunter2"}"#));
    assert_silent(&new);
    let session = store.create_session(new).await.unwrap();
    file.stock()
        .execute("UPDATE sessions SET title = 'hunter2'", [])
        .unwrap();
    assert_silent(&store.session(&session).await.unwrap().unwrap());
    assert_silent(&json(r#""hunter2""#));
    assert_silent(&Content::from(SECRET));
    assert_silent(&Content::from(json(r#"["hunter2"]"#)));

    let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
    let turn = Turn::new(roles.map(telling));
    assert_silent(&turn);
    assert_reads_are_silent(&store, &session, turn).await;
}

async fn assert_reads_are_silent(store: &SessionStore, session: &SessionId, turn: Turn) {
    assert_silent(&telling(Role::User));
    assert_silent(&store.append_turn(session, turn).await.unwrap());
    let messages = all(store, session).await;
    assert_eq!(messages[0].reasoning.as_deref(), Some(SECRET));
    assert_silent(&messages);
    let conversation = store.conversation(session).await.unwrap();
    assert_silent(&conversation);
    assert_silent(&conversation.stored());
    assert_silent(&conversation.chat());
    assert_silent(&store.message_stream(session));
    assert_silent(store);
    assert_silent(&store.environment());
}

/// Since version 3.47 of SQLite a trigger may refuse a row in words that it makes from the row.
#[tokio::test]
async fn a_trigger_that_quotes_what_it_refuses_is_not_repeated() {
    let (log, _guard) = Log::listen();
    let (file, store, session) = store_and_session().await;
    file.stock()
        .execute_batch(
            "CREATE TRIGGER loud BEFORE INSERT ON messages WHEN new.content LIKE '%hunter2%'
             BEGIN SELECT RAISE(ABORT, 'refused: ' || new.content); END;
             CREATE TRIGGER loud_too BEFORE UPDATE ON sessions WHEN new.system_prompt NOT NULL
             BEGIN SELECT RAISE(ROLLBACK, 'refused: ' || new.system_prompt); END;
             CREATE TRIGGER loud_three BEFORE INSERT ON sessions WHEN new.system_prompt NOT NULL
             BEGIN SELECT RAISE(FAIL, 'refused: ' || new.system_prompt); END;",
        )
        .unwrap();
    let message = || telling(Role::User);
    let new = NewSession::new("cli").system_prompt(SECRET);
    let (alone, plain, together) = tokio::join!(
        store.append_message(&session, message()),
        store.append_message(&session, NewMessage::user("fine")),
        store.append_turn(&session, Turn::new([message(), message()]).key("k")),
    );
    assert_eq!(plain.unwrap().ids.len(), 1);
    for result in [
        alone.map(drop),
        together.map(drop),
        store
            .replace_transcript(&session, [message()])
            .await
            .map(drop),
        store.update_system_prompt(&session, SECRET).await,
        store.create_session(new).await.map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Constraint { .. }), "{error:?}");
        let source = error.source().unwrap().to_string();
        assert_eq!(source, "a trigger refused the write (code 1811)");
        assert_tells_nothing(&error);
    }
    assert_eq!(all(&store, &session).await.len(), 1);
    log.assert_no_secret();
}

#[tokio::test]
async fn a_refused_value_is_not_repeated() {
    let (log, _guard) = Log::listen();
    let file = File::new();
    let options = StoreOptions::new().message_limit(100).unwrap();
    let store = file.open_with(options).await;
    let session = support::create(&store, "s").await;
    let large = || SECRET.repeat(100);
    let owner = support::create(&store, "owner").await;
    let set = store.set_session_title(&owner, SECRET, TitleClash::Refuse);
    set.await.unwrap();
    let errors = [
        Json::parse("hunter2").unwrap_err(),
        Json::parse("{\"hunter2\":hunter2}").unwrap_err(),
        Json::parse("[\"hunter2").unwrap_err(),
        json("\"hunter2\"").to::<u8>().unwrap_err(),
        json("{\"hunter2\":1}").to::<Strict>().unwrap_err(),
        json("\"hunter2\"").to::<Choice>().unwrap_err(),
        Json::from_value(&Unspeakable).unwrap_err(),
        store
            .append_message(&session, NewMessage::user(large()))
            .await
            .unwrap_err(),
        store
            .append_message(&session, NewMessage::user(json("\"hunter2\"")))
            .await
            .unwrap_err(),
        store
            .update_system_prompt(&session, large())
            .await
            .unwrap_err(),
        store.set_model(&session, large()).await.unwrap_err(),
        sanitize_title(&large()).unwrap_err(),
        store
            .set_session_title(&session, SECRET, TitleClash::Refuse)
            .await
            .unwrap_err(),
        store
            .set_session_title_if(&session, Some(SECRET), SECRET, TitleClash::Refuse)
            .await
            .unwrap_err(),
        store
            .append_message(&id("nobody"), telling(Role::User))
            .await
            .unwrap_err(),
        store
            .append_turn(&session, telling_turn().expect_last(MessageId::new(1)))
            .await
            .unwrap_err(),
        Timestamp::from_unix_seconds(f64::NAN).unwrap_err(),
    ];
    for error in &errors {
        assert_tells_nothing(error);
    }
    log.assert_no_secret();
    // What helps to find the place is still there.
    let source = errors[1].source().unwrap().to_string();
    assert!(source.contains("line 1 column 12"), "{source}");
}

fn telling_turn() -> Turn {
    Turn::new([NewMessage::user(SECRET)])
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Strict {}

#[derive(Debug, serde::Deserialize)]
enum Choice {}

/// A value whose serialisation fails in its own words.
struct Unspeakable;

impl serde::Serialize for Unspeakable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("can't write hunter2"))
    }
}
