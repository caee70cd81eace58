//! What a file holds, and whether that is current. Reads only.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::schema::{HISTORY_TABLE, MESSAGE_INDEX, OURS, Piece, SCHEMA_VERSION, TITLE_INDEX, V6};
use crate::environment::JournalMode;
use crate::error::{Error, Result};
use crate::options::Access;

/// The columns without which a table of this name is not ours.
const SESSION_COLUMNS: [&str; 3] = ["id", "source", "started_at"];
const MESSAGE_COLUMNS: [&str; 4] = ["id", "session_id", "role", "timestamp"];

/// What a file holds.
#[derive(Debug)]
pub(super) struct Look {
    /// Whether texts are stored as UTF-8. The driver hands out the stored bytes.
    utf_8: bool,
    /// `type:name` of everything in the schema but SQLite's own, in lower case.
    objects: HashSet<String>,
    /// `table.column` of the original's tables, in lower case.
    columns: HashSet<String>,
    /// Greatest row of `schema_version`.
    version: Option<i64>,
    /// Whether that is the only row.
    one_version: bool,
    /// Our migrations that the file has seen.
    history: BTreeSet<i64>,
    compat: Option<Compat>,
    pub(super) journal: JournalMode,
    pub(super) page_size: u32,
}

/// The migrations that a program must know.
#[derive(Clone, Copy, Debug)]
struct Compat {
    read: i64,
    write: i64,
}

/// What a file is to this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No tables yet.
    Fresh,
    /// Something is missing; the schema version that it looks like.
    Old(i64),
    Current,
}

/// Looks at everything that decides. The caller holds a transaction, so that all of it is of one
/// moment.
pub(super) async fn look(connection: &mut SqliteConnection) -> sqlx::Result<Look> {
    let encoding = sqlx::query("PRAGMA encoding")
        .fetch_one(&mut *connection)
        .await?;
    let utf_8 = encoding.try_get_unchecked::<&[u8], _>(0)? == b"UTF-8";
    // As blobs: names in a damaged schema need not be UTF-8.
    let objects = texts(
        &sqlx::query(
            "SELECT CAST(lower(type || ':' || name) AS BLOB)
             FROM sqlite_schema
             WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
        )
        .fetch_all(&mut *connection)
        .await?,
    )?;
    let columns = texts(
        &sqlx::query(
            "SELECT CAST(lower(t.name || '.' || c.name) AS BLOB)
             FROM sqlite_schema AS t, pragma_table_xinfo(t.name) AS c
             WHERE t.type = 'table' AND lower(t.name) IN ('schema_version', 'sessions', 'messages')",
        )
        .fetch_all(&mut *connection)
        .await?,
    )?;
    let mut look = Look {
        utf_8,
        objects,
        columns,
        version: None,
        one_version: false,
        history: BTreeSet::new(),
        compat: None,
        journal: journal_mode(connection).await?,
        page_size: sqlx::query_scalar("PRAGMA page_size")
            .fetch_one(&mut *connection)
            .await?,
    };
    if look.columns.contains("schema_version.version") {
        let row =
            sqlx::query("SELECT max(CAST(version AS INTEGER)), count(*) = 1 FROM schema_version")
                .fetch_one(&mut *connection)
                .await?;
        look.version = row.try_get(0)?;
        look.one_version = row.try_get(1)?;
    }
    if look.has_table(HISTORY_TABLE) {
        look.history = sqlx::query_scalar("SELECT version FROM hermes_state_migrations")
            .fetch_all(&mut *connection)
            .await?
            .into_iter()
            .collect();
    }
    if look.has_table("hermes_state_compat") {
        look.compat =
            sqlx::query("SELECT read_needs, write_needs FROM hermes_state_compat WHERE id = 1")
                .fetch_optional(&mut *connection)
                .await?
                .map(|row| {
                    Ok::<_, sqlx::Error>(Compat {
                        read: row.try_get(0)?,
                        write: row.try_get(1)?,
                    })
                })
                .transpose()?;
    }
    Ok(look)
}

/// The mode that the file is in, as this connection sees it after its last read.
pub(super) async fn journal_mode(connection: &mut SqliteConnection) -> sqlx::Result<JournalMode> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(connection)
        .await?;
    Ok(if mode == "wal" {
        JournalMode::Wal
    } else {
        JournalMode::Rollback
    })
}

fn texts(rows: &[SqliteRow]) -> sqlx::Result<HashSet<String>> {
    rows.iter()
        .map(|row| {
            let bytes: &[u8] = row.try_get(0)?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        })
        .collect()
}

impl Look {
    /// Whether pieces of ours are there, but no record of how they came.
    pub(super) fn has_lost_history(&self) -> bool {
        let is_there = |(piece, _): &(Piece, _)| match *piece {
            Piece::Column(table, name, _) => self.has_column(table, name),
            piece => self.has(piece),
        };
        self.history.is_empty() && OURS.iter().any(is_there)
    }

    /// Tells a file of ours, of any age, from all others. `known` are this crate's migrations.
    pub(super) fn judge(&self, path: &Path, access: Access, known: &[i64]) -> Result<State> {
        if !self.utf_8 {
            return Err(Error::Utf16 {
                path: path.to_owned(),
            });
        }
        if !self
            .objects
            .iter()
            .any(|object| object.starts_with("table:"))
        {
            return Ok(State::Fresh);
        }
        if !self.is_ours() {
            return Err(Error::ForeignDatabase {
                path: path.to_owned(),
            });
        }
        if let Some(found) = self.version.filter(|&found| found > SCHEMA_VERSION) {
            return Err(Error::NewerSchema {
                path: path.to_owned(),
                found,
                supported: SCHEMA_VERSION,
            });
        }
        let supported = known.iter().copied().max().unwrap_or(0);
        let needed = self.needs(access, supported);
        if needed > supported {
            return Err(Error::NewerStore {
                path: path.to_owned(),
                needed,
                supported,
            });
        }
        let whole = V6.iter().chain(OURS).all(|(piece, _)| self.has(*piece));
        let seen = known.iter().all(|version| self.history.contains(version));
        let versioned = self.one_version && self.version == Some(SCHEMA_VERSION);
        Ok(if whole && seen && versioned {
            State::Current
        } else {
            State::Old(self.version.unwrap_or_else(|| self.version_by_columns()))
        })
    }

    /// The migration that a program must know to use the file.
    fn needs(&self, access: Access, supported: i64) -> i64 {
        match (self.compat, access) {
            (Some(compat), Access::ReadOnly) => compat.read,
            (Some(compat), Access::ReadWrite) => compat.write,
            // Whatever a migration that we do not know demanded: assume the worst.
            (None, _) => self.history.last().map_or(supported, |&last| last),
        }
    }

    fn is_ours(&self) -> bool {
        let has_columns = |table: &str, columns: &[&str]| {
            columns.iter().all(|column| self.has_column(table, column))
        };
        let sessions = self.has_table("sessions");
        let messages = self.has_table("messages");
        let tables = self.objects.iter().filter(|o| o.starts_with("table:"));
        // Many programs have a table called schema_version. Alone it is the very beginning of a
        // file of ours; among tables of others it says nothing.
        let begun = has_columns("schema_version", &["version"]) && tables.count() == 1;
        (sessions || messages || begun)
            && (!sessions || has_columns("sessions", &SESSION_COLUMNS))
            && (!messages || has_columns("messages", &MESSAGE_COLUMNS))
            && (!self.has_table("schema_version") || has_columns("schema_version", &["version"]))
            && !self.objects.contains("view:sessions")
            && !self.objects.contains("view:messages")
    }

    /// The schema version that the columns amount to.
    fn version_by_columns(&self) -> i64 {
        let first_missing = V6.iter().filter_map(|(piece, _)| match *piece {
            Piece::Column(table, _, since) if !self.has(*piece) || !self.has_table(table) => {
                Some(since)
            }
            _ => None,
        });
        let by_columns = first_missing
            .min()
            .map_or(SCHEMA_VERSION, |since| since - 1);
        // Versions 3 and 4 have the same columns.
        if by_columns == 4 && !self.has(TITLE_INDEX) {
            3
        } else {
            by_columns.max(1)
        }
    }

    /// Whether the piece is there. A column counts as there when its whole table is missing:
    /// creating the table brings it.
    pub(super) fn has(&self, piece: Piece) -> bool {
        match piece {
            Piece::Table(name) => self.has_table(name),
            Piece::Column(table, name, _) => !self.has_table(table) || self.has_column(table, name),
            Piece::Index(name) => self.objects.contains(&format!("index:{name}")),
            Piece::Trigger(name) => self.objects.contains(&format!("trigger:{name}")),
            Piece::CompatRow => self.compat.is_some(),
        }
    }

    pub(super) fn has_message_index(&self) -> bool {
        self.has(MESSAGE_INDEX)
    }

    /// Whether `schema_version` says exactly what it should.
    pub(super) fn is_versioned(&self) -> bool {
        self.one_version && self.version == Some(SCHEMA_VERSION)
    }

    /// The last of our migrations that the file has seen.
    pub(super) fn migration(&self) -> i64 {
        self.history.last().map_or(0, |&last| last)
    }

    fn has_table(&self, name: &str) -> bool {
        self.objects.contains(&format!("table:{name}"))
    }

    fn has_column(&self, table: &str, name: &str) -> bool {
        self.columns.contains(&format!("{table}.{name}"))
    }
}
