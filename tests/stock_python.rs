//! The original program, played by stock Python, and this crate use one file side by side.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod support;

use std::path::PathBuf;
use std::process::Stdio;

use hermes_state::{Content, EndReason, Error, MessageId, NewMessage, NewSession, Role, Turn};
use serde_json::{Value, json};
use support::{File, all, assert_index_is_right, counters, create, id, store_and_session, texts};
use tokio::io::AsyncWriteExt as _;

/// Runs commands of `python/stock.py`. Without Python there is nothing to test, which must show.
async fn python(file: &File, commands: Value) -> Vec<Value> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python/stock.py");
    let mut child = tokio::process::Command::new("python3")
        .arg("-B")
        .args([&script, &file.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("python3 is needed for this test: {error}"));
    let mut input = child.stdin.take().unwrap();
    input
        .write_all(commands.to_string().as_bytes())
        .await
        .unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap();
    assert!(
        output.status.success(),
        "python3 and its sqlite3 are needed; see its words above"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ids(values: &Value) -> Vec<MessageId> {
    let ids = values.as_array().unwrap().iter();
    ids.map(|id| MessageId::new(id.as_i64().unwrap())).collect()
}

const NONE: Value = Value::Null;

#[tokio::test]
async fn we_read_what_python_wrote() {
    let (file, store, _) = store_and_session().await;
    let calls = json!([{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{\"a\": \"é\"}"}}]);
    let details = json!([{"type": "reasoning.text", "text": "数据"}]);
    let results = python(
        &file,
        json!([
            ["create_session", "py", "telegram", "model-a", {"top_p": 0.5}, "提示", "4711", "s"],
            ["append_message", "py", "user", "数据库\u{0}🦀 \n"],
            ["append_message", "py", "assistant", NONE, "ls", calls, NONE, 42, "tool_calls",
                "I should look.", details, [{"id": "rs_1"}]],
            ["append_message", "py", "tool", "lib.rs", "ls", NONE, "c1"],
            ["append_message", "py", "assistant", ""],
            ["end_session", "py", "compression"],
        ]),
    )
    .await;
    let session = id("py");
    let read = store.session(&session).await.unwrap().unwrap();
    assert_eq!(
        (read.source.as_str(), read.model.as_deref()),
        ("telegram", Some("model-a"))
    );
    assert_eq!(read.model_config, Some(support::json(r#"{"top_p": 0.5}"#)));
    assert_eq!(read.system_prompt.as_deref(), Some("提示"));
    assert_eq!(read.user_id.as_deref(), Some("4711"));
    assert_eq!(read.parent_session_id, Some(id("s")));
    assert_eq!(read.end_reason, Some(EndReason::Compression));
    assert_eq!((read.message_count, read.tool_call_count), (4, 1));

    let messages = all(&store, &session).await;
    let written: Vec<i64> = results[1..5]
        .iter()
        .map(|id| id.as_i64().unwrap())
        .collect();
    assert_eq!(
        messages
            .iter()
            .map(|message| message.id.get())
            .collect::<Vec<_>>(),
        written
    );
    assert_eq!(texts(&messages), ["数据库\0🦀 \n", "-", "lib.rs", ""]);
    let call = &messages[1];
    assert_eq!(
        call.tool_calls.as_ref().unwrap().to::<Value>().unwrap(),
        calls
    );
    assert_eq!(
        call.reasoning_details
            .as_ref()
            .unwrap()
            .to::<Value>()
            .unwrap(),
        details
    );
    assert_eq!(
        call.codex_reasoning_items,
        Some(support::json(r#"[{"id": "rs_1"}]"#))
    );
    assert_eq!(
        (call.token_count, call.finish_reason.as_deref()),
        (Some(42), Some("tool_calls"))
    );
    assert_eq!(call.reasoning.as_deref(), Some("I should look."));
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(
        store
            .conversation(&session)
            .await
            .unwrap()
            .chat()
            .messages
            .len(),
        4
    );
}

#[tokio::test]
async fn python_reads_and_finds_what_we_wrote() {
    let (file, store, session) = store_and_session().await;
    let calls = support::json(r#"[{"function":{"name":"ls","arguments":"{}"}},{"name":"cat"}]"#);
    let parts =
        support::json(r#"[{"type":"text","text":"see alpha"},{"type":"image","data":"x"}]"#);
    let alone = NewMessage::user("alpha 数据\0gamma 🦀");
    let first = store.append_message(&session, alone).await.unwrap().ids;
    let turn = Turn::new([
        NewMessage::new(Role::Assistant)
            .tool_calls(calls)
            .reasoning("beta")
            .finish_reason("tool_calls")
            .token_count(7),
        NewMessage::tool("c1", parts).extra(support::json("{}")),
        NewMessage::assistant("alpha omega"),
    ])
    .key("k");
    let turn = store.append_turn(&session, turn).await.unwrap().ids;
    store
        .create_session(
            NewSession::new("cli")
                .id(id("child"))
                .parent(session.clone()),
        )
        .await
        .unwrap();

    let results = python(
        &file,
        json!([
            ["get_session", "s"],
            ["get_messages", "s"],
            ["search", "alpha"],
            ["search", "gamma"],
            ["search", "image"],
            ["search", "beta"],
            ["get_session", "child"],
            ["checked"]
        ]),
    )
    .await;
    assert_eq!(results[0]["message_count"], 4);
    assert_eq!(results[0]["tool_call_count"], 2);
    let messages = results[1].as_array().unwrap();
    assert_eq!(messages[0]["content"], "alpha 数据\0gamma 🦀");
    assert_eq!(messages[1]["tool_calls"][1]["name"], "cat");
    assert_eq!(messages[1]["tool_name"], "ls");
    assert_eq!(messages[1]["content"], NONE);
    assert_eq!(messages[1]["token_count"], 7);
    assert_eq!(messages[2]["content"], "see alpha\n[image]");
    assert_eq!(messages[2]["tool_call_id"], "c1");
    assert_eq!(messages[3]["role"], "assistant");
    assert_eq!(ids(&results[2]), [first[0], turn[1], turn[2]]);
    assert_eq!(ids(&results[3]), first);
    assert_eq!(ids(&results[4]), [turn[1]]);
    assert_eq!(results[5], json!([]));
    assert_eq!(results[6]["parent_session_id"], "s");
    assert_eq!(results[7], json!(["ok"]));
}

#[tokio::test]
async fn both_go_on_where_the_other_stopped() {
    let (file, store, session) = store_and_session().await;
    let turn = || Turn::new(["ours one", "ours two"].map(NewMessage::user)).key("k");
    let first = store.append_turn(&session, turn()).await.unwrap().ids;
    let results = python(
        &file,
        json!([
            ["create_session", "s", "other", "ignored"],
            ["append_message", "s", "user", "theirs three"],
            ["update_message", first[0].get(), "theirs one"],
            ["delete_message", first[1].get()],
            ["search", "ours"],
            ["search", "theirs"]
        ]),
    )
    .await;
    let third = MessageId::new(results[1].as_i64().unwrap());
    assert_eq!(results[4], json!([]));
    assert_eq!(ids(&results[5]), [first[0], third]);

    assert_eq!(
        store.session(&session).await.unwrap().unwrap().source,
        "cli"
    );
    assert_eq!(
        texts(&all(&store, &session).await),
        ["theirs one", "theirs three"]
    );
    assert!(store.append_turn(&session, turn()).await.unwrap().repeated);
    let next = Turn::new([NewMessage::user("ours four")]).expect_last(third);
    let next = store.append_turn(&session, next).await.unwrap().ids;
    assert_eq!(next, [MessageId::new(third.get() + 1)]);
    assert_eq!(counters(&store, &session).await, (4, 0));
    store.close().await.unwrap();

    let results = python(
        &file,
        json!([["append_message", "s", "user", "theirs five"], ["checked"]]),
    )
    .await;
    assert_eq!(results, [json!(next[0].get() + 1), json!(["ok"])]);
    let store = file.open().await;
    let said = ["theirs one", "theirs three", "ours four", "theirs five"];
    assert_eq!(texts(&all(&store, &session).await), said);
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn python_may_delete_a_session_of_ours() {
    let (file, store, session) = store_and_session().await;
    let child = NewSession::new("cli")
        .id(id("child"))
        .parent(session.clone());
    store.create_session(child).await.unwrap();
    let parts = support::json(r#"[{"type":"text","text":"alpha"}]"#);
    let turn = Turn::new([NewMessage::user("alpha"), NewMessage::user(parts)]).key("k");
    store.append_turn(&session, turn.clone()).await.unwrap();

    let results = python(
        &file,
        json!([["delete_session", "s"], ["search", "alpha"], ["checked"]]),
    )
    .await;
    assert_eq!(results, [NONE, json!([]), json!(["ok"])]);
    assert_eq!(store.session(&session).await.unwrap(), None);
    assert_eq!(all(&store, &session).await, []);
    let child = store.session(&id("child")).await.unwrap().unwrap();
    assert_eq!(child.parent_session_id, None);
    let gone = store.append_turn(&session, turn.clone()).await;
    assert!(matches!(gone, Err(Error::SessionNotFound { .. })));
    create(&store, "s").await;
    assert!(!store.append_turn(&session, turn).await.unwrap().repeated);
}

#[tokio::test]
async fn both_write_at_the_same_time() {
    const EACH: usize = 150;
    let (file, store, session) = store_and_session().await;
    let commands = json!([["append_many", "s", "theirs", EACH]]);
    let ours = async {
        let mut ids = Vec::new();
        for n in (0..EACH).step_by(3) {
            let turn = (n..n + 3).map(|n| NewMessage::user(format!("ours {n}")));
            ids.extend(
                store
                    .append_turn(&session, Turn::new(turn))
                    .await
                    .unwrap()
                    .ids,
            );
            assert!(all(&store, &session).await.len() >= ids.len());
        }
        ids
    };
    let (theirs, ours) = tokio::join!(python(&file, commands), ours);
    let theirs = ids(&theirs[0]);

    let messages = all(&store, &session).await;
    assert_eq!(messages.len(), 2 * EACH);
    for (who, ids) in [("ours", ours), ("theirs", theirs)] {
        let read = messages.iter().filter(|message| ids.contains(&message.id));
        let said: Vec<_> = read.map(|message| message.content.clone()).collect();
        let expected: Vec<Option<Content>> = (0..EACH)
            .map(|n| Some(format!("{who} {n}").into()))
            .collect();
        assert_eq!(said, expected);
    }
    assert_eq!(counters(&store, &session).await, (300, 0));
    let results = python(
        &file,
        json!([["search", "ours"], ["search", "theirs"], ["checked"]]),
    )
    .await;
    let found = results[..2]
        .iter()
        .map(|found| found.as_array().unwrap().len());
    assert_eq!(found.collect::<Vec<_>>(), [EACH, EACH]);
    assert_eq!(results[2], json!(["ok"]));
    assert_index_is_right(&file.stock());
}
