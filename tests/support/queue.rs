//! Writes that wait in the queue of a store, or at their commit.

#![allow(dead_code, reason = "each test crate uses its part of it")]

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::poll;
use hermes_state::{
    Appended, Journal, NewMessage, Result, SessionId, SessionStore, StoreOptions, Turn,
};
use rusqlite::Connection;

use crate::support::{File, cell, until};

pub(crate) type Append = BoxFuture<'static, Result<Appended>>;

pub(crate) fn append(store: &SessionStore, session: &SessionId, message: NewMessage) -> Append {
    append_turn(store, session, Turn::new([message]))
}

pub(crate) fn append_turn(store: &SessionStore, session: &SessionId, turn: Turn) -> Append {
    let (store, session) = (store.clone(), session.clone());
    async move { store.append_turn(&session, turn).await }.boxed()
}

/// Puts writes into the queue in their order. The writer does not run before the test awaits: both
/// are on one thread. Unconstrained, or tokio would hold some of them back.
pub(crate) async fn queue(writes: &mut [Append]) {
    let polls = async {
        for write in writes {
            assert!(poll!(write).is_pending());
        }
    };
    tokio::task::unconstrained(polls).await;
}

/// Ids of appends that all stored one message.
pub(crate) fn ids(results: Vec<Result<Appended>>) -> Vec<i64> {
    let id = |result: Result<Appended>| result.unwrap().last_id().unwrap().get();
    results.into_iter().map(id).collect()
}

/// A store with a rollback journal, and another program's read that lets transactions begin but
/// not commit.
pub(crate) async fn held_at_commit(
    file: &File,
    options: StoreOptions,
) -> (SessionStore, SessionId, Connection) {
    let (store, session) = file.open_with(options.journal(Journal::Rollback)).await;
    let reader = file.rival();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(cell(&reader, "SELECT COUNT(*) FROM messages"), 0);
    (store, session, reader)
}

/// Waits until a transaction is at its commit: it lets no new reader in.
pub(crate) async fn until_at_commit(file: &File) {
    let reader = file.rival();
    until("no commit", || {
        reader
            .query_row("SELECT COUNT(*) FROM messages", [], |_| Ok(()))
            .is_err()
    })
    .await;
}
