//! Sessions: their life from creation to end.

mod count;
mod delete;
mod prune;
mod row;
mod write;

use std::fmt;

use crate::db::leftovers::{Budget, Left, RemoveLeftovers};
use crate::db::queue::Operation;
use crate::db::readers::Length;
use crate::error::{Error, Result};
use crate::id::SessionId;
use crate::json::Json;
use crate::store::SessionStore;
use crate::time::Timestamp;
use delete::Delete;
use write::{Change, Create, End, Ensure, Made, Update};

#[cfg(test)]
pub(crate) use row::FIND_BY_TITLE;
pub(crate) use row::{find_by_title, id_at};
pub(crate) use write::ensure_exists;

pub use count::Scope;
pub use prune::{PruneAge, PruneMode, PruneOptions, PruneReport};
pub use row::{EndReason, Session};

/// The source of a session that was made by [`SessionStore::ensure_session`] without one.
pub(crate) const UNKNOWN_SOURCE: &str = "unknown";

/// A session to be created.
///
/// ```
/// use hermes_state::{Json, NewSession};
///
/// let session = NewSession::new("telegram")
///     .user_id("4711")
///     .model("claude-sonnet-4")
///     .model_config(Json::parse(r#"{"temperature":0.2}"#)?)
///     .system_prompt("You are a helpful assistant.");
/// # Ok::<(), hermes_state::Error>(())
/// ```
///
/// `Debug` does not show the system prompt.
#[derive(Clone)]
#[must_use]
pub struct NewSession {
    id: Option<SessionId>,
    source: String,
    user_id: Option<String>,
    model: Option<String>,
    model_config: Option<Json>,
    system_prompt: Option<String>,
    parent: Option<SessionId>,
    started_at: Option<Timestamp>,
}

impl NewSession {
    /// A session that comes from `source`: the platform, such as `cli` or `telegram`.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            id: None,
            source: source.into(),
            user_id: None,
            model: None,
            model_config: None,
            system_prompt: None,
            parent: None,
            started_at: None,
        }
    }

    /// Its id. Default: a new one.
    pub fn id(mut self, id: SessionId) -> Self {
        self.id = Some(id);
        self
    }

    /// Whose session it is, by the platform's id.
    pub fn user_id(mut self, user: impl Into<String>) -> Self {
        self.user_id = Some(user.into());
        self
    }

    /// The model's name.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The model's parameters.
    pub fn model_config(mut self, config: Json) -> Self {
        self.model_config = Some(config);
        self
    }

    /// The system prompt, as assembled.
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.system_prompt = Some(prompt.into());
        self
    }

    /// The session that this one continues or branches from.
    pub fn parent(mut self, parent: SessionId) -> Self {
        self.parent = Some(parent);
        self
    }

    /// When it started. Default: when the store is called.
    pub const fn started_at(mut self, time: Timestamp) -> Self {
        self.started_at = Some(time);
        self
    }
}

impl fmt::Debug for NewSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSession")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

impl SessionStore {
    /// Creates a session, and returns its id.
    ///
    /// Safe to repeat: a session that exists keeps every value that it has. Only what it does not
    /// have yet is filled in, and the source if it is `unknown`, so that a session made by
    /// [`ensure_session`](Self::ensure_session) gets completed. Where a session of this id was just
    /// deleted, the call waits until all its messages are removed.
    ///
    /// # Errors
    ///
    /// - [`Error::ParentNotFound`]: the parent does not exist.
    /// - [`Error::LineageCycle`]: the parent is the session itself or descends from it.
    /// - [`Error::InvalidInput`]: the source is empty.
    /// - [`Error::MessageTooLarge`]: its texts are over the limit for messages.
    /// - [`Error::Overloaded`], [`Error::Busy`]: nothing was stored; try again later.
    /// - [`Error::OutcomeUnknown`]: call again.
    /// - [`Error::DiskFull`] and the other errors of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either created or not.
    #[tracing::instrument(level = "debug", skip_all, fields(source = %session.source))]
    pub async fn create_session(&self, session: NewSession) -> Result<SessionId> {
        let NewSession {
            id,
            source,
            user_id,
            model,
            model_config,
            system_prompt,
            parent,
            started_at,
        } = session;
        let create = Create {
            id: id.unwrap_or_else(SessionId::generate),
            source: valid_source(source)?,
            user_id,
            model,
            model_config: model_config.map(|config| config.as_str().to_owned()),
            system_prompt,
            parent,
            started_at: started_at.unwrap_or_else(Timestamp::now).as_unix_seconds(),
        };
        self.fits(create.bytes())?;
        let id = create.id.clone();
        self.make(create, &id).await?;
        Ok(id)
    }

    /// Makes sure that a session exists, before messages are appended to it: makes a minimal one
    /// with source `unknown` if it does not, and changes nothing if it does.
    /// [`create_session`](Self::create_session) completes it later.
    ///
    /// # Errors
    ///
    /// Those of every write: see [`create_session`](Self::create_session).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either made or not.
    pub async fn ensure_session(&self, id: &SessionId) -> Result<()> {
        self.ensure_session_from(id, UNKNOWN_SOURCE).await
    }

    /// [`ensure_session`](Self::ensure_session), with a known source.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for an empty source, [`Error::MessageTooLarge`] for one over the limit
    /// for messages, and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either made or not.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn ensure_session_from(&self, id: &SessionId, source: &str) -> Result<()> {
        let source = valid_source(source.to_owned())?;
        let started_at = Timestamp::now().as_unix_seconds();
        let ensure = Ensure {
            id: id.clone(),
            source,
            started_at,
        };
        self.fits(ensure.bytes())?;
        self.make(ensure, id).await
    }

    /// The session with this id, `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`] and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_session")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn session(&self, id: &SessionId) -> Result<Option<Session>> {
        let read = self.read(Length::Short)?;
        read.run(async { row::find(&mut read.statements(), id).await })
            .await
    }

    /// Ends a session, for a reason. The first reason wins: a session that has ended stays as it
    /// is. Returns whether this call ended it.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`], [`Error::MessageTooLarge`] for a reason over the limit for
    /// messages, and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either ended or not.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn end_session(
        &self,
        id: &SessionId,
        reason: impl Into<EndReason> + Send,
    ) -> Result<bool> {
        let reason = reason.into().as_str().to_owned();
        let ended_at = Timestamp::now().as_unix_seconds();
        let end = End {
            id: id.clone(),
            ended_at,
            reason,
        };
        self.fits(end.bytes())?;
        self.write(end).await
    }

    /// Opens a session that has ended again: clears when and why it ended. A session that is open
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`], and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either reopened or not.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn reopen_session(&self, id: &SessionId) -> Result<()> {
        let change = Change::Reopen;
        let id = id.clone();
        self.write(Update { id, change }).await
    }

    /// Deletes a session with all its messages, and returns whether it existed. Sessions that
    /// continue or branch from it stay, without a parent.
    ///
    /// The session, its title and its messages are gone for every reader when the call returns. Of
    /// a long one only the first 1,000 messages (256 KiB of text) are removed from the file by
    /// then; the rest goes in the background in pieces of at most this size, so that other writes pass,
    /// and before [`close`](Self::close) ends. If the process is killed, the next program that opens
    /// the store removes it.
    ///
    /// # Errors
    ///
    /// Those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the session either there or deleted.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn delete_session(&self, id: &SessionId) -> Result<bool> {
        self.write(Delete { id: id.clone() }).await
    }

    /// Replaces the stored system prompt of a session.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`], [`Error::MessageTooLarge`], and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old prompt or the new one.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn update_system_prompt(
        &self,
        id: &SessionId,
        prompt: impl Into<String> + Send,
    ) -> Result<()> {
        let set = Update {
            id: id.clone(),
            change: Change::SystemPrompt(prompt.into()),
        };
        self.fits(set.bytes())?;
        self.write(set).await
    }

    /// Replaces the stored model of a session.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`], [`Error::MessageTooLarge`], and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old model or the new one.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn set_model(&self, id: &SessionId, model: impl Into<String> + Send) -> Result<()> {
        let set = Update {
            id: id.clone(),
            change: Change::Model(model.into()),
        };
        self.fits(set.bytes())?;
        self.write(set).await
    }

    /// How many sessions there are.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`] and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn session_count(&self, scope: Scope<'_>) -> Result<u64> {
        let read = self.read(Length::Long)?;
        read.run(async { count::sessions(&mut read.statements(), scope).await })
            .await
    }

    /// How many messages are stored, counted now.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`] and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn message_count(&self, scope: Scope<'_>) -> Result<u64> {
        let read = self.read(Length::Long)?;
        read.run(async { count::messages(&mut read.statements(), scope).await })
            .await
    }

    /// Makes a session, once nothing of a deleted one with its id is left.
    async fn make(
        &self,
        operation: impl Operation<Output = Made> + Clone,
        id: &SessionId,
    ) -> Result<()> {
        while self.write(operation.clone()).await? == Made::AfterLeftovers {
            let session = Some(id.as_str().to_owned());
            let remove = || RemoveLeftovers {
                session: session.clone(),
                budget: Budget::new(),
            };
            while self.write(remove()).await? == Left::More {}
        }
        Ok(())
    }

    /// Texts of a session are held to the same limit as a message.
    pub(crate) fn fits(&self, bytes: usize) -> Result<()> {
        let limit = self.options().message_limit;
        if bytes > limit {
            return Err(Error::MessageTooLarge { bytes, limit });
        }
        Ok(())
    }
}

fn valid_source(source: String) -> Result<String> {
    if source.is_empty() {
        return Err(Error::invalid("source", "must not be empty"));
    }
    Ok(source)
}
