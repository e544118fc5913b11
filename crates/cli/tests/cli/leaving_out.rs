//! What `put` leaves out, and what `get` takes.

use crate::run::Place;

/// A tree with caches, ignore files and a mark.
fn tree() -> Place {
    let place = Place::new();
    for name in
        ["a.rs", "b.o", "cache/x", "marked/.nobackup", "marked/y", "work/keep.log", "work/z.log", "work/t/q"]
    {
        place.write(format!("src/{name}"), name);
    }
    place.write("src/cache/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# by a test\n");
    place.write("src/not-one/CACHEDIR.TAG", "a name is not enough");
    place.write("src/work/.ignore", "*.log\n!keep.log\n/t/\n");
    place
}

fn stored(place: &Place, to: &str) -> Vec<String> {
    place.lines(&["ls", "-R", to])
}

#[test]
fn marks_and_ignore_files_are_honoured() {
    let place = tree();
    place.done(&[
        "put",
        "src",
        "--to",
        "t",
        "--exclude-caches",
        "--exclude-if-present",
        ".nobackup",
        "--ignore-file",
        ".ignore",
    ]);
    let names = [
        "a.rs",
        "b.o",
        "cache",
        "cache/CACHEDIR.TAG",
        "marked",
        "marked/.nobackup",
        "not-one",
        "not-one/CACHEDIR.TAG",
        "work",
        "work/.ignore",
        "work/keep.log",
    ];
    assert_eq!(stored(&place, "t"), names);
    place.write("excludes", "# objects\n*.o\n\n/cache\r\n");
    place.done(&["put", "src", "--to", "u", "--exclude-from", "excludes", "--exclude", "work"]);
    let names = ["a.rs", "marked", "marked/.nobackup", "marked/y", "not-one", "not-one/CACHEDIR.TAG"];
    assert_eq!(stored(&place, "u"), names);
    place.code(1, &["put", "src", "--to", "u", "--exclude-from", "none"]);
    place.write("excludes", "[a\n");
    assert!(place.code(2, &["put", "src", "--exclude-from", "excludes"]).err.contains("--exclude-from `[a`"));
    // A line that is no pattern is named, and the rest is done.
    place.write("src/work/.ignore", "*.log\n[z-a]\n");
    let said = place.code(4, &["put", "src", "--to", "t", "--ignore-file", ".ignore"]);
    assert!(said.err.contains("work/.ignore: line 2"), "{}", said.err);
}

#[test]
fn what_is_left_out_is_not_removed() {
    let place = tree();
    place.done(&["put", "src", "--to", "t"]);
    let all = stored(&place, "t");
    for name in ["b.o", "cache/x", "marked/y", "work/z.log", "work/t/q"] {
        std::fs::remove_file(place.path("src").join(name)).unwrap();
    }
    let put = [
        "put",
        "src",
        "--to",
        "t",
        "--exclude",
        "*.o",
        "--exclude-caches",
        "--exclude-if-present",
        ".nobackup",
    ];
    let put = [&put[..], &["--ignore-file", ".ignore"]].concat();
    let planned = place.done(&[&put[..], &["-n"]].concat()).text();
    assert!(planned.contains("would remove 0 entries"), "{planned}");
    place.done(&put);
    assert_eq!(stored(&place, "t"), all);
    // Without the options it is a mirror again.
    place.done(&["put", "src", "--to", "t"]);
    assert_eq!(stored(&place, "t").len(), all.len() - 5);
}

#[test]
fn a_list_says_what_to_put() {
    let place = tree();
    place.done(&["put", "src", "--to", "t"]);
    place.write("src/a.rs", "changed");
    place.write("src/work/t/q", "changed too");
    place.write("src/b.o", "not listed");
    let absolute = place.path("src/work/t");
    place.write("list", format!("a.rs\n{}\nmissing\n", absolute.display()));
    let said = place.code(4, &["put", "src", "--to", "t", "--files-from", "list"]);
    assert!(said.err.contains("skipped src/missing: No such file"), "{}", said.err);
    assert_eq!(place.done(&["cat", "t/a.rs", "t/work/t/q"]).text(), "changedchanged too");
    assert_eq!(place.done(&["cat", "t/b.o"]).text(), "b.o", "what is not listed stays");
    let said = place.feed(&["put", "src", "--to", "only", "--files-from", "-"], b"work/t\n");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(stored(&place, "only"), ["work", "work/t", "work/t/q"]);
    place.write("list", "/etc/passwd\n");
    assert!(place.code(2, &["put", "src", "--files-from", "list"]).err.contains("is not below"));
    place.code(2, &["put", "src", "list", "--files-from", "list"]);
}
