//! Damaged, missing and foreign files of the index, and footers that cannot be read or are far
//! away.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_clock::{Clock, NoRandom};
use outrigger_format::{Footer, PackId, StoreId};

use super::{Packs, Rng, STORE, fingerprint, keyed, runs_in, scratch, small, two_runs};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, IndexOptions, LoadFooter};

#[test]
fn damage_anywhere_hides_chunks_at_most_and_is_healed_from_footers() {
    for options in [small(), keyed()] {
        let pristine = scratch();
        let packs = two_runs(pristine.path(), &options);
        let mut names = runs_in(pristine.path());
        names.push(pristine.path().join("CURRENT"));
        let mut rng = Rng(3);
        let apart = outrigger_workload::spaced(4);
        for name in names {
            let len = std::fs::metadata(&name).unwrap().len();
            let mut cuts: Vec<u64> = (0..20).map(|_| rng.below(len)).chain([0, 1, len - 1]).collect();
            cuts.dedup();
            // Flips: one in every byte of the header, and some all over the pages and sections behind
            // it.
            let header = (0..96).map(|byte| byte * 8 + byte % 8);
            let flips = header.chain((0..60).map(|_| rng.below(len * 8))).filter(|bit| bit / 8 < len);
            let damages = flips.map(|bit| (bit, false)).chain(cuts.into_iter().map(|len| (len, true)));
            for (at, cut) in damages.collect::<Vec<_>>().into_iter().step_by(apart) {
                let dir = scratch();
                for entry in std::fs::read_dir(pristine.path()).unwrap() {
                    let path = entry.unwrap().path();
                    std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
                }
                let damaged = dir.path().join(name.file_name().unwrap());
                let file = std::fs::OpenOptions::new().read(true).write(true).open(&damaged).unwrap();
                if cut {
                    file.set_len(at).unwrap();
                } else {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at / 8).unwrap();
                    byte[0] ^= 1 << (at % 8);
                    file.write_all_at(&byte, at / 8).unwrap();
                }
                let index = packs.open(Some(dir.path()), options.clone());
                let some: Vec<_> = (0..1400).step_by(3).map(|n| fingerprint(n, u64::MAX)).collect();
                let mut found = Vec::new();
                index.resolve_batch(&some, |_| true, &mut found).unwrap();
                for (fingerprint, found) in some.iter().zip(&found) {
                    assert!(found.is_none_or(|found| packs.places(fingerprint).contains(&found)));
                }
                let mut candidates = Vec::new();
                index.lookup_batch(&some, &mut candidates);
                index.merge().unwrap();
                index.cover(&packs.ids()).unwrap();
                index.flush().unwrap();
                index.cover(&packs.ids()).unwrap();
                packs.check(&index, 1310, u64::MAX);
                drop(index);
                packs.check(&packs.open(Some(dir.path()), options.clone()), 1310, u64::MAX);
            }
        }
    }
}

#[test]
fn a_missing_run_is_reported_and_leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path(), &small());
    std::fs::remove_file(&runs_in(dir.path())[0]).unwrap();
    std::fs::write(dir.path().join("00000099.run"), b"left behind").unwrap();
    std::fs::write(dir.path().join("new-1-2.tmp"), b"left behind").unwrap();
    let index = packs.open(Some(dir.path()), small());
    assert_eq!((index.stats().runs_dropped, runs_in(dir.path()).len()), (1, 1));
    assert!(!dir.path().join("new-1-2.tmp").exists());
    assert_eq!(index.missing(&packs.ids()).len(), 1);
    assert_eq!(index.cover(&packs.ids()).unwrap(), 1);
    packs.check(&index, 1310, u64::MAX);
}

#[test]
fn runs_of_another_store_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path(), &small());
    let load = |_| Err(Error::new(ErrorKind::NotFound, "no such pack"));
    let index = Index::open(Some(dir.path()), StoreId([8; 16]), small(), |_| true, load).unwrap();
    assert!(index.covered_packs().is_empty());
    assert!(index.lookup(&fingerprint(1, u64::MAX)).is_empty());
    assert_eq!(index.missing(&packs.ids()), packs.ids());
}

#[test]
fn footers_that_cannot_be_read_count_as_absent_and_other_failures_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let packs = two_runs(dir.path(), &small());
    let kind = Arc::new(Mutex::new(ErrorKind::Io));
    let load = {
        let kind = kind.clone();
        move |_| Err(Error::new(*kind.lock().unwrap(), "test"))
    };
    let index = Index::open(Some(dir.path()), STORE, small(), |_| true, load).unwrap();
    let one = fingerprint(5, u64::MAX);
    assert_eq!(index.resolve(&one, |_| true).unwrap_err().kind(), ErrorKind::Io);
    *kind.lock().unwrap() = ErrorKind::Damaged;
    // Single hits are read alone; when there are more, the footer is tried, once.
    for _ in 0..10 {
        assert_eq!(index.resolve(&one, |_| true).unwrap(), None);
    }
    assert_eq!(index.stats().footers_unreadable, 1);
    index.footers().insert(PackId(1), packs.live.lock().unwrap()[&PackId(1)].clone());
    assert_eq!(index.resolve(&one, |_| true).unwrap(), packs.places(&one).pop());
}

/// Time that passes on a test's command.
#[derive(Default)]
struct Passing(Mutex<Duration>);

impl Clock for Passing {
    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wall(&self) -> Duration {
        self.monotonic()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }

    fn random(&self, _: &mut [u8]) -> std::result::Result<(), NoRandom> {
        Err(NoRandom::new("none is needed"))
    }
}

#[test]
fn a_footer_that_was_damaged_on_its_way_is_read_again_after_a_while() {
    let packs = Packs::default();
    let footer = packs.add(1, &[fingerprint(5, u64::MAX)]);
    let is_bad = Arc::new(Mutex::new(true));
    let load = {
        let is_bad = Arc::clone(&is_bad);
        move |_| if *is_bad.lock().unwrap() { Err(Error::damaged("test")) } else { Ok((*footer).clone()) }
    };
    // On this thread alone, as the clock is.
    outrigger_clock::with(Arc::new(Passing::default()), || {
        let index = Index::open(None, STORE, small(), |_| true, load).unwrap();
        let is_found = || index.footers().get(PackId(1)).unwrap().is_some();
        assert!(!is_found());
        *is_bad.lock().unwrap() = false;
        assert!(!is_found(), "it costs one attempt");
        outrigger_clock::sleep(Duration::from_secs(60));
        assert!(is_found());
    });
}

/// Distant footers: none is returned before so many were requested.
struct Far {
    packs: Packs,
    together: usize,
    asked: Arc<(Mutex<usize>, Condvar)>,
    expected: Arc<Mutex<Vec<(PackId, u32)>>>,
}

impl LoadFooter for Far {
    fn load(&self, pack: PackId) -> Result<Footer> {
        let (asked, more) = &*self.asked;
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        more.notify_all();
        let patience = Duration::from_secs(60);
        let (_asked, waited) =
            more.wait_timeout_while(asked, patience, |asked| *asked < self.together).unwrap();
        assert!(!waited.timed_out(), "one is asked for after the other");
        let found = self.packs.live.lock().unwrap().get(&pack).cloned();
        found.map(|footer| (*footer).clone()).ok_or_else(|| Error::new(ErrorKind::Io, "the line is cut"))
    }

    fn expect(&self, packs: &[(PackId, u32)]) {
        self.expected.lock().unwrap().extend(packs);
    }

    fn at_once(&self) -> usize {
        self.together
    }
}

#[test]
fn footers_that_are_far_away_are_asked_for_at_once_and_foretold() {
    let packs = Packs::default();
    for id in 1..=12 {
        packs.add(id, &[fingerprint(id, u64::MAX)]);
    }
    let (asked, expected) = (Arc::default(), Arc::default());
    let far = Far { packs: packs.clone(), together: 4, asked, expected: Arc::clone(&expected) };
    let index = Index::open(None, STORE, IndexOptions::default(), |_| true, far).unwrap();
    let counted: Vec<(PackId, u32)> = packs.ids().into_iter().map(|id| (id, id.0 as u32)).collect();
    assert_eq!(index.cover_counted(&counted[..9]).unwrap(), 9);
    assert_eq!(*expected.lock().unwrap(), counted[..9]);
    // A footer that cannot be read for now fails the lookup; known ones are not read again.
    let gone = (PackId(13), 1);
    let error = index.cover_counted(&[&counted[..], &[gone]].concat()).unwrap_err();
    assert!(error.to_string().contains("the line is cut"), "{error}");
    assert_eq!(expected.lock().unwrap()[9..], [&counted[9..], &[gone]].concat());
    let left = index.missing(&packs.ids()).len();
    assert!(left <= 3);
    assert_eq!(index.cover_counted(&counted).unwrap(), left);
    assert_eq!(index.covered_packs(), packs.ids());
}
