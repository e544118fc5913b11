//! Entries that `get` leaves out, leaves alone or leaves behind.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Place, Said};

/// A file capability: may bind ports below 1024.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn set(path: &Path, key: &str, value: &[u8]) -> bool {
    let set = rustix::fs::setxattr(path, key, value, XattrFlags::empty());
    if let Err(error) = &set {
        println!("{key} not tried: {error}");
    }
    set.is_ok()
}

fn has(path: &Path, key: &str) -> bool {
    rustix::fs::getxattr(path, key, &mut [0; 64]).is_ok()
}

#[test]
fn what_gives_rights_is_restored_on_request_and_named_otherwise() {
    let place = Place::plain();
    let source = place.write("src/f", "program");
    let keys: Vec<&str> = [("security.capability", &CAPABILITY[..]), ("trusted.t", b"1"), ("user.u", b"2")]
        .into_iter()
        .filter(|(key, value)| set(&source, key, value))
        .map(|(key, _)| key)
        .collect();
    std::fs::set_permissions(&source, PermissionsExt::from_mode(0o4755)).unwrap();
    // Every change of the file removes a capability.
    keys.contains(&"security.capability").then(|| set(&source, "security.capability", &CAPABILITY));
    place.done(&["put", "src"]);
    let said = place.code(4, &["get", "src", "out"]);
    assert!(said.err.contains("its set-id bits (use --special"), "{}", said.err);
    let (out, special) = (place.path("out/f"), place.path("special/f"));
    assert_eq!(std::fs::metadata(&out).unwrap().mode() & 0o7777, 0o755);
    place.done(&["get", "--special", "src", "special"]);
    assert_eq!(std::fs::metadata(&special).unwrap().mode() & 0o7777, 0o4755);
    for key in &keys {
        let gives_rights = *key != "user.u";
        assert_eq!(has(&out, key), !gives_rights, "{key}");
        assert_eq!(said.err.contains(key), gives_rights, "{}", said.err);
        assert!(has(&special, key), "{key}");
    }
    // Another user cannot set them: each is named, and the attributes after them are set all the
    // same.
    let Some(mut get) = place.unprivileged(&["get", "--special", "src", "theirs"]) else {
        return println!("not tried as somebody else");
    };
    let said: Said = get.output().unwrap().into();
    let theirs = place.path("theirs/f");
    for key in &keys {
        assert_eq!(said.err.contains(key), *key != "user.u", "{}", said.err);
        assert_eq!(has(&theirs, key), *key == "user.u", "{key}");
    }
    assert_eq!(said.code, if keys.iter().any(|key| *key != "user.u") { 4 } else { 0 }, "{}", said.err);
}

#[test]
fn a_device_or_fifo_in_the_way_is_not_replaced_unasked() {
    let place = Place::new();
    place.write("small", "content");
    place.write("large", vec![1; 3 << 20]);
    place.done(&["put", "small", "large", "--to", "t"]);
    let in_the_way = |name: &str| {
        let dir = place.path("out");
        std::fs::create_dir_all(&dir).unwrap();
        let dir = std::fs::File::open(dir).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(dir, name, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    in_the_way("small");
    in_the_way("large");
    let said = place.code(4, &["get", "--overwrite", "t", "out"]);
    assert_eq!(said.err.matches("a device, FIFO or socket is there").count(), 2, "{}", said.err);
    for name in ["small", "large"] {
        assert!(std::fs::symlink_metadata(place.path("out").join(name)).unwrap().file_type().is_fifo());
    }
    place.done(&["get", "--overwrite", "--special", "t", "out"]);
    assert_eq!(place.read("out/small"), b"content");
    assert!(place.read("out/large") == place.read("large"));
    assert_eq!(std::fs::read_dir(place.path("out")).unwrap().count(), 2);
}

#[test]
fn hard_links_come_back_over_what_is_there() {
    let place = Place::new();
    for (name, len) in [("small", 10), ("large", 3 << 20)] {
        place.write(format!("src/{name}"), vec![7; len]);
        std::fs::hard_link(place.path(format!("src/{name}")), place.path(format!("src/{name}.2"))).unwrap();
    }
    place.done(&["put", "src"]);
    for round in ["", "--overwrite", "--overwrite"] {
        let mut args = vec!["get", "src", "out"];
        args.extend((!round.is_empty()).then_some(round));
        place.done(&args);
        for name in ["small", "large"] {
            let of = |name: String| std::fs::metadata(place.path(format!("out/{name}"))).unwrap();
            assert_eq!(of(name.to_string()).ino(), of(format!("{name}.2")).ino(), "{name} {round}");
        }
        assert_eq!(std::fs::read_dir(place.path("out")).unwrap().count(), 4);
    }
}

/// Stops a restoration with a signal while a large file is being written; returns what it said.
fn stopped(place: &Place) -> Said {
    for _ in 0..20 {
        let _ = std::fs::remove_dir_all(place.path("out"));
        let child = place
            .command(&["get", "--threads", "1", "t", "out"])
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let begun = || std::fs::read_dir(place.path("out")).is_ok_and(|entries| entries.count() > 0);
        while !begun() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = kill_process(Pid::from_child(&child), Signal::INT);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), None);
        // The restore may be complete before the signal comes.
        if output.status.code() != Some(0) {
            return output.into();
        }
    }
    panic!("twenty restorations were faster than the signal");
}

#[test]
fn an_interrupted_restoration_leaves_whole_files_only() {
    let place = Place::new();
    let made = Command::new("head").args(["-c", "120000000", "/dev/urandom"]).output().unwrap();
    place.write("src/large", made.stdout);
    (0..200).for_each(|n| drop(place.write(format!("src/small{n}"), vec![n as u8 + 1; 5000])));
    place.done(&["put", "src", "--to", "t"]);
    let said = stopped(&place);
    assert_eq!(said.code, 130, "{}", said.err);
    assert!(said.err.contains("stopped; restored files are whole"), "{}", said.err);
    for entry in std::fs::read_dir(place.path("out")).unwrap() {
        let name = entry.unwrap().file_name();
        let restored = std::fs::read(place.path("out").join(&name)).unwrap();
        assert!(restored == std::fs::read(place.path("src").join(&name)).unwrap(), "{name:?}");
    }
    let again = place.run(&["get", "t", "out"]);
    assert!(matches!(again.code, 0 | 4), "{}", again.err);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
}
