//! Reading only: never a byte changed, never a row missing.

use std::fs;
use std::path::Path;

use hermes_state::{Access, Error, JournalMode};

use crate::original::{SHAPES, Shape, make, make_empty};
use crate::support::{connect, open, open_read_only, place};

#[tokio::test]
async fn a_missing_file_is_not_made() {
    let (folder, path) = place();
    for path in [path.clone(), path.join("below")] {
        let error = open_read_only(&path).await.unwrap_err();
        assert!(matches!(error, Error::FileNotFound { .. }), "{error:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_current_file_opens_and_keeps_every_byte() {
    let (_folder, path) = place();
    drop(make(&path, 4, Shape::Chain));
    open(&path).await.unwrap();
    drop(connect(&path));
    let before = fs::read(&path).unwrap();
    let environment = open_read_only(&path).await.unwrap();
    assert_eq!(environment.access, Access::ReadOnly);
    assert_eq!(environment.journal_mode, JournalMode::Wal);
    assert!(fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn a_file_with_a_log_opens_and_keeps_every_byte() {
    let (folder, path) = place();
    open(&path).await.unwrap();
    // A copy of a file in use: its log was not written back.
    let file = connect(&path);
    file.execute_batch(
        "PRAGMA wal_autocheckpoint = 0;
         INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)",
    )
    .unwrap();
    let copy = folder.path().join("copy.db");
    let copied = |suffix: &str| {
        let to = copy.with_file_name(format!("copy.db{suffix}"));
        fs::copy(path.with_file_name(format!("state.db{suffix}")), &to).unwrap();
        to
    };
    let all = ["", "-wal"].map(copied);
    let before = all.each_ref().map(|path| fs::read(path).unwrap());
    open_read_only(&copy).await.unwrap();
    let after = all.each_ref().map(|path| fs::read(path).unwrap());
    assert!(before == after);
}

#[tokio::test]
async fn an_old_file_needs_migration_and_keeps_every_byte() {
    for version in 1..=6 {
        for shape in SHAPES {
            let (_folder, path) = place();
            drop(make(&path, version, shape));
            let before = fs::read(&path).unwrap();
            let error = open_read_only(&path).await.unwrap_err();
            assert!(
                matches!(error, Error::NeedsMigration { found: Some(found), .. } if found == version),
                "{version}: {error:?}"
            );
            assert!(fs::read(&path).unwrap() == before);
        }
    }
}

#[tokio::test]
async fn a_version_that_is_not_written_down_is_judged_by_the_columns() {
    for version in 1..=6 {
        for shape in SHAPES {
            let (_folder, path) = place();
            make_empty(&path, version, shape)
                .execute_batch("DELETE FROM schema_version")
                .unwrap();
            let error = open_read_only(&path).await.unwrap_err();
            assert!(
                matches!(error, Error::NeedsMigration { found: Some(found), .. } if found == version),
                "{version}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_file_of_another_program_is_refused() {
    let (_folder, path) = place();
    connect(&path).execute_batch("CREATE TABLE t (a)").unwrap();
    let error = open_read_only(&path).await.unwrap_err();
    assert!(matches!(error, Error::ForeignDatabase { .. }), "{error:?}");
}

/// Makes at `path` a file as a crashed program leaves it: its pages half-written, the old ones in
/// the journal beside it.
fn crash_in_the_middle_of_a_write(path: &Path) {
    let (_folder, live) = place();
    let file = make(&live, 6, Shape::Fresh);
    // A tiny cache spills changed pages into the file before the commit.
    file.execute_batch(
        "PRAGMA journal_mode = DELETE;
         PRAGMA cache_size = 1;
         BEGIN IMMEDIATE;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO messages (session_id, role, content, timestamp)
             SELECT 'full', 'user', 'never committed ' || i, i FROM n;
         UPDATE sessions SET model = 'never committed';",
    )
    .unwrap();
    fs::copy(&live, path).unwrap();
    let journal = live.with_file_name("state.db-journal");
    fs::copy(&journal, path.with_file_name("state.db-journal")).unwrap();
    assert!(
        fs::read(path)
            .unwrap()
            .windows(15)
            .any(|text| text == b"never committed")
    );
}

#[tokio::test]
async fn a_write_that_crashed_is_rolled_back_by_the_next_writer_only() {
    let (_folder, path) = place();
    crash_in_the_middle_of_a_write(&path);
    let before = fs::read(&path).unwrap();
    let error = open_read_only(&path).await.unwrap_err();
    assert!(matches!(error, Error::NeedsRecovery { .. }), "{error:?}");
    assert!(fs::read(&path).unwrap() == before);

    open(&path).await.unwrap();
    let file = connect(&path);
    crate::support::assert_sound(&file);
    let never = "SELECT count(*) FROM messages WHERE content LIKE 'never%'";
    assert_eq!(crate::support::integer(&file, never), 0);
    open_read_only(&path).await.unwrap();
}

#[cfg(unix)]
mod in_a_folder_that_may_not_be_written {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;
    use crate::child::Opener;

    /// Opens read-only as somebody who may read everything and write nothing.
    fn outcome(folder: &TempDir, path: &Path) -> String {
        let opener = Opener::new(path.to_str().unwrap())
            .read_only()
            .unprivileged(folder.path());
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
        }
        let before = bytes(folder);
        fs::set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
        let outcome = opener.run();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(bytes(folder) == before);
        outcome
    }

    fn bytes(folder: &TempDir) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        all.sort();
        all
    }

    /// The names of a file and its log and shared memory, copied while the file was in use.
    async fn copied_in_use(suffixes: &[&str]) -> (TempDir, PathBuf) {
        let (_live_folder, live) = place();
        open(&live).await.unwrap();
        let file = connect(&live);
        file.execute_batch(
            "PRAGMA wal_autocheckpoint = 0;
             INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)",
        )
        .unwrap();
        let (folder, path) = place();
        for suffix in suffixes {
            let name = format!("state.db{suffix}");
            fs::copy(live.with_file_name(&name), path.with_file_name(&name)).unwrap();
        }
        (folder, path)
    }

    #[tokio::test]
    async fn a_file_without_a_log_is_read_as_it_is() {
        let (folder, path) = place();
        open(&path).await.unwrap();
        drop(connect(&path));
        // The last connection removes the log.
        assert!(!path.with_file_name("state.db-wal").exists());
        assert_eq!(outcome(&folder, &path), "Wal []");
        fs::write(path.with_file_name("state.db-wal"), "").unwrap();
        assert_eq!(outcome(&folder, &path), "Wal []");
    }

    #[tokio::test]
    async fn a_file_in_rollback_mode_is_read_under_its_locks() {
        let (folder, path) = place();
        open(&path).await.unwrap();
        let file = connect(&path);
        file.pragma_update(None, "journal_mode", "delete").unwrap();
        drop(file);
        assert_eq!(outcome(&folder, &path), "Rollback []");
    }

    #[tokio::test]
    async fn a_file_with_its_whole_log_is_read_with_it() {
        let (folder, path) = copied_in_use(&["", "-wal", "-shm"]).await;
        assert_eq!(outcome(&folder, &path), "Wal []");
    }

    #[tokio::test]
    async fn a_file_with_a_part_of_its_log_is_refused() {
        let (folder, path) = copied_in_use(&["", "-wal"]).await;
        let outcome = outcome(&folder, &path);
        assert!(outcome.starts_with("IncompleteCopy"), "{outcome}");
    }

    #[tokio::test]
    async fn a_write_that_crashed_is_reported() {
        let (folder, path) = place();
        crash_in_the_middle_of_a_write(&path);
        let outcome = outcome(&folder, &path);
        assert!(outcome.starts_with("NeedsRecovery"), "{outcome}");
    }

    #[tokio::test]
    async fn an_old_file_needs_migration() {
        let (folder, path) = place();
        drop(make(&path, 2, Shape::Fresh));
        let outcome = outcome(&folder, &path);
        assert!(outcome.contains("found: Some(2)"), "{outcome}");
    }
}
