//! The read-only volume mounted by the kernel, over each transport. Where FUSE or the transport
//! cannot be used, each test says so and passes.

use crate::support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use outrigger_fuse::kernel::{MountOptions, Transport, mount_by};
use outrigger_fuse::mounts;
use outrigger_workload::{
    CompareOptions, Difference, NastyOptions, Rng, TreeOptions, compare_trees_with, nasty_tree, source_tree,
};
use rustix::io::Errno;

use support::Place;

/// Compares the source with the mount: the entries of the root, but not its own attributes, which
/// were not copied.
fn compare(place: &Place, mount: &Mount) -> Vec<Difference> {
    let options = CompareOptions { roots: false, ..CompareOptions::default() };
    compare_trees_with(&place.source(), &mount.point, &options).unwrap()
}

/// A mounted volume; unmounted when dropped, so that a failed test leaves nothing behind.
struct Mount {
    point: PathBuf,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Mount {
    /// `None` where FUSE cannot be used.
    fn new(place: &Place, by: Transport, at: Option<&str>) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        let point = place.dir.path().canonicalize().unwrap().join(format!("mount-{}", at.unwrap_or("now")));
        std::fs::create_dir(&point).unwrap();
        let options = MountOptions {
            source: "test".to_string(),
            read_only: true,
            allow_other: false,
            check_permissions: true,
            suid: false,
            dev: false,
            exec: true,
            threads: 2,
        };
        let mounted = match mount_by(by, Arc::new(place.volume(at)), &point, &options) {
            Ok(mounted) if mounted.transport() != by => {
                outrigger_workload::lacking!(
                    "the kernel does not offer io_uring for FUSE (parameter enable_uring)"
                );
                drop(mounted);
                mounts::unmount(&point, true).unwrap();
                return None;
            }
            Ok(mounted) => mounted,
            Err(error) => {
                outrigger_workload::skipped!("cannot mount: {error}");
                return None;
            }
        };
        let (ready, wait) = mpsc::channel();
        let serving = std::thread::spawn(move || {
            mounted.serve(move || {
                let _ = ready.send(());
            })
        });
        wait.recv().unwrap();
        Some(Self { point, serving: Some(serving) })
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    fn unmount(mut self) {
        mounts::unmount(&self.point, false).unwrap();
        self.serving.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            let _ = mounts::unmount(&self.point, true);
            if !std::thread::panicking() {
                let _ = serving.join();
            }
        }
    }
}

macro_rules! over_each_transport {
    ($($test:ident,)*) => {
        mod device {
            $(#[test] fn $test() { super::$test(super::Transport::Device); })*
        }
        mod rings {
            $(#[test] fn $test() { super::$test(super::Transport::Rings); })*
        }
    };
}

over_each_transport! {
    a_tree_of_everything_is_the_same_in_the_mount,
    reads_at_random_and_mappings_see_the_same_bytes,
    many_readers_at_once_see_the_same_bytes,
    two_snapshots_and_the_present_side_by_side,
    a_file_with_holes_is_copied_with_holes,
    what_is_open_keeps_the_mount_unless_it_is_lazy,
}

fn a_tree_of_everything_is_the_same_in_the_mount(by: Transport) {
    let place = Place::new();
    nasty_tree(&place.source(), &NastyOptions::new(11)).unwrap();
    source_tree(&place.source().join("code"), &TreeOptions::new(11, 300)).unwrap();
    place.put();
    let Some(mount) = Mount::new(&place, by, None) else { return };
    for _ in 0..2 {
        let differences = compare(&place, &mount);
        assert!(differences.is_empty(), "{differences:#?}");
    }
    let find = |dir: &Path| Command::new("find").args([".", "-ls"]).current_dir(dir).output().unwrap();
    let (here, there) = (find(&place.source()), find(&mount.point));
    assert!(there.status.success() && there.stderr.is_empty(), "{}", String::from_utf8_lossy(&there.stderr));
    let lines = |said: &[u8]| said.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines(&here.stdout), lines(&there.stdout));
    mount.unmount();
}

fn reads_at_random_and_mappings_see_the_same_bytes(by: Transport) {
    let place = Place::new();
    let mut rng = Rng::new(4);
    let mut bytes = vec![0; 24 << 20];
    rng.fill(&mut bytes[..12 << 20]);
    for (at, byte) in bytes[12 << 20..].iter_mut().enumerate() {
        *byte = (at / 100) as u8;
    }
    std::fs::write(place.source().join("big"), &bytes).unwrap();
    place.put();
    let Some(mount) = Mount::new(&place, by, None) else { return };
    let file = File::open(mount.path("big")).unwrap();
    for _ in 0..500 {
        let at = rng.index(bytes.len());
        let mut part = vec![0; rng.index(200_000).min(bytes.len() - at)];
        file.read_exact_at(&mut part, at as u64).unwrap();
        assert!(part == bytes[at..at + part.len()], "at {at}");
    }
    drop(file);
    assert!(std::fs::read(mount.path("big")).unwrap() == bytes);
    let script = "import mmap,sys\na,b=[open(p,'rb') for p in sys.argv[1:]]\n\
        m=lambda f: mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ)\nsys.exit(0 if m(a)[:]==m(b)[:] else 9)";
    let mapped = Command::new("python3")
        .args(["-c", script])
        .args([place.source().join("big"), mount.path("big")])
        .status();
    match mapped {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => outrigger_workload::skipped!("mappings, python3 is not here: {error}"),
    }
    mount.unmount();
}

fn many_readers_at_once_see_the_same_bytes(by: Transport) {
    let place = Place::new();
    source_tree(&place.source(), &TreeOptions::new(2, 400)).unwrap();
    place.put();
    let Some(mount) = Mount::new(&place, by, None) else { return };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(compare(&place, &mount), []));
        }
    });
    mount.unmount();
}

fn two_snapshots_and_the_present_side_by_side(by: Transport) {
    let place = Place::new();
    let file = place.source().join("file");
    for (text, name) in [("one", "first"), ("two!", "second")] {
        std::fs::write(&file, text).unwrap();
        place.put();
        place.snapshot(name);
    }
    std::fs::write(&file, "three").unwrap();
    place.put();
    let Some(mount) = Mount::new(&place, by, None) else { return };
    let Some(second) = Mount::new(&place, by, Some("second")) else { return };
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    for _ in 0..2 {
        assert_eq!(read(mount.path("file")), "three");
        assert_eq!(read(mount.path(".snapshots/first/file")), "one");
        assert_eq!(read(mount.path(".snapshots/second/file")), "two!");
        assert_eq!(read(second.path("file")), "two!");
    }
    let mut names: Vec<_> = std::fs::read_dir(mount.path(".snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["first", "second"]);
    let number = |path: PathBuf| std::fs::metadata(path).unwrap().ino();
    assert_ne!(number(mount.path("file")), number(mount.path(".snapshots/first/file")));
    let error = std::fs::write(mount.path("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    second.unmount();
    mount.unmount();
}

fn a_file_with_holes_is_copied_with_holes(by: Transport) {
    let place = Place::new();
    let file = File::create(place.source().join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(&[9; 100_000], 1 << 39).unwrap();
    drop(file);
    place.put();
    let Some(mount) = Mount::new(&place, by, None) else { return };
    let stat = std::fs::metadata(mount.path("sparse")).unwrap();
    assert_eq!(stat.len(), 1 << 40);
    assert!(stat.blocks() * 512 < 1 << 20, "{} blocks", stat.blocks());
    // Looks for data and holes; else this would take hours.
    assert_eq!(compare(&place, &mount), []);
    mount.unmount();
}

fn what_is_open_keeps_the_mount_unless_it_is_lazy(by: Transport) {
    let place = Place::new();
    std::fs::write(place.source().join("file"), "still here").unwrap();
    place.put();
    let Some(mut mount) = Mount::new(&place, by, None) else { return };
    let file = File::open(mount.path("file")).unwrap();
    let busy = mounts::unmount(&mount.point, false).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    mounts::unmount(&mount.point, true).unwrap();
    assert!(mounts::at(&mount.point).unwrap().is_none());
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    drop(file);
    mount.serving.take().unwrap().join().unwrap().unwrap();
    assert_eq!(place.open().meta.sessions().unwrap().len(), 0, "the mount's session has ended with it");
}
