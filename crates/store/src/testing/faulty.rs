//! A backend that fails on purpose: by script (the third append, every read from the tenth on) or
//! by seeded chance.
//!
//! Calls are counted per operation, over all threads and packs, from 1. Before each call the plan's
//! rules are asked in order; the first that applies decides. The same seed and the same order of
//! calls give the same faults.

use std::io::IoSlice;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard};

use outrigger_format::PackId;
use outrigger_workload::Rng;

use crate::backend::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};

/// An operation of a backend or of its writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// [`Backend::create`].
    Create,
    /// [`PackWriter::append`].
    Append,
    /// [`PackWriter::seal`].
    Seal,
    /// [`Backend::read_at`].
    Read,
    /// [`Backend::len`].
    Len,
    /// [`Backend::remove`].
    Remove,
    /// [`Backend::list`].
    List,
    /// [`Backend::put_text`], and the other calls for texts.
    Text,
}

/// How an operation goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The operation is not done (an append only half), and returns an error of this kind.
    Fail(ErrorKind),
    /// The operation is done, and returns an error of this kind all the same. A failed seal, for
    /// example, may have been durable.
    FailAfter(ErrorKind),
    /// A bit of the data read or appended is inverted, silently. Nothing, for other operations.
    FlipBit,
    /// Only the first half of an append arrives, silently: the pack is short. Other operations are
    /// not affected.
    Shorten,
}

#[derive(Clone, Copy)]
enum When {
    /// Calls of these numbers, both ends included.
    Calls(u64, u64),
    /// Each call with so many chances in a thousand.
    Permille(u64),
}

/// Which operations go wrong, and how.
#[derive(Clone, Default)]
pub struct Plan {
    seed: u64,
    rules: Vec<(Op, When, Fault)>,
}

impl Plan {
    /// Nothing goes wrong. `seed` decides by chance where rules ask for it, and which bits are
    /// inverted.
    pub fn new(seed: u64) -> Self {
        Self { seed, rules: Vec::new() }
    }

    /// Call number `n` (from 1) of `op` goes wrong.
    #[must_use]
    pub fn nth(self, op: Op, n: u64, fault: Fault) -> Self {
        self.calls(op, n..=n, fault)
    }

    /// The calls of `op` whose numbers (from 1) are in `range` fail.
    #[must_use]
    pub fn calls(mut self, op: Op, range: impl RangeBounds<u64>, fault: Fault) -> Self {
        use std::ops::Bound;
        let first = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 1,
        };
        let last = match range.end_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_sub(1),
            Bound::Unbounded => u64::MAX,
        };
        self.rules.push((op, When::Calls(first, last), fault));
        self
    }

    /// Each call of `op` goes wrong with a chance of `permille` in a thousand.
    #[must_use]
    pub fn sometimes(mut self, op: Op, permille: u64, fault: Fault) -> Self {
        self.rules.push((op, When::Permille(permille), fault));
        self
    }
}

struct State {
    plan: Plan,
    rng: Rng,
    calls: [u64; 8],
    faults: u64,
}

struct Shared {
    inner: Box<dyn Backend>,
    state: Mutex<State>,
}

/// A backend that passes everything on to another one, except for the faults of its [`Plan`].
/// Clones share counters and plan: a test keeps one.
#[derive(Clone)]
pub struct FaultyBackend(Arc<Shared>);

impl FaultyBackend {
    /// Adds the faults of `plan` to `inner`.
    pub fn new(inner: impl Backend + 'static, plan: Plan) -> Self {
        let state = State { rng: Rng::new(plan.seed), plan, calls: [0; 8], faults: 0 };
        Self(Arc::new(Shared { inner: Box::new(inner), state: Mutex::new(state) }))
    }

    /// From now on goes by `plan`; calls and faults are counted from 0 again.
    pub fn set_plan(&self, plan: Plan) {
        *self.0.state() = State { rng: Rng::new(plan.seed), plan, calls: [0; 8], faults: 0 };
    }

    /// How often `op` was called.
    pub fn calls(&self, op: Op) -> u64 {
        self.0.state().calls[op as usize]
    }

    /// How many calls went wrong.
    pub fn faults(&self) -> u64 {
        self.0.state().faults
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    /// Counts a call of `op`, and returns its fault, with a random number for the details.
    fn fault(&self, op: Op) -> Option<(Fault, u64)> {
        let State { plan, rng, calls, faults } = &mut *self.state();
        let call = &mut calls[op as usize];
        *call += 1;
        let fault = plan.rules.iter().find_map(|&(of, when, fault)| {
            let applies = of == op
                && match when {
                    When::Calls(first, last) => (first..=last).contains(call),
                    When::Permille(permille) => rng.below(1000) < permille,
                };
            applies.then_some(fault)
        })?;
        *faults += 1;
        Some((fault, rng.next_u64()))
    }

    /// Does `call` unless it goes wrong.
    fn spoil<T>(&self, op: Op, id: Option<PackId>, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let error = |kind| {
            let of = id.map(|id| format!(" of pack {id}")).unwrap_or_default();
            Err(Error::new(kind, format!("{op:?}{of} failed on purpose")))
        };
        match self.fault(op) {
            Some((Fault::Fail(kind), _)) => error(kind),
            Some((Fault::FailAfter(kind), _)) => call().and_then(|_| error(kind)),
            Some((Fault::FlipBit | Fault::Shorten, _)) | None => call(),
        }
    }
}

impl Backend for FaultyBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        let inner = self.0.spoil(Op::Create, Some(id), || self.0.inner.create(id))?;
        Ok(Box::new(FaultyWriter { inner, id, shared: Arc::clone(&self.0), failed: false }))
    }

    fn create_unseen(&self, id: PackId) -> Result<Option<Box<dyn PackWriter>>> {
        let made = self.0.spoil(Op::Create, Some(id), || self.0.inner.create_unseen(id))?;
        let wrap =
            |inner| Box::new(FaultyWriter { inner, id, shared: Arc::clone(&self.0), failed: false }) as _;
        Ok(made.map(wrap))
    }

    fn clear_unseen(&self) -> Result<()> {
        self.0.inner.clear_unseen()
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.0.fault(Op::Read) {
            Some((Fault::Fail(kind) | Fault::FailAfter(kind), _)) => {
                Err(Error::new(kind, format!("reading at offset {offset} of pack {id} failed on purpose")))
            }
            Some((Fault::FlipBit, random)) => {
                self.0.inner.read_at(id, offset, buf)?;
                flip(buf, random);
                Ok(())
            }
            Some((Fault::Shorten, _)) | None => self.0.inner.read_at(id, offset, buf),
        }
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        self.0.spoil(Op::Len, Some(id), || self.0.inner.len(id))
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.0.spoil(Op::Remove, Some(id), || self.0.inner.remove(id))
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.0.spoil(Op::List, None, || self.0.inner.list())
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.0.spoil(Op::List, None, || self.0.inner.list_parity())
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.0.spoil(Op::Remove, Some(id), || self.0.inner.set_aside(id))
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.0.spoil(Op::Text, None, || self.0.inner.put_text(name, text))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.0.spoil(Op::Text, None, || self.0.inner.text(name))
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        self.0.spoil(Op::Text, None, || self.0.inner.texts(folder))
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.0.spoil(Op::Text, None, || self.0.inner.remove_text(name))
    }

    fn place(&self) -> Option<String> {
        self.0.inner.place()
    }

    fn lists_cheaply(&self) -> bool {
        self.0.inner.lists_cheaply()
    }

    fn uploads_max(&self) -> usize {
        self.0.inner.uploads_max()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        self.0.inner.hosts()
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        self.0.inner.locate(id)
    }
}

struct FaultyWriter {
    inner: Box<dyn PackWriter>,
    id: PackId,
    shared: Arc<Shared>,
    /// An append failed: a real writer would take no more and not seal, even if the inner one
    /// would.
    failed: bool,
}

impl PackWriter for FaultyWriter {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        if self.failed {
            return Err(Error::new(ErrorKind::Io, format!("an earlier append to pack {} failed", self.id)));
        }
        let mut bytes: Vec<u8>;
        let result = match self.shared.fault(Op::Append) {
            None => self.inner.append(parts),
            Some((fault, random)) => {
                bytes = parts.iter().flat_map(|part| part.iter().copied()).collect();
                match fault {
                    Fault::FlipBit => flip(&mut bytes, random),
                    Fault::Shorten | Fault::Fail(_) => bytes.truncate(bytes.len() / 2),
                    Fault::FailAfter(_) => {}
                }
                self.inner.append(&[IoSlice::new(&bytes)]).and_then(|()| match fault {
                    Fault::Fail(kind) | Fault::FailAfter(kind) => {
                        Err(Error::new(kind, format!("appending to pack {} failed on purpose", self.id)))
                    }
                    Fault::FlipBit | Fault::Shorten => Ok(()),
                })
            }
        };
        self.failed = result.is_err();
        result
    }

    fn finish(&mut self) -> Result<()> {
        if self.failed { Ok(()) } else { self.inner.finish() }
    }

    fn seal(self: Box<Self>) -> Result<()> {
        let Self { inner, id, shared, failed } = *self;
        if failed {
            return Err(Error::new(ErrorKind::Io, format!("an earlier append to pack {id} failed")));
        }
        shared.spoil(Op::Seal, Some(id), || inner.seal())
    }
}

/// Inverts the bit that `random` picks.
fn flip(bytes: &mut [u8], random: u64) {
    if !bytes.is_empty() {
        let bit = random % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryBackend;
    use crate::testing::conformance;

    fn write(backend: &dyn Backend, id: u64, appends: &[&[u8]]) -> Result<()> {
        let mut writer = backend.create(PackId(id))?;
        for bytes in appends {
            writer.append(&[IoSlice::new(bytes)])?;
        }
        writer.seal()
    }

    #[test]
    fn without_faults_it_conforms() {
        let backend = FaultyBackend::new(MemoryBackend::new(), Plan::new(1));
        conformance::backend(&backend);
        assert_eq!(backend.faults(), 0);
        assert!(backend.calls(Op::Read) > 0);
    }

    #[test]
    fn a_failed_append_spoils_the_pack() {
        let inner = MemoryBackend::new();
        let plan = Plan::new(1).nth(Op::Append, 2, Fault::Fail(ErrorKind::Full));
        let backend = FaultyBackend::new(inner.clone(), plan);
        let mut writer = backend.create(PackId(1)).unwrap();
        writer.append(&[IoSlice::new(b"1234")]).unwrap();
        assert_eq!(writer.append(&[IoSlice::new(b"5678")]).unwrap_err().kind(), ErrorKind::Full);
        assert!(writer.append(&[IoSlice::new(b"9")]).is_err());
        assert!(writer.seal().is_err());
        assert_eq!(inner.content(PackId(1)), b"123456");
        write(&backend, 2, &[b"fine"]).unwrap();
        assert_eq!((backend.faults(), backend.calls(Op::Append)), (1, 3));
    }

    #[test]
    fn silent_faults_are_silent() {
        let inner = MemoryBackend::new();
        let plan = Plan::new(7).nth(Op::Append, 1, Fault::FlipBit).nth(Op::Append, 2, Fault::Shorten).nth(
            Op::Read,
            2,
            Fault::FlipBit,
        );
        let backend = FaultyBackend::new(inner.clone(), plan);
        write(&backend, 1, &[&[0; 100], b"12345678"]).unwrap();
        let content = inner.content(PackId(1));
        assert_eq!(content.len(), 104);
        assert_eq!(content[..100].iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        let (mut first, mut second) = ([0; 104], [0; 104]);
        backend.read_at(PackId(1), 0, &mut first).unwrap();
        backend.read_at(PackId(1), 0, &mut second).unwrap();
        assert_eq!(first[..], content[..]);
        assert_eq!(first.iter().zip(second).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>(), 1);
    }

    #[test]
    fn ranges_and_what_failed_after_it_was_done() {
        let plan = Plan::new(1)
            .nth(Op::Seal, 1, Fault::FailAfter(ErrorKind::Io))
            .calls(Op::Remove, ..3, Fault::FailAfter(ErrorKind::Io))
            .calls(Op::List, 2.., Fault::Fail(ErrorKind::Io));
        let backend = FaultyBackend::new(MemoryBackend::new(), plan);
        assert!(write(&backend, 1, &[b"data"]).is_err());
        backend.read_at(PackId(1), 0, &mut [0; 4]).unwrap();
        assert!(backend.remove(PackId(1)).is_err());
        assert_eq!(backend.len(PackId(1)).unwrap(), None);
        assert!(backend.remove(PackId(1)).is_err());
        backend.remove(PackId(1)).unwrap();
        backend.list().unwrap();
        assert!(backend.list().is_err());
        backend.set_plan(Plan::default());
        backend.list().unwrap();
    }

    #[test]
    fn chance_follows_the_seed() {
        let run = |seed| {
            let plan = Plan::new(seed).sometimes(Op::Len, 300, Fault::Fail(ErrorKind::Io));
            let backend = FaultyBackend::new(MemoryBackend::new(), plan);
            (0..200).map(|_| backend.len(PackId(1)).is_err()).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
        let failed = run(5).into_iter().filter(|failed| *failed).count();
        assert!((30..90).contains(&failed), "{failed} of 200");
    }
}
