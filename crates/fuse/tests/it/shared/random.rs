//! Random operations, each through a random mount, beside the same ones in a plain directory; and
//! the same at once, from several threads.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use outrigger_fuse::fs::{FileSystem, ROOT};
use outrigger_fuse::shared::SharedOptions;
use outrigger_workload::Rng;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::shared::hosts::{Cluster, Host};

const NAMES: [&str; 8] = ["a", "b", "c", "a/x", "a/y", "b/x", "b/y", "a/x/z"];

/// One operation, with its names.
#[derive(Debug)]
enum Step {
    Put(&'static str, Vec<u8>),
    Append(&'static str, Vec<u8>),
    Truncate(&'static str, u64),
    Mkdir(&'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Link(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Chmod(&'static str, u32),
    /// Made without a name, and linked to this one when it is whole.
    Publish(&'static str, Vec<u8>),
}

impl Step {
    fn new(rng: &mut Rng) -> Self {
        let mut below = |bound: u64| rng.below(bound);
        let (kind, one, two) = (below(10), below(8) as usize, below(8) as usize);
        let (name, other) = (NAMES[one], NAMES[two]);
        let len = below(60_000);
        let mode = 0o600 | below(64) as u32;
        let mut bytes = vec![0; len as usize];
        Rng::new(below(12)).fill(&mut bytes);
        match kind {
            0 => Self::Put(name, bytes),
            1 => Self::Append(name, bytes),
            2 => Self::Truncate(name, len),
            3 => Self::Mkdir(name),
            4 => Self::Unlink(name),
            5 => Self::Rmdir(name),
            6 => Self::Link(name, other),
            7 => Self::Rename(name, other),
            8 => Self::Publish(name, bytes),
            _ => Self::Chmod(name, mode),
        }
    }

    fn on_host(&self, host: &Host) -> Result<(), Errno> {
        match self {
            Self::Put(name, bytes) => host.put(name, bytes),
            Self::Append(name, bytes) => host.append(name, bytes),
            Self::Truncate(name, len) => host.truncate(name, *len),
            Self::Mkdir(name) => host.mkdir(name),
            Self::Unlink(name) => host.unlink(name),
            Self::Rmdir(name) => host.rmdir(name),
            Self::Link(name, other) => host.link(name, other),
            Self::Rename(name, other) => host.rename(name, other, RenameFlags::empty()),
            Self::Chmod(name, mode) => host.chmod(name, *mode),
            Self::Publish(name, bytes) => host.publish(name, bytes),
        }
    }

    fn on_disk(&self, dir: &Path) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::PermissionsExt;
        let at = |name: &str| dir.join(name);
        match self {
            Self::Put(name, bytes) => fs::write(at(name), bytes),
            Self::Append(name, bytes) => {
                fs::OpenOptions::new().append(true).create(true).open(at(name))?.write_all(bytes)
            }
            Self::Truncate(name, len) => fs::OpenOptions::new().write(true).open(at(name))?.set_len(*len),
            Self::Mkdir(name) => fs::create_dir(at(name)),
            Self::Unlink(name) => fs::remove_file(at(name)),
            Self::Rmdir(name) => fs::remove_dir(at(name)),
            Self::Link(name, other) => fs::hard_link(at(name), at(other)),
            Self::Rename(name, other) => fs::rename(at(name), at(other)),
            Self::Chmod(name, mode) => fs::set_permissions(at(name), fs::Permissions::from_mode(*mode)),
            Self::Publish(name, bytes) => fs::File::create_new(at(name))?.write_all(bytes),
        }
    }
}

/// The host shows what the directory has.
fn compare(host: &Host, dir: &Path, path: &str) {
    use std::os::unix::fs::MetadataExt;
    let mut wanted: Vec<String> = fs::read_dir(dir.join(path))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    wanted.sort();
    assert_eq!(host.list(path).unwrap(), wanted, "names in `{path}`");
    for name in wanted {
        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
        let (disk, attr) = (fs::metadata(dir.join(&below)).unwrap(), host.stat(&below).unwrap());
        if disk.is_dir() {
            compare(host, dir, &below);
            continue;
        }
        assert_eq!(u64::from(attr.links), disk.nlink(), "links of {below}");
        assert_eq!(attr.size, disk.len(), "length of {below}");
        assert!(host.cat(&below).unwrap() == fs::read(dir.join(&below)).unwrap(), "content of {below}");
    }
}

/// The first of several mounts stores what is written early, the others do not.
fn mount(cluster: &Cluster, number: usize) -> Host {
    let plain = SharedOptions::new(2);
    cluster.mount_with(if number == 0 { SharedOptions { increment_bytes: 4 << 10, ..plain } } else { plain })
}

#[test]
fn random_operations_through_random_mounts_do_what_they_do_in_a_directory() {
    let Some(cluster) = Cluster::new() else { return };
    let hosts: Vec<_> = (0..3).map(|host| mount(&cluster, host)).collect();
    let plain = tempfile::tempdir().unwrap();
    go(&hosts, plain.path());
    hosts.iter().for_each(|host| compare(host, plain.path(), ""));
    cluster.check();
}

#[test]
fn random_operations_through_a_mount_whose_closes_wait_do_what_they_do_in_a_directory() {
    let Some(cluster) = Cluster::new() else { return };
    let closes_within = Duration::from_secs(3600);
    let host = [cluster.mount_with(SharedOptions { closes_within, ..SharedOptions::new(2) })];
    let plain = tempfile::tempdir().unwrap();
    go(&host, plain.path());
    compare(&host[0], plain.path(), "");
    host[0].volume.fsync_dir(ROOT, 0).unwrap();
    compare(&cluster.mount(), plain.path(), "");
    cluster.check();
}

/// The same operations through random ones of these mounts and in a directory.
fn go(hosts: &[Host], plain: &Path) {
    let mut rng = Rng::new(0x5eed);
    for number in 0..250 {
        let (step, at) = (Step::new(&mut rng), rng.below(hosts.len() as u64) as usize);
        let (ours, theirs) = (step.on_host(&hosts[at]), step.on_disk(plain));
        match (&ours, &theirs) {
            (Ok(()), Ok(())) => {}
            (Err(ours), Err(theirs)) => {
                let theirs = theirs.raw_os_error().unwrap();
                // A rename that may fail for two reasons; POSIX leaves the choice. Without a
                // kernel, nothing resolves paths.
                let same = ours.raw_os_error() == theirs
                    || *ours == Errno::PERM && theirs == Errno::EXIST.raw_os_error()
                    || [
                        Errno::NOTDIR,
                        Errno::NOENT,
                        Errno::NOTEMPTY,
                        Errno::INVAL,
                        Errno::ISDIR,
                        Errno::PERM,
                    ]
                    .iter()
                    .any(|either| either.raw_os_error() == theirs);
                assert!(same, "{number}: {step:?}: {ours:?}, in a directory {theirs}");
            }
            _ => panic!("{number}: {step:?} at {at}: {ours:?}, in a directory {theirs:?}"),
        }
        if number % 10 == 9 {
            compare(&hosts[rng.below(hosts.len() as u64) as usize], plain, "");
        }
    }
}

#[test]
fn random_operations_at_once_leave_a_tree_that_is_sound() {
    let Some(cluster) = Cluster::new() else { return };
    let mut hosts: Vec<_> = (0..2).map(|host| mount(&cluster, host)).collect();
    let closes_within = Duration::from_millis(5);
    hosts.push(cluster.mount_with(SharedOptions { closes_within, ..SharedOptions::new(2) }));
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut rng = Rng::new(1000 + 10 * number as u64 + thread);
                    for _ in 0..60 {
                        let step = Step::new(&mut rng);
                        let done = step.on_host(host);
                        let never = [Errno::IO, Errno::STALE, Errno::BUSY];
                        let gone = matches!(done, Err(Errno::STALE)) && !matches!(step, Step::Mkdir(_));
                        assert!(
                            gone || !done.as_ref().is_err_and(|errno| never.contains(errno)),
                            "{step:?}: {done:?}"
                        );
                    }
                });
            }
        }
    });
    hosts[2].volume.fsync_dir(ROOT, 0).unwrap();
    cluster.check();
    // All see the same.
    let tree = |host: &Host| -> Vec<(String, u64, u32)> {
        let mut found = Vec::new();
        let mut queue = vec![String::new()];
        while let Some(path) = queue.pop() {
            for name in host.list(&path).unwrap() {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                let attr = host.stat(&below).unwrap();
                if attr.kind == outrigger_format::catalogue::FileKind::Directory {
                    queue.push(below.clone());
                } else {
                    assert_eq!(host.cat(&below).unwrap().len() as u64, attr.size);
                }
                found.push((below, attr.number, attr.links));
            }
        }
        found
    };
    assert_eq!(tree(&hosts[0]), tree(&hosts[1]));
    assert_eq!(tree(&hosts[1]), tree(&hosts[2]));
}
