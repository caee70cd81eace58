//! What the tests of opening share.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hermes_state::{Environment, Error, Result, StoreOptions};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// A folder of its own, and a path in it.
pub(crate) fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    (folder, path)
}

/// Opens and closes the store.
pub(crate) async fn open_with(options: StoreOptions, path: &Path) -> Result<Environment> {
    let store = options.open(path).await?;
    let environment = store.environment();
    store.close().await?;
    Ok(environment)
}

pub(crate) async fn open(path: &Path) -> Result<Environment> {
    open_with(StoreOptions::new(), path).await
}

pub(crate) async fn open_read_only(path: &Path) -> Result<Environment> {
    open_with(StoreOptions::new().read_only(), path).await
}

pub(crate) async fn refused(path: &Path) -> Error {
    open(path).await.expect_err("the file must be refused")
}

pub(crate) fn connect(path: &Path) -> Connection {
    let file = Connection::open(path).unwrap();
    file.busy_timeout(Duration::from_secs(20)).unwrap();
    file
}

/// All rows of a statement, each value as its type, its SQL text and its bytes.
pub(crate) fn rows(file: &Connection, sql: &str) -> Vec<Vec<String>> {
    let mut statement = file.prepare(sql).unwrap();
    let width = statement.column_count();
    statement
        .query_map([], |row| {
            (0..width)
                .map(|column| Ok(shown(row.get_ref(column)?)))
                .collect()
        })
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap()
}

/// Tells every two values apart that SQLite tells apart.
pub(crate) fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => format!("{text:?}"),
            Err(_) => format!("text of {bytes:?}"),
        },
        other => format!("{other:?}"),
    }
}

pub(crate) fn strings(file: &Connection, sql: &str) -> Vec<String> {
    let mut statement = file.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

pub(crate) fn integer(file: &Connection, sql: &str) -> i64 {
    file.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Every row of the original's tables, in the columns that the file has now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Content(Vec<(String, Vec<Vec<String>>)>);

pub(crate) fn content(file: &Connection) -> Content {
    let select = |table: &str| {
        let columns = strings(
            file,
            &format!("SELECT '\"' || name || '\"' FROM pragma_table_info('{table}')"),
        );
        format!("SELECT {} FROM {table} ORDER BY rowid", columns.join(", "))
    };
    Content(
        [select("sessions"), select("messages")]
            .map(|sql| {
                let rows = rows(file, &sql);
                (sql, rows)
            })
            .into(),
    )
}

/// Asserts that the columns of before hold what they held, byte for byte.
#[track_caller]
pub(crate) fn assert_kept(file: &Connection, before: &Content) {
    for (sql, expected) in &before.0 {
        assert_eq!(&rows(file, sql), expected, "{sql}");
    }
}

/// A schema as far as it matters: the order of columns and white space do not.
pub(crate) fn schema(file: &Connection) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let objects = rows_of_strings(
        file,
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema
         WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    );
    for [kind, name, table, sql] in objects {
        if kind == "table" && !sql.starts_with("CREATE VIRTUAL") {
            all.insert(format!("table {name}"));
            let columns = rows(
                file,
                &format!(
                    "SELECT name, type, \"notnull\", dflt_value, pk, hidden
                     FROM pragma_table_xinfo('{name}')"
                ),
            );
            all.extend(columns.iter().map(|column| format!("{name}: {column:?}")));
            let keys = rows(
                file,
                &format!(
                    "SELECT \"table\", \"from\", \"to\", on_update, on_delete
                     FROM pragma_foreign_key_list('{name}')"
                ),
            );
            all.extend(keys.iter().map(|key| format!("{name} refers to {key:?}")));
        } else {
            let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            let sql = sql.replace("( ", "(").replace(" )", ")");
            all.insert(format!("{kind} {name} on {table}: {sql}"));
        }
    }
    all
}

fn rows_of_strings(file: &Connection, sql: &str) -> Vec<[String; 4]> {
    let mut statement = file.prepare(sql).unwrap();
    let rows = statement
        .query_map([], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
        })
        .unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// The schema of a file that this crate made, but for the index that waits for a quiet moment.
pub(crate) async fn current_schema() -> BTreeSet<String> {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    without_message_index(schema(&connect(&path)))
}

pub(crate) fn without_message_index(mut schema: BTreeSet<String>) -> BTreeSet<String> {
    schema.retain(|entry| !entry.starts_with("index idx_messages_session_id"));
    schema
}

/// Asserts that the file is whole: its pages, its foreign keys as they were made, its index.
#[track_caller]
pub(crate) fn assert_sound(file: &Connection) {
    assert_eq!(strings(file, "PRAGMA integrity_check"), ["ok"]);
    file.execute(
        "INSERT INTO messages_fts(messages_fts, rank) VALUES ('integrity-check', 1)",
        [],
    )
    .unwrap();
    assert_eq!(
        rows(file, "SELECT version FROM schema_version"),
        [["Integer(6)"]]
    );
    assert_eq!(
        strings(
            file,
            "SELECT CAST(version AS TEXT) FROM hermes_state_migrations ORDER BY version"
        ),
        ["1", "2", "3", "4", "5", "6", "7", "8"]
    );
    assert_eq!(
        rows(
            file,
            "SELECT id, read_needs, write_needs FROM hermes_state_compat"
        ),
        [["Integer(1)", "Integer(1)", "Integer(7)"]]
    );
}
