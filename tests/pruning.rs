//! Pruning: which sessions go, and which never do.
#![allow(
    clippy::future_not_send,
    reason = "a rusqlite connection may not be shared"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

#[path = "support/faults.rs"]
#[allow(unused, reason = "this crate needs its waiting only")]
mod faults;
mod support;

use faults::until;
use hermes_state::{
    Error, NewMessage, NewSession, PruneAge, PruneMode, PruneOptions, PruneReport, Scope,
    SessionStore, Timestamp,
};
use rusqlite::Connection;
use support::{File, all, assert_index_is_right, id, integer, options, rows, store, texts};

const DAY: f64 = 86_400.0;

fn days_ago(days: f64) -> f64 {
    Timestamp::now().as_unix_seconds() - days * DAY
}

/// A session as a row: name, parent, days since its start and its end, why it ended, days since each
/// of its messages.
struct Row<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    source: &'a str,
    started: f64,
    ended: Option<(f64, &'a str)>,
    messages: &'a [f64],
}

const OLD: Row<'_> = Row {
    name: "old",
    parent: None,
    source: "cli",
    started: 200.0,
    ended: Some((199.0, "user_exit")),
    messages: &[200.0, 199.5],
};

fn add(stock: &Connection, row: &Row<'_>) {
    stock
        .execute(
            "INSERT INTO sessions(id, source, parent_session_id, started_at, ended_at, end_reason, message_count)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            (
                row.name,
                row.source,
                row.parent,
                days_ago(row.started),
                row.ended.map(|(days, _)| days_ago(days)),
                row.ended.map(|(_, reason)| reason),
                i64::try_from(row.messages.len()).unwrap(),
            ),
        )
        .unwrap();
    for days in row.messages {
        stock
            .execute(
                "INSERT INTO messages(session_id, role, content, timestamp) VALUES (?1, 'user', 'said', ?2)",
                (row.name, days_ago(*days)),
            )
            .unwrap();
    }
}

async fn with(rows: &[Row<'_>]) -> (File, SessionStore) {
    let (file, store) = store().await;
    let stock = file.stock();
    for row in rows {
        add(&stock, row);
    }
    (file, store)
}

fn left(file: &File) -> Vec<String> {
    rows(&file.stock(), "SELECT id FROM sessions ORDER BY id")
        .into_iter()
        .map(|row| row[0].trim_matches('"').to_owned())
        .collect()
}

fn assert_sound(file: &File) {
    let stock = file.stock();
    let verdict: String = stock
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok");
    let violations = "SELECT COUNT(*) FROM pragma_foreign_key_check";
    assert_eq!(integer(&stock, violations), 0);
    assert_eq!(integer(&stock, "SELECT COUNT(*) FROM deleted_sessions"), 0);
    // Another one: with what the check above keeps open, it would not wait for a lock.
    assert_index_is_right(&file.stock());
}

/// Prunes, and compares with what a dry run has said and left as it was.
async fn prune(file: &File, store: &SessionStore, options: PruneOptions) -> PruneReport {
    let before = file.dump();
    let dry = options.clone().mode(PruneMode::DryRun);
    let foretold = store.prune_sessions(dry).await.unwrap();
    assert_eq!(file.dump(), before, "a dry run changed something");
    let sessions = store.session_count(Scope::All).await.unwrap();
    let messages = store.message_count(Scope::All).await.unwrap();
    let report = store.prune_sessions(options).await.unwrap();
    assert_eq!(report, foretold, "the dry run told something else");
    assert_eq!(
        store.session_count(Scope::All).await.unwrap(),
        sessions - report.sessions
    );
    assert_eq!(
        store.message_count(Scope::All).await.unwrap(),
        messages - report.messages
    );
    report
}

fn counts(report: PruneReport) -> [u64; 3] {
    [report.sessions, report.messages, report.orphaned]
}

#[tokio::test]
async fn by_default_ended_sessions_go_that_were_not_used_for_90_days() {
    let (file, store) = with(&[
        OLD,
        Row {
            name: "just over",
            ended: Some((0.0, "timeout")),
            messages: &[90.001],
            ..OLD
        },
        Row {
            name: "just under",
            messages: &[150.0, 89.999, 140.0],
            ..OLD
        },
        Row {
            name: "live",
            ended: None,
            ..OLD
        },
        Row {
            name: "empty",
            messages: &[],
            ..OLD
        },
        Row {
            name: "empty and new",
            started: 3.0,
            ended: Some((2.0, "x")),
            messages: &[],
            ..OLD
        },
    ])
    .await;
    let report = prune(&file, &store, PruneOptions::default()).await;
    assert_eq!(counts(report), [3, 3, 0]);
    assert_eq!(left(&file), ["empty and new", "just under", "live"]);
    let again = prune(&file, &store, PruneOptions::default()).await;
    assert_eq!(again, PruneReport::default());
    assert_sound(&file);
}

#[tokio::test]
async fn the_age_may_count_from_the_start() {
    let used = Row {
        name: "in daily use",
        messages: &[200.0, 0.5],
        ..OLD
    };
    let (file, store) = with(&[used]).await;
    let options = PruneOptions::new();
    assert_eq!(prune(&file, &store, options.clone()).await.sessions, 0);
    let report = prune(&file, &store, options.age(PruneAge::Started)).await;
    assert_eq!(counts(report), [1, 2, 0]);
    assert_sound(&file);
}

#[tokio::test]
async fn the_age_is_an_option() {
    let (file, store) = with(&[OLD]).await;
    let older = |days| PruneOptions::new().older_than_days(days).unwrap();
    assert_eq!(prune(&file, &store, older(200)).await.sessions, 0);
    assert_eq!(prune(&file, &store, older(36_500)).await.sessions, 0);
    assert_eq!(prune(&file, &store, older(199)).await.sessions, 1);
}

/// Negative ages, NaN and fractions are no `u32`.
#[test]
fn absurd_ages_are_refused() {
    for days in [0, 36_501, u32::MAX] {
        let error = PruneOptions::new().older_than_days(days).unwrap_err();
        assert!(
            matches!(error, Error::InvalidInput { what: "age", .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_source_confines_it() {
    let other = |name, source| Row {
        name,
        source,
        ..OLD
    };
    let (file, store) = with(&[
        other("a", "telegram"),
        other("b", "cli"),
        other("c", "Telegram"),
    ])
    .await;
    let report = prune(&file, &store, PruneOptions::new().source("telegram")).await;
    assert_eq!(counts(report), [1, 2, 0]);
    assert_eq!(left(&file), ["b", "c"]);
    let report = prune(&file, &store, PruneOptions::new().source("")).await;
    assert_eq!(report.sessions, 0);
}

#[tokio::test]
async fn nothing_is_pruned_unless_asked_for() {
    let (file, store) = with(&[OLD]).await;
    store
        .create_session(NewSession::new("cli").id(id("new")))
        .await
        .unwrap();
    store
        .append_message(&id("new"), NewMessage::user("x"))
        .await
        .unwrap();
    store.close().await.unwrap();
    file.open().await.close().await.unwrap();
    assert_eq!(left(&file), ["new", "old"]);
}

/// A branch or a delegate is no part of a chain.
#[tokio::test]
async fn children_that_do_not_qualify_lose_their_parent() {
    let child = |name, parent, started, ended| Row {
        name,
        parent: Some(parent),
        started,
        ended,
        messages: &[0.5],
        ..OLD
    };
    let (file, store) = with(&[
        OLD,
        child("live branch", "old", 100.0, None),
        child("new branch", "old", 2.0, Some((1.0, "x"))),
        Row {
            name: "old branch",
            parent: Some("old"),
            ..OLD
        },
        child("of the branch", "old branch", 50.0, None),
    ])
    .await;
    let report = prune(&file, &store, PruneOptions::new()).await;
    assert_eq!(counts(report), [2, 4, 3]);
    assert_eq!(left(&file), ["live branch", "new branch", "of the branch"]);
    let parents = "SELECT COUNT(*) FROM sessions WHERE parent_session_id IS NOT NULL";
    assert_eq!(integer(&file.stock(), parents), 0);
    assert_eq!(texts(&all(&store, &id("live branch")).await), ["said"]);
    assert_sound(&file);
}

/// Three sessions, each compressed into the next; `tip` is the last.
fn chain<'a>(names: [&'a str; 3], tip: Option<(f64, &'a str)>, said: &'a [f64]) -> [Row<'a>; 3] {
    [
        Row {
            name: names[0],
            started: 300.0,
            ended: Some((290.0, "compression")),
            messages: &[295.0],
            ..OLD
        },
        Row {
            name: names[1],
            parent: Some(names[0]),
            started: 290.0,
            ended: Some((280.0, "compression")),
            messages: &[285.0],
            ..OLD
        },
        Row {
            name: names[2],
            parent: Some(names[1]),
            started: 280.0,
            ended: tip,
            messages: said,
            ..OLD
        },
    ]
}

/// Whatever the order of the names, in which the sessions are met.
#[tokio::test]
async fn a_chain_is_kept_or_taken_as_a_whole() {
    for names in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
        for (tip, said, taken) in [
            (None, &[279.0][..], 0),
            (Some((1.0, "user_exit")), &[2.0][..], 0),
            (Some((1.0, "user_exit")), &[279.0, 278.0][..], 3),
        ] {
            let (file, store) = with(&chain(names, tip, said)).await;
            let report = prune(&file, &store, PruneOptions::new()).await;
            assert_eq!(report.sessions, taken, "{names:?} {tip:?}");
            assert_eq!(left(&file).len(), if taken == 0 { 3 } else { 0 });
            assert_sound(&file);
        }
    }
}

/// Of a chain of another source, and of one that two sessions continue.
#[tokio::test]
async fn a_chain_stays_when_any_of_its_sessions_does_not_qualify() {
    let [a, b, c] = chain(["a", "b", "c"], Some((1.0, "x")), &[279.0]);
    let elsewhere = Row {
        source: "telegram",
        ..c
    };
    let (file, store) = with(&[a, b, elsewhere]).await;
    let report = prune(&file, &store, PruneOptions::new().source("cli")).await;
    assert_eq!(report.sessions, 0);

    let [a, b, c] = chain(["a", "b", "c"], Some((1.0, "x")), &[279.0]);
    let other = Row {
        name: "d",
        ended: None,
        parent: Some("a"),
        ..Row { ..b }
    };
    let (file, store) = with(&[a, b, c, other]).await;
    let report = prune(&file, &store, PruneOptions::new()).await;
    assert_eq!(report.sessions, 0);
    assert_eq!(left(&file), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn cycles_and_broken_links_do_not_stop_it() {
    let (file, store) = with(&chain(
        ["a", "b", "c"],
        Some((270.0, "compression")),
        &[275.0],
    ))
    .await;
    let stock = file.stock();
    stock
        .execute_batch(
            "UPDATE sessions SET parent_session_id = 'c', started_at = 1e9 WHERE id = 'a'",
        )
        .unwrap();
    stock
        .execute_batch(
            "PRAGMA foreign_keys = OFF;
             UPDATE sessions SET started_at = (SELECT MAX(ended_at) FROM sessions) WHERE id = 'a';",
        )
        .unwrap();
    add(
        &stock,
        &Row {
            parent: Some("gone"),
            ..OLD
        },
    );
    add(
        &stock,
        &Row {
            name: "itself",
            parent: Some("itself"),
            ended: Some((199.0, "compression")),
            ..OLD
        },
    );
    let report = prune(&file, &store, PruneOptions::new()).await;
    assert_eq!(counts(report), [5, 7, 0]);
    assert_sound(&file);
}

/// More than one transaction holds, long ones among them.
#[tokio::test]
async fn many_sessions_go_in_many_transactions() {
    let (file, store) = store().await;
    let stock = file.stock();
    for name in 0..330 {
        let name = name.to_string();
        add(&stock, &Row { name: &name, ..OLD });
    }
    stock
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
             INSERT INTO messages(session_id, role, content, timestamp)
             SELECT '7', 'user', 'w' || i, ?1 FROM n",
            [days_ago(195.0)],
        )
        .unwrap();
    stock
        .execute_batch(
            "CREATE TABLE noted(left);
             CREATE TRIGGER note AFTER INSERT ON deleted_sessions BEGIN
                 INSERT INTO noted SELECT COUNT(*) FROM messages WHERE session_id = new.session_id;
             END",
        )
        .unwrap();
    let options = PruneOptions::new();
    let dry = options.clone().mode(PruneMode::DryRun);
    let foretold = store.prune_sessions(dry).await.unwrap();
    let report = store.prune_sessions(options).await.unwrap();
    assert_eq!(counts(report), [330, 3160, 0]);
    assert_eq!(report, foretold);
    let noted = rows(&stock, "SELECT left FROM noted");
    assert_eq!(noted.len(), 1);
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 0);
    store.close().await.unwrap();
    assert_eq!(integer(&stock, "SELECT COUNT(*) FROM messages"), 0);
    assert_sound(&file);
}

/// The first session's deletion is what lets the other one be used again: by the time that its own
/// turn comes, in the same or in another transaction, it does not qualify any more.
#[tokio::test]
async fn a_session_that_is_reopened_or_used_meanwhile_stays() {
    for change in [
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = 'z'",
        "INSERT INTO messages(session_id, role, timestamp) VALUES ('z', 'user', unixepoch())",
    ] {
        for between in [0, 150] {
            let (file, store) = store().await;
            let stock = file.stock();
            add(&stock, &Row { name: "a", ..OLD });
            for name in 0..between {
                let name = format!("m{name}");
                add(&stock, &Row { name: &name, ..OLD });
            }
            add(&stock, &Row { name: "z", ..OLD });
            let trigger = format!(
                "CREATE TRIGGER use AFTER DELETE ON sessions WHEN old.id = 'a' BEGIN {change}; END"
            );
            stock.execute_batch(&trigger).unwrap();
            let report = store.prune_sessions(PruneOptions::new()).await.unwrap();
            assert_eq!(report.sessions, 1 + between);
            assert_eq!(left(&file), ["z"]);
            assert_sound(&file);
        }
    }
}

/// The same for a chain, whose tip another store reopens while the first one's write waits.
#[tokio::test]
async fn a_chain_whose_tip_is_reopened_between_look_and_delete_stays() {
    let rows = chain(["a", "b", "c"], Some((1.0, "x")), &[279.0]);
    let (file, store) = with(&rows).await;
    let other = file.open().await;
    let stock = file.stock();
    stock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut pruning = Box::pin(store.prune_sessions(PruneOptions::new()));
    // It has looked, and waits for the lock.
    for _ in 0..50 {
        assert!(futures_util::poll!(&mut pruning).is_pending());
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    stock
        .execute_batch(
            "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = 'c'; COMMIT",
        )
        .unwrap();
    assert_eq!(pruning.await.unwrap(), PruneReport::default());
    assert_eq!(left(&file), ["a", "b", "c"]);
    other.end_session(&id("c"), "timeout").await.unwrap();
    let report = store.prune_sessions(PruneOptions::new()).await.unwrap();
    assert_eq!(report.sessions, 3);
    assert_sound(&file);
}

#[tokio::test]
async fn an_interrupted_run_has_deleted_whole_sessions_and_can_go_on() {
    for goal in [249, 200, 100, 1] {
        let (file, store) = store().await;
        let stock = file.stock();
        for name in 0..250 {
            let name = name.to_string();
            add(&stock, &Row { name: &name, ..OLD });
        }
        let mut pruning = Box::pin(store.prune_sessions(PruneOptions::new()));
        let sessions = || integer(&stock, "SELECT COUNT(*) FROM sessions");
        tokio::select! {
            _ = &mut pruning => {}
            () = until("sessions are pruned", || sessions() <= goal) => {}
        }
        drop(pruning);
        let report = store.prune_sessions(PruneOptions::new()).await.unwrap();
        assert_eq!(report.messages, 2 * report.sessions);
        assert!(left(&file).is_empty());
        store.close().await.unwrap();
        assert_eq!(integer(&stock, "SELECT COUNT(*) FROM messages"), 0);
        assert_sound(&file);
    }
}

/// Rows of other programs: an id that is no text, one that is not UTF-8, times that are no numbers.
#[tokio::test]
async fn rows_that_can_not_be_named_or_judged_stay() {
    let (file, store) = with(&[OLD]).await;
    let stock = file.stock();
    stock
        .execute_batch(
            "INSERT INTO sessions(id, source, started_at, ended_at) VALUES
                 (NULL, 'cli', 1, 2), (x'00ff', 'cli', 1, 2), (CAST(x'ff' AS TEXT), 'cli', 1, 2),
                 ('text', 'cli', 'long ago', 2);",
        )
        .unwrap();
    let report = prune(&file, &store, PruneOptions::new()).await;
    assert_eq!(counts(report), [1, 2, 0]);
    assert_eq!(integer(&stock, "SELECT COUNT(*) FROM sessions"), 4);
}

#[tokio::test]
async fn a_read_only_store_can_only_count() {
    let (file, store) = with(&[OLD]).await;
    store.close().await.unwrap();
    let store = file.open_with(options().read_only()).await;
    let dry = PruneOptions::new().mode(PruneMode::DryRun);
    let report = store.prune_sessions(dry).await.unwrap();
    assert_eq!(counts(report), [1, 2, 0]);
    let error = store.prune_sessions(PruneOptions::new()).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly), "{error:?}");
}
