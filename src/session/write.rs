//! The writes.

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use super::UNKNOWN_SOURCE;
use crate::db::queue::{Fault, Operation};
use crate::error::{Error, Result};
use crate::id::SessionId;

/// Whether a session could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// It is there.
    Yes,
    /// Messages of a deleted session with this id must be removed first.
    AfterLeftovers,
}

/// Creates a session, or fills in what an existing one does not have.
#[derive(Clone)]
pub(super) struct Create {
    pub(super) id: SessionId,
    pub(super) source: String,
    pub(super) user_id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) model_config: Option<String>,
    pub(super) system_prompt: Option<String>,
    pub(super) parent: Option<SessionId>,
    pub(super) started_at: f64,
}

impl Operation for Create {
    type Output = Made;

    fn bytes(&self) -> usize {
        let optional = [
            &self.user_id,
            &self.model,
            &self.model_config,
            &self.system_prompt,
        ];
        let parent = self
            .parent
            .as_ref()
            .map_or(0, |parent| parent.as_str().len());
        self.id.as_str().len()
            + self.source.len()
            + parent
            + optional
                .into_iter()
                .flatten()
                .map(String::len)
                .sum::<usize>()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Made, Fault>> {
        Box::pin(async move {
            let id = self.id.as_str();
            if let Some(parent) = &self.parent {
                self.check_parent(connection, parent).await?;
            }
            let parent = self.parent.as_ref().map(SessionId::as_str);
            let made = sqlx::query!(
                "INSERT INTO sessions(id, source, user_id, model, model_config, system_prompt,
                     parent_session_id, started_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
                 WHERE NOT EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = ?1)
                 ON CONFLICT(id) DO UPDATE SET
                     source = CASE WHEN source = ?9 THEN excluded.source ELSE source END,
                     user_id = COALESCE(user_id, excluded.user_id),
                     model = COALESCE(model, excluded.model),
                     model_config = COALESCE(model_config, excluded.model_config),
                     system_prompt = COALESCE(system_prompt, excluded.system_prompt),
                     parent_session_id = COALESCE(parent_session_id, excluded.parent_session_id)",
                id,
                self.source,
                self.user_id,
                self.model,
                self.model_config,
                self.system_prompt,
                parent,
                self.started_at,
                UNKNOWN_SOURCE,
            )
            .execute(connection)
            .await?;
            Ok(if made.rows_affected() == 0 {
                Made::AfterLeftovers
            } else {
                Made::Yes
            })
        })
    }
}

impl Create {
    /// Fails if the parent does not exist, or if the session would become its own ancestor.
    async fn check_parent(
        &self,
        connection: &mut SqliteConnection,
        parent: &SessionId,
    ) -> Result<(), Fault> {
        let (id, parent_id) = (self.id.as_str(), parent.as_str());
        // UNION, not UNION ALL: a cycle that another program left must not be walked for ever.
        let found = sqlx::query!(
            r#"WITH RECURSIVE ancestors(id) AS (
                   SELECT id FROM sessions WHERE id = ?1
                   UNION
                   SELECT sessions.parent_session_id FROM ancestors
                   JOIN sessions ON sessions.id = ancestors.id
                   WHERE sessions.parent_session_id IS NOT NULL
               )
               SELECT (SELECT COUNT(*) FROM ancestors) AS "ancestors!: i64",
                   EXISTS (SELECT 1 FROM ancestors WHERE id = ?2) AS "cycle!: bool",
                   EXISTS (SELECT 1 FROM sessions WHERE id = ?2
                       AND parent_session_id IS NOT NULL) AS "kept!: bool""#,
            parent_id,
            id,
        )
        .fetch_one(connection)
        .await?;
        let refusal = if id == parent_id || (found.cycle && !found.kept) {
            Error::LineageCycle {
                id: self.id.clone(),
                parent: parent.clone(),
            }
        } else if found.ancestors == 0 {
            Error::ParentNotFound {
                parent: parent.clone(),
            }
        } else {
            return Ok(());
        };
        Err(refusal.into())
    }
}

/// Makes a minimal session if there is none.
#[derive(Clone)]
pub(super) struct Ensure {
    pub(super) id: SessionId,
    pub(super) source: String,
    pub(super) started_at: f64,
}

impl Operation for Ensure {
    type Output = Made;

    fn bytes(&self) -> usize {
        self.id.as_str().len() + self.source.len()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Made, Fault>> {
        Box::pin(async move {
            let id = self.id.as_str();
            let found = sqlx::query!(
                r#"SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1) AS "there!: bool",
                       EXISTS (SELECT 1 FROM deleted_sessions WHERE session_id = ?1)
                           AS "leftovers!: bool""#,
                id,
            )
            .fetch_one(&mut *connection)
            .await?;
            if found.there {
                return Ok(Made::Yes);
            }
            if found.leftovers {
                return Ok(Made::AfterLeftovers);
            }
            sqlx::query!(
                "INSERT INTO sessions(id, source, started_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT(id) DO NOTHING",
                id,
                self.source,
                self.started_at,
            )
            .execute(connection)
            .await?;
            Ok(Made::Yes)
        })
    }
}

/// Ends a session that has not ended.
pub(super) struct End {
    pub(super) id: SessionId,
    pub(super) ended_at: f64,
    pub(super) reason: String,
}

impl Operation for End {
    type Output = bool;

    fn bytes(&self) -> usize {
        self.id.as_str().len() + self.reason.len()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<bool, Fault>> {
        Box::pin(async move {
            let id = self.id.as_str();
            let ended = sqlx::query!(
                "UPDATE sessions SET ended_at = ?2, end_reason = ?3
                 WHERE id = ?1 AND ended_at IS NULL",
                id,
                self.ended_at,
                self.reason,
            )
            .execute(&mut *connection)
            .await?;
            if ended.rows_affected() == 0 {
                ensure_exists(connection, &self.id).await?;
            }
            Ok(ended.rows_affected() > 0)
        })
    }
}

/// Changes fields of a session.
pub(super) struct Update {
    pub(super) id: SessionId,
    pub(super) change: Change,
}

/// What to change.
pub(super) enum Change {
    /// Opens the session again.
    Reopen,
    SystemPrompt(String),
    Model(String),
}

impl Operation for Update {
    type Output = ();

    fn bytes(&self) -> usize {
        let text = match &self.change {
            Change::Reopen => 0,
            Change::SystemPrompt(text) | Change::Model(text) => text.len(),
        };
        self.id.as_str().len() + text
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let id = self.id.as_str();
            let updated = match &self.change {
                Change::Reopen => {
                    sqlx::query!(
                        "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?1",
                        id,
                    )
                    .execute(connection)
                    .await?
                }
                Change::SystemPrompt(prompt) => {
                    sqlx::query!(
                        "UPDATE sessions SET system_prompt = ?2 WHERE id = ?1",
                        id,
                        prompt
                    )
                    .execute(connection)
                    .await?
                }
                Change::Model(model) => {
                    sqlx::query!("UPDATE sessions SET model = ?2 WHERE id = ?1", id, model)
                        .execute(connection)
                        .await?
                }
            };
            updated_one(updated.rows_affected(), &self.id)
        })
    }
}

fn updated_one(rows: u64, id: &SessionId) -> Result<(), Fault> {
    if rows == 0 {
        return Err(Error::SessionNotFound { id: id.clone() }.into());
    }
    Ok(())
}

/// Fails unless the session exists.
pub(crate) async fn ensure_exists(
    connection: &mut SqliteConnection,
    id: &SessionId,
) -> Result<(), Fault> {
    let key = id.as_str();
    let found = sqlx::query_scalar!(
        r#"SELECT COUNT(*) AS "found!: i64" FROM sessions WHERE id = ?1"#,
        key
    )
    .fetch_one(connection)
    .await?;
    if found == 0 {
        return Err(Error::SessionNotFound { id: id.clone() }.into());
    }
    Ok(())
}
