//! Parity from the command line: set, made by `gc`, reported by `check`, used by its `--repair`.

use std::path::PathBuf;

use outrigger_store::testing::s3::{ACCESS_KEY, S3Server};

use crate::run::{Place, noise};

const LEN: usize = 1_500_000;

/// The files below the store's `packs` whose names end so, the largest first.
fn files(place: &Place, end: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in std::fs::read_dir(place.path("store/packs")).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            files.push(file.unwrap().path());
        }
    }
    files.retain(|path| path.to_str().unwrap().ends_with(end));
    files.sort_by_key(|path| std::cmp::Reverse(std::fs::metadata(path).unwrap().len()));
    files
}

#[test]
fn lost_and_rotten_packs_are_made_anew_without_the_source() {
    let place = Place::empty();
    let said = place.code(2, &["init", "--parity", "10"]);
    assert!(said.err.contains("PACKS+FILES"), "{}", said.err);
    // All packs are one group.
    place.done(&["init", "--pack-size", "1M", "--parity", "32+2"]);
    for number in 0..4 {
        place.write(format!("src/{number}"), noise(number, LEN));
    }
    place.done(&["put", "src"]);
    let said = place.done(&["check"]).text();
    assert!(said.contains("not protected by parity yet; `gc` makes it"), "{said}");
    let said = place.done(&["gc"]).text();
    assert!(said.contains("parity protects") && !said.contains(", and not"), "{said}");
    assert!(!files(&place, ".parity").is_empty());
    let said = place.done(&["check", "--read-data"]).text();
    assert!(said.contains("no damage") && said.contains("; parity protects"), "{said}");
    let json = place.done(&["--json", "stats"]).json();
    assert_eq!(json["parity"]["packs_unprotected"], 0);
    std::fs::remove_dir_all(place.path("src")).unwrap();

    let packs = files(&place, ".pack");
    std::fs::remove_file(&packs[0]).unwrap();
    let mut bytes = std::fs::read(&packs[1]).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&packs[1], bytes).unwrap();
    let said = place.code(3, &["check", "--read-data"]).text();
    assert_eq!(said.matches("makes the pack anew from parity").count(), 2, "{said}");
    let said = place.done(&["check", "--repair"]).text();
    assert_eq!(said.matches("the pack was made anew from parity").count(), 2, "{said}");
    place.done(&["check", "--read-data"]);
    place.done(&["get", "src", "out"]);
    for number in 0..4 {
        assert!(place.read(format!("out/{number}")) == noise(number, LEN));
    }

    for path in &files(&place, ".pack")[..3] {
        std::fs::remove_file(path).unwrap();
    }
    let said = place.code(3, &["check", "--repair"]).text();
    assert!(said.contains("parity cannot make it anew: 3 of the "), "{said}");
}

#[test]
fn it_is_a_policy_of_the_whole_store() {
    let place = Place::new();
    place.write("src/file", noise(1, LEN));
    place.done(&["put", "src"]);
    let said = place.code(2, &["policy", "set", "/", "parity=2+9"]);
    assert!(said.err.contains("10+2"), "{}", said.err);
    let said = place.run(&["policy", "set", "src", "parity=2+1"]);
    assert!(said.code != 0 && said.err.contains("for the whole store"), "{}", said.err);
    place.done(&["policy", "set", "/", "parity=2+1"]);
    assert!(place.done(&["policy", "get", "src"]).text().contains("parity    2+1"));
    let json = place.done(&["--json", "gc"]).json();
    assert_eq!((&json["parity"]["is_on"], &json["parity"]["packs_unprotected"]), (&true.into(), &0.into()));
    let protected = &json["parity"]["packs_protected"];
    let last = &place.done(&["--json", "status"]).json()["last_gc"]["parity"];
    assert!(protected.as_u64() > Some(0) && &last["packs_protected"] == protected, "{last}");
    assert!(place.done(&["status"]).text().contains("; parity for "), "in the line of the last gc");
    place.done(&["policy", "set", "/", "--unset", "parity"]);
    let said = place.done(&["gc"]).text();
    assert!(said.contains("removed the parity"), "{said}");
    assert!(files(&place, ".parity").is_empty());
}

#[test]
fn packs_in_a_bucket_have_parity_there() {
    let (place, server) = (Place::empty(), S3Server::start());
    let at = format!("s3://bucket/p?endpoint={}&region=here", server.endpoint);
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", "secret");
        let said: crate::run::Said = command.output().unwrap().into();
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said.text()
    };
    run(&["init", "--pack-size", "1M", "--packs", &at, "--parity", "4+1"]);
    place.write("src/file", noise(1, 3 * LEN));
    run(&["put", "src"]);
    run(&["gc"]);
    let objects = server.objects();
    let is_parity = |key: &str| key.contains("packs/parity/") && key.ends_with(".parity");
    assert!(objects.iter().any(|(key, _)| is_parity(key)), "{objects:?}");
    let packs = objects.iter().filter(|(key, _)| key.ends_with(".pack"));
    server.lose(&packs.max_by_key(|(_, len)| *len).unwrap().0);
    let said = run(&["check", "--repair"]);
    assert!(said.contains("the pack was made anew from parity"), "{said}");
    run(&["get", "src", "out"]);
    assert!(place.read("out/file") == noise(1, 3 * LEN));
}
