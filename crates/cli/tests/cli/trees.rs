//! Trees that hold everything a file system allows.

use outrigger_workload::{CompareOptions, MutateOptions, NastyOptions, TreeOptions};

use crate::run::Place;

#[test]
fn a_nasty_tree_survives() {
    let place = Place::new();
    outrigger_workload::nasty_tree(&place.path("nasty"), &NastyOptions::new(5)).unwrap();
    for round in 0..2 {
        place.done(&["put", "nasty", "--to", "n"]);
        let out = format!("out{round}");
        place.done(&["get", "--special", "n", &out]);
        let found = outrigger_workload::compare_trees(&place.path("nasty"), &place.path(&out)).unwrap();
        assert!(found.is_empty(), "{}", found.iter().map(|found| format!("{found}\n")).collect::<String>());
    }
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_nasty_tree_survives_tar_and_cp() {
    let place = Place::new();
    outrigger_workload::nasty_tree(&place.path("nasty"), &NastyOptions::new(6)).unwrap();
    place.done(&["put", "nasty", "--to", "n"]);
    place.done(&["cp", "-r", "n", "copy"]);
    let said = place.run(&["export", "copy", "n.tar"]);
    assert!(said.code == 0 || said.err.contains("socket"), "{}", said.err);
    place.done(&["import", "n.tar", "--to", "back"]);
    place.done(&["get", "--special", "back", "out"]);
    let options = CompareOptions { sparseness: false, ..CompareOptions::default() };
    let found =
        outrigger_workload::compare_trees_with(&place.path("nasty"), &place.path("out"), &options).unwrap();
    let is_socket = |path: &std::path::Path| {
        use std::os::unix::fs::FileTypeExt;
        std::fs::symlink_metadata(place.path("nasty").join(path))
            .is_ok_and(|found| found.file_type().is_socket())
    };
    let found: Vec<_> = found.into_iter().filter(|found| !is_socket(&found.path)).collect();
    assert!(found.is_empty(), "{}", found.iter().map(|found| format!("{found}\n")).collect::<String>());
}

#[test]
fn versions_of_a_source_tree_come_back_by_their_snapshots() {
    let place = Place::new();
    outrigger_workload::source_tree(&place.path("src"), &TreeOptions::new(3, 300)).unwrap();
    place.done(&["put", "src", "--tag", "first"]);
    std::fs::rename(place.path("src"), place.path("v1")).unwrap();
    place.done(&["get", "src", "src"]);
    outrigger_workload::mutate_tree(&place.path("src"), &MutateOptions::new(4)).unwrap();
    let put = place.done(&["put", "src", "--tag", "second", "--json"]).json();
    assert!(put["bytes_new"].as_u64().unwrap() < put["bytes"].as_u64().unwrap() / 2);
    for (tag, tree) in [("first", "v1"), ("second", "src")] {
        place.done(&["get", "--at", tag, "src", tag]);
        assert_eq!(
            outrigger_workload::compare_trees(&place.path(tree), &place.path(tag)).unwrap(),
            [],
            "{tag}"
        );
    }
    let differences = place.done(&["diff", "first:src", "second:src", "--json"]).json();
    assert!(!differences["differences"].as_array().unwrap().is_empty());
    assert_eq!(place.lines(&["diff", "second:src", "src"]), [""; 0]);
    // Content of the first snapshot only is gone, that of the second stays.
    place.done(&["keep", "--last", "1"]);
    place.done(&["gc"]);
    place.code(1, &["ls", "--at", "first"]);
    place.done(&["get", "--at", "second", "src", "again"]);
    assert_eq!(outrigger_workload::compare_trees(&place.path("src"), &place.path("again")).unwrap(), []);
    place.done(&["check", "--read-data"]);
}
