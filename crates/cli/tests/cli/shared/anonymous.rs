//! Anonymous files through the kernel (`O_TMPFILE`, then `linkat`): what another mount sees of
//! them, and what a killed mount leaves.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, flock, linkat};
use rustix::io::Errno;

use super::{Host, Shared};
use crate::run::noise;

fn anonymous(host: &Host, flags: OFlags) -> File {
    let flags = (OFlags::TMPFILE | flags).bits().cast_signed();
    OpenOptions::new().read(true).write(true).mode(0o640).custom_flags(flags).open(host.path("")).unwrap()
}

/// The way that a program without rights has.
fn link(file: &File, to: &Path) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW)
}

fn names(host: &Host) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(host.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name != ".snapshots");
    names.sort();
    names
}

#[test]
fn a_file_without_a_name_is_seen_by_others_when_it_is_linked() {
    let Some(shared) = Shared::new() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    for (name, len) in [("small", 10_000), ("large", 3_000_000)] {
        let mut file = anonymous(&one, OFlags::empty());
        let bytes = noise(len as u64, len);
        file.write_all(&bytes).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o604)).unwrap();
        file.sync_all().unwrap();
        assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().len()), (0, len as u64));
        assert!(!two.path(name).exists() && !names(&two).contains(&name.to_owned()));
        let mut again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let mut read = Vec::new();
        again.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        // A lock from before the link continues when others open the file.
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        two.write("taken", "of another host");
        assert_eq!(link(&file, &one.path("taken")), Err(Errno::EXIST));
        // By its descriptor alone, or by its path in /proc.
        match name {
            "small" => linkat(&file, "", CWD, one.path(name), AtFlags::EMPTY_PATH).unwrap(),
            _ => link(&file, &one.path(name)).unwrap(),
        }
        two.must_read(name, &bytes);
        let seen = fs::metadata(two.path(name)).unwrap();
        assert_eq!((seen.nlink(), seen.mode() & 0o7777), (1, 0o604));
        assert_eq!(file.metadata().unwrap().nlink(), 1);
        let theirs = File::open(two.path(name)).unwrap();
        let busy = flock(&theirs, FlockOperation::NonBlockingLockShared);
        assert_eq!(busy, Err(Errno::WOULDBLOCK));
        flock(&file, FlockOperation::Unlock).unwrap();
        flock(&theirs, FlockOperation::NonBlockingLockShared).unwrap();
        drop(theirs);
        // It goes on like any other file.
        file.seek(std::io::SeekFrom::End(0)).unwrap();
        file.write_all(b" and more").unwrap();
        drop((file, again));
        two.must_read(name, [&bytes[..], b" and more"].concat());
    }
    // A file that may never have a name.
    let mut file = anonymous(&two, OFlags::EXCL);
    file.write_all(b"scratch").unwrap();
    assert_eq!(link(&file, &two.path("never")), Err(Errno::NOENT));
    drop(file);
    assert_eq!(names(&one), ["large", "small", "taken"]);
    shared.check(&one);
}

#[test]
fn of_files_without_a_name_a_mount_that_is_killed_leaves_nothing() {
    let Some(shared) = Shared::new() else { return };
    // With such a short log, much of them is stored before.
    let mut one = Host::with(shared.url(), &[], &["--staging-size", "8M", "--staging-order", "lrw"]);
    let two = shared.mount();
    let files: Vec<_> = (0..3)
        .map(|seed| {
            let mut file = anonymous(&one, OFlags::empty());
            file.write_all(&noise(seed, 12 << 20)).unwrap();
            file
        })
        .collect();
    link(&files[0], &one.path("named")).unwrap();
    let held = || -> u64 {
        let count = format!("SELECT count(*) FROM {}.held", shared.schema);
        shared.server.sql(&count).parse().unwrap()
    };
    assert!(held() > 0, "the log has no room for them");
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    drop(files);
    // Its own host knows at once that the mount is gone; other hosts know when its lease is over.
    one.done(&["gc"]);
    assert_eq!(held(), 0);
    assert_eq!(names(&two), ["named"]);
    two.must_read("named", noise(0, 12 << 20));
    shared.check(&two);
}
