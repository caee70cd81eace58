//! How reads go on beside everything else, and end in time.

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

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hermes_state::{
    Error, Journal, MessageRange, Scope, SessionId, SessionStore, StoreOptions, Turn, Warning,
};
use support::{File, PATIENCE, cell, impatient, text, until};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Makes counting all messages endless, and leaves everything that looks at one session quick.
fn make_counting_endless(file: &File) {
    file.rival()
        .execute_batch(
            "PRAGMA legacy_alter_table = ON;
             ALTER TABLE messages RENAME TO stored_messages;
             CREATE VIEW messages AS WITH RECURSIVE
                 counter(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM counter)
                 SELECT id, '' AS session_id FROM counter;",
        )
        .unwrap();
}

/// A short read that is given ample time.
async fn assert_reads(store: &SessionStore, session: &SessionId) {
    let read = timeout(PATIENCE, store.session(session)).await.unwrap();
    assert_eq!(read.unwrap().unwrap().source, "test");
}

#[tokio::test]
async fn reads_do_not_wait_for_a_writer_nor_take_its_lock() {
    let file = File::new();
    let (store, session) = file.open_with(impatient(1)).await;
    store.append_message(&session, text("a")).await.unwrap();
    for lock in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"] {
        let rival = file.rival();
        rival.execute_batch(lock).unwrap();
        rival.execute_batch("DELETE FROM messages").unwrap();

        assert_eq!(store.message_count(Scope::All).await.unwrap(), 1);
        assert_eq!(store.session_count(Scope::All).await.unwrap(), 1);
        let session_read = store.session(&session).await.unwrap().unwrap();
        assert_eq!(session_read.message_count, 1);
        let conversation = store.conversation(&session).await.unwrap();
        assert_eq!(conversation.messages.len(), 1);
        let messages = store.messages(&session, MessageRange::all()).await.unwrap();
        assert_eq!(messages.len(), 1);
        let streamed = store.message_stream(&session).next().await.unwrap();
        assert_eq!(streamed.unwrap().content, Some("a".into()));

        rival.execute_batch("ROLLBACK").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_sees_its_own_acknowledged_writes() {
    let file = File::new();
    let (store, _) = file.open().await;
    let callers = (0..4).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let session = SessionId::new(format!("caller {n}")).unwrap();
            store.ensure_session(&session).await.unwrap();
            for n in 1..=50 {
                let appended = store.append_message(&session, text("x")).await.unwrap();
                let range = MessageRange::last(1);
                let last = store.messages(&session, range).await.unwrap();
                assert_eq!(Some(last[0].id), appended.last_id());
                let counted = store.session(&session).await.unwrap().unwrap();
                assert_eq!(counted.message_count, n);
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_read_gives_its_connection_back() {
    let file = File::new();
    let options = StoreOptions::new().readers(1).unwrap();
    let (store, session) = file.open_with(options).await;
    make_counting_endless(&file);
    for pause in [0, 1, 10, 200] {
        let read = store.message_count(Scope::All);
        let dropped = timeout(Duration::from_millis(pause), read).await;
        let _dropped: Elapsed = dropped.unwrap_err();
        assert_reads(&store, &session).await;
    }
}

#[tokio::test]
async fn a_read_past_its_deadline_is_stopped() {
    let file = File::new();
    let options = StoreOptions::new().readers(1).unwrap();
    let (store, session) = file.open_with(options).await;
    make_counting_endless(&file);
    let limit = Duration::from_millis(100);
    let hurried = store.with_deadline(limit).unwrap();
    for _ in 0..3 {
        let stopped = timeout(PATIENCE, hurried.message_count(Scope::All)).await;
        let stopped = stopped.unwrap().unwrap_err();
        assert!(matches!(stopped, Error::ReadTimeout { waited } if waited >= limit));
        assert!(stopped.is_retryable());
        assert_reads(&store, &session).await;
    }
}

#[tokio::test]
async fn long_reads_leave_a_connection_for_short_ones() {
    let file = File::new();
    let options = StoreOptions::new().readers(2).unwrap();
    let (store, session) = file.open_with(options).await;
    make_counting_endless(&file);
    let long: Vec<_> = (0..5)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.message_count(Scope::All).await })
        })
        .collect();
    for _ in 0..20 {
        assert_reads(&store, &session).await;
    }
    assert!(!long.iter().any(tokio::task::JoinHandle::is_finished));
    for read in long {
        read.abort();
    }
}

#[tokio::test]
async fn a_read_that_waits_for_a_connection_ends_in_time_too() {
    let file = File::new();
    let options = StoreOptions::new().readers(1).unwrap();
    let (store, session) = file.open_with(options).await;
    make_counting_endless(&file);
    let other = store.clone();
    let long = tokio::spawn(async move { other.message_count(Scope::All).await });
    until("the long read did not begin", || open_readers(&file) == 1).await;

    let hurried = store.with_deadline(Duration::from_millis(100)).unwrap();
    let stopped = timeout(PATIENCE, hurried.session(&session)).await.unwrap();

    assert!(matches!(stopped, Err(Error::ReadTimeout { .. })));
    long.abort();
    assert_reads(&store, &session).await;
}

/// How many connections read the file. Each has its log open; the writer has it open too.
#[cfg(target_os = "linux")]
fn open_readers(file: &File) -> usize {
    let log = file.beside("-wal").canonicalize().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    open.filter(|path| *path == log).count() - 1
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn readers_are_opened_when_needed_and_closed_when_idle() {
    let file = File::new();
    let options = StoreOptions::new()
        .readers(3)
        .unwrap()
        .reader_idle(Duration::from_millis(300))
        .unwrap();
    let (store, session) = file.open_with(options).await;
    for round in 0..2 {
        assert_eq!(open_readers(&file), 0, "round {round}");
        store.session(&session).await.unwrap();
        assert_eq!(open_readers(&file), 1, "round {round}");
        for read in join_all((0..50).map(|_| store.session(&session))).await {
            read.unwrap();
        }
        assert_eq!(open_readers(&file), 3, "round {round}");
        until("idle readers stay", || open_readers(&file) == 0).await;
    }
}

#[tokio::test]
async fn a_slow_consumer_of_a_stream_holds_nothing() {
    let file = File::new();
    let (store, session) = file.open().await;
    let expected: Vec<_> = (0..600).map(|n| n.to_string()).collect();
    let turn = Turn::new(expected.iter().map(text));
    store.append_turn(&session, turn).await.unwrap();
    let mut stream = store.message_stream(&session);
    let mut contents = vec![stream.next().await.unwrap().unwrap().content.unwrap()];
    store.append_message(&session, text("later")).await.unwrap();

    let rival = file.rival();
    rival.busy_timeout(PATIENCE).unwrap();
    assert_eq!(cell(&rival, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);

    while let Some(message) = stream.next().await {
        contents.push(message.unwrap().content.unwrap());
    }
    let expected: Vec<_> = expected.into_iter().map(Into::into).collect();
    assert_eq!(contents, expected);
}

#[tokio::test]
async fn without_a_log_a_read_waits_for_a_commit() {
    let file = File::new();
    let options = impatient(1).journal(Journal::Rollback);
    let (store, session) = file.open_with(options).await;
    let rival = file.rival();
    rival.execute_batch("BEGIN EXCLUSIVE").unwrap();

    let refused = store.session(&session).await.unwrap_err();

    assert!(
        matches!(refused, Error::Busy { attempts: 5, .. }),
        "{refused:?}"
    );
    assert!(refused.is_retryable());
    rival.execute_batch("COMMIT").unwrap();
    assert_reads(&store, &session).await;

    drop(store);
    let options = StoreOptions::new()
        .journal(Journal::Rollback)
        .busy_timeout(PATIENCE)
        .unwrap();
    let (store, session) = file.open_with(options).await;
    rival.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let mut read = Box::pin(store.session(&session));
    let waiting = timeout(Duration::from_millis(200), &mut read).await;
    let _waits: Elapsed = waiting.unwrap_err();
    rival.execute_batch("COMMIT").unwrap();
    assert_eq!(read.await.unwrap().unwrap().id, session);
}

/// A caller that stopped polling once kept its connection, and with it a state of the file that the
/// log could not shrink behind.
#[tokio::test]
async fn a_read_that_nobody_polls_any_more_gives_its_connection_back() {
    let file = File::new();
    let (store, session) = file
        .open_with(StoreOptions::new().readers(1).unwrap())
        .await;
    let turn = Turn::new((0..20_000).map(|_| text("x")));
    store.append_turn(&session, turn).await.unwrap();
    let hasty = store.with_deadline(Duration::from_millis(200)).unwrap();
    let mut parked = Box::pin(hasty.messages(&session, MessageRange::all()));
    for _ in 0..3 {
        assert!(futures_util::poll!(&mut parked).is_pending());
        tokio::task::yield_now().await;
    }
    // The only connection.
    assert_reads(&store, &session).await;
    timeout(PATIENCE, store.close()).await.unwrap().unwrap();
    drop(parked);
}

/// Tokio's timers and blocking threads must not be asked for where there is no runtime.
#[test]
fn a_future_that_began_inside_a_runtime_may_be_polled_outside() {
    let file = File::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (store, session) = runtime.block_on(file.open_with(StoreOptions::new()));
    let mut opening = Box::pin(SessionStore::open(file.beside("")));
    let mut read = Box::pin(store.conversation(&session));
    let mut write = Box::pin(store.append_message(&session, text("a")));
    runtime.block_on(async {
        assert!(futures_util::poll!(&mut opening).is_pending());
        assert!(futures_util::poll!(&mut read).is_pending());
        assert!(futures_util::poll!(&mut write).is_pending());
    });
    let outside = futures_util::future::join3(opening, read, write);
    let (opened, read, written) = futures_executor::block_on(outside);
    assert_eq!(opened.unwrap().environment().path, store.environment().path);
    assert!(read.unwrap().messages.len() <= 1);
    assert_eq!(written.unwrap().ids.len(), 1);
}

#[tokio::test]
async fn reads_do_without_an_index_that_another_program_took_away() {
    let file = File::new();
    let (store, session) = file.open_with(StoreOptions::new()).await;
    let turn = Turn::new((0..100).map(|n| text(n.to_string())));
    let ids = store.append_turn(&session, turn).await.unwrap().ids;
    assert_eq!(
        store.conversation(&session).await.unwrap().messages.len(),
        100
    );
    assert!(
        !store
            .environment()
            .warnings
            .contains(&Warning::MessageIndexMissing)
    );
    file.rival()
        .execute_batch("DROP INDEX idx_messages_session_id")
        .unwrap();

    assert_eq!(
        store.conversation(&session).await.unwrap().messages.len(),
        100
    );
    let last = store
        .messages(&session, MessageRange::last(2))
        .await
        .unwrap();
    assert_eq!(
        last.iter().map(|message| message.id).collect::<Vec<_>>(),
        ids[98..]
    );
    assert!(
        store
            .environment()
            .warnings
            .contains(&Warning::MessageIndexMissing)
    );
}

/// Building it was once tried at the opening only: beside a busy neighbour, reads sorted for ever.
#[tokio::test]
async fn an_index_that_another_program_keeps_from_being_built_is_built_later() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.append_message(&session, text("a")).await.unwrap();
    store.close().await.unwrap();
    let rival = file.rival();
    rival
        .execute_batch("DROP INDEX idx_messages_session_id; BEGIN IMMEDIATE")
        .unwrap();
    let store = impatient(1).open(&file.path).await.unwrap();
    let missing = || {
        store
            .environment()
            .warnings
            .contains(&Warning::MessageIndexMissing)
    };
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 1);
    assert!(missing());
    rival.execute_batch("COMMIT").unwrap();
    until("the index is built", || !missing()).await;
    let index = "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'idx_messages_session_id'";
    assert_eq!(cell(&rival, index), 1);
}
