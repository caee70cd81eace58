//! How writes reach the file: in groups, in order, each answered after its commit, within bounds.

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

#[path = "support/faults.rs"]
mod support;

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use futures_util::poll;
use hermes_state::{
    Appended, Error, Journal, NewMessage, Result, RetryPolicy, SessionId, SessionStore,
    StoreOptions, Turn,
};
use rusqlite::Connection;
use support::{File, PATIENCE, assert_sound, cell, contents, impatient, text, until};
use tokio::time::timeout;

type Append = BoxFuture<'static, Result<Appended>>;

fn append(store: &SessionStore, session: &SessionId, message: NewMessage) -> Append {
    append_turn(store, session, Turn::new([message]))
}

fn append_turn(store: &SessionStore, session: &SessionId, turn: Turn) -> Append {
    let (store, session) = (store.clone(), session.clone());
    async move { store.append_turn(&session, turn).await }.boxed()
}

/// Puts writes into the queue in their order. The writer does not run before the test awaits: both
/// are on one thread.
async fn queue(writes: &mut [Append]) {
    for write in writes {
        assert!(poll!(write).is_pending());
    }
}

/// Ids of appends that all stored one message.
fn ids(results: Vec<Result<Appended>>) -> Vec<i64> {
    let id = |result: Result<Appended>| result.unwrap().last_id().unwrap().get();
    results.into_iter().map(id).collect()
}

/// A store with a rollback journal, and another program's read that lets transactions begin but
/// not commit.
async fn held_at_commit(
    file: &File,
    options: StoreOptions,
) -> (SessionStore, SessionId, Connection) {
    let (store, session) = file.open_with(options.journal(Journal::Rollback)).await;
    let reader = file.rival();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(cell(&reader, "SELECT COUNT(*) FROM messages"), 0);
    (store, session, reader)
}

/// Waits until a transaction is at its commit: it lets no new reader in.
async fn until_at_commit(file: &File) {
    let reader = file.rival();
    until("no commit", || {
        reader
            .query_row("SELECT COUNT(*) FROM messages", [], |_| Ok(()))
            .is_err()
    })
    .await;
}

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

/// Runs `first` writes that may wait and then one that may not, while another program holds the
/// write lock.
async fn overload(options: StoreOptions, first: usize) {
    let file = File::new();
    let options = options.group_limit(1, 1 << 20).unwrap();
    let (store, session) = file.open_with(options).await;
    let hurried = store.with_deadline(Duration::from_millis(200)).unwrap();
    let lock = file.lock();
    let content = "x".repeat(100);
    let mut writes: Vec<_> = (0..first)
        .map(|_| append(&store, &session, text(content.as_str())))
        .collect();
    queue(&mut writes).await;

    let refused = append(&hurried, &session, text("late")).await.unwrap_err();

    assert!(
        matches!(refused, Error::Overloaded { waited } if waited == Duration::from_millis(200))
    );
    assert!(refused.is_retryable());
    drop(lock);
    ids(join_all(writes).await);
    assert_eq!(file.contents(), vec![content; first]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_full_queue_makes_the_next_caller_wait_until_its_deadline() {
    // One is at the writer, two are in the queue.
    overload(StoreOptions::new().queue_limit(2, 1 << 20).unwrap(), 3).await;
    // 169 bytes each: the third finds no room.
    overload(StoreOptions::new().queue_limit(1000, 400).unwrap(), 2).await;
}

#[tokio::test]
async fn a_caller_that_waited_at_the_door_gets_in_when_there_is_room() {
    let file = File::new();
    let options = StoreOptions::new().queue_limit(2, 400).unwrap();
    let (store, session) = file.open_with(options).await;
    let lock = file.lock();
    let mut writes: Vec<_> = (0..20)
        .map(|n| append(&store, &session, text(format!("{n:0100}"))))
        .collect();
    queue(&mut writes).await;

    drop(lock);

    assert!(ids(join_all(writes).await).is_sorted());
    assert_eq!(file.contents().len(), 20);
}

#[tokio::test]
async fn a_write_larger_than_the_queue_enters_alone() {
    let file = File::new();
    let options = StoreOptions::new().queue_limit(10, 400).unwrap();
    let (store, session) = file.open_with(options).await;
    let sizes = [10, 5000, 10, 5000];
    let mut writes: Vec<_> = sizes
        .map(|size| append(&store, &session, text("x".repeat(size))))
        .into();
    queue(&mut writes).await;

    ids(join_all(writes).await);

    let stored: Vec<_> = file.contents().iter().map(String::len).collect();
    assert_eq!(stored, sizes);
}

#[tokio::test]
async fn a_write_that_expired_in_the_queue_never_runs() {
    let file = File::new();
    // SQLite itself would wait for as long as the test.
    let options = StoreOptions::new().busy_timeout(PATIENCE * 2).unwrap();
    let (store, session) = file.open_with(options).await;
    let hurried = store.with_deadline(Duration::from_millis(200)).unwrap();
    let lock = file.lock();

    let turn = Turn::new([text("late")]);
    let late = [turn.clone(), turn.key("k")];
    let late = late.map(|turn| append_turn(&hurried, &session, turn));
    let answers = timeout(PATIENCE, join_all(late)).await.unwrap();

    // They came while the lock was held: a transaction that had begun would have been waited for.
    for answer in answers {
        assert!(
            matches!(answer, Err(Error::Overloaded { .. })),
            "{answer:?}"
        );
    }
    drop(lock);
    store.append_message(&session, text("later")).await.unwrap();
    assert_eq!(file.contents(), ["later"]);
    store.close().await.unwrap();
    assert_eq!(file.contents(), ["later"]);
}

#[tokio::test]
async fn a_write_that_has_begun_is_waited_for() {
    let file = File::new();
    let options = StoreOptions::new().busy_timeout(PATIENCE).unwrap();
    let (store, session, reader) = held_at_commit(&file, options).await;
    let deadline = Duration::from_millis(500);
    let hurried = store.with_deadline(deadline).unwrap();
    // The key must be looked up, so that the write begins before its commit.
    let turn = Turn::new([text("a")]).key("k");
    let mut write = append_turn(&hurried, &session, turn);
    assert!(poll!(&mut write).is_pending());
    until_at_commit(&file).await;

    assert!(timeout(deadline * 2, &mut write).await.is_err());

    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(write.await.unwrap().ids.len(), 1);
    assert_eq!(file.contents(), ["a"]);
}

#[tokio::test]
async fn a_write_that_expired_before_its_commit_is_not_stored() {
    let file = File::new();
    let options = StoreOptions::new().busy_timeout(PATIENCE).unwrap();
    let (store, session, reader) = held_at_commit(&file, options).await;
    let hurried = store.with_deadline(Duration::from_millis(500)).unwrap();
    let mut writes = vec![
        append(&store, &session, text("a")),
        append(&hurried, &session, text("late")),
        append(&store, &session, text("b")),
    ];
    queue(&mut writes).await;
    until_at_commit(&file).await;

    let refused = timeout(PATIENCE, writes.remove(1)).await;

    assert!(matches!(refused, Ok(Err(Error::Overloaded { .. }))));
    reader.execute_batch("COMMIT").unwrap();
    ids(join_all(writes).await);
    assert_eq!(file.contents(), ["a", "b"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_write_that_expired_is_not_stored_when_its_group_is_taken_apart() {
    let file = File::new();
    let options = StoreOptions::new().busy_timeout(PATIENCE).unwrap();
    let (store, session) = file.open_with(options).await;
    // Not a constraint: SQLite itself can't do it.
    file.rival()
        .execute_batch(
            "CREATE TRIGGER bomb BEFORE INSERT ON messages WHEN new.content = 'poison'
             BEGIN SELECT length(zeroblob(2000000000)); END",
        )
        .unwrap();
    let hurried = store.with_deadline(Duration::from_millis(300)).unwrap();
    let lock = file.lock();
    let mut writes = vec![
        append(&store, &session, text("poison")),
        append(&hurried, &session, text("late")),
        append(&store, &session, text("a")),
    ];
    queue(&mut writes).await;
    let late = writes.remove(1).await;
    assert!(matches!(late, Err(Error::Overloaded { .. })), "{late:?}");

    drop(lock);
    let results = join_all(writes).await;

    assert!(matches!(results[0], Err(Error::Database { .. })));
    assert_eq!(results[1].as_ref().unwrap().ids.len(), 1);
    assert_eq!(file.contents(), ["a"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_lock_held_elsewhere_is_tried_as_often_as_the_policy_says() {
    let file = File::new();
    let (store, session) = file.open_with(impatient(3)).await;
    let lock = file.lock();

    let refused = store.append_message(&session, text("a")).await.unwrap_err();

    assert!(matches!(refused, Error::Busy { attempts: 3, .. }));
    assert!(refused.is_retryable());
    drop(lock);
    store.append_message(&session, text("b")).await.unwrap();
    assert_eq!(file.contents(), ["b"]);
}

#[tokio::test]
async fn a_lock_met_at_the_commit_is_tried_again_too() {
    let file = File::new();
    let (store, session, reader) = held_at_commit(&file, impatient(3)).await;

    let refused = store.append_message(&session, text("a")).await.unwrap_err();

    assert!(matches!(refused, Error::Busy { attempts: 3, .. }));
    reader.execute_batch("COMMIT").unwrap();
    store.append_message(&session, text("b")).await.unwrap();
    assert_eq!(file.contents(), ["b"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_deadline_before_the_last_try_ends_the_trying() {
    let file = File::new();
    let pause = Duration::from_millis(50);
    let policy = RetryPolicy::new()
        .tries(1000.try_into().unwrap())
        .wait(pause, pause)
        .unwrap();
    let options = impatient(1)
        .retry(policy)
        .deadline(Duration::from_millis(200))
        .unwrap();
    let (store, session) = file.open_with(options).await;
    let lock = file.lock();

    let refused = store.append_message(&session, text("a")).await.unwrap_err();

    assert!(matches!(refused, Error::Overloaded { .. }));
    drop(lock);
    store.append_message(&session, text("b")).await.unwrap();
    assert_eq!(file.contents(), ["b"]);
}

#[tokio::test]
async fn a_write_dropped_in_the_queue_does_not_run() {
    let file = File::new();
    let (store, session) = file.open().await;
    let lock = file.lock();
    let mut writes: Vec<_> = ["a", "b", "c"]
        .map(|content| append(&store, &session, text(content)))
        .into();
    queue(&mut writes).await;

    drop(writes.remove(1));
    drop(lock);

    ids(join_all(writes).await);
    assert_eq!(file.contents(), ["a", "c"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_write_dropped_after_it_began_is_stored_whole() {
    let file = File::new();
    let (store, session, reader) = held_at_commit(&file, StoreOptions::new()).await;
    let turn = Turn::new(["a", "b", "c"].map(text)).key("k");
    let mut write = append_turn(&store, &session, turn);
    assert!(poll!(&mut write).is_pending());
    until_at_commit(&file).await;

    drop(write);
    reader.execute_batch("COMMIT").unwrap();

    store.append_message(&session, text("d")).await.unwrap();
    assert_eq!(file.contents(), ["a", "b", "c", "d"]);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_write_dropped_at_its_commit_takes_no_other_with_it() {
    let file = File::new();
    let (store, session, reader) = held_at_commit(&file, StoreOptions::new()).await;
    let mut writes: Vec<_> = ["a", "b", "c"]
        .map(|word| append_turn(&store, &session, Turn::new([word; 3].map(text))))
        .into();
    queue(&mut writes).await;
    until_at_commit(&file).await;

    drop(writes.remove(1));
    reader.execute_batch("COMMIT").unwrap();

    for result in join_all(writes).await {
        assert_eq!(result.unwrap().ids.len(), 3);
    }
    assert_eq!(file.contents(), ["a", "a", "a", "c", "c", "c"]);
    assert_sound(&file.path);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_dropped_at_any_moment_is_stored_whole_or_not_at_all() {
    let file = File::new();
    let (store, session) = file.open().await;
    for polls in 0..60 {
        let turn = Turn::new([0; 3].map(|_| text(polls.to_string())));
        let mut write = append_turn(&store, &session, turn);
        for _ in 0..polls {
            if poll!(&mut write).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(write);
    }
    store.append_message(&session, text("last")).await.unwrap();

    let contents = file.contents();
    assert_eq!(contents.iter().filter(|content| *content == "0").count(), 0);
    for polls in 1..60 {
        let content = polls.to_string();
        let stored = contents.iter().filter(|other| **other == content).count();
        assert!(stored == 0 || stored == 3, "{stored} of turn {polls}");
    }
    assert_eq!(contents.last().unwrap(), "last");
    assert_sound(&file.path);
}
