//! How a store ends: closed, shut down, dropped, with its runtime, forked, or without its file.

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

use futures_util::future::{FutureExt as _, join, join_all};
use futures_util::{StreamExt as _, poll};
use hermes_state::{
    Error, MessageRange, NewSession, Result, RetryPolicy, Scope, SessionId, SessionStore,
    StoreOptions,
};
use queue::{Append, append, queue};
use support::{File, PATIENCE, assert_sound, child, child_argument, text, until};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};

/// Appends that are in the queue, in their order: the writer has not run yet.
async fn queued(store: &SessionStore, session: &SessionId, count: usize) -> Vec<Append> {
    let message = |n: usize| append(store, session, text(n.to_string()));
    let mut writes: Vec<_> = (0..count).map(message).collect();
    queue(&mut writes).await;
    writes
}

fn single_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// What every call says after the store has ended.
async fn assert_ended(
    store: &SessionStore,
    session: &SessionId,
    expected: impl Fn(&Error) -> bool,
) {
    let new = NewSession::new("test");
    let mut stream = store.message_stream(session);
    let errors = [
        store.create_session(new).await.unwrap_err(),
        store.append_message(session, text("x")).await.unwrap_err(),
        store.end_session(session, "done").await.unwrap_err(),
        store.clear_messages(session).await.unwrap_err(),
        store.session(session).await.unwrap_err(),
        store.conversation(session).await.unwrap_err(),
        store.message_count(Scope::All).await.unwrap_err(),
        store
            .messages(session, MessageRange::all())
            .await
            .unwrap_err(),
        stream.next().await.unwrap().unwrap_err(),
    ];
    for error in errors {
        assert!(expected(&error), "{error:?}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_closed_store_refuses_every_call() {
    let file = File::new();
    let (store, session) = file.open().await;
    let clone = store.clone();
    store.close().await.unwrap();
    for store in [&store, &clone] {
        assert_ended(store, &session, |error| matches!(error, Error::Closed)).await;
    }
}

#[tokio::test]
async fn a_closed_read_only_store_refuses_every_read() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.close().await.unwrap();
    let store = StoreOptions::new()
        .read_only()
        .open(&file.path)
        .await
        .unwrap();
    let read = store.session(&session).await.unwrap().unwrap();
    assert_eq!(read.id, session);
    store.close().await.unwrap();
    store.close().await.unwrap();
    let refused = store.session(&session).await.unwrap_err();
    assert!(matches!(refused, Error::Closed), "{refused:?}");
}

#[tokio::test]
async fn closing_writes_what_is_queued() {
    let file = File::new();
    let (store, session) = file.open().await;
    let lock = file.lock();
    let writes = queued(&store, &session, 200).await;
    let mut closing = store.close().boxed();
    assert!(poll!(&mut closing).is_pending());
    let refused = store.append_message(&session, text("new")).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");

    drop(lock);
    let (results, closed) = join(join_all(writes), closing).await;

    closed.unwrap();
    for result in results {
        assert_eq!(result.unwrap().ids.len(), 1);
    }
    assert_eq!(file.contents().len(), 200);
    assert_sound(&file.path);
}

#[tokio::test]
async fn closing_twice_or_at_once_is_closing_once() {
    let file = File::new();
    let (store, session) = file.open().await;
    let writes = queued(&store, &session, 10).await;
    let closings = join_all((0..5).map(|_| store.close()));
    let (results, closed) = join(join_all(writes), closings).await;
    assert!(results.iter().all(Result::is_ok));
    for result in closed {
        result.unwrap();
    }
    store.close().await.unwrap();
    let report = store.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!((report.committed, report.refused), (0, 0));
}

#[tokio::test]
async fn closing_leaves_one_file() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.append_message(&session, text("a")).await.unwrap();
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 1);
    store.close().await.unwrap();
    assert!(!file.beside("-wal").exists());
    assert!(!file.beside("-shm").exists());
    assert_eq!(file.contents(), ["a"]);
}

#[tokio::test]
async fn shutting_down_counts_what_was_committed() {
    let file = File::new();
    let (store, session) = file.open().await;
    store
        .append_message(&session, text("before"))
        .await
        .unwrap();
    let mut writes = queued(&store, &session, 5).await;
    let nobody = SessionId::new("nobody").unwrap();
    writes.extend(queued(&store, &nobody, 1).await);

    let (results, report) = join(join_all(writes), store.shutdown(PATIENCE)).await;

    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 5);
    let report = report.unwrap();
    assert_eq!((report.committed, report.refused), (5, 0));
}

/// Shuts a store down while another program holds the write lock; says how many writes were refused.
async fn shut_down_under_a_lock(options: StoreOptions, writes: usize) -> u64 {
    let file = File::new();
    let (store, session) = file.open_with(options).await;
    let lock = file.lock();
    let writes = queued(&store, &session, writes).await;
    let limit = Duration::from_millis(300);

    let start = Instant::now();
    let down = timeout(PATIENCE, join(join_all(writes), store.shutdown(limit)));
    let (results, report) = down.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));

    for result in results {
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    }
    let report = report.unwrap();
    assert_eq!(report.committed, 0);
    drop(lock);
    // The connection that was waiting for the lock goes without having written.
    let other = file.open().await.0;
    other.append_message(&session, text("after")).await.unwrap();
    assert_eq!(file.contents(), ["after"]);
    assert_sound(&file.path);
    report.refused
}

#[tokio::test]
async fn shutting_down_refuses_in_time_what_has_not_begun() {
    let busy = StoreOptions::new().busy_timeout(PATIENCE).unwrap();
    assert_eq!(shut_down_under_a_lock(busy, 300).await, 300);
}

#[tokio::test]
async fn shutting_down_counts_the_callers_at_the_door() {
    let narrow = StoreOptions::new().queue_limit(2, 1 << 20).unwrap();
    assert_eq!(shut_down_under_a_lock(narrow, 10).await, 10);
}

#[tokio::test]
async fn shutting_down_does_not_sit_out_a_pause_between_tries() {
    let pause = Duration::from_secs(15);
    let policy = RetryPolicy::new().wait(pause, pause).unwrap();
    let options = support::impatient(1).retry(policy);
    assert_eq!(shut_down_under_a_lock(options, 3).await, 3);
}

#[tokio::test]
async fn dropping_the_store_loses_nothing_acknowledged() {
    let file = File::new();
    let (store, session) = file.open().await;
    let writes = queued(&store, &session, 300).await;
    let acknowledged = join_all(writes).await.iter().filter(|w| w.is_ok()).count();
    assert_eq!(acknowledged, 300);
    drop(store);
    let (store, session) = file.open().await;
    let messages = store.messages(&session, MessageRange::all()).await.unwrap();
    assert_eq!(messages.len(), 300);
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_call_in_flight_outlives_the_other_handles() {
    let file = File::new();
    let (store, session) = file.open().await;
    let lock = file.lock();
    let writes = queued(&store, &session, 3).await;
    drop(store);
    drop(lock);
    for result in join_all(writes).await {
        result.unwrap();
    }
    assert_eq!(file.contents(), ["0", "1", "2"]);
    until("the log stays", || !file.beside("-wal").exists()).await;
}

#[test]
fn calls_after_the_end_of_its_runtime_fail_typed() {
    let file = File::new();
    let first = single_thread();
    let (store, session) = first.block_on(file.open());
    first.block_on(async {
        store.append_message(&session, text("a")).await.unwrap();
        store.session(&session).await.unwrap();
    });
    drop(first);

    single_thread().block_on(async {
        assert_ended(&store, &session, |error| {
            matches!(error, Error::RuntimeEnded)
        })
        .await;
        let closed = store.close().await;
        assert!(matches!(closed, Err(Error::RuntimeEnded)), "{closed:?}");
        let (again, session) = file.open().await;
        again.append_message(&session, text("b")).await.unwrap();
    });
    assert_eq!(file.contents(), ["a", "b"]);
}

#[test]
fn calls_in_flight_at_the_end_of_the_runtime_fail_typed() {
    let file = File::new();
    let (first, second) = (single_thread(), single_thread());
    let (store, session) = first.block_on(file.open());
    let lock = file.lock();
    let writes = second.block_on(queued(&store, &session, 3));
    // The writer meets the lock, and ends there.
    first.block_on(async {
        let pause = timeout(Duration::from_millis(100), std::future::pending::<()>());
        pause.await.unwrap_err();
    });
    drop(first);

    let results = second
        .block_on(async { timeout(PATIENCE, join_all(writes)).await })
        .unwrap();

    for result in results {
        assert!(matches!(result, Err(Error::RuntimeEnded)), "{result:?}");
    }
    drop(lock);
    let (again, session) = second.block_on(file.open());
    second
        .block_on(again.append_message(&session, text("b")))
        .unwrap();
    assert_eq!(file.contents(), ["b"]);
}

#[test]
fn calls_outside_a_runtime_fail_typed() {
    let file = File::new();
    let runtime = single_thread();
    let (store, session) = runtime.block_on(file.open());
    let opened = SessionStore::open(&file.path).now_or_never();
    assert!(matches!(opened, Some(Err(Error::NoRuntime))));
    let temporary = StoreOptions::new().open_temporary().now_or_never();
    assert!(matches!(temporary, Some(Err(Error::NoRuntime))));
    assert_ended(&store, &session, |error| matches!(error, Error::NoRuntime))
        .now_or_never()
        .unwrap();
    let closed = store.close().now_or_never();
    assert!(matches!(closed, Some(Err(Error::NoRuntime))));
    drop(store);
}

#[cfg(unix)]
#[test]
fn a_store_in_a_forked_child_fails_typed() {
    let file = File::new();
    let status = child("forks", &file.path).status().unwrap();
    assert!(status.success(), "{status}");
}

#[cfg(unix)]
#[test]
fn forks() {
    let Some(path) = child_argument() else { return };
    single_thread().block_on(async {
        let store = SessionStore::open(&path).await.unwrap();
        let session = store.create_session(NewSession::new("test")).await.unwrap();
        match fork::fork().unwrap() {
            fork::Fork::Child => {
                let append = store.append_message(&session, text("x")).now_or_never();
                let read = store.session(&session).now_or_never();
                let close = store.close().now_or_never();
                let forked = matches!(append, Some(Err(Error::Forked)))
                    && matches!(read, Some(Err(Error::Forked)))
                    && matches!(close, Some(Err(Error::Forked)));
                #[expect(
                    clippy::exit,
                    reason = "destructors would wait for the parent's threads"
                )]
                std::process::exit(if forked { 42 } else { 1 });
            }
            fork::Fork::Parent(child) => {
                let status = fork::waitpid(child).unwrap();
                assert_eq!((status >> 8) & 0xff, 42, "status {status:x}");
            }
        }
        store.append_message(&session, text("a")).await.unwrap();
        store.close().await.unwrap();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_hundred_openings_leave_nothing_behind() {
    let file = File::new();
    let status = child("opens_and_closes", &file.path).status().unwrap();
    assert!(status.success(), "{status}");
}

#[cfg(target_os = "linux")]
#[test]
fn opens_and_closes() {
    let Some(path) = child_argument() else { return };
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let round = async |close: bool| {
            let store = SessionStore::open(&path).await.unwrap();
            let session = store.create_session(NewSession::new("test")).await.unwrap();
            store.append_message(&session, text("x")).await.unwrap();
            join(store.session(&session), store.conversation(&session))
                .await
                .0
                .unwrap();
            if close {
                store.close().await.unwrap();
            }
        };
        let tasks = || runtime.metrics().num_alive_tasks();
        let held = || [count("/proc/self/fd"), count("/proc/self/task"), tasks()];
        round(true).await;
        // A few threads of the first rounds may still be ending.
        let before = held();
        for n in 0..100 {
            round(n % 2 == 0).await;
        }
        until("something was left behind", || {
            held()
                .iter()
                .zip(before)
                .all(|(now, before)| *now <= before)
        })
        .await;
    });
}

#[tokio::test]
async fn a_temporary_store_is_gone_with_its_last_clone() {
    let store = StoreOptions::new().open_temporary().await.unwrap();
    let folder = store.environment().path.parent().unwrap().to_owned();
    let clone = store.clone();
    drop(store);
    assert!(folder.join("state.db").exists());
    clone.close().await.unwrap();
    drop(clone);
    assert!(!folder.exists());
}

#[tokio::test]
async fn closing_for_reading_goes_on_when_nobody_waits_for_it() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.close().await.unwrap();
    let store = StoreOptions::new()
        .read_only()
        .open(file.beside(""))
        .await
        .unwrap();
    assert!(futures_util::poll!(Box::pin(store.close())).is_pending());
    let refused = store.session(&session).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

#[tokio::test]
async fn the_greatest_limit_of_a_shutdown_is_none() {
    let file = File::new();
    let (store, _) = file.open().await;
    for limit in [
        Duration::MAX,
        Duration::from_secs(u64::MAX / 4),
        Duration::from_secs(1 << 62),
    ] {
        store.shutdown(limit).await.unwrap();
    }
}
