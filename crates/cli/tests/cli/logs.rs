//! The log of an operation (`--log`): its steps, its retries with reasons, and its end. No password
//! or key is in it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use outrigger_store::testing::s3::HttpFault;
use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;
use serde_json::Value;

use crate::copies::World;
use crate::run::{Place, Said, noise};

/// The lines of a log.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn of<'a>(lines: &'a [Value], command: &'a str, event: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["command"] == command && line["event"] == event)
}

#[test]
fn a_log_has_what_commands_do_step_by_step() {
    let place = Place::new();
    place.write("src/f", noise(1, 300_000));
    place.done(&["put", "src", "--log", "log"]);
    place.done(&["rm", "-r", "src"]);
    place.done(&["--log", "log", "gc"]);
    place.done(&["check", "--log", "log"]);
    place.code(1, &["cat", "nothing", "--log", "log"]);
    place.done(&["snapshot", "list", "--log", "log"]);
    let all = lines(&place.path("log"));
    for line in &all {
        for key in ["time", "level", "process", "operation", "command", "event", "message"] {
            assert!(!line[key].is_null(), "{key}: {line}");
        }
    }
    for (command, steps) in
        [("put", vec!["commit", "done"]), ("gc", vec!["step", "done"]), ("check", vec!["step", "done"])]
    {
        let mut operations = BTreeSet::new();
        for event in ["begin", "end"].into_iter().chain(steps) {
            let found: Vec<&Value> = of(&all, command, event).collect();
            assert!(!found.is_empty(), "{command} {event}");
            operations.extend(found.iter().map(|line| line["operation"].as_str().unwrap()));
        }
        assert_eq!(operations.len(), 1, "{command}");
    }
    assert!(of(&all, "gc", "step").any(|line| line["message"] == "marking"));
    assert_eq!(of(&all, "put", "commit").next().unwrap()["changed"], 0);
    let failed = of(&all, "cat", "end").next().unwrap();
    assert_eq!((&failed["exit"], &failed["level"]), (&1.into(), &"error".into()));
    assert!(failed["message"].as_str().unwrap().contains("is not in the store"), "{failed}");
    assert_eq!(of(&all, "snapshot list", "end").count(), 1);
}

#[test]
fn a_log_has_what_is_asked_for_in_the_form_that_is_asked_for() {
    let place = Place::new();
    place.write("f", "content");
    place.done(&["put", "f", "--log", "quiet", "--log-level", "error"]);
    assert!(lines(&place.path("quiet")).is_empty());
    place.code(1, &["cat", "nothing", "--log", "quiet", "--log-level", "error"]);
    assert_eq!(lines(&place.path("quiet")).len(), 1);
    place.done(&["put", "f", "--rescan", "--log", "text", "--log-format", "text"]);
    let text = place.read("text");
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.lines().all(|line| line.contains(" put [")) && text.contains("] begin: put begins"),
        "{text}"
    );
    // On standard error there is nothing else then.
    let said = place.code(1, &["cat", "nothing", "--log", "-", "--log-format", "json"]);
    for line in said.err.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    let said = place.code(1, &["cat", "nothing", "--log", "-"]);
    assert!(said.err.contains("cat failed: "), "{}", said.err);
    let said = place.code(1, &["ls", "--log", "no/such/log"]);
    assert!(said.err.contains("cannot write to no/such/log"), "{}", said.err);
    place.code(2, &["mount", "--log", "-", "mnt"]);
}

/// Waits until a log has this event.
fn wait_for(log: &Path, event: &str) {
    eventually(event, || lines(log).iter().any(|line| line["event"] == event));
}

#[test]
fn transactions_that_are_made_again_are_in_the_log_and_passwords_are_not() {
    const SECRET: &str = "hunter2-and-more";
    let Some(server) = Server::start("fsync = off") else { return };
    let place = Place::empty();
    let url = server.url("s");
    let packs = format!("file:{}", place.path("packs").display());
    let command = |url: &str, args: &[&str]| {
        let mut command = place.command(&[args, &["--log", "log", "--log-level", "debug"]].concat());
        command.env("OUTRIGGER_STORE", url).env("OUTRIGGER_CACHE", place.path("cache"));
        command.env("PGPASSWORD", SECRET);
        command
    };
    let done = |args: &[&str]| {
        let said = Said::from(command(&url, args).output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
    };
    done(&["init", "--packs", &packs]);
    place.write("f", noise(3, 100_000));
    server.kill().unwrap();
    let log = place.path("log");
    let mut waiting =
        command(&url, &["put", "f"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&log, "retry");
    server.run().unwrap();
    assert!(waiting.wait().unwrap().success());
    done(&["check", "--read-data"]);
    // A password in the wrong place is refused, and not written down.
    let said = Said::from(command(&format!("postgres://me:{SECRET}@nowhere/d"), &["ls"]).output().unwrap());
    assert!(said.code != 0 && !said.err.contains(SECRET), "{}", said.err);
    let said = Said::from(command("store", &["cat", &format!("a file called {SECRET}")]).output().unwrap());
    assert!(said.code != 0);
    let all = lines(&log);
    let retry = of(&all, "put", "retry").next().unwrap();
    assert_eq!(retry["level"], "warning");
    assert!(!retry["why"].as_str().unwrap().is_empty() && retry["tries"].as_u64().unwrap() >= 1, "{retry}");
    assert_eq!(of(&all, "put", "end").next().unwrap()["exit"], 0);
    assert_eq!(of(&all, "ls", "end").count(), 1);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(SECRET), "{text}");
    assert!(text.contains("postgres://me:***@nowhere/d"), "{text}");
}

#[test]
fn requests_that_are_made_again_are_in_the_log_and_keys_are_not() {
    const SECRET: &str = "Zq7/not-to-be-read+";
    let Some(world) = World::new() else { return };
    let place = &world.place;
    let at = world.s3_at("logged");
    let run = |args: &[&str]| {
        let mut command = world.command(&[args, &["--log", "log"]].concat());
        command.env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_SESSION_TOKEN", "token-not-to-be-read");
        let said = Said::from(command.output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
    };
    run(&["-s", "store", "init", "--packs", &at]);
    place.write("f", noise(3, 100_000));
    world.s3.fault("PUT", 1..=1, HttpFault::Status(503));
    run(&["-s", "store", "put", "f"]);
    assert_eq!(world.s3.faults(), 1);
    let all = lines(&place.path("log"));
    let retry = of(&all, "put", "retry").next().unwrap();
    assert!(retry["what"].as_str().unwrap().contains("pack"), "{retry}");
    assert!(retry["why"].as_str().unwrap().contains("on purpose"), "{retry}");
    let text = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("token-not-to-be-read"), "{text}");
}

#[test]
fn a_copy_that_follows_logs_its_rounds_and_what_kept_it_from_one() {
    let Some(world) = World::new() else { return };
    let place = &world.place;
    world.done(&["-s", "a", "init", "--packs", &world.s3_at("followed")]);
    place.write("f", noise(5, 50_000));
    world.done(&["-s", "a", "put", "f"]);
    let mut command = world.command(&["copy", "a", "b", "--follow", "1", "--log", "log"]);
    let mut follower = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let log = place.path("log");
    wait_for(&log, "round");
    world.s3.go_down();
    place.write("g", noise(6, 50_000));
    wait_for(&log, "retry");
    world.s3.heal();
    let rounds = |lines: &[Value]| of(lines, "copy", "round").count();
    let before = rounds(&lines(&log));
    while rounds(&lines(&log)) == before {
        std::thread::sleep(Duration::from_millis(20));
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    let all = lines(&log);
    assert!(of(&all, "copy", "step").any(|line| line["message"] == "copying packs"));
}
