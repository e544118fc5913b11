//! Snapshots, versions, times, retention, comparison.

use crate::run::Place;

/// A store whose file `f` was `1`, `2`, `3` at the snapshots `s1`, `s2`, `s3`, and is `4` now.
fn history() -> Place {
    history_with(|place, round, tag| {
        let name = format!("s{round}");
        assert_eq!(place.lines(&["snapshot", "create", &name, "--tag", tag]), [name]);
    })
}

/// The same, with snapshots named by their time.
fn dated_history() -> Place {
    history_with(|place, _, tag| drop(place.done(&["snapshot", "create", "--tag", tag])))
}

fn history_with(snapshot: impl Fn(&Place, u32, &str)) -> Place {
    let place = Place::new();
    for round in 1..=3 {
        place.write("f", round.to_string());
        place.done(&["put", "--no-snapshot", "f"]);
        snapshot(&place, round, if round < 3 { "old" } else { "new" });
    }
    place.write("f", "4");
    place.done(&["put", "--no-snapshot", "f"]);
    place
}

#[test]
fn snapshots_are_found_by_name_tag_and_time() {
    let place = history();
    let listed = place.done(&["snapshot", "list", "--json"]).json();
    let times: Vec<&str> =
        listed["snapshots"].as_array().unwrap().iter().map(|of| of["time"].as_str().unwrap()).collect();
    for (at, content) in [
        ("s1", "1"),
        ("s2", "2"),
        ("old", "2"),
        ("new", "3"),
        (times[0], "1"),
        (times[1], "2"),
        ("0s", "3"),
        ("-0h", "3"),
        ("now", "3"),
        ("today", "3"),
        ("9999-12-31", "3"),
    ] {
        assert_eq!(place.done(&["cat", "--at", at, "f"]).text(), content, "--at {at}");
    }
    assert_eq!(place.done(&["cat", "f"]).text(), "4");
    assert!(place.code(1, &["cat", "--at", "-2h", "f"]).err.contains("no snapshot is that old"));
    assert!(place.code(1, &["cat", "--at", "yesterday", "f"]).err.contains("no snapshot is that old"));
    assert!(place.code(1, &["cat", "--at", "2 days ago", "f"]).err.contains("no snapshot is that old"));
    let said = place.code(1, &["cat", "--at", "nonsense", "f"]);
    assert!(said.err.contains("is no snapshot's name or tag, and no time"), "{}", said.err);
    assert!(said.err.contains("yesterday, today, now, -2h or '3 days ago'"), "{}", said.err);
    place.done(&["snapshot", "delete", "s2"]);
    assert_eq!(place.done(&["cat", "--at", "old", "f"]).text(), "1");
    place.code(1, &["snapshot", "delete", "s2"]);
    assert_eq!(place.code(1, &["snapshot", "create", "s1"]).err, "outrigger: snapshot `s1` exists already\n");
    for bad in ["", "a b", "a:b", "a/b"] {
        place.code(2, &["snapshot", "create", bad]);
    }
}

#[test]
fn earlier_versions_are_listed_and_read() {
    let place = history();
    let versions = place.done(&["versions", "f", "--json"]).json();
    let numbers: Vec<u64> =
        versions["versions"].as_array().unwrap().iter().map(|of| of["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [3, 2, 1]);
    for number in 1..=3 {
        let text = number.to_string();
        assert_eq!(place.done(&["cat", "--version", &text, "f"]).text(), text);
        let out = format!("v{number}");
        place.done(&["get", "f", "--version", &text, &out]);
        assert_eq!(place.read(&out), text.as_bytes());
    }
    let said = place.code(1, &["cat", "--version", "9", "f"]);
    assert_eq!(
        said.err,
        "outrigger: `f`: version 9 is not kept; `outrigger versions f` lists the kept ones\n"
    );
    place.code(2, &["versions", "/"]);
}

#[test]
fn a_move_over_a_file_drops_its_versions_a_copy_and_a_put_keep_them() {
    let place = history();
    let versions = |place: &Place, path: &str| {
        place.done(&["versions", path, "--json"]).json()["versions"].as_array().unwrap().len()
    };
    let before = versions(&place, "f");
    place.write("g", "other");
    place.done(&["put", "g"]);
    place.done(&["cp", "g", "f"]);
    assert_eq!(versions(&place, "f"), before + 1);
    place.write("g", "another");
    place.done(&["put", "g"]);
    let own = versions(&place, "g");
    place.done(&["mv", "g", "f"]);
    assert_eq!(place.done(&["cat", "f"]).text(), "another");
    assert_eq!(versions(&place, "f"), own);
}

#[test]
fn a_file_comes_back_from_a_snapshot_without_being_copied() {
    let place = history();
    place.done(&["cp", "--at", "s1", "f", "f.1"]);
    assert_eq!(place.done(&["cat", "f.1"]).text(), "1");
    place.done(&["cp", "--at", "s2", "f", "f"]);
    assert_eq!(place.done(&["cat", "f"]).text(), "2");
}

#[test]
fn retention_says_what_it_keeps_and_why() {
    let place = dated_history();
    place.code(2, &["keep"]);
    let dry = place.done(&["keep", "--last", "1", "--tag", "old", "--dry-run", "--json"]).json();
    assert_eq!(dry["deleted"].as_array().unwrap().len(), 0);
    let dry = place.lines(&["keep", "--last", "1", "-n"]);
    assert!(dry[0].ends_with("would delete") && dry[2].ends_with("keep (last)"), "{dry:?}");
    assert_eq!(place.lines(&["snapshot", "list"]).len(), 3);
    let names = |place: &Place| -> Vec<String> {
        place
            .lines(&["snapshot", "list"])
            .iter()
            .map(|line| line.split(' ').next().unwrap().to_string())
            .collect()
    };
    let all = names(&place);
    place.done(&["keep", "--of", "old", "--last", "1"]);
    assert_eq!(names(&place), all[1..]);
    place.done(&[
        "keep",
        "--yearly",
        "1",
        "--monthly",
        "1",
        "--weekly",
        "1",
        "--daily",
        "1",
        "--hourly",
        "1",
    ]);
    assert!(names(&place).contains(&all[2]));
    place.code(2, &["keep", "--last", "x"]);
    place.done(&["gc"]);
    assert_eq!(place.done(&["cat", "--at", &all[2], "f"]).text(), "3");
    place.done(&["check", "--read-data"]);
}

/// Deleting snapshots is final, and is said to be. A tag that is gone no longer answers `--at`.
#[test]
fn what_is_gone_for_good_is_said() {
    let place = Place::new();
    for (content, tag) in [("1", "old"), ("2", "new"), ("3", "new")] {
        place.write("f", content);
        place.done(&["put", "f", "--tag", tag]);
    }
    let dry = place.done(&["keep", "--last", "2", "-n"]).text();
    assert!(
        dry.contains("no snapshot would have the tag `old` any more") && !dry.contains("for good"),
        "{dry}"
    );
    let said = place.done(&["keep", "--last", "2"]).text();
    assert!(said.contains("no snapshot has the tag `old` any more\n") && !said.contains("`new`"), "{said}");
    assert!(said.contains("deleted 1 snapshot; what nothing else has is gone for good"), "{said}");
    assert!(!place.done(&["keep", "--last", "2"]).text().contains("gone"));
    let said = place.done(&["keep", "--last", "1", "--delete-all", "--json"]).json();
    assert_eq!(said["tags_gone"].as_array().unwrap().len(), 0);
    place.done(&["snapshot", "create", "only"]);
    let said = place.done(&["snapshot", "delete", "only"]).text();
    assert!(said.starts_with("deleted 1 snapshot; ") && said.contains("`outrigger gc`"), "{said}");
}

/// `backup DIR` is what users of other programs type: it leaves something to go back to.
#[test]
fn a_backup_takes_a_snapshot() {
    let place = Place::new();
    place.write("src/f", "1");
    assert!(place.done(&["backup", "src", "-n"]).text().contains("nothing was changed"));
    let said = place.done(&["backup", "src"]).text();
    assert!(said.contains(" with the tag `backup`\n"), "{said}");
    place.write("src/f", "two");
    let said = place.done(&["backup", "src", "--tag", "mine"]).text();
    assert!(said.contains(" with the tag `mine`\n"), "{said}");
    assert_eq!(place.done(&["cat", "--at", "backup", "src/f"]).text(), "1");
    // `undo` ends one day, which is said; unless the automatic snapshots stay for ever.
    assert!(
        said.contains("; `outrigger undo` undoes it until 2") && said.contains(" (snapshot before-put-"),
        "{said}"
    );
    place.done(&["keep", "--automatic", "forever"]);
    let said = place.done(&["rm", "src/f"]).text();
    assert!(said.contains("; `outrigger undo` undoes it (snapshot before-rm-"), "{said}");
}

#[test]
fn a_mistyped_tag_deletes_nothing() {
    let place = dated_history();
    let all = place.lines(&["snapshot", "list"]);
    for mistyped in [&["keep", "--tag", "odl"][..], &["keep", "--last", "1", "--tag", "old", "--tag", "odl"]]
    {
        let said = place.code(2, mistyped);
        assert!(said.err.contains("no snapshot has the tag `odl`, nothing was deleted"), "{}", said.err);
    }
    // A rule that keeps none of the snapshots that it applies to.
    let none = ["keep", "--of", "old", "--tag", "new"];
    for dry in [&["--dry-run"][..], &[]] {
        let said = place.code(2, &[&none[..], dry].concat());
        assert!(said.err.contains("--delete-all"), "{}", said.err);
    }
    assert_eq!(place.lines(&["snapshot", "list"]), all);
    let deleted = place.done(&[&none[..], &["--delete-all", "--json"]].concat()).json();
    assert!(!deleted["deleted"].as_array().unwrap().is_empty());
    assert_eq!(
        place.lines(&["snapshot", "list"]).len() + deleted["deleted"].as_array().unwrap().len(),
        all.len()
    );
}

#[test]
fn a_put_with_a_tag_makes_a_snapshot() {
    let place = Place::new();
    place.write("f", "1");
    let put = place.done(&["put", "f", "--tag", "nightly", "--tag", "t2", "--json"]).json();
    let again = place.done(&["put", "f", "--tag", "nightly", "--json"]).json();
    assert_ne!(put["snapshot"], again["snapshot"], "names are unique within a second");
    assert!(place.done(&["put", "f", "--json"]).json()["snapshot"].is_null());
    let listed = place.done(&["snapshot", "list", "--tag", "t2", "--json"]).json();
    assert_eq!(listed["snapshots"][0]["name"], put["snapshot"]);
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 1);
    assert_eq!(place.done(&["cat", "--at", "nightly", "f"]).text(), "1");
    place.code(2, &["put", "f", "--tag", "a b"]);
}

#[test]
fn differences_are_named() {
    let place = Place::new();
    for name in ["same", "changed", "gone", "touched", "kind", "d/below"] {
        place.write(format!("src/{name}"), name);
    }
    place.done(&["put", "src", "--tag", "before"]);
    place.write("src/changed", "otherwise");
    place.write("src/new/file", "new");
    std::fs::remove_file(place.path("src/gone")).unwrap();
    std::fs::remove_dir_all(place.path("src/d")).unwrap();
    let touched = std::fs::File::open(place.path("src/touched")).unwrap();
    touched.set_modified(std::time::UNIX_EPOCH).unwrap();
    std::fs::remove_file(place.path("src/kind")).unwrap();
    std::fs::create_dir(place.path("src/kind")).unwrap();
    place.done(&["put", "src"]);
    let lines = place.lines(&["diff", "before:src", "src"]);
    let expected =
        ["M ./", "C changed", "R d/", "R d/below", "R gone", "T kind/", "A new/", "A new/file", "M touched"];
    assert_eq!(lines, expected);
    assert_eq!(
        place.lines(&["diff", "before:", ":"]),
        expected.map(|line| {
            let (letter, name) = line.split_once(' ').unwrap();
            if name == "./" { "M src/".to_string() } else { format!("{letter} src/{name}") }
        })
    );
    let json = place.done(&["diff", "before:src/changed", "src/changed", "--json"]).json();
    assert_eq!(json["differences"][0]["difference"], "changed");
    assert_eq!(json["differences"][0]["b"]["size"].as_u64(), Some(9));
    place.done(&["snapshot", "create", "snap"]);
    assert_eq!(place.lines(&["diff", "snap:", "/"]), [""; 0]);
    let said = place.code(1, &["diff", "snap", "src"]);
    assert_eq!(said.err, "outrigger: `snap` is not in the store; for the snapshot write `snap:`\n");
    place.code(1, &["diff", "nope:src", "src"]);
}
