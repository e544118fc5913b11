//! The ordered part of the pipeline: batches leave the workers in any order and pass here in ticket
//! order, one at a time.
//!
//! The worker that brings the next ticket in line runs the stage for it and for those parked behind
//! it; the others park theirs and go on. Dedup, framing and manifests are cheap, so one thread at a
//! time is enough.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outrigger_format::{Domain, Entry, Fingerprint, FingerprintKind, Node, Root};

use super::bytes::Buffer;
use super::commit::{CommitQueue, CommitWhen, Pending, WAITING_MAX};
use super::compare::Compare;
use super::dedup::{Dedup, Known};
use super::framer::{Form, Framer, RawFrame};
use super::ingest::{ChunkRef, Cut, hash_chunks};
use super::keep::{StoredNodes, keep};
use super::large::{Between, Scanned};
use super::manifest::{ManifestBuilder, NodeSink};
use super::progress::Progress;
use super::queue::Queue;
use crate::error::Result;
use crate::meta::Change;
use crate::meta::jobs::JobChange;
use crate::packs::PackReader;

/// The batch of a ticket.
pub(super) enum Sequenced {
    Small(Cut),
    Segment(Scanned),
}

impl Sequenced {
    /// The chunks, and where their bytes are.
    pub fn chunks(&self) -> (&Buffer, &[ChunkRef]) {
        match self {
            Self::Small(batch) => (&batch.buffer, &batch.chunks),
            Self::Segment(segment) => (&segment.buffer, &segment.chunks),
        }
    }

    pub fn chunks_mut(&mut self) -> &mut [ChunkRef] {
        match self {
            Self::Small(batch) => &mut batch.chunks,
            Self::Segment(segment) => &mut segment.chunks,
        }
    }

    /// The names of the chunks that will be looked up.
    pub fn looked_for(&self) -> Box<dyn Iterator<Item = Fingerprint> + '_> {
        let (_, chunks) = self.chunks();
        match self {
            Self::Segment(segment) if !segment.file.dedup => Box::new(std::iter::empty()),
            Self::Segment(_) => Box::new(chunks.iter().map(|chunk| chunk.fingerprint)),
            Self::Small(batch) => {
                let dedup = batch.files.iter().flat_map(|file| std::iter::repeat_n(file.dedup, file.chunks));
                let looked_for = chunks.iter().zip(dedup).filter(|(_, dedup)| *dedup);
                Box::new(looked_for.map(|(chunk, _)| chunk.fingerprint))
            }
        }
    }

    /// Computes the fingerprints that are missing, here and now.
    pub fn name(&mut self, kind: FingerprintKind) {
        let (buffer, chunks) = match self {
            Self::Small(batch) => (&batch.buffer, &mut batch.chunks),
            Self::Segment(segment) => (&segment.buffer, &mut segment.chunks),
        };
        hash_chunks(kind, buffer, chunks);
    }

    /// Gives the chunks of files that are in domains their names there. Called once, when all chunks
    /// have fingerprints.
    ///
    /// # Errors
    /// As [`PackReader::domain_key`].
    pub fn enter_domains(&mut self, packs: &PackReader) -> Result<()> {
        match self {
            Self::Segment(segment) => enter_domain(segment.file.form.domain, &mut segment.chunks, packs),
            Self::Small(batch) => {
                let mut rest = &mut batch.chunks[..];
                for file in &batch.files {
                    let (own, others) = rest.split_at_mut(file.chunks);
                    rest = others;
                    enter_domain(file.form.domain, own, packs)?;
                }
                Ok(())
            }
        }
    }
}

fn enter_domain(domain: Domain, chunks: &mut [ChunkRef], packs: &PackReader) -> Result<()> {
    if domain == Domain::COMMON || chunks.is_empty() {
        return Ok(());
    }
    let key = packs.domain_key(domain)?;
    for chunk in chunks {
        // Devices look for what is in no domain.
        (chunk.fingerprint, chunk.hot) = (key.name(&chunk.fingerprint), None);
    }
    Ok(())
}

struct Parked {
    next: u64,
    waiting: BTreeMap<u64, Sequenced>,
    running: bool,
}

pub(super) struct Sequencer {
    parked: Mutex<Parked>,
    pub stage: Mutex<Stage>,
}

impl Sequencer {
    pub fn new(stage: Stage) -> Self {
        let parked = Parked { next: 0, waiting: BTreeMap::new(), running: false };
        Self { parked: Mutex::new(parked), stage: Mutex::new(stage) }
    }

    /// Brings a ticket; may run the stage for several.
    pub fn bring(&self, ticket: u64, item: Sequenced, queue: &Queue) -> Result<()> {
        let mut parked = self.parked.lock().expect("no panic while held");
        parked.waiting.insert(ticket, item);
        if parked.running {
            return Ok(());
        }
        parked.running = true;
        while let Some(item) = {
            let next = parked.next;
            parked.waiting.remove(&next)
        } {
            parked.next += 1;
            drop(parked);
            let mut stage = self.stage.lock().expect("no panic in the stage");
            stage.run(item, queue)?;
            // Changes that are committed at the end free no space before.
            if stage.commit == CommitWhen::AsItComes {
                stage.commits.wait_for_room(2 * WAITING_MAX, || queue.failed());
            }
            drop(stage);
            parked = self.parked.lock().expect("no panic while held");
        }
        parked.running = false;
        Ok(())
    }
}

/// A large file whose segments are passing.
#[derive(Default)]
pub(super) struct LargeProgress {
    manifest: ManifestBuilder,
    newest_frame: u64,
    /// Lengths and fingerprints, if an oracle's record is being made.
    noted: Vec<(u32, Fingerprint)>,
}

impl LargeProgress {
    fn note(&mut self, chunks: &[ChunkRef]) {
        self.noted.extend(chunks.iter().map(|chunk| (chunk.len, chunk.fingerprint)));
    }
}

/// Dedup, framing and manifests; see the module.
pub(super) struct Stage {
    pub dedup: Dedup,
    pub compare: Arc<Compare>,
    pub framer: Framer,
    pub nodes: Box<dyn NodeSink + Send>,
    pub stored: StoredNodes,
    pub commits: Arc<CommitQueue>,
    pub commit: CommitWhen,
    pub progress: Arc<Progress>,
    pub large: Option<LargeProgress>,
    /// Changes that the session has seen so far; the next one's number is one more.
    pub changes: u64,
}

impl Stage {
    fn run(&mut self, item: Sequenced, queue: &Queue) -> Result<()> {
        match item {
            Sequenced::Small(batch) => self.run_small(batch, queue),
            Sequenced::Segment(segment) => self.run_segment(segment, queue),
        }
    }

    fn run_small(&mut self, batch: Cut, queue: &Queue) -> Result<()> {
        let mut rest = &batch.chunks[..];
        let runs = batch.files.iter().map(|file| {
            let (chunks, others) = rest.split_at(file.chunks);
            rest = others;
            (chunks, file.dedup)
        });
        self.dedup.resolve(runs, self.changes + batch.files.len() as u64)?;
        let buffer = Arc::new(batch.buffer);
        let mut at = 0;
        for file in batch.files {
            let mut large = LargeProgress::default();
            let mut change = file.change;
            self.nodes.enter_domain(file.form.domain);
            for chunk in &batch.chunks[at..at + file.chunks] {
                self.chunk(at, chunk, &buffer, file.form, &mut large, queue)?;
                at += 1;
            }
            if let Some((root, domain)) = stored_in_domain(&change).filter(|_| !file.content) {
                self.dedup.require_domain(root, domain)?;
            }
            if file.content {
                let len = self.finish_manifest(&mut change, &mut large.manifest)?;
                if file.oracle.records() {
                    large.note(&batch.chunks[at - file.chunks..at]);
                    file.oracle.note(file.chunker, len, &large.noted)?;
                }
            }
            self.queue_change(change, large.newest_frame);
        }
        self.end_batch(buffer, queue);
        Ok(())
    }

    fn run_segment(&mut self, segment: Scanned, queue: &Queue) -> Result<()> {
        if segment.file.change.lock().expect("no panic while held").is_none() {
            // It was taken before the end of the stream was known: empty.
            queue.give_back(Arc::new(segment.buffer));
            return Ok(());
        }
        let mut large = self.large.take().unwrap_or_default();
        // No other change passes before this file's own, which will be the next.
        let run = (&segment.chunks[..], segment.file.dedup);
        self.dedup.resolve(std::iter::once(run), self.changes + 1)?;
        let buffer = Arc::new(segment.buffer);
        let form = segment.file.form;
        self.nodes.enter_domain(form.domain);
        let mut between = segment.between.iter().peekable();
        for (at, chunk) in segment.chunks.iter().enumerate() {
            while let Some((_, what)) = between.next_if(|(before, _)| *before <= at) {
                self.between(what, form.domain, &mut large.manifest)?;
            }
            self.chunk(at, chunk, &buffer, form, &mut large, queue)?;
        }
        for (_, what) in between {
            self.between(what, form.domain, &mut large.manifest)?;
        }
        let file = &segment.file;
        if file.oracle.records() {
            large.note(&segment.chunks);
        }
        self.end_batch(buffer, queue);
        if !segment.last {
            self.large = Some(large);
            return Ok(());
        }
        let change = file.change.lock().expect("no panic while held").take();
        if let (Some(mut change), false) = (change, file.failed()) {
            let len = self.finish_manifest(&mut change, &mut large.manifest)?;
            file.oracle.note(file.chunker, len, &large.noted)?;
            self.queue_change(change, large.newest_frame);
            Progress::add(&self.progress.files_done, 1);
        }
        Ok(())
    }

    fn between(&mut self, what: &Between, domain: Domain, manifest: &mut ManifestBuilder) -> Result<()> {
        match what {
            Between::Hole(len) => manifest.push(Entry::Hole { len: *len }, &mut *self.nodes),
            Between::Keep(root, from, to) => {
                self.dedup.require_domain(root, domain)?;
                keep(manifest, root, (*from, *to), &mut self.stored, &mut *self.nodes)
            }
        }
    }

    /// Gives the change its content, and returns the content's length.
    fn finish_manifest(&mut self, change: &mut Change, manifest: &mut ManifestBuilder) -> Result<u64> {
        let (Change::Put { root, .. }
        | Change::Node { root, .. }
        | Change::CompareAndSwap { root, .. }
        | Change::Orphan { root, .. }
        | Change::Job(JobChange::Output { root, .. })) = change
        else {
            return Ok(0);
        };
        *root = manifest.finish(&mut *self.nodes)?;
        Ok(root.len())
    }

    fn queue_change(&mut self, change: Change, newest_frame: u64) {
        self.changes += 1;
        self.commits.push(Pending { change, newest_frame });
    }

    fn chunk(
        &mut self,
        at: usize,
        chunk: &ChunkRef,
        buffer: &Arc<Buffer>,
        form: Form,
        file: &mut LargeProgress,
        queue: &Queue,
    ) -> Result<()> {
        let ChunkRef { start, len, fingerprint, hot: _ } = *chunk;
        Progress::add(&self.progress.chunks, 1);
        let range = start as usize..(start + len) as usize;
        self.compare.check(&fingerprint, &buffer.bytes[range.clone()])?;
        match self.dedup.known(at) {
            Known::Stored => {}
            Known::Pending(frame) => file.newest_frame = file.newest_frame.max(frame),
            Known::New => {
                self.compare.note(&fingerprint, &buffer.bytes[range.clone()]);
                let (frame, complete) = self.framer.push(fingerprint, buffer, range, form);
                self.commits.frame_opened(frame);
                self.dedup.pending.lock().expect("no panic while held").insert(fingerprint, frame);
                file.newest_frame = file.newest_frame.max(frame);
                Progress::add(&self.progress.chunks_new, 1);
                Progress::add(&self.progress.bytes_new, len.into());
                if let Some(complete) = complete {
                    queue.push_compress(complete);
                }
            }
        }
        // After the new bytes are counted: a reading between the two must not take them for found.
        Progress::add(&self.progress.bytes_looked_up, len.into());
        file.manifest.push(Entry::Chunk { fingerprint, len }, &mut *self.nodes)
    }

    /// Frees the batch's buffer, but for frames that are on their way to a compressor.
    fn end_batch(&mut self, buffer: Arc<Buffer>, queue: &Queue) {
        if let Some(complete) = self.framer.settle() {
            queue.push_compress(complete);
        }
        queue.give_back(buffer);
    }

    /// The frame that is still open, when no more tickets will come.
    pub fn flush(&mut self) -> Option<RawFrame> {
        self.framer.flush()
    }
}

/// The content, and the domain, of a change that gives a file in a domain a content that is stored.
fn stored_in_domain(change: &Change) -> Option<(&Root, Domain)> {
    let (Change::Put { attributes, root, .. }
    | Change::Node { attributes, root, .. }
    | Change::CompareAndSwap { attributes, root, .. }) = change
    else {
        return None;
    };
    Some((root, attributes.domain())).filter(|(_, domain)| *domain != Domain::COMMON)
}

/// A node's name and bytes.
pub(super) fn node_fingerprint(kind: FingerprintKind, node: &Node) -> (Fingerprint, Vec<u8>) {
    let bytes = node.encode();
    (outrigger_offload::hash(kind, &bytes), bytes)
}
