//! Where a file lies: paths, permissions, the kind of file system, and making a file that is not
//! there yet. All of it blocks, and none of it opens a file that SQLite may have open: closing any
//! descriptor of such a file drops the locks that this process holds on it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::file_system;
use crate::environment::FileSystem;
use crate::error::{Error, Result};
use crate::options::Access;

/// The smallest page of SQLite, and so its smallest file.
const SMALLEST_DATABASE: u64 = 512;

/// As many as Linux follows.
const MAX_LINKS: usize = 40;

/// Where a database file lies. The file is there.
#[derive(Debug)]
pub(super) struct Place {
    /// Absolute, without symbolic links, and UTF-8 without NUL.
    pub(super) path: PathBuf,
    pub(super) file_system: FileSystem,
    pub(super) folder_writable: bool,
    pub(super) log: Log,
}

/// What lies beside a database file when nobody has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    /// No `-wal`, or an empty one.
    None,
    /// A `-wal` with its `-shm`.
    Whole,
    /// A `-wal` without its `-shm`.
    Partial,
}

/// Finds the file, or makes it unless `access` is read-only.
pub(super) fn find(asked: &Path, access: Access, mode: u32) -> Result<Place> {
    check_text(asked)?;
    let path = match resolve(asked) {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => match access {
            Access::ReadOnly => {
                return Err(Error::FileNotFound {
                    path: asked.to_owned(),
                });
            }
            Access::ReadWrite => create(asked, mode)?,
        },
        Err(error) => return Err(failed(asked, error)),
    };
    // Links may lead anywhere.
    check_text(&path)?;
    let metadata = fs::metadata(&path).map_err(|error| failed(&path, error))?;
    check_kind(&path, asked, &metadata)?;
    if metadata.len() == 0 {
        check_no_orphaned_log(&path)?;
    }
    let Some(folder) = path.parent() else {
        return Err(Error::NotAFile { path });
    };
    let folder_writable = writable(folder).is_ok();
    readable(&path).map_err(|error| failed(&path, error))?;
    if access == Access::ReadWrite {
        // SQLite would open such a file for reading and fail at the first write.
        writable(&path).map_err(|error| failed(&path, error))?;
        writable(folder).map_err(|error| failed(&path, error))?;
    }
    let file_system = file_system::of(folder);
    let log = log_beside(&path)?;
    Ok(Place {
        path,
        file_system,
        folder_writable,
        log,
    })
}

/// What an error of the system means for the path.
pub(super) fn failed(path: &Path, error: io::Error) -> Error {
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound => Error::FileNotFound { path },
        ErrorKind::IsADirectory => Error::NotAFile { path },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::PermissionDenied {
            path,
            source: error.into(),
        },
        _ => Error::Io {
            path,
            source: error.into(),
        },
    }
}

/// SQLite takes paths as C strings of UTF-8.
fn check_text(path: &Path) -> Result<()> {
    match path.to_str() {
        None => Err(Error::invalid("path", "must be UTF-8")),
        Some("") => Err(Error::invalid("path", "must not be empty")),
        Some(text) if text.contains('\0') => Err(Error::invalid("path", "must not contain NUL")),
        Some(_) => Ok(()),
    }
}

fn check_kind(path: &Path, asked: &Path, metadata: &Metadata) -> Result<()> {
    if !metadata.is_file() || names_a_folder(asked) {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    match metadata.len() {
        bytes @ 1..SMALLEST_DATABASE => Err(Error::Truncated {
            path: path.to_owned(),
            bytes,
        }),
        _ => Ok(()),
    }
}

fn names_a_folder(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|text| text.ends_with(std::path::is_separator))
}

/// The absolute path of a file that is there, without links. Absolute, so that SQLite never reads
/// a relative `file:name` as a URI.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let trimmed: PathBuf = path.components().collect();
    fs::canonicalize(trimmed)
}

/// Makes an empty file, and its folders.
fn create(asked: &Path, mode: u32) -> Result<PathBuf> {
    let failed = |error| failed(asked, error);
    let path = std::path::absolute(asked)
        .and_then(follow_links)
        .map_err(failed)?;
    let (Some(folder), Some(name), false) =
        (path.parent(), path.file_name(), names_a_folder(asked))
    else {
        return Err(Error::NotAFile {
            path: asked.to_owned(),
        });
    };
    create_folders(folder).map_err(failed)?;
    let folder = fs::canonicalize(folder).map_err(failed)?;
    let path = folder.join(name);
    check_no_orphaned_log(&path)?;
    create_file(&folder, &path, mode).map_err(failed)?;
    Ok(path)
}

/// SQLite deletes a log that it finds beside an empty database, with the rows that only the log
/// holds.
fn check_no_orphaned_log(path: &Path) -> Result<()> {
    if log_beside(path)? == Log::None {
        return Ok(());
    }
    // Whoever is just making the same file wrote to the database first, and then to its log.
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > 0 => Ok(()),
        Ok(_) => Err(Error::OrphanedLog {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::OrphanedLog {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(path, error)),
    }
}

/// Follows a link whose end is missing, as SQLite and `open` would: the file is made at its end.
fn follow_links(mut path: PathBuf) -> io::Result<PathBuf> {
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(target) => {
                let target = path
                    .parent()
                    .map_or_else(|| target.clone(), |folder| folder.join(&target));
                path = std::path::absolute(target)?;
            }
            // No link: a missing file, or one that came into being meanwhile.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
                return Ok(path);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Makes what is missing of a folder's path, each part for its owner only and on disk before the
/// next.
fn create_folders(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|folder| !folder.is_dir())
        .collect();
    for folder in missing.into_iter().rev() {
        match create_folder(folder) {
            Ok(()) => {}
            // Another process made it meanwhile.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => return Err(error),
        }
        if let Some(parent) = folder.parent() {
            sync_folder(parent)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn create_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    fs::DirBuilder::new().mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)
}

/// Makes an empty file under a name of its own, closes it, and only then gives it the name under
/// which SQLite may open it.
fn create_file(folder: &Path, path: &Path, mode: u32) -> io::Result<()> {
    let temporary = folder.join(format!(".hermes-state-{:016x}.new", fastrand::u64(..)));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)?;
    let published = set_mode(&file, mode).and_then(|()| {
        drop(file);
        publish(&temporary, path)
    });
    // Gone already if it was renamed.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return published.and(Err(error)),
        _ => published?,
    }
    sync_folder(folder)
}

/// Gives the file its name unless there is one of that name: then another process was first, and
/// its file is as good.
fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    let linked = match fs::hard_link(temporary, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            // No hard links here, as on FAT and some network file systems.
            rename_if_free(temporary, path)
        }
        linked => linked,
    };
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_if_free(temporary: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => create_in_place(temporary, path),
        renamed => Ok(renamed?),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename_if_free(temporary: &Path, path: &Path) -> io::Result<()> {
    create_in_place(temporary, path)
}

/// The last resort. Between making and closing the file, another thread of this process may open
/// it through SQLite and lose its locks; until it has written, there is nothing to lose.
fn create_in_place(temporary: &Path, path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_permissions(fs::metadata(temporary)?.permissions())
}

/// Whatever the umask says.
#[cfg(unix)]
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_file: &File, _mode: u32) -> io::Result<()> {
    Ok(())
}

/// Makes a new name in the folder survive a power cut, where the system can do that.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    let opened = match File::open(folder) {
        // A folder that may be written but not listed.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    match opened.sync_all() {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn readable(path: &Path) -> io::Result<()> {
    access(path, rustix::fs::Access::READ_OK)
}

#[cfg(unix)]
fn writable(path: &Path) -> io::Result<()> {
    access(path, rustix::fs::Access::WRITE_OK)
}

#[cfg(unix)]
fn access(path: &Path, access: rustix::fs::Access) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, accessat};

    Ok(accessat(CWD, path, access, AtFlags::EACCESS)?)
}

#[cfg(not(unix))]
fn readable(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn writable(path: &Path) -> io::Result<()> {
    // Of a folder, the mark does not say whether files can be made in it.
    let metadata = fs::metadata(path)?;
    if metadata.is_file() && metadata.permissions().readonly() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

fn log_beside(path: &Path) -> Result<Log> {
    let length = |suffix: &str| {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        match fs::metadata(&beside) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(path, error)),
        }
    };
    Ok(match (length("-wal")?, length("-shm")?) {
        (None | Some(0), _) => Log::None,
        (Some(_), Some(_)) => Log::Whole,
        (Some(_), None) => Log::Partial,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_of_making_a_file_replaces_one_that_another_process_made() {
        for make in [publish, rename_if_free, create_in_place] {
            let folder = tempfile::tempdir().unwrap();
            let temporary = folder.path().join("temporary");
            let path = folder.path().join("state.db");
            fs::write(&temporary, "").unwrap();
            fs::write(&path, "theirs").unwrap();
            match make(&temporary, &path) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
            fs::remove_file(&path).unwrap();
            make(&temporary, &path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "");
        }
    }
}
