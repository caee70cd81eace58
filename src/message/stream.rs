//! A transcript that does not fit in memory.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::future::BoxFuture;

use super::Message;
use super::read::{self, MessageRange};
use crate::db::readers::Length;
use crate::error::Result;
use crate::id::{MessageId, SessionId};
use crate::store::SessionStore;

/// Messages of one page.
const PAGE: usize = 256;

/// The messages of a session, read page by page. Made by
/// [`SessionStore::message_stream`].
///
/// Between two pages nothing is held in the database, however slowly the stream is consumed. The
/// stream ends with the message that was the last one when it began.
#[must_use = "streams do nothing unless polled"]
pub struct MessageStream {
    store: SessionStore,
    session: SessionId,
    /// The message that was returned last.
    after: Option<MessageId>,
    /// Greatest id to be returned; known after the first page.
    end: Option<MessageId>,
    page: VecDeque<Message>,
    state: State,
}

enum State {
    Idle,
    Reading(BoxFuture<'static, Result<(Option<MessageId>, Vec<Message>)>>),
    Done,
}

impl MessageStream {
    pub(super) fn new(store: SessionStore, session: SessionId) -> Self {
        Self {
            store,
            session,
            after: None,
            end: None,
            page: VecDeque::new(),
            state: State::Idle,
        }
    }

    fn next_page(&self) -> BoxFuture<'static, Result<(Option<MessageId>, Vec<Message>)>> {
        let (store, session) = (self.store.clone(), self.session.clone());
        let (after, end) = (self.after, self.end);
        Box::pin(async move {
            let read = store.read(Length::Long)?;
            read.run(async {
                let mut reader = read.statements();
                let end = match end {
                    Some(end) => Some(end),
                    None => read::last_id(&mut reader, &session).await?,
                };
                let Some(last) = end else {
                    return Ok((None, Vec::new()));
                };
                let mut range = MessageRange::first(PAGE).until(last);
                if let Some(after) = after {
                    range = range.after(after);
                }
                Ok((end, read::page(&mut reader, &session, range).await?))
            })
            .await
        })
    }
}

impl Stream for MessageStream {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.page.pop_front() {
                self.after = Some(message.id);
                return Poll::Ready(Some(Ok(message)));
            }
            match &mut self.state {
                State::Idle => self.state = State::Reading(self.next_page()),
                State::Reading(page) => match ready!(page.as_mut().poll(context)) {
                    Ok((end, page)) => {
                        self.end = end;
                        self.state = if page.len() < PAGE {
                            State::Done
                        } else {
                            State::Idle
                        };
                        self.page = page.into();
                    }
                    Err(error) => {
                        self.state = State::Done;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                State::Done => return Poll::Ready(None),
            }
        }
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageStream")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
