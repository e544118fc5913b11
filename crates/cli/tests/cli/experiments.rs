//! Options for experiments: settings that override policies, and oracles.

use outrigger_workload::Rng;

use crate::run::Place;

fn noise(len: usize) -> Vec<u8> {
    Rng::new(3).bytes(len)
}

fn unique(place: &Place) -> u64 {
    place.done(&["stats", "--json"]).json()["unique_bytes"].as_u64().unwrap()
}

#[test]
fn a_put_without_deduplication_stores_equal_files_twice() {
    let place = Place::new();
    place.write("src/a", noise(200_000));
    place.write("src/b", noise(200_000));
    place.done(&["put", "src", "--to", "one", "--no-dedup"]);
    assert_eq!(unique(&place), 400_000);
    place.done(&["put", "src", "--to", "two", "--no-dedup"]);
    assert_eq!(unique(&place), 800_000);
    place.done(&["put", "src", "--to", "three"]);
    assert_eq!(unique(&place), 800_000);
    place.done(&["check", "--read-data"]);
    place.done(&["get", "two", "out"]);
    assert_eq!(place.read("out/b"), noise(200_000));
    // To the collector, second copies of a chunk are garbage.
    place.done(&["gc"]);
    assert!(unique(&place) < 800_000);
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_put_cuts_as_it_was_told() {
    let place = Place::new();
    place.write("data", noise(100_000));
    place.done(&["policy", "set", "/", "chunker=fixed:64K"]);
    let put = place.done(&["put", "data", "--chunker", "fixed:10000", "--json"]).json();
    assert_eq!(put["chunks"].as_u64(), Some(10));
    place.code(2, &["put", "data", "--chunker", "fixed:1"]);
}

#[test]
fn an_oracle_is_for_stores_made_for_it() {
    let place = Place::empty();
    let made = place.done(&["init", "--experiment"]);
    assert!(made.text().contains("for experiments"));
    assert!(place.done(&["stats"]).text().contains("for experiments"));
    assert_eq!(place.done(&["stats", "--json"]).json()["experiment"], true);
    place.write("src/a", noise(300_000));
    place.done(&["put", "src", "--to", "one", "--oracle", "record:oracle"]);
    let again = place.done(&["put", "src", "--to", "two", "--oracle", "replay:oracle", "--json"]).json();
    assert_eq!((again["bytes_read"].as_u64(), again["bytes_new"].as_u64()), (Some(300_000), Some(0)));
    // The same fingerprints, which nobody has computed.
    place.done(&["-s", "fresh", "init", "--experiment"]);
    place.done(&["-s", "fresh", "put", "src", "--to", "one", "--oracle", "replay:oracle"]);
    place.done(&["-s", "fresh", "check", "--read-data"]);
    place.done(&["-s", "fresh", "get", "one", "out"]);
    assert_eq!(place.read("out/a"), noise(300_000));
    // Other bytes of the same length are noticed.
    place.done(&["-s", "wrong", "init", "--experiment"]);
    place.write("src/a", vec![1; 300_000]);
    place.done(&["-s", "wrong", "put", "src", "--to", "one", "--oracle", "replay:oracle"]);
    place.code(3, &["-s", "wrong", "check", "--read-data"]);
    place.code(3, &["-s", "wrong", "get", "one", "bad"]);
    assert!(!place.path("bad/a").exists());
    // Another length is refused, and so are several sources and ordinary stores.
    place.write("src/a", noise(300_001));
    assert!(
        place
            .code(2, &["put", "src", "--to", "three", "--oracle", "replay:oracle"])
            .err
            .contains("300001 bytes")
    );
    assert!(place.code(2, &["put", "src", "oracle", "--oracle", "record:new"]).err.contains("one source"));
    place.code(2, &["put", "src", "--oracle", "oracle"]);
    place.done(&["-s", "plain", "init"]);
    let refused = place.code(2, &["-s", "plain", "put", "src", "--oracle", "replay:oracle"]);
    assert!(refused.err.contains("init --experiment"), "{}", refused.err);
    assert_eq!(place.done(&["-s", "plain", "stats", "--json"]).json()["experiment"], false);
}
