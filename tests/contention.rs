//! Several programs at one file.

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

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::{join, join_all};
use hermes_state::{Error, Scope, SessionId, SessionStore, Turn};
use support::{File, PATIENCE, assert_sound, child, child_argument, impatient, text};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

const APPENDS: usize = 150;

/// Appends to a session that all share and to one of this process, from several tasks.
async fn append_all(store: &SessionStore) -> Vec<i64> {
    let own = SessionId::new(std::process::id().to_string()).unwrap();
    store.ensure_session(&own).await.unwrap();
    let shared = SessionId::new("s").unwrap();
    let tasks = (0..3).map(|task| {
        let session = if task == 0 {
            own.clone()
        } else {
            shared.clone()
        };
        async move {
            let mut ids = Vec::new();
            for _ in 0..APPENDS / 3 {
                let appended = store.append_message(&session, text("x")).await.unwrap();
                ids.push(appended.last_id().unwrap().get());
            }
            assert!(ids.is_sorted());
            ids
        }
    });
    join_all(tasks).await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_program_gets_all_of_its_writes_stored_once() {
    let file = File::new();
    let (store, _) = file.open().await;
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut child = child("appends", &file.path);
            child.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();

    let mut acknowledged = append_all(&store).await;

    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let output = String::from_utf8(output.stdout).unwrap();
        let ids = output.lines().filter_map(|line| line.strip_prefix("id "));
        acknowledged.extend(ids.map(|id| id.parse::<i64>().unwrap()));
    }
    assert_eq!(acknowledged.len(), 3 * APPENDS);
    let acknowledged: BTreeSet<_> = acknowledged.into_iter().collect();
    let rival = file.rival();
    let mut rows = rival.prepare("SELECT id FROM messages").unwrap();
    let stored: rusqlite::Result<BTreeSet<i64>> =
        rows.query_map([], |row| row.get(0)).unwrap().collect();
    assert_eq!(stored.unwrap(), acknowledged);
    assert_sound(&file.path);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends() {
    let Some(path) = child_argument() else { return };
    let store = SessionStore::open(&path).await.unwrap();
    // After what the test harness prints.
    let mut lines = "\n".to_owned();
    for id in append_all(&store).await {
        writeln!(lines, "id {id}").unwrap();
    }
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn two_stores_of_one_process_share_a_file_like_two_programs() {
    let file = File::new();
    let ((first, _), (second, _)) = join(file.open(), file.open()).await;
    let (a, b) = join(append_all(&first), append_all(&second)).await;
    let ids: BTreeSet<_> = a.into_iter().chain(b).collect();
    assert_eq!(ids.len(), 2 * APPENDS);
    let count = first.message_count(Scope::All).await.unwrap();
    assert_eq!(usize::try_from(count), Ok(2 * APPENDS));
    first.close().await.unwrap();
    second.close().await.unwrap();
    assert_sound(&file.path);
}

#[tokio::test]
async fn a_lock_held_for_long_delays_writes_only() {
    let file = File::new();
    file.open().await.0.close().await.unwrap();
    let lock = file.lock();

    let opened = timeout(PATIENCE, SessionStore::open(&file.path)).await;
    let store = opened.unwrap().unwrap();
    let session = SessionId::new("s").unwrap();
    let read = store.session(&session).await.unwrap().unwrap();
    assert_eq!(read.id, session);
    let hurried = store.with_deadline(Duration::from_secs(1)).unwrap();
    let mut written = Box::pin(store.append_message(&session, text("in time")));
    let late = hurried.append_message(&session, text("late"));
    // The second one waits in the queue meanwhile.
    let late = tokio::select! {
        late = late => late,
        early = &mut written => panic!("written beside the lock: {early:?}"),
    };
    assert!(matches!(late, Err(Error::Overloaded { .. })), "{late:?}");
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 0);
    drop(lock);
    written.await.unwrap();
    assert_eq!(file.contents(), ["in time"]);
    assert_sound(&file.path);
}

/// A transaction that begins by reading and is overtaken by another program before it writes fails
/// at once in SQLite, whatever the busy timeout: ours must not begin so.
#[tokio::test]
async fn a_write_that_reads_first_is_not_overtaken() {
    let file = File::new();
    let options = impatient(1).busy_timeout(PATIENCE).unwrap();
    let (store, session) = file.open_with(options).await;
    let rival = file.rival();
    let mut turn = Turn::new([text("x")]).expect_empty();
    for _ in 0..5 {
        rival
            .execute_batch("BEGIN IMMEDIATE; UPDATE sessions SET model = 'rival'")
            .unwrap();
        let mut write = Box::pin(store.append_turn(&session, turn));
        let held = Duration::from_millis(50);
        let _waits: Elapsed = timeout(held, &mut write).await.unwrap_err();
        rival.execute_batch("COMMIT").unwrap();
        let last = write.await.unwrap().last_id().unwrap();
        turn = Turn::new([text("x")]).expect_last(last);
    }
    assert_eq!(file.contents().len(), 5);
    assert_sound(&file.path);
}
