//! Feeds arbitrary and damaged bytes to every decoder. It must not panic or return more values than
//! the input has bytes, and its result must encode to the same bytes. The same checks run under
//! cargo-fuzz (`fuzz/`).
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod every;

use outrigger_format::catalogue::{Attributes, BlockBuilder, FileKind, OtherTimes, Record, Time};
use outrigger_format::staging::{Operation, Prepared, Seal, SegmentHeader};
use outrigger_format::{
    ChunkKind, Codec, Encoding, Entry, Fingerprint, FingerprintKind, FooterBuilder, FrameHeader, Node,
    PackHeader, PackId, PackKind, ParityDescription, ParityMember, Root, StoreId, TRAILER_LEN, checksum,
};
use proptest::prelude::*;

/// A valid example of every record.
fn records(root: &Root) -> Vec<Record> {
    let attributes = Attributes {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1,
        gid: 2,
        mtime: Time { secs: -1, nanos: 2 },
        rdev: 0,
        target: b"where".to_vec(),
        xattrs: vec![(b"user.x".to_vec(), b"y".to_vec())],
        times: None,
    };
    let times =
        OtherTimes { atime: Time { secs: 1, nanos: 999_999_999 }, ctime: Time { secs: -2, nanos: 0 } };
    let timed = Attributes { times: Some(times), ..attributes.clone() };
    let (name, root) = (b"name".to_vec(), root.clone());
    vec![
        Record::Upsert {
            inode: 9,
            parent: 1,
            name: name.clone(),
            attributes,
            root: root.clone(),
            replace: true,
        },
        Record::Link { parent: 1, name: b"l".to_vec(), inode: 9 },
        Record::Unlink { parent: 1, name: name.clone() },
        Record::Rename { parent: 1, name: name.clone(), new_parent: 2, new_name: b"n".to_vec() },
        Record::Snapshot { name: name.clone(), time: 5, tags: vec![b"t".to_vec()] },
        Record::Tags { name: name.clone(), tags: vec![b"t".to_vec()] },
        Record::Forget { name: name.clone() },
        Record::Name { parent: 1, name: name.clone(), inode: Some(9) },
        Record::Name { parent: 1, name, inode: None },
        Record::Node { inode: 9, parent: 1, attributes: timed.clone(), root: root.clone(), keep: false },
        Record::Node { inode: 9, parent: 1, attributes: timed, root: root.clone(), keep: true },
        Record::Reset,
        Record::Version { inode: 9, number: 1, time: 2, mtime: Time::default(), root },
        Record::Policy { inode: 1, key: b"codec".to_vec(), value: Some(b"lz4".to_vec()) },
        Record::ResetEnd,
        Record::After { blocks: vec![(300, Fingerprint([4; 32]))] },
        Record::Heads { is_proven: true, heads: vec![Fingerprint([4; 32])] },
        Record::Seal { mac: [5; 32] },
    ]
}

/// A valid example of every structure.
fn examples() -> Vec<Vec<u8>> {
    let fingerprint = |byte: u8| Fingerprint([byte; 32]);
    let kind = FingerprintKind::Blake3;
    let header = PackHeader {
        kind: PackKind::Data,
        fingerprint: kind,
        id: PackId(7),
        store: StoreId([3; 16]),
        mark: 9,
    };
    let frame = FrameHeader {
        kind: ChunkKind::Data,
        encoding: Encoding::plain(Codec::Zstd),
        stored_len: 5,
        stored_sum: checksum(&[b"bytes"]),
        lengths: vec![1, 20, 300, 4000],
    };
    let mut frame_bytes = Vec::new();
    frame.encode(&mut frame_bytes);
    frame_bytes.extend_from_slice(b"bytes");
    let mut footer = FooterBuilder::default();
    footer.push(64, ChunkKind::Data, &[fingerprint(5), fingerprint(2)]);
    footer.push(900, ChunkKind::Data, &[fingerprint(9)]);
    let (_, footer_bytes) = footer.finish(PackId(7), 64);
    let entries = vec![
        Entry::Chunk { fingerprint: fingerprint(1), len: 10 },
        Entry::Hole { len: 1 << 40 },
        Entry::Chunk { fingerprint: fingerprint(2), len: 0x7fff_ffff },
    ];
    let leaf = Node::Leaf(entries.clone());
    let inner = Node::Inner { level: 7, children: vec![(fingerprint(1), 1), (fingerprint(2), 1 << 62)] };
    let root = Root::Inline(entries);
    let mut block = BlockBuilder::default();
    records(&root).iter().for_each(|record| block.push(record));
    let member = |id| ParityMember { pack: PackId(id), len: 60, hash: [id as u8; 32] };
    let parity = ParityDescription {
        store: StoreId([3; 16]),
        group: 5,
        files: 2,
        shard: 1,
        hash: [6; 32],
        members: vec![member(7), member(8)],
    };
    vec![
        header.encode().to_vec(),
        frame_bytes,
        footer_bytes[..footer_bytes.len() - TRAILER_LEN].to_vec(),
        [header.encode().to_vec(), footer_bytes].concat(),
        leaf.encode(),
        inner.encode(),
        root.encode(),
        Root::Tree { level: 3, len: 1 << 50, fingerprint: fingerprint(4) }.encode(),
        block.finish(11, 12),
        SegmentHeader { store: StoreId([3; 16]), number: 1, first: 1, seal: None }.encode(),
        SegmentHeader {
            store: StoreId([3; 16]),
            number: 1,
            first: 1,
            seal: Some(Seal { salt: [4; 32], mac: [5; 32] }),
        }
        .encode(),
        [&Prepared::new(&Operation::Write { inode: 7, offset: 300 }, b"data").head(2, 1, 3), &b"data"[..]]
            .concat(),
        Prepared::new(&Operation::Destaged { inode: 7, sequence: 2, root: root.clone() }, b"").head(9, 8, 7),
        [&[0; 64][..], &parity.encode()].concat(),
        b"gear32:4K/16K/64K".to_vec(),
        b"lbfs-sha1:2K/8K/64K".to_vec(),
        b"pmd-sha256".to_vec(),
        b"zstd:-7".to_vec(),
        b"18446744073709551615T".to_vec(),
    ]
}

#[test]
fn every_cut_and_flip_of_the_examples() {
    for example in examples() {
        every::all(&example);
        for cut in 0..example.len() {
            every::all(&example[..cut]);
        }
        let mut bytes = example.clone();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(1)] {
                let before = std::mem::replace(&mut bytes[at], value);
                every::all(&bytes);
                bytes[at] = before;
            }
        }
        // Overwrites four bytes at once, to hit the counts and lengths that would make a careless
        // decoder allocate.
        for at in 0..bytes.len().saturating_sub(3) {
            let before = bytes[at..at + 4].to_vec();
            bytes[at..at + 4].fill(0xff);
            every::all(&bytes);
            bytes[at..at + 4].copy_from_slice(&before);
        }
    }
}

#[test]
fn the_examples_are_good() {
    use outrigger_format::catalogue::Block;
    use outrigger_format::{Footer, Trailer};
    let examples = examples();
    assert!(PackHeader::decode(&examples[0]).is_ok() && FrameHeader::decode(&examples[1]).is_ok());
    assert!(Footer::decode(&examples[2], 2000).is_ok());
    let pack = &examples[3];
    assert!(Trailer::decode(&pack[pack.len() - TRAILER_LEN..], pack.len() as u64).is_ok());
    assert!(Node::decode_any(&examples[4]).is_ok() && Node::decode_any(&examples[5]).is_ok());
    assert!(Root::decode(&examples[6]).is_ok() && Root::decode(&examples[7]).is_ok());
    assert_eq!(Block::decode(&examples[8]).unwrap().records.len(), 18);
}

proptest! {
    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        every::all(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_magic(magic in 0usize..8, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let magics: [&[u8]; 8] = [
            b"OUTRPACK\x01\0", b"OFRM\x01", b"OFTR", b"ON\x01", b"OCAT\x01\0", b"OUTREND1", b"OUTRSTAG\x01\0", b"OLOG\x01",
        ];
        every::all(&[magics[magic], &bytes].concat());
    }

    #[test]
    fn spliced_examples(one in 0usize..15, other in 0usize..15, at in 0usize..800, from in 0usize..800) {
        let examples = examples();
        let (one, other) = (&examples[one], &examples[other]);
        every::all(&[&one[..at.min(one.len())], &other[from.min(other.len())..]].concat());
    }
}
