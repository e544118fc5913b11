//! Manifest nodes and catalogue blocks, collected into the frames of meta packs. The sequencer adds
//! nodes; the committer adds blocks, and seals the packs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use outrigger_format::{ChunkKind, Codec, Domain, Encoding, Fingerprint, FingerprintKind, Node};
use outrigger_offload::Compressor;

use super::catalogue::META_CODEC;
use super::compare::Compare;
use super::dedup::Verification;
use super::manifest::NodeSink;
use super::packer::{OpenPack, PackSink, StoredFrame};
use super::sequence::node_fingerprint;
use crate::error::Result;
use crate::session::Session;

/// Manifest nodes and catalogue blocks on their way into meta packs.
pub(super) struct MetaFrames {
    sink: PackSink,
    compressor: Compressor,
    fingerprint: FingerprintKind,
    verification: Verification,
    session: Arc<Session>,
    compare: Arc<Compare>,
    raw: Vec<u8>,
    lengths: Vec<u32>,
    fingerprints: Vec<Fingerprint>,
    /// The domain of the frame that is being filled.
    domain: Domain,
    stored: Vec<u8>,
    /// Nodes that are not in a sealed pack yet.
    pending: BTreeSet<Fingerprint>,
    full: Vec<OpenPack>,
}

/// Manifest frames hold at most this many raw bytes, so that opening a file reads little.
pub(crate) const MANIFEST_FRAME: usize = 32 << 10;

impl MetaFrames {
    pub fn new(
        sink: PackSink,
        fingerprint: FingerprintKind,
        verification: Verification,
        session: Arc<Session>,
        compare: Arc<Compare>,
    ) -> Self {
        Self {
            sink,
            compressor: Compressor::new(),
            fingerprint,
            verification,
            session,
            compare,
            raw: Vec::new(),
            lengths: Vec::new(),
            fingerprints: Vec::new(),
            domain: Domain::COMMON,
            stored: Vec::new(),
            pending: BTreeSet::new(),
            full: Vec::new(),
        }
    }

    fn write_frame(&mut self, kind: ChunkKind) -> Result<()> {
        if self.lengths.is_empty() {
            return Ok(());
        }
        let codec = self.compressor.compress(META_CODEC, &self.raw, &mut self.stored);
        let stored = if codec == Codec::None { &self.raw } else { &self.stored };
        let lengths = std::mem::take(&mut self.lengths);
        let (encoding, fingerprints) = (Encoding::plain(codec), &*self.fingerprints);
        let domain = self.domain;
        let frame = StoredFrame { domain, kind, encoding, lengths, fingerprints, stored, sequence: 0 };
        self.full.extend(self.sink.append(frame)?);
        self.raw.clear();
        self.fingerprints.clear();
        Ok(())
    }

    fn add(&mut self, kind: ChunkKind, fingerprint: Fingerprint, bytes: &[u8], limit: usize) -> Result<()> {
        if !self.raw.is_empty() && self.raw.len() + bytes.len() > limit {
            self.write_frame(kind)?;
        }
        self.raw.extend_from_slice(bytes);
        self.lengths.push(bytes.len() as u32);
        self.fingerprints.push(fingerprint);
        Ok(())
    }

    /// Appends catalogue blocks and hands out every pack that must be sealed before the commit, and
    /// the blocks' fingerprints.
    pub fn finish_packs(&mut self, blocks: &[Vec<u8>]) -> Result<(Vec<OpenPack>, Vec<Fingerprint>)> {
        self.enter(Domain::COMMON)?;
        self.write_frame(ChunkKind::Manifest)?;
        // The blocks of one commit in one pack, so that a crash leaves all of them or none.
        let bytes = blocks.iter().map(|block| block.len() as u64).sum();
        self.full.extend(self.sink.take_unless_room(bytes));
        let mut fingerprints = Vec::with_capacity(blocks.len());
        for block in blocks {
            let fingerprint = outrigger_offload::hash(self.fingerprint, block);
            self.compare.check(&fingerprint, block)?;
            self.compare.note(&fingerprint, block);
            self.add(ChunkKind::Catalogue, fingerprint, block, 0)?;
            self.write_frame(ChunkKind::Catalogue)?;
            fingerprints.push(fingerprint);
        }
        let mut packs = std::mem::take(&mut self.full);
        packs.extend(std::iter::from_fn(|| self.sink.take_open()));
        Ok((packs, fingerprints))
    }

    /// The nodes that follow are in frames of this domain.
    fn enter(&mut self, domain: Domain) -> Result<()> {
        if self.domain != domain {
            self.write_frame(ChunkKind::Manifest)?;
            self.domain = domain;
        }
        Ok(())
    }

    /// These are in a sealed pack, and in the index.
    pub fn sealed(&mut self, fingerprints: &[Fingerprint]) {
        for fingerprint in fingerprints {
            self.pending.remove(fingerprint);
        }
        self.compare.sealed(fingerprints);
    }
}

/// The stage's handle on [`MetaFrames`].
pub(super) struct SharedMetaFrames {
    frames: Arc<Mutex<MetaFrames>>,
    domain: Domain,
}

impl SharedMetaFrames {
    pub fn new(frames: Arc<Mutex<MetaFrames>>) -> Self {
        Self { frames, domain: Domain::COMMON }
    }
}

impl NodeSink for SharedMetaFrames {
    fn enter_domain(&mut self, domain: Domain) {
        self.domain = domain;
    }

    fn put_node(&mut self, node: &Node) -> Result<Fingerprint> {
        let mut frames = self.frames.lock().expect("no panic while held");
        let (mut fingerprint, bytes) = node_fingerprint(frames.fingerprint, node);
        if self.domain != Domain::COMMON {
            fingerprint = frames.verification.packs.domain_key(self.domain)?.name(&fingerprint);
        }
        frames.compare.check(&fingerprint, &bytes)?;
        if frames.pending.contains(&fingerprint) {
            return Ok(fingerprint);
        }
        let verification = &frames.verification;
        verification.compare(&mut std::iter::once(fingerprint))?;
        let mut place = None;
        frames.session.rely(0, |usable| {
            let usable = |pack| usable(pack) && verification.is_trusted(pack);
            place = verification.index.resolve(&fingerprint, usable)?;
            if let Some(found) = place
                && !verification.vouches(found)?
            {
                place = None;
            }
            Ok(place.into_iter().map(|place| place.pack))
        })?;
        if place.is_none() {
            frames.enter(self.domain)?;
            frames.add(ChunkKind::Manifest, fingerprint, &bytes, MANIFEST_FRAME)?;
            frames.compare.note(&fingerprint, &bytes);
            frames.pending.insert(fingerprint);
        }
        Ok(fingerprint)
    }
}
