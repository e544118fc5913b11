//! Heads that are kept elsewhere, through the program, on a directory and on PostgreSQL.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::run::{Said, noise};
use crate::shared::Shared;
use crate::site::Site;

/// A check of the past: the exit code, what it says, and the head that it gives.
fn check(site: &Site, args: &[&str]) -> (i32, String, Option<String>) {
    let said = Said::from(site.command(&[&["--json", "check"], args].concat()).output().unwrap());
    if said.out.is_empty() {
        return (said.code, said.err, None);
    }
    let report = said.json();
    let findings = report["findings"].as_array().unwrap().iter();
    let what = findings.map(|finding| format!("{}\n", finding["what"].as_str().unwrap()));
    (said.code, what.collect(), report["head"].as_str().map(str::to_owned))
}

/// The head that a check gives which finds nothing.
#[track_caller]
fn sound(site: &Site, args: &[&str]) -> String {
    let (code, what, head) = check(site, args);
    assert_eq!(code, 0, "{args:?} {what}");
    head.unwrap_or_else(|| panic!("{args:?} {what}"))
}

/// The findings of a check that gives no head.
#[track_caller]
fn told(site: &Site, args: &[&str]) -> String {
    let (code, what, head) = check(site, args);
    assert!(code == 3 && head.is_none(), "{args:?} {code} {what}");
    what
}

fn by_other_host(site: &Site, args: &[&str]) {
    let said = Said::from(site.command_at("other", args).output().unwrap());
    assert_eq!(said.code, 0, "{args:?} {}", said.err);
}

/// A store with a tree in it, and its head.
fn filled(site: &Site) -> String {
    site.place.write("tree/large", noise(1, 300_000));
    site.place.write("tree/small", "one");
    site.place.write("tree/deep/er", "deep");
    site.done(&["put", "tree"]);
    sound(site, &["--head"])
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

#[test]
fn a_head_stays_valid_whatever_hosts_do() {
    for site in Site::all() {
        let first = filled(&site);
        assert_eq!(sound(&site, &["--trust", &first]), first, "nothing has changed");
        by_other_host(&site, &["snapshot", "create", "named"]);
        site.place.write("tree/small", "two");
        site.place.write("tree/new", "new");
        by_other_host(&site, &["put", "tree"]);
        for args in [
            &["mv", "tree/new", "tree/moved"][..],
            &["cp", "-r", "tree/deep", "copy"],
            &["policy", "set", "tree", "codec=lz4"],
            &["snapshot", "create", "later"],
            &["snapshot", "delete", "named"],
            &["rm", "-r", "tree/deep"],
            &["undo"],
            &["gc"],
        ] {
            site.done(args);
        }
        let second = sound(&site, &["--trust", &first]);
        assert_ne!(second, first);
        by_other_host(&site, &["rm", "tree/large"]);
        by_other_host(&site, &["gc"]);
        sound(&site, &["--trust", &second]);
        // A copy has the heads of its source, and goes on being one.
        site.place.write("tree/small", "three");
        site.done(&["put", "tree"]);
        let target = site.place.path("copy").display().to_string();
        site.done(&["copy", &site.store, &target]);
        let of_copy =
            Said::from(site.place.command(&["-s", &target, "check", "--trust", &first]).output().unwrap());
        assert_eq!(of_copy.code, 0, "{} {}", of_copy.text(), of_copy.err);
        assert!(of_copy.text().contains("take heads in its source"), "{}", of_copy.text());
        site.done(&["copy", &site.store, &target]);
        // A database that was made anew, too.
        site.done(&["recover", "--anyway", "--trust", &second]);
        sound(&site, &["--trust", &first]);
        let said = site.done(&["check", "--trust", &second]).text();
        assert!(said.contains("head: OHEAD1-"), "{said}");
    }
}

#[test]
fn a_head_that_is_not_this_stores_is_refused() {
    let (site, other) = (Site::sqlite(), Site::sqlite());
    let (head, of_other) = (filled(&site), filled(&other));
    let said = told(&site, &["--trust", &of_other]);
    assert!(said.contains("another store"), "{said}");
    let other_digit = if &head[10..11] == "7" { "8" } else { "7" };
    let mistyped = [&head[..10], other_digit, &head[11..]].concat();
    for (text, why) in [(mistyped.as_str(), "mistyped"), ("OHEAD1-0000", "digits"), ("no head", "OHEAD1")] {
        let (code, said, _) = check(&site, &["--trust", text]);
        assert!(code == 2 && said.contains(why), "{text}: {code} {said}");
    }
}

#[test]
fn a_directory_that_is_set_back_is_told() {
    let site = Site::sqlite();
    let first = filled(&site);
    let (store, old) = (site.place.path("shared"), site.place.path("old"));
    copy(&store, &old);
    site.place.write("tree/small", "two");
    site.done(&["put", "tree"]);
    site.done(&["snapshot", "create", "later"]);
    let second = sound(&site, &["--trust", &first]);
    let now = site.place.path("now");
    copy(&store, &now);
    // The database.
    for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        let _ = fs::remove_file(store.join(name));
        if old.join(name).exists() {
            fs::copy(old.join(name), store.join(name)).unwrap();
        }
    }
    for head in [&first, &second] {
        let said = told(&site, &["--trust", head]);
        assert!(
            said.contains("/tree/small: content") && said.contains("snapshot later is missing"),
            "{said}"
        );
    }
    // All of it.
    copy(&old, &store);
    let said = told(&site, &["--trust", &second]);
    assert!(said.contains("does not have this head"), "{said}");
    let said = Said::from(site.command(&["recover", "--anyway", "--trust", &second]).output().unwrap());
    assert!(said.code == 3 && said.err.contains("does not have this head"), "{} {}", said.code, said.err);
    // A pack that is right under another name: who has no key can make no other one.
    copy(&now, &store);
    let before = site.done(&["ls", "-R", "/"]).text();
    let packs = files(&store.join("packs"));
    fs::create_dir_all(store.join("packs/ff")).unwrap();
    for (number, pack) in packs.into_iter().enumerate() {
        fs::copy(pack, store.join(format!("packs/ff/{:016x}.pack", 0xff + number * 256))).unwrap();
    }
    let (code, said, _) = check(&site, &["--trust", &second]);
    assert!(code == 0 && said.contains("torn object"), "{code} {said}");
    site.done(&["gc"]);
    sound(&site, &["--trust", &second]);
    assert_eq!(site.done(&["ls", "-R", "/"]).text(), before);
}

#[test]
fn rows_that_are_set_back_in_postgresql_are_told() {
    let Some(site) = Site::postgres() else { return };
    let first = filled(&site);
    let (server, schema) = site.postgres.as_ref().unwrap();
    server.sql(&format!("CREATE TABLE {schema}.kept AS TABLE {schema}.inode"));
    site.place.write("tree/small", "two");
    site.done(&["put", "--rescan", "tree"]);
    let second = sound(&site, &["--trust", &first]);
    server.sql(&format!(
        "DELETE FROM {schema}.inode; INSERT INTO {schema}.inode SELECT * FROM {schema}.kept; DROP TABLE {schema}.kept"
    ));
    for head in [&first, &second] {
        let said = told(&site, &["--trust", head]);
        assert!(said.contains("/tree/small: content"), "{said}");
    }
    // The packs have what was stored.
    site.done(&["recover", "--anyway", "--trust", &second]);
    sound(&site, &["--trust", &second]);
    assert_eq!(site.done(&["cat", "tree/small"]).text(), "two");
}

#[test]
fn a_key_that_only_reads_verifies_and_makes_no_head() {
    let site = Site::sqlite();
    let first = filled(&site);
    site.done(&["key", "add", "--read-only", "--file", "reader.key"]);
    site.place.write("tree/small", "two");
    site.done(&["put", "tree"]);
    let args = ["--key-file", "reader.key", "--json", "check", "--trust", &first];
    let said = Said::from(site.command(&args).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert!(report["head"].is_null(), "{report}");
    let findings = report["findings"].to_string();
    assert!(findings.contains("no new head was made"), "{findings}");
    let second = sound(&site, &["--trust", &first]);
    let said = Said::from(site.command(&args).output().unwrap());
    assert_eq!(said.json()["head"], second.as_str());
}

/// The check waits until mounts have published what they did.
#[test]
fn work_in_mounts_is_in_the_catalogue_before_it_is_compared() {
    let Some(shared) = Shared::with(&[]) else { return };
    let (one, other) = (shared.mount(), shared.mount());
    let head_of = |args: &[&str]| {
        let report = one.done(&[&["--json", "check"], args].concat()).json();
        report["head"].as_str().unwrap_or_else(|| panic!("{report}")).to_owned()
    };
    fs::create_dir(one.path("d")).unwrap();
    fs::write(one.path("d/large"), noise(1, 300_000)).unwrap();
    fs::write(other.path("small"), "one").unwrap();
    let first = head_of(&["--head"]);
    fs::rename(other.path("d"), other.path("e")).unwrap();
    fs::write(one.path("small"), "two").unwrap();
    fs::hard_link(one.path("small"), one.path("linked")).unwrap();
    std::os::unix::fs::symlink("small", other.path("link")).unwrap();
    File::options().write(true).open(other.path("e/large")).unwrap().set_len(1000).unwrap();
    fs::set_permissions(other.path("e"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(one.path("gone"), "gone").unwrap();
    fs::remove_file(one.path("gone")).unwrap();
    one.place.write("put", "put");
    one.done(&["put", "put"]);
    let second = head_of(&["--trust", &first]);
    assert_ne!(first, second);
    one.done(&["gc"]);
    head_of(&["--trust", &second]);
}
