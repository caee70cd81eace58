//! Trajectories: finished conversations as training records, one JSON line each, in a file of their
//! own. They have nothing to do with the store.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::time::local_now;

/// Where a trajectory is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrajectoryFile {
    /// In this folder, to `trajectory_samples.jsonl` or, if not completed, to
    /// `failed_trajectories.jsonl`.
    Folder(PathBuf),
    /// To this file.
    File(PathBuf),
}

impl TrajectoryFile {
    fn path(self, outcome: TrajectoryOutcome) -> PathBuf {
        match self {
            Self::File(path) => path,
            Self::Folder(folder) => folder.join(match outcome {
                TrajectoryOutcome::Completed => "trajectory_samples.jsonl",
                TrajectoryOutcome::Failed => "failed_trajectories.jsonl",
            }),
        }
    }
}

/// Whether a conversation did what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrajectoryOutcome {
    /// It came to its end.
    Completed,
    /// It failed or was broken off.
    Failed,
}

#[derive(Serialize)]
struct Entry<'a, T: ?Sized> {
    conversations: &'a T,
    timestamp: String,
    model: &'a str,
    completed: bool,
}

/// Appends one line of JSON with `conversations`, the time (RFC 3339, local, with its offset), the
/// model and whether it was completed. Returns the file that the line went to.
///
/// The file is made if it is missing, readable by its owner only; its folder must exist. Tasks and
/// processes that append to the same file wait for each other, by an advisory lock, so that lines
/// never mix. A line that a crash cut off is closed by a line break before the next one is written.
///
/// # Errors
///
/// - [`Error::InvalidJson`]: `conversations` can't be written as JSON.
/// - [`Error::DiskFull`]: the file is as long as before.
/// - [`Error::PermissionDenied`], [`Error::Io`]: the system refused.
/// - [`Error::NoRuntime`], [`Error::RuntimeEnded`]: the tokio runtime is missing or ends.
///
/// # Cancel safety
///
/// Dropping the future leaves the line either there or not: what has begun goes on.
pub async fn save_trajectory<T: Serialize + Sync + ?Sized>(
    file: TrajectoryFile,
    conversations: &T,
    model: &str,
    outcome: TrajectoryOutcome,
) -> Result<PathBuf> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    let entry = Entry {
        conversations,
        timestamp: local_now(),
        model,
        completed: outcome == TrajectoryOutcome::Completed,
    };
    let mut line = serde_json::to_vec(&entry).map_err(|error| Error::InvalidJson {
        source: error.into(),
    })?;
    line.push(b'\n');
    let path = file.path(outcome);
    runtime
        .spawn_blocking(move || match append(&path, line) {
            Ok(()) => Ok(path),
            Err(error) => Err(failure(path, error)),
        })
        .await
        .map_err(|_| Error::RuntimeEnded)?
}

fn append(path: &Path, mut line: Vec<u8>) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.lock()?;
    let end = file.seek(SeekFrom::End(0))?;
    if !ends_with_line_break(&mut file, end)? {
        line.insert(0, b'\n');
    }
    let written = file.write_all(&line).and_then(|()| file.sync_data());
    if written.is_err() {
        // A part of a line would spoil the next one. If even this fails, the next saver mends it.
        if let Err(error) = file.set_len(end) {
            tracing::warn!(%error, "removing a part of a trajectory failed");
        }
    }
    // Closing the file lets go of the lock.
    written
}

/// Also where there is nothing yet.
fn ends_with_line_break(file: &mut File, end: u64) -> std::io::Result<bool> {
    let Some(last) = end.checked_sub(1) else {
        return Ok(true);
    };
    file.seek(SeekFrom::Start(last))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(byte == *b"\n")
}

fn failure(path: PathBuf, error: std::io::Error) -> Error {
    use std::io::ErrorKind;
    let kind = error.kind();
    let source = error.into();
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::DiskFull { source },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            Error::PermissionDenied { path, source }
        }
        _ => Error::Io { path, source },
    }
}

const OPENING: &str = "<REASONING_SCRATCHPAD>";
const CLOSING: &str = "</REASONING_SCRATCHPAD>";

/// Renames the tags of a scratchpad to `<think>` and `</think>`, as `ShareGPT` has them.
///
/// ```
/// use hermes_state::convert_scratchpad_to_think;
///
/// let text = "<REASONING_SCRATCHPAD>2 + 2</REASONING_SCRATCHPAD>4";
/// assert_eq!(convert_scratchpad_to_think(text), "<think>2 + 2</think>4");
/// ```
pub fn convert_scratchpad_to_think(text: &str) -> Cow<'_, str> {
    if !text.contains(OPENING) && !text.contains(CLOSING) {
        return Cow::Borrowed(text);
    }
    let text = text.replace(OPENING, "<think>");
    Cow::Owned(text.replace(CLOSING, "</think>"))
}

/// Whether a scratchpad was opened and not closed after that, as when a model was cut off.
///
/// ```
/// use hermes_state::has_incomplete_scratchpad;
///
/// assert!(has_incomplete_scratchpad("<REASONING_SCRATCHPAD>2 + "));
/// assert!(!has_incomplete_scratchpad("<REASONING_SCRATCHPAD>2</REASONING_SCRATCHPAD>"));
/// ```
pub fn has_incomplete_scratchpad(text: &str) -> bool {
    let mut open = 0_usize;
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = rest.get(at..).unwrap_or_default();
        if let Some(after) = rest.strip_prefix(OPENING) {
            (open, rest) = (open + 1, after);
        } else if let Some(after) = rest.strip_prefix(CLOSING) {
            // A closing tag without an opening one closes none that comes later.
            (open, rest) = (open.saturating_sub(1), after);
        } else {
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    open > 0
}
