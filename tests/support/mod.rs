//! What these tests share: a file in a folder of its own, a store on it, and the same file as
//! another program sees it.
#![allow(dead_code, reason = "each test crate uses its part of it")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use hermes_state::{
    Durability, Json, Message, MessageRange, NewSession, SessionId, SessionStore, StoreOptions,
};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// A database file of this test alone.
pub(crate) struct File(TempDir);

impl File {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("state.db")
    }

    pub(crate) async fn open(&self) -> SessionStore {
        self.open_with(options()).await
    }

    pub(crate) async fn open_with(&self, options: StoreOptions) -> SessionStore {
        options.open(self.path()).await.unwrap()
    }

    /// Another program's connection.
    pub(crate) fn stock(&self) -> Connection {
        let stock = Connection::open(self.path()).unwrap();
        stock.busy_timeout(Duration::from_secs(20)).unwrap();
        stock.pragma_update(None, "foreign_keys", true).unwrap();
        stock
    }

    /// Every row of every table, byte for byte.
    pub(crate) fn dump(&self) -> String {
        let stock = self.stock();
        let mut dump = String::new();
        let tables = "SELECT name FROM sqlite_schema
                      WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name";
        let mut tables = stock.prepare(tables).unwrap();
        let tables = tables.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for table in tables.map(Result::unwrap) {
            for row in rows(&stock, &format!("SELECT * FROM \"{table}\"")) {
                writeln!(dump, "{table}: {}", row.join(", ")).unwrap();
            }
        }
        dump
    }
}

/// The defaults, but for a power cut, which no test makes.
pub(crate) fn options() -> StoreOptions {
    StoreOptions::new().durability(Durability::Normal)
}

/// A store on a file of its own.
pub(crate) async fn store() -> (File, SessionStore) {
    let file = File::new();
    let store = file.open().await;
    (file, store)
}

/// A store with a session `s`.
pub(crate) async fn store_and_session() -> (File, SessionStore, SessionId) {
    let (file, store) = store().await;
    let session = create(&store, "s").await;
    (file, store, session)
}

pub(crate) async fn create(store: &SessionStore, name: &str) -> SessionId {
    let session = NewSession::new("cli").id(id(name));
    store.create_session(session).await.unwrap()
}

pub(crate) async fn all(store: &SessionStore, session: &SessionId) -> Vec<Message> {
    store.messages(session, MessageRange::all()).await.unwrap()
}

pub(crate) fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

/// What messages say, as other programs see it; `-` for nothing.
pub(crate) fn texts(messages: &[Message]) -> Vec<String> {
    let text = |message: &Message| match &message.content {
        Some(content) => content.text().into_owned(),
        None => "-".to_owned(),
    };
    messages.iter().map(text).collect()
}

/// `(message_count, tool_call_count)` of a session.
pub(crate) async fn counters(store: &SessionStore, session: &SessionId) -> (i64, i64) {
    let session = store.session(session).await.unwrap().unwrap();
    (session.message_count, session.tool_call_count)
}

/// The rows of a statement, so that every two values differ that SQLite tells apart.
pub(crate) fn rows(stock: &Connection, sql: &str) -> Vec<Vec<String>> {
    let mut statement = stock.prepare(sql).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut shown = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let value = |column| match row.get_ref(column).unwrap() {
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => format!("{text:?}"),
                Err(_) => format!("text of {bytes:?}"),
            },
            ValueRef::Real(real) => format!("{real:?}"),
            ValueRef::Integer(integer) => integer.to_string(),
            ValueRef::Null => "NULL".to_owned(),
            ValueRef::Blob(bytes) => format!("blob of {bytes:?}"),
        };
        shown.push((0..width).map(value).collect());
    }
    shown
}

pub(crate) fn integer(stock: &Connection, sql: &str) -> i64 {
    stock.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Fails if the original's full-text index does not hold exactly what the messages say.
#[track_caller]
pub(crate) fn assert_index_is_right(stock: &Connection) {
    stock
        .execute(
            "INSERT INTO messages_fts(messages_fts, rank) VALUES ('integrity-check', 1)",
            [],
        )
        .unwrap();
}
