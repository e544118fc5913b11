//! Catalogue blocks: names, attributes and roots in packs, to rebuild a lost database.
//!
//! `docs/format.md` has the byte map. A block is a list of [`Record`]s, which `recover` replays.
//! Blocks follow each other by their sequence.

mod attributes;
mod record;

pub use attributes::{
    Attributes, DOMAIN_XATTR, FileKind, OtherTimes, Time, Xattrs, decode_xattrs, domain_in, encode_xattrs,
};
pub use record::Record;

use crate::{Cursor, FormatError, Put};

const WHAT: &str = "catalogue block";
const VERSION: u16 = 1;

/// A decoded block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Blocks are replayed in this order.
    pub sequence: u64,
    /// When it was committed, nanoseconds since 1970.
    pub time: u64,
    /// The changes, in order.
    pub records: Vec<Record>,
}

/// Builds a block record by record.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    records: u32,
    body: Vec<u8>,
}

impl BlockBuilder {
    /// Appends a record.
    pub fn push(&mut self, record: &Record) {
        record.encode(&mut self.body);
        self.records += 1;
    }

    /// Bytes of the block so far.
    pub fn len(&self) -> usize {
        32 + self.body.len()
    }

    /// True when nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Appends a seal, which `mac` makes of the sequence and all records so far: see
    /// [`sealed_bytes`].
    pub fn seal(&mut self, sequence: u64, mac: impl FnOnce(&[u8]) -> [u8; 32]) {
        let mac = mac(&[&sequence.to_le_bytes(), self.body.as_slice()].concat());
        self.push(&Record::Seal { mac });
    }

    /// The block's bytes; the builder is empty afterwards.
    pub fn finish(&mut self, sequence: u64, time: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(b"OCAT");
        out.put_u16(VERSION);
        out.put_u16(0);
        out.put_u64(sequence);
        out.put_u64(time);
        out.put_u32(self.records);
        out.put_u32(0);
        out.append(&mut self.body);
        self.records = 0;
        out
    }
}

/// Takes the seal off the end of a block's `bytes`. Returns the bytes that it is of, which are the
/// sequence and the records before it, and the seal. `None` if the block has no seal.
pub fn sealed_bytes(bytes: &[u8]) -> Option<(Vec<u8>, [u8; 32])> {
    let (rest, mac) = bytes.split_last_chunk::<32>()?;
    let (&kind, rest) = rest.split_last()?;
    let is_sealed = kind == record::SEAL
        && Block::decode(bytes).is_ok_and(|block| matches!(block.records.last(), Some(Record::Seal { .. })));
    is_sealed.then(|| ([&rest[8..16], &rest[32..]].concat(), *mac))
}

impl Block {
    /// Decodes a block that fills `bytes`.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<4>()? != *b"OCAT" {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = cursor.u16()?;
        if version != VERSION {
            return Err(FormatError::Newer { what: WHAT, version: version.into(), features: 0 });
        }
        cursor.u16()?;
        let (sequence, time, count) = (cursor.u64()?, cursor.u64()?, cursor.u32()?);
        cursor.u32()?;
        let mut records = Vec::new();
        for _ in 0..count {
            records.push(Record::decode(&mut cursor)?);
        }
        if !cursor.is_empty() {
            return Err(cursor.range("trailing bytes", cursor.rest().len() as u64));
        }
        Ok(Self { sequence, time, records })
    }
}

#[cfg(test)]
mod tests {
    use super::attributes::tests::attributes;
    use super::*;
    use crate::{Entry, Fingerprint, Root};

    #[test]
    fn blocks_read_back() {
        let root = Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint([4; 32]), len: 9 }]);
        let mut records = vec![
            Record::Reset,
            Record::Unlink { parent: 1, name: b"a\nb".to_vec() },
            Record::Rename { parent: 1, name: b"x".to_vec(), new_parent: 300, new_name: b"y".to_vec() },
            Record::Snapshot { name: b"s".to_vec(), time: 1 << 60, tags: vec![b"t".to_vec()] },
            Record::Tags { name: b"s".to_vec(), tags: vec![b"t".to_vec(), b"u".to_vec()] },
            Record::Forget { name: b"s".to_vec() },
            Record::Version { inode: 5, number: 2, time: 3, mtime: Time::default(), root: root.clone() },
        ];
        for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink, FileKind::CharDevice] {
            let (attributes, root) = (attributes(kind), root.clone());
            records.push(Record::Node {
                inode: 8,
                parent: 300,
                attributes: attributes.clone(),
                root: root.clone(),
                keep: kind == FileKind::File,
            });
            records.push(Record::Upsert {
                inode: 7,
                parent: 1,
                name: b"n\xfe".to_vec(),
                attributes,
                root,
                replace: kind == FileKind::File,
            });
        }
        for value in [None, Some(b"zstd:3".to_vec())] {
            records.push(Record::Policy { inode: 9, key: b"codec".to_vec(), value });
        }
        records.push(Record::ResetEnd);
        for inode in [None, Some(1), Some(u64::MAX)] {
            records.push(Record::Name { parent: 9, name: b"n\xfe".to_vec(), inode });
        }
        records.push(Record::Link { parent: 9, name: b"l".to_vec(), inode: 7 });
        let blocks = vec![(1, Fingerprint([5; 32])), (u64::MAX, Fingerprint([6; 32]))];
        records.push(Record::After { blocks });
        for is_proven in [false, true] {
            records.push(Record::Heads { is_proven, heads: vec![Fingerprint([7; 32]); 2] });
        }
        let mut builder = BlockBuilder::default();
        records.iter().for_each(|record| builder.push(record));
        let bytes = builder.finish(42, 43);
        assert_eq!(Block::decode(&bytes), Ok(Block { sequence: 42, time: 43, records }));
        for cut in 0..bytes.len() {
            assert!(Block::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_seal_is_of_the_sequence_and_the_records_before_it() {
        let mut builder = BlockBuilder::default();
        builder.push(&Record::Reset);
        assert_eq!(sealed_bytes(&builder.finish(7, 8)), None);
        builder.push(&Record::Reset);
        let mut of = Vec::new();
        builder.seal(7, |bytes| {
            of = bytes.to_vec();
            [9; 32]
        });
        assert_eq!(sealed_bytes(&builder.finish(7, 8)), Some((of.clone(), [9; 32])));
        assert_eq!(of, [7, 0, 0, 0, 0, 0, 0, 0, 6]);
    }
}
