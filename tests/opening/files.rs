//! Paths, folders, modes and kinds of files.

use std::path::Path;

use hermes_state::{Error, FileSystem, Journal, JournalMode, StoreOptions};

use crate::support::{
    assert_sound, connect, open, open_read_only, open_with, place, refused, strings,
};

#[tokio::test]
async fn any_name_is_a_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "with space.db",
        "what?.db",
        "what?mode=memory",
        "50%.db",
        "%41.db",
        "#1.db",
        "a&b=c;d'e\"f.db",
        ":memory:",
        "file:x",
        "数据库 🚀 café.db",
        "line\nbreak",
        "back\\slash",
        "-rf",
        &"n".repeat(240),
    ] {
        let path = folder.path().join(name);
        for _ in 0..2 {
            let environment = open(&path).await.unwrap();
            assert_eq!(environment.path, path.canonicalize().unwrap(), "{name}");
            open_read_only(&path).await.unwrap();
        }
        assert!(path.metadata().unwrap().len() > 0, "{name}");
    }
    // Nothing else was made, under these names or others.
    let left = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    assert_eq!(left.count(), 14);
}

#[tokio::test]
async fn a_path_that_can_not_be_told_to_sqlite_is_refused() {
    for path in ["", "nul\0.db"] {
        let error = refused(Path::new(path)).await;
        assert!(
            matches!(error, Error::InvalidInput { what: "path", .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing_folder = folder.path().join("missing/");
    for path in [
        folder.path(),
        Path::new("/"),
        Path::new(".."),
        missing_folder.as_path(),
    ] {
        let error = refused(path).await;
        assert!(
            matches!(error, Error::NotAFile { .. }),
            "{}: {error:?}",
            path.display()
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_as_folder_is_refused() {
    let (_folder, path) = place();
    std::fs::write(&path, "").unwrap();
    let error = refused(&path.join("state.db")).await;
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
}

#[tokio::test]
async fn an_empty_file_is_filled_and_read_only_says_that_it_must_be() {
    let (_folder, path) = place();
    std::fs::write(&path, "").unwrap();
    let error = open_read_only(&path).await.unwrap_err();
    assert!(
        matches!(error, Error::NeedsMigration { found: None, .. }),
        "{error:?}"
    );
    assert_eq!(path.metadata().unwrap().len(), 0);
    open(&path).await.unwrap();
    assert_sound(&connect(&path));
}

#[tokio::test]
async fn a_rollback_journal_can_be_asked_for() {
    let (_folder, path) = place();
    let rollback = || StoreOptions::new().journal(Journal::Rollback);
    for _ in 0..2 {
        let environment = open_with(rollback(), &path).await.unwrap();
        assert_eq!(environment.journal_mode, JournalMode::Rollback);
        assert_eq!(environment.warnings, []);
        assert_eq!(strings(&connect(&path), "PRAGMA journal_mode"), ["delete"]);
    }
    // A file in rollback mode is switched when nobody asks otherwise, and never back.
    assert_eq!(open(&path).await.unwrap().journal_mode, JournalMode::Wal);
    let environment = open_with(rollback(), &path).await.unwrap();
    assert_eq!(environment.journal_mode, JournalMode::Wal);
    assert_eq!(strings(&connect(&path), "PRAGMA journal_mode"), ["wal"]);
}

#[tokio::test]
async fn the_environment_says_what_was_found() {
    let (_folder, path) = place();
    let environment = open(&path).await.unwrap();
    assert_eq!(environment.sqlite_version, rusqlite::version());
    assert_eq!(environment.crate_version, env!("CARGO_PKG_VERSION"));
    assert_ne!(environment.file_system, FileSystem::Remote("nfs"));
}

#[test]
fn outside_a_runtime_opening_fails_typed() {
    let (_folder, path) = place();
    let mut future = Box::pin(open(&path));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Err(Error::NoRuntime)) => {}
        other => panic!("{other:?}"),
    }
    assert!(!path.exists());
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::child::Opener;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[tokio::test]
    async fn a_new_file_and_new_folders_are_for_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755);
        let path = folder.path().join("a/b/c/state.db");
        open(&path).await.unwrap();
        for made in ["a", "a/b", "a/b/c"] {
            assert_eq!(mode(&folder.path().join(made)), 0o700, "{made}");
        }
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(folder.path()), 0o755);
    }

    #[test]
    fn another_mode_can_be_asked_for_whatever_the_umask_says() {
        for umask in ["000", "077", "277"] {
            let (_folder, path) = place();
            let outcome = Opener::after(&format!("umask {umask}"), path.to_str().unwrap())
                .mode("640")
                .run();
            assert_eq!(outcome, "Wal []");
            assert_eq!(mode(&path), 0o640, "umask {umask}");
        }
    }

    #[tokio::test]
    async fn the_mode_of_an_existing_file_stays() {
        let (_folder, path) = place();
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o664);
        open(&path).await.unwrap();
        assert_eq!(mode(&path), 0o664);
        for beside in ["state.db-wal", "state.db-shm"] {
            let beside = path.with_file_name(beside);
            assert!(
                !beside.exists() || mode(&beside) == 0o664,
                "{}",
                beside.display()
            );
        }
    }

    #[test]
    fn a_relative_path_is_never_read_as_a_uri() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for path in [
            "file:x",
            "file:x?mode=memory",
            "state.db",
            "./b.db",
            "sub/../c.db",
            "new/d.db",
        ] {
            let outcome = Opener::new(path).in_folder(folder.path()).run();
            assert_eq!(outcome, "Wal []", "{path}");
            assert_sound(&connect(&folder.path().join(path).canonicalize().unwrap()));
        }
    }

    #[tokio::test]
    async fn links_are_followed_to_the_file_also_where_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let target = root.join("deep/er/real.db");
        symlink("deep/er/real.db", root.join("first")).unwrap();
        symlink(root.join("first"), root.join("second")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for link in ["second", "first"] {
            let environment = open(&root.join(link)).await.unwrap();
            assert_eq!(environment.path, target);
        }
        assert_sound(&connect(&target));
        assert!(root.join("first").is_symlink());
        let error = refused(&root.join("loop")).await;
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        let error = open_read_only(&root.join("nothing")).await.unwrap_err();
        assert!(matches!(error, Error::FileNotFound { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn devices_and_pipes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [Path::new("/dev/null"), &pipe] {
            let error = refused(path).await;
            assert!(matches!(error, Error::NotAFile { .. }), "{error:?}");
            let error = open_read_only(path).await.unwrap_err();
            assert!(matches!(error, Error::NotAFile { .. }), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_path_that_is_not_utf8_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"caf\xe9.db"));
        let error = refused(&path).await;
        assert!(
            matches!(error, Error::InvalidInput { what: "path", .. }),
            "{error:?}"
        );
        // Nor one that leads there.
        let link = folder.path().join("link");
        fs::write(&path, "").unwrap();
        symlink(&path, &link).unwrap();
        let error = refused(&link).await;
        assert!(
            matches!(error, Error::InvalidInput { what: "path", .. }),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn without_permission_opening_fails_typed() {
        for journal in ["wal", "delete"] {
            let (folder, path) = place();
            open(&path).await.unwrap();
            let file = connect(&path);
            file.pragma_update(None, "journal_mode", journal).unwrap();
            drop(file);
            let text = path.to_str().unwrap();
            let new = folder.path().join("new.db");
            let deep = folder.path().join("a/b/new.db");
            for (file_mode, folder_mode, opener) in [
                (0o000, 0o700, Opener::new(text)),
                (0o000, 0o700, Opener::new(text).read_only()),
                (0o200, 0o700, Opener::new(text).read_only()),
                (0o400, 0o700, Opener::new(text)),
                (0o600, 0o500, Opener::new(text)),
                (0o600, 0o000, Opener::new(text)),
                (0o600, 0o000, Opener::new(text).read_only()),
                (0o600, 0o500, Opener::new(new.to_str().unwrap())),
                (0o600, 0o500, Opener::new(deep.to_str().unwrap())),
            ] {
                let opener = opener.unprivileged(folder.path());
                set_mode(&path, file_mode);
                set_mode(folder.path(), folder_mode);
                let outcome = opener.run();
                set_mode(folder.path(), 0o700);
                assert!(
                    outcome.starts_with("PermissionDenied"),
                    "{journal}, {file_mode:o} in {folder_mode:o}: {outcome}"
                );
                let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
                assert_eq!(names.len(), 1, "{names:?}");
            }
        }
    }
}
