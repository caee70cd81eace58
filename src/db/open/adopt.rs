//! Bringing a file up to date: all of it in one transaction that holds the write lock from its
//! first statement, so that of many programs that open the same file one does the work and the
//! others find it done. (The lock of sqlx's own migrator does nothing on SQLite.)

use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};
use std::path::Path;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection as _, Row as _, SqliteConnection};

use super::Failed;
use super::look::{Look, State, look};
use super::schema::{
    CREATE_MESSAGE_INDEX, HISTORY_TABLE, MESSAGES_FTS, OURS, Piece, SCHEMA_VERSION, TITLE_INDEX, V6,
};
use crate::options::Access;
use crate::title::{lineage_prefix, next_in_lineage};

/// Tables of an index that is gone; creating it anew would stumble over them. They hold nothing
/// that the messages do not.
const DROP_FTS_REMAINS: [&str; 5] = [
    "DROP TABLE IF EXISTS messages_fts_data",
    "DROP TABLE IF EXISTS messages_fts_idx",
    "DROP TABLE IF EXISTS messages_fts_content",
    "DROP TABLE IF EXISTS messages_fts_docsize",
    "DROP TABLE IF EXISTS messages_fts_config",
];

/// What was found and done.
#[derive(Debug)]
pub(super) struct Adopted {
    /// The file as it is now.
    pub(super) look: Look,
    /// Whether it had no tables before.
    pub(super) was_fresh: bool,
    /// Sessions that were given another title.
    pub(super) renamed: Vec<String>,
}

/// This crate's migrations.
pub(super) fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.dangerous_set_table_name(HISTORY_TABLE);
    // Whether later migrations of ours are harmless is said by the file, and was asked.
    migrator.set_ignore_missing(true);
    migrator
}

/// Numbers of this crate's migrations.
pub(super) fn known(migrator: &Migrator) -> Vec<i64> {
    migrator.iter().map(|migration| migration.version).collect()
}

/// Brings the file behind the connection up to date, or finds it so. After an error nothing has
/// changed; the connection is of no further use.
pub(super) async fn adopt(
    connection: &mut SqliteConnection,
    path: &Path,
    migrator: &Migrator,
) -> Result<Adopted, Failed> {
    let known = known(migrator);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let before = look(&mut transaction).await?;
    let state = before.judge(path, Access::ReadWrite, &known)?;
    let mut renamed = Vec::new();
    let look = if state == State::Current {
        before
    } else {
        // `run_direct`, because futures of `run` and `skip` on a transaction are not `Send`
        // ("implementation of `Acquire` is not general enough").
        if state != State::Fresh {
            renamed = complete(&mut transaction, &before).await?;
            // Recorded, not run: the file has what they bring.
            migrator
                .run_direct(Some(SCHEMA_VERSION), &mut *transaction, true)
                .await
                .map_err(migration_failed)?;
        }
        // Where only the record of our migrations is gone, their pieces are completed below.
        let recorded = !before.has_lost_history();
        migrator
            .run_direct(None, &mut *transaction, !recorded)
            .await
            .map_err(migration_failed)?;
        finish(&mut transaction).await?
    };
    transaction.commit().await?;
    for session in &renamed {
        tracing::warn!(
            session,
            "two sessions had the same title; the older one was given another"
        );
    }
    Ok(Adopted {
        look,
        was_fresh: state == State::Fresh,
        renamed,
    })
}

/// Adds what the file lacks of schema version 6. Returns the sessions that were given another
/// title.
async fn complete(connection: &mut SqliteConnection, before: &Look) -> Result<Vec<String>, Failed> {
    let mut renamed = Vec::new();
    let mut index_is_stale = false;
    for &(piece, create) in V6 {
        if before.has(piece) {
            continue;
        }
        if piece == TITLE_INDEX {
            renamed = part_titles(connection).await?;
        }
        if piece == MESSAGES_FTS {
            for drop in DROP_FTS_REMAINS {
                sqlx::raw_sql(drop).execute(&mut *connection).await?;
            }
        }
        sqlx::raw_sql(create).execute(&mut *connection).await?;
        index_is_stale |= piece == MESSAGES_FTS || matches!(piece, Piece::Trigger(_));
    }
    if index_is_stale {
        // The one case in which opening reads all messages: without it, search would miss what was
        // stored before the index or while a trigger was missing.
        sqlx::query("INSERT INTO messages_fts(messages_fts) VALUES ('rebuild')")
            .execute(&mut *connection)
            .await?;
    }
    if !before.is_versioned() {
        sqlx::query("DELETE FROM schema_version")
            .execute(&mut *connection)
            .await?;
        sqlx::query("INSERT INTO schema_version (version) VALUES (?1)")
            .bind(SCHEMA_VERSION)
            .execute(&mut *connection)
            .await?;
    }
    Ok(renamed)
}

/// Adds what the file lacks of our own pieces although their migrations ran, and the index that
/// costs nothing while there are no messages.
async fn finish(connection: &mut SqliteConnection) -> Result<Look, Failed> {
    let now = look(connection).await?;
    for &(piece, create) in OURS {
        if !now.has(piece) {
            sqlx::raw_sql(create).execute(&mut *connection).await?;
        }
    }
    let any_message: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM messages)")
        .fetch_one(&mut *connection)
        .await?;
    if !any_message && !now.has_message_index() {
        sqlx::raw_sql(CREATE_MESSAGE_INDEX)
            .execute(&mut *connection)
            .await?;
    }
    Ok(look(connection).await?)
}

/// Makes titles unique: the newest session keeps its title, the others get the next numbers, the
/// oldest first. Returns the ids of the others.
async fn part_titles(connection: &mut SqliteConnection) -> Result<Vec<String>, Failed> {
    // As blobs: text of other programs need not be UTF-8. The row id, because an id may be NULL.
    let twins = sqlx::query(
        "SELECT rowid, CAST(coalesce(id, '') AS BLOB), CAST(title AS BLOB)
         FROM (
             SELECT rowid, id, title, started_at,
                 row_number() OVER (PARTITION BY title ORDER BY started_at DESC, id DESC) AS place
             FROM sessions
             WHERE title IS NOT NULL
         )
         WHERE place > 1
         ORDER BY started_at, id",
    )
    .fetch_all(&mut *connection)
    .await?;
    if twins.is_empty() {
        return Ok(Vec::new());
    }
    let mut taken: BTreeSet<String> =
        sqlx::query("SELECT CAST(title AS BLOB) FROM sessions WHERE title IS NOT NULL")
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| Ok(lossy(row.try_get(0)?)))
            .collect::<sqlx::Result<_>>()?;
    let mut renamed = Vec::with_capacity(twins.len());
    for twin in twins {
        let title = lossy(twin.try_get(2)?);
        let prefix = lineage_prefix(&title);
        let lineage = taken
            .range::<str, _>((Included(prefix), Unbounded))
            .take_while(|other| other.starts_with(prefix));
        let title = next_in_lineage(&title, lineage.map(String::as_str));
        sqlx::query("UPDATE sessions SET title = ?1 WHERE rowid = ?2")
            .bind(&title)
            .bind(twin.try_get::<i64, _>(0)?)
            .execute(&mut *connection)
            .await?;
        taken.insert(title);
        renamed.push(lossy(twin.try_get(1)?));
    }
    Ok(renamed)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn migration_failed(error: MigrateError) -> Failed {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        error => Failed::Sqlx(sqlx::Error::Migrate(Box::new(error))),
    }
}
