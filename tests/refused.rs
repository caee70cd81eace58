//! Every input that is refused: with which error, and that nothing changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test crate")]

mod support;

use std::time::Duration;

use futures_util::TryStreamExt as _;
use hermes_state::{
    Error, Json, MessageId, MessageRange, NewMessage, NewSession, PruneMode, PruneOptions,
    RetryPolicy, Role, Scope, SessionId, SessionStore, StoreOptions, Timestamp, TitleClash, Turn,
    Usage, sanitize_title,
};
use support::{File, create, id, json, options};

/// Makes each call, and compares its error, and the whole file with what it was before.
macro_rules! refused {
    ($before:expr, $file:ident; $($call:expr => $error:pat $(if $guard:expr)?,)+) => {
        let before = $before;
        $(
            let result = $call.map(drop);
            assert!(
                matches!(&result, Err($error) $(if $guard)?),
                "{}: {result:?}",
                stringify!($call)
            );
            assert_eq!($file.dump(), before, "{}", stringify!($call));
        )+
    };
}

macro_rules! invalid {
    ($what:literal) => {
        Error::InvalidInput { what: $what, .. }
    };
}

/// A store that takes 1,000 bytes, with sessions `s` (two messages, key `k`) and `child` of it.
async fn furnished() -> (File, SessionStore, SessionId) {
    let file = File::new();
    let store = file.open_with(options().message_limit(1000).unwrap()).await;
    let session = create(&store, "s").await;
    let child = NewSession::new("cli")
        .id(id("child"))
        .parent(session.clone());
    store.create_session(child).await.unwrap();
    let turn = Turn::new(["a", "b"].map(NewMessage::user)).key("k");
    store.append_turn(&session, turn).await.unwrap();
    (file, store, session)
}

#[tokio::test]
async fn values_that_are_refused_before_they_reach_a_store() {
    let (file, _store, _) = furnished().await;
    let seconds = Timestamp::from_unix_seconds;
    let before_1970 = std::time::UNIX_EPOCH - Duration::from_secs(1);
    let far_away = std::time::UNIX_EPOCH + Duration::from_secs(100_000_000_000);
    refused! { file.dump(), file;
        SessionId::new("") => invalid!("session id"),
        SessionId::new("a\0b") => invalid!("session id"),
        SessionId::new("\0") => invalid!("session id"),
        SessionId::new("x".repeat(513)) => invalid!("session id"),
        SessionId::new("长".repeat(171)) => invalid!("session id"),
        "".parse::<SessionId>() => invalid!("session id"),
        SessionId::try_from("") => invalid!("session id"),
        SessionId::try_from(String::new()) => invalid!("session id"),
        seconds(f64::NAN) => invalid!("timestamp"),
        seconds(f64::INFINITY) => invalid!("timestamp"),
        seconds(f64::NEG_INFINITY) => invalid!("timestamp"),
        seconds(-1e-9) => invalid!("timestamp"),
        seconds(1e11) => invalid!("timestamp"),
        seconds(1_700_000_000_000.0) => invalid!("timestamp"),
        Timestamp::try_from(f64::NAN) => invalid!("timestamp"),
        Timestamp::try_from(before_1970) => invalid!("timestamp"),
        Timestamp::try_from(far_away) => invalid!("timestamp"),
        sanitize_title(&"x".repeat(101)) => Error::TitleTooLong { chars: 101, limit: 100 },
        sanitize_title(&"🦀".repeat(101)) => Error::TitleTooLong { chars: 101, limit: 100 },
        Json::parse("") => Error::InvalidJson { .. },
        Json::parse("{") => Error::InvalidJson { .. },
        Json::parse("[1] [2]") => Error::InvalidJson { .. },
        json("1").to::<String>() => Error::InvalidJson { .. },
        Json::from_value(&std::collections::HashMap::from([((), 1)])) => Error::InvalidJson { .. },
    }
    let id = serde_json::from_str::<SessionId>("\"\"").unwrap_err();
    assert_eq!(id.to_string(), "session id must not be empty");
    let time = serde_json::from_str::<Timestamp>("1e11").unwrap_err();
    assert!(
        time.to_string()
            .starts_with("timestamp must be finite seconds"),
        "{time}"
    );
}

#[tokio::test]
async fn options_out_of_range() {
    let new = StoreOptions::new;
    let file = File::new();
    file.open().await.close().await.unwrap();
    let (zero, second) = (Duration::ZERO, Duration::from_secs(1));
    let (hours, day) = (Duration::from_secs(3601), Duration::from_secs(86_401));
    refused! { file.dump(), file;
        new().file_mode(0o400) => invalid!("file mode"),
        new().file_mode(0o1600) => invalid!("file mode"),
        new().busy_timeout(hours) => invalid!("busy timeout"),
        new().deadline(zero) => invalid!("deadline"),
        new().deadline(day) => invalid!("deadline"),
        new().message_limit(0) => invalid!("message limit"),
        new().message_limit(512 * 1024 * 1024 + 1) => invalid!("message limit"),
        new().readers(0) => invalid!("readers"),
        new().readers(65) => invalid!("readers"),
        new().reader_idle(zero) => invalid!("reader idle time"),
        new().reader_idle(day) => invalid!("reader idle time"),
        new().queue_limit(0, 1) => invalid!("queue limit"),
        new().queue_limit(1_000_001, 1) => invalid!("queue limit"),
        new().queue_limit(1, 0) => invalid!("queue limit"),
        new().queue_limit(1, 1 << 32) => invalid!("queue limit"),
        new().group_limit(0, 1) => invalid!("group limit"),
        new().group_limit(1025, 1) => invalid!("group limit"),
        new().group_limit(1, 0) => invalid!("group limit"),
        new().group_limit(1, 64 * 1024 * 1024 + 1) => invalid!("group limit"),
        new().checkpoint_every(0, 1) => invalid!("checkpoint distance"),
        new().checkpoint_every(1, 0) => invalid!("checkpoint distance"),
        new().wal_limit(1024 * 1024 - 1) => invalid!("WAL limit"),
        new().wal_limit((1 << 40) + 1) => invalid!("WAL limit"),
        PruneOptions::new().older_than_days(0) => invalid!("age"),
        PruneOptions::new().older_than_days(36_501) => invalid!("age"),
        PruneOptions::new().older_than_days(u32::MAX) => invalid!("age"),
        RetryPolicy::new().wait(second, zero) => invalid!("retry wait"),
        RetryPolicy::new().wait(zero, hours) => invalid!("retry wait"),
        new().read_only().open_temporary().await => invalid!("a temporary store"),
        file.open().await.with_deadline(zero) => invalid!("deadline"),
        file.open().await.with_deadline(day) => invalid!("deadline"),
    }
}

#[tokio::test]
async fn the_ends_of_the_ranges_of_options_are_inside() {
    let (second, hour, day) = (
        Duration::from_nanos(1),
        Duration::from_hours(1),
        Duration::from_hours(24),
    );
    let smallest = StoreOptions::new()
        .file_mode(0o600)
        .and_then(|options| options.busy_timeout(Duration::ZERO))
        .and_then(|options| options.deadline(second))
        .and_then(|options| options.message_limit(1))
        .and_then(|options| options.readers(1))
        .and_then(|options| options.reader_idle(second))
        .and_then(|options| options.queue_limit(1, 1))
        .and_then(|options| options.group_limit(1, 1))
        .and_then(|options| options.checkpoint_every(1, 1))
        .and_then(|options| options.wal_limit(1024 * 1024))
        .unwrap();
    let greatest = StoreOptions::new()
        .file_mode(0o777)
        .and_then(|options| options.busy_timeout(hour))
        .and_then(|options| options.deadline(day))
        .and_then(|options| options.message_limit(512 * 1024 * 1024))
        .and_then(|options| options.readers(64))
        .and_then(|options| options.reader_idle(day))
        .and_then(|options| options.queue_limit(1_000_000, (1 << 32) - 1))
        .and_then(|options| options.group_limit(1024, 64 * 1024 * 1024))
        .and_then(|options| options.checkpoint_every(u32::MAX, u64::MAX))
        .and_then(|options| options.wal_limit(1 << 40))
        .unwrap();
    let wait = RetryPolicy::new().wait(hour, hour).unwrap();
    for options in [smallest.deadline(hour).unwrap(), greatest.retry(wait)] {
        let file = File::new();
        let store = file.open_with(options).await;
        let session = SessionId::new("x").unwrap();
        let ensured = store.ensure_session(&session).await;
        // A limit of one byte is a limit.
        assert!(matches!(
            ensured,
            Ok(()) | Err(Error::MessageTooLarge { limit: 1, .. })
        ));
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn writes_that_are_refused() {
    let (file, store, s) = furnished().await;
    let (nobody, last) = (id("nobody"), MessageId::new(2));
    let large = || "x".repeat(1001);
    let one = || NewMessage::user("x");
    let turn = || Turn::new([one(), one()]);
    let object = || json(r#"{"type":"text","text":"x"}"#);
    let large_json = || Json::from_value(&large()).unwrap();
    let many = |count| NewMessage::user("x").token_count(count);
    let cli = || NewSession::new("cli");
    let adopt = |child, parent| NewSession::new("cli").id(id(child)).parent(id(parent));
    refused! { file.dump(), file;
        // Sessions.
        store.create_session(NewSession::new("")).await => invalid!("source"),
        store.create_session(NewSession::new("").id(s.clone())).await => invalid!("source"),
        store.create_session(adopt("new", "nobody")).await
            => Error::ParentNotFound { parent } if *parent == nobody,
        store.create_session(adopt("s", "nobody")).await => Error::ParentNotFound { .. },
        store.create_session(adopt("new", "new")).await => Error::LineageCycle { .. },
        store.create_session(adopt("s", "s")).await => Error::LineageCycle { .. },
        store.create_session(adopt("s", "child")).await
            => Error::LineageCycle { id: i, parent } if *i == s && *parent == id("child"),
        store.create_session(cli().system_prompt(large())).await
            => Error::MessageTooLarge { limit: 1000, .. },
        store.create_session(cli().model(large())).await => Error::MessageTooLarge { .. },
        store.create_session(cli().user_id(large())).await => Error::MessageTooLarge { .. },
        store.create_session(cli().model_config(large_json())).await
            => Error::MessageTooLarge { .. },
        store.create_session(NewSession::new(large())).await => Error::MessageTooLarge { .. },
        store.ensure_session_from(&nobody, "").await => invalid!("source"),
        store.ensure_session_from(&nobody, &large()).await => Error::MessageTooLarge { .. },
        store.end_session(&s, large()).await => Error::MessageTooLarge { .. },
        store.end_session(&nobody, "x").await => Error::SessionNotFound { id } if *id == nobody,
        store.reopen_session(&nobody).await => Error::SessionNotFound { id } if *id == nobody,
        store.update_system_prompt(&nobody, "x").await
            => Error::SessionNotFound { id } if *id == nobody,
        store.update_system_prompt(&s, large()).await => Error::MessageTooLarge { .. },
        store.set_model(&nobody, "x").await => Error::SessionNotFound { id } if *id == nobody,
        store.set_model(&s, large()).await => Error::MessageTooLarge { .. },
        store.clear_messages(&nobody).await => Error::SessionNotFound { id } if *id == nobody,

        // Messages.
        store.append_message(&nobody, one()).await => Error::SessionNotFound { id } if *id == nobody,
        store.append_message(&nobody, one().key("k")).await => Error::SessionNotFound { .. },
        store.append_message(&s, NewMessage::user(object())).await => invalid!("content"),
        store.append_message(&s, NewMessage::user(json("null"))).await => invalid!("content"),
        store.append_message(&s, NewMessage::user(json("\"text\""))).await => invalid!("content"),
        store.append_message(&s, NewMessage::user(json("7"))).await => invalid!("content"),
        store.append_message(&s, many(1 << 63)).await => invalid!("token count"),
        store.append_message(&s, many(u64::MAX)).await => invalid!("token count"),
        store.append_message(&s, one().key("")).await => invalid!("key"),
        store.append_message(&s, one().key("x".repeat(513))).await => invalid!("key"),
        store.append_message(&s, NewMessage::user(large())).await
            => Error::MessageTooLarge { bytes: 1005, limit: 1000 },
        store.append_message(&s, one().reasoning(large())).await => Error::MessageTooLarge { .. },
        store.append_message(&s, one().tool_name(large())).await => Error::MessageTooLarge { .. },
        store.append_message(&s, one().tool_call_id(large())).await
            => Error::MessageTooLarge { .. },
        store.append_message(&s, one().finish_reason(large())).await
            => Error::MessageTooLarge { .. },
        store.append_message(&s, one().tool_calls(large_json())).await
            => Error::MessageTooLarge { .. },
        store.append_message(&s, one().reasoning_details(large_json())).await
            => Error::MessageTooLarge { .. },
        store.append_message(&s, one().codex_reasoning_items(large_json())).await
            => Error::MessageTooLarge { .. },
        store.append_message(&s, one().extra(large_json())).await => Error::MessageTooLarge { .. },
        store.append_message(&s, NewMessage::new(Role::Other(large()))).await
            => Error::MessageTooLarge { .. },

        // Turns.
        store.append_turn(&nobody, turn()).await => Error::SessionNotFound { id } if *id == nobody,
        store.append_turn(&nobody, turn().key("k")).await => Error::SessionNotFound { .. },
        store.append_turn(&nobody, turn().expect_empty()).await => Error::SessionNotFound { .. },
        store.append_turn(&nobody, turn().expect_last(last)).await => Error::SessionNotFound { .. },
        store.append_turn(&nobody, Turn::new([])).await => Error::SessionNotFound { .. },
        store.append_turn(&s, turn().key("")).await => invalid!("key"),
        store.append_turn(&s, turn().key("x".repeat(513))).await => invalid!("key"),
        store.append_turn(&s, turn().key("长".repeat(171))).await => invalid!("key"),
        store.append_turn(&s, Turn::new([one(), one().key("m")])).await
            => invalid!("key of a message"),
        store.append_turn(&s, Turn::new([one(), NewMessage::user(object())])).await
            => invalid!("content"),
        store.append_turn(&s, Turn::new([one(), many(1 << 63)])).await => invalid!("token count"),
        store.append_turn(&s, Turn::new([one(), NewMessage::user(large())]).key("k")).await
            => Error::MessageTooLarge { .. },
        store.append_turn(&s, turn().expect_empty()).await
            => Error::Conflict { actual: Some(actual) } if *actual == last,
        store.append_turn(&s, turn().expect_last(MessageId::new(1)).key("new")).await
            => Error::Conflict { actual: Some(actual) } if *actual == last,
        store.append_turn(&s, turn().expect_last(MessageId::new(i64::MIN))).await
            => Error::Conflict { .. },
        store.append_turn(&id("child"), turn().expect_last(last)).await
            => Error::Conflict { actual: None },

        // Replacements.
        store.replace_transcript(&nobody, [one()]).await
            => Error::SessionNotFound { id } if *id == nobody,
        store.replace_transcript(&nobody, []).await => Error::SessionNotFound { .. },
        store.replace_transcript(&s, [one(), one().key("m")]).await => invalid!("key of a message"),
        store.replace_transcript(&s, [one(), NewMessage::user(large())]).await
            => Error::MessageTooLarge { .. },
        store.replace_transcript(&s, [one(), many(1 << 63)]).await => invalid!("token count"),
    }
}

#[tokio::test]
async fn titles_and_usage_that_are_refused() {
    let (file, store, s) = furnished().await;
    let (nobody, child) = (id("nobody"), id("child"));
    let (refuse, number) = (TitleClash::Refuse, TitleClash::NextNumber);
    store.set_session_title(&child, "a", refuse).await.unwrap();
    let full = Usage::new()
        .input_tokens((1 << 63) - 1)
        .actual_cost_usd(f64::MAX);
    store.set_usage(&s, full).await.unwrap();
    let long = "x".repeat(101);
    let (large, tokens, dollars) = (
        || Usage::new().billing_mode("x".repeat(1001)),
        |n| Usage::new().input_tokens(n),
        |n| Usage::new().actual_cost_usd(n),
    );
    let turn = |usage| Turn::new([NewMessage::user("x")]).usage(usage);
    refused! { file.dump(), file;
        store.set_session_title(&s, &long, refuse).await
            => Error::TitleTooLong { chars: 101, limit: 100 },
        store.set_session_title(&s, &long, number).await => Error::TitleTooLong { .. },
        store.set_session_title(&nobody, &long, number).await => Error::TitleTooLong { .. },
        store.set_session_title(&s, "a", refuse).await => Error::TitleTaken { by } if *by == child,
        store.set_session_title(&nobody, "a", refuse).await
            => Error::SessionNotFound { id } if *id == nobody,
        store.set_session_title(&nobody, "", number).await => Error::SessionNotFound { .. },
        store.set_session_title_if(&s, Some("b"), "c", refuse).await => Error::TitleChanged,
        store.set_session_title_if(&child, None, "c", number).await => Error::TitleChanged,
        store.set_session_title_if(&child, None, "", number).await => Error::TitleChanged,
        store.set_session_title_if(&s, None, "a", refuse).await => Error::TitleTaken { .. },
        store.set_session_title_if(&s, None, &long, refuse).await => Error::TitleTooLong { .. },
        store.set_session_title_if(&nobody, None, "c", refuse).await
            => Error::SessionNotFound { .. },

        store.record_usage(&nobody, tokens(1)).await => Error::SessionNotFound { id } if *id == nobody,
        store.record_usage(&s, tokens(1)).await => invalid!("input tokens"),
        store.record_usage(&s, tokens(1 << 63)).await => invalid!("input tokens"),
        store.record_usage(&s, dollars(f64::MAX)).await => invalid!("actual cost"),
        store.record_usage(&s, dollars(f64::NAN)).await => invalid!("actual cost"),
        store.record_usage(&s, dollars(-0.5)).await => invalid!("actual cost"),
        store.record_usage(&s, large()).await => Error::MessageTooLarge { bytes: 1002, .. },
        store.set_usage(&nobody, tokens(1)).await => Error::SessionNotFound { id } if *id == nobody,
        store.set_usage(&s, tokens(1 << 63)).await => invalid!("input tokens"),
        store.set_usage(&s, dollars(f64::INFINITY)).await => invalid!("actual cost"),
        store.set_usage(&s, dollars(-0.5)).await => invalid!("actual cost"),
        store.set_usage(&s, large()).await => Error::MessageTooLarge { .. },
        store.append_turn(&nobody, turn(tokens(1))).await => Error::SessionNotFound { .. },
        store.append_turn(&s, turn(tokens(1))).await => invalid!("input tokens"),
        store.append_turn(&s, turn(tokens(1)).key("new")).await => invalid!("input tokens"),
        store.append_turn(&s, turn(tokens(u64::MAX)).key("k")).await => invalid!("input tokens"),
        store.append_turn(&s, turn(dollars(f64::MAX))).await => invalid!("actual cost"),
        store.append_turn(&s, turn(large())).await => Error::MessageTooLarge { .. },
        store.append_turn(&s, turn(tokens(0)).expect_empty()).await => Error::Conflict { .. },
    }
}

#[tokio::test]
async fn a_read_only_store_refuses_every_write() {
    let (file, writing, s) = furnished().await;
    let store = file.open_with(options().read_only()).await;
    let one = || NewMessage::user("x");
    refused! { file.dump(), file;
        store.create_session(NewSession::new("cli")).await => Error::ReadOnly,
        store.ensure_session(&s).await => Error::ReadOnly,
        store.end_session(&s, "x").await => Error::ReadOnly,
        store.reopen_session(&s).await => Error::ReadOnly,
        store.update_system_prompt(&s, "x").await => Error::ReadOnly,
        store.set_model(&s, "x").await => Error::ReadOnly,
        store.delete_session(&s).await => Error::ReadOnly,
        store.prune_sessions(PruneOptions::new()).await => Error::ReadOnly,
        store.set_session_title(&s, "x", TitleClash::Refuse).await => Error::ReadOnly,
        store.set_session_title_if(&s, None, "x", TitleClash::Refuse).await => Error::ReadOnly,
        store.record_usage(&s, Usage::new()).await => Error::ReadOnly,
        store.set_usage(&s, Usage::new()).await => Error::ReadOnly,
        store.append_message(&s, one()).await => Error::ReadOnly,
        store.append_turn(&s, Turn::new([one()]).key("k")).await => Error::ReadOnly,
        store.clear_messages(&s).await => Error::ReadOnly,
        store.replace_transcript(&s, [one()]).await => Error::ReadOnly,
    }
    assert_eq!(
        store.messages(&s, MessageRange::all()).await.unwrap().len(),
        2
    );
    drop(writing);
}

#[tokio::test]
async fn a_closed_store_refuses_every_call() {
    let (file, store, s) = furnished().await;
    let stream = store.message_stream(&s);
    store.close().await.unwrap();
    let one = || NewMessage::user("x");
    refused! { file.dump(), file;
        store.create_session(NewSession::new("cli")).await => Error::Closed,
        store.ensure_session(&s).await => Error::Closed,
        store.end_session(&s, "x").await => Error::Closed,
        store.delete_session(&s).await => Error::Closed,
        store.prune_sessions(PruneOptions::new()).await => Error::Closed,
        store.prune_sessions(PruneOptions::new().mode(PruneMode::DryRun)).await => Error::Closed,
        store.set_session_title(&s, "x", TitleClash::Refuse).await => Error::Closed,
        store.set_session_title_if(&s, None, "x", TitleClash::Refuse).await => Error::Closed,
        store.record_usage(&s, Usage::new()).await => Error::Closed,
        store.set_usage(&s, Usage::new()).await => Error::Closed,
        store.session_by_title("x").await => Error::Closed,
        store.resolve_session_by_title("x").await => Error::Closed,
        store.next_title_in_lineage("x").await => Error::Closed,
        store.resolve_session_id("x").await => Error::Closed,
        store.compression_tip(&s).await => Error::Closed,
        store.append_message(&s, one()).await => Error::Closed,
        store.append_turn(&s, Turn::new([one()])).await => Error::Closed,
        store.clear_messages(&s).await => Error::Closed,
        store.replace_transcript(&s, [one()]).await => Error::Closed,
        store.session(&s).await => Error::Closed,
        store.messages(&s, MessageRange::all()).await => Error::Closed,
        store.conversation(&s).await => Error::Closed,
        store.session_count(Scope::All).await => Error::Closed,
        store.message_count(Scope::All).await => Error::Closed,
        stream.try_collect::<Vec<_>>().await => Error::Closed,
    }
}
