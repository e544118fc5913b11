//! The commands that the README shows first.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::run::{Place, Said};

/// The lines of the block under `## Five minutes of use`.
fn shown() -> Vec<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let section = readme.split("## Five minutes of use").nth(1).unwrap();
    section.split("```").nth(1).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_string).collect()
}

#[test]
fn five_minutes_of_use_work_as_shown() {
    let place = Place::empty();
    let bin = Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let can = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let mounts = Path::new("/dev/fuse").exists()
        && (rustix::process::geteuid().is_root() || can("fusermount3", &["--version"]));
    let sandbox = can("bwrap", &["--ro-bind", "/", "/", "--unshare-all", "true"]);
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let runs = |line: &String| {
        let lacks = (line.contains("mount") && !mounts).then_some("this machine cannot mount");
        let lacks =
            lacks.or((line.starts_with("outrigger run") && !sandbox).then_some("there is no sandbox here"));
        if let Some(why) = lacks {
            outrigger_workload::skipped!("{why}: {line}");
        }
        lacks.is_none()
    };
    // The whole script, as a user would paste it.
    let script: Vec<String> = shown().into_iter().filter(runs).collect();
    assert!(script.len() > 10, "{script:?}");
    let mut shell = Command::new("sh");
    shell.args(["-exc", &script.join("\n")]).current_dir(place.path(""));
    let said = Said::from(shell.env("HOME", place.path("")).env("PATH", &path).output().unwrap());
    if said.code != 0 {
        let _ = Command::new("umount").arg("-l").arg(place.path("mounted")).status();
    }
    assert_eq!(said.code, 0, "{}{}", said.text(), said.err);
}
