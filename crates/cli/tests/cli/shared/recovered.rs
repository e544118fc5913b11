//! A lost database: the work of mounts, commands and jobs comes back from the packs.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use outrigger_workload::eventually;
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use super::{Host, Shared, command, copy};
use crate::run::{Said, noise};

/// Ends the mount as a crash would.
fn kill(host: &mut Host) {
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(Command::new("umount").arg("-l").arg(host.place.path("mnt")).status().unwrap().success());
}

/// Ends the mount like a crash, and drops the database.
fn lose(shared: &Shared, host: &mut Host) {
    kill(host);
    drop_database(shared);
}

fn drop_database(shared: &Shared) {
    shared.server.sql(&format!("DROP SCHEMA {} CASCADE", shared.schema));
}

fn unmount(host: &mut Host) {
    assert!(Command::new("umount").arg(host.place.path("mnt")).status().unwrap().success());
    assert!(host.child.wait().unwrap().success(), "{}", host.said());
}

/// Waits until every mount has published its change outbox.
/// The store is not encrypted, so the database shows its names.
fn wait_until_told(shared: &Shared) {
    let outbox = format!(
        "SELECT count(*) FROM {}.record WHERE kind = 'catalogue-debt' AND name LIKE 'session/%'",
        shared.schema
    );
    eventually("mounts tell everything", || shared.server.sql(&outbox) == "0");
}

/// Recovers without a report of a loss, and mounts the result, which must equal `before`.
#[track_caller]
fn must_come_back(shared: &Shared, host: &Host, before: &Path) -> Host {
    let said = recover(shared, host);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.text());
    let after = shared.mount();
    let differences = compare_trees(before, &after.path("")).unwrap();
    assert!(differences.is_empty(), "{differences:?}");
    shared.check(&after);
    after
}

/// A copy of what a mount shows, outside the mount.
fn copy_of(host: &Host, name: &str) -> PathBuf {
    let to = host.place.path(name);
    // For a second the mount may show attributes from before another mount's change.
    std::thread::sleep(Duration::from_millis(1500));
    copy(&host.path(""), &to);
    to
}

/// Every kind of change that a program can make to names and attributes.
fn work(host: &Host, top: &str) {
    let at = |name: &str| host.path(&format!("{top}/{name}"));
    fs::create_dir(host.path(top)).unwrap();
    let tree = host.place.path(format!("of-{top}"));
    source_tree(&tree, &TreeOptions::new(top.len() as u64, 40)).unwrap();
    copy(&tree, &at("tree"));
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/c/large"), noise(3, 700_000)).unwrap();
    fs::write(at("a/b/small"), "small").unwrap();
    fs::write(at("a/empty"), "").unwrap();
    symlink("b/small", at("a/link")).unwrap();
    fs::hard_link(at("a/b/small"), at("a/b/c/other")).unwrap();
    fs::hard_link(at("a/b/c/large"), at("hard")).unwrap();
    assert!(Command::new("mkfifo").arg(at("a/pipe")).status().unwrap().success());
    fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o1770)).unwrap();
    fs::set_permissions(at("a/empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    // Moved with its content; replaced; removed.
    fs::rename(at("a/b"), at("moved")).unwrap();
    fs::create_dir(at("a/b")).unwrap();
    fs::write(at("a/b/small"), "another one").unwrap();
    fs::rename(at("a/b/small"), at("a/empty")).unwrap();
    fs::remove_dir_all(at("tree")).unwrap();
    fs::create_dir(at("tree")).unwrap();
    fs::remove_file(at("hard")).unwrap();
    let mut appended = OpenOptions::new().append(true).open(at("moved/small")).unwrap();
    appended.write_all(b", and more").unwrap();
}

fn recover(shared: &Shared, host: &Host) -> Said {
    let packs = format!("file:{}", shared.packs.path().display());
    command(&host.place, &host.url, &["recover", "--packs", &packs]).output().unwrap().into()
}

#[test]
fn outputs_below_directories_that_mounts_made_come_back_at_their_paths() {
    let Some(shared) = Shared::new() else { return };
    let mut host = shared.mount();
    let text = noise(1, 40_000);
    host.place.write("text", &text);
    host.done(&["put", "text"]);
    // Only the mount knows of these.
    fs::create_dir_all(host.path("made/deep/er")).unwrap();
    fs::set_permissions(host.path("made"), fs::Permissions::from_mode(0o2750)).unwrap();
    host.done(&["run", "--sandbox", "off", "--in", "text", "--out", "made/deep/er/job", "--", "cat"]);
    host.done(&["put", "text", "--to", "made/put"]);
    host.done(&["cp", "text", "made/deep/copied"]);
    host.done(&["mv", "made/put", "made/deep/moved"]);
    // A directory that was renamed since.
    fs::create_dir(host.path("before")).unwrap();
    host.done(&["put", "text", "--to", "before/one"]);
    fs::rename(host.path("before"), host.path("after")).unwrap();
    host.done(&["put", "text", "--to", "after/two"]);
    lose(&shared, &mut host);
    let said = recover(&shared, &host);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.text());
    for path in ["made/deep/er/job", "made/deep/copied", "made/deep/moved", "after/one", "after/two", "text"]
    {
        assert!(host.done(&["cat", path]).out == text, "{path}");
    }
    let made = host.done(&["ls", "-l", "/"]).text();
    assert!(made.contains("drwxr-s--- ") && !made.contains("before"), "{made}");
    host.done(&["check", "--read-data"]);
}

#[test]
fn what_a_mount_did_comes_back_after_its_unmount() {
    let Some(shared) = Shared::new() else { return };
    let mut host = shared.mount();
    work(&host, "one");
    let before = copy_of(&host, "before");
    unmount(&mut host);
    drop_database(&shared);
    let mut host = must_come_back(&shared, &host, &before);
    // Changes after the recovery come back as well, and removals stay removals.
    work(&host, "another");
    fs::remove_dir_all(host.path("one/moved")).unwrap();
    fs::rename(host.path("one"), host.path("another/one")).unwrap();
    let before = copy_of(&host, "before");
    unmount(&mut host);
    drop_database(&shared);
    must_come_back(&shared, &host, &before);
}

#[test]
fn what_a_mount_did_comes_back_while_it_is_still_there() {
    let Some(shared) = Shared::with(&["--no-encryption"]) else { return };
    let mut host = shared.mount();
    work(&host, "one");
    wait_until_told(&shared);
    work(&host, "two");
    fs::rename(host.path("one/moved"), host.path("two/tree/moved")).unwrap();
    host.done(&["policy", "set", "two/tree", "versions=3"]);
    host.done(&["snapshot", "create", "s"]);
    let before = copy_of(&host, "before");
    wait_until_told(&shared);
    // The removal is published after the snapshot. The new catalogue still has what the snapshot
    // shows.
    fs::remove_dir_all(host.path("two/moved")).unwrap();
    wait_until_told(&shared);
    host.done(&["gc"]);
    fs::remove_dir_all(host.path("two/a")).unwrap();
    wait_until_told(&shared);
    let last = copy_of(&host, "last");
    lose(&shared, &mut host);
    let after = must_come_back(&shared, &host, &last);
    assert_eq!(compare_trees(&before, &after.path(".snapshots/s")).unwrap(), []);
    assert!(after.done(&["policy", "get", "two/tree"]).text().contains('3'));
}

/// Each mount undoes what the other has just done, so neither publishes everything.
#[test]
fn what_two_mounts_did_in_the_same_directories_comes_back() {
    let Some(shared) = Shared::new() else { return };
    let (mut one, mut two) = (shared.mount(), shared.mount());
    fs::create_dir_all(one.path("d/deep")).unwrap();
    for name in ["d/deep/f", "d/g", "h"] {
        one.write(name, noise(5, 9000));
    }
    let began = Instant::now();
    let mut round = 0;
    // Longer than the wait before a mount publishes, though changes never pause.
    while began.elapsed() < Duration::from_secs(25) {
        round += 1;
        let (here, there) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        fs::rename(here.path("d"), here.path("e")).unwrap();
        fs::create_dir(there.path("d")).unwrap();
        fs::rename(there.path("e/deep"), there.path("d/deep")).unwrap();
        there.write("d/deep/f", format!("round {round}"));
        fs::rename(here.path("e/g"), here.path("d/deep/g")).unwrap();
        fs::rename(there.path("d/deep/g"), there.path("d/g")).unwrap();
        fs::remove_dir(there.path("e")).unwrap();
        fs::rename(here.path("h"), here.path(&format!("d/h{}", round % 3))).unwrap();
        fs::rename(there.path(&format!("d/h{}", round % 3)), there.path("h")).unwrap();
        fs::create_dir(here.path("made")).unwrap();
        here.write("made/x", "x");
        fs::rename(there.path("made"), there.path("d/made")).unwrap();
        fs::remove_file(here.path("d/made/x")).unwrap();
        fs::remove_dir(there.path("d/made")).unwrap();
        if round % 7 == 0 {
            here.place.write("text", noise(round, 3000));
            here.done(&["put", "text", "--to", "d/deep/put"]);
            fs::rename(there.path("d/deep/put"), there.path("d/deep/moved")).unwrap();
            here.done(&["mv", "d/deep/moved", "d/deep/put"]);
            here.done(&["rm", "d/deep/put"]);
        }
    }
    work(&one, "one");
    fs::rename(two.path("one/moved"), two.path("d/moved")).unwrap();
    fs::remove_dir_all(one.path("d/moved/c")).unwrap();
    let before = copy_of(&two, "before");
    unmount(&mut two);
    unmount(&mut one);
    drop_database(&shared);
    must_come_back(&shared, &two, &before);
}

#[test]
fn what_a_mount_that_was_killed_did_comes_back_after_a_gc_beside_others() {
    let Some(shared) = Shared::with(&["--no-encryption"]) else { return };
    let (mut one, mut two) = (shared.mount(), shared.mount());
    work(&two, "two");
    wait_until_told(&shared);
    work(&one, "one");
    fs::rename(one.path("two/moved"), one.path("one/from-two")).unwrap();
    kill(&mut one);
    // The kill comes before anything is published, and the other mount goes on. Its own host knows
    // that its process is gone; others know when its lease is over.
    one.done(&["gc"]);
    wait_until_told(&shared);
    work(&two, "three");
    fs::rename(two.path("one/moved"), two.path("three/from-one")).unwrap();
    two.done(&["gc"]);
    let before = copy_of(&two, "before");
    unmount(&mut two);
    drop_database(&shared);
    must_come_back(&shared, &two, &before);
}
