//! Keys with fewer rights than all, through the program, on a directory and on PostgreSQL.

use std::fs::File;
use std::process::Stdio;

use outrigger_workload::eventually;

use crate::keys::Home;
use crate::run::{Said, noise};

/// A user with a store in a directory, and one with a store in PostgreSQL if that is installed. Each
/// store has files and a snapshot; `fewer.key` was added with `flag`, and the user has no other key
/// where commands look for one.
fn homes(flag: &str) -> Vec<Home> {
    let homes = Home::on_each_engine();
    for home in &homes {
        home.0.write("docs/large", noise(1, 3 << 20));
        home.0.write("docs/small", "a small file");
        home.0.write("new", "what is new");
        home.done(&["put", "docs"]);
        home.done(&["snapshot", "create", "before"]);
        home.done(&["key", "add", flag, "--file", "fewer.key", "--label", "fewer"]);
        std::fs::rename(home.key_file(), home.0.path("owner.key")).unwrap();
    }
    homes
}

/// A command of the host that has the key with fewer rights.
fn fewer(home: &Home, args: &[&str]) -> Said {
    home.run(&[&["--key-file", "fewer.key"], args].concat())
}

#[track_caller]
fn owner(home: &Home, args: &[&str]) -> Said {
    home.done(&[&["--key-file", "owner.key"], args].concat())
}

#[track_caller]
fn works(home: &Home, args: &[&str]) -> Said {
    let said = fewer(home, args);
    assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
    said
}

#[track_caller]
fn is_refused(home: &Home, why: &str, args: &[&str]) {
    let said = fewer(home, args);
    assert!(said.code == 1 && said.err.contains(why), "{args:?} {} {}", said.code, said.err);
    let what_to_do = said.err.contains("--key-file");
    assert!(what_to_do && !said.err.contains("damaged"), "{args:?} {}", said.err);
}

/// The ids of the packs, and what `ls` shows, to see that nothing has changed.
fn state(home: &Home) -> (String, String, String) {
    let text = |args: &[&str]| owner(home, args).text();
    (text(&["ls", "-l"]), text(&["snapshot", "list"]), text(&["key", "list"]))
}

/// Every command that changes a store.
const CHANGES: &[&[&str]] = &[
    &["put", "new"],
    &["put", "docs"],
    &["import", "docs.tar", "--to", "imported"],
    &["rm", "-r", "docs"],
    &["mv", "docs", "moved"],
    &["cp", "docs", "copied"],
    &["undo"],
    &["snapshot", "create", "mine"],
    &["snapshot", "delete", "before"],
    &["keep", "--last", "1"],
    &["policy", "set", "docs", "versions=all"],
    &["gc"],
    &["recompress"],
    &["check", "--repair"],
    &["run", "--in", "docs/small", "--out", "out", "--", "cat"],
    &["mount", "mnt"],
    &["key", "add", "--paper"],
    &["key", "add", "--read-only", "--paper"],
    &["key", "remove", "fewer"],
    &["key", "rotate", "--drop-others"],
];

#[test]
fn a_key_that_only_reads_is_refused_every_change() {
    for home in homes("--read-only") {
        owner(&home, &["export", "docs", "docs.tar"]);
        std::fs::create_dir(home.0.path("mnt")).unwrap();
        let before = state(&home);
        for args in CHANGES {
            is_refused(&home, "only reads it", args);
        }
        assert_eq!(state(&home), before);
    }
}

#[test]
fn a_key_that_only_reads_reads_everything() {
    for home in homes("--read-only") {
        assert!(works(&home, &["ls"]).text().contains("docs"));
        assert_eq!(works(&home, &["cat", "docs/small"]).text(), "a small file");
        works(&home, &["get", "docs", "out"]);
        assert_eq!(home.0.read("out/large"), noise(1, 3 << 20));
        works(&home, &["get", "--at", "before", "docs", "earlier"]);
        works(&home, &["export", "docs", "docs.tar"]);
        works(&home, &["check"]);
        works(&home, &["check", "--read-data"]);
        works(&home, &["diff", "before:docs", "docs"]);
        assert!(works(&home, &["find", "small"]).text().contains("docs/small"));
        assert!(works(&home, &["snapshot", "list"]).text().contains("before"));
        works(&home, &["status"]);
        works(&home, &["stats"]);
        let list = works(&home, &["key", "list"]).text();
        let line = list.lines().find(|line| line.ends_with("fewer")).unwrap();
        assert!(line.contains("read-only"), "{list}");
        assert!(list.lines().any(|line| line.contains("  all  ")), "{list}");
        let keys = works(&home, &["key", "list", "--json"]).json();
        let rights: Vec<&str> =
            keys["keys"].as_array().unwrap().iter().map(|key| key["rights"].as_str().unwrap()).collect();
        assert!(rights.len() == 2 && rights.contains(&"all") && rights.contains(&"read-only"), "{rights:?}");
    }
}

/// A host that reads keeps a replica up to date. Into another store its key lets nobody copy.
#[test]
fn a_key_that_only_reads_copies_out_and_not_in() {
    for home in homes("--read-only") {
        let store = home.0.store().to_string();
        for text in ["first", "second"] {
            home.0.write("docs/small", text);
            owner(&home, &["put", "docs"]);
            works(&home, &["copy", &store, "replica"]);
            assert_eq!(works(&home, &["-s", "replica", "cat", "docs/small"]).text(), text);
        }
    }
    let home = Home::new(&["--no-encryption"]);
    home.done(&["put", "a-name-that-nobody-should-see.txt", "--to", "first"]);
    home.done(&["copy", "store", "sealed", "--encrypt"]);
    home.done(&["-s", "sealed", "key", "add", "--read-only", "--file", "fewer.key"]);
    is_refused(&home, "only reads it", &["copy", "store", "sealed"]);
    home.done(&["copy", "store", "sealed"]);
}

#[test]
fn a_key_that_only_reads_mounts_read_only() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return outrigger_workload::skipped!("/dev/fuse cannot be opened");
    }
    for home in homes("--read-only") {
        let point = home.0.path("mnt");
        std::fs::create_dir(&point).unwrap();
        let args = ["--key-file", "fewer.key", "mount", "--read-only", "--foreground", "mnt"];
        let mut child = home.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("mounting", || point.join("docs").exists());
        assert_eq!(std::fs::read_to_string(point.join("docs/small")).unwrap(), "a small file");
        assert!(std::fs::write(point.join("docs/small"), "x").is_err());
        home.done(&["unmount", "mnt"]);
        child.wait().unwrap();
    }
}

#[test]
fn a_rotation_keeps_the_rights_of_keys() {
    let homes = homes("--read-only");
    let home = &homes[0];
    let said = home.run(&["--key-file", "owner.key", "key", "rotate"]);
    assert!(said.code == 1 && said.err.contains("read-only key `fewer`"), "{}", said.err);
    owner(home, &["key", "rotate", "--keep", "fewer.key"]);
    owner(home, &["put", "new"]);
    assert_eq!(works(home, &["cat", "new"]).text(), "what is new");
    is_refused(home, "only reads it", &["put", "new"]);
    // However many keys read it, one that may change it must stay.
    let said = home.run(&["--key-file", "owner.key", "key", "remove", "key file"]);
    assert!(said.code != 0 && said.err.contains("last key"), "{}", said.err);
}

/// Commands that a host which only stores is refused, apart from those that also one is which only
/// reads: they would need contents, or change what others have stored.
const NOT_STORING: &[&[&str]] = &[
    &["cat", "docs/small"],
    &["cat", "mine/small"],
    &["get", "docs", "out"],
    &["get", "mine", "out"],
    &["get", "--at", "before", "docs", "out"],
    &["export", "docs", "out.tar"],
    &["check"],
    &["check", "--read-data"],
    &["check", "--repair"],
    &["rm", "-r", "docs"],
    &["mv", "docs", "moved"],
    &["cp", "docs", "copied"],
    &["undo"],
    &["snapshot", "delete", "before"],
    &["keep", "--last", "1"],
    &["policy", "set", "docs", "versions=all"],
    &["gc"],
    &["recompress"],
    &["run", "--in", "docs/small", "--out", "out", "--", "cat"],
    &["key", "add", "--paper"],
    &["key", "add", "--put-only", "--paper"],
    &["key", "remove", "fewer"],
    &["key", "rotate", "--drop-others"],
];

#[test]
fn a_key_that_only_stores_stores_and_finds_what_is_stored() {
    for home in homes("--put-only") {
        owner(&home, &["export", "docs", "docs.tar"]);
        // What it stores itself, what others have stored, and what a tar archive has.
        home.0.write("mine/small", "a small file of the host");
        home.0.write("mine/large", noise(2, 3 << 20));
        works(&home, &["put", "mine", "--tag", "host"]);
        let stored = bytes_of_data(&home);
        for args in [
            &["put", "mine", "--to", "again"][..],
            &["put", "docs", "--to", "copies"],
            &["import", "docs.tar", "--to", "imported"],
        ] {
            works(&home, args);
            assert_eq!(bytes_of_data(&home), stored, "{args:?} finds what is stored");
        }
        home.0.write("docs/small", "changed");
        works(&home, &["put", "docs"]);
        assert!(works(&home, &["ls"]).text().contains("again"));
        assert!(works(&home, &["find", "large"]).text().contains("mine/large"));
        works(&home, &["snapshot", "list"]);
        works(&home, &["status"]);
        let list = works(&home, &["key", "list"]).text();
        assert!(list.lines().any(|line| line.contains("put-only") && line.ends_with("fewer")), "{list}");

        owner(&home, &["check", "--read-data"]);
        assert_eq!(owner(&home, &["cat", "mine/small"]).text(), "a small file of the host");
        assert_eq!(owner(&home, &["cat", "docs/small"]).text(), "changed");
        for tree in ["mine", "again", "copies", "imported"] {
            owner(&home, &["get", tree, &format!("out-{tree}")]);
        }
        assert_eq!(home.0.read("out-again/large"), noise(2, 3 << 20));
        assert_eq!(home.0.read("out-imported/large"), noise(1, 3 << 20));
        owner(&home, &["gc"]);
        owner(&home, &["check", "--read-data"]);
        works(&home, &["put", "mine"]);
    }
}

/// Bytes of the packs that have contents.
fn bytes_of_data(home: &Home) -> u64 {
    let stats = owner(home, &["stats", "--json"]).json();
    let packs = stats["packs"].as_array().unwrap().iter();
    packs.filter(|row| row["kind"] == "data").map(|row| row["stored_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn a_key_that_only_stores_reads_no_contents_by_any_command() {
    for home in homes("--put-only") {
        home.0.write("mine/small", "a small file of the host");
        works(&home, &["put", "mine"]);
        std::fs::create_dir(home.0.path("mnt")).unwrap();
        let store = home.0.store().to_string();
        let before = state(&home);
        for args in NOT_STORING {
            is_refused(&home, "only stores in it", args);
        }
        is_refused(&home, "only stores in it", &["copy", &store, "replica"]);
        is_refused(&home, "only stores in it", &["mount", "mnt"]);
        is_refused(&home, "only stores in it", &["mount", "--read-only", "mnt"]);
        assert_eq!(state(&home), before);
        assert!(!home.0.path("out").exists() && !home.0.path("out.tar").exists(), "nothing was begun");
    }
}

#[test]
fn a_host_that_only_stores_goes_on_after_a_rotation() {
    for home in homes("--put-only") {
        owner(&home, &["key", "rotate", "--keep", "fewer.key"]);
        let stored = bytes_of_data(&home);
        works(&home, &["put", "docs", "--to", "again"]);
        assert_eq!(bytes_of_data(&home), stored, "it finds what was stored before");
        works(&home, &["put", "new"]);
        assert_eq!(owner(&home, &["cat", "new"]).text(), "what is new");
        is_refused(&home, "only stores in it", &["cat", "new"]);
    }
}
