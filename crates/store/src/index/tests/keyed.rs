//! An index with a key: what its files reveal, and runs of another key.

use std::collections::HashSet;

use outrigger_format::PackId;

use super::{Packs, fingerprint, keyed, runs_in, scratch, small, two_runs};
use crate::error::ErrorKind;
use crate::index::IndexOptions;
use crate::keys::Key;

#[test]
fn no_part_of_a_fingerprint_is_in_its_files() {
    let known: HashSet<[u8; 8]> = (0..1300)
        .map(|n| *fingerprint(n, u64::MAX).0.first_chunk().unwrap())
        .flat_map(|first: [u8; 8]| {
            let mut turned = first;
            turned.reverse();
            [first, turned]
        })
        .collect();
    for options in [small(), keyed()] {
        let dir = scratch();
        two_runs(dir.path(), &options);
        let mut found = 0;
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            found += bytes.windows(8).filter(|window| known.contains(*window)).count();
        }
        assert_eq!(found > 1000, options.key.is_none(), "{found}");
    }
}

#[test]
fn runs_of_another_key_or_none_are_made_anew() {
    let other = IndexOptions { key: Some(Key::new([8; 32])), ..small() };
    let all = [small(), keyed(), other];
    for (at, written) in all.iter().enumerate() {
        for options in all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, options)| options) {
            let dir = scratch();
            let packs = two_runs(dir.path(), written);
            let index = packs.open(Some(dir.path()), options.clone());
            assert_eq!((index.stats().runs_dropped, runs_in(dir.path()).len()), (2, 0));
            assert!(index.lookup(&fingerprint(1, u64::MAX)).is_empty());
            assert_eq!(index.missing(&packs.ids()), packs.ids());
            assert_eq!(index.cover(&packs.ids()).unwrap(), 2);
            index.flush().unwrap();
            packs.check(&index, 1310, u64::MAX);
            drop(index);
            packs.check(&packs.open(Some(dir.path()), options.clone()), 1310, u64::MAX);
        }
    }
}

#[test]
fn an_index_with_a_key_imports_no_plain_prefixes() {
    let dir = scratch();
    let index = Packs::default().open(Some(dir.path()), keyed());
    let error = index.import([], 0, vec![PackId(1)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
