//! A transcript as chat objects: everything for a replay, or only what a provider accepts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test crate")]

mod support;

use hermes_state::{Conversation, Json, NewMessage, Role, SessionId, SessionStore, Turn};
use support::{id, json, store_and_session};

async fn conversation<const N: usize>(
    store: &SessionStore,
    session: &SessionId,
    messages: [NewMessage; N],
) -> Conversation {
    store.replace_transcript(session, messages).await.unwrap();
    store.conversation(session).await.unwrap()
}

/// One JSON object a line.
fn stored(conversation: &Conversation) -> String {
    let lines: Vec<String> = conversation
        .stored()
        .iter()
        .map(|m| serde_json::to_string(m).unwrap())
        .collect();
    lines.join("\n")
}

fn chat(conversation: &Conversation) -> String {
    let lines: Vec<String> = conversation
        .chat()
        .messages
        .iter()
        .map(|m| serde_json::to_string(m).unwrap())
        .collect();
    lines.join("\n")
}

const CALLS: &str =
    r#"[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\": \".\"}"}}]"#;

/// Every field that a message can have.
fn everything(role: Role) -> NewMessage {
    NewMessage::new(role)
        .content("says")
        .tool_call_id("c0")
        .tool_calls(json(CALLS))
        .tool_name("given")
        .token_count(7)
        .finish_reason("stop")
        .reasoning("thinks")
        .reasoning_details(json(r#"[{"b":1e0,"a":2}]"#))
        .codex_reasoning_items(json(r#"[{"id":"rs_1"}]"#))
        .extra(json(r#"{"private":true}"#))
}

#[tokio::test]
async fn stored_is_the_originals_conversation() {
    let (_file, store, session) = store_and_session().await;
    let messages = [
        NewMessage::system("Be brief."),
        NewMessage::user("What is in src?"),
        NewMessage::new(Role::Assistant)
            .reasoning("I should look.")
            .reasoning_details(json(r#"[{"type":"reasoning.text","text":"look"}]"#))
            .codex_reasoning_items(json(r#"[{"id":"rs_1","encrypted_content":"x"}]"#))
            .tool_calls(json(CALLS))
            .finish_reason("tool_calls"),
        NewMessage::tool("c1", "lib.rs").tool_name("ls"),
        NewMessage::assistant("一个文件。").finish_reason("stop"),
    ];
    let expected = [
        r#"{"role":"system","content":"Be brief."}"#,
        r#"{"role":"user","content":"What is in src?"}"#,
        concat!(
            r#"{"role":"assistant","content":null,"tool_name":"ls","tool_calls":"#,
            r#"[{"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\": \".\"}"}}],"#,
            r#""finish_reason":"tool_calls","reasoning":"I should look.","#,
            r#""reasoning_details":[{"type":"reasoning.text","text":"look"}],"#,
            r#""codex_reasoning_items":[{"id":"rs_1","encrypted_content":"x"}]}"#
        ),
        r#"{"role":"tool","content":"lib.rs","tool_call_id":"c1","tool_name":"ls"}"#,
        r#"{"role":"assistant","content":"一个文件。","finish_reason":"stop"}"#,
    ];
    let read = conversation(&store, &session, messages).await;
    assert_eq!(stored(&read), expected.join("\n"));
}

#[tokio::test]
async fn chat_is_what_the_schema_allows() {
    let (_file, store, session) = store_and_session().await;
    let messages = [
        NewMessage::system("Be brief."),
        NewMessage::new(Role::Developer).content("Really."),
        NewMessage::user(json(r#"[{"type":"text","text":"What?"}, {"n":1e0}]"#)),
        everything(Role::Assistant),
        NewMessage::new(Role::Assistant).tool_calls(json(CALLS)),
        NewMessage::tool("c1", "lib.rs"),
    ];
    let calls = format!(r#""tool_calls":{CALLS}"#);
    let expected = [
        r#"{"role":"system","content":"Be brief."}"#,
        r#"{"role":"developer","content":"Really."}"#,
        r#"{"role":"user","content":[{"type":"text","text":"What?"}, {"n":1e0}]}"#,
        &format!(
            r#"{{"role":"assistant","content":"says","name":"given",{calls},"tool_call_id":"c0"}}"#
        ),
        &format!(r#"{{"role":"assistant","content":null,{calls}}}"#),
        r#"{"role":"tool","content":"lib.rs","tool_call_id":"c1"}"#,
    ];
    let read = conversation(&store, &session, messages).await;
    assert_eq!(chat(&read), expected.join("\n"));
    assert_eq!(read.chat().left_out, 0);
}

#[tokio::test]
async fn only_the_assistant_has_reasoning() {
    let (_file, store, session) = store_and_session().await;
    for role in ["system", "developer", "user", "tool", "function", ""] {
        let read = conversation(&store, &session, [everything(Role::from(role))]).await;
        let expected = format!(
            r#"{{"role":"{role}","content":"says","tool_call_id":"c0","tool_name":"given","tool_calls":{CALLS}}}"#
        );
        assert_eq!(stored(&read), expected);
    }
    let read = conversation(&store, &session, [everything(Role::Assistant)]).await;
    let expected = concat!(
        r#","finish_reason":"stop","reasoning":"thinks","reasoning_details":[{"b":1e0,"a":2}],"#,
        r#""codex_reasoning_items":[{"id":"rs_1"}]}"#
    );
    assert!(stored(&read).ends_with(expected), "{}", stored(&read));
}

#[tokio::test]
async fn empty_strings_count_as_absent() {
    let (_file, store, session) = store_and_session().await;
    let empty = NewMessage::assistant("")
        .tool_call_id("")
        .tool_name("")
        .finish_reason("")
        .reasoning("")
        .tool_calls(json("[]"));
    let read = conversation(&store, &session, [empty]).await;
    assert_eq!(stored(&read), r#"{"role":"assistant","content":""}"#);
    assert_eq!(chat(&read), r#"{"role":"assistant","content":""}"#);
}

#[tokio::test]
async fn content_is_always_there() {
    let (_file, store, session) = store_and_session().await;
    let silent = |role| NewMessage::new(role);
    let messages = [
        silent(Role::User),
        silent(Role::Assistant),
        silent(Role::Assistant).tool_calls(json(CALLS)),
        silent(Role::Tool).tool_call_id("c1"),
        NewMessage::user(json("[]")),
    ];
    let read = conversation(&store, &session, messages).await;
    assert_eq!(
        stored(&read),
        [
            r#"{"role":"user","content":null}"#,
            r#"{"role":"assistant","content":null}"#,
            &format!(
                r#"{{"role":"assistant","content":null,"tool_name":"ls","tool_calls":{CALLS}}}"#
            ),
            r#"{"role":"tool","content":null,"tool_call_id":"c1"}"#,
            r#"{"role":"user","content":[]}"#,
        ]
        .join("\n")
    );
    assert_eq!(
        chat(&read),
        [
            r#"{"role":"user","content":""}"#,
            r#"{"role":"assistant","content":""}"#,
            &format!(r#"{{"role":"assistant","content":null,"tool_calls":{CALLS}}}"#),
            r#"{"role":"tool","content":"","tool_call_id":"c1"}"#,
            r#"{"role":"user","content":[]}"#,
        ]
        .join("\n")
    );
}

#[tokio::test]
async fn chat_leaves_out_other_roles_and_counts_them() {
    let (_file, store, session) = store_and_session().await;
    let messages = [
        NewMessage::new(Role::from("session_meta")).content("x"),
        NewMessage::user("hello"),
        NewMessage::new(Role::from("function")).content("y"),
        NewMessage::new(Role::from("User")).content("z"),
    ];
    let read = conversation(&store, &session, messages).await;
    assert_eq!(read.messages.len(), 4);
    assert_eq!(chat(&read), r#"{"role":"user","content":"hello"}"#);
    assert_eq!(read.chat().left_out, 3);
}

#[tokio::test]
async fn tool_calls_reach_a_provider_as_a_list_or_not_at_all() {
    let (_file, store, session) = store_and_session().await;
    for (calls, expected) in [
        (
            r#"{"id":"c1"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1"}]}"#,
        ),
        (
            r#""[{\"id\":\"c1\"}]""#,
            r#"{"role":"assistant","content":""}"#,
        ),
        ("7", r#"{"role":"assistant","content":""}"#),
        ("null", r#"{"role":"assistant","content":""}"#),
        (" [ ] ", r#"{"role":"assistant","content":""}"#),
    ] {
        let message = NewMessage::new(Role::Assistant).tool_calls(json(calls));
        let read = conversation(&store, &session, [message]).await;
        assert_eq!(chat(&read), expected, "{calls}");
    }
}

#[tokio::test]
async fn a_name_is_told_only_if_the_caller_gave_it() {
    let (_file, store, session) = store_and_session().await;
    let call = || NewMessage::new(Role::Assistant).tool_calls(json(r#"[{"name":"ls"}]"#));
    let messages = [
        call(),
        call().tool_name("ann"),
        NewMessage::user("x").tool_name("bob"),
    ];
    let read = conversation(&store, &session, messages).await;
    let names: Vec<_> = read
        .chat()
        .messages
        .iter()
        .map(|message| message.name)
        .collect();
    assert_eq!(names, [None, Some("ann"), Some("bob")]);
}

#[tokio::test]
async fn what_the_caller_stored_beside_comes_back_beside() {
    let (_file, store, session) = store_and_session().await;
    let read = conversation(&store, &session, [everything(Role::Assistant)]).await;
    let extra = read.messages[0].extra.as_ref().map(Json::as_str);
    assert_eq!(extra, Some(r#"{"private":true}"#));
    assert!(!stored(&read).contains("private") && !chat(&read).contains("private"));
}

#[tokio::test]
async fn a_conversation_says_what_the_messages_say() {
    let (_file, store, session) = store_and_session().await;
    let turn = Turn::new([
        everything(Role::Assistant),
        NewMessage::user(json(r#"[{"type":"image","data":"x"}]"#)),
        NewMessage::new(Role::from("other")),
    ]);
    store.append_turn(&session, turn).await.unwrap();
    let messages = support::all(&store, &session).await;
    let read = store.conversation(&session).await.unwrap().messages;
    assert_eq!(messages.len(), read.len());
    for (message, read) in messages.into_iter().zip(read) {
        assert_eq!((message.role, message.content), (read.role, read.content));
        assert_eq!(
            (message.tool_call_id, message.tool_calls),
            (read.tool_call_id, read.tool_calls)
        );
        assert_eq!(
            (message.tool_name, message.finish_reason),
            (read.tool_name, read.finish_reason)
        );
        assert_eq!(message.reasoning, read.reasoning);
        assert_eq!(message.reasoning_details, read.reasoning_details);
        assert_eq!(message.codex_reasoning_items, read.codex_reasoning_items);
        assert_eq!(message.extra, read.extra);
    }
    let nobody = store.conversation(&id("nobody")).await.unwrap();
    assert_eq!((nobody.messages.len(), nobody.chat().left_out), (0, 0));
}
