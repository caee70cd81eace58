//! Giving a session its title.

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection};

use super::TitleClash;
use super::find::{LINEAGE, text};
use super::range::{Range, lineage};
use crate::db::queue::{Fault, Operation};
use crate::error::Error;
use crate::id::SessionId;
use crate::title::next_in_lineage;

/// Sets, numbers or clears a title.
pub(super) struct SetTitle {
    pub(super) session: SessionId,
    /// `None` clears.
    pub(super) title: Option<String>,
    pub(super) clash: TitleClash,
    pub(super) expected: Expected,
}

/// The title that the session must have.
pub(super) enum Expected {
    Any,
    Exactly(Option<String>),
}

pub(super) const OWNER: &str = "SELECT CAST(COALESCE(id, '') AS BLOB) \
     FROM sessions INDEXED BY idx_sessions_title_unique WHERE title = ?1 AND id IS NOT ?2";

impl Operation for SetTitle {
    type Output = Option<String>;

    fn bytes(&self) -> usize {
        let expected = match &self.expected {
            Expected::Exactly(Some(title)) => title.len(),
            _ => 0,
        };
        self.session.as_str().len() + self.title.as_ref().map_or(0, String::len) + expected
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Option<String>, Fault>> {
        Box::pin(async move {
            let now = self.current(connection).await?;
            if let Expected::Exactly(expected) = &self.expected
                && *expected != now
            {
                return Err(Error::TitleChanged.into());
            }
            let title = match &self.title {
                Some(title) => Some(self.free(connection, title).await?),
                None => None,
            };
            let id = self.session.as_str();
            sqlx::query!("UPDATE sessions SET title = ?2 WHERE id = ?1", id, title)
                .execute(connection)
                .await?;
            Ok(title)
        })
    }
}

impl SetTitle {
    /// The session's title now.
    async fn current(&self, connection: &mut SqliteConnection) -> Result<Option<String>, Fault> {
        let id = self.session.as_str();
        let found = sqlx::query_scalar!(
            r#"SELECT CAST(title AS BLOB) AS "title: Vec<u8>" FROM sessions WHERE id = ?1"#,
            id,
        )
        .fetch_optional(connection)
        .await?;
        match found {
            Some(title) => Ok(title.map(|title| text(&title))),
            None => Err(Error::SessionNotFound {
                id: self.session.clone(),
            }
            .into()),
        }
    }

    /// `title`, or what may be stored in its place.
    async fn free(&self, connection: &mut SqliteConnection, title: &str) -> Result<String, Fault> {
        let id = self.session.as_str();
        let owner = sqlx::query(OWNER)
            .bind(title)
            .bind(id)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(owner) = owner else {
            return Ok(title.to_owned());
        };
        match self.clash {
            TitleClash::Refuse => Err(Error::TitleTaken {
                by: SessionId::from_row(text(owner.try_get(0)?)),
            }
            .into()),
            TitleClash::NextNumber => {
                let (base, plain, Range { first, end }) = lineage(title);
                let rows = sqlx::query(LINEAGE)
                    .bind(base)
                    .bind(plain)
                    .bind(first)
                    .bind(end)
                    .bind(id)
                    .fetch_all(connection)
                    .await?;
                let taken = rows
                    .iter()
                    .map(|row| row.try_get(0).map(text))
                    .collect::<sqlx::Result<Vec<String>>>()?;
                Ok(next_in_lineage(title, taken.iter().map(String::as_str)))
            }
        }
    }
}
