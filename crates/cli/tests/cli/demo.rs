//! `make demo`: it must not touch files of others.

use std::process::Command;

use crate::run::Place;

#[test]
fn the_demo_leaves_the_place_it_works_in_alone() {
    let place = Place::empty();
    place.write("work/mine/precious", "not the demo's");
    place.write("data/f", "small");
    // The script looks for the programs in `release`, where `make demo` builds them.
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().unwrap();
    std::os::unix::fs::symlink(built, place.path("release")).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo.sh");
    let ran = Command::new("sh")
        .arg(script)
        .env("CARGO_TARGET_DIR", place.path(""))
        .env("WORK", place.path("work"))
        .env("DATA", place.path("data"))
        .output()
        .unwrap();
    // If the program that changes the tree is not built, the demo ends there.
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("3. Change the tree"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(place.read("work/mine/precious"), b"not the demo's");
    let left: Vec<_> =
        std::fs::read_dir(place.path("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}
