//! Trajectories: lines of JSON in a file of their own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

#[path = "support/faults.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hermes_state::{
    Error, TrajectoryFile, TrajectoryOutcome, convert_scratchpad_to_think,
    has_incomplete_scratchpad, save_trajectory,
};
use serde_json::{Value, json};
use support::{child, child_argument};

const COMPLETED: TrajectoryOutcome = TrajectoryOutcome::Completed;

async fn save(path: &Path, conversations: &Value) -> Result<PathBuf, Error> {
    let file = TrajectoryFile::File(path.to_owned());
    save_trajectory(file, conversations, "m", COMPLETED).await
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Whether it is `YYYY-MM-DDThh:mm:ss.ffffff` with `Z` or an offset.
fn is_rfc_3339(time: &str) -> bool {
    let digits = |part: &str| {
        part.chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect::<String>()
    };
    let (local, offset) = time.split_at(26);
    digits(local) == "0000-00-00T00:00:00.000000"
        && (offset == "Z" || ["+00:00", "-00:00"].contains(&digits(offset).as_str()))
}

#[tokio::test]
async fn a_line_holds_conversation_time_model_and_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let conversations = json!([{"from": "human", "value": "数据库 🚀 \n\"é\""}]);
    assert_eq!(save(&path, &conversations).await.unwrap(), path);

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(
        r#"{"conversations":[{"from":"human","value":"数据库 🚀 \n\"é\""}],"timestamp":""#
    ));
    assert!(text.ends_with("\",\"model\":\"m\",\"completed\":true}\n"));
    assert_eq!(text.lines().count(), 1);
    let line = &lines(&path)[0];
    assert_eq!(line["conversations"], conversations);
    let time = line["timestamp"].as_str().unwrap();
    assert!(is_rfc_3339(time), "{time}");
}

/// The zone of a process is its environment's: one child for each.
#[test]
fn the_time_is_local_with_its_offset_or_utc() {
    let mut zones = vec![
        ("UTC0", "+00:00"),
        ("XYZ-5:30", "+05:30"),
        ("ABC+3", "-03:00"),
        ("/no/such/zone", "Z"),
    ];
    if Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
        zones.push(("Asia/Tokyo", "+09:00"));
    }
    for (zone, end) in zones {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let mut child = child("saves_many", &path);
        child
            .env("SAVES", "1")
            .env("TZ", zone)
            .stdout(Stdio::null());
        let before = unix_now();
        assert!(child.status().unwrap().success());
        let time = lines(&path)[0]["timestamp"].as_str().unwrap().to_owned();
        assert!(
            is_rfc_3339(&time) && time.ends_with(end),
            "{zone:?}: {time}"
        );
        // The same instant, whatever the zone: SQLite reads RFC 3339.
        let sql = rusqlite::Connection::open_in_memory().unwrap();
        let seconds: i64 = sql
            .query_row("SELECT unixepoch(?1)", [&time], |row| row.get(0))
            .unwrap();
        assert!((before..=unix_now()).contains(&seconds), "{zone:?}: {time}");
    }
}

fn unix_now() -> i64 {
    hermes_state::Timestamp::now()
        .as_unix_seconds()
        .floor()
        .to_string()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn in_a_folder_the_outcome_chooses_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (outcome, name, completed) in [
        (COMPLETED, "trajectory_samples.jsonl", true),
        (
            TrajectoryOutcome::Failed,
            "failed_trajectories.jsonl",
            false,
        ),
    ] {
        let place = TrajectoryFile::Folder(folder.path().to_owned());
        let path = save_trajectory(place, "x", "m", outcome).await.unwrap();
        assert_eq!(path, folder.path().join(name));
        assert_eq!(lines(&path)[0]["completed"], completed);

        let file = folder.path().join("mine");
        let place = TrajectoryFile::File(file.clone());
        assert_eq!(
            save_trajectory(place, "x", "m", outcome).await.unwrap(),
            file
        );
    }
    assert_eq!(lines(&folder.path().join("mine")).len(), 2);
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_may_read_a_new_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    save(&path, &json!(1)).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    save(&path, &json!(2)).await.unwrap();
    assert_eq!(mode(&path), 0o644);
}

#[tokio::test]
async fn a_line_that_a_crash_cut_off_does_not_spoil_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    std::fs::write(&path, "{\"conversations\":1}\n{\"conv").unwrap();
    save(&path, &json!(2)).await.unwrap();
    save(&path, &json!(3)).await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[1], "{\"conv");
    for (line, value) in [(lines[2], 2), (lines[3], 3)] {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["conversations"], value);
    }
}

#[tokio::test]
async fn failures_are_returned() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("t.jsonl");
    let error = save(&missing, &json!(1)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Io { path, .. } if *path == missing),
        "{error:?}"
    );
    let error = save(folder.path(), &json!(1)).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");

    let path = folder.path().join("t.jsonl");
    let no_json = std::collections::HashMap::from([((), 1)]);
    let file = TrajectoryFile::File(path.clone());
    let error = save_trajectory(file, &no_json, "m", COMPLETED)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidJson { .. }), "{error:?}");
    assert!(!path.exists());
}

#[test]
fn without_a_runtime_the_call_fails() {
    let saving = save(Path::new("/nowhere"), &Value::Null);
    let error = futures_util::FutureExt::now_or_never(saving)
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::NoRuntime), "{error:?}");
}

/// Each line is larger than a pipe or a page, so that writes without a lock would be seen to mix.
#[test]
fn eight_processes_append_whole_lines_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let children: Vec<Child> = (0..8)
        .map(|n| {
            child("saves_many", &path)
                .env("SAVES", "25")
                .env("NAME", n.to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let mut found: Vec<String> = lines(&path)
        .iter()
        .map(|line| {
            let [name, number, filling] = line["conversations"].as_array().unwrap().as_slice()
            else {
                panic!("{line}");
            };
            assert_eq!(filling.as_str().unwrap().len(), 100_000);
            format!("{name} {number}")
        })
        .collect();
    found.sort();
    let mut expected: Vec<String> = (0..8)
        .flat_map(|n| (0..25).map(move |i| format!("\"{n}\" {i}")))
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn saves_many() {
    let Some(path) = child_argument() else { return };
    let saves: u32 = std::env::var("SAVES").unwrap().parse().unwrap();
    let name = std::env::var("NAME").unwrap_or_default();
    let filling = "x".repeat(100_000);
    let saving = (0..saves).map(|n| {
        let (path, line) = (&path, json!([name, n, filling]));
        async move { save(path, &line).await.unwrap() }
    });
    futures_util::future::join_all(saving).await;
}

/// Whoever holds the lock is waited for; the caller's thread goes on meanwhile.
#[tokio::test]
async fn a_locked_file_is_waited_for_without_blocking_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let held = std::fs::File::create(&path).unwrap();
    held.lock().unwrap();
    let value = json!(1);
    let mut saving = Box::pin(save(&path, &value));
    for _ in 0..20 {
        assert!(futures_util::poll!(&mut saving).is_pending());
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    drop(held);
    saving.await.unwrap();
    assert_eq!(lines(&path).len(), 1);
}

/// Runs a child in which `folder` is a file system of 1 MiB.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_part_of_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@""#;
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "-m", "sh", "-c", mount, "sh"]);
        command.arg(folder.path());
        command
    };
    let mut may_mount = unshare();
    may_mount.arg("true").stderr(Stdio::null());
    if !may_mount.status().is_ok_and(|status| status.success()) {
        return;
    }
    let inner = child("fills_the_disk", folder.path());
    let mut outer = unshare();
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    assert!(outer.status().unwrap().success());
}

#[tokio::test]
async fn fills_the_disk() {
    let Some(folder) = child_argument() else {
        return;
    };
    let path = folder.join("t.jsonl");
    save(&path, &json!("before")).await.unwrap();
    let before = std::fs::read(&path).unwrap();
    for _ in 0..2 {
        let error = save(&path, &json!("x".repeat(2 << 20))).await.unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
    save(&path, &json!("after")).await.unwrap();
    assert_eq!(lines(&path).len(), 2);
}

#[test]
fn scratchpad_tags_become_think_tags() {
    for (text, expected) in [
        ("", ""),
        ("plain 文字", "plain 文字"),
        (
            "<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>b",
            "<think>a</think>b",
        ),
        ("<REASONING_SCRATCHPAD>cut", "<think>cut"),
        ("</REASONING_SCRATCHPAD>", "</think>"),
        (
            "é<REASONING_SCRATCHPAD>1</REASONING_SCRATCHPAD><REASONING_SCRATCHPAD>2</REASONING_SCRATCHPAD>",
            "é<think>1</think><think>2</think>",
        ),
        ("<reasoning_scratchpad>", "<reasoning_scratchpad>"),
    ] {
        assert_eq!(convert_scratchpad_to_think(text), expected);
    }
}

#[test]
fn an_opened_scratchpad_must_be_closed_after_it() {
    let (open, close) = ("<REASONING_SCRATCHPAD>", "</REASONING_SCRATCHPAD>");
    for (text, expected) in [
        (String::new(), false),
        ("a < b <<é".to_owned(), false),
        (open.to_owned(), true),
        (close.to_owned(), false),
        (format!("{open}a{close}"), false),
        (format!("<{open}a<{close}>"), false),
        (format!("{close}{open}"), true),
        (format!("{open}{close}{open}"), true),
        (format!("{close}{open}{close}"), false),
        (format!("{open}{open}{close}"), true),
        (format!("{open}</REASONING_SCRATCHPA"), true),
    ] {
        assert_eq!(has_incomplete_scratchpad(&text), expected, "{text}");
    }
}
