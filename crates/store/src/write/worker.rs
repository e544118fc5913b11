//! The loop of a pipeline's worker.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::{Instant, thread_time, wanted_time};
use outrigger_format::{ChunkKind, Codec, Encoding, FingerprintKind, Reason};
use outrigger_offload::work::Class;
use outrigger_offload::{Auto, Encoder};

use super::commit::{CommitQueue, CommitWhen, Message, WAITING_MAX};
use super::dedup::Verification;
use super::devices::{Devices, Uncut, unnamed_bytes};
use super::framer::{RawBytes, RawFrame};
use super::frames::{self, Compressed, Turn};
use super::ingest::{Scratch, read_small};
use super::joining::{Joined, Joining};
use super::large::ReadSegment;
use super::packer::{PackSink, StoredFrame};
use super::progress::Progress;
use super::queue::{Queue, Task};
use super::sequence::{Sequenced, Sequencer};
use crate::error::Result;

/// State that the workers share.
pub(super) struct Shared {
    pub queue: Arc<Queue>,
    /// The devices.
    pub joining: Joining,
    pub sequencer: Sequencer,
    pub verification: Verification,
    pub packs: Mutex<PackSink>,
    pub commits: Arc<CommitQueue>,
    pub commit: CommitWhen,
    pub progress: Arc<Progress>,
    pub fingerprint: FingerprintKind,
    pub auto: Auto,
}

/// How long this thread was busy, and how long it waited for work, for a source or for a disk.
/// Waiting for a processor does not count, as compressing harder would take even more of it.
struct Meter {
    since: Instant,
    wanted: Duration,
}

impl Meter {
    /// Time between two checks.
    const EVERY: Duration = Duration::from_millis(50);

    fn start() -> Self {
        Self { since: Instant::now(), wanted: wanted_time() }
    }

    /// Busy and waiting since the last time, if that is long enough ago.
    fn read(&mut self) -> Option<(Duration, Duration)> {
        let wall = self.since.elapsed();
        if wall < Self::EVERY {
            return None;
        }
        let before = std::mem::replace(self, Self::start());
        let busy = self.wanted.saturating_sub(before.wanted);
        Some((busy, wall.saturating_sub(busy)))
    }
}

impl Shared {
    /// The devices that are open.
    pub fn devices(&self) -> Option<&Joined> {
        self.joining.get(&self.queue, &self.sequencer)
    }

    /// The devices that cut and hash.
    fn ingesters(&self) -> Option<&Devices> {
        self.devices()?.devices.as_ref()
    }

    /// The life of a worker: ends when all is done, or something failed.
    pub fn work(&self, messages: &Sender<Message>) -> Result<()> {
        let mut encoder = Encoder::new();
        let (mut stored, mut scratch) = (Vec::new(), Scratch::default());
        let mut done = None;
        let mut meter = Meter::start();
        while let Some(task) = self.queue.take(done) {
            let began = Instant::now();
            match task {
                Task::Append(Compressed { frame, made }) => {
                    let encoding = made.conclude(&mut encoder);
                    let raw = self.append(frame, encoding, made.bytes(), messages)?;
                    // First the device's share of the batch's buffer, or that would seem to be lent
                    // still.
                    drop(made);
                    self.release(raw);
                }
                Task::Compress(frame) => self.compress(frame, &mut encoder, &mut stored, messages)?,
                Task::Hash(ticket, batch) => self.name_here(ticket, batch)?,
                Task::Bring(ticket, batch) => self.bring(ticket, batch)?,
                Task::Small(ticket, items, buffer) => {
                    let batch = read_small(items, buffer, &self.progress)?;
                    if let Some(batch) = self.send(ticket, Uncut::Small(batch)) {
                        self.cut(ticket, batch, &mut scratch)?;
                    }
                }
                Task::Segment(ticket, file, segment, buffer) => {
                    let segment = file.read_segment(ticket, &segment, buffer, &self.progress)?;
                    if let Some(batch) = self.send(ticket, Uncut::Segment(segment)) {
                        self.cut(ticket, batch, &mut scratch)?;
                    }
                }
                Task::Ingested(batch) => {
                    let devices = self.ingesters().expect("it was with one");
                    match devices.take(*batch) {
                        (ticket, Uncut::Small(batch), true) => self.name(ticket, Sequenced::Small(batch))?,
                        (_, Uncut::Segment(segment), true) => self.cut_in_line(segment)?,
                        (ticket, batch, false) => self.cut(ticket, batch, &mut scratch)?,
                    }
                }
            }
            done = Some(began.elapsed());
            if let Some((busy, waited)) = meter.read() {
                self.auto.note(busy, waited);
            }
        }
        Ok(())
    }

    /// Sends a batch to be cut, named and looked up by the best device, or gives it back.
    fn send(&self, ticket: u64, batch: Uncut) -> Option<Uncut> {
        self.joining.note(batch.len());
        match self.ingesters() {
            Some(devices) => devices.ingest(&self.queue, ticket, batch),
            None => Some(batch),
        }
    }

    /// Cuts a batch, here and now.
    fn cut(&self, ticket: u64, batch: Uncut, scratch: &mut Scratch) -> Result<()> {
        match batch {
            Uncut::Small(mut batch) => {
                self.timed(Class::Scan, batch.len(), || batch.cut_here(scratch))?;
                self.name(ticket, Sequenced::Small(batch))
            }
            Uncut::Segment(mut segment) => {
                self.timed(Class::Scan, segment.len(), || segment.scan());
                self.cut_in_line(segment)
            }
        }
    }

    /// Cuts the segments that are next in line, of which this may be one.
    fn cut_in_line(&self, segment: ReadSegment) -> Result<()> {
        let (file, mut cut) = (Arc::clone(&segment.file), Vec::new());
        file.cut(segment, &mut |scanned| cut.push(scanned))?;
        // The first is hashed here while its bytes are warm; others were parked, for any free
        // worker.
        let mut cut = cut.into_iter().map(|segment| (segment.ticket, Sequenced::Segment(segment)));
        let own = cut.next();
        cut.try_for_each(|(ticket, batch)| self.park(ticket, batch))?;
        own.map_or(Ok(()), |(ticket, batch)| self.name(ticket, batch))
    }

    /// Lets the best device or this worker name a batch's chunks, and brings it to the sequencer,
    /// now or later.
    fn name(&self, ticket: u64, batch: Sequenced) -> Result<()> {
        match self.ingesters().and_then(|devices| Some((devices, devices.hasher(&self.queue, &batch)?))) {
            Some((devices, hasher)) => {
                devices.name(hasher, &self.queue, ticket, batch);
                Ok(())
            }
            None => self.name_here(ticket, batch),
        }
    }

    /// Runs something on this thread. If there are devices for it, its time is recorded for
    /// comparison.
    fn timed<T>(&self, class: Class, bytes: usize, run: impl FnOnce() -> T) -> T {
        let Some(devices) = self.ingesters().filter(|_| bytes > 0) else { return run() };
        let began = thread_time();
        let done = run();
        devices.observe_here(class, bytes, thread_time() - began);
        done
    }

    /// Leaves a batch to be named by any free worker.
    fn park(&self, ticket: u64, batch: Sequenced) -> Result<()> {
        match self.ingesters().and_then(|devices| Some((devices, devices.hasher(&self.queue, &batch)?))) {
            Some((devices, hasher)) => devices.name(hasher, &self.queue, ticket, batch),
            None => self.queue.push_hash(ticket, batch),
        }
        Ok(())
    }

    fn name_here(&self, ticket: u64, mut batch: Sequenced) -> Result<()> {
        let bytes = unnamed_bytes(&batch);
        self.timed(Class::HashMany(self.fingerprint), bytes, || batch.name(self.fingerprint));
        self.bring(ticket, batch)
    }

    /// Brings a named batch to the sequencer, when other clients' packs that it may rely on were
    /// compared with their data: here, as this reads, and many can.
    fn bring(&self, ticket: u64, mut batch: Sequenced) -> Result<()> {
        batch.enter_domains(&self.verification.packs)?;
        self.verification.compare(&mut batch.looked_for())?;
        self.sequencer.bring(ticket, batch, &self.queue)
    }

    fn compress(
        &self,
        frame: RawFrame,
        encoder: &mut Encoder,
        stored: &mut Vec<u8>,
        messages: &Sender<Message>,
    ) -> Result<()> {
        let devices = self.devices().and_then(|joined| joined.frames.as_ref());
        let may_come = || self.joining.wants_device();
        match frames::compress(devices, may_come, &self.queue, &self.auto, frame, encoder, stored) {
            Turn::Here(frame, encoding) => {
                self.append(frame, encoding, stored, messages).map(|raw| self.release(raw))
            }
            Turn::Away => Ok(()),
        }
    }

    /// A frame's raw bytes are not needed any more.
    fn release(&self, raw: RawBytes) {
        if let RawBytes::Borrowed(buffer, _) = raw {
            self.queue.give_back(buffer);
        }
    }

    /// Appends a frame to the open pack: `stored`, or, depending on `encoding`, its raw bytes,
    /// which are returned.
    fn append(
        &self,
        frame: RawFrame,
        encoding: Encoding,
        stored: &[u8],
        messages: &Sender<Message>,
    ) -> Result<RawBytes> {
        let RawFrame { sequence, raw, lengths, fingerprints, form, .. } = frame;
        if encoding.reason == Reason::Absent {
            Progress::add(&self.progress.frames_without_device, 1);
        }
        let bytes = if encoding.codec == Codec::None { raw.bytes() } else { stored };
        let frame = StoredFrame {
            domain: form.domain,
            kind: ChunkKind::Data,
            encoding,
            lengths,
            fingerprints: &fingerprints,
            stored: bytes,
            sequence,
        };
        let mut packs = self.packs.lock().expect("no panic while held");
        let mut full = packs.append(frame)?;
        // Only where that lets changes go.
        let early = self.commit == CommitWhen::AsItComes && self.commits.waiting() > WAITING_MAX;
        if full.is_none() && early {
            full = packs.take_early();
        }
        drop(packs);
        if let Some(full) = full {
            let _ = messages.send(Message::Full(full.finish()?));
        }
        Ok(raw)
    }

    /// Compresses the last frame and hands over the last pack.
    pub fn finish_packs(&self, messages: &Sender<Message>) -> Result<()> {
        let last = self.sequencer.stage.lock().expect("no panic in the stage").flush();
        if let Some(frame) = last {
            // No worker would take it when it came back.
            let frame = RawFrame { for_processor: true, ..frame };
            self.compress(frame, &mut Encoder::new(), &mut Vec::new(), messages)?;
        }
        let take = || self.packs.lock().expect("no panic while held").take_open();
        while let Some(open) = take() {
            let _ = messages.send(Message::Full(open.finish()?));
        }
        Ok(())
    }
}
