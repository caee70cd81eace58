//! How long writes wait: for room in the queue, for a lock, and while nobody wants them any more.

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
use hermes_state::{Error, RetryPolicy, StoreOptions, Turn};
use queue::{append, append_turn, held_at_commit, ids, queue, until_at_commit};
use support::{File, PATIENCE, assert_sound, impatient, text};
use tokio::time::timeout;

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

/// The writer looks at the clock itself: a caller whose task is held up takes nothing back.
#[tokio::test]
async fn a_write_that_expired_never_runs_though_its_caller_was_held_up() {
    let deadline = Duration::from_millis(200);
    let turn = Turn::new([text("late")]);
    // Behind another write in the queue; and at the writer, whose BEGIN waits for the lock.
    for (first, turn) in [
        (Some("first"), turn.clone()),
        (Some("first"), turn.clone().key("k")),
        (None, turn.clone()),
        (None, turn.key("k")),
    ] {
        let file = File::new();
        let options = StoreOptions::new().busy_timeout(PATIENCE).unwrap();
        let (store, session) = file.open_with(options).await;
        let hurried = store.with_deadline(deadline).unwrap();
        let lock = file.lock();
        let mut before: Vec<_> = first
            .iter()
            .map(|first| append(&store, &session, text(*first)))
            .collect();
        queue(&mut before).await;
        tokio::time::sleep(deadline / 4).await;
        let mut late = vec![append_turn(&hurried, &session, turn)];
        queue(&mut late).await;
        tokio::time::sleep(deadline * 2).await;

        drop(lock);
        store.append_message(&session, text("later")).await.unwrap();

        let expected: Vec<_> = first.into_iter().chain(["later"]).collect();
        assert_eq!(file.contents(), expected);
        let late = late.remove(0).await;
        assert!(matches!(late, Err(Error::Overloaded { .. })), "{late:?}");
        ids(join_all(before).await);
    }
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
