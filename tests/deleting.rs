//! Deleting sessions, long ones in pieces.
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
#[allow(unused, reason = "this crate needs its children only")]
mod faults;
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use faults::{child, child_argument, until};
use futures_util::TryStreamExt as _;
use hermes_state::{
    Error, MessageRange, NewMessage, NewSession, Scope, SessionId, SessionStore, Turn,
};
use rusqlite::Connection;
use support::{
    File, all, assert_index_is_right, create, id, integer, options, store, store_and_session, texts,
};

const LEFT: &str = "SELECT COUNT(*) FROM messages WHERE session_id = 's'";
const PENDING: &str = "SELECT COUNT(*) FROM deleted_sessions";

/// Adds `count` messages to `s` as another program would.
fn fill(stock: &Connection, count: i64, text: &str) {
    stock
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
             INSERT INTO messages(session_id, role, content, timestamp)
             SELECT 's', 'user', ?2 || ' number ' || i, 1700000000 + i FROM n",
            (count, text),
        )
        .unwrap();
    stock
        .execute(
            "UPDATE sessions SET message_count = ?1 WHERE id = 's'",
            [count],
        )
        .unwrap();
}

/// Has each message that is removed leave a row, with how much was appended to `other` by then.
fn count_pieces(stock: &Connection) {
    stock
        .execute_batch(
            "CREATE TABLE removed(id INTEGER PRIMARY KEY, appended INTEGER);
             CREATE TRIGGER log_removed AFTER DELETE ON messages BEGIN
                 INSERT INTO removed VALUES (old.id, (SELECT COUNT(*) FROM messages WHERE session_id = 'other'));
             END;",
        )
        .unwrap();
}

#[track_caller]
fn assert_sound(file: &File) {
    // A connection of its own: one that had read the index before another process changed it was
    // seen to report damage that no other connection finds.
    let stock = &file.stock();
    let verdict: String = stock
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(verdict, "ok");
    let violations = "SELECT COUNT(*) FROM pragma_foreign_key_check";
    assert_eq!(integer(stock, violations), 0);
    assert_eq!(integer(stock, PENDING), 0);
    // Another one again: with what the check above keeps open, it would not wait for a lock.
    assert_index_is_right(&file.stock());
}

/// Removal goes on only between other programs' transactions: with this one it stands still.
fn hold(file: &File) -> Connection {
    let stock = file.stock();
    stock.execute_batch("BEGIN IMMEDIATE").unwrap();
    stock
}

/// The file as it is right after a long session was deleted by a process that was killed.
async fn half_deleted() -> File {
    let file = File::new();
    let store = file.open().await;
    create(&store, "s").await;
    create(&store, "other").await;
    store.close().await.unwrap();
    let stock = file.stock();
    fill(&stock, 5000, "old words");
    stock
        .execute_batch(
            "UPDATE sessions SET title = 'T' WHERE id = 's';
             PRAGMA foreign_keys = OFF;
             INSERT INTO deleted_sessions SELECT 's', MAX(id) FROM messages;
             DELETE FROM sessions WHERE id = 's';",
        )
        .unwrap();
    file
}

#[tokio::test]
async fn messages_keys_and_index_rows_go_with_the_session() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "other").await;
    for session in [&session, &other] {
        let turn = Turn::new([NewMessage::user("hello"), NewMessage::assistant("hi")]);
        store
            .append_turn(session, turn.key("same key"))
            .await
            .unwrap();
    }

    assert!(store.delete_session(&session).await.unwrap());

    assert_eq!(store.session(&session).await.unwrap(), None);
    assert!(all(&store, &session).await.is_empty());
    assert_eq!(texts(&all(&store, &other).await), ["hello", "hi"]);
    let stock = file.stock();
    let keys = "SELECT COUNT(*) FROM append_keys";
    assert_eq!(integer(&stock, keys), 1);
    let found = "SELECT COUNT(*) FROM messages_fts WHERE messages_fts MATCH 'hello'";
    assert_eq!(integer(&stock, found), 1);
    assert_sound(&file);
}

#[tokio::test]
async fn it_says_whether_the_session_existed() {
    let (file, store, session) = store_and_session().await;
    assert!(!store.delete_session(&id("S")).await.unwrap());
    assert!(store.delete_session(&session).await.unwrap());
    let before = file.dump();
    assert!(!store.delete_session(&session).await.unwrap());
    assert_eq!(file.dump(), before);
}

#[tokio::test]
async fn children_stay_without_a_parent() {
    let (file, store, session) = store_and_session().await;
    for (name, parent) in [("a", "s"), ("b", "s"), ("c", "a")] {
        let child = NewSession::new("cli").id(id(name)).parent(id(parent));
        store.create_session(child).await.unwrap();
        store
            .append_message(&id(name), NewMessage::user("kept"))
            .await
            .unwrap();
    }
    assert!(store.delete_session(&session).await.unwrap());
    for (name, parent) in [("a", None), ("b", None), ("c", Some(id("a")))] {
        let child = store.session(&id(name)).await.unwrap().unwrap();
        assert_eq!(child.parent_session_id, parent, "{name}");
        assert_eq!(texts(&all(&store, &id(name)).await), ["kept"]);
    }
    assert_sound(&file);
}

#[tokio::test]
async fn a_session_that_is_its_own_parent_can_be_deleted() {
    let (file, store, session) = store_and_session().await;
    let stock = file.stock();
    stock
        .execute_batch("UPDATE sessions SET parent_session_id = 's'")
        .unwrap();
    assert!(store.delete_session(&session).await.unwrap());
    assert_sound(&file);
}

/// Also of exactly 1,000 messages, whose removal must not leave a note behind.
#[tokio::test]
async fn a_session_of_up_to_1000_messages_goes_in_one_transaction() {
    for messages in [1, 999, 1000, 1001] {
        let (file, store, session) = store_and_session().await;
        let stock = file.stock();
        fill(&stock, messages, "w");
        stock
            .execute_batch(
                "CREATE TABLE noted(id);
                 CREATE TRIGGER note AFTER INSERT ON deleted_sessions BEGIN
                     INSERT INTO noted VALUES (new.session_id);
                 END",
            )
            .unwrap();
        assert!(store.delete_session(&session).await.unwrap());
        let noted = integer(&stock, "SELECT COUNT(*) FROM noted");
        assert_eq!(noted, i64::from(messages > 1000), "{messages}");
        store.close().await.unwrap();
        assert_eq!(integer(&stock, LEFT), 0, "{messages}");
        assert_sound(&file);
    }
}

/// Every way to ask for a session that is gone but not yet removed from the file.
#[tokio::test]
async fn a_session_with_leftovers_reads_as_absent() {
    let file = half_deleted().await;
    let held = hold(&file);
    let store = file.open().await;
    let (s, other) = (id("s"), id("other"));

    assert_eq!(store.session(&s).await.unwrap(), None);
    let some = all(&store, &s).await;
    assert!(some.is_empty());
    let ranges = [
        MessageRange::first(3),
        MessageRange::last(3),
        MessageRange::all().after(hermes_state::MessageId::new(10)),
        MessageRange::all().before(hermes_state::MessageId::new(10)),
    ];
    for range in ranges {
        let messages = store.messages(&s, range).await.unwrap();
        assert!(messages.is_empty(), "{range:?}");
    }
    let stream: Vec<_> = store.message_stream(&s).try_collect().await.unwrap();
    assert!(stream.is_empty());
    assert!(store.conversation(&s).await.unwrap().stored().is_empty());
    // The last few are read by another statement.
    held.execute_batch("DELETE FROM messages WHERE id <= 4990; COMMIT; BEGIN IMMEDIATE")
        .unwrap();
    assert!(store.conversation(&s).await.unwrap().stored().is_empty());
    assert_eq!(store.session_count(Scope::All).await.unwrap(), 1);
    assert_eq!(store.session_count(Scope::Session(&s)).await.unwrap(), 0);
    for scope in [Scope::All, Scope::Source("cli"), Scope::Session(&s)] {
        assert_eq!(store.message_count(scope).await.unwrap(), 0, "{scope:?}");
    }
    assert_eq!(integer(&held, LEFT), 10);
    held.execute_batch("ROLLBACK").unwrap();
    drop(held);

    assert!(!store.delete_session(&s).await.unwrap());
    let error = store.append_message(&s, NewMessage::user("late")).await;
    assert!(
        matches!(&error, Err(Error::SessionNotFound { id }) if *id == s),
        "{error:?}"
    );
    let child = NewSession::new("cli").id(id("child")).parent(s.clone());
    let error = store.create_session(child).await;
    assert!(
        matches!(error, Err(Error::ParentNotFound { .. })),
        "{error:?}"
    );
    for result in [
        store.clear_messages(&s).await.map(drop),
        store.replace_transcript(&s, []).await.map(drop),
        store.end_session(&s, "x").await.map(drop),
        store.reopen_session(&s).await,
        store.set_model(&s, "m").await,
        store.update_system_prompt(&s, "p").await,
        store
            .append_turn(&s, Turn::new([NewMessage::user("x")]).key("k"))
            .await
            .map(drop),
    ] {
        assert!(
            matches!(result, Err(Error::SessionNotFound { .. })),
            "{result:?}"
        );
    }
    store
        .append_message(&other, NewMessage::user("on"))
        .await
        .unwrap();
}

/// Seen from inside the first transaction, which leaves most messages in the file.
#[tokio::test]
async fn title_and_session_are_gone_when_the_call_returns() {
    let (file, store, session) = store_and_session().await;
    let stock = file.stock();
    fill(&stock, 3000, "w");
    stock
        .execute_batch(
            "UPDATE sessions SET title = 'T' WHERE id = 's';
             CREATE TABLE seen(left INTEGER, sessions INTEGER, titles INTEGER);
             CREATE TRIGGER see AFTER INSERT ON deleted_sessions BEGIN
                 INSERT INTO seen VALUES (
                     (SELECT COUNT(*) FROM messages WHERE session_id = new.session_id),
                     (SELECT COUNT(*) FROM sessions), (SELECT COUNT(*) FROM sessions WHERE title = 'T'));
             END",
        )
        .unwrap();
    assert!(store.delete_session(&session).await.unwrap());
    let seen = support::rows(&stock, "SELECT left, sessions, titles FROM seen");
    assert_eq!(seen, [["2000", "0", "0"]]);
}

#[tokio::test]
async fn create_and_ensure_finish_the_delete_first() {
    for ensure in [false, true] {
        let file = half_deleted().await;
        // A trigger would do it in one piece, after the session was made.
        file.stock()
            .execute_batch(
                "CREATE TABLE noted(sessions);
                 CREATE TRIGGER note AFTER DELETE ON deleted_sessions BEGIN
                     INSERT INTO noted SELECT COUNT(*) FROM sessions WHERE id = 's';
                 END",
            )
            .unwrap();
        let store = file.open().await;
        if ensure {
            store.ensure_session(&id("s")).await.unwrap();
        } else {
            create(&store, "s").await;
        }
        assert_eq!(integer(&file.stock(), LEFT), 0);
        assert_eq!(integer(&file.stock(), "SELECT MAX(sessions) FROM noted"), 0);
        store
            .append_message(&id("s"), NewMessage::user("new"))
            .await
            .unwrap();
        assert_eq!(texts(&all(&store, &id("s")).await), ["new"]);
        store.close().await.unwrap();
        assert_sound(&file);
        // Once more: it is there.
        let store = file.open().await;
        create(&store, "s").await;
        store.ensure_session(&id("s")).await.unwrap();
        assert_eq!(texts(&all(&store, &id("s")).await), ["new"]);
    }
}

#[tokio::test]
async fn an_id_can_be_used_again_at_once() {
    let (file, store, session) = store_and_session().await;
    fill(&file.stock(), 20_000, "w");
    assert!(store.delete_session(&session).await.unwrap());
    create(&store, "s").await;
    store
        .append_message(&session, NewMessage::user("new"))
        .await
        .unwrap();
    assert_eq!(texts(&all(&store, &session).await), ["new"]);
    assert_eq!(integer(&file.stock(), LEFT), 1);
    store.close().await.unwrap();
    assert_sound(&file);
}

/// Each removed message notes how many appends were committed before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writes_pass_while_50_000_messages_are_removed() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "other").await;
    let stock = file.stock();
    fill(&stock, 50_000, "some words of a long conversation");
    count_pieces(&stock);

    assert!(store.delete_session(&session).await.unwrap());
    let mut appended = 0;
    while integer(&stock, PENDING) > 0 {
        store
            .append_message(&other, NewMessage::user("between"))
            .await
            .unwrap();
        appended += 1;
        // A lull, as after a turn, in which something is removed: else callers would go first.
        let removed = || integer(&stock, "SELECT COUNT(*) FROM removed");
        let before = removed();
        until("something is removed", || {
            removed() > before || integer(&stock, PENDING) == 0
        })
        .await;
    }
    assert!(appended > 2, "{appended}");
    let stages = support::rows(
        &stock,
        "SELECT appended, COUNT(*) FROM removed GROUP BY appended ORDER BY appended",
    );
    // Something was removed before, between and after appends.
    assert!(stages.len() > 2, "{stages:?}");
    let total: i64 = stages
        .iter()
        .map(|stage| stage[1].parse::<i64>().unwrap())
        .sum();
    assert_eq!(total, 50_000);
    store.close().await.unwrap();
    assert_sound(&file);
}

/// Callers that never pause can't keep deleted messages in the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_goes_on_under_full_load() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "other").await;
    let stock = file.stock();
    fill(&stock, 4000, "w");
    assert!(store.delete_session(&session).await.unwrap());
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers = (0..16).map(|_| {
        let (store, other, done) = (store.clone(), other.clone(), std::sync::Arc::clone(&done));
        tokio::spawn(async move {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                store
                    .append_message(&other, NewMessage::user("x"))
                    .await
                    .unwrap();
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    until("leftovers are removed", || integer(&stock, PENDING) == 0).await;
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    store.close().await.unwrap();
    assert_sound(&file);
}

/// 1,000 messages of 20 KB would take a second.
#[tokio::test]
async fn pieces_are_bounded_by_bytes_too() {
    let (file, store, session) = store_and_session().await;
    let stock = file.stock();
    fill(&stock, 300, &"words ".repeat(3500));
    stock
        .execute_batch(
            "CREATE TABLE noted(left);
             CREATE TRIGGER note AFTER INSERT ON deleted_sessions BEGIN
                 INSERT INTO noted SELECT COUNT(*) FROM messages WHERE session_id = 's';
             END",
        )
        .unwrap();
    assert!(store.delete_session(&session).await.unwrap());
    let left = integer(&stock, "SELECT left FROM noted");
    assert_eq!(left, 300 - 256 * 1024 / (3500 * 6 + 10));
    store.close().await.unwrap();
    assert_eq!(integer(&stock, LEFT), 0);
    assert_sound(&file);
}

#[tokio::test]
async fn a_message_larger_than_a_piece_goes_alone() {
    let (file, store, session) = store_and_session().await;
    for size in [3_000_000, 3_000_000, 10] {
        store
            .append_message(&session, NewMessage::user("x".repeat(size)))
            .await
            .unwrap();
    }
    assert!(store.delete_session(&session).await.unwrap());
    store.close().await.unwrap();
    let stock = file.stock();
    assert_eq!(integer(&stock, LEFT), 0);
    assert_sound(&file);
}

#[tokio::test]
async fn closing_finishes_and_a_shutdown_does_not_wait() {
    let (file, store, session) = store_and_session().await;
    fill(&file.stock(), 10_000, "w");
    assert!(store.delete_session(&session).await.unwrap());
    store.shutdown(Duration::ZERO).await.unwrap();
    let stock = file.stock();
    assert!(integer(&stock, LEFT) > 0);
    assert_eq!(integer(&stock, PENDING), 1);

    let store = file.open().await;
    store.close().await.unwrap();
    assert_eq!(integer(&stock, LEFT), 0);
    assert_sound(&file);
}

#[tokio::test]
async fn background_work_is_not_counted_as_writes() {
    let (file, store, session) = store_and_session().await;
    fill(&file.stock(), 5000, "w");
    assert!(store.delete_session(&session).await.unwrap());
    let report = store.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!((report.committed, report.refused), (0, 0));
}

#[tokio::test]
async fn a_store_with_leftovers_opens_while_another_process_holds_the_lock() {
    let file = half_deleted().await;
    let held = hold(&file);
    let store = file.open().await;
    assert_eq!(store.session(&id("s")).await.unwrap(), None);
    held.execute_batch("ROLLBACK").unwrap();
    let stock = file.stock();
    until("leftovers are removed", || integer(&stock, PENDING) == 0).await;
    store.close().await.unwrap();
    assert_sound(&file);
}

/// The file is killed at some moment of the removal; nobody closes it.
#[tokio::test]
async fn a_killed_process_leaves_the_rest_to_the_next_opening() {
    let (file, store, session) = store_and_session().await;
    create(&store, "other").await;
    store
        .append_message(&id("other"), NewMessage::user("kept"))
        .await
        .unwrap();
    store.close().await.unwrap();
    let stock = file.stock();
    fill(&stock, 50_000, "some words of a long conversation");
    let mut child = child("deletes_a_long_session", &file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines.next().expect("the child ended by itself").unwrap() != "deleted" {}
    until("removal is under way", || integer(&stock, LEFT) < 45_000).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let left = integer(&stock, LEFT);
    assert!(0 < left, "killed too late");
    assert_eq!(integer(&stock, PENDING), 1);
    assert_index_is_right(&stock);

    let store = file.open().await;
    assert_eq!(store.session(&session).await.unwrap(), None);
    assert!(all(&store, &session).await.is_empty());
    until("leftovers are removed", || integer(&stock, PENDING) == 0).await;
    assert_eq!(integer(&stock, LEFT), 0);
    assert_eq!(texts(&all(&store, &id("other")).await), ["kept"]);
    store.close().await.unwrap();
    assert_sound(&file);
}

#[tokio::test]
async fn deletes_a_long_session() {
    let Some(path) = child_argument() else { return };
    let store = options().open(&path).await.unwrap();
    assert!(
        store
            .delete_session(&SessionId::new("s").unwrap())
            .await
            .unwrap()
    );
    std::io::stdout().write_all(b"\ndeleted\n").unwrap();
    // Until it is killed. Its input ends with the parent, should that have failed.
    let input = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
    input.await.unwrap().unwrap();
}

/// Two stores as two processes: whoever comes first, nothing is removed that is not to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_remove_the_same_leftovers() {
    let file = half_deleted().await;
    let (one, two) = tokio::join!(file.open(), file.open());
    create(&two, "s").await;
    two.append_message(&id("s"), NewMessage::user("new"))
        .await
        .unwrap();
    one.close().await.unwrap();
    assert_eq!(texts(&all(&two, &id("s")).await), ["new"]);
    two.close().await.unwrap();
    assert_sound(&file);
}

/// Foreign keys are off while a session is deleted, and only then.
#[tokio::test]
async fn foreign_keys_are_on_after_a_delete_that_succeeded_or_failed() {
    for fails in [false, true] {
        let (file, store, session) = store_and_session().await;
        let stock = file.stock();
        if fails {
            stock
                .execute_batch(
                    "CREATE TRIGGER refuse BEFORE DELETE ON sessions BEGIN
                         SELECT RAISE(ABORT, 'no');
                     END",
                )
                .unwrap();
        }
        let deleted = store.delete_session(&session).await;
        assert_eq!(deleted.is_err(), fails);
        // No call of ours stores an orphan; a trigger does.
        stock
            .execute_batch(
                "CREATE TRIGGER orphan AFTER UPDATE OF model ON sessions BEGIN
                     INSERT INTO messages(session_id, role, timestamp) VALUES ('nobody', 'user', 1);
                 END",
            )
            .unwrap();
        let other = create(&store, "other").await;
        let error = store.set_model(&other, "m").await.unwrap_err();
        assert!(matches!(error, Error::Constraint { .. }), "{error:?}");
    }
}

/// A delete that waits beside other writes neither fails them nor takes them along.
#[tokio::test]
async fn a_delete_among_other_writes_keeps_their_order() {
    let (file, store, session) = store_and_session().await;
    let other = create(&store, "other").await;
    // Foreign keys hold in the others.
    file.stock()
        .execute_batch(
            "CREATE TRIGGER orphan AFTER UPDATE OF model ON sessions BEGIN
                 INSERT INTO messages(session_id, role, timestamp) VALUES ('nobody', 'user', 1);
             END",
        )
        .unwrap();
    let (a, b, refused, deleted, also, c, d) = tokio::join!(
        store.append_message(&session, NewMessage::user("a")),
        store.append_message(&other, NewMessage::user("b")),
        store.set_model(&other, "m"),
        store.delete_session(&session),
        store.set_model(&other, "m"),
        store.append_message(&session, NewMessage::user("c")),
        store.append_message(&other, NewMessage::user("d")),
    );
    for appended in [a, b, d] {
        appended.unwrap();
    }
    assert!(deleted.unwrap());
    for refused in [refused, also] {
        assert!(
            matches!(refused, Err(Error::Constraint { .. })),
            "{refused:?}"
        );
    }
    assert!(matches!(c, Err(Error::SessionNotFound { .. })), "{c:?}");
    assert_eq!(texts(&all(&store, &other).await), ["b", "d"]);
    assert_sound(&file);
}

/// What Python's `sqlite3` sees and does in the meantime.
#[tokio::test]
async fn stock_programs_do_not_see_the_session_and_may_make_it_anew() {
    let file = half_deleted().await;
    let script = r#"
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("PRAGMA foreign_keys = ON")
one = lambda sql: file.execute(sql).fetchone()[0]
assert one("SELECT COUNT(*) FROM sessions WHERE id = 's' OR title = 'T'") == 0
assert one("""SELECT COUNT(*) FROM messages_fts JOIN messages ON messages.id = messages_fts.rowid
    JOIN sessions ON sessions.id = messages.session_id WHERE messages_fts MATCH 'old'""") == 0
try:
    file.execute("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', 'late', 1)")
    raise SystemExit("stored in a deleted session")
except sqlite3.IntegrityError:
    pass
file.execute("INSERT OR IGNORE INTO sessions (id, source, started_at) VALUES ('s', 'cli', 5)")
assert one("SELECT COUNT(*) FROM messages") == 0
assert one("SELECT COUNT(*) FROM deleted_sessions") == 0
file.execute("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', 'new', 6)")
assert file.execute("PRAGMA integrity_check").fetchall() == [('ok',)]
assert file.execute("PRAGMA foreign_key_check").fetchall() == []
"#;
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let store = file.open().await;
    assert_eq!(texts(&all(&store, &id("s")).await), ["new"]);
    store.close().await.unwrap();
    assert_sound(&file);
}

/// Another program may rename a session to the id; the trigger is the same.
#[tokio::test]
async fn a_session_renamed_to_the_id_does_not_get_the_old_messages() {
    let file = half_deleted().await;
    let stock = file.stock();
    stock
        .execute_batch("UPDATE sessions SET id = 's' WHERE id = 'other'")
        .unwrap();
    assert_eq!(integer(&stock, LEFT), 0);
    assert_sound(&file);
}

/// Even where another program has dropped our triggers, newer messages stay.
#[tokio::test]
async fn only_messages_of_before_the_delete_are_removed() {
    let file = half_deleted().await;
    let stock = file.stock();
    stock
        .execute_batch(
            "DROP TRIGGER deleted_sessions_session_insert;
             INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 5);
             INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'user', 'new', 6);",
        )
        .unwrap();
    let store = file.open().await;
    assert_eq!(texts(&all(&store, &id("s")).await), ["new"]);
    let conversation = store.conversation(&id("s")).await.unwrap();
    assert_eq!(conversation.stored().len(), 1);
    store.close().await.unwrap();
    assert_eq!(integer(&stock, LEFT), 1);
    assert_sound(&file);
}

#[tokio::test]
async fn a_dropped_future_deletes_wholly_or_not_at_all() {
    for polls in 0..4 {
        let (file, store, session) = store_and_session().await;
        fill(&file.stock(), 1500, "w");
        let mut delete = Box::pin(store.delete_session(&session));
        for _ in 0..polls {
            if futures_util::poll!(&mut delete).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(delete);
        store.close().await.unwrap();
        let stock = file.stock();
        let left = integer(&stock, LEFT);
        let sessions = integer(&stock, "SELECT COUNT(*) FROM sessions");
        assert!(matches!((sessions, left), (1, 1500) | (0, 0)), "{left}");
        assert_sound(&file);
    }
}

#[tokio::test]
async fn a_read_only_store_hides_leftovers_and_deletes_nothing() {
    let file = half_deleted().await;
    let store: SessionStore = file.open_with(options().read_only()).await;
    assert!(all(&store, &id("s")).await.is_empty());
    assert_eq!(store.message_count(Scope::All).await.unwrap(), 0);
    assert!(matches!(
        store.delete_session(&id("other")).await,
        Err(Error::ReadOnly)
    ));
    store.close().await.unwrap();
    assert_eq!(integer(&file.stock(), LEFT), 5000);
    let (_file, store) = self::store().await;
    drop(store);
}
