//! The life of a session: created, ensured, ended, reopened, counted, cleared.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod support;

use hermes_state::{
    EndReason, Error, NewMessage, NewSession, Role, Scope, SessionId, SessionStore, Timestamp, Turn,
};
use support::{all, counters, create, id, json, rows, store, store_and_session, texts};

fn full(name: &str) -> NewSession {
    NewSession::new("telegram")
        .id(id(name))
        .user_id("4711")
        .model("model-a")
        .model_config(json(r#"{ "top_p":1e0 }"#))
        .system_prompt("Be brief.")
        .started_at(Timestamp::from_unix_seconds(1234.5).unwrap())
}

#[tokio::test]
async fn a_created_session_holds_what_was_given() {
    let (file, store) = store().await;
    let parent = create(&store, "parent").await;
    let given = store
        .create_session(full("s").parent(parent.clone()))
        .await
        .unwrap();

    assert_eq!(given, id("s"));
    let session = store.session(&given).await.unwrap().unwrap();
    assert_eq!(session.id, given);
    assert_eq!(session.source, "telegram");
    assert_eq!(session.user_id.as_deref(), Some("4711"));
    assert_eq!(session.model.as_deref(), Some("model-a"));
    assert_eq!(session.model_config, Some(json(r#"{ "top_p":1e0 }"#)));
    assert_eq!(session.system_prompt.as_deref(), Some("Be brief."));
    assert_eq!(session.parent_session_id, Some(parent));
    assert_eq!(
        session.started_at.as_unix_seconds().to_bits(),
        1234.5_f64.to_bits()
    );
    assert_eq!((session.ended_at, session.end_reason), (None, None));
    assert_eq!((session.message_count, session.tool_call_count), (0, 0));
    assert_eq!(
        rows(
            &file.stock(),
            "SELECT source, user_id, model, model_config, system_prompt, parent_session_id,
                 started_at, ended_at, end_reason, message_count, tool_call_count, input_tokens,
                 title
             FROM sessions WHERE id = 's'"
        ),
        [[
            "\"telegram\"",
            "\"4711\"",
            "\"model-a\"",
            r#""{ \"top_p\":1e0 }""#,
            "\"Be brief.\"",
            "\"parent\"",
            "1234.5",
            "NULL",
            "NULL",
            "0",
            "0",
            "0",
            "NULL"
        ]]
    );
}

#[tokio::test]
async fn a_session_without_an_id_gets_a_random_uuid() {
    let (_file, store) = store().await;
    let one = store.create_session(NewSession::new("cli")).await.unwrap();
    let other = store.create_session(NewSession::new("cli")).await.unwrap();
    assert_ne!(one, other);
    for id in [one, other] {
        let groups: Vec<usize> = id.as_str().split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(id.as_str().chars().nth(14), Some('4'), "{id}");
    }
}

#[tokio::test]
async fn a_session_starts_when_it_is_created_unless_told_otherwise() {
    let (_file, store) = store().await;
    let before = Timestamp::now();
    let session = create(&store, "s").await;
    let started = store.session(&session).await.unwrap().unwrap().started_at;
    assert!(before <= started && started <= Timestamp::now());
}

#[tokio::test]
async fn creating_again_keeps_every_value() {
    let (file, store) = store().await;
    let (first, second) = (create(&store, "p1").await, create(&store, "p2").await);
    store.create_session(full("s").parent(first)).await.unwrap();
    let before = file.dump();
    let other = NewSession::new("cli")
        .id(id("s"))
        .user_id("other")
        .model("other")
        .model_config(json("{}"))
        .system_prompt("other")
        .started_at(Timestamp::from_unix_seconds(1.0).unwrap())
        .parent(second);
    assert_eq!(store.create_session(other).await.unwrap(), id("s"));
    let bare = NewSession::new("cli").id(id("s"));
    assert_eq!(store.create_session(bare).await.unwrap(), id("s"));
    assert_eq!(file.dump(), before);
}

#[tokio::test]
async fn creating_again_fills_in_what_is_missing_and_nothing_else() {
    let (file, store) = store().await;
    let parent = create(&store, "parent").await;
    let row = "SELECT source, user_id, model, model_config, system_prompt, parent_session_id,
                   started_at FROM sessions WHERE id = 's'";
    let other = [
        "\"cli\"",
        "\"u2\"",
        "\"m2\"",
        "\"{}\"",
        "\"p2\"",
        "\"parent\"",
    ];
    for (place, missing) in [
        "user_id",
        "model",
        "model_config",
        "system_prompt",
        "parent_session_id",
    ]
    .into_iter()
    .enumerate()
    {
        let stock = file.stock();
        store
            .create_session(full("s").parent(create(&store, "p1").await))
            .await
            .unwrap();
        stock
            .execute(
                &format!("UPDATE sessions SET {missing} = NULL WHERE id = 's'"),
                [],
            )
            .unwrap();
        let mut expected = rows(&stock, row);
        expected[0][place + 1] = other[place + 1].to_owned();
        let filling = NewSession::new("cli")
            .id(id("s"))
            .user_id("u2")
            .model("m2")
            .model_config(json("{}"))
            .system_prompt("p2")
            .parent(parent.clone());
        store.create_session(filling).await.unwrap();
        assert_eq!(rows(&stock, row), expected, "{missing}");
        stock
            .execute("DELETE FROM sessions WHERE id = 's'", [])
            .unwrap();
    }
}

/// A create that failed, an ensure before the first message, then the create again: the session
/// used to stay without source, model and prompt for ever.
#[tokio::test]
async fn creating_completes_a_session_that_was_only_ensured() {
    let (_file, store) = store().await;
    let session = id("s");
    store.ensure_session(&session).await.unwrap();
    let ensured = store.session(&session).await.unwrap().unwrap();
    assert_eq!(ensured.source, "unknown");
    store
        .append_message(&session, NewMessage::user("hello"))
        .await
        .unwrap();

    store.create_session(full("s")).await.unwrap();
    let completed = store.session(&session).await.unwrap().unwrap();
    assert_eq!(completed.source, "telegram");
    assert_eq!(completed.model.as_deref(), Some("model-a"));
    assert_eq!(completed.system_prompt.as_deref(), Some("Be brief."));
    assert_eq!(completed.started_at, ensured.started_at);
    assert_eq!(completed.message_count, 1);
    assert_eq!(texts(&all(&store, &session).await), ["hello"]);
}

#[tokio::test]
async fn ensuring_makes_a_minimal_session_once() {
    let (file, store) = store().await;
    store
        .ensure_session_from(&id("s"), "telegram")
        .await
        .unwrap();
    let session = store.session(&id("s")).await.unwrap().unwrap();
    assert_eq!((session.source.as_str(), session.model), ("telegram", None));

    let before = file.dump();
    store.ensure_session(&id("s")).await.unwrap();
    store
        .ensure_session_from(&id("s"), "discord")
        .await
        .unwrap();
    assert_eq!(file.dump(), before);

    store
        .create_session(NewSession::new("cli").id(id("s")))
        .await
        .unwrap();
    assert_eq!(file.dump(), before, "a known source stays");
}

#[tokio::test]
async fn ids_are_exact() {
    let (_file, store) = store().await;
    let names = [
        "s", "S", "s ", "1", "1.0", "01", "\"", "'", "%", "ſ", "é", "e\u{301}", "🦀",
    ];
    for name in names {
        let session = NewSession::new(name).id(id(name));
        store.create_session(session).await.unwrap();
    }
    for name in names {
        let session = store.session(&id(name)).await.unwrap().unwrap();
        assert_eq!((session.id.as_str(), session.source.as_str()), (name, name));
    }
    let longest = id(&"x".repeat(512));
    store.ensure_session(&longest).await.unwrap();
    assert_eq!(store.session(&longest).await.unwrap().unwrap().id, longest);
}

#[tokio::test]
async fn an_unknown_parent_is_refused() {
    let (file, store) = store().await;
    create(&store, "s").await;
    let before = file.dump();
    for name in ["new", "s"] {
        let child = NewSession::new("cli").id(id(name)).parent(id("nobody"));
        match store.create_session(child).await {
            Err(Error::ParentNotFound { parent }) => assert_eq!(parent, id("nobody")),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(file.dump(), before);
}

async fn adopt(store: &SessionStore, child: &str, parent: &str) -> Result<SessionId, Error> {
    let child = NewSession::new("cli").id(id(child)).parent(id(parent));
    store.create_session(child).await
}

#[tokio::test]
async fn a_session_never_becomes_its_own_ancestor() {
    let (file, store) = store().await;
    create(&store, "root").await;
    adopt(&store, "child", "root").await.unwrap();
    adopt(&store, "grandchild", "child").await.unwrap();
    let before = file.dump();
    for (session, parent) in [
        ("root", "root"),
        ("new", "new"),
        ("root", "child"),
        ("root", "grandchild"),
    ] {
        match adopt(&store, session, parent).await {
            Err(Error::LineageCycle { id: s, parent: p }) => {
                assert_eq!((s, p), (id(session), id(parent)));
            }
            other => panic!("{session} under {parent}: {other:?}"),
        }
    }
    assert_eq!(file.dump(), before);
    create(&store, "elsewhere").await;
    adopt(&store, "root", "elsewhere").await.unwrap();
    let root = store.session(&id("root")).await.unwrap().unwrap();
    assert_eq!(root.parent_session_id, Some(id("elsewhere")));
}

#[tokio::test]
async fn a_session_keeps_the_parent_that_it_has() {
    let (_file, store) = store().await;
    create(&store, "root").await;
    adopt(&store, "child", "root").await.unwrap();
    adopt(&store, "grandchild", "child").await.unwrap();
    // It would be a cycle if it were not for the parent that is there already.
    adopt(&store, "child", "grandchild").await.unwrap();
    let child = store.session(&id("child")).await.unwrap().unwrap();
    assert_eq!(child.parent_session_id, Some(id("root")));
}

#[tokio::test]
async fn a_cycle_left_by_another_program_stops_nobody() {
    let (file, store) = store().await;
    for name in ["a", "b", "c", "free"] {
        create(&store, name).await;
    }
    file.stock()
        .execute_batch(
            "UPDATE sessions SET parent_session_id = 'b' WHERE id = 'a';
             UPDATE sessions SET parent_session_id = 'c' WHERE id = 'b';
             UPDATE sessions SET parent_session_id = 'a' WHERE id = 'c';",
        )
        .unwrap();
    adopt(&store, "free", "a").await.unwrap();
    adopt(&store, "new", "free").await.unwrap();
    let free = store.session(&id("free")).await.unwrap().unwrap();
    assert_eq!(free.parent_session_id, Some(id("a")));
}

#[tokio::test]
async fn a_session_that_does_not_exist_is_none() {
    let (_file, store, session) = store_and_session().await;
    assert_eq!(store.session(&id("nobody")).await.unwrap(), None);
    assert_eq!(store.session(&session).await.unwrap().unwrap().id, session);
}

#[tokio::test]
async fn the_first_reason_to_end_wins() {
    let (file, store, session) = store_and_session().await;
    let before = Timestamp::now();
    assert!(
        store
            .end_session(&session, EndReason::Compression)
            .await
            .unwrap()
    );
    let ended = store.session(&session).await.unwrap().unwrap();
    let at = ended.ended_at.unwrap();
    assert!(before <= at && at <= Timestamp::now());
    assert_eq!(ended.end_reason, Some(EndReason::Compression));

    let dump = file.dump();
    assert!(
        !store
            .end_session(&session, EndReason::UserExit)
            .await
            .unwrap()
    );
    assert_eq!(file.dump(), dump);
}

#[tokio::test]
async fn reasons_are_the_originals_words() {
    let (file, store) = store().await;
    let reasons = [
        (EndReason::UserExit, "user_exit"),
        (EndReason::Timeout, "timeout"),
        (EndReason::Reset, "reset"),
        (EndReason::Error, "error"),
        (EndReason::Compression, "compression"),
        (EndReason::Other("放弃".to_owned()), "放弃"),
        (EndReason::Other(String::new()), ""),
    ];
    for (reason, word) in reasons {
        let session = create(&store, &format!("s {word}")).await;
        store.end_session(&session, reason.clone()).await.unwrap();
        let stored = rows(
            &file.stock(),
            &format!("SELECT end_reason FROM sessions WHERE id = '{session}'"),
        );
        assert_eq!(stored, [[format!("{word:?}")]]);
        let read = store.session(&session).await.unwrap().unwrap();
        assert_eq!(read.end_reason, Some(reason));
    }
}

#[tokio::test]
async fn reopening_clears_when_and_why_it_ended() {
    let (file, store, session) = store_and_session().await;
    let fresh = file.dump();
    store.reopen_session(&session).await.unwrap();
    assert_eq!(file.dump(), fresh, "an open session stays as it is");
    store.end_session(&session, "reset").await.unwrap();
    store.reopen_session(&session).await.unwrap();
    assert_eq!(file.dump(), fresh);
    assert!(
        store
            .end_session(&session, EndReason::Timeout)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn appending_to_an_ended_session_does_not_reopen_it() {
    let (_file, store, session) = store_and_session().await;
    store
        .end_session(&session, EndReason::UserExit)
        .await
        .unwrap();
    let ended = store.session(&session).await.unwrap().unwrap();
    store
        .append_message(&session, NewMessage::user("last words"))
        .await
        .unwrap();
    store
        .append_turn(
            &session,
            Turn::new([NewMessage::user("a"), NewMessage::user("b")]),
        )
        .await
        .unwrap();
    let after = store.session(&session).await.unwrap().unwrap();
    assert_eq!(after.message_count, 3);
    assert_eq!(after.ended_at, ended.ended_at);
    assert_eq!(after.end_reason, Some(EndReason::UserExit));
}

#[tokio::test]
async fn prompt_and_model_are_replaced() {
    let (_file, store) = store().await;
    let session = store.create_session(full("s")).await.unwrap();
    let bystander = store.create_session(full("t")).await.unwrap();
    for text in ["new\0 提示", ""] {
        store.update_system_prompt(&session, text).await.unwrap();
        store.set_model(&session, text).await.unwrap();
        let read = store.session(&session).await.unwrap().unwrap();
        assert_eq!(read.system_prompt.as_deref(), Some(text));
        assert_eq!(read.model.as_deref(), Some(text));
    }
    let bystander = store.session(&bystander).await.unwrap().unwrap();
    assert_eq!(bystander.system_prompt.as_deref(), Some("Be brief."));
    assert_eq!(bystander.model.as_deref(), Some("model-a"));
}

#[tokio::test]
async fn sessions_and_messages_are_counted_by_store_source_and_session() {
    let (file, store) = store().await;
    assert_eq!(store.session_count(Scope::All).await.unwrap(), 0);
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 0);
    for (name, source, messages) in [("a", "cli", 2), ("b", "cli", 0), ("c", "telegram", 3)] {
        store
            .create_session(NewSession::new(source).id(id(name)))
            .await
            .unwrap();
        for _ in 0..messages {
            store
                .append_message(&id(name), NewMessage::user("x"))
                .await
                .unwrap();
        }
    }
    // Counted, not remembered: another program may have forgotten its counter.
    file.stock()
        .execute("UPDATE sessions SET message_count = 100", [])
        .unwrap();
    let (a, b, c, nobody) = (id("a"), id("b"), id("c"), id("nobody"));
    for (scope, sessions, messages) in [
        (Scope::All, 3, 5),
        (Scope::Source("cli"), 2, 2),
        (Scope::Source("telegram"), 1, 3),
        (Scope::Source("CLI"), 0, 0),
        (Scope::Source(""), 0, 0),
        (Scope::Session(&a), 1, 2),
        (Scope::Session(&b), 1, 0),
        (Scope::Session(&c), 1, 3),
        (Scope::Session(&nobody), 0, 0),
    ] {
        assert_eq!(
            store.session_count(scope).await.unwrap(),
            sessions,
            "{scope:?}"
        );
        assert_eq!(
            store.message_count(scope).await.unwrap(),
            messages,
            "{scope:?}"
        );
    }
}

#[tokio::test]
async fn clearing_takes_the_transcript_and_keeps_the_session() {
    let (file, store) = store().await;
    let session = store.create_session(full("s")).await.unwrap();
    let bystander = create(&store, "t").await;
    store
        .append_message(&bystander, NewMessage::user("stays"))
        .await
        .unwrap();
    let before = file.stock();
    let row = "SELECT * FROM sessions WHERE id = 's'";
    let fresh = rows(&before, row);
    let call = NewMessage::new(Role::Assistant).tool_calls(json(r#"[{"name":"ls"}]"#));
    store
        .append_turn(&session, Turn::new([NewMessage::user("find me"), call]))
        .await
        .unwrap();

    assert_eq!(store.clear_messages(&session).await.unwrap(), 2);
    assert_eq!(store.clear_messages(&session).await.unwrap(), 0);
    assert_eq!(rows(&before, row), fresh);
    assert_eq!(all(&store, &session).await, []);
    assert_eq!(counters(&store, &bystander).await, (1, 0));
    assert_eq!(texts(&all(&store, &bystander).await), ["stays"]);
    let found = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'find'";
    assert_eq!(rows(&before, found), Vec::<Vec<String>>::new());
    support::assert_index_is_right(&before);
}

#[tokio::test]
async fn a_session_walks_through_all_its_states() {
    let (_file, store) = store().await;
    let session = create(&store, "s").await;
    let turn = |text: &str| Turn::new([NewMessage::user(text), NewMessage::assistant("ok")]);
    store.append_turn(&session, turn("active")).await.unwrap();
    assert!(
        store
            .end_session(&session, EndReason::Timeout)
            .await
            .unwrap()
    );
    store
        .append_turn(&session, turn("flushed after the end"))
        .await
        .unwrap();
    store.reopen_session(&session).await.unwrap();
    store
        .append_turn(&session, turn("active again"))
        .await
        .unwrap();
    assert!(
        store
            .end_session(&session, EndReason::Compression)
            .await
            .unwrap()
    );

    adopt(&store, "continuation", "s").await.unwrap();
    store
        .append_turn(&id("continuation"), turn("goes on"))
        .await
        .unwrap();

    let ended = store.session(&session).await.unwrap().unwrap();
    assert_eq!(ended.end_reason, Some(EndReason::Compression));
    assert_eq!(ended.message_count, 6);
    let live = store.session(&id("continuation")).await.unwrap().unwrap();
    assert_eq!((live.end_reason, live.message_count), (None, 2));
    assert_eq!(live.parent_session_id, Some(session));
}
