//! Parity over packs: what is lost or rots is made anew, up to as much as there is parity; what
//! cannot be trusted changes nothing.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gc_support::{collect, committed, put_bytes, read, scratch, small_packs, thorough, unique};
use outrigger_format::{PARITY_END_LEN, PackId, ParityDescription};
use outrigger_store::backend::LocalBackend;
use outrigger_store::check::{
    CheckOptions, CheckProgress, CheckReport, DAMAGED_DIR, Finding, FindingKind, Severity, check,
};
use outrigger_store::copy::{CopyEncryption, CopyOptions, CopyProgress, copy};
use outrigger_store::keys::{Key, NewKeys, Secret};
use outrigger_store::meta::{ROOT_INODE, SessionKind};
use outrigger_store::packs::PackReader;
use outrigger_store::recover::{RecoverProgress, recover};
use outrigger_store::testing::{Fault, FaultyBackend, Op, Plan};
use outrigger_store::write::set_policy;
use outrigger_store::{ErrorKind, Store, StoreConfig};
use outrigger_workload::spaced;

const FILES: u64 = 6;
/// More than a pack.
const LEN: usize = 1_200_000;

fn set_parity(store: &Store, value: &str) {
    let session = store.session(SessionKind::Writer, "test").unwrap();
    set_policy(store, &session, ROOT_INODE, "parity", Some(value)).unwrap();
}

fn name(number: u64) -> String {
    format!("dir/{number}")
}

fn fill(store: &Store) {
    for number in 0..FILES {
        put_bytes(store, &name(number), unique(number, LEN)).unwrap();
    }
}

/// A store with files of more than a pack each, and parity over all of its packs.
fn protected(dir: &Path, parity: &str) -> Store {
    let store = Store::init(&dir.join("store"), &small_packs()).unwrap();
    fill(&store);
    set_parity(&store, parity);
    let report = collect(&store, &thorough()).unwrap().parity;
    assert!(report.is_on && report.groups_made > 0 && report.unreadable.is_empty(), "{report:?}");
    assert_eq!((report.packs_unprotected, report.packs_protected), (0, committed(&store).len() as u64));
    store
}

fn reopened(store: Store) -> Store {
    let dir = store.dir().to_path_buf();
    drop(store);
    Store::open(&dir, false).unwrap()
}

fn run_check(store: &Store, repair: bool) -> CheckReport {
    check(store, &CheckOptions { read_data: true, repair, threads: 2 }, &CheckProgress::default()).unwrap()
}

fn pack_file(store: &Store, id: PackId) -> PathBuf {
    store.dir().join(format!("packs/{:02x}/{id}.pack", id.0 as u8))
}

fn parity_file(store: &Store, id: PackId) -> PathBuf {
    store.dir().join(format!("packs/parity/{id}.parity"))
}

/// The groups, by number: their descriptions.
fn groups(store: &Store) -> BTreeMap<u64, Vec<ParityDescription>> {
    let mut groups: BTreeMap<u64, Vec<ParityDescription>> = BTreeMap::new();
    for id in store.backend.list_parity().unwrap() {
        let bytes = std::fs::read(parity_file(store, id)).unwrap();
        let end = &bytes[bytes.len().saturating_sub(PARITY_END_LEN)..];
        let about = ParityDescription::decode(end, bytes.len() as u64, id).unwrap();
        groups.entry(id.parity().unwrap().0).or_default().push(about);
    }
    groups
}

/// How many packs a group has, and how long they are.
fn size_of(files: &[ParityDescription]) -> (usize, u64) {
    (files[0].members.len(), files[0].parity_len())
}

/// The packs of the group with the most of them, and of these groups the one with the longest.
fn largest_group(store: &Store) -> Vec<PackId> {
    let groups = groups(store);
    let largest = groups.values().max_by_key(|files| size_of(files)).unwrap();
    largest[0].members.iter().map(|member| member.pack).collect()
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn about(report: &CheckReport, id: PackId) -> Vec<&Finding> {
    let id = id.to_string();
    report.findings.iter().filter(|finding| finding.pack.as_ref() == Some(&id)).collect()
}

/// Everything is there, is what was stored, and nothing is wrong.
#[track_caller]
fn assert_whole(store: &Store, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        assert!(read(store, &name(number)) == unique(number, LEN), "{number}");
    }
    let report = run_check(store, false);
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}

/// All bytes below the store's `packs`.
fn packs_of(store: &Store) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for dir in std::fs::read_dir(store.dir().join("packs")).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            files.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    files
}

#[test]
fn lost_packs_are_made_anew() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let before = packs_of(&store);
    let lost = &largest_group(&store)[..2];
    lost.iter().for_each(|id| std::fs::remove_file(pack_file(&store, *id)).unwrap());
    let store = reopened(store);

    let report = run_check(&store, false);
    for id in lost {
        let found = about(&report, *id);
        assert!(found.iter().all(|finding| finding.mendable && !finding.mended), "{found:?}");
        assert!(found[0].what.contains("`check --repair` makes the pack anew from parity"), "{found:?}");
    }
    assert!(report.damaged > 0);

    let report = run_check(&store, true);
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
    for id in lost {
        let found = about(&report, *id);
        assert!(found[0].mended && found[0].what.contains("made anew from parity"), "{found:?}");
    }
    assert!(packs_of(&store) == before, "every byte is as it was");
    assert_whole(&store, 0..FILES);
    assert_whole(&reopened(store), 0..FILES);
}

#[test]
fn rotten_packs_are_made_anew_and_kept_aside() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let before = packs_of(&store);
    let rotten = largest_group(&store);
    flip(&pack_file(&store, rotten[0]), 3000);
    let cut = pack_file(&store, rotten[1]);
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let damaged = [0, 1].map(|at| std::fs::read(pack_file(&store, rotten[at])).unwrap());
    let store = reopened(store);

    let report = run_check(&store, false);
    assert!(about(&report, rotten[0])[0].mendable && about(&report, rotten[1])[0].mendable);
    let report = run_check(&store, true);
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
    assert!(packs_of(&store) == before);
    for (at, damaged) in damaged.iter().enumerate() {
        let aside = store.dir().join(DAMAGED_DIR).join(format!("{}.pack", rotten[at]));
        assert!(std::fs::read(aside).unwrap() == *damaged, "the rotten pack is kept");
    }
    assert_whole(&reopened(store), 0..FILES);
}

#[test]
fn more_than_there_is_parity_for_changes_nothing() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let lost = &largest_group(&store)[..3];
    let first = std::fs::read(pack_file(&store, lost[0])).unwrap();
    lost.iter().for_each(|id| std::fs::remove_file(pack_file(&store, *id)).unwrap());
    let before = packs_of(&store);
    let store = reopened(store);
    for repair in [false, true] {
        let report = run_check(&store, repair);
        for id in lost {
            let what = &about(&report, *id)[0].what;
            assert!(
                what.contains("parity cannot make it anew: 3 of the 4 packs and 2 parity files"),
                "{what}"
            );
            assert!(what.contains("only 2 can be made anew"), "{what}");
        }
        assert!(report.damaged > 0 && packs_of(&store) == before, "{:?}", report.findings);
    }
    // One of them comes back.
    std::fs::write(pack_file(&store, lost[0]), first).unwrap();
    let store = reopened(store);
    assert_eq!(run_check(&store, true).damaged, 0);
    assert_whole(&store, 0..FILES);
}

#[test]
fn lost_and_rotten_parity_files_are_made_anew() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let files = store.backend.list_parity().unwrap();
    std::fs::remove_file(parity_file(&store, files[0])).unwrap();
    flip(&parity_file(&store, files[3]), 100);
    let end = std::fs::metadata(parity_file(&store, files[4])).unwrap().len() as usize - 20;
    flip(&parity_file(&store, files[4]), end);
    let report = run_check(&store, false);
    for at in [0, 3, 4] {
        let named = |finding: &&Finding| finding.what.contains(&files[at].to_string());
        let finding = report.findings.iter().find(named).unwrap();
        assert_eq!((finding.kind, finding.severity), (FindingKind::Parity, Severity::Damage));
        assert!(finding.mendable && !finding.mended);
    }
    let report = run_check(&store, true);
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
    assert_eq!(report.parity.unwrap().packs_unprotected, 0);
    assert_whole(&store, 0..FILES);
    // The new parity is of use.
    let lost = &largest_group(&store)[..2];
    lost.iter().for_each(|id| std::fs::remove_file(pack_file(&store, *id)).unwrap());
    let store = reopened(store);
    assert_eq!(run_check(&store, true).damaged, 0);
    assert_whole(&store, 0..FILES);
}

#[test]
fn new_packs_are_reported_until_the_collector_protects_them() {
    let dir = scratch();
    let store = protected(dir.path(), "4+1");
    let groups_before = groups(&store);
    put_bytes(&store, &name(FILES), unique(FILES, LEN)).unwrap();
    let report = run_check(&store, false);
    let unprotected = report.parity.unwrap().packs_unprotected;
    assert!(unprotected > 0 && report.damaged == 0);
    let note = report.findings.iter().find(|finding| finding.kind == FindingKind::Parity).unwrap();
    assert!(note.what.contains("not protected by parity yet") && note.severity == Severity::Note);
    for number in FILES + 1..FILES + 8 {
        put_bytes(&store, &name(number), unique(number, LEN / 10)).unwrap();
        let report = collect(&store, &thorough()).unwrap().parity;
        assert_eq!(report.packs_unprotected, 0, "{report:?}");
        let groups = groups(&store);
        let short = groups.values().filter(|files| files[0].members.len() < 4).count();
        assert!(short <= 1, "at most one group is not full");
        assert!(groups.values().all(|files| files.len() == 1));
    }
    let full = groups_before.iter().filter(|(_, files)| files[0].members.len() == 4);
    let now = groups(&store);
    assert!(full.clone().count() > 0 && full.clone().all(|(group, _)| now.contains_key(group)));
    let again = collect(&store, &thorough()).unwrap().parity;
    assert_eq!((again.groups_made, again.groups_removed), (0, 0), "nothing is left to do");
}

#[test]
fn the_collector_replaces_groups_whose_packs_it_removes() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    gc_support::remove(&store, &name(0)).unwrap();
    gc_support::remove(&store, &name(3)).unwrap();
    let report = collect(&store, &thorough()).unwrap();
    assert!(report.packs_unlinked > 0 && report.parity.groups_removed > 0, "{report:?}");
    assert_eq!(report.parity.packs_unprotected, 0, "{report:?}");
    let live: BTreeSet<PackId> = committed(&store).iter().map(|row| row.id).collect();
    let objects = store.backend.list().unwrap();
    assert!(objects.iter().all(|id| live.contains(id)), "deleted packs are gone");
    let groups = groups(&store);
    let gone = |files: &Vec<ParityDescription>| {
        files[0].members.iter().filter(|member| !live.contains(&member.pack)).count()
    };
    assert!(groups.values().all(|files| gone(files) <= 1), "no group is weak");
    let lost = &largest_group(&store).into_iter().find(|id| live.contains(id)).unwrap();
    std::fs::remove_file(pack_file(&store, *lost)).unwrap();
    let store = reopened(store);
    let report = run_check(&store, true);
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
    assert_whole(&store, [1, 2, 4, 5]);
}

#[test]
fn a_pack_that_is_rotten_already_enters_no_group() {
    let dir = scratch();
    let store = Store::init(&dir.path().join("store"), &small_packs()).unwrap();
    fill(&store);
    set_parity(&store, "4+2");
    let rotten = committed(&store).iter().max_by_key(|row| row.bytes).unwrap().id;
    flip(&pack_file(&store, rotten), 3000);
    let report = collect(&store, &thorough()).unwrap();
    assert_eq!(report.parity.packs_unprotected, 1);
    assert!(report.unreadable.iter().any(|why| why.contains(&rotten.to_string())), "{:?}", report.unreadable);
    assert!(groups(&store).values().all(|files| files[0].members.iter().all(|member| member.pack != rotten)));
    let report = run_check(&store, false);
    assert!(about(&report, rotten)[0].what.contains("not protected by parity"));
}

#[test]
fn a_description_that_lies_is_refused() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let (_, files) = groups(&store).into_iter().max_by_key(|(_, files)| size_of(files)).unwrap();
    // The hashes of two packs, exchanged in all files, with checksums that are right.
    for about in files {
        let path = parity_file(&store, PackId::of_parity(about.group, about.shard));
        let mut bytes = std::fs::read(&path).unwrap();
        let mut lie = about.clone();
        let (one, two) = (lie.members[0].pack, lie.members[1].pack);
        (lie.members[0].pack, lie.members[1].pack) = (two, one);
        bytes.truncate(about.parity_len() as usize);
        bytes.extend_from_slice(&lie.encode());
        std::fs::write(path, bytes).unwrap();
    }
    let lost = largest_group(&store)[0];
    std::fs::remove_file(pack_file(&store, lost)).unwrap();
    let before = packs_of(&store);
    let store = reopened(store);
    let report = run_check(&store, true);
    let what = &about(&report, lost)[0].what;
    assert!(report.damaged > 0 && what.contains("parity cannot make it anew"), "{what}");
    assert!(what.contains("is not that pack"), "{what}");
    assert!(packs_of(&store) == before, "nothing was changed");

    // Files that contradict each other are not used.
    let (_, files) = groups(&store).into_iter().max_by_key(|(_, files)| size_of(files)).unwrap();
    let path = parity_file(&store, PackId::of_parity(files[0].group, files[0].shard));
    let mut bytes = std::fs::read(&path).unwrap();
    let mut lie = files[0].clone();
    lie.members.swap(0, 1);
    bytes.truncate(lie.parity_len() as usize);
    bytes.extend_from_slice(&lie.encode());
    std::fs::write(path, bytes).unwrap();
    let report = run_check(&store, false);
    assert!(report.findings.iter().any(|finding| finding.what.contains("contradict each other")));
}

/// A pack is lost when the collector has deleted others of its group: these stay until it is made
/// anew.
#[test]
fn deleted_packs_stay_while_a_lost_one_needs_them() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let group = largest_group(&store);
    std::fs::remove_file(pack_file(&store, group[0])).unwrap();
    let store = reopened(store);
    let session = store.session(SessionKind::Collector, "test").unwrap();
    store.meta.take_collector(session.id()).unwrap();
    store.meta.mark_candidates(session.id(), &group[1..3]).unwrap();
    store.meta.delete_packs(session.id(), &[], &group[1..3], store.meta.now().unwrap()).unwrap();
    store.meta.release_collector(session.id()).unwrap();
    drop(session);
    let report = collect(&store, &thorough());
    let stays = |id: &PackId| pack_file(&store, *id).exists();
    assert!(group[1..3].iter().all(stays), "{report:?}");
    let report = run_check(&store, true);
    assert!(about(&report, group[0])[0].mended, "{:?}", report.findings);
    assert!(stays(&group[0]));
}

/// Wherever a run fails: everything can be read, the next run protects all packs, and what a check
/// calls protected can be made anew.
#[test]
fn a_run_may_fail_at_any_step() {
    let origin = scratch();
    let store = protected(origin.path(), "4+2");
    put_bytes(&store, &name(FILES), unique(FILES, LEN)).unwrap();
    gc_support::remove(&store, &name(0)).unwrap();
    drop(store);
    for (op, fault) in [
        (Op::Create, Fault::Fail(ErrorKind::Io)),
        (Op::Append, Fault::Fail(ErrorKind::Full)),
        (Op::Seal, Fault::FailAfter(ErrorKind::Io)),
        (Op::Seal, Fault::Fail(ErrorKind::Io)),
        (Op::Remove, Fault::Fail(ErrorKind::Io)),
        (Op::Remove, Fault::FailAfter(ErrorKind::Io)),
    ] {
        for n in (1..).step_by(spaced(4)) {
            let dir = scratch();
            crate::checking::copy_store(origin.path(), dir.path());
            let mut store = gc_support::open(dir.path());
            let local = LocalBackend::open(store.dir(), false, false).unwrap();
            let faulty = FaultyBackend::new(local, Plan::new(1).nth(op, n, fault));
            store.backend = Arc::new(faulty.clone());
            let reader = PackReader::new(store.backend.clone(), store.config.id, store.config.fingerprint);
            store.packs = Arc::new(reader);
            let ended = collect(&store, &thorough());
            if faulty.faults() == 0 {
                ended.unwrap();
                assert!(n > 1, "{op:?}: it is asked for");
                break;
            }
            faulty.set_plan(Plan::default());
            let store = reopened(store);
            let case = format!("{op:?} {n}");
            let report = run_check(&store, false);
            assert!(
                report
                    .findings
                    .iter()
                    .all(|finding| finding.kind == FindingKind::Parity || finding.severity == Severity::Note),
                "{case}: {:?}",
                report.findings
            );
            // A group that counts can make a lost pack anew.
            if report.damaged == 0 && report.parity.unwrap().packs_unprotected == 0 {
                let lost = committed(&store)[n as usize % 3].id;
                std::fs::remove_file(pack_file(&store, lost)).unwrap();
                let store = reopened(store);
                let report = run_check(&store, true);
                assert_eq!(report.damaged, 0, "{case}: {:?}", report.findings);
                drop(store);
            } else {
                drop(store);
            }
            let store = gc_support::open(dir.path());
            let report = collect(&store, &thorough()).unwrap().parity;
            assert_eq!(report.packs_unprotected, 0, "{case}");
            assert_whole(&store, 1..=FILES);
            assert!(groups(&store).values().all(|files| files.len() == 2), "{case}: no leftovers");
        }
    }
}

/// A repair that fails leaves a pack that the next one makes anew.
#[test]
fn a_repair_may_fail_at_any_step() {
    let origin = scratch();
    let store = protected(origin.path(), "4+2");
    let rotten = largest_group(&store);
    flip(&pack_file(&store, rotten[0]), 3000);
    std::fs::remove_file(pack_file(&store, rotten[1])).unwrap();
    drop(store);
    for op in [Op::Create, Op::Append, Op::Seal, Op::Remove] {
        let dir = scratch();
        crate::checking::copy_store(origin.path(), dir.path());
        let mut store = gc_support::open(dir.path());
        let local = LocalBackend::open(store.dir(), false, false).unwrap();
        let faulty = FaultyBackend::new(local, Plan::new(1).nth(op, 1, Fault::Fail(ErrorKind::Io)));
        store.backend = Arc::new(faulty.clone());
        let options = CheckOptions { read_data: true, repair: true, threads: 2 };
        let ended = check(&store, &options, &CheckProgress::default());
        assert!(ended.is_err() && faulty.faults() > 0, "{op:?}");
        faulty.set_plan(Plan::default());
        let store = reopened(store);
        assert_eq!(run_check(&store, true).damaged, 0, "{op:?}");
        assert_whole(&store, 0..FILES);
    }
}

#[test]
fn an_encrypted_store_has_parity_of_ciphertext() {
    let dir = scratch();
    let config = small_packs();
    let mut keys = NewKeys::new(config.id).unwrap();
    keys.add(&Secret::Key(Key::random().unwrap()), "test").unwrap();
    let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
    let store = Store::init_with(&dir.path().join("store"), &config, Some(&keys)).unwrap();
    fill(&store);
    set_parity(&store, "4+2");
    assert_eq!(collect(&store, &thorough()).unwrap().parity.packs_unprotected, 0);
    let before = packs_of(&store);
    let group = largest_group(&store);
    let (_, files) = groups(&store).into_iter().max_by_key(|(_, files)| size_of(files)).unwrap();
    for member in &files[0].members {
        let bytes = std::fs::read(pack_file(&store, member.pack)).unwrap();
        assert_eq!(*blake3::hash(&bytes).as_bytes(), member.hash, "it is of what lies on the disk");
    }
    flip(&pack_file(&store, group[0]), 3000);
    std::fs::remove_file(pack_file(&store, group[1])).unwrap();
    let store = reopened(store);
    assert_eq!(run_check(&store, true).damaged, 0);
    assert!(packs_of(&store) == before);
    assert_whole(&reopened(store), 0..FILES);
}

#[test]
fn it_is_set_for_the_whole_store_and_removed_when_it_is_off() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let inode = outrigger_store::tree::require(
        &*store.meta,
        outrigger_store::meta::At::Now,
        &gc_support::path("dir"),
    );
    let error = set_policy(&store, &session, inode.unwrap().number, "parity", Some("4+2")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(set_policy(&store, &session, ROOT_INODE, "parity", Some("4+200")).is_err());
    drop(session);
    set_parity(&store, "3+1");
    let report = collect(&store, &thorough()).unwrap().parity;
    assert_eq!(report.packs_unprotected, 0);
    assert!(groups(&store).values().all(|files| files.len() == 1 && files[0].members.len() <= 3));
    set_parity(&store, "off");
    let report = collect(&store, &thorough()).unwrap().parity;
    assert!(!report.is_on && report.groups_removed > 0, "{report:?}");
    assert_eq!(store.backend.list_parity().unwrap(), []);
    assert_eq!(run_check(&store, false).parity, None);
}

#[test]
fn recovering_and_copying_leave_parity_alone() {
    let dir = scratch();
    let store = protected(dir.path(), "4+2");
    let before = packs_of(&store);
    let location = store.dir().to_path_buf();
    let target = dir.path().join("copy");
    let options = CopyOptions {
        to: target.clone(),
        packs: None,
        threads: 2,
        verify: true,
        encryption: CopyEncryption::Same,
    };
    copy(&store, &options, &CopyProgress::default()).unwrap();
    drop(store);
    let other = Store::open(&target, false).unwrap();
    assert_eq!(other.backend.list_parity().unwrap(), [], "the copy makes its own");
    assert_eq!(collect(&other, &thorough()).unwrap().parity.packs_unprotected, 0, "as the policy says");
    drop(other);

    for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
        drop(std::fs::remove_file(location.join(name)));
    }
    recover(&location, &RecoverProgress::default()).unwrap();
    let store = Store::open(&location, false).unwrap();
    assert!(before.iter().all(|(path, bytes)| std::fs::read(path).unwrap() == *bytes));
    assert_whole(&store, 0..FILES);
    let lost = largest_group(&store)[0];
    std::fs::remove_file(pack_file(&store, lost)).unwrap();
    let store = reopened(store);
    assert_eq!(run_check(&store, true).damaged, 0);
    assert_eq!(collect(&store, &thorough()).unwrap().parity.packs_unprotected, 0);
    assert_whole(&store, 0..FILES);
}
