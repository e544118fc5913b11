//! Commands that users of other programs type first.

use crate::run::Place;

#[test]
fn commands_are_shown_in_groups() {
    let place = Place::empty();
    let help = place.done(&["--help"]).text();
    let headings: Vec<_> = help.lines().filter_map(|line| line.strip_suffix(':')).collect();
    let groups = [
        "Store",
        "Files",
        "Snapshots and versions",
        "Mount",
        "Maintenance",
        "Placement",
        "Programs",
        "Devices",
        "Help",
    ];
    assert_eq!(headings[..groups.len()], groups, "{help}");
    assert!(help.contains("\n  put          Store files, trees, or standard input\n"), "{help}");
    assert!(help.contains("\n  backup       Run a profile, or put and take a tagged snapshot\n"), "{help}");
    let help_of_backup = place.done(&["help", "backup"]).text();
    assert!(help_of_backup.contains("outrigger backup PROFILE [-n]"), "{help_of_backup}");
    assert_eq!(place.done(&["backup", "--help"]).text(), help_of_backup);
    assert!(!help.contains('\u{1b}'), "a file gets no colours");
}

#[test]
fn commands_of_others_do_what_they_say() {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.done(&["backup", "src", "--tag", "nightly"]);
    assert_eq!(place.lines(&["snapshots"]).len(), 1);
    place.done(&["restore", "src", "out"]);
    assert_eq!(place.read("out/a"), b"alpha");
    place.done(&["verify"]);
    assert!(place.done(&["prune", "-n"]).text().contains("would be freed"));
}

#[test]
fn commands_that_would_mislead_say_the_right_line() {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.done(&["put", "src", "--tag", "nightly"]);
    let snapshot = place.done(&["snapshot", "list", "--json"]).json()["snapshots"][0]["name"].to_string();
    let snapshot = snapshot.trim_matches('"');
    let said = place.code(2, &["-s", "store", "forget", "--keep-daily", "7", "--prune"]);
    assert_eq!(
        said.err,
        "outrigger: `forget` is another program's command; give `outrigger -s store keep --daily 7`, then \
         `outrigger -s store gc` for the space\n"
    );
    assert_eq!(place.lines(&["snapshots"]).len(), 1, "nothing was removed");
    // The printed line does what the user meant.
    let said = place.code(2, &["restore", snapshot, "--target", "out"]);
    let line = said.err.split('`').nth(3).unwrap().strip_prefix("outrigger ").unwrap().to_string();
    place.done(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(place.read("out/src/a"), b"alpha");
    // In other programs a snapshot stands where a path is here.
    let said = place.code(1, &["restore", snapshot, "out"]);
    assert!(said.err.contains(&format!("`outrigger get --at {snapshot} / DEST`")), "{}", said.err);
    assert!(place.code(2, &["umuont", "/mnt"]).err.contains("'umount'"));
    assert!(!place.code(2, &["frobnicate"]).err.contains("tip:"));
    for (words, say) in [
        (&["undelete", "a"][..], "`outrigger find a` for the snapshots that have it"),
        (&["remove", "src"], "give `outrigger rm src`"),
        (&["purge"], "then `outrigger gc` for the space"),
        (
            &["rm", "-rf", "src"],
            "`rm` has no -f: it never asks, and `outrigger undo` takes it back; leave that out",
        ),
        (&["rm", "-n", "src"], "`rm` has no -n: it takes a snapshot first"),
        (&["ls", "-a"], "`ls` has no -a: it always lists names that begin with a dot"),
    ] {
        let said = place.code(2, words);
        assert!(said.err.contains(say) && !said.err.contains("similar"), "{words:?}: {}", said.err);
    }
    assert_eq!(place.lines(&["ls"]), ["src"]);
    // The newest snapshot is not the present tree, from which something was removed by mistake.
    place.done(&["rm", "-r", "src"]);
    for (words, say) in [
        (&["restore", "latest", "--target", "o"][..], "give `outrigger get --at TAG / o`, where TAG"),
        (&["dump", "latest", "src/a"], "give `outrigger cat --at TAG src/a`, where TAG"),
        (&["prune", "--keep-daily", "7"], "give `outrigger keep --daily 7`"),
        (&["-r", "store", "snapshots"], "-r is another program's option; give the store with -s DIR"),
        (&["snapshots", "--repo", "store"], "--repo is another program's option; give the store with -s DIR"),
    ] {
        let said = place.code(2, words);
        assert!(said.err.contains(say), "{words:?}: {}", said.err);
    }
    assert!(place.code(1, &["restore", "latest", "o"]).err.contains("`outrigger get --at TAG / DEST`"));
    place.done(&["get", "--at", "nightly", "/", "o"]);
    assert_eq!(place.read("o/src/a"), b"alpha");
}
