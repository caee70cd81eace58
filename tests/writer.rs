//! How writes reach the file: in groups, in order, each answered after its commit.

#![allow(
    clippy::future_not_send,
    reason = "a rusqlite connection may not be shared"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test crate"
)]

#[path = "support/queue.rs"]
mod queue;
#[path = "support/faults.rs"]
mod support;

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use hermes_state::{Error, RetryPolicy, SessionId, StoreOptions, Turn};
use queue::{append, append_turn, held_at_commit, ids, queue, until_at_commit};
use support::{File, assert_sound, cell, contents, text};
use tokio::time::timeout;

#[tokio::test]
async fn a_reply_comes_only_after_the_commit() {
    let turn = Turn::new([text("a")]);
    // With a key it is written statement by statement, without one in one go.
    for turn in [turn.clone(), turn.key("k")] {
        let file = File::new();
        let (store, session, reader) = held_at_commit(&file, StoreOptions::new()).await;
        let mut write = append_turn(&store, &session, turn);
        assert!(poll!(&mut write).is_pending());
        until_at_commit(&file).await;

        assert!(poll!(&mut write).is_pending());
        assert_eq!(contents(&reader), [""; 0]);

        reader.execute_batch("COMMIT").unwrap();
        write.await.unwrap();
        assert_eq!(contents(&reader), ["a"]);
    }
}

#[tokio::test]
async fn an_acknowledged_write_is_there_for_every_program() {
    let file = File::new();
    let (store, session) = file.open().await;
    let rival = file.rival();
    for n in 1..=50 {
        let appended = store.append_message(&session, text("x")).await.unwrap();
        let last = cell(&rival, "SELECT MAX(id) FROM messages");
        assert_eq!(appended.last_id().unwrap().get(), last);
        assert_eq!(cell(&rival, "SELECT message_count FROM sessions"), n);
    }
}

#[tokio::test]
async fn writes_that_wait_together_are_committed_together() {
    let file = File::new();
    let (store, session) = file.open().await;
    let before = file.commits_in_log();
    let mut writes: Vec<_> = (0..64)
        .map(|n| append(&store, &session, text(n.to_string())))
        .collect();
    queue(&mut writes).await;

    let ids = ids(join_all(writes).await);

    assert_eq!(file.commits_in_log() - before, 1);
    assert_eq!(ids, (ids[0]..ids[0] + 64).collect::<Vec<_>>());
    let expected: Vec<_> = (0..64).map(|n| n.to_string()).collect();
    assert_eq!(file.contents(), expected);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_group_has_a_limit_of_writes_and_one_of_bytes() {
    // A write of 100 characters counts as 169 bytes here: five of them fit into 1,000.
    let small = || vec![100; 20];
    for (writes, bytes, sizes, commits) in [
        (128, 1 << 20, small(), 1),
        (7, 1 << 20, small(), 3),
        (128, 1000, small(), 4),
        (128, 1000, vec![1, 5000, 1, 1], 3),
    ] {
        let file = File::new();
        let options = StoreOptions::new().group_limit(writes, bytes).unwrap();
        let (store, session) = file.open_with(options).await;
        let before = file.commits_in_log();
        let mut appends: Vec<_> = sizes
            .iter()
            .map(|size| append(&store, &session, text("x".repeat(*size))))
            .collect();
        queue(&mut appends).await;

        ids(join_all(appends).await);

        assert_eq!(
            file.commits_in_log() - before,
            commits,
            "{writes} writes, {bytes} bytes"
        );
        assert_eq!(file.contents().len(), sizes.len());
    }
}

#[tokio::test]
async fn a_write_that_the_file_refuses_fails_alone() {
    let file = File::new();
    let (store, session) = file.open().await;
    file.rival()
        .execute_batch(
            "CREATE TRIGGER taster BEFORE INSERT ON messages WHEN new.content = 'poison'
             BEGIN SELECT RAISE(ABORT, 'poison'); END",
        )
        .unwrap();
    let mut writes = vec![
        append(&store, &session, text("a")),
        append(&store, &session, text("poison")),
        append(&store, &session, text("b")),
        append_turn(&store, &session, Turn::new(["c", "poison", "d"].map(text))),
        append_turn(&store, &session, Turn::new(["e", "f"].map(text)).key("k")),
    ];
    queue(&mut writes).await;

    let results = join_all(writes).await;

    assert!(matches!(results[1], Err(Error::Constraint { .. })));
    assert!(matches!(results[3], Err(Error::Constraint { .. })));
    assert!(!results[1].as_ref().unwrap_err().is_retryable());
    let stored: Vec<_> = [0, 2, 4]
        .map(|n: usize| results[n].as_ref().unwrap().ids.len())
        .into();
    assert_eq!(stored, [1, 1, 2]);
    assert_eq!(file.contents(), ["a", "b", "e", "f"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_write_that_fails_at_the_commit_fails_alone() {
    let file = File::new();
    let (store, session) = file.open().await;
    file.rival()
        .execute_batch(
            "CREATE TABLE allowed (word TEXT PRIMARY KEY);
             CREATE TABLE words (
                 word TEXT REFERENCES allowed(word) DEFERRABLE INITIALLY DEFERRED
             );
             CREATE TRIGGER collector AFTER INSERT ON messages WHEN new.content = 'poison'
             BEGIN INSERT INTO words VALUES (new.content); END",
        )
        .unwrap();
    let mut writes: Vec<_> = ["a", "poison", "b"]
        .map(|word| append(&store, &session, text(word)))
        .into();
    queue(&mut writes).await;

    let results = join_all(writes).await;

    assert!(matches!(results[1], Err(Error::Constraint { .. })));
    assert_eq!(results[0].as_ref().unwrap().ids.len(), 1);
    assert_eq!(results[2].as_ref().unwrap().ids.len(), 1);
    assert_eq!(file.contents(), ["a", "b"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn an_unknown_session_fails_alone() {
    let file = File::new();
    let (store, session) = file.open().await;
    let nobody = SessionId::new("nobody").unwrap();
    let mut writes = vec![
        append(&store, &session, text("a")),
        append(&store, &nobody, text("b")),
        append(&store, &session, text("c")),
    ];
    queue(&mut writes).await;

    let results = join_all(writes).await;

    assert!(matches!(&results[1], Err(Error::SessionNotFound { id }) if *id == nobody));
    assert_eq!(file.contents(), ["a", "c"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn what_is_refused_is_not_tried_again() {
    let file = File::new();
    // A second try would come after 10 s.
    let policy = RetryPolicy::new()
        .wait(Duration::from_secs(10), Duration::from_secs(10))
        .unwrap();
    let (store, session) = file.open_with(StoreOptions::new().retry(policy)).await;
    file.rival()
        .execute_batch(
            "CREATE TRIGGER no AFTER INSERT ON messages BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();

    let answer = timeout(
        Duration::from_secs(8),
        store.append_message(&session, text("a")),
    );

    assert!(matches!(answer.await, Ok(Err(Error::Constraint { .. }))));
}

#[tokio::test]
async fn writes_of_one_caller_keep_their_order_even_at_the_door() {
    let file = File::new();
    let options = StoreOptions::new()
        .queue_limit(8, 2000)
        .unwrap()
        .group_limit(16, 1 << 20)
        .unwrap();
    let (store, session) = file.open_with(options).await;
    let expected: Vec<_> = (0..500).map(|n| n.to_string()).collect();

    let writes = expected
        .iter()
        .map(|content| append(&store, &session, text(content.as_str())));
    let ids = ids(join_all(writes).await);

    assert!(ids.is_sorted());
    assert_eq!(file.contents(), expected);
    assert_sound(&file.path);
}
