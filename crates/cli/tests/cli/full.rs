//! A disk that is full: what was committed stays and is whole, and space can be given back.

use std::path::PathBuf;
use std::process::Command;

use outrigger_workload::Rng;

use crate::run::Place;

/// A file system in memory of so many MiB, for as long as this is there.
struct Small(PathBuf);

impl Small {
    /// None, and a line that says so, where this may not be done.
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
    assert!(said.err.contains("`outrigger gc` gives back what an unfinished command wrote"), "{}", said.err);

    assert!(place.done(&store(&["cat", "first"])).out == first);
    place.done(&store(&["check", "--read-data"]));
    // Files are committed whole: what is there is as it was.
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

/// The disk of the first tier is full before its bound is reached: what does not fit goes to the next, in the middle of a pack.
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
