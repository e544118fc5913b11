//! Directories with a key of their own, through the program, on a directory and on PostgreSQL.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;
use rustix::io::Errno;

use crate::keys::Home;
use crate::run::{Place, Said, noise};

/// Bytes of a file whose list of chunks is in nodes of its own.
const LARGE: usize = 5 << 20;

/// A user with a store in a directory, and one with a store in PostgreSQL if that is installed. Each
/// has the directory `secret`, with a key of its own, and the same files in it and in `common`;
/// `only.key` reads `secret` alone.
fn homes() -> Vec<Home> {
    let mut homes = vec![Home::new(&[])];
    if let Some(server) = Server::shared() {
        let home = Home(Place::empty().of(&server.url(&server.fresh())));
        let packs = format!("file:{}", home.0.path("packs").display());
        home.done(&["init", "--packs", &packs]);
        homes.push(home);
    }
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
fn with_its_key_its_contents_are_gone_and_no_others() {
    for home in homes() {
        home.done(&["snapshot", "create", "before"]);
        is_refused(&home, 2, "would make unreadable for ever: 2 files", &["key", "destroy", "secret"]);
        reads(&home, "secret/files");
        home.done(&["key", "destroy", "secret", "--yes"]);
        let gone = "was destroyed";
        for args in [
            &["cat", "secret/files/large"][..],
            &["cat", "secret/files/below/small"],
            &["cat", "--at", "before", "secret/files/below/small"],
            &["put", "files", "--to", "secret/more"],
        ] {
            is_refused(&home, 1, gone, args);
        }
        assert_eq!(only(&home, &["cat", "secret/files/large"]).code, 1);
        assert!(!home.done(&["key", "list"]).text().contains("only"), "its slot went with it");
        reads(&home, "common");
        let json = home.done(&["check", "--read-data", "--json"]).json();
        assert!(json["packs_destroyed"].as_u64().unwrap() > 0 && json["damaged"] == 0, "{json}");
        home.done(&["gc"]);
        home.done(&["recompress"]);
        home.done(&["check"]);
        home.done(&["key", "destroy", "secret", "--yes"]);
        // Names stay until they are removed, and then the space is free.
        home.done(&["rm", "-r", "--no-snapshot", "secret"]);
        home.done(&["snapshot", "delete", "before"]);
        home.done(&["gc"]);
        assert!(stored(&home) < LARGE as u64 * 3 / 2, "{}", stored(&home));
        reads(&home, "common");
        let list = home.done(&["key", "list"]).text();
        assert!(list.contains("destroyed"), "{list}");
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

#[test]
fn a_copy_follows_its_source() {
    for home in homes() {
        home.done(&["copy", home.0.store(), "copy"]);
        let copy = |args: &[&'static str]| [&["--store", "copy"], args].concat();
        assert_eq!(home.done(&copy(&["cat", "secret/files/below/small"])).text(), "a small file");
        home.done(&copy(&["check", "--read-data"]));
        let said = home.run(&["copy", home.0.store(), "other", "--no-encryption"]);
        assert!(said.code == 2 && said.err.contains("keys of their own"), "{}", said.err);
        // A text that the source has lost is no reason to remove the last one.
        let keys = packs(&home).join("keys");
        let text = std::fs::read_dir(&keys).unwrap().map(|entry| entry.unwrap().path());
        let text = text.into_iter().find(|path| path.to_string_lossy().contains("domain-")).unwrap();
        let aside = home.0.path("aside");
        std::fs::rename(&text, &aside).unwrap();
        let said = home.run(&["cat", "secret/files/large"]);
        assert!(
            said.code == 3 && said.err.contains("put this text back from a copy"),
            "{} {}",
            said.code,
            said.err
        );
        assert_eq!(home.run(&["gc"]).code, 3, "it takes nothing for garbage");
        let said = home.run(&["check", "--repair"]);
        assert_eq!(said.code, 3, "{}", said.text());
        home.done(&["copy", home.0.store(), "copy"]);
        assert_eq!(home.done(&copy(&["cat", "secret/files/below/small"])).text(), "a small file");
        std::fs::rename(&aside, &text).unwrap();
        reads(&home, "secret/files");
        // What was destroyed goes from the copy, too.
        home.done(&["key", "destroy", "secret", "--yes"]);
        home.done(&["put", "files", "--to", "more"]);
        home.done(&["copy", home.0.store(), "copy", "--verify"]);
        is_refused(&home, 1, "was destroyed", &copy(&["cat", "secret/files/large"]));
        assert_eq!(home.done(&copy(&["cat", "more/below/small"])).text(), "a small file");
        home.done(&["copy", home.0.store(), "second"]);
        home.done(&["--store", "second", "check", "--read-data"]);
    }
}

/// The text with the key of `secret`.
fn domain_text(home: &Home) -> PathBuf {
    let text = std::fs::read_dir(packs(home).join("keys")).unwrap().map(|entry| entry.unwrap().path());
    let mut text = text.into_iter().filter(|path| path.to_string_lossy().contains("domain-"));
    text.find(|path| path.extension().is_none()).unwrap()
}

/// Somebody who can add texts beside the packs cannot make others believe that a domain is gone.
#[test]
fn a_planted_end_is_not_believed() {
    let home = home();
    let text = domain_text(&home);
    let gone = format!("{}.gone", text.display());
    let own = std::fs::read_to_string(&text).unwrap();
    for planted in ["# It is gone.\n".to_owned(), own.clone(), own.replace("epoch = 1", "epoch = 99")] {
        std::fs::write(&gone, &planted).unwrap();
        reads(&home, "secret/files");
        home.done(&["gc"]);
        home.done(&["check", "--read-data"]);
        reads(&home, "secret/files");
        assert_eq!(home.done(&["key", "list", "--json"]).json()["directories"][0]["state"], "open");
        // Nor is a copy's key removed for it.
        home.done(&["copy", home.0.store(), "copy"]);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
        // With the key lost as well, nothing is taken for garbage.
        std::fs::rename(&text, home.0.path("aside")).unwrap();
        assert_eq!(home.run(&["gc"]).code, 3, "{planted}");
        let said = home.run(&["copy", home.0.store(), "copy"]);
        assert!(said.code == 0 || said.code == 3, "{}", said.err);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
        std::fs::rename(home.0.path("aside"), &text).unwrap();
        reads(&home, "secret/files");
    }
}

/// A text that has rotten does not take the place of a copy's, and the copy's heals it.
#[test]
fn a_rotten_key_spoils_no_copy() {
    let home = home();
    home.done(&["copy", home.0.store(), "copy"]);
    let text = domain_text(&home);
    let good = std::fs::read_to_string(&text).unwrap();
    for rotten in
        [String::new(), good.replace("secret = \"", "secret = \"00"), good.replace("epoch = 1", "epoch = 0")]
    {
        std::fs::write(&text, rotten).unwrap();
        let said = home.run(&["cat", "secret/files/large"]);
        assert!(said.code == 3 && said.err.contains("domain-"), "{} {}", said.code, said.err);
        let _ = home.run(&["copy", home.0.store(), "copy"]);
        home.done(&["--store", "copy", "cat", "secret/files/large"]);
    }
    std::fs::copy(home.0.path("copy/keys").join(text.file_name().unwrap()), &text).unwrap();
    reads(&home, "secret/files");
}

/// What lies elsewhere is stored and read as ever.
#[test]
fn a_directory_that_is_gone_is_in_nobodys_way() {
    for home in homes() {
        home.done(&["mv", "common", "a"]);
        home.0.write("tree/a/large", noise(1, LARGE));
        home.0.write("tree/secret/new", "new");
        home.0.write("tree/z/new", "new");
        home.done(&["key", "destroy", "secret", "--yes"]);
        let said = home.run(&["put", "tree", "--to", "/", "--replace-source"]);
        assert!(said.code == 4 && said.err.contains("tree/secret"), "{} {}", said.code, said.err);
        assert_eq!(home.done(&["cat", "z/new"]).text(), "new");
        is_refused(&home, 1, "was destroyed", &["put", "tree/z", "--to", "secret/z"]);
        assert!(!home.done(&["ls", "secret"]).text().contains('z'), "nothing is made for it");
        is_refused(&home, 1, "was destroyed", &["key", "add", "--only", "secret", "--file", "late.key"]);
        assert!(!home.0.path("late.key").exists());
        let said = home.run(&["export", "/", "all.tar"]);
        assert!(said.code == 4 && said.err.contains("secret/files/large"), "{} {}", said.code, said.err);
        home.done(&["import", "all.tar", "--to", "unpacked"]);
        assert_eq!(home.done(&["cat", "unpacked/z/new"]).text(), "new");
        home.done(&["key", "rotate", "--drop-others"]);
        home.done(&["recompress", "--rekey"]);
        // Without it, the store can have other keys.
        let said = home.run(&["copy", home.0.store(), "plain", "--no-encryption"]);
        assert!(said.code == 2 && said.err.contains("keys of their own"), "{}", said.err);
        home.done(&["rm", "-r", "--no-snapshot", "secret"]);
        for snapshot in home.done(&["snapshot", "list", "--json"]).json()["snapshots"].as_array().unwrap() {
            home.done(&["snapshot", "delete", snapshot["name"].as_str().unwrap()]);
        }
        home.done(&["gc"]);
        home.done(&["gc"]);
        home.done(&["copy", home.0.store(), "plain", "--no-encryption"]);
        assert_eq!(home.done(&["--store", "plain", "cat", "z/new"]).text(), "new");
    }
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

/// A store that is mounted at `mnt`; unmounted when dropped.
struct Mounted<'h>(&'h Home, Child);

impl<'h> Mounted<'h> {
    fn new(home: &'h Home) -> Self {
        let _ = std::fs::create_dir(home.0.path("mnt"));
        let mut command = home.command(&["mount", "--foreground", "mnt"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("mounting", || home.0.path("mnt/common").exists());
        Self(home, child)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.path("mnt").join(name)
    }

    fn unmount(mut self) {
        self.0.done(&["unmount", "mnt"]);
        self.1.wait().unwrap();
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = Command::new("umount").arg("-l").arg(self.path("")).stderr(Stdio::null()).status();
        let _ = self.1.wait();
    }
}

#[test]
fn a_mount_keeps_it_apart() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    for home in homes() {
        let mount = Mounted::new(&home);
        let (inside, outside) = (mount.path("secret/files"), mount.path("common"));
        // Made in it, in a new directory, and written again.
        std::fs::create_dir(inside.join("dir")).unwrap();
        std::fs::write(inside.join("dir/made"), noise(3, 700_000)).unwrap();
        std::fs::write(inside.join("dir/tiny"), "tiny").unwrap();
        std::fs::write(inside.join("below/small"), "written in the mount").unwrap();
        std::fs::hard_link(inside.join("dir/made"), inside.join("linked")).unwrap();
        std::fs::remove_file(inside.join("dir/made")).unwrap();
        std::fs::rename(inside.join("dir/tiny"), inside.join("tiny")).unwrap();
        std::os::unix::fs::symlink("tiny", inside.join("link")).unwrap();
        let across = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(Errno::XDEV.raw_os_error()));
        };
        across(std::fs::rename(outside.join("large"), inside.join("moved")));
        across(std::fs::rename(inside.join("large"), outside.join("moved")));
        across(std::fs::hard_link(outside.join("large"), inside.join("linked2")));
        across(std::fs::hard_link(inside.join("large"), outside.join("linked2")));
        across(std::fs::rename(outside.join("below"), inside.join("moved")));
        // As `mv` and `cp` do.
        let done = Command::new("mv").args([outside.join("below"), inside.join("moved")]).status().unwrap();
        assert!(done.success() && inside.join("moved/small").exists() && !outside.join("below").exists());
        std::fs::copy(outside.join("large"), inside.join("copied")).unwrap();
        std::fs::copy(inside.join("large"), outside.join("copied")).unwrap();
        assert!(std::fs::read(outside.join("copied")).unwrap() == noise(1, LARGE));
        for (name, from, to) in [("nameless", &inside, &outside), ("nameless2", &outside, &inside)] {
            let file = nameless(from);
            rustix::io::write(&file, b"nameless").unwrap();
            let named = |directory: &Path| {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, path, rustix::fs::CWD, directory.join(name), flags)
            };
            assert_eq!(named(to), Err(Errno::XDEV));
            named(from).unwrap();
        }
        // A name of the kernel's for the attribute that marks it.
        let mut value = [0; 64];
        let name = "outrigger.domain";
        let path = inside.join("tiny");
        assert!(rustix::fs::getxattr(&path, name, &mut value[..]).is_err());
        assert!(rustix::fs::setxattr(&path, name, &[1; 8], rustix::fs::XattrFlags::empty()).is_err());
        assert!(rustix::fs::removexattr(&path, name).is_err());
        assert_eq!(rustix::fs::listxattr(&path, &mut value[..]).unwrap(), 0);
        mount.unmount();
        let only = |path: &str, expected: &[u8]| only_reads(&home, path, expected);
        only("secret/files/linked", &noise(3, 700_000));
        only("secret/files/tiny", b"tiny");
        only("secret/files/below/small", b"written in the mount");
        only("secret/files/moved/small", b"a small file");
        only("secret/files/copied", &noise(1, LARGE));
        only("secret/files/nameless", b"nameless");
        home.done(&["check", "--read-data"]);
        home.done(&["key", "destroy", "secret", "--yes"]);
        assert!(home.done(&["cat", "common/copied"]).out == noise(1, LARGE), "what was copied out stays");
        for path in ["secret/files/linked", "secret/files/tiny", "secret/files/copied"] {
            is_refused(&home, 1, "was destroyed", &["cat", path]);
        }
    }
}

/// An open file without a name, made in a directory.
fn nameless(directory: &Path) -> OwnedFd {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    rustix::fs::open(directory, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap()
}

/// What a mount has not stored yet when the key goes is lost, and nothing else; what is written after
/// that is refused.
#[test]
fn a_mount_goes_on_without_its_key() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    for home in homes() {
        let mount = Mounted::new(&home);
        let open = File::create(mount.path("secret/open")).unwrap();
        std::fs::write(mount.path("secret/staged"), noise(6, 400_000)).unwrap();
        std::fs::write(mount.path("common/staged"), noise(7, 400_000)).unwrap();
        // It is killed, and has both in its log alone, if the store is in a directory.
        drop(mount);
        home.done(&["key", "destroy", "secret", "--yes"]);
        drop(open);
        let mount = Mounted::new(&home);
        let gone = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(Errno::KEYREVOKED.raw_os_error()));
        };
        gone(std::fs::write(mount.path("secret/new"), "new"));
        gone(std::fs::read(mount.path("secret/files/large")).map(drop));
        std::fs::write(mount.path("common/new"), "new").unwrap();
        mount.unmount();
        assert_eq!(home.done(&["cat", "common/new"]).text(), "new");
        home.done(&["put", "files", "--to", "more"]);
        home.done(&["snapshot", "create", "after"]);
        let mount = Mounted::new(&home);
        std::fs::remove_dir_all(mount.path("secret")).unwrap();
        mount.unmount();
        home.done(&["check", "--read-data"]);
    }
}

/// A mount that is killed has written what it made to its log alone.
#[test]
fn a_log_that_is_replayed_keeps_it_apart() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    let home = home();
    let mut mount = Mounted::new(&home);
    std::fs::create_dir(mount.path("secret/new")).unwrap();
    std::fs::write(mount.path("secret/new/file"), noise(4, 500_000)).unwrap();
    std::fs::write(mount.path("secret/files/below/small"), "written before it was killed").unwrap();
    // Its directory is gone by the time that its content is stored.
    std::fs::write(mount.path("secret/new/other"), noise(5, 500_000)).unwrap();
    std::fs::hard_link(mount.path("secret/new/other"), mount.path("secret/other")).unwrap();
    std::fs::remove_file(mount.path("secret/new/other")).unwrap();
    File::open(mount.path("secret/new/file")).unwrap().sync_all().unwrap();
    mount.1.kill().unwrap();
    drop(mount);
    let mount = Mounted::new(&home);
    assert!(std::fs::metadata(mount.path("secret/other")).unwrap().len() == 500_000);
    assert!(std::fs::metadata(mount.path("secret/new/file")).unwrap().nlink() == 1);
    mount.unmount();
    for (path, expected) in [
        ("secret/new/file", noise(4, 500_000)),
        ("secret/other", noise(5, 500_000)),
        ("secret/files/below/small", b"written before it was killed".to_vec()),
    ] {
        only_reads(&home, path, &expected);
    }
    home.done(&["check", "--read-data"]);
}

#[test]
fn parity_heals_what_it_cannot_read() {
    let home = home();
    home.done(&["policy", "set", "/", "parity=4+2"]);
    home.done(&["gc"]);
    let dir = home.0.path("store/packs");
    let lose = |skip: usize| {
        let mut packs: Vec<PathBuf> = Vec::new();
        let mut dirs = vec![dir.clone()];
        while let Some(dir) = dirs.pop() {
            for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                match path.is_dir() {
                    true => dirs.push(path),
                    false if path.extension().is_some_and(|ext| ext == "pack") => packs.push(path),
                    false => {}
                }
            }
        }
        packs.sort();
        std::fs::remove_file(&packs[skip % packs.len()]).unwrap();
    };
    for skip in 0..4 {
        lose(skip);
        home.done(&["check", "--repair"]);
        reads(&home, "secret/files");
    }
    home.done(&["key", "destroy", "secret", "--yes"]);
    for skip in 0..4 {
        lose(skip);
        home.done(&["check", "--repair"]);
        reads(&home, "common");
    }
}
