//! Ordinary commands destroy no last copy. Another source replaces nothing unasked, and removed or
//! replaced content can be taken back.

use std::fs::{self, File};
use std::process::Command;

use outrigger_workload::postgres::Server;

use crate::run::{Place, Said, clock};

/// The message of a refused command, which leaves the store unchanged.
#[track_caller]
fn refused(place: &Place, args: &[&str], word: &str) -> Said {
    let before = place.lines(&["ls", "-R"]);
    let said = place.code(2, args);
    assert!(said.err.contains(word), "{args:?}: {}", said.err);
    assert_eq!(place.lines(&["ls", "-R"]), before, "{args:?}");
    said
}

fn automatic(place: &Place) -> usize {
    let list = place.done(&["snapshot", "list", "--json"]).json();
    list["snapshots"].as_array().unwrap().iter().filter(|snapshot| snapshot["kind"] == "automatic").count()
}

/// A workplace with a store in PostgreSQL; `None` without a server.
fn shared() -> Option<Place> {
    let server = Server::shared()?;
    let place = Place::empty();
    let url = server.url(&server.fresh());
    let packs = place.path("packs");
    fs::create_dir(&packs).unwrap();
    place.done(&["-s", &url, "init", "--packs", &format!("file:{}", packs.display())]);
    Some(place.of(&url))
}

#[test]
fn another_source_replaces_nothing_unless_that_is_meant() {
    replaces_nothing(&Place::new());
}

/// Who forgets `--to` names the target as a source. The others must not be mirrored meanwhile.
#[test]
fn a_forgotten_to_changes_nothing() {
    let place = Place::new();
    place.write("first/src/a", "a");
    place.write("first/src/b", "b");
    place.done(&["put", "first/src"]);
    std::fs::remove_file(place.path("first/src/b")).unwrap();
    let said = refused(&place, &["put", "first/src", "docs"], "did you mean `--to docs`?");
    assert!(said.err.contains("there is no file `docs`, and nothing was stored"), "{}", said.err);
    refused(&place, &["put", "docs", "first/src"], "leave it out");
    assert_eq!(automatic(&place), 0);
    // With it, the target is known, and what is missing is skipped and named.
    let said = place.code(4, &["put", "first/src", "docs", "--to", "all"]);
    assert!(said.err.contains("skipped docs"), "{}", said.err);
    assert_eq!(place.lines(&["ls", "all"]), ["src"]);
}

#[test]
fn another_source_replaces_nothing_that_hosts_share() {
    let Some(place) = shared() else { return };
    replaces_nothing(&place);
}

fn replaces_nothing(place: &Place) {
    place.write("work/docs/a", "work");
    place.write("private/docs/b", "private");
    place.done(&["put", "work/docs"]);
    refused(place, &["put", "private/docs"], "--replace-source");
    // Another host's directory of the same path is another source.
    let mut command = place.command(&["put", "work/docs"]);
    let said: Said = command.env("OUTRIGGER_HOST", "elsewhere").output().unwrap().into();
    assert!(said.code == 2 && said.err.contains("--replace-source"), "{}", said.err);
    // Nor is a directory above or below it replaced.
    place.done(&["put", "work/docs", "--to", "above/docs"]);
    refused(place, &["put", "private/docs", "--to", "above"], "--replace-source");
    place.done(&["put", "work/docs"]);
    assert_eq!(place.lines(&["ls", "docs"]), ["a"]);
    place.done(&["put", "private/docs", "--replace-source"]);
    assert_eq!(place.lines(&["ls", "docs"]), ["b"]);
    refused(place, &["put", "work/docs"], "--replace-source");
    place.done(&["undo"]);
    assert_eq!(place.lines(&["ls", "docs"]), ["a"]);
    // The target mirrors its earlier source again.
    place.done(&["put", "work/docs"]);
}

#[test]
fn a_target_that_is_empty_or_the_root_is_refused() {
    let place = Place::new();
    place.write("docs/a", "a");
    place.write("other/b", "b");
    place.done(&["put", "docs"]);
    for to in ["", "/", "."] {
        refused(&place, &["put", "other", "--to", to], "--replace-source");
    }
    place.done(&["put", "other", "--to", "/", "--replace-source"]);
    assert_eq!(place.lines(&["ls"]), ["b"]);
}

#[test]
fn a_disk_that_is_not_mounted_empties_nothing() {
    let place = Place::new();
    place.write("photos/one", "1");
    place.write("photos/two", "2");
    place.done(&["put", "photos", "--to", "photos"]);
    fs::remove_file(place.path("photos/one")).unwrap();
    fs::remove_file(place.path("photos/two")).unwrap();
    refused(&place, &["put", "photos", "--to", "photos"], "--allow-empty");
    let said = place.done(&["put", "photos", "--to", "photos", "--allow-empty"]);
    assert!(said.text().contains("2 removed") && said.text().contains("undo"), "{}", said.text());
    place.done(&["gc"]);
    place.done(&["undo"]);
    assert_eq!(place.done(&["cat", "photos/one", "photos/two"]).text(), "12");
}

#[test]
fn another_file_system_at_the_same_place_replaces_nothing() {
    let place = Place::plain();
    place.write("disk/note", "the disk is not mounted");
    let mounted = |script: &str| {
        let script = format!("mount -t ramfs none disk && {script}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).current_dir(place.path(""));
        command.env("OUTRIGGER_STORE", "store").env("OUTRIGGER", env!("CARGO_BIN_EXE_outrigger"));
        Said::from(command.output().unwrap())
    };
    let is_ramfs = || Command::new("stat").args(["-f", "-c", "%T"]).arg(place.path("disk")).output().unwrap();
    if mounted("true").code != 0 || is_ramfs().stdout.starts_with(b"ramfs") {
        outrigger_workload::skipped!("no other file system can be mounted here");
        return;
    }
    let put = "echo 1 > disk/photo && \"$OUTRIGGER\" put disk";
    let said = mounted(put);
    assert_eq!(said.code, 0, "{}", said.err);
    refused(&place, &["put", "disk"], "another file system");
    assert_eq!(place.lines(&["ls", "disk"]), ["photo"]);
    // Mounted again it is the same source.
    assert_eq!(mounted(put).code, 0);
    place.done(&["put", "disk", "--replace-source"]);
    assert_eq!(place.lines(&["ls", "disk"]), ["note"]);
}

#[test]
fn a_dry_run_says_what_would_go_and_changes_nothing() {
    let place = Place::new();
    place.write("docs/a/b", "1");
    place.write("docs/c", "2");
    place.done(&["put", "docs"]);
    fs::remove_dir_all(place.path("docs/a")).unwrap();
    place.write("docs/d", "3");
    let said = place.done(&["put", "docs", "-n"]);
    for word in ["would remove docs/a", "1 new entry", "remove 2 entries", "nothing was changed"] {
        assert!(said.text().contains(word), "{word}: {}", said.text());
    }
    let said = place.done(&["put", "docs", "-n", "--json"]).json();
    assert_eq!((&said["dry_run"], &said["entries_removed"]), (&true.into(), &2.into()));
    assert_eq!((place.lines(&["ls", "docs"]), automatic(&place)), (vec!["a".into(), "c".into()], 0));
}

#[test]
fn snapshots_that_people_named_stay_whatever_the_rules_say() {
    let place = Place::new();
    place.write("a", "1");
    place.done(&["put", "a"]);
    place.done(&["snapshot", "create", "release-1.0"]);
    for _ in 0..3 {
        place.done(&["snapshot", "create", "--tag", "nightly"]);
    }
    place.done(&["keep", "--daily", "1"]);
    let list = place.done(&["snapshot", "list", "--json"]).json();
    let kinds: Vec<_> =
        list["snapshots"].as_array().unwrap().iter().map(|snapshot| &snapshot["kind"]).collect();
    assert_eq!(kinds, ["named", "dated"]);
    place.done(&["snapshot", "hold", "release-1.0"]);
    let said = place.code(2, &["snapshot", "delete", "release-1.0"]);
    assert!(said.err.contains("release"), "{}", said.err);
    place.done(&["snapshot", "release", "release-1.0"]);
    place.done(&["snapshot", "delete", "release-1.0"]);
}

/// Runs each command that removes or replaces something, and takes it back.
fn takes_back(place: &Place) {
    let lines = || (place.lines(&["ls", "-lR"]), place.done(&["cat", "tree/a", "tree/b/c"]).text());
    place.write("tree/a", "one");
    place.write("tree/b/c", "two");
    place.write("other", "three");
    fs::hard_link(place.path("tree/a"), place.path("tree/linked")).unwrap();
    place.done(&["put", "tree"]);
    place.done(&["put", "other"]);
    let archive = place.done(&["export", "tree"]).out;
    let before = lines();
    place.write("tree/a", "longer than one");
    fs::remove_file(place.path("tree/b/c")).unwrap();
    let commands: [&[&str]; 6] = [
        &["put", "tree"],
        &["rm", "-r", "tree"],
        &["rm", "tree/a"],
        &["rm", "tree/linked"],
        &["mv", "other", "tree/a"],
        &["cp", "other", "tree/a"],
    ];
    for command in commands {
        let said = place.done(command);
        assert!(said.text().contains("undo"), "{command:?}: {}", said.text());
        // The collector frees nothing that can be taken back.
        place.done(&["gc"]);
        place.done(&["undo"]);
        assert_eq!(lines(), before, "{command:?}");
    }
    // An undo can be undone.
    place.done(&["rm", "tree/a"]);
    place.done(&["undo"]);
    let said = place.code(1, &["undo"]);
    assert!(said.err.contains("--redo"), "what was done since without a snapshot may be meant: {}", said.err);
    place.done(&["undo", "--redo"]);
    assert_eq!(place.lines(&["ls", "tree"]), ["b", "linked"]);
    place.done(&["undo", "--redo"]);
    assert_eq!(lines(), before);
    // An archive goes over what is there.
    place.done(&["rm", "tree/b/c"]);
    place.done(&["cp", "other", "tree/b/c"]);
    let said = place.feed(&["import", "-", "--to", "tree"], &archive);
    assert_eq!(said.code, 0, "{}", said.err);
    place.done(&["undo"]);
    assert_eq!(place.done(&["cat", "tree/b/c"]).text(), "three");
    place.done(&["check", "--read-data"]);
}

#[test]
fn what_a_command_removed_or_replaced_can_be_taken_back() {
    takes_back(&Place::new());
}

#[test]
fn the_same_of_a_store_that_hosts_share() {
    let Some(place) = shared() else { return };
    takes_back(&place);
}

#[test]
fn what_changes_nothing_leaves_no_snapshot_and_opting_out_leaves_none() {
    let place = Place::new();
    place.write("docs/a", "1");
    place.done(&["put", "docs"]);
    place.done(&["put", "docs"]);
    place.write("docs/b", "2");
    place.done(&["put", "docs"]);
    place.done(&["put", "--rescan", "docs"]);
    assert_eq!(automatic(&place), 0, "nothing was removed or replaced");
    place.done(&["rm", "--no-snapshot", "docs/a"]);
    assert_eq!(automatic(&place), 0);
    let said = place.code(1, &["undo"]);
    assert!(said.err.contains("nothing to undo"), "{}", said.err);
    place.done(&["rm", "docs/b"]);
    assert_eq!(automatic(&place), 1);
    let said = place.done(&["gc"]);
    assert!(said.text().contains("1 automatic"), "gc says what holds space: {}", said.text());
    // A clock that is wrong once does not make the snapshot old.
    let mut gc = place.command(&["gc"]);
    if let Some(clock) = clock("+40d") {
        assert!(gc.envs(clock).status().unwrap().success());
        assert_eq!(automatic(&place), 1);
    }
    place.done(&["keep", "--automatic", "0h"]);
    assert_eq!(automatic(&place), 0, "it is old enough");
}

/// The snapshot taken last is the newest for `--at` and `keep`, whatever the clock said.
#[test]
fn a_snapshot_of_a_clock_that_was_ahead_is_not_the_newest_for_ever() {
    let place = Place::new();
    let Some(clock) = clock("+1h") else { return };
    place.write("day", "monday");
    let mut put = place.command(&["put", "day", "--tag", "daily"]);
    assert!(put.envs(clock).status().unwrap().success());
    place.write("day", "tuesday");
    place.done(&["put", "day", "--tag", "daily"]);
    assert_eq!(place.done(&["cat", "--at", "daily", "day"]).text(), "tuesday");
    place.done(&["keep", "--last", "1"]);
    assert_eq!(place.done(&["cat", "--at", "daily", "day"]).text(), "tuesday");
}

/// A copy loses what its source has lost. How much that is should be noticed.
#[test]
fn a_copy_says_what_it_has_lost() {
    let place = Place::new();
    place.write("src/a", "a");
    place.write("src/b", "b");
    place.done(&["put", "src"]);
    place.done(&["snapshot", "create", "one"]);
    let said = place.done(&["copy", "store", "mirror"]).text();
    assert!(said.contains("; 2 files and 1 snapshot in the copy, as of "), "{said}");
    place.done(&["rm", "--no-snapshot", "src/a"]);
    place.done(&["snapshot", "create", "two"]);
    place.done(&["snapshot", "delete", "one"]);
    let said = place.done(&["copy", "store", "mirror"]).text();
    assert!(
        said.contains(
            "; 1 file and 1 snapshot in the copy (1 snapshot removed, 1 file fewer than before), as of "
        ),
        "{said}"
    );
    let said = place.done(&["copy", "store", "mirror", "--json"]).json();
    assert_eq!((&said["snapshots_removed"], &said["files_fewer"]), (&0.into(), &0.into()));
}

#[test]
fn names_and_tags_that_would_hide_others_are_refused() {
    let place = Place::new();
    place.write("a", "1");
    place.done(&["put", "a", "--tag", "nightly"]);
    place.done(&["snapshot", "create", "release"]);
    for name in ["now", "yesterday", "2026-11-26", "nightly"] {
        let said = place.code(2, &["snapshot", "create", name]);
        assert!(said.err.contains("--at"), "{name}: {}", said.err);
    }
    for command in [&["snapshot", "create", "--tag", "release"][..], &["put", "a", "--tag", "release"]] {
        assert!(place.code(2, command).err.contains("--at"), "{command:?}");
    }
    let before = place.lines(&["snapshot", "list"]);
    place.write("a", "2");
    for tag in ["now", "yesterday", "2026-11-26"] {
        for command in [&["put", "a"][..], &["snapshot", "create"], &["backup", "a"]] {
            let said = place.code(2, &[command, &["--tag", tag]].concat());
            assert!(said.err.contains(&format!("`{tag}` is a time, and `--at {tag}`")), "{}", said.err);
        }
    }
    assert_eq!(place.lines(&["snapshot", "list"]), before);
    assert_eq!(place.done(&["cat", "a"]).text(), "1", "it was refused before the put");
    let said = place.code(2, &["keep", "--of", "nigthly", "--last", "1"]);
    assert!(said.err.contains("no snapshot has that tag"), "{}", said.err);
}

#[test]
fn an_address_is_no_directory() {
    let place = Place::empty();
    for (store, word) in [
        ("s3://bucket/x", "init --packs"),
        ("sftp://host/x", "sshfs"),
        ("sftp:me@host:/x", "sshfs"),
        ("rclone:remote:x", "rclone mount"),
        ("http://host/x", "give a directory"),
        ("~/backup", "$HOME/backup"),
    ] {
        let said = place.code(2, &["-s", store, "init"]);
        assert!(said.err.contains(word), "{store}: {}", said.err);
    }
    assert_eq!(fs::read_dir(place.path(".")).unwrap().count(), 0, "nothing was made");
}

/// A copy inside its own store would go when the store goes. And a store that is put into itself
/// would grow by its whole size each time.
#[test]
fn a_store_is_not_copied_or_put_into_itself() {
    let place = Place::new();
    place.write("home/a", "1");
    place.done(&["put", "home"]);
    for to in ["store/backup", "store/packs/x", "store"] {
        let said = place.code(2, &["copy", "store", to]);
        assert!(
            said.err.contains("same directory") || said.err.contains("in the store itself"),
            "{}",
            said.err
        );
    }
    assert!(!place.path("store/backup").exists());
    let said = place.code(2, &["put", "store", "--to", "s"]);
    assert!(said.err.contains("outrigger copy"), "{}", said.err);
    // A directory that is no copy is left unchanged.
    place.write("other/mine", "1");
    place.code(1, &["copy", "store", "other"]);
    assert_eq!(fs::read_dir(place.path("other")).unwrap().count(), 1);
    if File::open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    fs::create_dir(place.path("home/mnt")).unwrap();
    place.done(&["mount", "home/mnt"]);
    let copied = place.run(&["copy", "store", "home/mnt/backup"]);
    let put = place.run(&["put", "home"]);
    place.done(&["unmount", "home/mnt"]);
    assert!(copied.code == 2 && copied.err.contains("a mount of this store"), "{}", copied.err);
    assert_eq!(put.code, 0, "{}", put.err);
    assert_eq!(place.lines(&["ls", "-R", "home"]).iter().filter(|line| line.ends_with("/a")).count(), 0);
}

#[test]
fn what_is_empty_by_mistake_replaces_nothing() {
    let place = Place::new();
    place.write("dump", "all of it");
    place.write("a", "1");
    place.done(&["put", "dump"]);
    let said = place.feed(&["put", "-", "--to", "dump"], b"");
    assert!(said.code == 2 && said.err.contains("--allow-empty"), "{}", said.err);
    assert_eq!(place.done(&["cat", "dump"]).text(), "all of it");
    assert_eq!(place.feed(&["put", "-", "--to", "new"], b"").code, 0);
    assert_eq!(place.feed(&["put", "-", "--to", "dump", "--allow-empty"], b"").code, 0);
    // A variable that is not set does not mean the whole store.
    for args in [
        &["get", "", "out"][..],
        &["cp", "-r", "", "/copy"],
        &["rm", "-r", ""],
        &["policy", "set", "", "versions=none"],
    ] {
        assert!(place.code(2, args).err.contains("empty"), "{args:?}");
    }
    // A file keeps its name below a target with a slash.
    place.done(&["put", "a", "--to", "box/"]);
    place.done(&["put", "dump", "--to", "box/"]);
    assert_eq!(place.lines(&["ls", "box"]), ["a", "dump"]);
}

#[test]
fn a_program_that_overwrites_stored_files_can_be_undone() {
    let place = Place::new();
    place.write("n", "1\n");
    place.done(&["put", "n"]);
    let run = ["run", "--sandbox", "off", "--in", "n", "--out", "{name}", "--", "sed", "s/1/2/"];
    place.done(&run);
    assert_eq!(place.done(&["cat", "n"]).text(), "2\n");
    place.done(&["undo"]);
    assert_eq!(place.done(&["cat", "n"]).text(), "1\n");
    // A command that replaces nothing takes no snapshot.
    let before = automatic(&place);
    place.done(&["run", "--sandbox", "off", "--in", "n", "--out", "new", "--", "cat"]);
    assert_eq!(automatic(&place), before);
}

/// A restore writes a small file under its own name. If it is killed, a part may be there.
#[test]
fn a_part_of_a_file_is_not_taken_for_the_file() {
    let place = Place::new();
    place.write("tree/a", "all of it");
    place.done(&["put", "tree"]);
    place.write("back/a", "all");
    let said = place.code(4, &["get", "tree", "back"]);
    assert!(said.err.contains("with 3 bytes and not 9"), "{}", said.err);
    place.done(&["get", "--overwrite", "tree", "back"]);
    assert_eq!(place.read("back/a"), b"all of it");
}

#[test]
fn a_file_takes_no_directorys_place_and_a_directory_no_files() {
    let place = Place::new();
    place.write("tree/a", "a");
    place.write("file", "text");
    place.done(&["put", "tree"]);
    place.done(&["put", "file"]);
    let said = place.feed(&["put", "-", "--to", "tree"], b"other");
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("`tree` is a directory in the store"), "{}", said.err);
    refused(&place, &["put", "tree", "--to", "file"], "`file` is no directory in the store");
    assert_eq!(place.done(&["cat", "tree/a", "file"]).text(), "atext");
}
