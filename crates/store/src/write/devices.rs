//! Cutting, naming and looking up by devices (GHOST). A batch that was read becomes *one* task of
//! the offload runtime, and comes back through the queue with a small report. With `objective=cpu`
//! the runtime's placement chooses between the processor and devices. Otherwise a worker does the
//! batch itself, unless no worker is idle and a device is expected to finish it before the workers
//! would, with all that waits for them.
//!
//! ```text
//!   read ──▶ ingest: scan ▶ cut ▶ hash ▶ table cache ──▶ checked ──▶ sequencer
//!                          │ no device can: cut here, by chunks                │ the report is no good
//!                          └──▶ hash_many ─────────────▶ sequencer             └──▶ cut and hashed by a worker
//! ```
//!
//! The device reads the batch where it lies, in the pool's page-locked memory. A thread that
//! submits waits while too many tasks are outstanding; results wait for nothing. If the runtime
//! gives a task back undone, a worker does it, so nothing depends on any device.
//!
//! **Which parts of a report are believed.** *Cuts*, if they are cuts (in order, none too long, to
//! the end), since any will do. *The table cache*, only where its own entries say the same
//! (`table_cache/mod.rs`). *Fingerprints*, after two checks. The runtime computes a sample of all
//! tasks again (`check_every`). And this module hashes one chunk of every task, so a report about
//! other bytes is noticed (the batch before, shifted, or memory that was never written). If a check
//! fails, a worker does the batch again, and the device is quarantined.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::op::Stream;
use outrigger_offload::placement::{Objective, Stages};
use outrigger_offload::runtime::{Failed, Finished, Runtime};
use outrigger_offload::table::HotView;
use outrigger_offload::work::{Class, Input, Request, Work};

use super::bytes::Buffer;
use super::ingest::{ChunkRef, Cut, told_chunks};
use super::large::ReadSegment;
use super::oracle::UNNAMED;
use super::queue::Queue;
use super::sequence::Sequenced;
use crate::config::StoreConfig;
use crate::devices::{StoreDevices, can, ingest};
use crate::table_cache::TableCache;

/// Fewer bytes than this are hashed by the worker: a chunk or two that a device's cuts did not
/// meet.
const NAME_HERE: usize = 256 << 10;

/// The devices of a writer.
pub(super) struct Devices {
    runtime: Arc<Runtime>,
    kind: FingerprintKind,
    table_cache: Option<Arc<TableCache>>,
}

/// Where a batch is processed.
enum Placed {
    /// By the worker, at once.
    Here,
    /// By the worker; a device does it too, only so that its time is learnt.
    HereAndOn(usize),
    /// By a device, which finishes before the processor would.
    On(usize),
    /// Wherever the runtime chooses.
    Anywhere,
}

/// A batch that was read.
pub(super) enum Uncut {
    Small(Cut),
    Segment(ReadSegment),
}

impl Uncut {
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Small(batch) => &batch.buffer,
            Self::Segment(segment) => &segment.buffer,
        }
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        match self {
            Self::Small(batch) => batch.len(),
            Self::Segment(segment) => segment.len(),
        }
    }

    fn streams(&self) -> Option<(ChunkerSpec, Vec<Stream>)> {
        match self {
            Self::Small(batch) => batch.streams(),
            Self::Segment(segment) => Some((segment.file.chunker, segment.streams()?)),
        }
    }
}

/// A batch that is back, with its report if there is one.
pub(super) struct Ingested {
    ticket: u64,
    batch: Uncut,
    report: Option<Finished>,
    /// The table in which it was looked up.
    view: Option<Arc<HotView>>,
}

impl Devices {
    /// The open devices of a store; `None` if none of them can be of use.
    pub fn of(source: &StoreDevices) -> Option<Self> {
        let runtime = Arc::clone(source.opening.runtime()?);
        let StoreConfig { fingerprint: kind, chunker, .. } = source.config;
        let useful = can(&runtime, Request::HashMany { kind, ranges: Vec::new() })
            || can(&runtime, ingest(Vec::new(), chunker, kind, None));
        useful.then(|| Self { runtime, kind, table_cache: source.start_table_cache().cloned() })
    }

    /// Records that the processor took so long.
    pub fn observe_here(&self, class: Class, bytes: usize, took: Duration) {
        let stages = Stages { work: took.as_nanos() as f64, ..Stages::default() };
        self.runtime.model().observe(0, class, bytes, stages, true, self.runtime.policy().learn);
    }

    /// Chooses where `work` is done. The processor would need the sum of what `parts` take.
    fn place(&self, queue: &Queue, work: &Work, parts: &[Class]) -> Placed {
        let (runtime, policy) = (&*self.runtime, self.runtime.policy());
        let places = 1..runtime.device_count();
        let mut able = places.filter(|&place| runtime.supports(place, work)).peekable();
        if able.peek().is_none() {
            return Placed::Here;
        }
        if policy.objective == Objective::Cpu {
            return Placed::Anywhere;
        }
        let (class, bytes) = (work.class(), work.len_in());
        if !policy.may_offload(class, bytes) {
            return Placed::Here;
        }
        let model = runtime.model();
        let own = parts.iter().map(|&part| {
            let stages = model.predict(0, part, bytes).filter(|_| model.curve(0, part).samples(bytes) > 1);
            stages.map(|stages| Duration::from_nanos(stages.latency() as u64))
        });
        let Some(own) = own.sum::<Option<Duration>>() else { return Placed::Here };
        let limit = queue.backlog().limit(own);
        let has_room = |&place: &usize| {
            let load = runtime.load(place);
            !load.is_cut_off && load.has_room(0)
        };
        let able: Vec<usize> = able.filter(has_room).collect();
        let back = able.iter().filter_map(|&place| Some((runtime.expect(place, class, bytes)?, place))).min();
        if let Some(((back, place), limit)) = back.zip(limit)
            && back <= limit
        {
            return Placed::On(place);
        }
        let idle = able.into_iter().find(|&place| runtime.load(place).tasks == 0);
        match idle.filter(|&place| model.is_to_be_tried(policy, place, class, bytes)) {
            Some(place) => Placed::HereAndOn(place),
            None => Placed::Here,
        }
    }

    /// Cuts, names and looks up a batch in one task, which comes back through `queue`. Returns the
    /// batch if no device is to do it.
    pub fn ingest(&self, queue: &Arc<Queue>, ticket: u64, batch: Uncut) -> Option<Uncut> {
        let Some((chunker, streams)) = batch.streams() else { return Some(batch) };
        let view = self.table_cache.as_ref().map(|cache| cache.view());
        let mut draft = self.runtime.draft(0);
        draft.set_request(ingest(streams, chunker, self.kind, view.as_deref()));
        let Request::Ingest { streams, .. } = &draft.work().request else { unreachable!("just set") };
        let end = streams.last().map_or(0, |stream| stream.range.end as usize);
        let buffer = batch.buffer();
        draft.share(buffer.bytes.lend(), buffer.headroom..buffer.headroom + end);
        match self.place(queue, draft.work(), &[Class::Scan, Class::HashMany(self.kind)]) {
            Placed::Here => return Some(batch),
            Placed::HereAndOn(place) => {
                // The task only measures; no thread waits for it.
                drop(self.runtime.try_submit({
                    draft.pin(place);
                    draft
                }));
                return Some(batch);
            }
            Placed::On(place) => drop(draft.pin(place)),
            Placed::Anywhere => {}
        }
        queue.go_away();
        let away = Arc::new(Mutex::new(Some((batch, view))));
        let (back, waits) = (Arc::clone(queue), Arc::clone(&away));
        let come_back = move |waits: &Mutex<Option<_>>, report| {
            if let Some((batch, view)) = take(waits) {
                back.come_back_ingested(Box::new(Ingested { ticket, batch, report, view }));
            }
        };
        let refused = come_back.clone();
        draft.set_callback(Arc::new(move |ended| come_back(&waits, ended.ok())));
        if let Err(why) = self.runtime.submit(draft) {
            // The runtime is shutting down.
            drop(why);
            refused(&away, None);
        }
        None
    }

    /// Takes over the chunks that a report has for its batch. The flag says whether it did: if not,
    /// a worker has to cut the batch.
    pub fn take(&self, back: Ingested) -> (u64, Uncut, bool) {
        let Ingested { ticket, mut batch, report, view } = back;
        let Some(report) = report else { return (ticket, batch, false) };
        let device = report.report().device;
        let checked = self.check(&report, &batch, ticket, device, view.as_deref());
        let counts = report.output().counts.clone();
        // Frees the other reference to the batch's bytes before the batch goes on.
        drop(report);
        let Some(chunks) = checked else {
            self.runtime.quarantine(device);
            return (ticket, batch, false);
        };
        match &mut batch {
            Uncut::Small(batch) => batch.take(&chunks, &counts),
            Uncut::Segment(segment) => segment.take(chunks, counts),
        }
        (ticket, batch, true)
    }

    /// The chunks of a report that can be believed; see the module.
    fn check(
        &self,
        report: &Finished,
        batch: &Uncut,
        ticket: u64,
        device: usize,
        view: Option<&HotView>,
    ) -> Option<Vec<ChunkRef>> {
        let Request::Ingest { streams, chunker, .. } = &report.work().request else { return None };
        let (output, buffer) = (report.output(), batch.buffer());
        let mut chunks = told_chunks(streams, *chunker, buffer.headroom, &output.chunks, &output.counts)?;
        if chunks.is_empty() {
            return Some(chunks);
        }
        if device > 0 {
            // Nobody can foresee which chunk is checked.
            let mixed = ticket.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let ChunkRef { start, len, fingerprint, .. } = chunks[mixed as usize % chunks.len()];
            let bytes = &buffer.bytes[start as usize..(start + len) as usize];
            if outrigger_offload::hash(self.kind, bytes) != fingerprint {
                return None;
            }
        }
        let denied = deny(&mut chunks, view);
        if let Some(cache) = &self.table_cache {
            let found = chunks.iter().filter(|chunk| chunk.hot.is_some()).count();
            cache.note_asked(chunks.len() as u64, found as u64, denied as u64);
        }
        (denied == 0).then_some(chunks)
    }

    /// Chooses what names the chunks of a batch that have no names yet: a device, or `Some(None)`
    /// for the runtime's choice; `None` for the worker.
    pub fn hasher(&self, queue: &Queue, batch: &Sequenced) -> Option<Option<usize>> {
        let bytes = unnamed_bytes(batch);
        if bytes < NAME_HERE {
            return None;
        }
        let request = Request::HashMany { kind: self.kind, ranges: Vec::new() };
        let work = Work { request, input: Input::Empty, range: 0..bytes };
        match self.place(queue, &work, &[Class::HashMany(self.kind)]) {
            Placed::On(place) => Some(Some(place)),
            Placed::Anywhere => Some(None),
            Placed::Here | Placed::HereAndOn(_) => None,
        }
    }

    /// Names the chunks of a batch that have no fingerprints yet. It comes back through `queue`.
    pub fn name(&self, hasher: Option<usize>, queue: &Arc<Queue>, ticket: u64, batch: Sequenced) {
        queue.go_away();
        let (buffer, chunks) = batch.chunks();
        let unnamed = || chunks.iter().filter(|chunk| chunk.fingerprint == UNNAMED);
        let (Some(first), Some(last)) = (unnamed().next(), unnamed().next_back()) else {
            return queue.come_back_named(ticket, batch);
        };
        let range = first.start..last.start + last.len;
        let mut draft = self.runtime.draft(0);
        draft.hash_many(
            self.kind,
            unnamed().map(|chunk| {
                let start = chunk.start - range.start;
                start..start + chunk.len
            }),
        );
        draft.share(buffer.bytes.lend(), range.start as usize..range.end as usize);
        if let Some(place) = hasher {
            draft.pin(place);
        }
        let away = Arc::new(Mutex::new(Some(batch)));
        let (back, waits) = (Arc::clone(queue), Arc::clone(&away));
        draft.set_callback(Arc::new(move |ended| {
            if let Some(batch) = take(&waits) {
                come_back(&back, ticket, batch, ended);
            }
        }));
        if let Err(refused) = self.runtime.submit(draft) {
            // The runtime is shutting down.
            drop(refused);
            if let Some(batch) = take(&away) {
                queue.come_back_unnamed(ticket, batch);
            }
        }
    }
}

/// Bytes of the chunks without names.
pub(super) fn unnamed_bytes(batch: &Sequenced) -> usize {
    let (_, chunks) = batch.chunks();
    chunks.iter().filter(|chunk| chunk.fingerprint == UNNAMED).map(|chunk| chunk.len as usize).sum()
}

/// Removes table answers that the table does not have, and counts them.
fn deny(chunks: &mut [ChunkRef], view: Option<&HotView>) -> usize {
    let confirms = |chunk: &ChunkRef, number: NonZeroU64| {
        view.is_some_and(|view| view.confirms(&chunk.fingerprint, number.get()))
    };
    let mut denied = 0;
    for chunk in chunks {
        if chunk.hot.is_some_and(|number| !confirms(chunk, number)) {
            chunk.hot = None;
            denied += 1;
        }
    }
    denied
}

fn take<T>(away: &Mutex<Option<T>>) -> Option<T> {
    away.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn come_back(queue: &Queue, ticket: u64, mut batch: Sequenced, ended: Result<Finished, Failed>) {
    let named = match &ended {
        Ok(done) => put_names(batch.chunks_mut(), &done.output().fingerprints),
        Err(_) => false,
    };
    // Frees the other reference to the batch before it goes on.
    drop(ended);
    if named {
        queue.come_back_named(ticket, batch);
    } else {
        queue.come_back_unnamed(ticket, batch);
    }
}

/// Gives the unnamed chunks their names; `false` when the numbers differ.
fn put_names(chunks: &mut [ChunkRef], names: &[outrigger_format::Fingerprint]) -> bool {
    let mut unnamed: Vec<&mut ChunkRef> =
        chunks.iter_mut().filter(|chunk| chunk.fingerprint == UNNAMED).collect();
    if unnamed.len() != names.len() {
        return false;
    }
    unnamed.iter_mut().zip(names).for_each(|(chunk, name)| chunk.fingerprint = *name);
    true
}
