//! The one function that every device passes: its results against the references, where devices go wrong.
//!
//! Lengths lie around every lane count and load width in use; buffers are unaligned; contents are random, constant, short
//! periods, text, and such that every position is a candidate.

use std::ops::Range;

use outrigger_format::boundary::{GEAR, GearMasks, scan_reference};
use outrigger_format::{Codec, CodecSpec, Fingerprint, FingerprintKind};

use crate::op::{Compress, Decompress, HashMany, Scan};
use crate::{CpuDevice, Device, Operation, Task, TaskError, hash};

/// Checks every operation that `device` supports.
///
/// # Panics
/// On the first result that differs from the reference's, saying for which input.
///
/// ```
/// outrigger_offload::conformance::check(&mut outrigger_offload::CpuDevice::new());
/// ```
pub fn check(device: &mut dyn Device) {
    for operation in Operation::ALL {
        match operation {
            _ if !device.supports(operation) => {}
            Operation::Scan => check_scan(device),
            Operation::HashMany => check_hash_many(device),
            Operation::Compress => check_compress(device),
            Operation::Decompress => check_decompress(device),
        }
    }
}

/// Lengths around what kernels load, lanes share and blocks hold.
const LENGTHS: [usize; 42] = [
    0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 223, 224, 225, 255, 256, 257, 287,
    288, 289, 511, 512, 513, 800, 1023, 1024, 1025, 4095, 4097, 5000, 16_384, 65_537, 131_104, 196_641,
    400_003,
];

/// Named contents of `len` bytes.
fn contents(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut state = 0x0123_4567_89ab_cdef ^ (len as u64) << 32;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    })
    .take(len)
    .collect();
    let text = b"the outrigger takes load, so that the hull can go fast; ".iter().copied().cycle().take(len);
    let words =
        random.chunks(6).flat_map(|word| [b' ', b'a' + word[0] % 26, b'e', b'a' + word[0] % 7, b't', b's']);
    // The constant byte whose hash has most zeros on top, -g, makes every position a candidate of some average.
    let dense = (0..=255u8).min_by_key(|&byte| GEAR[byte as usize].wrapping_neg()).unwrap_or(0);
    vec![
        ("zeros", vec![0; len]),
        ("dense", vec![dense; len]),
        ("periodic", (0..len).map(|at| (at % 37) as u8).collect()),
        ("text", text.collect()),
        ("words", words.take(len).collect()),
        (
            "random then zeros",
            random.iter().enumerate().map(|(at, &b)| if at < len / 2 { b } else { 0 }).collect(),
        ),
        ("random", random),
    ]
}

fn run(device: &mut dyn Device, mut task: Task<'_>) -> Result<(), TaskError> {
    device.run(&mut task)
}

fn check_scan(device: &mut dyn Device) {
    for length in LENGTHS {
        for (name, content) in contents(length + 77) {
            // History of 0 to 32 bytes and more; starts that are aligned to nothing.
            for history in [0, 1, 31, 32, 33, 77] {
                let (before, data) = content[..length + history].split_at(history);
                for bits in [7, 8, 12, 14, 20] {
                    let masks = GearMasks::for_average(1 << bits);
                    // What is in the vectors already stays.
                    let (mut expected, mut got) = (vec![1], vec![1]);
                    scan_reference(before, data, masks, &mut expected);
                    let task = Scan { history: before, data, masks, out: &mut got };
                    run(device, Task::Scan(task)).expect("scan");
                    assert!(
                        expected == got,
                        "{}: scan of {length} bytes of {name} after {history}, average 2^{bits}: {} candidates \
                         instead of {}",
                        device.name(),
                        got.len() - 1,
                        expected.len() - 1,
                    );
                }
            }
        }
    }
}

fn check_hash_many(device: &mut dyn Device) {
    // The functions themselves, by published vectors: FIPS 180-4, and BLAKE3's test vectors (length 0 and 1025).
    let counting: Vec<u8> = (0..=250).cycle().take(1025).collect();
    let vectors: [(_, &[u8], _); 4] = [
        (FingerprintKind::Sha256, b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (FingerprintKind::Sha256, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (FingerprintKind::Blake3, b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (
            FingerprintKind::Blake3,
            &counting,
            "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
        ),
    ];
    for (kind, data, expected) in vectors {
        let (range, mut got) = (0..data.len() as u32, Vec::new());
        let ranges = std::slice::from_ref(&range);
        run(device, Task::HashMany(HashMany { kind, data, ranges, out: &mut got })).expect("hash_many");
        assert_eq!(
            got,
            [Fingerprint::parse(expected).expect("hex")],
            "{} of {} bytes",
            kind.name(),
            data.len()
        );
    }
    let (_, data) = contents(400_100).pop().expect("contents");
    for kind in [FingerprintKind::Blake3, FingerprintKind::Sha256] {
        let mut ranges: Vec<Range<u32>> = LENGTHS.iter().map(|&length| 3..3 + length as u32).collect();
        ranges.extend((0..100).map(|n| n * 3001..(n + 1) * 3001 + n));
        let mut got = vec![Fingerprint([0; 32])];
        let task = HashMany { kind, data: &data, ranges: &ranges, out: &mut got };
        run(device, Task::HashMany(task)).expect("hash_many");
        assert_eq!((got.len(), got[0]), (ranges.len() + 1, Fingerprint([0; 32])));
        for (range, got) in ranges.iter().zip(&got[1..]) {
            let expected = hash(kind, &data[range.start as usize..range.end as usize]);
            assert_eq!(*got, expected, "{}: {} of {range:?}", device.name(), kind.name());
        }
    }
}

const SPECS: [&str; 9] =
    ["none", "lz4", "zstd:-5", "zstd:1", "zstd:2", "zstd:3", "zstd:4", "zstd:7", "zstd:13"];

fn check_compress(device: &mut dyn Device) {
    let mut oracle = CpuDevice::new();
    for spec in SPECS {
        let spec = CodecSpec::parse(spec).expect("a codec");
        for length in LENGTHS.into_iter().step_by(2) {
            for (name, raw) in contents(length) {
                let (mut out, mut back) = (vec![9; 3], vec![9; 5]);
                let mut task = Task::Compress(Compress { spec, raw: &raw, out: &mut out, used: Codec::None });
                device.run(&mut task).expect("compress");
                let Task::Compress(Compress { used, .. }) = task else { unreachable!("it is one") };
                let case = format!("{}: {spec} of {length} bytes of {name}", device.name());
                assert!(used == spec.codec || used == Codec::None, "{case}: {used:?}");
                assert!(out.len() <= raw.len(), "{case}: {} bytes", out.len());
                if used == Codec::None {
                    assert!(out == raw, "{case}: stored other bytes");
                    assert!(
                        name != "zeros" || length < 64 || spec.codec == Codec::None,
                        "{case}: not compressed"
                    );
                }
                let task = Decompress { codec: used, stored: &out, raw_len: raw.len(), out: &mut back };
                run(&mut oracle, Task::Decompress(task)).expect(&case);
                assert!(back == raw, "{case}: other bytes came back");
            }
        }
    }
}

fn check_decompress(device: &mut dyn Device) {
    let mut oracle = CpuDevice::new();
    let mut decompress = |codec, stored: &[u8], raw_len| {
        let mut out = vec![7; 11];
        run(device, Task::Decompress(Decompress { codec, stored, raw_len, out: &mut out })).map(|()| out)
    };
    for spec in SPECS {
        let spec = CodecSpec::parse(spec).expect("a codec");
        for length in [1, 100, 5000, 70_000] {
            for (_, raw) in contents(length) {
                let mut stored = Vec::new();
                let mut task =
                    Task::Compress(Compress { spec, raw: &raw, out: &mut stored, used: Codec::None });
                oracle.run(&mut task).expect("compress");
                let Task::Compress(Compress { used, .. }) = task else { unreachable!("it is one") };
                assert!(decompress(used, &stored, length).expect("what was compressed") == raw);
                // Any other promise, and any cut, is an error.
                decompress(used, &stored, length - 1).expect_err("one byte less promised");
                decompress(used, &stored, length + 1).expect_err("one byte more promised");
                decompress(used, &stored[..stored.len() - 1], length).expect_err("cut by a byte");
                decompress(used, &stored[..stored.len() / 2], length).expect_err("cut in half");
                // Damage gives an error or other bytes of the promised length, and never a panic.
                for at in (0..stored.len()).step_by(stored.len() / 50 + 1) {
                    let mut damaged = stored.clone();
                    damaged[at] ^= 1 << (at % 8);
                    if let Ok(out) = decompress(used, &damaged, length) {
                        assert_eq!(out.len(), length);
                    }
                }
            }
        }
    }
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        decompress(codec, &[], 1).expect_err("nothing stored");
        decompress(codec, &[0; 40], usize::MAX).expect_err("more promised than a frame holds");
    }
}
