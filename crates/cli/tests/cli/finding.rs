//! `find`, `ls` with its orders, and patterns of stored names.

use crate::run::Place;

/// A store with the snapshots `one`, `two` and `three`, and a present tree.
fn history() -> Place {
    let place = Place::new();
    place.write("src/doc/notes.txt", "first");
    place.write("src/doc/gone.txt", "gone");
    place.done(&["put", "src"]);
    place.done(&["snapshot", "create", "one"]);
    place.done(&["snapshot", "create", "two"]);
    place.write("src/doc/notes.txt", "second, longer");
    std::fs::remove_file(place.path("src/doc/gone.txt")).unwrap();
    place.done(&["put", "src"]);
    place.done(&["snapshot", "create", "three"]);
    place.done(&["mv", "--no-snapshot", "src/doc", "src/docs"]);
    place
}

fn found(place: &Place, args: &[&str]) -> Vec<(String, u64, String)> {
    let entries = place.done(&[&["find", "--json"], args].concat()).json()["entries"].clone();
    let entries = entries.as_array().unwrap().iter().map(|entry| {
        let word = |key: &str| entry[key].as_str().unwrap_or("-").to_string();
        let now = if entry["now"] == true { " now" } else { "" };
        let path = word("path");
        (path, entry["size"].as_u64().unwrap(), format!("{}..{}{now}", word("first"), word("last")))
    });
    entries.collect()
}

fn row(path: &str, size: u64, moments: &str) -> (String, u64, String) {
    (path.to_string(), size, moments.to_string())
}

#[test]
fn names_are_found_in_all_snapshots_and_now() {
    let place = history();
    place.write("src/docs/new.txt", "new");
    place.done(&["put", "src/docs", "--to", "src/more"]);
    let before = |place: &Place| {
        let names = place.done(&["snapshot", "list", "--json"]).json()["snapshots"].clone();
        names
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["name"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(before(&place).len(), 4, "one automatic snapshot, from before the second put");
    let automatic = before(&place)[2].clone();
    assert_eq!(
        found(&place, &["*.txt"]),
        [
            row("src/doc/gone.txt", 4, &format!("one..{automatic}")),
            row("src/doc/notes.txt", 5, &format!("one..{automatic}")),
            row("src/doc/notes.txt", 14, "three..three"),
            row("src/docs/notes.txt", 14, "-..- now"),
            row("src/more/new.txt", 3, "-..- now"),
        ]
    );
    // By path, below a directory, at one moment.
    assert_eq!(found(&place, &["/*/notes.txt", "src"]).len(), 3);
    assert_eq!(found(&place, &["/notes.txt", "src"]), []);
    assert_eq!(found(&place, &["gone*", "src/doc"]).len(), 1, "a directory that is not there any more");
    assert_eq!(found(&place, &["*.txt", "--at", "one"]).len(), 2);
    assert_eq!(found(&place, &["doc"])[0].2, format!("one..three"));
    let lines = place.lines(&["find", "notes.txt"]);
    assert!(lines[0].ends_with(&format!("src/doc/notes.txt  one..{automatic}")), "{lines:?}");
    assert!(lines[2].ends_with("src/docs/notes.txt  now"), "{lines:?}");
    let said = place.done(&["find", "nothing-like-it"]);
    assert_eq!((said.text().as_str(), said.err.as_str()), ("", "outrigger: no name matches\n"));
    assert!(place.code(1, &["find", "*", "nowhere"]).err.contains("no directory, now or in a snapshot"));
    assert!(place.code(2, &["find", "a["]).err.contains("GLOB `a[`"));
    // The error for a path that only some snapshots have names the one that lacks it.
    for command in ["cat", "ls", "export", "where"] {
        let said = place.code(1, &[command, "--at", "three", "src/doc/gone.txt"]);
        let missing = "`src/doc/gone.txt` is not in the snapshot `three`; `outrigger find 'gone.txt'`";
        assert!(said.err.contains(missing), "{command}: {}", said.err);
    }
}

#[test]
fn lists_are_sorted_and_readable() {
    let place = Place::new();
    for (name, len, time) in [("a", 3000, 30), ("b", 10, 10), ("c", 2_000_000, 20)] {
        let path = place.write(format!("d/{name}"), vec![7; len]);
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(time);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    place.done(&["put", "d"]);
    assert_eq!(place.lines(&["ls", "-S", "d"]), ["c", "a", "b"]);
    assert_eq!(place.lines(&["ls", "-t", "d"]), ["a", "c", "b"]);
    assert_eq!(place.lines(&["ls", "-tr", "d"]), ["b", "c", "a"]);
    assert_eq!(place.lines(&["ls", "-r", "d"]), ["c", "b", "a"]);
    let json = place.done(&["ls", "-S", "--json", "d"]).json();
    assert_eq!(json["entries"][0]["path"], "c");
    let lines = place.lines(&["ls", "-lh", "d"]);
    assert!(lines[0].contains(" 2.93 KiB ") && lines[2].contains(" 1.91 MiB "), "{lines:?}");
    assert!(place.done(&["ls", "--help"]).text().contains("-h, --human-readable"));
    place.code(2, &["ls", "-S", "-t", "d"]);
}

#[test]
fn quoted_patterns_match_stored_names() {
    let place = Place::new();
    for name in ["d/one.txt", "d/two.txt", "d/three.c", "d/sub/four.txt", "d/[x].txt", "d/x.txt"] {
        place.write(name, name);
    }
    place.done(&["put", "d"]);
    assert_eq!(place.lines(&["ls", "d/t*"]), ["d/three.c", "d/two.txt"]);
    assert_eq!(place.lines(&["ls", "-R", "d/s*"]), ["d/sub", "d/sub/four.txt"]);
    assert_eq!(place.done(&["cat", "d/{one,two}.txt"]).text(), "d/one.txtd/two.txt");
    // A name that exists is not taken as a pattern.
    assert_eq!(place.done(&["cat", "d/[x].txt"]).text(), "d/[x].txt");
    place.done(&["get", "d/**/*.txt", "out/"]);
    assert_eq!(place.read("out/four.txt"), b"d/sub/four.txt");
    assert!(!place.path("out/three.c").exists());
    assert_eq!(place.done(&["rm", "--no-snapshot", "d/t*"]).text(), "removed 2 files\n");
    // Entries below a match go with it.
    assert_eq!(
        place.done(&["rm", "-r", "--no-snapshot", "d/**"]).text(),
        "removed 4 files and 1 directory\n"
    );
    for args in [&["ls", "d/q*"][..], &["cat", "d/q*"], &["get", "d/q*", "o"], &["rm", "d/q*"]] {
        let said = place.code(1, args);
        assert!(said.err.contains("`d/q*` is not in the store, and matches nothing there"), "{}", said.err);
    }
}
