//! Every kernel of this processor gives the reference's results, and segments of a file can be
//! scanned with any split.

use outrigger_format::FingerprintKind;
use outrigger_format::boundary::{GearMasks, scan_reference};
use outrigger_offload::{CpuDevice, Hasher, SimdLevel, conformance, hash, reference, scan_with};
use proptest::prelude::*;

#[test]
fn every_level_conforms() {
    for level in SimdLevel::available() {
        conformance::check(&mut CpuDevice::with_level(level));
    }
}

/// The parallel construction has a third level from 129, 205 or 257 segments on.
#[test]
fn pieces_of_many_segments_hash_alike() {
    let data: Vec<u8> = (0..280_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    for kind in FingerprintKind::ALL {
        let mut hasher = Hasher::new(kind);
        for (length, piece) in
            [(data.len(), 70_001), (129 * 4096 + 1, 4096), (205 * 4096, 1 << 30), (256 * 4096, 999)]
        {
            data[..length].chunks(piece).for_each(|piece| hasher.update(piece));
            assert_eq!(
                hasher.finish(),
                reference::fingerprint(kind, &data[..length]),
                "{} of {length}",
                kind.name()
            );
        }
    }
}

proptest! {
    #[test]
    fn segments_scan_alike(
        data in proptest::collection::vec(any::<u8>(), 0..9000),
        zeros in 0usize..3000,
        splits in proptest::collection::vec(0usize..9000, 0..6),
        bits in 7u32..15,
    ) {
        let mut data = data;
        let middle = data.len() / 2;
        data.splice(middle..middle, std::iter::repeat_n(0, zeros));
        let masks = GearMasks::for_average(1 << bits);
        let mut expected = Vec::new();
        scan_reference(&[], &data, masks, &mut expected);
        let mut splits: Vec<usize> = splits.into_iter().map(|split| split.min(data.len())).collect();
        splits.extend([0, data.len()]);
        splits.sort_unstable();
        for level in SimdLevel::available() {
            let mut found = Vec::new();
            for split in splits.windows(2) {
                let from = found.len();
                scan_with(level, &data[..split[0]], &data[split[0]..split[1]], masks, &mut found);
                found[from..].iter_mut().for_each(|candidate| *candidate += (split[0] as u32) << 1);
            }
            prop_assert_eq!(&found, &expected, "{}", level);
        }
    }

    #[test]
    fn pieces_hash_alike(data in proptest::collection::vec(any::<u8>(), 0..9000), splits in proptest::collection::vec(0usize..9000, 0..6)) {
        for kind in FingerprintKind::ALL {
            let mut hasher = Hasher::new(kind);
            for _ in 0..2 {
                let mut rest = &data[..];
                for &split in &splits {
                    let (piece, after) = rest.split_at(split.min(rest.len()));
                    hasher.update(piece);
                    rest = after;
                }
                hasher.update(rest);
                prop_assert_eq!(hasher.finish(), hash(kind, &data));
            }
        }
    }
}
