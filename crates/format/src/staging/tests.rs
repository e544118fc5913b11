use proptest::prelude::*;

use super::*;
use crate::catalogue::{Attributes, FileKind, OtherTimes, Time};
use crate::{Entry, Fingerprint, Root, StoreId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn whole(operation: &Operation, data: &[u8], sequence: u64, durable: u64) -> Vec<u8> {
    let prepared = Prepared::new(operation, data);
    let len = prepared.record_len();
    let mut bytes = prepared.head(sequence, durable, 5);
    bytes.extend_from_slice(data);
    assert_eq!(bytes.len(), len);
    bytes
}

#[test]
fn golden_bytes() {
    let header = SegmentHeader { store: StoreId(*b"0123456789abcdef"), number: 2, first: 1000, seal: None };
    let write = Operation::Write { inode: 300, offset: 4096 };
    let attributes = Attributes {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1,
        gid: 2,
        mtime: Time { secs: -1, nanos: 2 },
        rdev: 0,
        target: b"to".to_vec(),
        xattrs: vec![(b"user.x".to_vec(), b"y".to_vec())],
        times: None,
    };
    let create = Operation::Create { parent: 1, name: b"name".to_vec(), inode: 300, attributes };
    let bytes =
        [hex(&header.encode()), hex(&whole(&write, b"data", 1000, 7)), hex(&whole(&create, b"", 1001, 1000))];
    assert_eq!(bytes, GOLDEN);
}

const GOLDEN: [&str; 3] = [
    "4f555452535441470100000000000000020000000000000030313233343536373839616263646566e803000000000000\
     0000000000000000b632593c45a61cfa",
    "4f4c4f47010700000400000004000000e803000000000000070000000000000005000000000000\
     0034f0929351bee056f06785981e6b52a5ac02802064617461",
    "4f4c4f47010100001c00000000000000e903000000000000e80300000000000005000000000000\
     008d86df691e05afb0187b9e8d0c673ce501046e616d65ac0202ff030102010202746f0106757365722e780179",
];

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    let header = SegmentHeader { store: StoreId([3; 16]), number: 1, first: 1, seal: None };
    let sealed = SegmentHeader { seal: Some(Seal { salt: [4; 32], mac: [5; 32] }), ..header };
    let (header, sealed) = (header.encode(), sealed.encode());
    let record = whole(&Operation::Write { inode: 7, offset: 9 }, b"some data", 2, 1);
    let decodes = |bytes: &[u8]| (SegmentHeader::decode(bytes).is_ok(), Record::decode(bytes).is_ok());
    assert_eq!((decodes(&header), decodes(&record)), ((true, false), (false, true)));
    assert_eq!((sealed.len(), decodes(&sealed)), (SEALED_HEADER_LEN, (true, false)));
    for original in [&header, &sealed, &record] {
        for cut in 0..original.len() {
            assert_eq!(decodes(&original[..cut]), (false, false), "cut at {cut}");
        }
        let mut bytes = original.to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decodes(&bytes), (false, false), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_record_without_its_checksum_decodes_where_that_was_verified_otherwise() {
    let write = Operation::Write { inode: 7, offset: 9 };
    let prepared = Prepared::unsummed(&write, 4);
    assert_eq!(prepared.record_len(), Prepared::new(&write, b"data").record_len());
    let mut bytes = prepared.head(2, 1, 3);
    bytes.extend_from_slice(b"data");
    let record = Record::decode_verified(&bytes).unwrap();
    assert_eq!((record.operation, record.data), (write, &b"data"[..]));
    assert_eq!(Record::decode(&bytes), Err(FormatError::Checksum { what: "staging record" }));
    assert!(Record::decode_verified(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn what_no_writer_produces_is_refused() {
    let refused = |operation: &Operation, data: &[u8], sequence, durable| {
        assert!(Record::decode(&whole(operation, data, sequence, durable)).is_err(), "{operation:?}");
    };
    refused(&Operation::Write { inode: 1, offset: 0 }, b"", 1, 0);
    refused(&Operation::Forget { inode: 1 }, b"data", 1, 0);
    refused(&Operation::Forget { inode: 1 }, b"", 5, 5);
    refused(&Operation::Forget { inode: 1 }, b"", 0, 0);
    refused(&Operation::Zero { inode: 1, offset: 0, len: 0 }, b"", 1, 0);
    refused(&Operation::Zero { inode: 1, offset: u64::MAX, len: 1 }, b"", 1, 0);
    let root = Root::Inline(vec![Entry::Hole { len: 10 }]);
    let clone = |from_offset, len| Operation::Clone {
        from: 1,
        root: root.clone(),
        from_offset,
        inode: 2,
        offset: 0,
        len,
    };
    assert!(Record::decode(&whole(&clone(4, 6), b"", 1, 0)).is_ok());
    refused(&clone(4, 7), b"", 1, 0);
    assert!(Operation::decode(14, &[1]).is_err() && Operation::decode(13, &[1, 1]).is_err());
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn root() -> impl Strategy<Value = Root> {
    prop_oneof![
        Just(Root::Empty),
        (1u64..1 << 50).prop_map(|len| Root::Inline(vec![Entry::Hole { len }])),
        (0u8..8, 1u64..1 << 50, any::<[u8; 32]>()).prop_map(|(level, len, fingerprint)| Root::Tree {
            level,
            len,
            fingerprint: Fingerprint(fingerprint)
        }),
    ]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let numbers = (0u8..7, 0u32..0o10000, any::<(u32, u32, i64)>(), 0u32..1_000_000_000, any::<u64>());
    let time = || (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Time { secs, nanos });
    let times = prop::option::of((time(), time()).prop_map(|(atime, ctime)| OtherTimes { atime, ctime }));
    (numbers, name(), prop::collection::vec((name(), name()), 0..3), times).prop_map(
        |((kind, mode, (uid, gid, secs), nanos, rdev), target, xattrs, times)| {
            let kind = FileKind::from_byte(kind).unwrap();
            let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
            let rdev = if device { rdev } else { 0 };
            let target = if kind == FileKind::Symlink { target } else { Vec::new() };
            Attributes { kind, mode, uid, gid, mtime: Time { secs, nanos }, rdev, target, xattrs, times }
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let range = || (any::<u64>(), 0u64..1 << 40, 1u64..1 << 40);
    prop_oneof![
        (any::<(u64, u64)>(), name(), attributes()).prop_map(|((parent, inode), name, attributes)| {
            Operation::Create { parent, name, inode, attributes }
        }),
        (any::<(u64, u64)>(), name()).prop_map(|((parent, inode), name)| Operation::Link {
            parent,
            name,
            inode
        }),
        (any::<(u64, u64)>(), name()).prop_map(|((parent, inode), name)| Operation::Unlink {
            parent,
            name,
            inode
        }),
        (any::<(u64, u64, u64)>(), name(), name(), prop::option::of(1u64..)).prop_map(
            |((parent, new_parent, inode), name, new_name, replaced)| Operation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                inode,
                replaced
            }
        ),
        (any::<(u64, u64, u64, u64)>(), name(), name()).prop_map(
            |((parent, inode, other_parent, other_inode), name, other_name)| Operation::Exchange {
                parent,
                name,
                inode,
                other_parent,
                other_name,
                other_inode
            }
        ),
        (any::<u64>(), attributes())
            .prop_map(|(inode, attributes)| Operation::Attributes { inode, attributes }),
        any::<(u64, u64)>().prop_map(|(inode, offset)| Operation::Write { inode, offset }),
        any::<(u64, u64)>().prop_map(|(inode, len)| Operation::Truncate { inode, len }),
        range().prop_map(|(inode, offset, len)| Operation::Zero { inode, offset, len }),
        (any::<(u64, u64)>(), 0u64..1 << 40, 0u64..1 << 40, 1u64..1 << 40).prop_map(
            |((from, inode), from_offset, offset, len)| {
                let root = Root::Inline(vec![Entry::Hole { len: from_offset + len }]);
                Operation::Clone { from, root, from_offset, inode, offset, len }
            }
        ),
        any::<u64>().prop_map(|inode| Operation::Forget { inode }),
        (any::<(u64, u64)>(), root()).prop_map(|((inode, sequence), root)| Operation::Destaged {
            inode,
            sequence,
            root
        }),
        any::<u64>().prop_map(|sequence| Operation::Committed { sequence }),
    ]
}

proptest! {
    #[test]
    fn operations_read_back(operation in operation(), data in prop::collection::vec(any::<u8>(), 1..200), sequence in 1u64..) {
        let data = if matches!(operation, Operation::Write { .. }) { data } else { Vec::new() };
        let mut bytes = whole(&operation, &data, sequence, sequence - 1);
        let len = bytes.len();
        bytes.extend_from_slice(b"more");
        let record = Record::decode(&bytes).unwrap();
        prop_assert_eq!(record.encoded_len(), len);
        prop_assert_eq!((record.sequence, record.durable, record.data), (sequence, sequence - 1, &data[..]));
        prop_assert_eq!(record.operation, operation);
    }
}
