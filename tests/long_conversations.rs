//! Long conversations are read in a form of their own, and come out as short ones do.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test crate")]

use hermes_state::{
    Content, Json, MessageRange, NewMessage, NewSession, Role, SessionId, SessionStore,
};
use rusqlite::{Connection, params};
use tempfile::TempDir;

/// Enough for several packed rows.
const MESSAGES: i64 = 300;

async fn store() -> (TempDir, SessionStore, SessionId) {
    let folder = tempfile::tempdir().unwrap();
    let store = SessionStore::open(folder.path().join("state.db"))
        .await
        .unwrap();
    let id = store.create_session(NewSession::new("cli")).await.unwrap();
    (folder, store, id)
}

/// What another program may leave in a text column, as SQL.
const ODD: [&str; 14] = [
    "NULL",
    "''",
    "'plain'",
    "'1:2:3:'",
    "':'",
    "'a' || char(0) || 'b:' || char(0)",
    "char(10, 13, 9)",
    "'数据库迁移 👩‍👩‍👧 ｆｕｌｌ'",
    "CAST(x'ff3a' AS TEXT)",
    "x'00ff3a00'",
    "CAST(x'' AS TEXT)",
    "12345678901234567",
    "1.5",
    "'[1, 2e3, \"\\ud800\"]'",
];

#[tokio::test]
async fn odd_rows_read_the_same_in_long_conversations_and_in_pages() {
    let (folder, store, id) = store().await;
    let file = Connection::open(folder.path().join("state.db")).unwrap();
    let columns = [
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
    ];
    let transaction = file.unchecked_transaction().unwrap();
    for n in 0..MESSAGES {
        let value = |column: usize| ODD[(usize::try_from(n).unwrap() * (column + 1)) % ODD.len()];
        let values: Vec<&str> = (0..columns.len()).map(value).collect();
        let sql = format!(
            "INSERT INTO messages(session_id, role, timestamp, {}) VALUES (?1, ?2, 1.0, {})",
            columns.join(", "),
            values.join(", ")
        );
        transaction
            .execute(&sql, params![id.as_str(), format!("role {n}:")])
            .unwrap();
    }
    transaction.commit().unwrap();

    let long = store.conversation(&id).await.unwrap().messages;
    let pages = store.messages(&id, MessageRange::all()).await.unwrap();
    assert_eq!(long.len(), usize::try_from(MESSAGES).unwrap());
    assert_eq!(pages.len(), long.len());
    for (long, page) in long.iter().zip(&pages) {
        assert_eq!(long.role, page.role);
        assert_eq!(long.content, page.content, "{:?}", page.role);
        assert_eq!(long.tool_call_id, page.tool_call_id);
        assert_eq!(long.tool_calls, page.tool_calls);
        assert_eq!(long.tool_name, page.tool_name);
        assert_eq!(long.finish_reason, page.finish_reason);
        assert_eq!(long.reasoning, page.reasoning);
        assert_eq!(long.reasoning_details, page.reasoning_details);
        assert_eq!(long.codex_reasoning_items, page.codex_reasoning_items);
        assert_eq!(long.extra, page.extra);
    }
    // And not just the same: some of what was put in, by its value.
    assert_eq!(long[5].content, Some(Content::from("a\0b:\0")));
    assert_eq!(long[8].content, Some(Content::from("\u{fffd}:")));
    assert_eq!(long[0].content, None);
    assert_eq!(long[0].role, Role::from("role 0:"));
}

#[tokio::test]
async fn every_field_of_a_long_conversation_comes_back() {
    let (_folder, store, id) = store().await;
    let new = |n: i64| {
        NewMessage::assistant(format!("answer {n}"))
            .tool_calls(Json::parse(format!(r#"[{{"name":"tool {n}"}}]"#)).unwrap())
            .finish_reason("tool_calls")
            .reasoning(format!("thought {n}"))
            .reasoning_details(Json::parse(format!(r#"{{"n": {n}.0}}"#)).unwrap())
            .codex_reasoning_items(Json::parse(format!("[{n}]")).unwrap())
            .extra(Json::parse(format!(r#""extra {n}""#)).unwrap())
    };
    store
        .replace_transcript(&id, (0..MESSAGES).map(new))
        .await
        .unwrap();
    let messages = store.conversation(&id).await.unwrap().messages;
    assert_eq!(messages.len(), usize::try_from(MESSAGES).unwrap());
    for (n, message) in messages.iter().enumerate() {
        assert_eq!(message.content, Some(Content::from(format!("answer {n}"))));
        assert_eq!(
            message.tool_name.as_deref(),
            Some(format!("tool {n}").as_str())
        );
        assert_eq!(message.finish_reason.as_deref(), Some("tool_calls"));
        assert_eq!(message.reasoning, Some(format!("thought {n}")));
        let details = message.reasoning_details.as_ref().unwrap();
        assert_eq!(details.as_str(), format!(r#"{{"n": {n}.0}}"#));
        assert_eq!(
            message.codex_reasoning_items.as_ref().unwrap().as_str(),
            format!("[{n}]")
        );
        assert_eq!(
            message.extra.as_ref().unwrap().as_str(),
            format!(r#""extra {n}""#)
        );
    }
}

#[tokio::test]
async fn the_number_of_messages_makes_no_difference() {
    let (_folder, store, id) = store().await;
    for count in [0, 1, 31, 32, 33, 34, 64, 127, 128, 129, 256, 257] {
        let new = (0..count).map(|n| NewMessage::user(n.to_string()));
        store.replace_transcript(&id, new).await.unwrap();
        let messages = store.conversation(&id).await.unwrap().messages;
        let texts: Vec<_> = messages
            .into_iter()
            .map(|message| message.content.unwrap())
            .collect();
        let expected: Vec<_> = (0..count).map(|n| Content::from(n.to_string())).collect();
        assert_eq!(texts, expected);
    }
}

#[tokio::test]
async fn ids_at_both_ends_of_their_range_are_in_order() {
    let (folder, store, id) = store().await;
    let file = Connection::open(folder.path().join("state.db")).unwrap();
    let ids: Vec<i64> = (0..100)
        .flat_map(|n| [i64::MIN + n, n - 50, i64::MAX - n])
        .collect();
    for message in &ids {
        file.execute(
            "INSERT INTO messages(id, session_id, role, content, timestamp) VALUES (?1, ?2, 'user', ?1, 1.0)",
            params![message, id.as_str()],
        )
        .unwrap();
    }
    let mut sorted = ids;
    sorted.sort_unstable();
    let messages = store.conversation(&id).await.unwrap().messages;
    let texts: Vec<_> = messages
        .into_iter()
        .map(|message| message.content.unwrap())
        .collect();
    let expected: Vec<_> = sorted
        .iter()
        .map(|id| Content::from(id.to_string()))
        .collect();
    assert_eq!(texts, expected);
}
