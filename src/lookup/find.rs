//! The reads, one statement each.

use std::cmp::Reverse;

use super::Resolved;
use super::range::{Range, lineage};
use crate::db::readers::ReadGuard;
use crate::error::Result;
use crate::id::SessionId;
use crate::session::id_at;
use crate::title::{next_in_lineage, split};

/// How many sessions an ambiguous prefix may name.
const MAX_CANDIDATES: i64 = 10;

/// Titles as blobs: text of other programs need not be UTF-8.
pub(super) const TITLE_AND_NUMBERED: &str = "SELECT id, CAST(title AS BLOB) \
     FROM sessions INDEXED BY idx_sessions_title_unique WHERE title = ?1 \
     UNION ALL \
     SELECT id, CAST(title AS BLOB) \
     FROM sessions INDEXED BY idx_sessions_title_unique \
     WHERE title >= ?2 AND title < COALESCE(?3, x'')";

/// Titles in a lineage, and those of its neighbours; without that of session ?5.
pub(super) const LINEAGE: &str = "SELECT CAST(title AS BLOB) \
     FROM sessions INDEXED BY idx_sessions_title_unique \
     WHERE title IN (?1, ?2) AND id IS NOT ?5 \
     UNION ALL \
     SELECT CAST(title AS BLOB) \
     FROM sessions INDEXED BY idx_sessions_title_unique \
     WHERE title >= ?3 AND title < COALESCE(?4, x'') AND id IS NOT ?5";

/// No id is a blob.
const NO_SESSION: &[u8] = &[0];

/// The session with id ?1 itself would come first.
pub(super) const BY_PREFIX: &str = "SELECT id FROM sessions \
     WHERE id >= ?1 AND id < COALESCE(?2, x'') \
         AND substr(CAST(id AS BLOB), 1, length(CAST(?1 AS BLOB))) = CAST(?1 AS BLOB) \
     ORDER BY id LIMIT ?3";

pub(super) const TIP: &str = include_str!("tip.sql");

pub(super) async fn by_title_or_number(
    reader: &mut ReadGuard,
    title: &str,
) -> Result<Option<SessionId>> {
    let Range { first, end } = Range::of_numbered(title);
    let query = || {
        sqlx::query(TITLE_AND_NUMBERED)
            .bind(title)
            .bind(first.as_str())
            .bind(end.as_deref())
    };
    let mut best = None;
    reader
        .each(query, |row| {
            let found = title_at(row, 1);
            let number = match split(&found) {
                (base, Some(number)) if base == title => Some(number),
                _ if found == title => None,
                _ => return,
            };
            // Of `#7` and `#007` the shorter one.
            let rank = (number, Reverse(found.len()));
            if best.as_ref().is_none_or(|(before, _)| *before < rank) {
                best = Some((rank, id_at(row, 0)));
            }
        })
        .await?;
    Ok(best.map(|(_, id)| id))
}

pub(super) async fn next_title(reader: &mut ReadGuard, title: &str) -> Result<String> {
    let (base, plain, Range { first, end }) = lineage(title);
    let query = || {
        sqlx::query(LINEAGE)
            .bind(base)
            .bind(plain)
            .bind(first.as_str())
            .bind(end.as_deref())
            .bind(NO_SESSION)
    };
    let mut taken = Vec::new();
    reader
        .each(query, |row| {
            taken.push(title_at(row, 0));
        })
        .await?;
    Ok(next_in_lineage(title, taken.iter().map(String::as_str)))
}

pub(super) async fn by_prefix(reader: &mut ReadGuard, prefix: &str) -> Result<Resolved> {
    if prefix.is_empty() {
        return Ok(Resolved::None);
    }
    let Range { first, end } = Range::of_prefix(prefix);
    let query = || {
        sqlx::query(BY_PREFIX)
            .bind(first.as_str())
            .bind(end.as_deref())
            .bind(MAX_CANDIDATES)
    };
    let mut found = Vec::new();
    reader.each(query, |row| found.push(id_at(row, 0))).await?;
    let is_exact = found.first().is_some_and(|id| id.as_str() == prefix);
    if found.len() > 1 && !is_exact {
        return Ok(Resolved::Several(found));
    }
    Ok(found
        .into_iter()
        .next()
        .map_or(Resolved::None, Resolved::One))
}

pub(super) async fn tip(reader: &mut ReadGuard, session: &SessionId) -> Result<Option<SessionId>> {
    let query = || sqlx::query(TIP).bind(session.as_str());
    let mut tip = None;
    reader.each(query, |row| tip = Some(id_at(row, 0))).await?;
    Ok(tip)
}

/// The statements select titles as blobs that are not NULL.
fn title_at(row: &sqlx::sqlite::SqliteRow, index: usize) -> String {
    text(sqlx::Row::try_get(row, index).unwrap_or_default())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
