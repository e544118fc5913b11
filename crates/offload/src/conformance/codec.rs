//! Compression. Two devices may compress differently, but each reads the other's output.

use outrigger_format::{Codec, CodecSpec};

use super::{LENGTHS, contents, run};
use crate::op::{Compress, Decompress};
use crate::{CpuDevice, Device, Task};

const SPECS: [&str; 9] =
    ["none", "lz4", "zstd:-5", "zstd:1", "zstd:2", "zstd:3", "zstd:4", "zstd:7", "zstd:13"];

pub(super) fn check_compress(device: &mut dyn Device) {
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

pub(super) fn check_decompress(device: &mut dyn Device) {
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
                // Any other promised length, and any truncation, is an error.
                decompress(used, &stored, length - 1).expect_err("one byte less promised");
                decompress(used, &stored, length + 1).expect_err("one byte more promised");
                decompress(used, &stored[..stored.len() - 1], length).expect_err("cut by a byte");
                decompress(used, &stored[..stored.len() / 2], length).expect_err("cut in half");
                // Damage gives an error or other bytes of the promised length, but never a panic.
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
