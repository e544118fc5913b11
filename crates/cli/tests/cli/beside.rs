//! Commands beside each other.

use std::io::Write;
use std::process::Stdio;

use outrigger_workload::TreeOptions;

use crate::run::{Place, Said};

#[test]
fn two_puts_at_once_are_both_there() {
    let place = Place::new();
    let names = ["p", "q", "r"];
    for (seed, name) in names.iter().enumerate() {
        outrigger_workload::source_tree(&place.path(name), &TreeOptions::new(seed as u64 / 2, 150)).unwrap();
    }
    let start = |name: &&str| {
        let mut command = place.command(&["put", name, "--tag", name]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = names.iter().map(start).collect();
    for child in children {
        let said = Said::from(child.wait_with_output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
    }
    for name in names {
        let out = format!("{name}.out");
        place.done(&["get", name, &out]);
        assert_eq!(
            outrigger_workload::compare_trees(&place.path(name), &place.path(&out)).unwrap(),
            [],
            "{name}"
        );
    }
    assert_eq!(place.lines(&["snapshot", "list"]).len(), 3);
    place.done(&["check", "--read-data"]);
}

/// As a timer and a hand do.
#[test]
fn two_puts_of_one_source_remove_the_same_files() {
    let place = Place::new();
    for round in 0..4 {
        for number in 0..60 {
            place.write(format!("src/d{}/f{number}", number % 5), format!("{round} {number}"));
        }
        place.done(&["put", "src"]);
        (0..5).step_by(2).for_each(|dir| std::fs::remove_dir_all(place.path(format!("src/d{dir}"))).unwrap());
        let start = |_| {
            let mut command = place.command(&["put", "src"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        for child in [0, 1].map(start) {
            let said = Said::from(child.wait_with_output().unwrap());
            assert_eq!(said.code, 0, "{}", said.err);
        }
        assert_eq!(place.lines(&["ls", "src"]).len(), 2);
    }
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_get_sees_one_tree_while_puts_removals_and_reclaiming_go_on() {
    let place = Place::new();
    outrigger_workload::source_tree(&place.path("src"), &TreeOptions::new(7, 400)).unwrap();
    place.done(&["put", "src"]);
    for round in 0..3 {
        let out = format!("out{round}");
        let get = place
            .command(&["get", "src", &out])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The pin came before or after this: the tree is there, or it is not.
        place.done(&["rm", "-r", "src"]);
        place.done(&["gc"]);
        let said = Said::from(get.wait_with_output().unwrap());
        assert!(said.code == 0 || said.err.contains("`src` is not in the store"), "{}", said.err);
        if said.code == 0 {
            assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path(&out)).unwrap(), []);
        }
        place.done(&["put", "src"]);
    }
    place.done(&["check", "--read-data"]);
}

#[test]
fn an_interrupted_put_says_how_to_go_on() {
    let place = Place::new();
    place.write("before", "stays");
    place.done(&["put", "before"]);
    let mut child = place
        .command(&["put", "-", "--to", "endless"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its input never ends; once some of it has been taken, its session is open.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![1; 1 << 20]).unwrap();
    let begun = || std::fs::read_dir(place.path("store/sessions")).unwrap().next().is_some();
    assert!(begun());
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let said = Said::from(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(said.code, 130);
    assert_eq!(
        said.err,
        "outrigger: stopped; committed data is kept; run the same command again to continue\n"
    );
    assert!(!begun(), "its session is closed");
    assert_eq!(place.lines(&["ls"]), ["before"]);
    place.done(&["check", "--read-data"]);
}
