//! Checks that every decoder must pass for any bytes. The tests beside it and the fuzz targets
//! under `fuzz/` share it.

#![allow(dead_code, reason = "each fuzz target uses one of these")]

use outrigger_format::catalogue::{Block, BlockBuilder};
use outrigger_format::staging::{
    Prepared, RECORD_HEADER_LEN, Record, RecordHeader, SEALED_HEADER_LEN, SEGMENT_HEADER_LEN, SegmentHeader,
    record_sum,
};
use outrigger_format::{
    ChunkerSpec, CodecChoice, CodecSpec, FRAME_HEADER_LEN, Fingerprint, FingerprintKind, Footer, FrameHeader,
    Node, PACK_HEADER_LEN, PackHeader, PackId, ParityDescription, Root, TRAILER_LEN, Trailer, checksum,
    parse_size, print_size,
};

/// Writes the checksum of `parts` at `at`, so that the decoder reads what it guards.
fn with_checksum(bytes: &[u8], at: usize, parts: &[&[u8]]) -> Vec<u8> {
    let mut fixed = bytes.to_vec();
    fixed[at..at + 8].copy_from_slice(&checksum(parts).to_le_bytes());
    fixed
}

/// Pack headers, unchanged and with a correct checksum.
pub fn pack_header(bytes: &[u8]) {
    pack_header_as_is(bytes);
    if bytes.len() >= PACK_HEADER_LEN {
        pack_header_as_is(&with_checksum(bytes, 56, &[&bytes[..56]]));
    }
}

/// Reserved fields are not kept, so the decoded values are compared, not the bytes.
fn pack_header_as_is(bytes: &[u8]) {
    if let Ok(header) = PackHeader::decode(bytes) {
        assert_eq!(PackHeader::decode(&header.encode()), Ok(header));
    }
}

/// Frame headers, unchanged, and with a count of chunks that fits and a correct checksum.
pub fn frame_header(bytes: &[u8]) {
    frame_header_as_is(bytes);
    if bytes.len() > FRAME_HEADER_LEN {
        let count = (bytes.len() - FRAME_HEADER_LEN) / 4;
        let mut bytes = bytes.to_vec();
        bytes[16..20].copy_from_slice(&(count as u32).to_le_bytes());
        let table = &bytes[FRAME_HEADER_LEN..FRAME_HEADER_LEN + 4 * count];
        frame_header_as_is(&with_checksum(&bytes, 32, &[&bytes[..32], table]));
    }
}

fn frame_header_as_is(bytes: &[u8]) {
    if let Ok(header) = FrameHeader::decode(bytes) {
        let mut again = Vec::new();
        header.encode(&mut again);
        assert_eq!(FrameHeader::decode(&again), Ok(header.clone()));
        assert!(header.encoded_len() <= bytes.len(), "no more lengths than bytes");
        let _ = header.verify_stored(&bytes[header.encoded_len()..]);
    }
}

/// Footers, as if their checksum matched. Decoding checks everything that lookups rely on.
pub fn footer(bytes: &[u8]) {
    if let Ok(footer) = Footer::decode(bytes, u32::MAX) {
        assert!(footer.memory() <= bytes.len(), "no more entries than bytes");
        for (slot, fingerprint) in (0u32..).zip(footer.fingerprints()) {
            assert_eq!(footer.find(fingerprint), Some(slot));
            let (frame, position) = footer.position(slot).expect("every slot has a place");
            assert!(position < footer.frames()[frame as usize].chunks);
            assert!(!footer.frame_range(frame).expect("its frame is there").is_empty());
        }
    }
}

/// Trailers, at the end of a possible pack, unchanged and with a correct checksum.
pub fn trailer(bytes: &[u8]) {
    trailer_as_is(bytes);
    if let Some(start) = bytes.len().checked_sub(TRAILER_LEN) {
        trailer_as_is(&with_checksum(bytes, start + 40, &[&bytes[start..start + 40]]));
    }
}

fn trailer_as_is(bytes: &[u8]) {
    let Some(start) = bytes.len().checked_sub(TRAILER_LEN) else { return };
    if let Ok(trailer) = Trailer::decode(&bytes[start..], bytes.len() as u64) {
        assert_eq!(trailer.encode(), bytes[start..]);
        let end = trailer.footer_offset as usize + trailer.footer_len as usize;
        let _ = trailer.decode_footer(&bytes[trailer.footer_offset as usize..end]);
    }
}

/// Descriptions of parity files, at the end of a possible file, unchanged and with a correct checksum.
pub fn parity(bytes: &[u8]) {
    let last = |at: usize| bytes.len().checked_sub(at);
    let Some((end, sum)) = last(16).zip(last(8)) else { return };
    let len = u32::from_le_bytes(bytes[end..end + 4].try_into().expect("four bytes")) as usize;
    let Some(start) = end.checked_sub(len).filter(|_| len >= 88) else { return };
    parity_as_is(bytes, start);
    parity_as_is(&with_checksum(bytes, sum, &[&bytes[start..sum]]), start);
}

fn parity_as_is(bytes: &[u8], start: usize) {
    let group = u64::from_le_bytes(bytes[start + 24..start + 32].try_into().expect("eight bytes"));
    let id = PackId::of_parity(group, bytes[start + 12]);
    let len = bytes.len() as u64;
    if let Ok(about) = ParityDescription::decode(bytes, len, id) {
        let encoded = about.encode();
        let again = ParityDescription::decode(&encoded, about.parity_len() + encoded.len() as u64, id);
        assert_eq!(again, Ok(about));
    }
}

/// Manifest nodes, all bytes of which are kept.
pub fn node(bytes: &[u8]) {
    if let Ok(node) = Node::decode_any(bytes) {
        assert_eq!(node.encode(), bytes);
        let (level, len) = (node.level(), node.total_len().expect("it was summed"));
        assert_eq!(Node::decode(bytes, level, len), Ok(node));
        assert!(Node::decode(bytes, level, len ^ 1).is_err() && Node::decode(bytes, level ^ 1, len).is_err());
    }
}

/// Manifest roots, all bytes of which are kept.
pub fn root(bytes: &[u8]) {
    if let Ok(root) = Root::decode(bytes) {
        assert_eq!(root.encode(), bytes);
        assert_eq!(root.is_empty(), root == Root::Empty);
    }
}

/// Catalogue blocks.
pub fn block(bytes: &[u8]) {
    if let Ok(block) = Block::decode(bytes) {
        assert!(block.records.len() <= bytes.len(), "no more records than bytes");
        let mut builder = BlockBuilder::default();
        block.records.iter().for_each(|record| builder.push(record));
        assert_eq!(Block::decode(&builder.finish(block.sequence, block.time)), Ok(block));
    }
}

/// Segment headers and records of the staging log, unchanged, and with lengths that fit and correct
/// checksums.
pub fn staging_record(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }
    if bytes.len() >= SEGMENT_HEADER_LEN {
        let fixed = with_checksum(bytes, 56, &[&bytes[..56]]);
        if let Ok(header) = SegmentHeader::decode(&fixed) {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }
    }
    if bytes.len() >= SEALED_HEADER_LEN {
        let fixed = with_checksum(bytes, 56, &[&bytes[..56], &bytes[64..SEALED_HEADER_LEN]]);
        if let Ok(header) = SegmentHeader::decode(&fixed) {
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }
    }
    record_as_is(bytes);
    if bytes.len() >= RECORD_HEADER_LEN {
        let (head, payload) = bytes.split_at(RECORD_HEADER_LEN);
        // A write's fields are the first bytes after the header. The fields of other operations are
        // all of them.
        let fields = if head[5] == 7 { payload.len().min(usize::from(head[8])) } else { payload.len() };
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let header = RecordHeader {
            kind: head[5],
            fields_len: fields as u32,
            data_len: (payload.len() - fields) as u32,
            sequence: number(16),
            durable: number(24),
            time: number(32),
            payload_sum: record_sum(&payload[..fields], &payload[fields..]),
        };
        record_as_is(&[&header.encode()[..], payload].concat());
    }
}

fn record_as_is(bytes: &[u8]) {
    if let Ok(record) = Record::decode(bytes) {
        assert!(record.encoded_len() <= bytes.len(), "no more data than bytes");
        let mut again =
            Prepared::new(&record.operation, record.data).head(record.sequence, record.durable, record.time);
        let head_len = again.len();
        again.extend_from_slice(record.data);
        assert_eq!(Record::decode(&again), Ok(Record { head_len, ..record }));
    }
}

/// Text from users: chunkers, codecs, sizes, fingerprints.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(spec) = ChunkerSpec::parse(text) {
        assert_eq!(ChunkerSpec::parse(&spec.to_string()), Ok(spec));
    }
    if let Ok(spec) = CodecSpec::parse(text) {
        assert_eq!(CodecSpec::parse(&spec.to_string()), Ok(spec));
    }
    if let Ok(choice) = CodecChoice::parse(text) {
        assert_eq!(CodecChoice::parse(&choice.to_string()), Ok(choice));
    }
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&print_size(size)), Ok(size));
    }
    if let Ok(fingerprint) = Fingerprint::parse(text) {
        assert_eq!(Fingerprint::parse(&fingerprint.to_string()), Ok(fingerprint));
    }
    if let Ok(kind) = FingerprintKind::parse(text) {
        assert_eq!(kind.name(), text);
    }
}

/// All of them.
pub fn all(bytes: &[u8]) {
    for decoder in
        [pack_header, frame_header, footer, trailer, parity, node, root, block, staging_record, text]
    {
        decoder(bytes);
    }
}
