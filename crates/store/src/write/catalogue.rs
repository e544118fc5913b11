//! Catalogue blocks for commits outside the pipeline: snapshots, kept versions, a rewritten
//! catalogue, names that mounts have changed.

use outrigger_clock as clock;
use outrigger_format::catalogue::{BlockBuilder, Record};
use outrigger_format::{ChunkKind, Codec, CodecSpec, Domain, Encoding, Fingerprint, PackKind};
use outrigger_offload::Compressor;

use super::packer::{OpenPack, PackSink, StoredFrame};
use crate::error::Result;
use crate::links::{self, Link};
use crate::meta::Commit;
use crate::publish::{self, Touched};
use crate::session::Session;
use crate::store::Store;

/// Blocks are cut at about this size.
pub(super) const BLOCK_BYTES: usize = 256 << 10;
/// How meta frames are compressed.
pub(crate) const META_CODEC: CodecSpec = CodecSpec { codec: Codec::Zstd, level: 3 };

/// Makes `records` durable as catalogue blocks in a pack of their own, in this order, and the pack
/// live. Call it before the database transaction that it describes: a record that is only in the
/// catalogue was about to be acknowledged. Returns the sequence.
///
/// # Errors
/// Those of the store; nothing has changed then, except for a pack that will be swept.
pub fn append_records(
    store: &Store,
    session: &Session,
    records: impl Iterator<Item = Result<Record>>,
) -> Result<u64> {
    let sequence = store.meta.next_sequence()?;
    append_at(store, session, sequence, records)?;
    Ok(sequence)
}

/// Like [`append_records`], with a sequence that was taken before.
///
/// # Errors
/// Those of [`append_records`].
pub(crate) fn append_at(
    store: &Store,
    session: &Session,
    sequence: u64,
    records: impl Iterator<Item = Result<Record>>,
) -> Result<()> {
    let named = store.links.named(&*store.meta, &store.index)?;
    let mut blocks = Blocks::new(store, session, sequence);
    let mut reset = None;
    let mut records = records.peekable();
    // Without records there is no block.
    if let Some(after) = records.peek().and_then(|_| links::after(&named)) {
        blocks.push(&after)?;
    }
    for record in records {
        match record? {
            // They go with the end.
            heads @ Record::Heads { .. } => reset.get_or_insert_with(Vec::new).push(heads),
            Record::Reset => {
                reset.get_or_insert_with(Vec::new);
                blocks.push(&Record::Reset)?;
            }
            record => blocks.push(&record)?,
        }
    }
    if let Some(heads) = reset {
        blocks.end_reset(heads)?;
    }
    blocks.commit(&named)
}

/// Appends a block that names these: a mark. Returns its sequence and its fingerprint.
///
/// # Errors
/// Those of [`append_records`].
pub(crate) fn append_mark(store: &Store, session: &Session, named: &[Link]) -> Result<(u64, Fingerprint)> {
    // So that it takes the place of what other processes have left.
    store.links.named(&*store.meta, &store.index)?;
    let sequence = store.meta.next_sequence()?;
    let mut blocks = Blocks::new(store, session, sequence);
    blocks.builder.push(&Record::After { blocks: named.to_vec() });
    blocks.seal();
    blocks.flush()?;
    let mark = blocks.fingerprints[0];
    blocks.commit(named)?;
    Ok((sequence, mark))
}

/// Blocks of one sequence, on their way into packs of their own.
struct Blocks<'a> {
    store: &'a Store,
    session: &'a Session,
    sequence: u64,
    time: u64,
    sink: PackSink,
    compressor: Compressor,
    builder: BlockBuilder,
    stored: Vec<u8>,
    packs: Vec<OpenPack>,
    fingerprints: Vec<Fingerprint>,
    /// The first of them that no other one names.
    first_unnamed: usize,
}

impl<'a> Blocks<'a> {
    fn new(store: &'a Store, session: &'a Session, sequence: u64) -> Self {
        Self {
            store,
            session,
            sequence,
            time: clock::now_nanos(),
            sink: PackSink::new(store, &store.meta, session.id(), PackKind::Meta),
            compressor: Compressor::new(),
            builder: BlockBuilder::default(),
            stored: Vec::new(),
            packs: Vec::new(),
            fingerprints: Vec::new(),
            first_unnamed: 0,
        }
    }

    fn push(&mut self, record: &Record) -> Result<()> {
        self.builder.push(record);
        if self.builder.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let block = self.builder.finish(self.sequence, self.time);
        let codec = self.compressor.compress(META_CODEC, &block, &mut self.stored);
        let fingerprint = outrigger_offload::hash(self.store.config.fingerprint, &block);
        self.packs.extend(self.sink.append(StoredFrame {
            domain: Domain::COMMON,
            kind: ChunkKind::Catalogue,
            encoding: Encoding::plain(codec),
            lengths: vec![block.len() as u32],
            fingerprints: &[fingerprint],
            stored: &self.stored,
            sequence: 0,
        })?);
        self.fingerprints.push(fingerprint);
        Ok(())
    }

    /// Ends a reset, whose records may fill several packs, sealed one by one: only with the last
    /// one it counts. The last block names the others.
    fn end_reset(&mut self, heads: Vec<Record>) -> Result<()> {
        self.flush()?;
        self.first_unnamed = self.fingerprints.len();
        let blocks: Vec<_> = self.fingerprints.iter().map(|&block| (self.sequence, block)).collect();
        let records = links::after(&blocks).into_iter().chain(heads).chain([Record::ResetEnd]);
        records.for_each(|record| self.builder.push(&record));
        self.seal();
        self.flush()
    }

    /// Seals the block, if the store is encrypted and this host reads contents.
    fn seal(&mut self) {
        if let Some(key) = self.store.keys().and_then(|keys| keys.content_keys()) {
            self.builder.seal(self.sequence, |bytes| key.seal_of(bytes));
        }
    }

    /// Seals the packs, and makes them live.
    fn commit(mut self, named: &[Link]) -> Result<()> {
        self.flush()?;
        self.packs.extend(self.sink.take_open());
        let Self { store, session, .. } = self;
        let mut ids = Vec::new();
        for pack in self.packs {
            let sealed = pack.seal(session)?;
            store.meta.packs_sealed(session.id(), std::slice::from_ref(&sealed.row))?;
            store.index.add_pack(sealed.row.id, &sealed.footer);
            session.own_pack(sealed.row.id);
            ids.push(sealed.row.id);
        }
        let commit = Commit { packs: ids, changes: Vec::new(), time: self.time };
        session.commit(0, &commit.packs, || store.meta.commit(session.id(), &commit))?;
        store.links.committed(named, self.sequence, &self.fingerprints[self.first_unnamed..]);
        Ok(())
    }
}

/// Publishes the present state of `touched` to the catalogue. `before` runs between reading that
/// state and writing the block, and makes durable what the block refers to. If commits publish by
/// themselves, only `before` runs.
///
/// # Errors
/// Those of the store and of `before`; then nothing was published.
pub fn publish_catalogue(
    store: &Store,
    session: &Session,
    touched: &Touched,
    before: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some((sequence, records)) = publish::read(&*store.meta, session.id(), touched)? else {
        return before();
    };
    before()?;
    append_at(store, session, sequence, records.into_iter().map(Ok))
}
