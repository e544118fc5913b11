//! put, get, cat, ls, rm, mv, cp and policies on small things.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use std::path::Path;

use crate::run::{Place, noise};

#[test]
fn a_file_and_a_tree_go_in_and_come_out() {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.write("src/d/b", vec![7; 3_000_000]);
    let put = place.done(&["put", "src", "--to", "tree", "--json"]).json();
    assert_eq!((put["files"].as_u64(), put["bytes"].as_u64()), (Some(2), Some(3_000_005)));
    assert_eq!(put["skipped"].as_array().unwrap().len(), 0);
    place.done(&["put", "src/a"]);
    assert_eq!(place.lines(&["ls", "-R"]), ["a", "tree", "tree/a", "tree/d", "tree/d/b"]);
    place.done(&["get", "tree", "out"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
    place.done(&["get", "a", "renamed"]);
    assert_eq!(place.read("renamed"), b"alpha");
    std::fs::create_dir(place.path("into")).unwrap();
    place.done(&["get", "a", "into"]);
    place.done(&["get", "a", "tree", "both"]);
    assert_eq!((place.read("into/a"), place.read("both/tree/a")), (b"alpha".to_vec(), b"alpha".to_vec()));
    assert_eq!(place.done(&["cat", "tree/a"]).out, b"alpha");
    assert_eq!(place.done(&["cat", "--offset", "1", "--length", "3", "tree/a"]).out, b"lph");
    assert_eq!(place.done(&["cat", "--offset", "99", "tree/a"]).out, b"");
    assert_eq!(place.done(&["cat", "--offset", "2999998", "tree/d/b"]).out, [7, 7]);
}

#[test]
fn sources_find_their_places() {
    let place = Place::new();
    place.write("x/one", "1");
    place.write("y/two", "2");
    place.done(&["put", "x", "y", "--to", "backup"]);
    assert_eq!(
        place.lines(&["ls", "-R"]),
        ["backup", "backup/x", "backup/x/one", "backup/y", "backup/y/two"]
    );
    place.done(&["put", "x"]);
    assert_eq!(place.lines(&["ls"]), ["backup", "x"]);
    // A file given a directory goes into it, and never replaces it.
    place.done(&["put", "y/two", "--to", "x"]);
    assert_eq!(place.lines(&["ls", "-R", "x"]), ["one", "two"]);
    place.done(&["put", "y/two", "--to", "x/deep/er"]);
    assert_eq!(place.done(&["cat", "x/deep/er"]).out, b"2");
    // The current directory has a name too.
    let said = place
        .command(&["put", "."])
        .current_dir(place.path("y"))
        .env("OUTRIGGER_STORE", place.path("store"))
        .output();
    assert!(said.unwrap().status.success());
    assert_eq!(place.lines(&["ls", "y"]), ["two"]);
}

#[test]
fn standard_input_is_stored_whatever_its_length() {
    let place = Place::new();
    let long: Vec<u8> = (0..5_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    for input in [&b""[..], b"short", &long] {
        let said = place.feed(&["put", "-", "--to", "in/put"], input);
        assert_eq!(said.code, 0, "{}", said.err);
        assert_eq!(place.done(&["cat", "in/put"]).out, input);
    }
    assert_eq!(place.feed(&["put", "-"], b"x").code, 2);
}

#[test]
fn what_has_not_changed_is_not_read_again() {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.write("src/b", "beta");
    // Then no ctime falls into the clock tick of the first scan.
    std::thread::sleep(std::time::Duration::from_millis(30));
    place.done(&["put", "src"]);
    let again = place.done(&["put", "src", "--json"]).json();
    assert_eq!((again["files_read"].as_u64(), again["files_unchanged"].as_u64()), (Some(0), Some(2)));
    let rescan = place.done(&["put", "src", "--json", "--rescan"]).json();
    assert_eq!((rescan["files_read"].as_u64(), rescan["bytes_new"].as_u64()), (Some(2), Some(0)));
    place.write("src/a", "gamma");
    let changed = place.done(&["put", "src", "--json"]).json();
    assert_eq!(changed["files_read"].as_u64(), Some(1));
    assert_eq!(place.done(&["cat", "src/a"]).out, b"gamma");
}

#[test]
fn a_change_within_one_clock_tick_is_not_missed() {
    let place = Place::new();
    let path = place.write("src/a", "0000");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for round in 1..20 {
        let text = format!("{round:04}");
        file.write_all_at(text.as_bytes(), 0).unwrap();
        place.done(&["put", "src"]);
        assert_eq!(place.done(&["cat", "src/a"]).text(), text);
    }
}

#[test]
fn what_the_source_no_longer_has_goes_and_excluded_things_stay() {
    let place = Place::new();
    for name in ["a", "b", "d/c", "d/x.o", "target/t"] {
        place.write(format!("src/{name}"), name);
    }
    place.done(&["put", "src", "--exclude", "*.o", "--exclude", "target/"]);
    assert_eq!(place.lines(&["ls", "-R", "src"]), ["a", "b", "d", "d/c"]);
    place.done(&["put", "src"]);
    std::fs::remove_file(place.path("src/a")).unwrap();
    std::fs::remove_dir_all(place.path("src/target")).unwrap();
    place.done(&["put", "src", "--keep-missing"]);
    assert_eq!(place.lines(&["ls", "src"]), ["a", "b", "d", "target"]);
    place.done(&["put", "src", "--exclude", "target"]);
    assert_eq!(place.lines(&["ls", "src"]), ["b", "d", "target"]);
    let put = place.done(&["put", "src", "--json"]).json();
    assert_eq!(put["entries_removed"].as_u64(), Some(1));
    assert_eq!(place.lines(&["ls", "src"]), ["b", "d"]);
    // A path, not a name.
    place.done(&["put", "src", "--to", "p", "--exclude", "d/c"]);
    assert_eq!(place.lines(&["ls", "-R", "p"]), ["b", "d", "d/x.o"]);
}

#[test]
fn kinds_change_between_puts() {
    let place = Place::new();
    place.write("src/x", "file");
    place.write("src/y/z", "below");
    place.done(&["put", "src"]);
    std::fs::remove_file(place.path("src/x")).unwrap();
    std::fs::remove_dir_all(place.path("src/y")).unwrap();
    place.write("src/x/now", "a directory");
    std::os::unix::fs::symlink("x", place.path("src/y")).unwrap();
    place.done(&["put", "src"]);
    place.done(&["get", "src", "out"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
}

#[test]
fn unreadable_inputs_are_named_and_the_rest_is_stored() {
    let place = Place::plain();
    place.write("src/good", "good");
    let said = place.code(4, &["put", "src", "missing", "--to", "t"]);
    assert!(said.err.contains("skipped missing: No such file or directory\n"), "{}", said.err);
    assert_eq!(place.lines(&["ls", "-R", "t"]), ["src", "src/good"]);
    assert!(
        place.code(1, &["put", "missing"]).err.starts_with("outrigger: cannot read missing: No such file")
    );
    let bad = place.write("src/bad", "bad");
    std::fs::set_permissions(&bad, std::fs::Permissions::from_mode(0o000)).unwrap();
    let Some(mut command) = place.unprivileged(&["put", "src", "--json"]) else { return };
    let said = crate::run::Said::from(command.output().unwrap());
    assert_eq!(said.code, 4, "{}", said.err);
    assert!(said.err.contains("skipped src/bad: Permission denied\n"), "{}", said.err);
    assert_eq!(said.json()["skipped"][0]["what"], "src/bad");
}

#[test]
fn hard_links_and_holes_survive_more_than_one_put() {
    let place = Place::new();
    let a = place.write("src/a", "one inode");
    std::fs::hard_link(&a, place.path("src/b")).unwrap();
    let sparse = std::fs::File::create(place.path("src/sparse")).unwrap();
    sparse.write_all_at(b"end", (64 << 20) - 3).unwrap();
    drop(sparse);
    place.done(&["put", "src"]);
    std::fs::hard_link(&a, place.path("src/c")).unwrap();
    place.write("src/d", "another");
    place.done(&["put", "src"]);
    // A file becomes a name of another one, and a name becomes a file of its own.
    std::fs::remove_file(place.path("src/d")).unwrap();
    std::fs::hard_link(&a, place.path("src/d")).unwrap();
    std::fs::remove_file(place.path("src/b")).unwrap();
    place.write("src/b", "alone");
    place.done(&["put", "src"]);
    place.done(&["get", "src", "out"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
    let blocks = std::fs::metadata(place.path("out/sparse")).unwrap().blocks();
    assert!(blocks < 1024, "{blocks} blocks for a hole");
    // The first name goes: the others stay linked.
    std::fs::remove_file(&a).unwrap();
    place.done(&["put", "src"]);
    place.done(&["get", "src", "out2"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out2")).unwrap(), []);
}

#[test]
fn names_that_are_not_text_are_names() {
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b"n\xff\n");
    std::fs::create_dir(place.path("src")).unwrap();
    std::fs::write(place.path("src").join(name), "x").unwrap();
    place.done(&["put", "src"]);
    assert_eq!(place.done(&["ls", "-0", "src"]).out, b"n\xff\n\0");
    let listed = place.done(&["ls", "--json", "src"]).json();
    assert_eq!(listed["entries"][0]["path"], "n\\xff\\n");
    assert_eq!(listed["entries"][0]["path_hex"], "6eff0a");
    let path = std::ffi::OsStr::from_bytes(b"src/n\xff\n");
    assert_eq!(place.done(&[std::ffi::OsStr::new("cat"), path]).out, b"x");
}

#[test]
fn entries_are_removed_moved_and_copied() {
    let place = Place::new();
    place.write("src/a", "alpha");
    std::fs::hard_link(place.path("src/a"), place.path("src/l")).unwrap();
    place.write("src/d/b", vec![1; 100_000]);
    place.done(&["put", "src"]);
    let before = place.done(&["stats", "--json"]).json();
    let copied = place.done(&["cp", "-r", "src", "copy", "--json"]).json();
    assert_eq!(copied["copied"].as_u64(), Some(5));
    let after = place.done(&["stats", "--json"]).json();
    assert_eq!(before["unique_bytes"], after["unique_bytes"], "no data was copied");
    place.done(&["get", "copy", "out"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
    place.done(&["mv", "copy", "moved"]);
    place.done(&["cp", "src/a", "moved"]);
    place.done(&["cp", "-r", "/", "all"]);
    assert_eq!(place.lines(&["ls", "-R", "all"]).len(), 10);
    place.done(&["mv", "moved/a", "moved/l", "all"]);
    assert_eq!(place.lines(&["ls", "-R", "moved"]), ["d", "d/b"]);
    assert_eq!(
        place.code(2, &["rm", "moved"]).err,
        "outrigger: `moved` is a directory; use -r to remove it with all in it\n"
    );
    place.done(&["rm", "-r", "moved", "all", "src/a"]);
    assert_eq!(place.lines(&["ls", "-R"]), ["src", "src/d", "src/d/b", "src/l"]);
    place.code(1, &["rm", "nope"]);
    place.code(2, &["mv", "src", "src/d"]);
    place.code(2, &["cp", "src", "src2"]);
    place.code(1, &["cp", "nope", "x"]);
    assert_eq!(place.lines(&["ls", "-R"]), ["src", "src/d", "src/d/b", "src/l"]);
}

#[test]
fn existing_files_are_not_overwritten_unless_asked() {
    let place = Place::new();
    place.write("src/a", "stored");
    place.done(&["put", "src"]);
    place.write("out/a", "mine");
    let said = place.code(4, &["get", "src", "out"]);
    assert!(
        said.err.contains("out/a: exists already, with 4 bytes and not 6; use --overwrite"),
        "{}",
        said.err
    );
    assert_eq!(place.read("out/a"), b"mine");
    let said = place.done(&["get", "src", "out", "--overwrite"]).text();
    assert!(said.ends_with("; 1 existing entry replaced, 1 of them newer than the restored\n"), "{said}");
    assert_eq!(place.read("out/a"), b"stored");
    let said = place.done(&["get", "src", "out", "--overwrite"]).text();
    assert!(said.ends_with("; 1 existing entry replaced, none of them newer\n"), "{said}");
    place.write("out/a", "mine");
    let said = place.done(&["get", "src", "out", "--overwrite", "--json"]).json();
    assert_eq!((&said["replaced"], &said["replaced_newer"]), (&1.into(), &1.into()));
    // A symlink in the way is not followed.
    place.write("victim", "safe");
    std::fs::remove_file(place.path("out/a")).unwrap();
    std::os::unix::fs::symlink("../victim", place.path("out/a")).unwrap();
    place.done(&["get", "src", "out", "--overwrite"]);
    assert_eq!((place.read("victim"), place.read("out/a")), (b"safe".to_vec(), b"stored".to_vec()));
}

#[test]
fn policies_hold_below_and_are_listed() {
    let place = Place::new();
    place.write("src/sub/a", "a");
    place.done(&["put", "src"]);
    place.done(&["policy", "set", "src", "versions=none", "codec=lz4"]);
    place.done(&["policy", "set", "/", "chunker=fixed:64K"]);
    let got = place.done(&["policy", "get", "src/sub", "--json"]).json();
    let policies = &got["policies"];
    assert_eq!((&policies["codec"]["value"], &policies["codec"]["from"]), (&"lz4".into(), &"src".into()));
    assert_eq!(policies["chunker"]["from"], "/");
    assert!(policies["dedup"]["from"].is_null());
    assert_eq!(place.lines(&["policy", "list"]), ["/  chunker=fixed:64K", "src  codec=lz4 versions=none"]);
    place.write("src/sub/a", "b");
    place.done(&["put", "src", "--rescan"]);
    let versions = place.done(&["versions", "src/sub/a", "--json"]).json();
    assert_eq!(versions["versions"].as_array().unwrap().len(), 0);
    place.done(&["policy", "set", "src", "--unset", "versions", "--unset", "codec"]);
    assert_eq!(place.lines(&["policy", "list"]), ["/  chunker=fixed:64K"]);
    for bad in ["versions=-1", "codec=zip", "chunker=gear32:1", "dedup=maybe", "x=y", "versions"] {
        place.code(2, &["policy", "set", "src", bad]);
    }
}

/// The next write deletes what fewer versions leave no room for. Who sets the number is told.
#[test]
fn fewer_versions_are_said_to_delete_some() {
    let place = Place::new();
    place.write("src/a", "a");
    place.done(&["put", "src"]);
    for (value, what) in [
        (
            "versions=3",
            "kept 10 earlier contents of a file until now; the next write of a file there deletes its earlier contents but the newest 3\n",
        ),
        (
            "versions=none",
            "`src` kept 3 earlier contents of a file until now; the next write of a file there deletes all its earlier contents\n",
        ),
    ] {
        let said = place.done(&["policy", "set", "src", value]).text();
        assert!(said.ends_with(what), "{said}");
    }
    for more in [&["versions=all"][..], &["codec=lz4"], &["versions=9", "-q"], &["--unset", "versions"]] {
        let said = place.done(&[&["policy", "set", "src"][..], more].concat());
        assert!(said.out.is_empty() && said.err.is_empty(), "{more:?}: {}{}", said.text(), said.err);
    }
}

#[test]
fn listings_say_what_ls_would() {
    let place = Place::new();
    let path = place.write("src/a", "12345");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4750)).unwrap();
    std::os::unix::fs::symlink("a", place.path("src/s")).unwrap();
    std::fs::File::open(&path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(86400, 7))
        .unwrap();
    place.done(&["put", "src"]);
    let lines = place.lines(&["ls", "-l", "src"]);
    assert!(
        lines[0].starts_with("-rwsr-x---") && lines[0].ends_with("           5 1970-01-02 00:00:00 a"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("lrwxrwxrwx") && lines[1].ends_with(" s -> a"), "{lines:?}");
    let entry = &place.done(&["ls", "--json", "src/a"]).json()["entries"][0];
    assert_eq!(entry["mtime"], "1970-01-02T00:00:00.000000007Z");
    assert_eq!((&entry["mode"], entry["size"].as_u64()), (&"4750".into(), Some(5)));
}

#[test]
fn a_profile_and_its_exceptions_make_a_store() {
    let place = Place::empty();
    let args = [
        "init",
        "--profile",
        "archive",
        "--chunker",
        "fixed:64K",
        "--codec",
        "lz4",
        "--fingerprint",
        "sha256",
    ];
    let made =
        place.done(&[&args[..], &["--frame-size", "1M", "--pack-size", "8M", "--json"]].concat()).json();
    assert_eq!(
        (&made["chunker"], &made["codec"], &made["fingerprint"], &made["frame_size"], &made["pack_size"]),
        (&"fixed:64K".into(), &"lz4".into(), &"sha256".into(), &(1 << 20).into(), &(8 << 20).into())
    );
    place.write("f", vec![3; 200_000]);
    place.done(&["put", "f"]);
    assert_eq!(place.done(&["cat", "f"]).out, vec![3; 200_000]);
    let said = place.code(1, &["init"]);
    assert_eq!(said.err, "outrigger: store is a store already\n");
}

#[test]
fn statistics_add_up() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..1_000_000u32).flat_map(|n| (n / 1000).to_le_bytes()).collect();
    place.write("a", &bytes);
    place.write("b", &bytes);
    place.done(&["put", "a", "b"]);
    let stats = place.done(&["stats", "--json"]).json();
    assert_eq!(stats["logical_bytes"].as_u64(), Some(8_000_000));
    assert!(stats["unique_bytes"].as_u64().unwrap() <= 4_000_000);
    let frames = stats["frames"].as_array().unwrap();
    let data: u64 =
        frames.iter().filter(|of| of["kind"] == "data").map(|of| of["raw_bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(data), stats["unique_bytes"].as_u64());
    assert!(place.done(&["stats"]).text().contains("logical    7.63 MiB\n"));
}

#[test]
fn the_shell_is_served() {
    let place = Place::empty();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.done(&["completions", shell]).text().contains("snapshot"), "{shell}");
    }
    place.done(&["man", "pages"]);
    let put = String::from_utf8(place.read("pages/outrigger-put.1")).unwrap();
    assert!(put.contains("keep\\-missing"), "{put}");
    assert!(place.path("pages/outrigger-snapshot-create.1").exists());
    // Examples keep their lines, and the usage shows which arguments may be repeated.
    let example =
        r"\&outrigger put ~/src \-\-to src \-\-exclude target \-\-exclude \(aq*.o\(aq \-\-tag nightly";
    assert!(put.contains(".SH EXAMPLES\n.nf\n") && put.lines().any(|line| line == example), "{put}");
    assert!(put.contains("<SRC>...") && !put.contains("EXTRA"), "{put}");
    assert!(place.done(&["completions", "bash"]).text().contains("default dense large archive"));
    let pages = std::fs::read_dir(place.path("pages")).unwrap();
    for page in pages.map(|page| page.unwrap().file_name().into_string().unwrap()) {
        let text = String::from_utf8_lossy(&place.read(format!("pages/{page}"))).into_owned();
        assert!(text.contains("\n.SH EXAMPLES\n"), "{page} has no examples");
    }
    for args in [&["--help"][..], &["put", "--help"], &["snapshot", "--help"], &["diff", "-h"]] {
        assert!(place.done(args).text().contains("Examples:"), "{args:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::new();
    place.write("big", vec![1; 8_000_000]);
    place.done(&["put", "big"]);
    let mut child = place
        .command(&["cat", "big"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// An agent or a cron job of root's may work in the stores of all users.
#[test]
fn what_root_stores_in_somebodys_store_is_his() {
    let place = Place::plain();
    place.write("mine", noise(1, 300_000));
    place.write("roots", noise(2, 300_000));
    // These run before root comes, and give away what exists.
    let theirs = [
        &["put", "mine"][..],
        &["cat", "c"],
        &["put", "mine", "--to", "again"],
        &["check", "--read-data"],
        &["jobs"],
    ];
    let Some(mut theirs) = theirs.iter().map(|args| place.unprivileged(args)).collect::<Option<Vec<_>>>()
    else {
        outrigger_workload::skipped!("nobody else can run this program here");
        return;
    };
    assert!(theirs.remove(0).output().unwrap().status.success());
    // Enough for several packs, and so for several directories of the user.
    for name in ["a", "b", "c"] {
        place.done(&["put", "roots", "--to", name]);
        place.write("roots", noise(name.as_bytes()[0].into(), 300_000));
    }
    place.done(&["gc"]);
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&std::fs::symlink_metadata(path).unwrap());
    let whose = owner(&place.path("store"));
    let mut left = vec![place.path("store")];
    while let Some(path) = left.pop() {
        assert_eq!(owner(&path), whose, "{}", path.display());
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    for mut command in theirs {
        let said = command.output().unwrap();
        assert!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
    }
}
