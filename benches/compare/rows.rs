//! What is measured, and the figures to reach.

use std::path::Path;

use tempfile::TempDir;

use crate::Result;

/// Sessions that readers choose from.
pub(crate) const READ_SESSIONS: usize = 64;

/// A line of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    pub(crate) place: Place,
    /// Units of work in one turn of a contestant.
    pub(crate) count: u32,
    pub(crate) figure: Figure,
    pub(crate) goals: Goals,
}

/// One unit of it is measured.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// One message by one task.
    Append,
    /// One message; so many tasks append at the same time, each to a session of its own.
    AppendTasks { tasks: usize },
    /// A turn of five messages by one task.
    Turn,
    /// Loading a conversation.
    Load { messages: usize },
    /// Loading a conversation; so many tasks load at the same time.
    LoadTasks { tasks: usize, messages: usize },
}

/// Where the database is, and with what durability.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On disk, each commit synced.
    Disk,
    /// In memory where there is such a folder, commits not synced.
    Memory,
}

impl Place {
    pub(crate) fn folder(self, disk: &Path) -> Result<TempDir> {
        let memory = Path::new("/dev/shm");
        let parent = match self {
            Self::Memory if memory.is_dir() => memory,
            _ => {
                std::fs::create_dir_all(disk)?;
                disk
            }
        };
        Ok(tempfile::Builder::new()
            .prefix("hermes-bench")
            .tempdir_in(parent)?)
    }
}

/// How times are shown and compared.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    /// Time of one; the ratio is ours to theirs, small is good.
    Time,
    /// Rows a second, so many rows in one; the ratio is ours to theirs, great is good.
    Rate { rows: u32 },
}

/// Ratios to reach, `None` where there is no goal.
pub(crate) struct Goals {
    pub(crate) raw: Option<f64>,
    pub(crate) python: Option<f64>,
}

/// All rows.
pub(crate) fn all() -> Vec<Row> {
    let conversation = |name, messages, count, goal| Row {
        name,
        work: Work::Load { messages },
        place: Place::Memory,
        count,
        figure: Figure::Time,
        goals: Goals {
            raw: None,
            python: Some(goal),
        },
    };
    vec![
        Row {
            name: "append, 1 task, FULL, disk, p50",
            work: Work::Append,
            place: Place::Disk,
            count: 300,
            figure: Figure::Time,
            goals: Goals {
                raw: Some(1.35),
                python: None,
            },
        },
        Row {
            name: "append, 1 task, NORMAL, memory, p50",
            work: Work::Append,
            place: Place::Memory,
            count: 1_000,
            figure: Figure::Time,
            goals: Goals {
                raw: Some(2.2),
                python: None,
            },
        },
        Row {
            name: "append, 64 tasks, FULL, disk",
            work: Work::AppendTasks { tasks: 64 },
            place: Place::Disk,
            count: 3_200,
            figure: Figure::Rate { rows: 1 },
            goals: Goals {
                raw: Some(0.75),
                python: Some(5.0),
            },
        },
        Row {
            name: "turn of 5 messages, NORMAL, memory",
            work: Work::Turn,
            place: Place::Memory,
            count: 300,
            figure: Figure::Rate { rows: 5 },
            goals: Goals {
                raw: Some(0.63),
                python: Some(1.5),
            },
        },
        conversation("conversation of 20 messages, p50", 20, 300, 2.0),
        conversation("conversation of 1,000 messages, p50", 1_000, 20, 0.8),
        conversation("conversation of 10,000 messages, p50", 10_000, 4, 0.8),
        Row {
            name: "8 tasks reading 20 messages each",
            work: Work::LoadTasks {
                tasks: 8,
                messages: 20,
            },
            place: Place::Memory,
            count: 1_600,
            figure: Figure::Rate { rows: 1 },
            goals: Goals {
                raw: None,
                python: Some(1.0),
            },
        },
    ]
}

impl Row {
    /// Sessions that the work needs, and how many messages each holds before it begins.
    pub(crate) fn sessions(&self) -> (usize, usize) {
        match self.work {
            Work::Append | Work::Turn => (1, 0),
            Work::AppendTasks { tasks } => (tasks, 0),
            Work::Load { messages } => (1, messages),
            Work::LoadTasks { messages, .. } => (READ_SESSIONS, messages),
        }
    }
}
