//! Writes a conversation to a real file, drops everything, opens the file again and resumes.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use hermes_state::{EndReason, Json, NewMessage, NewSession, Role, SessionStore, Turn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("hermes-quickstart-{}", std::process::id()));
    let path = folder.join("state.db");

    let id = {
        let store = SessionStore::open(&path).await?;
        println!("opened   {}", path.display());

        let session = NewSession::new("cli")
            .model("example-model")
            .system_prompt("You are a careful engineer.");
        let id = store.create_session(session).await?;
        println!("created  session {id}");

        // One exchange, in one transaction: on disk before the next line runs.
        let calls = Json::parse(
            r#"[{"id":"call_1","type":"function","function":{"name":"read_file","arguments":"{\"path\":\"src/lib.rs\"}"}}]"#,
        )?;
        let turn = Turn::new([
            NewMessage::user("我们上周讨论的数据库迁移，代码在哪里？"),
            NewMessage::new(Role::Assistant)
                .reasoning("The migration was in src/lib.rs; look there first.")
                .tool_calls(calls)
                .finish_reason("tool_calls"),
            NewMessage::tool("call_1", "pub mod migrate;"),
            NewMessage::assistant("In `src/migrate.rs`, declared in `src/lib.rs`.")
                .finish_reason("stop"),
        ])
        .key("exchange-1");
        let appended = store.append_turn(&id, turn.clone()).await?;
        println!("appended {} messages", appended.ids.len());

        // A client that did not hear the answer asks again: nothing is stored twice.
        let again = store.append_turn(&id, turn).await?;
        println!("repeated {}", again.repeated && again.ids == appended.ids);
        id
        // The last clone of the store is dropped here, without being closed.
    };

    let store = SessionStore::open(&path).await?;
    let conversation = store.conversation(&id).await?;
    println!(
        "resumed  {} messages of session {id}:",
        conversation.messages.len()
    );
    for message in &conversation.stored() {
        println!("  {}", serde_json::to_string(message)?);
    }
    let request = serde_json::to_string(&conversation.chat().messages)?;
    println!("to the model: {} bytes of chat messages", request.len());

    store
        .append_message(&id, NewMessage::user("Thanks!"))
        .await?;
    store.end_session(&id, EndReason::UserExit).await?;
    let session = store.session(&id).await?.ok_or("the session is there")?;
    println!(
        "ended    after {} messages, {} tool call",
        session.message_count, session.tool_call_count
    );

    store.close().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
