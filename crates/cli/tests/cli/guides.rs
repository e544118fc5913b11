//! The shell blocks of the README and of the guides, run as a reader copies them.
//!
//! A document becomes a script with as many lines: every line that is no command is empty there, so
//! the shell itself names the document's line where a command fails. A comment before a block may
//! say `needs: fuse bubblewrap postgresql s3`: the block is skipped where one of them is missing.
//! It may say `by hand: WHY`: the block is never run. A block of `text` after the comment `output`
//! has lines that the shell block above it prints, in this order. `...` stands for any text, and a
//! line may go on after its pattern.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use outrigger_store::testing::s3::{ACCESS_KEY, S3Server};
use outrigger_workload::postgres::Server;

use crate::run::Place;

/// Makes a test of each guide, and their list.
macro_rules! guides {
    ($($name:ident)*) => {
        const GUIDES: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            follow(concat!("docs/guides/", stringify!($name), ".md"));
        })*
    };
}
guides!(backup checkpoints install migrate mount programs share);

#[test]
fn five_minutes_of_use_work_as_shown() {
    follow("README.md");
}

#[test]
fn every_guide_has_a_test() {
    let mut found: Vec<String> = fs::read_dir(of_the_tree("docs/guides"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().trim_end_matches(".md").to_owned())
        .collect();
    // Python's own tests run its guide.
    found.retain(|name| name != "python");
    found.sort();
    assert_eq!(found, GUIDES);
}

fn of_the_tree(name: &str) -> String {
    format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The first line of a script, where the document has its title: a failure names its line, and jobs
/// in the background end with the script.
const TRAPS: &str = r#"set -E; trap 'echo "$0:$LINENO: failed: $BASH_COMMAND"' ERR; trap 'kill $(jobs -p) 2>/dev/null || :' EXIT"#;

/// A line that the block whose fence is at line `block` must print.
struct Expected {
    block: usize,
    line: usize,
    pattern: String,
}

#[derive(Clone, Copy)]
enum Fence {
    Run,
    Output,
    Other,
}

/// The script of a document, and what it must print. `has` says whether the machine has what a
/// block needs.
fn script(document: &str, mut has: impl FnMut(&str) -> bool) -> (String, Vec<Expected>) {
    let mut script = TRAPS.to_owned();
    let mut expected = Vec::new();
    let (mut mark, mut fence, mut block) = (String::new(), None, None);
    for (at, text) in document.lines().enumerate() {
        let line = at + 1;
        let mut command = String::new();
        match (fence, text.strip_prefix("```")) {
            (Some(_), Some(_)) => {
                fence = None;
                mark.clear();
            }
            (None, Some("sh")) => {
                let mut needs = mark.strip_prefix("needs:").unwrap_or_default().split_whitespace();
                let runs = !mark.starts_with("by hand:") && needs.all(&mut has);
                block = runs.then_some(line);
                fence = Some(if runs { Fence::Run } else { Fence::Other });
                if runs {
                    command = format!("exec >\"$OUT/{line}\" 2>&1");
                }
            }
            (None, Some("text")) if mark == "output" => fence = Some(Fence::Output),
            (None, Some(_)) => fence = Some(Fence::Other),
            (None, None) if text.starts_with("<!--") => {
                mark = text.trim_matches(|c: char| "<!-> ".contains(c)).to_owned();
            }
            (None, None) if !text.is_empty() => mark.clear(),
            (Some(Fence::Run), None) => command = text.to_owned(),
            (Some(Fence::Output), None) => {
                let pattern = text.to_owned();
                expected.extend(block.map(|block| Expected { block, line, pattern }));
            }
            (None | Some(Fence::Other), None) => {}
        }
        if at > 0 {
            script = script + "\n" + &command;
        }
    }
    (script + "\n", expected)
}

/// True if a line begins with what a pattern says.
fn is_like(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.trim_end().split("...");
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    parts.all(|part| rest.split_once(part).map(|(_, after)| rest = after).is_some())
}

/// True if this machine has what blocks need.
fn has(need: &str) -> bool {
    let can = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    match need {
        "fuse" => {
            File::options().read(true).write(true).open("/dev/fuse").is_ok()
                && (rustix::process::geteuid().is_root() || can("fusermount3", &["--version"]))
        }
        "bubblewrap" => can("bwrap", &["--ro-bind", "/", "/", "--unshare-all", "true"]),
        _ => panic!("no block can need `{need}`"),
    }
}

/// Runs the blocks of a document in one shell, which ends at the first command that fails.
fn follow(name: &str) {
    let mut document = fs::read_to_string(of_the_tree(name)).unwrap();
    assert!(document.contains("\n```sh\n"), "{name} has no block to run");
    let place = Place::empty();
    let database = document.contains("needs: postgresql").then(Server::own_database).flatten();
    let s3 = S3Server::start();
    if let Some(database) = &database {
        // The URL ends with the schema.
        document = document.replace("postgres://outrigger@db.example/outrigger?schema=", &database.url(""));
    }
    document = document.replace("http://gateway:7480", &s3.endpoint);
    let mut missing = BTreeSet::new();
    let (script, expected) = script(&document, |need| match need {
        "postgresql" => database.is_some(),
        "s3" => true,
        _ => {
            let has = has(need);
            missing.extend((!has).then(|| need.to_owned()));
            has
        }
    });
    if !missing.is_empty() {
        outrigger_workload::skipped!("blocks of {name} need what this machine lacks: {missing:?}");
    }
    // Programs of jobs run as another user, who must be able to enter.
    fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let [home, out] = ["home", "out"].map(|name| place.path(name));
    fs::create_dir(&home).and_then(|()| fs::create_dir(&out)).unwrap();
    let script = place.write(name.rsplit('/').next().unwrap(), script);
    let programs = env!("CARGO_BIN_EXE_outrigger").rsplit_once('/').unwrap().0;
    let mut shell = Command::new("timeout");
    shell.args(["600", "bash", "-euo", "pipefail"]).arg(script).current_dir(&home).stdin(Stdio::null());
    for (variable, _) in std::env::vars() {
        if ["AWS_", "OUTRIGGER_", "XDG_", "PG"].iter().any(|prefix| variable.starts_with(prefix)) {
            shell.env_remove(variable);
        }
    }
    shell.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
    shell.env("HOME", &home).env("OUT", &out).env("TZ", "UTC");
    shell.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", "secret");
    let status = shell.status().unwrap();
    if !status.success() {
        let blocks = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name());
        let last = blocks.filter_map(|block| block.to_str()?.parse::<usize>().ok()).max();
        for mounted in fs::read_dir(&home).unwrap() {
            // Most of these are no mounts.
            let _ = Command::new("umount").arg("-l").arg(mounted.unwrap().path()).output();
        }
        let said =
            last.map(|block| fs::read_to_string(out.join(block.to_string())).unwrap()).unwrap_or_default();
        panic!("{name}: {status}: {said}");
    }
    let mut printed = (0, Vec::new().into_iter());
    for Expected { block, line, pattern } in &expected {
        let file = out.join(block.to_string());
        if printed.0 != *block {
            let lines: Vec<String> = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
            printed = (*block, lines.into_iter());
        }
        assert!(
            printed.1.any(|printed| is_like(&printed, pattern)),
            "{name}:{line}: `{pattern}` was not printed, or not in this order: {}",
            fs::read_to_string(&file).unwrap()
        );
    }
}
