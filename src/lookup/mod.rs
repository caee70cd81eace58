//! Finding sessions by a title, by the beginning of an id, by what they continue; and titles.

mod find;
#[cfg(test)]
mod plans;
mod range;
mod write;

use crate::db::readers::Length;
use crate::error::Result;
use crate::id::SessionId;
use crate::session::{Session, find_by_title};
use crate::store::SessionStore;
use crate::title::sanitize_title;
use write::{Expected, SetTitle};

/// What to do with a title that another session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TitleClash {
    /// The call fails with [`Error::TitleTaken`](crate::Error::TitleTaken).
    Refuse,
    /// The session gets the next title of the lineage:
    /// [`next_title_in_lineage`](SessionStore::next_title_in_lineage), where its own title does not
    /// count, so that a repeated call stores the same.
    NextNumber,
}

/// Which session a text means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolved {
    /// None.
    None,
    /// This one.
    One(SessionId),
    /// Any of these, or of more: the first ten, in the order of their ids.
    Several(Vec<SessionId>),
}

impl SessionStore {
    /// Gives a session a title, cleaned as by [`sanitize_title`]. What is empty then clears the
    /// title. Returns the title as stored, `None` if it was cleared.
    ///
    /// ```
    /// # use hermes_state::{NewSession, StoreOptions, TitleClash};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let first = store.create_session(NewSession::new("cli")).await?;
    /// # let second = store.create_session(NewSession::new("cli")).await?;
    /// store.set_session_title(&first, "数据库重构", TitleClash::Refuse).await?;
    /// let stored = store
    ///     .set_session_title(&second, "数据库重构", TitleClash::NextNumber)
    ///     .await?;
    /// assert_eq!(stored.as_deref(), Some("数据库重构 #2"));
    /// # Ok::<(), hermes_state::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::TitleTooLong`](crate::Error::TitleTooLong): more than 100 characters.
    /// - [`Error::TitleTaken`](crate::Error::TitleTaken): another session has it; not with
    ///   [`TitleClash::NextNumber`].
    /// - [`Error::SessionNotFound`](crate::Error::SessionNotFound), and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old title or the new one.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn set_session_title(
        &self,
        id: &SessionId,
        title: &str,
        clash: TitleClash,
    ) -> Result<Option<String>> {
        self.set_title(id, Expected::Any, title, clash).await
    }

    /// Like [`set_session_title`](Self::set_session_title), but only while the session's title is
    /// `expected`, exactly; `None`: while it has none. So a title that a program made up does not
    /// overwrite one that a person chose meanwhile.
    ///
    /// ```
    /// # use hermes_state::{Error, NewSession, StoreOptions, TitleClash};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let id = store.create_session(NewSession::new("cli")).await?;
    /// store.set_session_title(&id, "chosen", TitleClash::Refuse).await?;
    /// let automatic = store
    ///     .set_session_title_if(&id, None, "made up", TitleClash::NextNumber)
    ///     .await;
    /// assert!(matches!(automatic, Err(Error::TitleChanged)));
    /// # Ok::<(), hermes_state::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::TitleChanged`](crate::Error::TitleChanged) if it has another title, and those of
    /// [`set_session_title`](Self::set_session_title). Made again after
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), the call finds its own title.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old title or the new one.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn set_session_title_if(
        &self,
        id: &SessionId,
        expected: Option<&str>,
        title: &str,
        clash: TitleClash,
    ) -> Result<Option<String>> {
        let expected = Expected::Exactly(expected.map(str::to_owned));
        self.set_title(id, expected, title, clash).await
    }

    async fn set_title(
        &self,
        id: &SessionId,
        expected: Expected,
        title: &str,
        clash: TitleClash,
    ) -> Result<Option<String>> {
        let title = sanitize_title(title)?;
        self.write(SetTitle {
            session: id.clone(),
            title,
            clash,
            expected,
        })
        .await
    }

    /// The session with exactly this title, `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_session_by_title")]
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn session_by_title(&self, title: &str) -> Result<Option<Session>> {
        let read = self.read(Length::Short)?;
        read.run(async { find_by_title(&mut read.statements(), title).await })
            .await
    }

    /// The session that somebody means who names a title: of those titled `title #number` the one
    /// with the greatest number, else the one with exactly this title. Every character stands for
    /// itself.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn resolve_session_by_title(&self, title: &str) -> Result<Option<SessionId>> {
        let read = self.read(Length::Short)?;
        read.run(async { find::by_title_or_number(&mut read.statements(), title).await })
            .await
    }

    /// The next title for a session that goes on from one titled `title`: without its ` #number`,
    /// if it has one, and with the next number behind the greatest that is taken. A plain title
    /// counts as number 1; if nothing of the lineage is taken, the plain title is returned. At most
    /// 100 characters: the base is shortened, the number is not.
    ///
    /// Nothing is reserved: another session may get the title first.
    /// [`TitleClash::NextNumber`] takes it in one step.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_next_title_in_lineage")]
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn next_title_in_lineage(&self, title: &str) -> Result<String> {
        let read = self.read(Length::Short)?;
        read.run(async { find::next_title(&mut read.statements(), title).await })
            .await
    }

    /// The session with this id, or else the only one whose id begins with it. Case and every
    /// character count. The empty prefix means none.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn resolve_session_id(&self, prefix: &str) -> Result<Resolved> {
        let read = self.read(Length::Short)?;
        read.run(async { find::by_prefix(&mut read.statements(), prefix).await })
            .await
    }

    /// The session in which a compressed conversation goes on: the last of its continuations, the
    /// session itself if it has none, `None` if it does not exist.
    ///
    /// A child continues its parent if the parent ended for
    /// [`EndReason::Compression`](crate::EndReason::Compression) and the child started then or
    /// later; of several the one that started last, then the one with the greatest id. After 1,000
    /// steps the session reached is returned; a chain that comes back to itself ends before it would.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_compression_tip")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn compression_tip(&self, id: &SessionId) -> Result<Option<SessionId>> {
        let read = self.read(Length::Short)?;
        read.run(async { find::tip(&mut read.statements(), id).await })
            .await
    }
}
