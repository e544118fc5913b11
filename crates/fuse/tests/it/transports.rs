//! Every operation through every transport: the file system must see the same calls, and the
//! program the same answers. Where FUSE or the transport cannot be used, the test says so and
//! passes.

use crate::recorder;

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use outrigger_fuse::fs::Counted;
use outrigger_fuse::kernel::{Transport, mount_by};
use outrigger_fuse::mounts;
use rustix::fs::{
    Access, AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec,
    Timestamps, Uid, XattrFlags,
};

use recorder::{Recorder, options};

/// A program's calls and results, in order.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn say<T: Debug, E: Debug>(&mut self, what: &str, result: Result<T, E>) {
        self.0.push(format!("{what}: {result:?}"));
    }
}

/// Calls of the file system and answers to the program; `None`, with the reason printed, where the
/// transport cannot be used.
fn seen(by: Transport) -> Option<(Vec<String>, Vec<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().canonicalize().unwrap();
    let recorder = Arc::new(Recorder::default());
    let counted = Arc::new(Counted::new(Arc::clone(&recorder)));
    let mounted = match mount_by(by, Arc::clone(&counted), &point, &options(1)) {
        Ok(mounted) => mounted,
        Err(error) => {
            outrigger_workload::skipped!("cannot mount: {error}");
            return None;
        }
    };
    if mounted.transport() != by {
        outrigger_workload::lacking!("the kernel does not offer io_uring for FUSE (parameter enable_uring)");
        drop(mounted);
        mounts::unmount(&point, true).unwrap();
        return None;
    }
    let (ready, wait) = mpsc::channel();
    let serving = std::thread::spawn(move || {
        mounted.serve(move || {
            let _ = ready.send(());
        })
    });
    wait.recv().unwrap();
    let before = recorder.take().len();
    let mut said = Said::default();
    names(&point, &mut said);
    attributes(&point, &mut said);
    contents(&point, &mut said);
    // The kernel sends `release` in the background.
    std::thread::sleep(Duration::from_millis(100));
    let calls = recorder.take();
    mounts::unmount(&point, false).unwrap();
    serving.join().unwrap().unwrap();
    let asked = before + calls.len() + recorder.take().len();
    let status = counted.status();
    let counted =
        [status.operations_read, status.operations_write, status.operations_sync, status.operations_other];
    assert_eq!(counted.iter().sum::<u64>(), asked as u64, "{counted:?}");
    assert!(counted.iter().all(|count| *count > 0) && status.read_bytes > 0 && status.written_bytes > 0);
    Some((calls, said.0))
}

fn names(point: &Path, said: &mut Said) {
    let at = |name: &str| point.join(name);
    said.say("lookup of nothing", at("nothing").symlink_metadata().map(drop));
    said.say("long name", at(&"n".repeat(255)).symlink_metadata().map(drop));
    said.say("mkdir", rustix::fs::mkdir(at("new"), Mode::from_raw_mode(0o751)));
    let fifo = rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0);
    said.say("fifo", fifo);
    let device = rustix::fs::makedev(259, 70_000);
    let mode = Mode::from_raw_mode(0o600);
    said.say("device", rustix::fs::mknodat(CWD, at("device"), FileType::BlockDevice, mode, device));
    said.say("symlink", symlink("where/it points", at("symlink")));
    said.say("read link", std::fs::read_link(at("a-link")));
    said.say("link", std::fs::hard_link(at("a-file"), at("hard")));
    said.say("rename", std::fs::rename(at("a-file"), at("a-dir/renamed")));
    for flags in [RenameFlags::NOREPLACE, RenameFlags::EXCHANGE] {
        let to = if flags == RenameFlags::EXCHANGE { "a-dir" } else { "free" };
        said.say("rename with flags", rustix::fs::renameat_with(CWD, at("a-file"), CWD, at(to), flags));
    }
    said.say("unlink", std::fs::remove_file(at("a-file")));
    said.say("rmdir", std::fs::remove_dir(at("a-dir")));
    for name in ["", "a-dir"] {
        let list = |file: File| -> rustix::io::Result<Vec<_>> {
            let entries = Dir::read_from(&file)?.map(|entry| {
                let entry = entry?;
                Ok((entry.file_name().to_owned(), entry.ino(), entry.file_type()))
            });
            let listed = entries.collect();
            rustix::fs::fsync(&file)?;
            listed
        };
        said.say("list", File::open(at(name)).map(list));
    }
}

fn attributes(point: &Path, said: &mut Said) {
    let file = point.join("a-file");
    let stat = rustix::fs::stat(&file).map(|mut stat| {
        // A mount has its own.
        stat.st_dev = 0;
        stat
    });
    said.say("stat", stat);
    let stat =
        rustix::fs::lstat(point.join("a-device")).map(|stat| (stat.st_mode, stat.st_rdev, stat.st_nlink));
    said.say("stat of a device", stat);
    said.say(
        "statfs",
        rustix::fs::statvfs(point).map(|space| (space.f_blocks, space.f_ffree, space.f_namemax)),
    );
    said.say("chmod", rustix::fs::chmod(&file, Mode::from_raw_mode(0o4711)));
    said.say("chown", rustix::fs::chown(&file, Some(Uid::from_raw(7)), None));
    said.say("chgrp", rustix::fs::chown(&file, None, Some(Gid::from_raw(8))));
    for (access, modification) in [(1, 2), (-5, rustix::fs::UTIME_NOW), (rustix::fs::UTIME_OMIT, 9)] {
        let time = |secs: i64| match secs {
            -5..10 => Timespec { tv_sec: secs, tv_nsec: 123_456_789 },
            now => Timespec { tv_sec: 0, tv_nsec: now },
        };
        let times = Timestamps { last_access: time(access), last_modification: time(modification) };
        said.say("times", rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()));
    }
    said.say("truncate", OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(12_345)));
    said.say("access", rustix::fs::access(&file, Access::READ_OK));
    for flags in [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE] {
        said.say("setxattr", rustix::fs::setxattr(&file, c"user.name", b"a value\0with zero", flags));
    }
    said.say("removexattr", rustix::fs::removexattr(&file, c"user.name"));
    for room in [0, 1, 4096] {
        let mut bytes = vec![0; room];
        said.say("getxattr", rustix::fs::getxattr(&file, c"user.any", bytes.as_mut_slice()));
        said.say("listxattr", rustix::fs::listxattr(&file, bytes.as_mut_slice()));
        said.say("bytes", Ok::<_, ()>(bytes));
    }
}

fn contents(point: &Path, said: &mut Said) {
    let created = OpenOptions::new().write(true).read(true).create_new(true).open(point.join("created"));
    said.say("create", created.map(drop));
    let anonymous = OpenOptions::new().write(true).custom_flags(OFlags::TMPFILE.bits() as i32).open(point);
    said.say("create without a name", anonymous.map(|file| file.metadata().map(|told| told.ino())));
    let open = || OpenOptions::new().read(true).write(true).open(point.join("a-file")).unwrap();
    let (file, other) = (open(), open());
    for (offset, len) in [(0, 1), (4095, 2), (1 << 20, 1 << 20), (1 << 33, 3 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at: usize| (at % 249) as u8).collect();
        said.say("write", file.write_at(&bytes, offset));
    }
    let mut bytes = vec![0; 300_000];
    for offset in [0, 77, 1 << 20] {
        said.say("read", file.read_at(&mut bytes, offset));
        said.say(
            "sum",
            Ok::<_, ()>(bytes.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))),
        );
    }
    for (from, name) in
        [(SeekFrom::Data(5), "data"), (SeekFrom::Hole(6), "hole"), (SeekFrom::Data(1 << 40), "none")]
    {
        said.say(name, rustix::fs::seek(&file, from));
    }
    for mode in [FallocateFlags::empty(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE] {
        said.say("fallocate", rustix::fs::fallocate(&file, mode, 1 << 34, 54_321));
    }
    let (mut from, mut to) = (11, 1 << 35);
    said.say("copy", rustix::fs::copy_file_range(&file, Some(&mut from), &other, Some(&mut to), 9_999));
    said.say("fsync", file.sync_all());
    said.say("fdatasync", file.sync_data());
    let append = OpenOptions::new().append(true).open(point.join("a-file"));
    said.say("append", append.and_then(|file| file.write_at(b"at the end", 0)));
}

#[test]
fn transports_carry_the_same() {
    let Some((device_calls, device_said)) = seen(Transport::Device) else { return };
    for call in recorder::CALLS {
        assert!(
            device_calls.iter().any(|line| line.starts_with(call)),
            "{call} was not asked: {device_calls:#?}"
        );
    }
    let Some((ring_calls, ring_said)) = seen(Transport::Rings) else { return };
    assert_eq!(device_said, ring_said);
    // Those in the background may come at another time.
    let split =
        |calls: Vec<String>| calls.into_iter().partition::<Vec<_>, _>(|call| call.starts_with("release"));
    let ((mut device_late, device_calls), (mut ring_late, ring_calls)) =
        (split(device_calls), split(ring_calls));
    for (at, (device, ring)) in device_calls.iter().zip(&ring_calls).enumerate() {
        assert_eq!(device, ring, "call {at}, after {:#?}", &device_calls[at.saturating_sub(3)..at]);
    }
    assert_eq!(device_calls.len(), ring_calls.len());
    device_late.sort();
    ring_late.sort();
    assert_eq!(device_late, ring_late);
}
