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
    for name in ["notes.txt", "old/a", "lib.c"] {
        place.write(format!("src/{name}"), name);
    }
    std::fs::create_dir(place.path("mnt")).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let can = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let mounts = Path::new("/dev/fuse").exists()
        && (rustix::process::geteuid().is_root() || can("fusermount3", &["--version"]));
    let sandbox = can("bwrap", &["--ro-bind", "/", "/", "--unshare-all", "true"]);
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let mut ran = 0;
    for line in shown() {
        let line = line.replace("/mnt/other", "other").replace("/mnt", "mnt");
        let skipped = (line.starts_with("make "))
            .then_some("it builds")
            .or_else(|| line.contains("stats --live").then_some("it ends only when stopped"))
            .or_else(|| (line.contains("mount") && !mounts).then_some("this machine cannot mount"))
            .or_else(|| {
                (line.starts_with("outrigger run") && !sandbox).then_some("there is no sandbox here")
            });
        if let Some(why) = skipped {
            println!("not run, {why}: {line}");
            continue;
        }
        let lost = if line.starts_with("outrigger recover") { "rm ~/store/meta.db*; " } else { "" };
        let said: Said = Command::new("sh")
            .args(["-c", &format!("export OUTRIGGER_STORE=~/store; {lost}{line}")])
            .current_dir(place.path(""))
            .env("HOME", place.path(""))
            .env("PATH", &path)
            .output()
            .unwrap()
            .into();
        assert_eq!(said.code, 0, "{line}\n{}{}", said.text(), said.err);
        ran += 1;
    }
    assert!(ran > 10, "only {ran} were run");
}
