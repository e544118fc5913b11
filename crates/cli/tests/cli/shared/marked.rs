//! Rules for files that belong together. When the marker is closed, all files that were closed
//! before are read, whichever mount wrote them.

use std::fs;

use super::{Host, Shared, command, until};
use crate::run::Agents;

const RULE: &str = "rule add join --quiet --on close --when runs/*/_DONE --pattern #W->1W --in {dir}/part-* --out {dir}/all --sandbox off -- cat";

fn add_rule(host: &Host) {
    host.done(&RULE.split(' ').collect::<Vec<_>>());
}

/// Files are written in two mounts, the second with deferred closes, and the marker in the first.
#[test]
fn when_a_marker_is_closed_what_was_closed_before_in_any_mount_is_joined() {
    let Some(shared) = Shared::new() else { return };
    let one = shared.mount();
    // This is so late that the file is in time only if the close barrier waits for it.
    let two = Host::with(shared.url(), &[], &["--closes-within", "60"]);
    add_rule(&one);
    let mut agents = Agents::default();
    agents.start(command(&one.place, &one.url, &["node", "--allow-root", "--name", "one", "--slots", "2"]));
    for run in 0..3 {
        let dir = format!("runs/{run} [x]");
        fs::create_dir_all(one.path(&dir)).unwrap();
        let mut wanted = String::new();
        for part in 0..6 {
            let text = format!("part {part} of run {run}\n");
            let host = if part % 2 == 0 { &one } else { &two };
            host.write(&format!("{dir}/part-{part}"), &text);
            wanted += &text;
        }
        // A file outside the pattern.
        two.write(&format!("{dir}/other"), "other\n");
        let marker = if run == 1 { &two } else { &one };
        marker.write(&format!("{dir}/_DONE"), if run == 2 { "done" } else { "" });
        let all = format!("{dir}/all");
        until(&one, 60, &["rule", "log", "join"], || one.path(&all).exists());
        if run == 2 {
            // The rule may have seen the marker before it had its content, and then again.
            until(&one, 60, &["rule", "log", "join"], || {
                fs::read_to_string(one.path(&all)).unwrap() == wanted
            });
        }
        one.must_read(&all, &wanted);
        // The same by `run`.
        let at = format!("runs/{run} \\[x\\]/part-*");
        one.done(&[
            "run",
            "--quiet",
            "--pattern",
            "#W->1W",
            "--in",
            &at,
            "--out",
            "again",
            "--sandbox",
            "off",
            "--",
            "cat",
        ]);
        one.must_read("again", &wanted);
    }
    one.done(&["node", "drain", "one", "--wait"]);
    let left = format!("SELECT count(*) FROM {}.record WHERE kind = 'close-barrier'", shared.schema);
    assert_eq!(shared.server.sql(&left), "0");
    drop(two);
    shared.check(&one);
}
