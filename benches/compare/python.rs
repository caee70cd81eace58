//! The Python original's design, in a process of its own that takes one command a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::rows::{Place, Row, Work};
use crate::workload::Workload;
use crate::{Contestant, Result};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/python/driver.py");

/// The process and its pipes.
pub(crate) struct Python {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    /// Starts the process; it reads the messages from a file in `folder`.
    pub(crate) fn start(workload: &Workload, folder: &Path) -> Result<Self> {
        let messages = folder.join("messages.jsonl");
        std::fs::write(&messages, workload.to_jsonl()?)?;
        let mut child = Command::new("python3")
            .arg("-B")
            .arg(DRIVER)
            .arg(messages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("python3 does not start: {error}"))?;
        let commands = child.stdin.take().ok_or("no pipe to Python")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe from Python")?);
        Ok(Self {
            child,
            commands,
            answers,
        })
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.commands, "{command}")?;
        self.commands.flush()?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(format!("Python ended at `{command}`").into());
        }
        Ok(answer.trim_end().to_owned())
    }
}

impl Contestant for Python {
    fn open(&mut self, row: &Row, folder: &Path) -> Result<()> {
        let path = folder.join("state.db");
        let path = path.to_str().ok_or("the folder's name is not UTF-8")?;
        let durability = match row.place {
            Place::Disk => "FULL",
            Place::Memory => "NORMAL",
        };
        let (sessions, messages) = row.sessions();
        // The path comes last: it may hold spaces.
        self.ask(&format!("open {durability} {sessions} {messages} {path}"))?;
        Ok(())
    }

    fn run(&mut self, work: Work, count: u32) -> Result<f64> {
        let command = match work {
            Work::Append => format!("append {count}"),
            Work::AppendTasks { tasks } => format!("append_tasks {count} {tasks}"),
            Work::Turn => format!("turn {count}"),
            Work::Load { .. } => format!("load {count}"),
            Work::LoadTasks { tasks, messages } => {
                format!("load_tasks {count} {tasks} {messages}")
            }
        };
        Ok(self.ask(&command)?.parse()?)
    }

    fn close(&mut self) -> Result<()> {
        self.ask("close")?;
        Ok(())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It has ended already if all went well; an error here would hide the first one.
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
