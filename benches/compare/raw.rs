//! SQLite by hand, as good as it gets on one thread: plain tables of schema version 6, prepared
//! statements, one transaction for all that waits, one statement for all its rows.

use std::path::{Path, PathBuf};
use std::time::Instant;

use hermes_state::Timestamp;
use rusqlite::types::ToSql;
use rusqlite::{Connection, Row as SqlRow, Statement};
use serde_json::Value;

use crate::report::{mean_of, median_of};
use crate::rows::{Place, Row, Work};
use crate::workload::{Message, TURN, Workload};
use crate::{Contestant, Result};

const SCHEMA: &str = include_str!("../raw/schema.sql");
const INSERT_MESSAGE: &str = include_str!("../raw/insert_message.sql");
const COUNT_MESSAGES: &str = include_str!("../raw/count_messages.sql");
const CONVERSATION: &str = include_str!("../raw/conversation.sql");
const COLUMNS: usize = 12;

/// One connection that writes and reads, and one for each reading thread.
pub(crate) struct Raw<'a> {
    workload: &'a Workload,
    connection: Option<Connection>,
    readers: Vec<Connection>,
    sessions: Vec<String>,
    stored: usize,
}

impl<'a> Raw<'a> {
    pub(crate) const fn new(workload: &'a Workload) -> Self {
        Self {
            workload,
            connection: None,
            readers: Vec::new(),
            sessions: Vec::new(),
            stored: 0,
        }
    }
}

impl Contestant for Raw<'_> {
    fn open(&mut self, row: &Row, folder: &Path) -> Result<()> {
        let path = folder.join("state.db");
        let connection = connect(&path, row.place)?;
        connection.execute_batch(SCHEMA)?;
        let (sessions, messages) = row.sessions();
        for number in 0..sessions {
            let id = format!("00000000-0000-4000-8000-{number:012}");
            connection.execute(
                "INSERT INTO sessions (id, source, started_at) VALUES (?1, 'bench', ?2)",
                (&id, Timestamp::now().as_unix_seconds()),
            )?;
            self.sessions.push(id);
        }
        let mut writer = Writer::new(&connection, TURN)?;
        for session in &self.sessions {
            for first in (0..messages).step_by(TURN) {
                writer.append(&[session], &self.turn(first))?;
            }
        }
        drop(writer);
        if let Work::LoadTasks { tasks, .. } = row.work {
            self.readers = (0..tasks)
                .map(|_| connect(&path, row.place))
                .collect::<Result<_>>()?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn run(&mut self, work: Work, count: u32) -> Result<f64> {
        let messages = match work {
            Work::Append | Work::AppendTasks { .. } => 1,
            Work::Turn => TURN,
            Work::Load { .. } => return self.load(count),
            Work::LoadTasks { tasks, messages } => return self.load_tasks(tasks, messages, count),
        };
        let connection = self.connection.as_ref().ok_or("not open")?;
        let waiting = match work {
            Work::AppendTasks { tasks } => tasks,
            _ => 1,
        };
        let mut writer = Writer::new(connection, waiting * messages)?;
        let sessions: Vec<&String> = self.sessions.iter().collect();
        let mut times = Vec::new();
        for _ in (0..count).step_by(waiting) {
            let rows: Vec<&Message> = self
                .workload
                .from(self.stored, waiting * messages)
                .collect();
            let start = Instant::now();
            writer.append(&sessions, &rows)?;
            times.push(start.elapsed());
            self.stored += rows.len();
        }
        Ok(match work {
            Work::Append => median_of(&times),
            _ => mean_of(times.iter().sum(), count),
        })
    }

    fn close(&mut self) -> Result<()> {
        self.readers.clear();
        if let Some(connection) = self.connection.take() {
            connection.close().map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}

impl Raw<'_> {
    fn turn(&self, first: usize) -> Vec<&Message> {
        self.workload.from(first, TURN).collect()
    }

    fn load(&self, count: u32) -> Result<f64> {
        let connection = self.connection.as_ref().ok_or("not open")?;
        let session = self.sessions.first().ok_or("no session")?;
        let mut statement = connection.prepare(CONVERSATION)?;
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            let conversation = conversation(&mut statement, session)?;
            times.push(start.elapsed());
            drop(conversation);
        }
        Ok(median_of(&times))
    }

    fn load_tasks(&mut self, tasks: usize, messages: usize, count: u32) -> Result<f64> {
        let sessions = &self.sessions;
        let each = usize::try_from(count)? / tasks;
        let start = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .readers
                .iter_mut()
                .enumerate()
                .map(|(number, connection)| {
                    scope.spawn(move || -> Result<()> {
                        let mut statement = connection.prepare(CONVERSATION)?;
                        // Each thread begins elsewhere and goes round.
                        let chosen = sessions.iter().cycle().skip(number * each);
                        for session in chosen.take(each) {
                            if conversation(&mut statement, session)?.len() != messages {
                                return Err("a conversation is not complete".into());
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            for thread in threads {
                thread.join().map_err(|_| "a reader panicked")??;
            }
            Result::Ok(())
        })?;
        Ok(mean_of(start.elapsed(), count))
    }
}

/// The settings that the store has too, where they matter for speed.
fn connect(path: &PathBuf, place: Place) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.execute_batch(match place {
        Place::Disk => "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
        Place::Memory => "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
    })?;
    connection.execute_batch(
        // 2,000 pages are the 8 MiB of log after which the store checkpoints.
        "PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;
         PRAGMA wal_autocheckpoint = 2000;",
    )?;
    Ok(connection)
}

/// Statements that append `rows` messages in one transaction.
struct Writer<'c> {
    begin: Statement<'c>,
    insert: Statement<'c>,
    count: Statement<'c>,
    commit: Statement<'c>,
}

impl<'c> Writer<'c> {
    fn new(connection: &'c Connection, rows: usize) -> Result<Self> {
        let row = format!("({})", ["?"; COLUMNS].join(", "));
        let rows = vec![row; rows].join(", ");
        Ok(Self {
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            insert: connection.prepare(&format!("{INSERT_MESSAGE}{rows}"))?,
            count: connection.prepare(COUNT_MESSAGES)?,
            commit: connection.prepare("COMMIT")?,
        })
    }

    /// Spreads `messages` evenly over `sessions`.
    fn append(&mut self, sessions: &[&String], messages: &[&Message]) -> Result<()> {
        let now = Timestamp::now().as_unix_seconds();
        let each = messages.len() / sessions.len();
        self.begin.raw_execute()?;
        let mut first = 1;
        for (session, messages) in sessions.iter().zip(messages.chunks(each)) {
            for message in messages {
                bind(&mut self.insert, first, session, message, now)?;
                first += COLUMNS;
            }
        }
        self.insert.raw_execute()?;
        for (session, messages) in sessions.iter().zip(messages.chunks(each)) {
            let calls: i64 = messages.iter().map(|message| message.calls()).sum();
            self.count
                .execute((session, i64::try_from(messages.len())?, calls))?;
        }
        self.commit.raw_execute()?;
        Ok(())
    }
}

fn bind(
    insert: &mut Statement<'_>,
    first: usize,
    session: &str,
    message: &Message,
    now: f64,
) -> Result<()> {
    let values: [&dyn ToSql; COLUMNS] = [
        &session,
        &message.role,
        &message.content,
        &message.tool_call_id,
        &message.tool_calls,
        &message.tool_name,
        &now,
        &message.token_count,
        &message.finish_reason,
        &message.reasoning,
        &message.reasoning_details,
        &None::<String>,
    ];
    for (index, value) in values.into_iter().enumerate() {
        insert.raw_bind_parameter(first + index, value)?;
    }
    Ok(())
}

/// A message as it goes to a model again.
#[allow(dead_code, reason = "what is measured is that the fields are filled")]
struct Chat {
    role: String,
    content: Option<String>,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    tool_calls: Option<Value>,
    reasoning: Option<String>,
    reasoning_details: Option<String>,
    codex_reasoning_items: Option<String>,
    finish_reason: Option<String>,
}

fn chat(row: &SqlRow<'_>) -> rusqlite::Result<Chat> {
    let tool_calls = row.get_ref(4)?.as_str_or_null()?;
    Ok(Chat {
        role: row.get(0)?,
        content: row.get(1)?,
        tool_call_id: row.get(2)?,
        tool_name: row.get(3)?,
        tool_calls: tool_calls.and_then(|text| serde_json::from_str(text).ok()),
        reasoning: row.get(5)?,
        reasoning_details: row.get(6)?,
        codex_reasoning_items: row.get(7)?,
        finish_reason: row.get(8)?,
    })
}

fn conversation(statement: &mut Statement<'_>, session: &str) -> rusqlite::Result<Vec<Chat>> {
    statement.query_map([session], chat)?.collect()
}
