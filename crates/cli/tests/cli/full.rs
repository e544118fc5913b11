//! A full disk: committed data stays whole, and space can be freed.

mod steps;

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use outrigger_workload::Rng;

use crate::run::Place;

/// A file system in memory of so many MiB, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    /// `None`, with a line that says so, if this process may not mount one.
    fn new(place: &Place, name: &str, mib: u32) -> Option<Self> {
        let dir = place.path(name);
        std::fs::create_dir(&dir).unwrap();
        let size = format!("size={mib}m");
        let said =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&dir).output().unwrap();
        if !said.status.success() {
            outrigger_workload::skipped!(
                "no small file system can be mounted: {}",
                String::from_utf8_lossy(&said.stderr).trim()
            );
            return None;
        }
        Some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A new store of a workplace, mounted on `mnt` until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`, with a line that says so, without FUSE.
    fn new(place: &Place) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        std::fs::create_dir(place.path("mnt")).unwrap();
        place.done(&["init"]);
        place.done(&["mount", "mnt"]);
        Some(Self(place.path("mnt")))
    }

    fn end(self, place: &Place) {
        place.done(&["unmount", "mnt"]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-lq").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_fails_a_put_and_what_was_committed_is_whole() {
    let place = Place::empty();
    let Some(_disk) = Small::new(&place, "disk", 40) else { return };
    place.done(&store(&["init"]));
    let first = random(1, 8 << 20);
    place.write("first", &first);
    place.done(&store(&["put", "first"]));
    for n in 0..3_000_u64 {
        place.write(format!("tree/{}/{n}", n / 100), random(2 + n, 16 << 10));
    }
    let said = place.code(1, &store(&["put", "tree"]));
    assert!(said.err.contains("No space left on device") || said.err.contains("is full"), "{}", said.err);
    assert!(said.err.contains("committed data is kept"), "{}", said.err);
    // What a plain `rm` removes stays for `undo`, so it is no way to free space.
    assert!(said.err.contains("`outrigger rm -r --no-snapshot`"), "{}", said.err);

    assert!(place.done(&store(&["cat", "first"])).out == first);
    place.done(&store(&["check", "--read-data"]));
    // Files are committed whole: each one that exists is complete.
    let listed = place.run(&store(&["ls", "-R", "tree"]));
    let files =
        listed.text().lines().filter(|line| line.contains('/')).map(str::to_string).collect::<Vec<_>>();
    for file in files.iter().step_by(97) {
        let stored = place.done(&store(&["cat", &format!("tree/{file}")])).out;
        assert!(stored == place.read(format!("tree/{file}")), "{file}");
    }

    place.done(&store(&["rm", "first"]));
    if listed.code == 0 {
        place.done(&store(&["rm", "-r", "tree"]));
    }
    place.done(&store(&["gc"]));
    place.write("second", random(9, 16 << 20));
    place.done(&store(&["put", "second"]));
    assert!(place.done(&store(&["cat", "second"])).out == place.read("second"));
    place.done(&store(&["check", "--read-data"]));
}

/// The first tier's disk is full before its bound is reached. The rest goes to the next tier, even
/// in the middle of a pack.
#[test]
fn a_tier_whose_disk_is_full_is_passed_over() {
    let place = Place::empty();
    let Some(_disk) = Small::new(&place, "fast", 20) else { return };
    let fast = format!("file:{}?fill=1G", place.path("fast/packs").display());
    let large = format!("file:{}", place.path("large").display());
    place.done(&["init", "--pack-size", "4M", "--packs", &fast, "--packs", &large]);
    let bytes = random(4, 48 << 20);
    place.write("f", &bytes);
    place.done(&["put", "f"]);
    assert!(place.done(&["cat", "f"]).out == bytes);
    place.done(&["check", "--read-data"]);
    let held = |name: &str| {
        let said = Command::new("du").args(["-s", "--block-size=1M"]).arg(place.path(name)).output().unwrap();
        let text = String::from_utf8(said.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert!(held("fast") >= 12 && held("large") >= 24, "{} and {} MiB", held("fast"), held("large"));
    let said = place.done(&["rebalance", "--to-fill", "4M", "--dry-run", "--json"]).json();
    assert!(said["packs"].as_u64().unwrap() > 1 && held("fast") >= 12, "{said}");
    let done = place.done(&["rebalance", "--to-fill", "4M", "--json"]).json();
    assert_eq!(done["bytes"], said["bytes"]);
    assert!(held("fast") <= 5, "{} MiB", held("fast"));
    assert!(place.done(&["cat", "f"]).out == bytes);
    place.done(&["check", "--read-data"]);
    let said = place.code(2, &["-s", "other", "init", "--packs", &large, "--packs", &fast]);
    assert!(said.err.contains("fill=200G"), "{}", said.err);
}

fn store<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["-s", "disk/store"], args].concat()
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Packs have room for all acknowledged data, and a removal frees room, however full the disk is.
#[test]
fn a_mount_that_has_filled_its_disk_is_emptied_and_goes_on() {
    let place = Place::empty().of("disk/store");
    let Some(_disk) = Small::new(&place, "disk", 120) else { return };
    let Some(mount) = Mounted::new(&place) else { return };
    let kept = random(1, 3 << 20);
    place.write("mnt/kept", &kept);
    // Each file is whole, or its writer got an error.
    let mut whole = Vec::new();
    let full = (0..200).find(|n| {
        let name = format!("mnt/{n}");
        let written = std::fs::write(place.path(&name), random(100 + n, 2 << 20));
        match written {
            Ok(()) => whole.push((name, *n)),
            Err(ref error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
        }
        written.is_err()
    });
    assert!(full.is_some() && whole.len() > 20, "{} files of 2 MiB went onto 120 MiB", whole.len());
    place.done(&["ls"]);
    assert!(place.done(&["cat", "kept"]).out == kept);
    place.done(&["check", "--read-data"]);
    for (name, n) in &whole {
        assert!(place.read(name) == random(100 + n, 2 << 20), "{name}");
    }
    for (name, _) in whole.iter().skip(1) {
        std::fs::remove_file(place.path(name)).unwrap();
    }
    place.done(&["gc"]);
    place.write("mnt/again", random(7, 20 << 20));
    mount.end(&place);
    assert!(place.done(&["cat", "again"]).out == random(7, 20 << 20));
    assert!(place.done(&["cat", "kept"]).out == kept);
    place.done(&["check", "--read-data"]);
}

/// A file that is written and removed before it is stored leaves nothing behind.
#[test]
fn a_file_that_is_too_large_for_the_disk_is_removed_with_all_its_room() {
    let place = Place::empty().of("disk/store");
    let Some(_disk) = Small::new(&place, "disk", 100) else { return };
    let Some(mount) = Mounted::new(&place) else { return };
    for _ in 0..2 {
        let error = std::fs::write(place.path("mnt/large"), random(1, 150 << 20)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        std::fs::remove_file(place.path("mnt/large")).unwrap();
        // A part of the file was stored.
        place.done(&["gc"]);
        place.write("mnt/small", "small");
    }
    place.write("mnt/again", random(7, 20 << 20));
    mount.end(&place);
    assert!(place.done(&["cat", "again"]).out == random(7, 20 << 20));
    assert_eq!(place.done(&["cat", "small"]).text(), "small");
}

/// Another program has taken all room. Readers need none, and commands that free some have enough.
#[test]
fn a_disk_that_others_have_filled_locks_nobody_out() {
    let place = Place::empty().of("disk/store");
    let Some(_disk) = Small::new(&place, "disk", 64) else { return };
    place.done(&["init"]);
    let (first, second) = (random(1, 8 << 20), random(2, 8 << 20));
    place.write("first", &first);
    place.write("second", &second);
    place.done(&["put", "first"]);
    place.done(&["put", "second"]);
    let _ = std::fs::write(place.path("disk/others"), random(3, 64 << 20));
    assert!(place.done(&["cat", "first"]).out == first);
    assert_eq!(place.done(&["ls"]).text(), "first\nsecond\n");
    place.done(&["get", "first", "back"]);
    place.done(&["check", "--read-data"]);
    place.done(&["status"]);
    place.write("third", random(4, 1 << 20));
    let said = place.code(1, &["put", "third"]);
    assert!(said.err.contains("is full"), "{}", said.err);
    place.done(&["rm", "--no-snapshot", "first"]);
    place.done(&["gc"]);
    place.done(&["put", "third"]);
    assert!(place.done(&["cat", "second"]).out == second);
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_target_that_takes_nothing_ends_a_get_at_once() {
    let place = Place::new();
    for n in 0..300_u64 {
        place.write(format!("tree/{n}"), random(n, 40 << 10));
    }
    place.done(&["put", "tree"]);
    let Some(disk) = Small::new(&place, "small", 4) else { return };
    let said = place.code(1, &["get", "tree", "small/back"]);
    assert!(said.err.lines().count() == 1 && said.err.contains("No space left on device"), "{}", said.err);
    // All restored files are whole.
    for entry in std::fs::read_dir(place.path("small/back")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(place.read(format!("small/back/{name}")) == place.read(format!("tree/{name}")), "{name}");
    }
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap();
    assert!(status.success());
    let said = place.code(1, &["get", "tree/1", "small/one"]);
    assert!(said.err.lines().count() == 1 && said.err.contains("Read-only file system"), "{}", said.err);
}
