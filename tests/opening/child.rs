//! This test program run again, as another process: with another user, folder or umask, or many
//! times at once.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hermes_state::{Environment, Error, StoreOptions};

use crate::support::open_with;

const PATH: &str = "HERMES_STATE_TEST_OPEN";
const READ_ONLY: &str = "HERMES_STATE_TEST_READ_ONLY";
const MODE: &str = "HERMES_STATE_TEST_MODE";
const MARK: &str = "outcome: ";

/// What the child does. A test only by form: run as one, it does nothing.
#[tokio::test]
async fn child_opens_what_its_environment_names() {
    let Ok(path) = std::env::var(PATH) else {
        return;
    };
    // Wait for the word to start.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let mut options = StoreOptions::new();
    if std::env::var_os(READ_ONLY).is_some() {
        options = options.read_only();
    }
    if let Ok(mode) = std::env::var(MODE) {
        options = options
            .file_mode(u32::from_str_radix(&mode, 8).unwrap())
            .unwrap();
    }
    let outcome = outcome(&open_with(options, Path::new(&path)).await);
    writeln!(std::io::stdout(), "\n{MARK}{outcome}").unwrap();
}

fn outcome(result: &Result<Environment, Error>) -> String {
    let mut text = match result {
        Ok(environment) => format!("{:?} {:?}", environment.journal_mode, environment.warnings),
        Err(error) => format!("{error:?}"),
    };
    if let Err(Error::Busy { attempts, .. }) = result {
        write!(text, " after {attempts}").unwrap();
    }
    text
}

/// A process that opens `path` when it is told to.
pub(crate) struct Opener(Command);

impl Opener {
    pub(crate) fn new(path: &str) -> Self {
        Self::through(Command::new(std::env::current_exe().unwrap()), path)
    }

    /// One that runs below a shell which first does `setting`.
    pub(crate) fn after(setting: &str, path: &str) -> Self {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("{setting}; exec \"$0\" \"$@\""))
            .arg(std::env::current_exe().unwrap());
        Self::through(shell, path)
    }

    fn through(mut command: Command, path: &str) -> Self {
        command
            .args([
                "child::child_opens_what_its_environment_names",
                "--exact",
                "--nocapture",
            ])
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self(command)
    }

    pub(crate) fn read_only(mut self) -> Self {
        self.0.env(READ_ONLY, "1");
        self
    }

    pub(crate) fn mode(mut self, mode: &str) -> Self {
        self.0.env(MODE, mode);
        self
    }

    pub(crate) fn in_folder(mut self, folder: &Path) -> Self {
        self.0.current_dir(folder);
        self
    }

    /// As a user whom modes bind: root may do anything. `folder` and all in it become theirs.
    pub(crate) fn unprivileged(mut self, folder: &Path) -> Self {
        const NOBODY: u32 = 65534;
        // A folder of our own tells who we are.
        let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(folder).unwrap());
        if user == 0 || user == NOBODY {
            own(folder, NOBODY);
            self.0.uid(NOBODY).gid(NOBODY);
        }
        self
    }

    pub(crate) fn spawn(mut self) -> Waiting {
        Waiting(self.0.spawn().unwrap())
    }

    pub(crate) fn run(self) -> String {
        self.spawn().start().outcome()
    }
}

fn own(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            own(&entry.unwrap().path(), user);
        }
    }
}

/// A process that waits for the word to start.
pub(crate) struct Waiting(Child);

impl Waiting {
    pub(crate) fn start(mut self) -> Started {
        drop(self.0.stdin.take());
        Started(self.0)
    }
}

pub(crate) struct Started(Child);

impl Started {
    pub(crate) fn outcome(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(MARK))
            .unwrap_or_else(|| panic!("the child died: {text}"))
            .to_owned()
    }
}
