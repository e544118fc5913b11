//! `where`, and `put --place`: in a Ceph pool (`make test-cluster`; skipped, and said to be, where there is none), and where nobody can say.

use crate::run::{Place, noise};

#[test]
fn data_lies_on_the_host_that_was_asked_for() {
    let Ok(pool) = std::env::var("OUTRIGGER_TEST_RADOS") else {
        println!("skipped: no cluster with a pool (make test-cluster)");
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
    let text = place.done(&["where"]).text();
    assert!(text.contains("3 files") && text.contains("h0"), "{text}");
    let said = place.code(2, &["put", "f0", "--to", "g", "--place", "h9"]);
    assert!(said.err.contains("h0, h1, h2"), "{}", said.err);
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_directory_does_not_say_and_does_not_place() {
    let place = Place::new();
    place.write("f", vec![7; 100_000]);
    place.done(&["put", "f"]);
    let said = place.done(&["where", "f", "--json"]).json();
    assert_eq!((&said["bytes"], &said["bytes_unknown"]), (&100_000.into(), &100_000.into()), "{said}");
    assert_eq!(said["hosts"].as_array().map(Vec::len), Some(0), "{said}");
    assert!(said["packs"].as_u64().unwrap() > 0, "{said}");
    let text = place.done(&["where"]).text();
    assert!(text.contains("1 file") && text.contains("not known"), "{text}");
    let said = place.code(2, &["put", "f", "--to", "g", "--place", "h0"]);
    assert!(said.err.contains("rados://"), "{}", said.err);
    place.code(1, &["where", "nothing"]);
}
