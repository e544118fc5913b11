//! Directories with a key of their own, through the program, on a directory and on PostgreSQL.

mod gone;
mod mounts;

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outrigger_workload::eventually;
use rustix::io::Errno;

use crate::keys::Home;
use crate::run::{Said, noise};

/// Bytes of a file whose list of chunks is in nodes of its own.
const LARGE: usize = 5 << 20;

/// A user with a store in a directory, and one with a store in PostgreSQL if that is installed. Each
/// has the directory `secret`, with a key of its own, and the same files in it and in `common`;
/// `only.key` reads `secret` alone.
fn homes() -> Vec<Home> {
    let homes = Home::on_each_engine();
    homes.iter().for_each(fill);
    homes
}

fn fill(home: &Home) {
    home.0.write("files/large", noise(1, LARGE));
    home.0.write("files/below/small", "a small file");
    home.done(&["key", "own", "secret"]);
    home.done(&["put", "files", "--to", "secret/files"]);
    home.done(&["put", "files", "--to", "common"]);
    home.done(&["key", "add", "--only", "secret", "--file", "only.key", "--label", "only"]);
}

/// One store in a directory.
fn home() -> Home {
    let home = Home::new(&[]);
    fill(&home);
    home
}

fn packs(home: &Home) -> PathBuf {
    let elsewhere = home.0.path("packs");
    if elsewhere.exists() { elsewhere } else { home.0.path("store") }
}

/// Bytes that the packs have on the disk.
fn stored(home: &Home) -> u64 {
    fn below(dir: &Path) -> u64 {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { below(&path) } else { path.metadata().unwrap().len() }).sum()
    }
    below(&packs(home).join("packs"))
}

#[track_caller]
fn is_refused(home: &Home, code: i32, why: &str, args: &[&str]) {
    let said = home.run(args);
    let is_about_damage = said.err.contains("damaged") || said.err.contains("--repair");
    assert!(
        said.code == code && said.err.contains(why) && !is_about_damage,
        "{args:?} {} {}",
        said.code,
        said.err
    );
}

/// A command of a host that has `only.key` and no other.
fn only(home: &Home, args: &[&str]) -> Said {
    let mut command = home.command(&[&["--key-file", "only.key"], args].concat());
    command.env("HOME", home.0.path("elsewhere")).output().unwrap().into()
}

#[track_caller]
fn only_reads(home: &Home, path: &str, expected: &[u8]) {
    let said = only(home, &["cat", path]);
    assert!(said.code == 0 && said.out == expected, "{path}: {} {}", said.code, said.err);
}

#[track_caller]
fn only_is_refused(home: &Home, args: &[&str]) {
    let said = only(home, args);
    let says = said.err.contains("reads one directory of it alone") && said.err.contains("--key-file");
    assert!(said.code == 1 && says && !said.err.contains("damaged"), "{args:?} {} {}", said.code, said.err);
}

/// All that was put there reads as it was.
#[track_caller]
fn reads(home: &Home, from: &str) {
    let out = home.0.path("out");
    let _ = std::fs::remove_dir_all(&out);
    home.done(&["get", from, "out"]);
    assert!(std::fs::read(out.join("large")).unwrap() == noise(1, LARGE));
    assert_eq!(std::fs::read(out.join("below/small")).unwrap(), b"a small file");
}

#[test]
fn it_is_read_as_any_other_and_shares_nothing() {
    for home in homes() {
        let before = stored(&home);
        // What both have was stored twice.
        assert!(before > 2 * LARGE as u64, "{before}");
        reads(&home, "secret/files");
        reads(&home, "common");
        home.done(&["check", "--read-data"]);
        // Within, nothing is stored twice.
        home.done(&["put", "files", "--to", "secret/again"]);
        assert!(stored(&home) < before + LARGE as u64 / 2);
        home.done(&["put", "files", "--to", "secret/files"]);
        let json = home.done(&["key", "list", "--json"]).json();
        let own = &json["directories"][0];
        assert_eq!((&own["path"], &own["state"]), (&"secret".into(), &"open".into()));
        // A second one in it, or where something is.
        is_refused(&home, 2, "has a key of its own already", &["key", "own", "secret/own"]);
        is_refused(&home, 1, "is there already", &["key", "own", "common"]);
    }
    let plain = Home::new(&["--no-encryption"]);
    is_refused(&plain, 2, "not encrypted", &["key", "own", "secret"]);
}

#[test]
fn a_key_for_it_reads_nothing_else() {
    for home in homes() {
        only_reads(&home, "secret/files/large", &noise(1, LARGE));
        only_reads(&home, "secret/files/below/small", b"a small file");
        assert!(only(&home, &["ls", "common"]).text().contains("large"), "names are read everywhere");
        for args in [
            &["cat", "common/large"][..],
            &["cat", "common/below/small"],
            &["check"],
            &["copy", home.0.store(), "to"],
            &["put", "files"],
            &["put", "files", "--to", "secret/more"],
            &["rm", "-r", "secret"],
            &["gc"],
            &["key", "own", "more"],
            &["key", "destroy", "secret", "--yes"],
            &["key", "add", "--paper"],
            &["run", "--in", "secret/files/large", "--out", "out", "--", "cat"],
        ] {
            only_is_refused(&home, args);
        }
        // It is kept by a rotation, and reads what is stored after it.
        home.done(&["key", "rotate", "--keep", "only.key"]);
        home.0.write("new", noise(2, 300_000));
        home.done(&["put", "new", "--to", "secret/new"]);
        home.done(&["put", "new", "--to", "new"]);
        only_reads(&home, "secret/new", &noise(2, 300_000));
        only_is_refused(&home, &["cat", "new"]);
    }
}

#[test]
fn a_host_that_only_stores_stores_nothing_in_it() {
    let home = home();
    home.done(&["key", "add", "--put-only", "--file", "stores.key"]);
    std::fs::rename(home.key_file(), home.0.path("owner.key")).unwrap();
    home.done(&["--key-file", "stores.key", "put", "files", "--to", "more"]);
    is_refused(
        &home,
        1,
        "does not read this directory",
        &["--key-file", "stores.key", "put", "files", "--to", "secret/x"],
    );
}

#[test]
fn nothing_comes_in_by_reference() {
    for home in homes() {
        for args in [
            &["mv", "common/large", "secret/"][..],
            &["mv", "common", "secret/"],
            &["cp", "common/large", "secret/"],
            &["mv", "secret/files/large", "common/moved"],
            &["cp", "secret/files/large", "common/copied"],
        ] {
            is_refused(&home, 2, "has another key", args);
        }
        let said = home.run(&["cp", "-r", "common", "secret/"]);
        assert!(said.code == 2 && said.err.contains("key"), "{}", said.err);
        // What joins contents without reading them.
        let said = home.run(&[
            "run",
            "--in",
            "common/*",
            "--in",
            "secret/files/*",
            "--pattern",
            "#W->1W",
            "--out",
            "secret/joined",
        ]);
        assert!(said.code != 0 && said.err.contains("different keys"), "{}", said.err);
        // A program reads and writes.
        home.done(&["run", "--in", "common/large", "--out", "secret/made", "--", "cat"]);
        only_reads(&home, "secret/made", &noise(1, LARGE));
        // By reading.
        assert!(home.done(&["cat", "secret/files/large"]).out == noise(1, LARGE));
        // Directories keep their key, wherever they are.
        home.done(&["mv", "secret/files", "moved"]);
        only_reads(&home, &format!("{}/large", "moved"), &noise(1, LARGE));
        home.done(&["cp", "-r", "moved", "secret/files"]);
        only_reads(&home, &format!("{}/large", "secret/files"), &noise(1, LARGE));
        home.done(&["check", "--read-data"]);
    }
}

#[test]
fn its_past_comes_back_with_its_key() {
    for home in homes() {
        home.done(&["policy", "set", "secret", "versions=all"]);
        home.0.write("files/below/small", "another text");
        home.done(&["put", "files", "--to", "secret/files"]);
        home.done(&["snapshot", "create", "second"]);
        home.done(&["rm", "-r", "secret/files"]);
        home.done(&["undo"]);
        assert_eq!(home.done(&["cat", "secret/files/below/small"]).text(), "another text");
        only_is_refused(&home, &["cat", "common/large"]);
    }
}

#[test]
fn collecting_and_recovering_keep_it_apart() {
    let home = home();
    // Packs that are wasteful, and have a domain's and other data each.
    for number in 0..4 {
        home.0.write(format!("more/{number}"), noise(10 + number, 600_000));
    }
    home.done(&["put", "more", "--to", "secret/more"]);
    home.done(&["put", "more", "--to", "more"]);
    for path in ["secret/more/0", "secret/more/1", "secret/more/2", "more/0", "more/1", "more/2"] {
        home.done(&["rm", "--no-snapshot", path]);
    }
    let report = home.done(&["gc", "--json"]).json();
    assert!(report["chunks_copied"].as_u64().unwrap() > 0, "{report}");
    only_reads(&home, "secret/more/3", &noise(13, 600_000));
    home.done(&["check", "--read-data"]);
    home.done(&["policy", "set", "/", "codec=zstd:9"]);
    home.done(&["recompress"]);
    only_reads(&home, &format!("{}/large", "secret/files"), &noise(1, LARGE));
    home.done(&["key", "rotate", "--drop-others"]);
    home.done(&["recompress", "--rekey"]);
    reads(&home, "secret/files");
    // From the packs alone.
    for file in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        let _ = std::fs::remove_file(home.0.path("store").join(file));
    }
    home.done(&["recover"]);
    reads(&home, "secret/files");
    home.done(&["put", "files", "--to", "secret/again"]);
    assert!(home.done(&["ls", "secret/again"]).text().contains("large"));
    home.done(&["check", "--read-data"]);
    home.done(&["key", "destroy", "secret", "--yes"]);
    let _ = std::fs::remove_file(home.0.path("store/meta.db"));
    home.done(&["recover"]);
    is_refused(&home, 1, "was destroyed", &["cat", "secret/again/large"]);
    reads(&home, "common");
}

/// A name that stood for a directory of one kind stands for one of the other kind.
#[test]
fn an_undo_brings_back_a_directory_of_the_other_kind() {
    for home in homes() {
        let said = home.done(&["rm", "-r", "secret"]);
        assert!(said.err.contains("had a key of its own"), "{}", said.err);
        home.done(&["put", "files", "--to", "secret"]);
        let undo = |newest: bool| {
            let json = home.done(&["snapshot", "list", "--json"]).json();
            let names = json["snapshots"].as_array().unwrap().iter();
            let mut names: Vec<String> =
                names.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect();
            names.retain(|name| name.starts_with("before-rm"));
            home.done(&["undo", if newest { names.last() } else { names.first() }.unwrap()]);
        };
        undo(false);
        only_reads(&home, "secret/files/large", &noise(1, LARGE));
        // The way of somebody who gives an old directory a key.
        home.done(&["put", "files", "--to", "old"]);
        home.done(&["rm", "-r", "old"]);
        home.done(&["key", "own", "old"]);
        undo(true);
        reads(&home, "old");
        assert_eq!(only(&home, &["cat", "old/large"]).code, 1, "it has the store's keys");
        home.done(&["check", "--read-data"]);
    }
}

#[test]
fn an_archive_links_nothing_across() {
    let home = home();
    home.0.write("tree/secret/a", "text");
    std::fs::hard_link(home.0.path("tree/secret/a"), home.0.path("tree/b")).unwrap();
    std::fs::hard_link(home.0.path("tree/secret/a"), home.0.path("tree/secret/c")).unwrap();
    home.0.write("tree/z", "last");
    let mut tar = Command::new("tar");
    tar.args(["cf", "tree.tar", "-C", "tree", "b", "secret/a", "secret/c", "z"]);
    assert!(tar.current_dir(home.0.path("")).status().unwrap().success());
    let said = home.run(&["import", "tree.tar", "--to", "/"]);
    assert!(said.code == 4 && said.err.contains("has another key"), "{} {}", said.code, said.err);
    assert_eq!(home.done(&["cat", "z"]).text(), "last");
    // `put` of the same makes two files of it.
    home.done(&["put", "tree", "--to", "/", "--replace-source"]);
    assert_eq!(home.done(&["cat", "secret/c"]).text(), "text");
    only_reads(&home, "secret/a", b"text");
}
