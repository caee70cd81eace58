//! Messages: appending, replacing and reading transcripts.

mod append;
mod content;
mod conversation;
mod insert;
mod load;
mod new;
mod read;
mod role;
mod stream;

use crate::db::readers::Length;
use crate::error::Result;
use crate::id::{MessageId, SessionId};
use crate::store::SessionStore;
use append::{Append, Clear, Replace};
use new::{Row, valid_key};

pub use content::Content;
pub use conversation::{Chat, ChatMessage, Conversation, ConversationMessage, StoredMessage};
pub use new::{NewMessage, Turn};
pub use read::{Message, MessageRange};
pub use role::Role;
pub use stream::MessageStream;

/// What an append stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// Ids of the messages, in their order.
    pub ids: Vec<MessageId>,
    /// Whether the key was seen before: nothing was stored, and the ids are those of the first
    /// append.
    pub repeated: bool,
}

impl Appended {
    /// Id of the last message; what [`Turn::expect_last`] takes next time. `None` for an empty turn.
    pub fn last_id(&self) -> Option<MessageId> {
        self.ids.last().copied()
    }
}

impl SessionStore {
    /// Stores a message at the end of a session's transcript, and counts it.
    ///
    /// Appending to a session that has ended is allowed and does not reopen it.
    ///
    /// # Errors
    ///
    /// - [`Error::SessionNotFound`](crate::Error::SessionNotFound): create the session first.
    /// - [`Error::InvalidInput`](crate::Error::InvalidInput),
    ///   [`Error::MessageTooLarge`](crate::Error::MessageTooLarge): the message is not allowed.
    /// - [`Error::Overloaded`](crate::Error::Overloaded), [`Error::Busy`](crate::Error::Busy):
    ///   nothing was stored; try again later.
    /// - [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): append again with the same
    ///   [key](NewMessage::key).
    /// - [`Error::DiskFull`](crate::Error::DiskFull) and the other errors of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the message either wholly stored or absent.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn append_message(
        &self,
        session: &SessionId,
        mut message: NewMessage,
    ) -> Result<Appended> {
        let key = message.key.take();
        self.append_turn(
            session,
            Turn {
                messages: vec![message],
                key,
                expected: None,
                usage: None,
            },
        )
        .await
    }

    /// Stores the messages of a turn at the end of a session's transcript, in order, and adds its
    /// usage to the session's; all or nothing.
    ///
    /// # Errors
    ///
    /// Those of [`append_message`](Self::append_message) and, with usage, of
    /// [`record_usage`](Self::record_usage), and [`Error::Conflict`](crate::Error::Conflict) if the
    /// transcript does not end where the turn expects it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the turn either wholly stored or absent.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn append_turn(&self, session: &SessionId, turn: Turn) -> Result<Appended> {
        let rows = self.rows(turn.messages)?;
        let key = turn.key.map(valid_key).transpose()?;
        if let Some(usage) = &turn.usage {
            usage.check()?;
            self.fits(usage.bytes())?;
        }
        let session = session.clone();
        self.write(Append {
            session,
            rows,
            key,
            expected: turn.expected,
            usage: turn.usage,
        })
        .await
    }

    /// Deletes a session's transcript and sets both its counters to zero; the session stays.
    /// Returns how many messages there were.
    ///
    /// The write lock is held for the whole transcript.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`](crate::Error::SessionNotFound), and those of every write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transcript either whole or empty.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn clear_messages(&self, session: &SessionId) -> Result<u64> {
        self.write(Clear {
            session: session.clone(),
        })
        .await
    }

    /// Puts new messages in the place of a session's transcript, all or none: compression in
    /// place. Returns the new ids.
    ///
    /// The write lock is held for the old and the new transcript.
    ///
    /// # Errors
    ///
    /// [`Error::SessionNotFound`](crate::Error::SessionNotFound), and those of
    /// [`append_message`](Self::append_message).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old transcript or the new one.
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn replace_transcript(
        &self,
        session: &SessionId,
        messages: impl IntoIterator<Item = NewMessage> + Send,
    ) -> Result<Vec<MessageId>> {
        let rows = self.rows(messages)?;
        self.write(Replace {
            session: session.clone(),
            rows,
        })
        .await
    }

    /// Messages of a session, in the order of the transcript. None for a session that does not
    /// exist: [`session`](Self::session) tells the difference.
    ///
    /// A row that another program left with broken JSON or invalid UTF-8 is read as far as
    /// possible, with a warning.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`](crate::Error::ReadTimeout) and those of the disk.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_messages")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn messages(&self, session: &SessionId, range: MessageRange) -> Result<Vec<Message>> {
        let read = self.read(Length::Short)?;
        read.run(async { read::page(&mut read.statements(), session, range).await })
            .await
    }

    /// All messages of a session, for transcripts that do not fit in memory.
    ///
    /// Each page is a read of its own: messages that are deleted meanwhile may be missing, those
    /// that are appended after the stream began are not returned.
    ///
    /// ```
    /// # use futures_util::TryStreamExt as _;
    /// # use hermes_state::{NewMessage, NewSession, StoreOptions};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let id = store.create_session(NewSession::new("cli")).await?;
    /// # store.append_message(&id, NewMessage::user("hello")).await?;
    /// let mut messages = store.message_stream(&id);
    /// while let Some(message) = messages.try_next().await? {
    ///     assert_eq!(message.content, Some("hello".into()));
    /// }
    /// # Ok::<(), hermes_state::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn message_stream(&self, session: &SessionId) -> MessageStream {
        MessageStream::new(self.clone(), session.clone())
    }

    /// The transcript of a session as a conversation, to be sent to a model again.
    ///
    /// ```
    /// # use hermes_state::{NewMessage, NewSession, StoreOptions};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let id = store.create_session(NewSession::new("cli")).await?;
    /// store.append_message(&id, NewMessage::user("hello")).await?;
    /// let conversation = store.conversation(&id).await?;
    /// let request = serde_json::to_string(&conversation.chat().messages)?;
    /// assert_eq!(request, r#"[{"role":"user","content":"hello"}]"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`messages`](Self::messages).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the read.
    #[doc(alias = "get_messages_as_conversation")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %session))]
    pub async fn conversation(&self, session: &SessionId) -> Result<Conversation> {
        let read = self.read(Length::Short)?;
        read.run(async { load::conversation(&mut read.statements(), session).await })
            .await
    }

    /// Messages as rows, checked; here and not on another thread, so that the queue keeps the order
    /// of the calls.
    fn rows(&self, messages: impl IntoIterator<Item = NewMessage>) -> Result<Vec<Row>> {
        let limit = self.options().message_limit;
        messages
            .into_iter()
            .map(|message| Row::new(message, limit))
            .collect()
    }
}
