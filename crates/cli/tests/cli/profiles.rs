//! Profiles of the configuration file, and errors as JSON.

use crate::run::{Place, Said};

/// A store, a source, and the configuration with `profile` in it.
fn place(profile: &str) -> Place {
    let place = Place::new();
    place.write("src/a", "alpha");
    place.write("src/b.tmp", "left out");
    place.write("config.toml", profile);
    place
}

fn run(place: &Place, args: &[&str]) -> Said {
    let mut command = place.command(args);
    command.env("OUTRIGGER_CONFIG", place.path("config.toml")).env_remove("OUTRIGGER_STORE");
    command.output().unwrap().into()
}

const PROFILE: &str = r#"
[profiles.home]
store = "store"
sources = ["src"]
to = "home"
exclude = ["*.tmp"]
tags = ["nightly"]
keep = { last = 2 }
before = ["echo before $OUTRIGGER_PROFILE $OUTRIGGER_STORE >> log"]
after = [["sh", "-c", "echo after $OUTRIGGER_EXIT >> log"]]
on-failure = ["echo failed $OUTRIGGER_EXIT >> log"]
always = [["touch", "a name; with blanks"]]
"#;

#[test]
fn a_profile_puts_keeps_and_runs_its_commands() {
    let place = place(PROFILE);
    let said = run(&place, &["backup", "home", "-n"]);
    assert!(said.code == 0 && said.err.is_empty(), "before the first run: {}{}", said.text(), said.err);
    for n in 0..3 {
        place.write("src/a", format!("alpha {n}"));
        let said = run(&place, &["backup", "home"]);
        assert_eq!(said.code, 0, "{}{}", said.text(), said.err);
    }
    assert_eq!(place.lines(&["ls", "-R", "home"]), ["a"]);
    assert_eq!(place.lines(&["snapshot", "list", "--tag", "nightly"]).len(), 2);
    assert_eq!(place.read("log"), "before home store\nafter 0\n".repeat(3).as_bytes());
    assert!(place.path("a name; with blanks").exists(), "no shell sees a list");
    // Snapshots with another tag do not count.
    place.done(&["put", "src", "--to", "other", "--tag", "weekly"]);
    let said = run(&place, &["backup", "home", "--json"]).json();
    assert_eq!((said["put"]["files"].as_u64(), said["exit"].as_u64()), (Some(1), Some(0)));
    assert_eq!(said["keep"]["deleted"].as_array().unwrap().len(), 1);
    assert_eq!(place.lines(&["snapshot", "list", "--tag", "weekly"]).len(), 1);
    // A dry run changes nothing and runs nothing.
    std::fs::remove_file(place.path("log")).unwrap();
    place.write("src/new", "new");
    let said = run(&place, &["backup", "home", "-n"]);
    assert!(said.code == 0 && said.text().contains("would store 1 new entry"), "{}{}", said.text(), said.err);
    assert!(!place.path("log").exists());
    // It counts the snapshot that a run would take: of the two that are there, one would go.
    let says = |word: &str| said.text().lines().filter(|line| line.ends_with(word)).count();
    assert_eq!((says("would delete"), says("keep (last)")), (1, 2), "{}", said.text());
    assert!(said.text().contains("(of this run)") && !said.text().contains("any more"), "{}", said.text());
    let json = run(&place, &["backup", "home", "-n", "--json"]).json();
    assert_eq!(json["keep"]["snapshots"].as_array().unwrap().len(), 2);
    let said = place.done(&["put", "src", "--to", "home", "--tag", "nightly", "-n"]);
    assert!(said.text().ends_with("nothing was changed\n"), "{}", said.text());
    assert_eq!(run(&place, &["profile", "list"]).text(), "home  src to home\n");
    // A path is no profile.
    assert_eq!(run(&place, &["-s", "store", "backup", "./src", "--to", "plain"]).code, 0);
    assert_eq!(place.lines(&["ls", "plain"]).len(), 3);
    assert_eq!(run(&place, &["backup", "home", "--to", "x"]).code, 2);
}

/// The exported variable is for other commands: the profile's own store wins, and is named.
#[test]
fn a_profile_goes_to_its_own_store() {
    let place = place(PROFILE);
    place.done(&["-s", "other", "init"]);
    place.write("config.toml", PROFILE.replace("before = [", "before = [] # ["));
    let with = |args: &[&str]| -> Said {
        let mut command = place.command(args);
        command.env("OUTRIGGER_CONFIG", place.path("config.toml")).env("OUTRIGGER_STORE", "other");
        command.output().unwrap().into()
    };
    let said = with(&["backup", "home"]);
    assert!(
        said.text().starts_with("profile `home`: to store, not to that of OUTRIGGER_STORE\n"),
        "{}",
        said.text()
    );
    assert_eq!((place.lines(&["ls"]).len(), place.lines(&["-s", "other", "ls"]).len()), (1, 0));
    // Only the command line comes before it.
    for (n, args) in
        [&["-s", "other", "backup", "home"][..], &["backup", "home", "-s", "other"]].iter().enumerate()
    {
        let said = with(args);
        assert!(said.text().starts_with("profile `home`: to other\n"), "{}", said.text());
        assert_eq!(place.lines(&["-s", "other", "snapshot", "list"]).len(), n + 1);
    }
    assert_eq!(with(&["backup", "home", "-n", "--json"]).json()["store"], "store");
}

#[test]
fn failures_are_told_and_what_was_stopped_starts_again() {
    let place = place(PROFILE);
    std::fs::rename(place.path("src"), place.path("away")).unwrap();
    let said = run(&place, &["backup", "home"]);
    assert!(said.code == 1 && said.err.contains("cannot read src"), "{}", said.err);
    assert_eq!(place.read("log"), b"before home store\nafter 1\nfailed 1\n");
    std::fs::rename(place.path("away"), place.path("src")).unwrap();
    // The first `before` command that fails ends the run.
    place.write("config.toml", PROFILE.replace("before = [", "before = [[\"false\"], "));
    std::fs::remove_file(place.path("log")).unwrap();
    let said = run(&place, &["backup", "home"]);
    assert!(said.code == 1 && said.err.contains("a `before` command of the profile `home`"), "{}", said.err);
    assert_eq!(place.read("log"), b"after 1\nfailed 1\n");
    assert_eq!(place.lines(&["ls"]), [""; 0]);
    // A signal ends the run, and the services that it stopped are started again.
    place.write("config.toml", PROFILE.replace("before = [", "before = [\"kill -TERM $PPID\", "));
    std::fs::remove_file(place.path("log")).unwrap();
    assert_eq!(run(&place, &["backup", "home"]).code, 130);
    assert_eq!(place.read("log"), b"after 1\nfailed 1\n");
    assert_eq!(place.lines(&["ls"]), [""; 0]);
}

#[test]
fn a_configuration_that_is_wrong_is_refused() {
    let place = place("[profiles.home]\nsources = [\"src\"]\nexcludes = [\"x\"]\n");
    let said = run(&place, &["profile", "list"]);
    assert!(said.code == 2 && said.err.contains("unknown field `excludes`"), "{}", said.err);
    place.write("config.toml", "[profiles.home]\n");
    assert!(run(&place, &["profile", "list"]).err.contains("has no `sources`"));
    place.write("config.toml", PROFILE);
    assert!(run(&place, &["profile", "run", "none"]).err.contains("no profile `none`; there are: home"));
    // A word that is neither a profile nor a file is a mistyped profile.
    let said = run(&place, &["backup", "hmoe"]);
    assert!(said.code == 1 && said.err.contains("no profile `hmoe`; there are: home"), "{}", said.err);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(place.path("config.toml"), PermissionsExt::from_mode(0o666)).unwrap();
    let said = run(&place, &["backup", "home"]);
    assert!(said.code == 1 && said.err.contains("is writable by everybody"), "{}", said.err);
    std::fs::remove_file(place.path("config.toml")).unwrap();
    assert!(run(&place, &["profile", "list"]).err.contains("does not exist"));
}

/// The user's and the machine's files are found without being named.
#[test]
fn the_users_file_is_found() {
    let place = place("");
    place.write("home/.config/outrigger/config.toml", PROFILE);
    let mut command = place.command(&["profile", "list"]);
    command.env("HOME", place.path("home")).env_remove("XDG_CONFIG_HOME").env_remove("OUTRIGGER_CONFIG");
    let said: Said = command.output().unwrap().into();
    assert_eq!(said.text(), "home  src to home\n", "{}", said.err);
}

#[test]
fn errors_are_json_where_answers_are() {
    let place = Place::new();
    for (args, code, message, hint) in [
        (&["ls", "nope"][..], 1, "`nope` is not in the store", Some("`outrigger find 'nope'`")),
        (
            &["keep"],
            2,
            "no rule says what to keep",
            Some("give at least one, such as --last 10 or --daily 7"),
        ),
        (&["ls", "--frob"], 2, "unexpected argument '--frob' found", Some("outrigger ls --help")),
        (
            &["forget", "x"],
            2,
            "`forget` is another program's command",
            Some("give `outrigger snapshot delete x`"),
        ),
    ] {
        let said = place.code(code, &[args, &["--json"]].concat());
        assert!(said.out.is_empty(), "{}", said.text());
        let error: serde_json::Value =
            serde_json::from_str(&said.err).unwrap_or_else(|_| panic!("{}", said.err));
        let error = &error["error"];
        assert_eq!((error["code"].as_i64(), error["message"].as_str()), (Some(code.into()), Some(message)));
        match hint {
            Some(hint) => assert!(error["hint"].as_str().unwrap().contains(hint), "{error}"),
            None => assert!(error["hint"].is_null(), "{error}"),
        }
    }
    assert!(place.done(&["ls", "--help", "--json"]).text().contains("Usage:"));
}
