//! A mount whose store is moved, replaced or removed, and one whose session is over. Without FUSE
//! these tests say so and pass.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use outrigger_store::Store;
use outrigger_store::meta::SessionKind;
use outrigger_workload::eventually;
use rustix::io::Errno;

use crate::run::{Place, clock};
use crate::writable::Mounts;

/// Reads everything below a directory in many threads at once, after the kernel's cache was
/// dropped.
fn walk_at_once(dir: &Path) {
    let walk = || {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let _ = entry.metadata();
        }
    };
    std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(walk))));
}

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
    file.sync_all().unwrap();
}

/// The error of a change in the mount.
fn refused(place: &Place) -> Option<Errno> {
    fs::write(place.path("mnt/one-more"), "x").err().and_then(|error| Errno::from_io_error(&error))
}

fn names(place: &Place, store: &str) -> String {
    place.lines(&["-s", store, "ls"]).join(" ")
}

#[test]
fn a_mount_goes_on_in_its_store_when_another_one_takes_its_place() {
    let Some(site) = Mounts::new() else { return };
    let place = &site.place;
    for n in 0..4 {
        place.write(format!("theses/{n}"), format!("thesis {n}\n"));
        place.write(format!("scratch/{n}"), format!("scratch {n}\n"));
    }
    place.done(&["put", "theses"]);
    place.done(&["-s", "other", "init"]);
    place.done(&["-s", "other", "put", "scratch"]);
    fs::rename(place.path("store"), place.path("moved")).unwrap();
    fs::rename(place.path("other"), place.path("store")).unwrap();
    for n in 0..4 {
        append(&place.path(format!("mnt/theses/{n}")), "a line");
        // By the store's present path, so that the kernel asks for all names again.
        place.done(&["-s", "moved", "snapshot", "create", &format!("s{n}")]);
        place.done(&["-s", "moved", "rm", &format!("theses/{n}"), "--quiet"]);
        fs::write(place.path(format!("mnt/new-{n}")), "new").unwrap();
        walk_at_once(&place.path("mnt"));
        assert!(!place.path("mnt/scratch").exists());
    }
    place.done(&["unmount", "mnt"]);
    for left in ["staging", "mount.sock"] {
        assert!(!place.path("moved").join(left).exists(), "{left}");
    }
    assert_eq!(names(place, "moved"), "new-0 new-1 new-2 new-3 theses");
    assert_eq!(place.done(&["-s", "moved", "cat", "--at", "s3", "theses/3"]).text(), "thesis 3\na line\n");
    assert_eq!(names(place, "store"), "scratch");
    for store in ["moved", "store"] {
        place.done(&["-s", store, "check", "--read-data"]);
    }
}

#[test]
fn no_store_is_made_where_a_mount_s_store_was() {
    let Some(site) = Mounts::new() else { return };
    let place = &site.place;
    fs::rename(place.path("store"), place.path("moved")).unwrap();
    let said = place.code(1, &["init"]);
    assert!(
        said.err.contains("is still mounted at") && said.err.contains("unmount it first"),
        "{}",
        said.err
    );
    assert!(!place.path("store").exists());
    place.done(&["unmount", "mnt"]);
    place.done(&["init"]);
}

#[test]
fn a_mount_whose_store_was_removed_says_so_and_acknowledges_nothing_more() {
    let Some(mut site) = Mounts::new() else { return };
    let place = &site.place;
    let open = File::create(place.path("mnt/letter")).unwrap();
    (&open).write_all(b"dear").unwrap();
    fs::remove_dir_all(place.path("store")).unwrap();
    let error = open.sync_all().unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
    drop(open);
    eventually("changes are refused", || refused(place) == Some(Errno::IO));
    let said = place.code(1, &["unmount", "mnt"]);
    assert!(
        said.err.contains("was removed or replaced") && said.err.contains("is lost"),
        "what and why: {}",
        said.err
    );
    assert!(!site.child.wait().unwrap().success());
}

#[test]
fn a_store_made_where_one_was_removed_is_left_alone_by_its_mount() {
    let Some(site) = Mounts::new() else { return };
    let place = &site.place;
    place.done(&["-s", "other", "init"]);
    fs::write(place.path("mnt/letter"), "dear").unwrap();
    fs::remove_dir_all(place.path("store")).unwrap();
    fs::rename(place.path("other"), place.path("store")).unwrap();
    eventually("changes are refused", || refused(place) == Some(Errno::IO));
    let said = place.code(1, &["unmount", "mnt"]);
    assert!(said.err.contains("is lost"), "{}", said.err);
    assert_eq!(place.lines(&["ls"]), [""; 0]);
    assert!(!place.path("store/staging").exists());
}

#[test]
fn a_mount_whose_session_is_over_is_in_trouble() {
    let Some(site) = Mounts::new() else { return };
    let place = &site.place;
    let trouble = || place.done(&["status", "--json"]).json()["mount_trouble"].clone();
    assert!(trouble().is_null());
    fs::write(place.path("mnt/before"), "kept").unwrap();
    {
        let store = Store::open(&place.path("store"), false).unwrap();
        let sessions = store.meta.sessions().unwrap();
        sessions
            .iter()
            .filter(|row| row.kind == SessionKind::Writer)
            .for_each(|row| store.meta.fence(row.id).unwrap());
    }
    assert!(trouble().as_str().unwrap().contains("the mount's session has ended"));
    assert!(place.done(&["status"]).text().contains("trouble    the mount's session has ended"));
    eventually("changes are refused", || refused(place) == Some(Errno::STALE));
    let said = place.code(1, &["unmount", "mnt"]);
    assert!(said.err.contains("could not be stored"), "{}", said.err);
    // The next command takes over the acknowledged data.
    assert_eq!(place.done(&["cat", "before"]).text(), "kept");
}

#[test]
fn setting_the_clock_ends_no_session() {
    let Some(behind_clock) = clock("-1h") else { return };
    let place = Place::new();
    // One command's clock is an hour behind. Other commands, whose clock is right, see its session.
    let mut behind = place.command(&["put", "-", "--to", "slow"]);
    behind.envs(behind_clock);
    let mut put = behind.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    input.write_all(&vec![1; 1 << 20]).unwrap();
    let standing = || place.done(&["status", "--json"]).json()["sessions"][0]["standing"].clone();
    eventually("it has a session", || standing() == "live");
    place.done(&["gc"]);
    assert_eq!(standing(), "live");
    drop(input);
    assert!(put.wait().unwrap().success());
    assert_eq!(place.lines(&["ls"]), ["slow"]);
}
