//! Senseless requests are refused with a sentence and the right exit code, and change nothing.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::run::{Place, Said, noise};

#[test]
fn usage_errors_say_what_would_be_accepted() {
    let place = Place::new();
    place.write("f", "f");
    place.done(&["put", "f"]);
    let before = place.read("store/store.toml");
    for (args, code, sentence) in [
        (&["frobnicate"][..], 2, "unrecognized subcommand"),
        (&["ls", "../x"], 2, "`..` is not a name"),
        (&["put", "f", "--to", "a/../b"], 2, "`..` is not a name"),
        (&["cat", "--offset", "1X", "f"], 2, "is not a size"),
        (&["cat", "--length=-1", "f"], 2, "is not a size"),
        (&["cat", "--offset", "99999999999999999999", "f"], 2, "is not a size"),
        (&["cat", "/"], 2, "`/` is not a file"),
        (&["cat", "nope"], 1, "`nope` is not in the store; `outrigger find 'nope'` looks for it"),
        (&["get", "nope", "out"], 1, "`nope` is not in the store"),
        (&["get", "f"], 2, "where to?"),
        (&["get"], 2, "required"),
        (&["mv", "f"], 2, "where to?"),
        (&["cp", "f"], 2, "where to?"),
        (&["get", "f", "--version", "x", "out"], 2, "invalid value"),
        (&["put", "f", "--exclude", "[a"], 2, "--exclude `[a`"),
        (&["put"], 2, "required"),
        (&["put", "f", "f"], 2, "two sources"),
        (&["put", "/"], 2, "--to PATH"),
        (&["ls", "--threads", "0"], 2, "1 to 1024"),
        (&["rm", "/"], 2, "the root itself"),
        (&["mv", "/", "x"], 2, "the root itself"),
        (&["policy", "get", "f"], 2, "not a directory"),
        (&["export", "nope", "out.tar"], 1, "`nope` is not in the store"),
        (&["init", "--profile", "huge"], 2, "possible values: default, dense, large, archive"),
        (&["init", "--chunker", "gear32:4K"], 2, "MIN/AVG/MAX"),
        (&["init", "--codec", "zstd:99"], 2, "-7 to 19"),
        (&["init", "--fingerprint", "crc32"], 2, "blake3"),
        (&["-s", "new", "init", "--frame-size", "1"], 2, "from 4K to 16M"),
        (&["-s", "new", "init", "--pack-size", "1T"], 2, "too large"),
        (&["-s", "", "ls"], 2, ""),
    ] {
        let said = place.code(code, args);
        assert!(said.err.contains(sentence), "{args:?}: {}", said.err);
        assert!(
            said.err.starts_with("outrigger: ") || said.err.starts_with("error: "),
            "{args:?}: {}",
            said.err
        );
    }
    assert!(!place.path("new").exists() && !place.path("out.tar").exists());
    assert_eq!(place.read("store/store.toml"), before);
    assert_eq!(place.lines(&["ls", "-R"]), ["f"]);
}

#[test]
fn what_is_not_a_store_is_said_to_be_none() {
    let place = Place::empty();
    let said = place.code(1, &["ls"]);
    assert_eq!(
        said.err,
        "outrigger: store does not exist; is its disk mounted, and the path right? `outrigger -s store init` makes a new store there\n"
    );
    // A mount point without its disk is an empty directory.
    std::fs::create_dir(place.path("mnt")).unwrap();
    let said = place.code(1, &["-s", "mnt", "ls"]);
    assert!(said.err.contains("mnt is an empty directory, not a store; is its disk mounted"), "{}", said.err);
    // `init` would refuse a directory with files in it, so it is not advised there.
    place.write("src/mine", "mine");
    let said = place.code(1, &["-s", "src", "ls"]);
    assert!(said.err.contains("src is a directory with other things, not a store"), "{}", said.err);
    assert!(!said.err.contains("-s src init"), "{}", said.err);
    let said = Said::from(place.command(&["ls"]).env_remove("OUTRIGGER_STORE").output().unwrap());
    assert_eq!((said.code, said.err.contains("OUTRIGGER_STORE")), (2, true));
    place.write("store/mine", "not empty");
    assert!(place.code(1, &["init"]).err.contains("is not empty"));
    assert_eq!(place.read("store/mine"), b"not empty");
    place.write("file", "a file");
    place.code(1, &["-s", "file", "ls"]);
    place.code(1, &["-s", "file", "init"]);
}

#[test]
fn damaged_and_newer_configurations_are_told_apart() {
    let place = Place::new();
    let text = String::from_utf8(place.read("store/store.toml")).unwrap();
    place.write("store/store.toml", text.replace("format = 1", "format = 99"));
    let said = place.code(1, &["ls"]);
    assert!(said.err.contains("format 99") && said.err.contains("use a newer outrigger"), "{}", said.err);
    place.write("store/store.toml", "format = \0");
    place.code(3, &["ls"]);
    place.write("store/store.toml", text);
    std::fs::write(place.path("store/meta.db"), "not a database at all, not at all").unwrap();
    let said = place.code(3, &["ls"]);
    assert!(said.err.contains("recover"), "{}", said.err);
}

#[test]
fn a_lost_database_is_recovered() {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.write("src/b", vec![3; 500_000]);
    place.done(&["put", "src", "--tag", "one"]);
    place.write("src/a", "beta");
    place.done(&["put", "src"]);
    place.done(&["policy", "set", "src", "versions=3"]);
    std::fs::remove_file(place.path("store/meta.db")).unwrap();
    let said = place.code(3, &["ls"]);
    assert!(said.err.contains("outrigger -s store recover"), "{}", said.err);
    let report = place.done(&["recover", "--json"]).json();
    assert_eq!(
        (report["files"].as_u64(), report["snapshots"].as_u64()),
        (Some(2), Some(2)),
        "one is from before the second put"
    );
    place.done(&["get", "src", "out"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("out")).unwrap(), []);
    assert_eq!(place.done(&["cat", "--at", "one", "src/a"]).text(), "alpha");
    assert_eq!(place.lines(&["policy", "list"]), ["src  versions=3"]);
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_read_only_store_is_read_and_not_changed() {
    let place = Place::plain();
    place.write("f", "content");
    place.done(&["put", "f", "--tag", "t"]);
    let dir = place.path("store");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o500)).unwrap();
    let run =
        |args: &[&str]| place.unprivileged(args).map(|mut command| Said::from(command.output().unwrap()));
    let reads =
        [&["cat", "f"][..], &["cat", "--at", "t", "f"], &["ls"], &["stats"], &["versions", "f"], &["check"]];
    for args in reads {
        // Root without `setpriv` may write anywhere, so there is nothing to test.
        let Some(said) = run(args) else { return };
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    }
    for args in
        [&["put", "f"][..], &["rm", "f"], &["snapshot", "create", "x"], &["gc"], &["keep", "--last", "1"]]
    {
        let Some(said) = run(args) else { return };
        assert_eq!(said.code, 1, "{args:?}: {}", said.err);
        assert!(said.err.contains("store is read-only"), "{args:?}: {}", said.err);
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn damage_is_named_and_the_rest_is_read() {
    let place = Place::plain();
    let noise: Vec<u8> =
        (0..400_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect();
    place.write("src/noise", &noise);
    place.done(&["put", "src"]);
    place.write("src/fine", "fine");
    place.done(&["put", "src"]);
    let mut packs = Vec::new();
    for entry in std::fs::read_dir(place.path("store/packs")).unwrap() {
        for pack in std::fs::read_dir(entry.unwrap().path()).unwrap() {
            let path = pack.unwrap().path();
            packs.push((std::fs::metadata(&path).unwrap().len(), path));
        }
    }
    let (_, largest) = packs.into_iter().max().unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let mode = std::fs::metadata(&largest).unwrap().permissions();
    std::fs::set_permissions(&largest, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&largest, bytes).unwrap();
    std::fs::set_permissions(&largest, mode).unwrap();
    let said = place.code(3, &["get", "src", "out"]);
    assert!(said.err.contains("out/noise") && said.err.contains("check"), "{}", said.err);
    assert_eq!(place.read("out/fine"), b"fine");
    assert!(!place.path("out/noise").exists());
    let said = place.code(3, &["cat", "src/noise"]);
    assert!(noise.starts_with(&said.out), "wrong bytes are never written");
    // Without reading the bytes, nothing is said about them.
    let said = place.done(&["check"]).text();
    assert!(said.contains("structures are whole: ") && !said.contains("no damage"), "{said}");
    assert!(said.ends_with("; bytes were not read (--read-data reads them)\n"), "{said}");
    let said = place.code(3, &["check", "--read-data"]);
    assert!(said.text().contains("src/noise"), "{}", said.text());
    let report = place.code(3, &["check", "--read-data", "--json"]).json();
    assert!(report["damaged"].as_u64().unwrap() > 0);
    // The rest of the file can be read, with zeros in place of the damage.
    let said = place.code(3, &["get", "--salvage", "src", "rest"]);
    let rest = place.read("rest/noise");
    assert_eq!(rest.len(), noise.len());
    let lost = rest.iter().zip(&noise).filter(|(left, right)| left != right);
    assert!(lost.clone().count() > 0 && lost.clone().all(|(left, _)| *left == 0), "zeros, and nothing else");
    assert!(
        said.err.contains("rest/noise: restored, but for bytes ") && said.err.contains(".."),
        "{}",
        said.err
    );
    // The source still exists: the repair says that putting it again stores the lost data.
    let said = place.code(3, &["check", "--repair"]);
    assert!(said.text().contains("src/noise") && said.text().contains("put --rescan"), "{}", said.text());
    place.done(&["put", "src", "--rescan"]);
    place.done(&["get", "src", "out2"]);
    assert_eq!(place.read("out2/noise"), noise);
    place.done(&["check", "--read-data"]);
}

/// Errors in the database are named, and so is damage in the packs. Such a database repairs
/// nothing.
#[test]
fn a_check_goes_on_to_the_packs_when_the_database_is_wrong() {
    let place = Place::plain();
    place.write("src/noise", noise(3, 200_000));
    place.done(&["put", "src"]);
    let script = "import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.create_function('row_sum', -1, lambda *_: 0, deterministic=True)
    database.execute('UPDATE state SET files = files + 7')";
    let mut python = Command::new("python3");
    assert!(python.args(["-c", script]).arg(place.path("store/meta.db")).status().unwrap().success());
    let said = place.code(3, &["check", "--read-data"]);
    assert!(said.text().contains("metadata:") && !said.text().contains("is missing"), "{}", said.text());
    for entry in std::fs::read_dir(place.path("store/packs")).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let said = place.code(3, &["check", "--repair"]);
    assert!(said.text().contains("metadata:") && said.text().contains("is missing"), "{}", said.text());
    assert!(!said.text().contains("repaired"), "{}", said.text());
}
