//! Catalogue blocks for commits outside the pipeline: snapshots, kept versions, a rewritten
//! catalogue, names that mounts have changed.

use outrigger_clock as clock;
use outrigger_format::catalogue::{BlockBuilder, Record};
use outrigger_format::{ChunkKind, Codec, CodecSpec, Encoding, PackKind};
use outrigger_offload::Compressor;

use super::packer::{OpenPack, PackSink, StoredFrame};
use crate::error::Result;
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
    let mut sink = PackSink::new(store, &store.meta, session.id(), PackKind::Meta);
    let time = clock::now_nanos();
    let (mut compressor, mut builder, mut packs) = (Compressor::new(), BlockBuilder::default(), Vec::new());
    let mut stored = Vec::new();
    let mut flush =
        |builder: &mut BlockBuilder, packs: &mut Vec<OpenPack>, sink: &mut PackSink| -> Result<()> {
            let block = builder.finish(sequence, time);
            let codec = compressor.compress(META_CODEC, &block, &mut stored);
            let fingerprint = outrigger_offload::hash(store.config.fingerprint, &block);
            packs.extend(sink.append(StoredFrame {
                kind: ChunkKind::Catalogue,
                encoding: Encoding::plain(codec),
                lengths: vec![block.len() as u32],
                fingerprints: &[fingerprint],
                stored: &stored,
                sequence: 0,
            })?);
            Ok(())
        };
    let mut was_reset = false;
    for record in records {
        let record = record?;
        was_reset |= record == Record::Reset;
        builder.push(&record);
        if builder.len() >= BLOCK_BYTES {
            flush(&mut builder, &mut packs, &mut sink)?;
        }
    }
    if was_reset {
        // The records may fill several packs, sealed one by one: only with the last one does the
        // reset count.
        builder.push(&Record::ResetEnd);
    }
    if !builder.is_empty() {
        flush(&mut builder, &mut packs, &mut sink)?;
    }
    packs.extend(sink.take_open());
    let mut ids = Vec::new();
    for pack in packs {
        let sealed = pack.seal(session)?;
        store.meta.packs_sealed(session.id(), std::slice::from_ref(&sealed.row))?;
        store.index.add_pack(sealed.row.id, &sealed.footer);
        session.own_pack(sealed.row.id);
        ids.push(sealed.row.id);
    }
    let commit = Commit { packs: ids, changes: Vec::new(), time };
    session.commit(0, &commit.packs, || store.meta.commit(session.id(), &commit))?;
    Ok(())
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
