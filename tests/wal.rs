//! How the write-ahead log is kept short.

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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use hermes_state::{Durability, SessionId, SessionStore, StoreOptions, Turn, Warning};
use rusqlite::Connection;
use support::{File, assert_sound, cell, text, until};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn log_bytes(file: &File) -> u64 {
    std::fs::metadata(file.beside("-wal")).map_or(0, |log| log.len())
}

/// Length of a log that others hold, as the store reports it.
fn held(store: &SessionStore) -> Option<u64> {
    let warnings = store.environment().warnings;
    warnings.iter().find_map(|warning| match warning {
        Warning::LogHeldByOthers { bytes } => Some(*bytes),
        _ => None,
    })
}

/// Most transactions that the log holds while messages of `size` bytes are appended.
async fn most_commits_in_log(options: StoreOptions, size: usize) -> usize {
    let file = File::new();
    let (store, session) = file.open_with(options).await;
    let mut most = 0;
    for _ in 0..100 {
        store
            .append_message(&session, text("x".repeat(size)))
            .await
            .unwrap();
        most = most.max(file.commits_in_log());
    }
    most
}

#[tokio::test]
async fn the_log_begins_anew_after_so_many_commits_or_bytes() {
    let by_commits = StoreOptions::new().checkpoint_every(10, 1 << 40).unwrap();
    let most = most_commits_in_log(by_commits, 1).await;
    assert!((8..=11).contains(&most), "{most} commits");

    let by_bytes = StoreOptions::new()
        .checkpoint_every(1_000_000, 256 * KIB)
        .unwrap();
    let most = most_commits_in_log(by_bytes, 10_000).await;
    assert!((8..=28).contains(&most), "{most} commits");
}

/// Options under which the log is small and often at its limit.
fn small_log() -> StoreOptions {
    StoreOptions::new()
        .durability(Durability::Normal)
        .checkpoint_every(50, 512 * KIB)
        .unwrap()
        .wal_limit(4 * MIB)
        .unwrap()
}

/// Messages of a read transcript.
const READ: usize = 1500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_under_its_limit_while_reads_overlap() {
    let file = File::new();
    let (store, session) = file.open_with(small_log()).await;
    // Long enough that some read is always under way.
    let transcript = Turn::new((0..READ).map(|n| text(format!("{n:0500}"))));
    store.append_turn(&session, transcript).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..6).map(|_| {
        let (store, session, done) = (store.clone(), session.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(
                    store.conversation(&session).await.unwrap().messages.len(),
                    READ
                );
                reads += 1;
            }
            reads
        })
    });
    let readers: Vec<_> = readers.collect();
    // Full groups of short messages, each in a session of its own: many pages a byte of content.
    let writers = (0..64).map(|n| {
        let (store, log) = (store.clone(), file.beside("-wal"));
        tokio::spawn(async move {
            let session = SessionId::new(format!("writer {n}")).unwrap();
            store.ensure_session(&session).await.unwrap();
            let mut most = 0;
            for round in 0..100 {
                let message = text(format!("{round:0$}", if n == 0 { 20_000 } else { 50 }));
                store.append_message(&session, message).await.unwrap();
                most = most.max(std::fs::metadata(&log).unwrap().len());
            }
            most
        })
    });
    let most = join_all(writers)
        .await
        .into_iter()
        .map(Result::unwrap)
        .max();
    done.store(true, Ordering::Relaxed);
    for reads in join_all(readers).await {
        assert!(reads.unwrap() > 0);
    }

    let most = most.unwrap();
    assert!(most > MIB, "the log was hardly used: {most}");
    assert!(most < 4 * MIB, "{most}");
    assert_eq!(held(&store), None);
    assert_sound(&file.path);
}

/// Another program in the middle of a read.
fn reading(file: &File) -> Connection {
    let reader = file.rival();
    reader.execute_batch("BEGIN").unwrap();
    cell(&reader, "SELECT COUNT(*) FROM messages");
    reader
}

#[tokio::test]
async fn a_reader_of_another_program_that_holds_the_log_is_reported() {
    let file = File::new();
    let (store, session) = file.open_with(small_log()).await;
    let reader = reading(&file);
    let append = async || {
        let message = text("x".repeat(20_000));
        store.append_message(&session, message).await.unwrap();
    };
    assert_eq!(held(&store), None);
    let mut appended = 0;
    while log_bytes(&file) < 6 * MIB {
        append().await;
        appended += 1;
    }
    let bytes = held(&store).unwrap();
    assert!((2 * MIB..6 * MIB).contains(&bytes), "{bytes}");

    drop(reader);
    while held(&store).is_some() {
        append().await;
        appended += 1;
        assert!(appended < 2000, "the log was not begun anew");
    }
    assert_eq!(file.contents().len(), appended);
    assert_sound(&file.path);
}

#[tokio::test]
async fn an_idle_store_cuts_the_log() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.append_message(&session, text("a")).await.unwrap();
    assert!(log_bytes(&file) > 0);
    until("the log stays", || log_bytes(&file) == 0).await;
    store.append_message(&session, text("b")).await.unwrap();
    assert_eq!(file.contents(), ["a", "b"]);
}

#[tokio::test]
async fn a_store_cuts_the_log_that_another_program_left() {
    let file = File::new();
    file.open().await.0.close().await.unwrap();
    let rival = file.rival();
    rival
        .execute_batch("PRAGMA wal_autocheckpoint = 0; UPDATE sessions SET model = 'm'")
        .unwrap();
    assert!(log_bytes(&file) > 0);
    let _store = SessionStore::open(&file.path).await.unwrap();
    until("the log stays", || log_bytes(&file) == 0).await;
}

#[tokio::test]
async fn a_closed_store_leaves_all_in_one_file() {
    for beside in [false, true] {
        let file = File::new();
        let (store, session) = file.open().await;
        for n in 0..20 {
            let message = text(n.to_string());
            store.append_message(&session, message).await.unwrap();
        }
        let rival = beside.then(|| {
            let rival = file.rival();
            cell(&rival, "SELECT COUNT(*) FROM messages");
            rival
        });
        store.close().await.unwrap();
        assert_eq!(log_bytes(&file), 0);
        assert_eq!(file.beside("-wal").exists(), beside);

        let copy = File::new();
        std::fs::copy(&file.path, &copy.path).unwrap();
        assert_eq!(copy.contents().len(), 20);
        assert_sound(&copy.path);
        drop(rival);
    }
}
