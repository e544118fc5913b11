//! Copies what is in use out of victims, and deletes these (rules 20 and 21).
//!
//! ```text
//!  frames of a victim ──▶ threads: read, verify (frame.rs) ──in order──▶ whole frames  ──────────────▶ pack sinks
//!                                                                  └──▶ single chunks ─▶ joined ─┘
//! ```
//!
//! Data that a run gathers on one host (`localize.rs`) goes into packs of its own, placed there. If
//! a frame has both gathered chunks and others, it is taken apart, and its chunks are copied
//! singly.
//!
//! Thread *k* of *n* takes every *n*-th frame, and hands its results over through its own channel
//! of two entries. The copier reads the channels in turn, so frames keep their order, and memory is
//! a few frames. Victims are taken in groups of a few packs. The copies of a group are sealed, one
//! transaction makes them live and the victims dead, and the victims' objects are removed before
//! the next group begins. So a run needs little space, and keeps its progress if it is interrupted.
//!
//! A victim that cannot be read is unmarked, and the report names it. Chunks that were already
//! copied out of it are then stored twice, until a later run clears that up.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{
    ChunkKind, Codec, CodecChoice, CodecSpec, Domain, Encoding, Fingerprint, Footer, PackId, PackKind, Reason,
};
use outrigger_offload::{Auto, Compression, Encoder, Wanted};

use super::Aims;
use super::bits::PackBits;
use super::frame::{Salvage, Salvager, WantedChunks};
use super::report::{GcProgress, GcReport};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::store::Store;
use crate::write::{MANIFEST_FRAME, META_CODEC, OpenPack, PackSink, StoredFrame};

/// Chunks that will be encoded as one frame.
struct Joint {
    domain: Domain,
    kind: ChunkKind,
    is_gathered: bool,
    wanted: Wanted,
    /// The codec that was tried in vain with all of them.
    in_vain: Option<CodecSpec>,
    limit: usize,
    raw: Vec<u8>,
    lengths: Vec<u32>,
    fingerprints: Vec<Fingerprint>,
}

/// Copies victims into packs of the run's session.
pub(super) struct Copier<'a> {
    store: &'a Store,
    session: &'a Session,
    threads: usize,
    progress: &'a GcProgress,
    aims: &'a Aims,
    /// When the run began, and the raw bytes since: for the throttle.
    pace: (Instant, u64),
    data: PackSink,
    gathered: PackSink,
    meta: PackSink,
    joints: Vec<Joint>,
    encoder: Encoder,
    stored: Vec<u8>,
    sealed: Vec<PackId>,
}

impl<'a> Copier<'a> {
    pub fn new(
        store: &'a Store,
        session: &'a Session,
        threads: usize,
        progress: &'a GcProgress,
        aims: &'a Aims,
    ) -> Self {
        let sink = |kind| PackSink::new(store, &store.meta, session.id(), kind);
        Self {
            store,
            session,
            threads,
            progress,
            aims,
            pace: (Instant::now(), 0),
            data: sink(PackKind::Data),
            gathered: sink(PackKind::Data).on_host(aims.gather.as_ref().map(|gather| &gather.host)),
            meta: sink(PackKind::Meta),
            joints: Vec::new(),
            encoder: Encoder::new(),
            stored: Vec::new(),
            sealed: Vec::new(),
        }
    }

    /// Copies what `bits` marks in `pack`. The inner result says whether the victim could be read;
    /// the outer one has all other errors.
    pub fn copy(&mut self, pack: PackId, bits: &PackBits, report: &mut GcReport) -> Result<Result<()>> {
        // Read again: the index's footer may be older than the damage.
        let footer = match self.store.packs.read_footer(pack) {
            Ok(footer) => footer,
            Err(error) => return Ok(Err(error)),
        };
        let domain = match self.store.packs.domain_of(pack) {
            Ok(domain) => domain,
            Err(error) => return Ok(Err(error)),
        };
        // The chunks in use of each frame: first those that may go anywhere, then the gathered
        // ones.
        let mut wanted: [WantedChunks; 2] = std::array::from_fn(|_| vec![Vec::new(); footer.frames().len()]);
        for (slot, fingerprint) in (0..).zip(footer.fingerprints()).filter(|(slot, _)| bits.get(*slot)) {
            if let Some((frame, position)) = footer.position(slot) {
                let is_gathered = self.aims.gather.as_ref().is_some_and(|gather| gather.has(pack, slot));
                wanted[usize::from(is_gathered)][frame as usize].push((position, *fingerprint));
            }
        }
        wanted.iter_mut().flatten().for_each(|frame| frame.sort_unstable());
        let parts: Vec<(u16, bool)> = (0..footer.frames().len() as u16)
            .flat_map(|frame| [(frame, false), (frame, true)])
            .filter(|(frame, is_gathered)| !wanted[usize::from(*is_gathered)][*frame as usize].is_empty())
            .collect();
        let whole_min = self.frame_limit(bits.kind) / 4;
        let (store, targets) = (self.store, self.aims.targets.as_ref());
        let (store, threads) = (store, self.threads.min(parts.len() / 4).max(1));
        let (footer, wanted, parts): (&Footer, &[WantedChunks; 2], &[(u16, bool)]) =
            (&footer, &wanted, &parts);
        std::thread::scope(|scope| {
            let mut results = Vec::new();
            for thread in 0..threads {
                let (send, receive) = sync_channel::<Result<Salvage>>(2);
                results.push(receive);
                scope.spawn(move || {
                    let mut salvager = Salvager::default();
                    for &(frame, is_gathered) in parts.iter().skip(thread).step_by(threads) {
                        let wanted = &wanted[usize::from(is_gathered)][frame as usize];
                        let salvage =
                            salvager.salvage(store, pack, footer, frame, wanted, whole_min, targets);
                        let failed = salvage.is_err();
                        // The receiver is gone if another frame could not be read.
                        if send.send(salvage).is_err() || failed {
                            return;
                        }
                    }
                });
            }
            for (turn, (_, is_gathered)) in parts.iter().enumerate() {
                let Ok(salvage) = results[turn % threads].recv() else {
                    return Err(Error::new(
                        crate::ErrorKind::Io,
                        "a thread of the collector ended: please report this",
                    ));
                };
                match salvage {
                    Err(error) => return Ok(Err(error)),
                    Ok(salvage) => {
                        report.chunks_copied += salvage.lengths.len() as u64;
                        self.append(domain, salvage, *is_gathered, report)?;
                    }
                }
            }
            Ok(Ok(()))
        })
    }

    /// Sleeps if the run is ahead of its rate.
    fn keep_pace(&mut self, raw: u64) {
        let rate = self.aims.bytes_per_sec();
        if rate == 0 {
            return;
        }
        let (began, done) = &mut self.pace;
        *done += raw;
        let due = Duration::from_secs_f64(*done as f64 / rate as f64);
        outrigger_clock::sleep(due.saturating_sub(began.elapsed()));
    }

    fn frame_limit(&self, kind: PackKind) -> usize {
        match kind {
            PackKind::Data => self.store.config.frame_size as usize,
            PackKind::Meta => MANIFEST_FRAME,
        }
    }

    fn append(
        &mut self,
        domain: Domain,
        salvage: Salvage,
        is_gathered: bool,
        report: &mut GcReport,
    ) -> Result<()> {
        let Salvage { kind, encoding, lengths, fingerprints, bytes, whole, other, recoded } = salvage;
        self.progress.advance(bytes.len() as u64);
        let raw_len = lengths.iter().map(|&len| u64::from(len)).sum();
        self.keep_pace(raw_len);
        if let Some(before) = recoded {
            report.frames_recoded += 1;
            report.recoded_raw += raw_len;
            report.recoded_before += before;
            report.recoded_after += bytes.len() as u64;
        }
        if whole {
            let frame = StoredFrame {
                domain,
                kind,
                encoding,
                lengths,
                fingerprints: &fingerprints,
                stored: &bytes,
                sequence: 0,
            };
            return self.append_frame(frame, is_gathered, report);
        }
        let at = self.joint((domain, kind, is_gathered), encoding, other);
        if !self.joints[at].raw.is_empty() && self.joints[at].raw.len() + bytes.len() > self.joints[at].limit
        {
            self.write_joint(at, report)?;
        }
        let joint = &mut self.joints[at];
        joint.raw.extend_from_slice(&bytes);
        joint.lengths.extend(lengths);
        joint.fingerprints.extend(fingerprints);
        Ok(())
    }

    /// Chooses the joint for chunks with this encoding: with others that will be encoded alike.
    fn joint(
        &mut self,
        (domain, kind, is_gathered): (Domain, ChunkKind, bool),
        encoding: Encoding,
        other: Option<Compression>,
    ) -> usize {
        let wanted = match other {
            Some(target) => Wanted::of(target, &Auto::at_rest()),
            None => self.again(kind, encoding),
        };
        let in_vain = encoding.asked.filter(|_| wanted.reason == Reason::Known);
        let same = |joint: &Joint| {
            (joint.domain, joint.kind, joint.is_gathered) == (domain, kind, is_gathered)
                && (joint.wanted, joint.in_vain) == (wanted, in_vain)
        };
        self.joints.iter().position(same).unwrap_or_else(|| {
            let pack = if kind == ChunkKind::Data { PackKind::Data } else { PackKind::Meta };
            let limit = self.frame_limit(pack);
            let (raw, lengths, fingerprints) = Default::default();
            self.joints.push(Joint {
                domain,
                kind,
                is_gathered,
                wanted,
                in_vain,
                limit,
                raw,
                lengths,
                fingerprints,
            });
            self.joints.len() - 1
        })
    }

    /// How to encode chunks again that have this encoding: as before, if that is recorded. A codec
    /// that was tried in vain is not tried again.
    fn again(&self, kind: ChunkKind, encoding: Encoding) -> Wanted {
        let default = Compression::from(self.store.config.codec);
        let plain = Wanted::of(CodecSpec::NONE.into(), &Auto::new());
        if kind != ChunkKind::Data {
            return Wanted { spec: META_CODEC, reason: Reason::Unstated, filters: false, ..plain };
        }
        if encoding.is_incompressible() {
            return Wanted { reason: Reason::Known, ..plain };
        }
        match (encoding.asked, encoding.codec, default.codec) {
            (Some(spec), ..) => Wanted { spec, reason: encoding.reason, filters: true, ..plain },
            (None, codec, CodecChoice::Fixed(spec)) if codec == spec.codec => {
                Wanted { filters: true, ..Wanted::of(default, &Auto::new()) }
            }
            (None, codec, _) => {
                let level = codec.levels().map_or(0, |(_, _, usual)| usual);
                Wanted { spec: CodecSpec { codec, level }, reason: Reason::Unstated, filters: true, ..plain }
            }
        }
    }

    fn write_joint(&mut self, at: usize, report: &mut GcReport) -> Result<()> {
        let Joint { domain, kind, is_gathered, wanted, in_vain, raw, lengths, fingerprints, .. } =
            &mut self.joints[at];
        let (domain, is_gathered) = (*domain, *is_gathered);
        if lengths.is_empty() {
            return Ok(());
        }
        let mut stored = std::mem::take(&mut self.stored);
        let mut encoding = self.encoder.encode(*wanted, raw, &mut stored);
        encoding.asked = in_vain.or(encoding.asked);
        let (kind, lengths, fingerprints) = (*kind, std::mem::take(lengths), std::mem::take(fingerprints));
        let mut raw = std::mem::take(raw);
        let bytes = if encoding.codec == Codec::None { &raw } else { &stored };
        let frame = StoredFrame {
            domain,
            kind,
            encoding,
            lengths,
            fingerprints: &fingerprints,
            stored: bytes,
            sequence: 0,
        };
        let appended = self.append_frame(frame, is_gathered, report);
        raw.clear();
        self.joints[at].raw = raw;
        self.stored = stored;
        appended
    }

    fn append_frame(
        &mut self,
        frame: StoredFrame<'_>,
        is_gathered: bool,
        report: &mut GcReport,
    ) -> Result<()> {
        let sink = match frame.kind {
            ChunkKind::Data if is_gathered => &mut self.gathered,
            ChunkKind::Data => &mut self.data,
            _ => &mut self.meta,
        };
        match sink.append(frame)? {
            Some(full) => self.seal(full, report),
            None => Ok(()),
        }
    }

    fn seal(&mut self, open: OpenPack, report: &mut GcReport) -> Result<()> {
        let sealed = open.seal(self.session)?;
        self.store.meta.packs_sealed(self.session.id(), std::slice::from_ref(&sealed.row))?;
        self.store.index.add_pack(sealed.row.id, &sealed.footer);
        self.sealed.push(sealed.row.id);
        report.bytes_copied += sealed.row.bytes;
        Ok(())
    }

    /// Makes all copies durable, and returns the packs that hold them.
    pub fn finish_group(&mut self, report: &mut GcReport) -> Result<Vec<PackId>> {
        (0..self.joints.len()).try_for_each(|at| self.write_joint(at, report))?;
        let sinks = [&mut self.data, &mut self.gathered, &mut self.meta];
        let open: Vec<OpenPack> =
            sinks.into_iter().flat_map(|sink| std::iter::from_fn(|| sink.take_open())).collect();
        open.into_iter().try_for_each(|open| self.seal(open, report))?;
        Ok(std::mem::take(&mut self.sealed))
    }
}
