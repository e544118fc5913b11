//! Filters of `put` and `get`, and the lines of `-v`.

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
    // An invalid line is named, and the rest is done.
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
    // Without the options the target is a mirror again.
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

#[test]
fn a_part_of_a_tree_is_restored() {
    let place = tree();
    place.done(&["put", "src", "--to", "t"]);
    let planned = place.done(&[
        "get",
        "t",
        "out",
        "--include",
        "work",
        "--include",
        "*.rs",
        "--exclude",
        "*.log",
        "-n",
    ]);
    assert!(planned.text().contains("would restore 5 entries"), "{}", planned.text());
    assert!(!place.path("out").exists());
    place.done(&["get", "t", "out", "--include", "work", "--include", "*.rs", "--exclude", "*.log"]);
    assert_eq!(place.read("out/a.rs"), b"a.rs");
    assert_eq!(place.read("out/work/t/q"), b"work/t/q");
    for absent in ["b.o", "cache", "marked", "work/z.log"] {
        assert!(!place.path("out").join(absent).exists(), "{absent}");
    }
    // Directories on the way are made, and no others.
    place.done(&["get", "t", "deep", "--include", "/work/t/q"]);
    assert_eq!(place.read("deep/work/t/q"), b"work/t/q");
    assert_eq!(std::fs::read_dir(place.path("deep")).unwrap().count(), 1);
    let planned = place.done(&["get", "t", "out", "--include", "*.rs", "-n", "--json"]).json();
    assert_eq!((planned["entries"].as_u64(), planned["existing"].as_u64()), (Some(1), Some(1)));
    assert!(place.code(2, &["get", "t", "x", "--include", "["]).err.contains("--include `[`"));
}

#[test]
fn each_file_gets_a_line() {
    let place = Place::new();
    place.write("src/a", "a");
    place.write("src/d/b", "b");
    let said = |args: &[&str]| {
        let text = place.done(args).text();
        let lines =
            text.lines().filter(|line| line.as_bytes().get(1) == Some(&b' ') && line.is_char_boundary(2));
        lines.filter(|line| "ACR".contains(&line[..1])).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(said(&["put", "src", "--to", "t", "-v"]), ["A t/a", "A t/d", "A t/d/b"]);
    place.write("src/a", "other");
    std::fs::remove_file(place.path("src/d/b")).unwrap();
    assert_eq!(said(&["-v", "put", "src", "--to", "t"]), ["C t/a", "R t/d/b"]);
    assert_eq!(said(&["put", "src/a", "--to", "one", "-v"]), ["A one"]);
    assert_eq!(said(&["get", "-v", "t", "out"]), ["A out/a"]);
    assert_eq!(said(&["cp", "-r", "-v", "t", "u"]), ["A u", "A u/a", "A u/d"]);
    assert_eq!(said(&["mv", "-v", "one", "two"]), ["R one", "A two"]);
    assert_eq!(said(&["export", "-v", "u", "u.tar"]).len(), 3);
    assert_eq!(said(&["import", "-v", "u.tar", "--to", "i"]).len(), 3);
    assert_eq!(said(&["rm", "-rv", "u"]), ["R u", "R u/a", "R u/d"]);
    // Standard output is only for data or JSON.
    let tar = place.done(&["export", "-v", "t"]);
    assert!(tar.err.contains("A a\n"), "{}", tar.err);
    let put = place.done(&["put", "src", "--to", "w", "-v", "--json"]);
    assert!(put.json()["files"] == 1 && put.err.contains("A w/a\n"), "{}", put.err);
    place.code(2, &["put", "src", "-v", "-q"]);
}
