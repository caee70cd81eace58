//! Others at the same file at the same time, and futures that are dropped.

use std::future::poll_fn;
use std::path::Path;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use hermes_state::{Error, JournalMode, RetryPolicy, StoreOptions, Warning};

use crate::original::{Shape, make};
use crate::support::{
    assert_kept, assert_sound, connect, content, current_schema, open, open_with, place, schema,
    strings, without_message_index,
};

/// Tries once, without waiting: whatever needs a lock that is taken fails.
fn impatient() -> StoreOptions {
    StoreOptions::new()
        .busy_timeout(Duration::ZERO)
        .unwrap()
        .retry(RetryPolicy::new().tries(std::num::NonZeroU32::MIN))
}

#[tokio::test]
async fn a_current_file_opens_while_another_writes() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    let rival = connect(&path);
    rival
        .execute_batch(
            "BEGIN IMMEDIATE;
             INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)",
        )
        .unwrap();
    let environment = open_with(impatient(), &path).await.unwrap();
    assert_eq!(environment.warnings, []);
    open_with(impatient().read_only(), &path).await.unwrap();
    rival.execute_batch("COMMIT").unwrap();
}

#[tokio::test]
async fn a_current_file_in_rollback_mode_opens_while_another_writes() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    let rival = connect(&path);
    rival.pragma_update(None, "journal_mode", "delete").unwrap();
    rival
        .execute_batch(
            "BEGIN IMMEDIATE;
             INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)",
        )
        .unwrap();
    let environment = open_with(impatient(), &path).await.unwrap();
    assert_eq!(environment.journal_mode, JournalMode::Rollback);
    assert_eq!(environment.warnings, [Warning::WalRefused]);
    rival.execute_batch("COMMIT").unwrap();
    drop(rival);
    let environment = open_with(impatient(), &path).await.unwrap();
    assert_eq!(environment.journal_mode, JournalMode::Wal);
    assert_eq!(environment.warnings, []);
}

#[tokio::test]
async fn an_old_file_that_another_holds_too_long_is_busy_and_stays_as_it_was() {
    let (_folder, path) = place();
    let rival = make(&path, 1, Shape::Fresh);
    let before = (schema(&rival), content(&rival));
    rival.execute_batch("BEGIN IMMEDIATE").unwrap();
    let policy = RetryPolicy::new()
        .tries(std::num::NonZeroU32::new(3).unwrap())
        .wait(Duration::ZERO, Duration::from_millis(1))
        .unwrap();
    let error = open_with(impatient().retry(policy), &path)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Busy { attempts: 3, .. }),
        "{error:?}"
    );
    assert!(error.is_retryable());
    rival.execute_batch("ROLLBACK").unwrap();
    assert_eq!((schema(&rival), content(&rival)), before);
}

#[tokio::test]
async fn an_adoption_that_fails_half_way_changes_nothing_and_is_not_tried_again() {
    for version in 1..=6 {
        let (_folder, path) = place();
        let owner = make(&path, version, Shape::Fresh);
        // The name of the last table that is made.
        owner
            .execute_batch("CREATE INDEX hermes_state_compat ON sessions(source)")
            .unwrap();
        let before = (schema(&owner), content(&owner));
        drop(owner);
        // A second try would come after 10 s.
        let wait = Duration::from_secs(10);
        let policy = RetryPolicy::new().wait(wait, wait).unwrap();
        let opening = open_with(StoreOptions::new().retry(policy), &path);
        let answer = tokio::time::timeout(Duration::from_secs(8), opening).await;
        assert!(
            matches!(answer, Ok(Err(Error::Database { .. }))),
            "{answer:?}"
        );
        let owner = connect(&path);
        assert!(
            (schema(&owner), content(&owner)) == before,
            "version {version}"
        );
    }
}

#[tokio::test]
async fn an_old_file_is_adopted_when_another_lets_go_of_it_after_five_seconds() {
    let (_folder, path) = place();
    drop(make(&path, 1, Shape::Fresh));
    let (locked, is_locked) = mpsc::channel();
    let held = path.clone();
    let rival = std::thread::spawn(move || {
        let rival = connect(&held);
        rival.execute_batch("BEGIN IMMEDIATE").unwrap();
        locked.send(()).unwrap();
        // How long the lock is held is what this is about.
        #[allow(clippy::disallowed_methods, reason = "a thread of its own")]
        std::thread::sleep(Duration::from_secs(5));
        rival.execute_batch("COMMIT").unwrap();
    });
    is_locked.recv().unwrap();
    open(&path).await.unwrap();
    assert_sound(&connect(&path));
    rival.join().unwrap();
}

/// Runs a future for at most so many polls.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_dropped_future_leaves_an_old_file_as_it_was_or_current() {
    let (_folder, template) = place();
    let file = make(&template, 3, Shape::Chain);
    file.pragma_update(None, "journal_mode", "delete").unwrap();
    let old = schema(&file);
    let before = content(&file);
    drop(file);
    let current = current_schema().await;
    for polls in 0.. {
        let (_folder, path) = place();
        std::fs::copy(&template, &path).unwrap();
        let done = polled(open(&path), polls).await.transpose().unwrap();
        let file = connect(&path);
        // Behind whatever the dropped connection still does.
        let found = {
            file.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
            without_message_index(schema(&file))
        };
        assert_kept(&file, &before);
        assert_eq!(strings(&file, "PRAGMA integrity_check"), ["ok"]);
        drop(file);
        assert!(
            found == old || found == current,
            "after {polls} polls: {found:#?}"
        );
        open(&path).await.unwrap();
        assert_sound(&connect(&path));
        if done.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_dropped_future_leaves_a_new_file_missing_empty_or_current() {
    for polls in 0.. {
        let (folder, path) = place();
        let done = polled(open(&path), polls).await.transpose().unwrap();
        open(&path).await.unwrap();
        assert_sound(&connect(&path));
        if done.is_some() {
            let others = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| !name.starts_with("state.db"));
            assert_eq!(others.count(), 0);
            break;
        }
    }
}

#[tokio::test]
async fn many_stores_of_one_process_open_one_new_file() {
    let (_folder, path) = place();
    let opened = futures_util::future::join_all((0..16).map(|_| open(&path))).await;
    for outcome in opened {
        assert_eq!(outcome.unwrap().warnings, []);
    }
    assert_sound(&connect(&path));
}

#[cfg(unix)]
fn sixteen_processes_open(path: &Path) {
    use crate::child::{Opener, Waiting};

    let waiting: Vec<Waiting> = (0..16)
        .map(|_| Opener::new(path.to_str().unwrap()).spawn())
        .collect();
    let started: Vec<_> = waiting.into_iter().map(Waiting::start).collect();
    for child in started {
        let outcome = child.outcome();
        assert!(outcome.starts_with("Wal ["), "{outcome}");
        assert!(!outcome.contains("DuplicateTitle"), "{outcome}");
    }
    let file = connect(path);
    assert_sound(&file);
    assert_eq!(strings(&file, "PRAGMA journal_mode"), ["wal"]);
}

#[cfg(unix)]
#[tokio::test]
async fn sixteen_processes_at_once_open_one_new_file() {
    let expected = current_schema().await;
    for _ in 0..20 {
        let (_folder, path) = place();
        sixteen_processes_open(&path);
        assert_eq!(without_message_index(schema(&connect(&path))), expected);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn sixteen_processes_at_once_open_one_old_file() {
    let expected = current_schema().await;
    for round in 0..20 {
        let (_folder, path) = place();
        let file = make(&path, 1, Shape::Fresh);
        if round % 2 == 0 {
            file.pragma_update(None, "journal_mode", "delete").unwrap();
        }
        let before = content(&file);
        drop(file);
        sixteen_processes_open(&path);
        let file = connect(&path);
        assert_kept(&file, &before);
        assert_eq!(without_message_index(schema(&file)), expected);
    }
}
