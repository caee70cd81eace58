//! The store as an agent uses it: tasks of a tokio runtime that await each call.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hermes_state::{
    Durability, Json, NewMessage, NewSession, Role, SessionId, SessionStore, StoreOptions, Turn,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{mean_of, median_of};
use crate::rows::{Place, Row, Work};
use crate::workload::{Message, TURN, Workload};
use crate::{Contestant, Result};

/// A store with all defaults but durability.
pub(crate) struct Ours {
    runtime: Runtime,
    workload: Arc<Workload>,
    store: Option<SessionStore>,
    sessions: Vec<SessionId>,
    stored: usize,
}

impl Ours {
    pub(crate) fn new(workload: &Workload) -> Result<Self> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?,
            workload: Arc::new(workload.clone()),
            store: None,
            sessions: Vec::new(),
            stored: 0,
        })
    }

    /// Runs one share of the work in each of `tasks` tasks; gives the time of all together and the
    /// single times.
    fn spread<F>(
        &self,
        tasks: usize,
        share: impl Fn(usize, SessionStore) -> F,
    ) -> Result<(Duration, Vec<Duration>)>
    where
        F: Future<Output = Result<Vec<Duration>>> + Send + 'static,
    {
        let store = self.store.as_ref().ok_or("not open")?;
        let shares: Vec<F> = (0..tasks).map(|task| share(task, store.clone())).collect();
        self.runtime.block_on(async {
            let start = Instant::now();
            let mut running: JoinSet<_> = shares.into_iter().collect();
            let mut times = Vec::new();
            while let Some(ended) = running.join_next().await {
                times.extend(ended??);
            }
            Ok((start.elapsed(), times))
        })
    }

    fn append(&mut self, tasks: usize, count: u32) -> Result<(Duration, Vec<Duration>)> {
        let each = usize::try_from(count)? / tasks;
        let first = self.stored;
        self.stored += each * tasks;
        self.spread(tasks, |task, store| {
            let workload = Arc::clone(&self.workload);
            let session = self.session(task);
            async move {
                let session = session?;
                let mut times = Vec::with_capacity(each);
                for message in workload.from(first + task * each, each) {
                    // What the others do inside the measured time, we do too: make the JSON.
                    let start = Instant::now();
                    store
                        .append_message(&session, new_message(message)?)
                        .await?;
                    times.push(start.elapsed());
                }
                Ok(times)
            }
        })
    }

    fn turns(&mut self, count: u32) -> Result<(Duration, Vec<Duration>)> {
        let first = self.stored;
        self.stored += usize::try_from(count)? * TURN;
        self.spread(1, |task, store| {
            let workload = Arc::clone(&self.workload);
            let session = self.session(task);
            async move {
                let session = session?;
                for turn in 0..usize::try_from(count)? {
                    append_turn(&store, &session, &workload, first + turn * TURN).await?;
                }
                Ok(Vec::new())
            }
        })
    }

    fn load(&self, tasks: usize, messages: usize, count: u32) -> Result<(Duration, Vec<Duration>)> {
        let each = usize::try_from(count)? / tasks;
        self.spread(tasks, |task, store| {
            // Each task begins elsewhere and goes round.
            let from = self.sessions.iter().cycle().skip(task * each);
            let chosen: Vec<SessionId> = from.take(each).cloned().collect();
            async move {
                let mut times = Vec::with_capacity(chosen.len());
                for session in &chosen {
                    let start = Instant::now();
                    let conversation = store.conversation(session).await?;
                    times.push(start.elapsed());
                    if conversation.messages.len() != messages {
                        return Err("a conversation is not complete".into());
                    }
                }
                Ok(times)
            }
        })
    }

    fn session(&self, task: usize) -> Result<SessionId> {
        Ok(self.sessions.get(task).ok_or("too few sessions")?.clone())
    }
}

impl Contestant for Ours {
    fn open(&mut self, row: &Row, folder: &Path) -> Result<()> {
        let path = folder.join("state.db");
        let durability = match row.place {
            Place::Disk => Durability::Full,
            Place::Memory => Durability::Normal,
        };
        let (sessions, messages) = row.sessions();
        let workload = Arc::clone(&self.workload);
        let (store, sessions) = self.runtime.block_on(async {
            let options = StoreOptions::new().durability(durability);
            let store = options.open(path).await?;
            let mut ids = Vec::new();
            for _ in 0..sessions {
                let id = store.create_session(NewSession::new("bench")).await?;
                for first in (0..messages).step_by(TURN) {
                    append_turn(&store, &id, &workload, first).await?;
                }
                ids.push(id);
            }
            Result::Ok((store, ids))
        })?;
        self.store = Some(store);
        self.sessions = sessions;
        Ok(())
    }

    fn run(&mut self, work: Work, count: u32) -> Result<f64> {
        let (together, single) = match work {
            Work::Append => self.append(1, count)?,
            Work::AppendTasks { tasks } => self.append(tasks, count)?,
            Work::Turn => self.turns(count)?,
            Work::Load { messages } => self.load(1, messages, count)?,
            Work::LoadTasks { tasks, messages } => self.load(tasks, messages, count)?,
        };
        Ok(match work {
            Work::Append | Work::Load { .. } => median_of(&single),
            _ => mean_of(together, count),
        })
    }

    fn close(&mut self) -> Result<()> {
        if let Some(store) = self.store.take() {
            self.runtime.block_on(store.close())?;
        }
        Ok(())
    }
}

async fn append_turn(
    store: &SessionStore,
    session: &SessionId,
    workload: &Workload,
    first: usize,
) -> Result<()> {
    let messages = workload
        .from(first, TURN)
        .map(new_message)
        .collect::<hermes_state::Result<Vec<_>>>()?;
    store.append_turn(session, Turn::new(messages)).await?;
    Ok(())
}

fn new_message(from: &Message) -> hermes_state::Result<NewMessage> {
    let mut message = NewMessage::new(Role::from(from.role)).token_count(from.token_count.into());
    if let Some(content) = &from.content {
        message = message.content(content.as_str());
    }
    if let Some(id) = &from.tool_call_id {
        message = message.tool_call_id(id);
    }
    if let Some(calls) = &from.tool_calls {
        message = message.tool_calls(Json::parse(calls.as_str())?);
    }
    if let Some(name) = from.tool_name {
        message = message.tool_name(name);
    }
    if let Some(reason) = from.finish_reason {
        message = message.finish_reason(reason);
    }
    if let Some(reasoning) = &from.reasoning {
        message = message.reasoning(reasoning);
    }
    if let Some(details) = &from.reasoning_details {
        message = message.reasoning_details(Json::parse(details.as_str())?);
    }
    Ok(message)
}
