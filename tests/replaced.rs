//! A file that is deleted, moved or replaced while a store has it open.

#![cfg(unix)]
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

use std::path::Path;

use hermes_state::{Error, Journal, SessionId, SessionStore, StoreOptions};
use support::{File, assert_sound, cell, rival, text};
use tokio::runtime::Builder;

/// What every call says from then on.
async fn assert_stopped(store: &SessionStore, session: &SessionId) {
    let errors = [
        store.append_message(session, text("x")).await.unwrap_err(),
        store.end_session(session, "done").await.unwrap_err(),
        store.session(session).await.unwrap_err(),
        store.conversation(session).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::FileReplaced { .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
}

/// Does `harm` to the file of a store, and checks that the store says so and stops.
async fn harmed(options: &StoreOptions, warm: bool, harm: impl Fn(&Path)) {
    let file = File::new();
    let (mut store, session) = file.open_with(options.clone()).await;
    if warm {
        store.append_message(&session, text("a")).await.unwrap();
        store.session(&session).await.unwrap();
    } else {
        store.close().await.unwrap();
        store = options.clone().open(&file.path).await.unwrap();
    }
    harm(&file.path);
    let bytes = || ["", "-wal", "-journal"].map(|suffix| std::fs::read(file.beside(suffix)).ok());
    let left = bytes();

    assert_stopped(&store, &session).await;
    // Neither does its end touch what lies there now.
    store.close().await.unwrap();
    assert!(left == bytes(), "something was written");
}

fn away(path: &Path) -> std::path::PathBuf {
    support::beside(path, "-away")
}

/// Puts a database of the same kind in the place of the store's, with a log in use.
fn replace(path: &Path) {
    let other = File::new();
    let make = || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { other.open().await.0.close().await.unwrap() });
    };
    std::thread::scope(|scope| scope.spawn(make).join().unwrap());
    std::fs::rename(path, away(path)).unwrap();
    for suffix in ["-wal", "-shm"] {
        drop(std::fs::remove_file(support::beside(path, suffix)));
    }
    std::fs::copy(&other.path, path).unwrap();
    let rival = rival(path);
    rival
        .execute_batch(
            "PRAGMA wal_autocheckpoint = 0;
             UPDATE sessions SET model = 'other'",
        )
        .unwrap();
    // Kept open, as by a program that works on it.
    std::mem::forget(rival);
}

#[tokio::test]
async fn a_file_that_was_taken_away_stops_the_store() {
    let wal = StoreOptions::new();
    let rollback = StoreOptions::new().journal(Journal::Rollback);
    for warm in [true, false] {
        for options in [&wal, &rollback] {
            harmed(options, warm, |path| {
                std::fs::remove_file(path).unwrap();
            })
            .await;
            harmed(options, warm, |path| {
                std::fs::rename(path, away(path)).unwrap();
            })
            .await;
            harmed(options, warm, replace).await;
        }
    }
}

#[tokio::test]
async fn a_log_that_was_taken_away_stops_the_store() {
    for warm in [true, false] {
        let file = File::new();
        let (mut store, session) = file.open().await;
        store.append_message(&session, text("a")).await.unwrap();
        if !warm {
            store.close().await.unwrap();
            store = SessionStore::open(&file.path).await.unwrap();
        }
        std::fs::remove_file(file.beside("-wal")).unwrap();

        assert_stopped(&store, &session).await;

        // What was acknowledged before could still be saved.
        store.close().await.unwrap();
        assert_eq!(file.contents(), ["a"]);
        assert_sound(&file.path);
    }
}

#[tokio::test]
async fn a_reader_opened_later_does_not_read_another_file() {
    let file = File::new();
    let (store, session) = file.open().await;
    store.append_message(&session, text("a")).await.unwrap();
    replace(&file.path);

    let refused = store.conversation(&session).await.unwrap_err();

    assert!(matches!(refused, Error::FileReplaced { .. }), "{refused:?}");
    let rival = file.rival();
    assert_eq!(cell(&rival, "SELECT COUNT(*) FROM messages"), 0);
}
