//! What a disk does to writes that runs out of space or fails.

#![cfg(target_os = "linux")]
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

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use futures_util::poll;
use hermes_state::{
    Appended, Error, NewSession, Result, RetryPolicy, SessionId, SessionStore, StoreOptions, Turn,
};
use support::{File, assert_sound, child, child_argument, contents, rival, text};
use tokio::time::timeout;

/// Appends to different sessions that wait together; a session is created between them.
async fn group(store: &SessionStore, contents: &[String], keys: bool) -> Vec<Result<Appended>> {
    let mut writes: Vec<BoxFuture<'_, Result<Appended>>> = Vec::new();
    for content in contents {
        let mut turn = Turn::new([text(content.as_str())]);
        if keys {
            turn = turn.key(content.get(..1).unwrap());
        }
        let session = SessionId::new("s").unwrap();
        writes.push(async move { store.append_turn(&session, turn).await }.boxed());
    }
    let mut create = store.create_session(NewSession::new("late")).boxed();
    for write in &mut writes {
        assert!(poll!(write).is_pending());
    }
    assert!(poll!(&mut create).is_pending());
    let results = join_all(writes).await;
    let created = create.await;
    match &results[0] {
        Ok(_) => drop(created.unwrap()),
        Err(Error::DiskFull { .. }) => {
            assert!(
                matches!(created, Err(Error::DiskFull { .. })),
                "{created:?}"
            );
        }
        Err(other) => panic!("{other:?}"),
    }
    results
}

fn assert_full(results: Vec<Result<Appended>>) {
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
}

fn sessions(path: &Path) -> i64 {
    support::cell(&rival(path), "SELECT COUNT(*) FROM sessions")
}

/// The same answer as from a full disk, on any disk: there are no ids left.
#[tokio::test]
async fn nothing_of_a_group_stays_that_met_a_full_disk() {
    for keys in [false, true] {
        let file = File::new();
        let (store, _) = file.open().await;
        let words = ["a", "b", "c"].map(str::to_owned);
        group(&store, &words, keys).await;
        let other = file.rival();
        let last = "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'messages'";
        other.execute_batch(last).unwrap();

        let words = ["d", "e", "f"].map(str::to_owned);
        assert_full(group(&store, &words, keys).await);
        assert_eq!(file.contents(), ["a", "b", "c"]);
        assert_eq!(sessions(&file.path), 2);

        other
            .execute_batch("UPDATE sqlite_sequence SET seq = 100 WHERE name = 'messages'")
            .unwrap();
        let again = group(&store, &words, keys).await;
        assert_eq!(again[0].as_ref().unwrap().ids[0].get(), 101);
        assert!(!again[0].as_ref().unwrap().repeated);
        assert_eq!(file.contents(), ["a", "b", "c", "d", "e", "f"]);
        assert_sound(&file.path);
    }
}

/// A second try would come after 10 s.
fn patient() -> StoreOptions {
    let wait = Duration::from_secs(10);
    StoreOptions::new().retry(RetryPolicy::new().wait(wait, wait).unwrap())
}

/// Only a lock passes by itself.
#[tokio::test]
async fn a_full_disk_is_not_tried_again() {
    let file = File::new();
    let (store, session) = file.open_with(patient()).await;
    store.append_message(&session, text("a")).await.unwrap();
    let last = "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'messages'";
    file.rival().execute_batch(last).unwrap();

    let turn = Turn::new([text("b")]);
    for turn in [turn.clone(), turn.key("k")] {
        let answer = timeout(Duration::from_secs(8), store.append_turn(&session, turn)).await;
        assert!(
            matches!(answer, Ok(Err(Error::DiskFull { .. }))),
            "{answer:?}"
        );
    }
}

/// Runs a child in which `folder` is a file system of 3 MiB.
#[test]
fn a_full_file_system_fails_the_group_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=3m tmpfs "$1" && shift && exec "$@""#;
    let mounted = |then: &Command| {
        let mut command = Command::new("unshare");
        command.args(["-r", "-m", "sh", "-c", mount, "sh"]);
        command.arg(folder.path()).arg(then.get_program());
        command.args(then.get_args()).envs(environment(then));
        command
    };
    let mut probe = mounted(&Command::new("true"));
    let probed = probe.stderr(Stdio::null()).status();
    if !probed.is_ok_and(|status| status.success()) {
        // Where nobody may mount, the test above has to do.
        return;
    }
    let status = mounted(&child("runs_out_of_space", folder.path()))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

fn environment(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)))
}

/// Runs the test `name` in a process of its own, under a limit of the shell.
fn assert_succeeds_under(limit: &str, name: &str) {
    let file = File::new();
    let inner = child(name, &file.path);
    let mut outer = Command::new("sh");
    let script = format!(r#"{limit}; exec "$@""#);
    outer.args(["-c", script.as_str(), "sh"]);
    outer
        .arg(inner.get_program())
        .args(inner.get_args())
        .envs(environment(&inner));
    let status = outer.status().unwrap();
    assert!(status.success(), "{status}");
    assert_sound(&file.path);
}

#[tokio::test]
async fn runs_out_of_space() {
    let Some(folder) = child_argument() else {
        return;
    };
    let path = folder.join("state.db");
    for keys in [false, true] {
        let store = SessionStore::open(&path).await.unwrap();
        let session = SessionId::new("s").unwrap();
        store
            .create_session(NewSession::new("test").id(session.clone()))
            .await
            .unwrap();
        store
            .append_message(&session, text("before"))
            .await
            .unwrap();
        let (before, sessions_before) = (contents(&rival(&path)), sessions(&path));

        let filler = folder.join("filler");
        let full = std::fs::write(&filler, vec![1; 4 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let kept = std::fs::metadata(&filler).unwrap().len() - (100 << 10);
        std::fs::File::options()
            .write(true)
            .open(&filler)
            .unwrap()
            .set_len(kept)
            .unwrap();

        // There is room for some of them.
        let words: Vec<_> = ["a", "b", "c", "d"].map(|word| word.repeat(60_000)).into();
        assert_full(group(&store, &words, keys).await);
        assert_eq!(contents(&rival(&path)), before);
        assert_eq!(sessions(&path), sessions_before);

        std::fs::remove_file(&filler).unwrap();
        for result in group(&store, &words, keys).await {
            assert!(!result.unwrap().repeated);
        }
        store.append_message(&session, text("after")).await.unwrap();
        assert_eq!(contents(&rival(&path)).len(), before.len() + 5);
        store.clear_messages(&session).await.unwrap();
        store.close().await.unwrap();
        assert_sound(&path);
    }
}

/// Runs a child that may not write files beyond a length: writing fails, but not for lack of space.
#[test]
fn a_commit_that_failed_half_way_is_reported_and_not_repeated() {
    assert_succeeds_under(r#"trap "" XFSZ; ulimit -S -f 2048"#, "meets_a_failing_disk");
}

#[tokio::test]
async fn meets_a_failing_disk() {
    let Some(path) = child_argument() else { return };
    let store = patient().open(&path).await.unwrap();
    let session = store.create_session(NewSession::new("test")).await.unwrap();
    store
        .append_message(&session, text("before"))
        .await
        .unwrap();
    let large = "x".repeat(1_500_000);
    let turns = [
        Turn::new([text(large.as_str())]),
        Turn::new([text(large.as_str())]).key("k"),
    ];
    for turn in turns.clone() {
        let answer = timeout(Duration::from_secs(8), store.append_turn(&session, turn)).await;
        let unknown = answer.expect("it was tried again").unwrap_err();
        assert!(
            matches!(unknown, Error::OutcomeUnknown { .. }),
            "{unknown:?}"
        );
        assert!(!unknown.is_retryable());
        assert_eq!(contents(&rival(&path)), ["before"]);
    }

    let mut lift = Command::new("prlimit");
    lift.args([
        "--fsize=unlimited",
        "--pid",
        &std::process::id().to_string(),
    ]);
    assert!(lift.status().unwrap().success());
    let [_, turn] = turns;
    let first = store.append_turn(&session, turn.clone()).await.unwrap();
    let second = store.append_turn(&session, turn).await.unwrap();
    assert_eq!((first.repeated, second.repeated), (false, true));
    assert_eq!(first.ids, second.ids);
    assert_eq!(contents(&rival(&path)), ["before".to_owned(), large]);
    store.close().await.unwrap();
}

/// Runs a child that may open few files.
#[test]
fn a_connection_that_can_not_be_opened_again_costs_nothing_but_that_write() {
    assert_succeeds_under("ulimit -n 64", "runs_out_of_descriptors");
}

#[tokio::test]
async fn runs_out_of_descriptors() {
    let Some(path) = child_argument() else { return };
    let store = SessionStore::open(&path).await.unwrap();
    let session = store.create_session(NewSession::new("test")).await.unwrap();
    let other = rival(&path);
    let last = "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'messages'";
    store.append_message(&session, text("a")).await.unwrap();
    other.execute_batch(last).unwrap();
    let full = store.append_message(&session, text("b")).await.unwrap_err();
    assert!(matches!(full, Error::DiskFull { .. }), "{full:?}");
    other
        .execute_batch("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'messages'")
        .unwrap();

    let mut all = Vec::new();
    while let Ok(null) = std::fs::File::open("/dev/null") {
        all.push(null);
    }
    let refused = store.append_message(&session, text("c")).await.unwrap_err();
    assert!(matches!(refused, Error::Database { .. }), "{refused:?}");
    drop(all);

    // Another kind of write first: it looks at what the one before left behind.
    store.end_session(&session, "done").await.unwrap();
    store.append_message(&session, text("d")).await.unwrap();
    assert_eq!(contents(&rival(&path)), ["a", "d"]);
    store.close().await.unwrap();
}
