//! `where`, `put --place`, `localize`, and the place of programs' output: in a Ceph pool (`make
//! test-cluster`; skipped with a line if there is none), and where the engine does not know.

use crate::run::{Place, noise};

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn data_lies_on_the_host_that_was_asked_for() {
    let Ok(pool) = std::env::var("OUTRIGGER_TEST_RADOS") else {
        outrigger_workload::skipped!("no cluster with a pool (make test-cluster)");
        return;
    };
    let place = Place::empty();
    let own = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    place.done(&["init", "--packs", &pool.replacen("?", &format!("/placed-{own}?"), 1)]);
    for (number, host) in ["h2", "h0", "h1"].iter().enumerate() {
        let name = format!("f{number}");
        place.write(&name, noise(2 * number as u64 + 41, 300_000));
        place.done(&["put", &name, "--place", host]);
        let said = place.done(&["where", &name, "--json"]).json();
        let of = |wanted: &str| {
            let hosts = said["hosts"].as_array().unwrap();
            hosts.iter().find(|share| share["host"] == wanted).cloned().unwrap_or_default()
        };
        assert_eq!(of(host)["bytes_first"], 300_000, "{said}");
        assert_eq!((&said["bytes"], &said["bytes_unknown"]), (&300_000.into(), &0.into()), "{said}");
    }
    // All data is on one host, and the contents are unchanged.
    let said = place.done(&["localize", "/", "--to", "h1", "--json"]).json();
    assert_eq!((&said["packs_left"], said["host"].as_str()), (&0.into(), Some("h1")), "{said}");
    let on_h1 = |said: &serde_json::Value| {
        let hosts = said["hosts"].as_array().unwrap().clone();
        hosts
            .iter()
            .find(|share| share["host"] == "h1")
            .map_or(0, |share| share["bytes_first"].as_u64().unwrap())
    };
    assert_eq!((on_h1(&said["before"]), on_h1(&said["after"])), (300_000, 900_000), "{said}");
    assert_eq!(on_h1(&place.done(&["where", "--json"]).json()), 900_000);
    for number in 0..3 {
        let name = format!("f{number}");
        assert!(place.done(&["cat", &name]).out == noise(2 * number + 41, 300_000), "{name}");
    }
    assert_eq!(place.done(&["localize", "/", "--to", "h1", "--json"]).json()["packs"], 0);
    // A program's output lies on the host that ran it. The host name is faked here.
    let other_case = ["run", "--sandbox", "off", "--in", "f0", "--out", "made", "--", "tr", "a-z", "A-Z"];
    let program = place.command(&other_case);
    let mut as_h2 = std::process::Command::new("unshare");
    as_h2.args(["--uts", "sh", "-c", "hostname h2; exec \"$@\"", "sh"]).arg(program.get_program());
    as_h2.args(program.get_args()).current_dir(place.path(""));
    as_h2.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = crate::run::Said::from(as_h2.output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let said = place.done(&["where", "made", "--json"]).json();
    let hosts = said["hosts"].as_array().unwrap();
    let on_h2 = hosts.iter().find(|share| share["host"] == "h2").map(|share| &share["bytes_first"]);
    assert_eq!((&said["bytes"], on_h2), (&300_000.into(), Some(&300_000.into())), "{said}");
    place.done(&["rm", "made"]);
    let text = place.done(&["where"]).text();
    assert!(text.contains("3 files") && text.contains("h1"), "{text}");
    let said = place.code(2, &["put", "f0", "--to", "g", "--place", "h9"]);
    assert!(said.err.contains("h0, h1, h2"), "{}", said.err);
    place.done(&["check", "--read-data"]);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_directory_does_not_say_and_does_not_place() {
    let place = Place::new();
    place.write("f", vec![7; 100_000]);
    place.done(&["put", "f"]);
    let said = place.done(&["where", "f", "--json"]).json();
    assert_eq!((&said["bytes"], &said["bytes_unknown"]), (&100_000.into(), &100_000.into()), "{said}");
    assert_eq!(said["hosts"].as_array().map(Vec::len), Some(0), "{said}");
    assert!(said["packs"].as_u64().unwrap() > 0, "{said}");
    let text = place.done(&["where"]).text();
    assert!(text.contains("1 file") && text.contains("unknown"), "{text}");
    let said = place.code(2, &["put", "f", "--to", "g", "--place", "h0"]);
    assert!(said.err.contains("rados://"), "{}", said.err);
    place.code(1, &["where", "nothing"]);
    for more in [&["--to", "h0"][..], &[], &["--dry-run"]] {
        let said = place.code(2, &[&["localize", "f"], more].concat());
        assert!(said.err.contains("on this host: there is nothing to gather"), "{}", said.err);
        assert!(said.err.contains("rados://"), "{}", said.err);
    }
    // With other engines nobody knows.
    let packs = format!("file:{}", place.path("packs").display());
    place.done(&["-s", "other", "init", "--packs", &packs]);
    place.done(&["-s", "other", "put", "f"]);
    let said = place.code(2, &["-s", "other", "localize", "f"]);
    assert!(said.err.contains(&packs) && said.err.contains("nothing was moved"), "{}", said.err);
}
