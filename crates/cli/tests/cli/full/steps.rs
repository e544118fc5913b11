//! A disk, a quota, a database or a bucket that is full at any step of a command. The command
//! succeeds, or says that it is full. Older data stays whole and readable meanwhile. Once there is
//! room, the command goes on.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_workload::postgres::Server;

use super::{Small, random};
use crate::run::{Place, Said};

/// Takes all room of a directory except so many bytes, until this is dropped.
struct Taken(PathBuf);

impl Taken {
    fn all_but(dir: &Path, free: u64) -> Self {
        let path = dir.join("others");
        let mut file = File::create(&path).unwrap();
        for block in [1 << 20, 64 << 10, 4 << 10] {
            let bytes = vec![0x5a; block];
            while file.write_all(&bytes).is_ok() {}
        }
        let len = file.metadata().unwrap().len();
        file.set_len(len.saturating_sub(free)).unwrap();
        Self(path)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A subvolume of btrfs that may grow by so many bytes only, until this is dropped.
struct Limited<'a>(&'a Place);

impl<'a> Limited<'a> {
    fn to(place: &'a Place, free: u64) -> Self {
        // btrfs counts late what is written late.
        rustix::fs::syncfs(File::open(place.path("disk")).unwrap()).unwrap();
        let shown = btrfs(place, &["qgroup", "show", "--raw", "-f", "disk"]);
        let taken = shown.lines().last().and_then(|line| line.split_whitespace().nth(1));
        let taken: u64 = taken.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{shown}"));
        btrfs(place, &["qgroup", "limit", &(taken + free).to_string(), "0/256", "all"]);
        Self(place)
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        btrfs(self.0, &["qgroup", "limit", "none", "0/256", "all"]);
    }
}

fn btrfs(place: &Place, args: &[&str]) -> String {
    let said = Command::new("btrfs").args(args).current_dir(place.path("")).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// On btrfs without room to change anything nothing works, not even reading.
fn is_btrfs(place: &Place) -> bool {
    place.path("all").exists()
}

fn is_full(place: &Place, said: &Said) -> bool {
    // btrfs may refuse a page of SQLite's mapped index. Then the kernel ends the process (SIGBUS).
    if said.code == -1 && is_btrfs(place) {
        return true;
    }
    let says = |words: &str| said.err.contains(words);
    said.code == 1
        && (says("is full") || says("No space left") || says("Disk quota exceeded") || says("StorageFull"))
}

/// Runs each command on a store that has `kept`, while the value of `filled` for this round exists.
fn at_any_step<F>(place: &Place, rounds: usize, mut filled: impl FnMut(usize) -> F) {
    let kept = random(1, 300 << 10);
    place.write("kept", &kept);
    place.done(&["put", "kept"]);
    for round in 0..rounds {
        let tree = format!("tree{round}");
        for (file, len) in [("large", 200 << 10), ("small", 10 << 10), ("tiny", 10)] {
            place.write(format!("{tree}/{file}"), random(round as u64 + len as u64, len));
        }
        let [copy, moved, snapshot] = ["copy", "moved", "snapshot"].map(|name| format!("{name}{round}"));
        let commands: [&[&str]; 8] = [
            &["put", &tree],
            &["cp", "-r", &tree, &copy],
            &["snapshot", "create", &snapshot],
            &["mv", &copy, &moved],
            &["rm", "-r", &tree],
            &["undo"],
            &["keep", "--automatic", "forever"],
            &["gc"],
        ];
        for args in commands {
            let others = filled(round);
            let said = place.run(args);
            let failed = said.code != 0;
            if failed {
                assert!(is_full(place, &said), "{round} {args:?}: {} {}", said.code, said.err);
            }
            let read = place.run(&["cat", "kept"]);
            let may_fail = is_btrfs(place) && read.code != 0;
            assert!(read.out == kept || may_fail && is_full(place, &read), "{round} {args:?}: {}", read.err);
            drop(others);
            if failed {
                place.done(&["check", "--read-data"]);
                // The command was not done by half: it can be done now. A killed one may have been
                // complete.
                let again = place.run(args);
                assert!(again.code == 0 || said.code == -1, "{round} {args:?}: {}", again.err);
            }
        }
        place.done(&["get", &tree, &format!("back{round}")]);
        for file in ["large", "small", "tiny"] {
            let back = place.read(format!("back{round}/{file}"));
            assert!(back == place.read(format!("{tree}/{file}")), "{tree}/{file}");
        }
    }
    place.done(&["check", "--read-data"]);
}

/// Free bytes: together with the store's own reserve, and in every other round without it.
const FREE: [u64; 6] = [0, 8 << 10, 64 << 10, 512 << 10, 3 << 20, 5 << 20];

fn at_any_step_of_disk<F>(place: &Place, free: &[u64], filled: impl Fn(u64) -> F) {
    place.done(&["init"]);
    at_any_step(place, 2 * free.len(), |round| {
        if round % 2 == 1 {
            let _ = std::fs::remove_file(place.path("disk/store/reserve"));
        }
        filled(free[round / 2])
    });
}

#[test]
fn a_disk_that_is_full_at_any_step_loses_nothing() {
    let place = Place::empty().of("disk/store");
    let Some(disk) = Small::new(&place, "disk", 48) else { return };
    at_any_step_of_disk(&place, &FREE, |free| Taken::all_but(&disk.0, free));
}

/// The file system says that it has room, but this directory has none.
#[test]
fn a_quota_that_is_reached_at_any_step_loses_nothing() {
    let place = Place::empty().of("disk/store");
    let shell = |script: &str| Command::new("sh").args(["-ec", script]).current_dir(place.path("")).output();
    std::fs::create_dir(place.path("all")).unwrap();
    std::fs::create_dir(place.path("disk")).unwrap();
    let made = "truncate -s 300M image; mkfs.btrfs -q image; mount -o loop image all; btrfs -q quota enable all; \
                btrfs -q subvolume create all/part; mount --bind all/part disk";
    let said = shell(made).unwrap();
    if said.status.success() {
        // A copy-on-write file system needs some room even to free something.
        at_any_step_of_disk(&place, &FREE[3..], |free| Limited::to(&place, free));
    }
    let _ = shell("umount -lq disk; umount -lq all");
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        let why = format!("no file system with a quota can be made (btrfs-progs): {}", why.trim());
        if why.contains("not found") {
            outrigger_workload::skipped!("{why}");
        } else {
            outrigger_workload::lacking!("{why}");
        }
    }
}

#[test]
fn a_database_whose_disk_is_full_at_any_step_loses_nothing() {
    let place = Place::empty();
    let Some(disk) = Small::new(&place, "disk", 64) else { return };
    let Some(server) = Server::start("fsync = off") else { return };
    let space = disk.0.join("space");
    std::fs::create_dir(&space).unwrap();
    let owned = Command::new("chown").arg("postgres:").arg(&space).status().unwrap();
    assert!(owned.success());
    for path in [place.path(""), disk.0.clone()] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    }
    server.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", space.display()));
    server.sql("ALTER ROLE CURRENT_USER SET default_tablespace = small");
    let schema = server.fresh();
    let packs = format!("file:{}", place.path("packs").display());
    let place = place.of(&server.url(&schema));
    place.done(&["init", "--packs", &packs]);
    let disk = disk.0.clone();
    at_any_step(&place, 4, |round| Taken::all_but(&disk, FREE[round]));
}
