//! Which file systems carry a write-ahead log: its shared memory needs one kernel, its locks must
//! hold.

use std::path::Path;

use crate::environment::FileSystem;

/// The kind of file system that holds the folder.
#[cfg(target_os = "linux")]
pub(super) fn of(folder: &Path) -> FileSystem {
    let Ok(stat) = rustix::fs::statfs(folder) else {
        return FileSystem::Unknown;
    };
    // The field's width and sign vary by platform; the magic numbers are its low 32 bits.
    match stat.f_type.to_le_bytes().first_chunk() {
        Some(low) => classify(u32::from_le_bytes(*low)),
        None => FileSystem::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn of(_folder: &Path) -> FileSystem {
    FileSystem::Unknown
}

/// Magic numbers: `statfs(2)` and the kernel's `linux/magic.h`.
#[cfg(target_os = "linux")]
fn classify(magic: u32) -> FileSystem {
    FileSystem::Remote(match magic {
        0x0000_6969 => "nfs",
        0x0000_517b => "smb",
        0xff53_4d42 => "cifs",
        0xfe53_4d42 => "smb2",
        0x0102_1997 => "9p",
        // Also virtiofs, sshfs, s3fs and the shared folders of container desktops.
        0x6573_5546 => "fuse",
        0x00c3_6400 => "ceph",
        0x0bd0_0bd0 => "lustre",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x0000_564c => "ncp",
        0x786f_4256 => "vboxsf",
        0xbacb_acbc => "vmhgfs",
        0x7c7c_6673 => "prl_fs",
        0x4750_4653 => "gpfs",
        0x1983_0326 => "beegfs",
        _ => return FileSystem::Local,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_and_fuse_file_systems_are_told_from_local_ones() {
        for (magic, expected) in [
            (0x0000_6969, FileSystem::Remote("nfs")),
            (0x0000_517b, FileSystem::Remote("smb")),
            (0xff53_4d42, FileSystem::Remote("cifs")),
            (0xfe53_4d42, FileSystem::Remote("smb2")),
            (0x0102_1997, FileSystem::Remote("9p")),
            (0x6573_5546, FileSystem::Remote("fuse")),
            (0x00c3_6400, FileSystem::Remote("ceph")),
            (0x0bd0_0bd0, FileSystem::Remote("lustre")),
            (0x5346_414f, FileSystem::Remote("afs")),
            (0x6b41_4653, FileSystem::Remote("afs")),
            (0x7375_7245, FileSystem::Remote("coda")),
            (0x0000_564c, FileSystem::Remote("ncp")),
            (0x786f_4256, FileSystem::Remote("vboxsf")),
            (0xbacb_acbc, FileSystem::Remote("vmhgfs")),
            (0x7c7c_6673, FileSystem::Remote("prl_fs")),
            (0x4750_4653, FileSystem::Remote("gpfs")),
            (0x1983_0326, FileSystem::Remote("beegfs")),
            // ext4, tmpfs, btrfs, xfs, overlayfs, zfs.
            (0x0000_ef53, FileSystem::Local),
            (0x0102_1994, FileSystem::Local),
            (0x9123_683e, FileSystem::Local),
            (0x5846_5342, FileSystem::Local),
            (0x794c_7630, FileSystem::Local),
            (0x2fc1_2fc1, FileSystem::Local),
        ] {
            assert_eq!(classify(magic), expected, "{magic:#x}");
        }
    }
}
