//! A process that is killed in the middle of its writes.

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

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::Duration;

use hermes_state::{Journal, NewSession, SessionId, StoreOptions, Turn};
use support::{File, assert_sound, child, child_argument, text};

/// The child's name for a journal mode.
fn options(rollback: bool) -> StoreOptions {
    let journal = if rollback {
        Journal::Rollback
    } else {
        Journal::Auto
    };
    StoreOptions::new()
        .journal(journal)
        // The log is copied and begun anew many times before the process is killed.
        .checkpoint_every(5, 64 * 1024)
        .unwrap()
}

#[tokio::test]
async fn a_killed_process_loses_nothing_acknowledged_and_leaves_nothing_half() {
    for rollback in [false, true] {
        let file = File::new();
        let mut acknowledged = Vec::new();
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..12 {
            let name = if rollback {
                "writes_with_a_journal"
            } else {
                "writes_with_a_log"
            };
            let mut child = child(name, &file.path)
                .env("ROUND", round.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut acks = 0;
            let enough = random.usize(1..80);
            while acks < enough {
                let line = lines.next().expect("the child ended by itself").unwrap();
                if let Some(marker) = line.strip_prefix("ack ") {
                    acknowledged.push(marker.to_owned());
                    acks += 1;
                }
            }
            // Not always right after a reply: at any moment of the next transaction.
            std::thread::park_timeout(Duration::from_micros(random.u64(0..3000)));
            child.kill().unwrap();
            child.wait().unwrap();
            // What it said before the end.
            for line in lines.map(Result::unwrap) {
                if let Some(marker) = line.strip_prefix("ack ") {
                    acknowledged.push(marker.to_owned());
                }
            }
        }

        // Before anybody opens it as a store, and after.
        assert_sound(&file.path);
        file.open_with(options(rollback))
            .await
            .0
            .close()
            .await
            .unwrap();
        assert_sound(&file.path);
        let mut stored: HashMap<String, usize> = HashMap::new();
        for marker in file.contents() {
            *stored.entry(marker).or_default() += 1;
        }
        for marker in &acknowledged {
            assert_eq!(stored.get(marker), Some(&3), "acknowledged turn {marker}");
        }
        for (marker, rows) in stored {
            assert_eq!(rows, 3, "turn {marker}");
        }
    }
}

#[tokio::test]
async fn writes_with_a_log() {
    write_for_ever(false).await;
}

#[tokio::test]
async fn writes_with_a_journal() {
    write_for_ever(true).await;
}

/// In the child: several tasks that append turns and say so.
async fn write_for_ever(rollback: bool) {
    let Some(path) = child_argument() else { return };
    let round = std::env::var("ROUND").unwrap();
    let keys = round.parse::<u32>().unwrap() % 2 == 0;
    let store = options(rollback).open(&path).await.unwrap();
    let tasks = (0..6).map(|task| {
        let (store, round) = (store.clone(), round.clone());
        async move {
            let session = SessionId::new(format!("session {}", task % 3)).unwrap();
            let new = NewSession::new("test").id(session.clone());
            store.create_session(new).await.unwrap();
            for n in 0.. {
                let marker = format!("{round}-{task}-{n}");
                let mut turn = Turn::new([0; 3].map(|_| text(marker.as_str())));
                // With keys they are written statement by statement, without in one go.
                if keys {
                    turn = turn.key(marker.as_str());
                }
                store.append_turn(&session, turn).await.unwrap();
                let line = format!("\nack {marker}\n");
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
        }
    });
    futures_util::future::join_all(tasks).await;
}
