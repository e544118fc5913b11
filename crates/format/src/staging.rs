//! The staging log's segments and records. `docs/format.md` has the byte maps, and explains why
//! replay converges. `segment.rs` has the segments' header.
//!
//! ```text
//! record header    0  4 magic   4 1 version   5 1 kind   6 2 reserved   8 4 fields' length   12 4 data's length
//!                 16  8 sequence   24 8 durable   32 8 time   40 8 checksum of fields and data   48 8 checksum of 0..48
//! ```
//!
//! A record has two checksums. The long one, over its data, can be computed before its sequence is
//! known. Only the short one is computed while the log is locked. In an encrypted segment a record has
//! two tags instead of the long one: see [`RECORD_TAG_LEN`].

use twox_hash::XxHash3_64;

use crate::{Cursor, FormatError};

mod operation;
mod segment;
#[cfg(test)]
mod tests;

pub use operation::Operation;
pub use segment::{SEALED_HEADER_LEN, SEGMENT_HEADER_LEN, SEGMENT_MAGIC, Seal, SegmentHeader};

const RECORD: &str = "staging record";
const VERSION: u8 = 1;

/// The beginning of every record, by which records after a broken one can be found.
pub const RECORD_MAGIC: [u8; 4] = *b"OLOG";
/// Bytes of a record's header.
pub const RECORD_HEADER_LEN: usize = 56;
/// Bytes of a tag of AES-256-GCM in an encrypted segment: one lies before a record's header, for header
/// and fields, and one behind the data, if there is any.
pub const RECORD_TAG_LEN: usize = 16;
/// The most bytes of fields and data together in one record.
pub const MAX_PAYLOAD_LEN: usize = 32 << 20;

/// XXH3-64 over `data`, seeded with that over `fields`. A quick hash suffices, as it is computed on
/// every write, and a record lives for seconds. The content gets its fingerprint when it is stored.
pub fn record_sum(fields: &[u8], data: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(fields), data)
}

/// A record's header, before its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The operation's number on disk.
    pub kind: u8,
    /// Bytes of the encoded fields.
    pub fields_len: u32,
    /// Bytes of data after them.
    pub data_len: u32,
    /// Rises by one from record to record.
    pub sequence: u64,
    /// Records up to this sequence were on disk when this one was appended.
    pub durable: u64,
    /// The time of appending, in nanoseconds since 1970. The operation sets it as the time of its
    /// changes.
    pub time: u64,
    /// Checksum of fields and data; 0 in an encrypted segment.
    pub payload_sum: u64,
}

impl RecordHeader {
    /// Bytes of header and fields.
    pub fn head_len(&self) -> usize {
        RECORD_HEADER_LEN + self.fields_len as usize
    }

    /// Bytes of the whole record, without tags.
    pub fn record_len(&self) -> usize {
        self.head_len() + self.data_len as usize
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        out[..4].copy_from_slice(&RECORD_MAGIC);
        out[4] = VERSION;
        out[5] = self.kind;
        out[8..12].copy_from_slice(&self.fields_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.data_len.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..32].copy_from_slice(&self.durable.to_le_bytes());
        out[32..40].copy_from_slice(&self.time.to_le_bytes());
        out[40..48].copy_from_slice(&self.payload_sum.to_le_bytes());
        let sum = record_sum(&out[..48], &[]);
        out[48..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header at the beginning of `bytes`, which may be longer.
    ///
    /// # Errors
    /// Any [`FormatError`]. The header's own checksum is verified before its lengths are used.
    /// [`Record::verify`] verifies fields and data.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(RECORD, bytes);
        if cursor.array::<4>()? != RECORD_MAGIC {
            return Err(FormatError::Magic { what: RECORD });
        }
        let (version, kind, _) = (cursor.u8()?, cursor.u8()?, cursor.u16()?);
        let (fields_len, data_len) = (cursor.u32()?, cursor.u32()?);
        let (sequence, durable) = (cursor.u64()?, cursor.u64()?);
        let time = cursor.u64()?;
        let (payload_sum, sum) = (cursor.u64()?, cursor.u64()?);
        if record_sum(&bytes[..48], &[]) != sum {
            return Err(FormatError::Checksum { what: RECORD });
        }
        if version != VERSION {
            return Err(FormatError::Newer { what: RECORD, version: version.into(), features: 0 });
        }
        let payload_len = u64::from(fields_len) + u64::from(data_len);
        if payload_len > MAX_PAYLOAD_LEN as u64 {
            return Err(cursor.range("length", payload_len));
        }
        // So every sequence is at least 1.
        if durable >= sequence {
            return Err(cursor.range("durable", durable));
        }
        Ok(Self { kind, fields_len, data_len, sequence, durable, time, payload_sum })
    }
}

/// A whole record, whose data is borrowed from the decoded bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Rises by one from record to record.
    pub sequence: u64,
    /// Records up to this sequence were on disk when this one was appended.
    pub durable: u64,
    /// The time of appending, in nanoseconds since 1970.
    pub time: u64,
    /// The operation.
    pub operation: Operation,
    /// The written bytes. Empty for all but [`Operation::Write`].
    pub data: &'a [u8],
    /// Bytes of the record before its data.
    pub head_len: usize,
}

impl<'a> Record<'a> {
    /// Decodes the record at the beginning of `bytes`, which may be longer and come from a plain
    /// segment.
    ///
    /// # Errors
    /// Any [`FormatError`]. Both checksums are verified.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        Self::decode_verified(Self::verify(bytes)?)
    }

    /// The bytes of the record at the beginning of `bytes`, which may be longer and come from a plain
    /// segment, if both checksums match: no power failure has torn it. It may still be invalid.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn verify(bytes: &'a [u8]) -> Result<&'a [u8], FormatError> {
        let header = RecordHeader::decode(bytes)?;
        let record = Cursor::new(RECORD, bytes).take(header.record_len())?;
        let (fields, data) = record[RECORD_HEADER_LEN..].split_at(header.fields_len as usize);
        if record_sum(fields, data) != header.payload_sum {
            return Err(FormatError::Checksum { what: RECORD });
        }
        Ok(record)
    }

    /// Decodes a record whose checksum or tags the caller has verified.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode_verified(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let header = RecordHeader::decode(bytes)?;
        let mut cursor = Cursor::new(RECORD, &bytes[RECORD_HEADER_LEN..]);
        let (fields, data) =
            (cursor.take(header.fields_len as usize)?, cursor.take(header.data_len as usize)?);
        let operation = Operation::decode(header.kind, fields)?;
        let makes_sense = match operation {
            Operation::Write { offset, .. } => {
                !data.is_empty() && offset.checked_add(data.len() as u64).is_some()
            }
            _ => data.is_empty(),
        };
        if !makes_sense {
            return Err(cursor.range("length of the data", data.len() as u64));
        }
        let (head_len, RecordHeader { sequence, durable, time, .. }) = (header.head_len(), header);
        Ok(Self { sequence, durable, time, operation, data, head_len })
    }

    /// Bytes of the whole record, without tags.
    pub fn encoded_len(&self) -> usize {
        self.head_len + self.data.len()
    }
}

/// A record whose place in the log is not known yet: its fields are encoded and its data is hashed.
///
/// ```
/// use outrigger_format::staging::{Operation, Prepared, Record};
///
/// let write = Operation::Write { inode: 7, offset: 4096 };
/// let prepared = Prepared::new(&write, b"data");
/// let mut bytes = prepared.head(1, 0, 1_700_000_000_000_000_000);
/// bytes.extend_from_slice(b"data");
/// let record = Record::decode(&bytes).unwrap();
/// assert_eq!((record.operation, record.data), (write, &b"data"[..]));
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Room for the header, then the fields.
    head: Vec<u8>,
    header: RecordHeader,
}

impl Prepared {
    /// Encodes the fields and hashes the data. The caller writes the data after [`Prepared::head`].
    ///
    /// # Panics
    /// If fields and data do not fit 32 bits. Writers refuse more than [`MAX_PAYLOAD_LEN`] before.
    pub fn new(operation: &Operation, data: &[u8]) -> Self {
        let mut prepared = Self::unsummed(operation, data.len());
        prepared.header.payload_sum = record_sum(&prepared.head[RECORD_HEADER_LEN..], data);
        prepared
    }

    /// Like [`Prepared::new`], for an encrypted segment: without the checksum of fields and data.
    ///
    /// # Panics
    /// As [`Prepared::new`].
    pub fn unsummed(operation: &Operation, data_len: usize) -> Self {
        let mut head = Vec::with_capacity(128);
        head.resize(RECORD_HEADER_LEN, 0);
        operation.encode(&mut head);
        let len = |bytes| u32::try_from(bytes).expect("a record is at most MAX_PAYLOAD_LEN long");
        let header = RecordHeader {
            kind: operation.kind(),
            fields_len: len(head.len() - RECORD_HEADER_LEN),
            data_len: len(data_len),
            sequence: 0,
            durable: 0,
            time: 0,
            payload_sum: 0,
        };
        Self { head, header }
    }

    /// Bytes of the whole record, without tags.
    pub fn record_len(&self) -> usize {
        self.header.record_len()
    }

    /// The record's bytes before its data, for this place in the log.
    pub fn head(self, sequence: u64, durable: u64, time: u64) -> Vec<u8> {
        let Self { mut head, header } = self;
        let header = RecordHeader { sequence, durable, time, ..header };
        head[..RECORD_HEADER_LEN].copy_from_slice(&header.encode());
        head
    }
}
