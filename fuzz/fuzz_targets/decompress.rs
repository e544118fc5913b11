//! Decompressors: whatever is stored and promised, no panic, never more memory than promised; and what was compressed comes back.
#![no_main]

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::{Compressor, Decompressor};

libfuzzer_sys::fuzz_target!(|input: (u8, u32, &[u8])| {
    let (codec, promised, bytes) = input;
    let promised = promised as usize % (1 << 20);
    let codec = [Codec::None, Codec::Zstd, Codec::Lz4][codec as usize % 3];
    let (mut decompressor, mut out) = (Decompressor::new(), Vec::new());
    match decompressor.decompress(codec, bytes, promised, &mut out) {
        Ok(()) => assert_eq!(out.len(), promised),
        Err(_) => assert!(out.is_empty()),
    }
    assert!(out.capacity() <= promised + 64, "{} for {promised}", out.capacity());
    let mut room = vec![0; promised];
    let same = decompressor.decompress_into(codec, bytes, &mut room).is_ok();
    assert_eq!(same, out.len() == promised && (promised > 0 || same));

    let spec = CodecSpec { codec, level: if codec == Codec::Zstd { 1 } else { 0 } };
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    let used = Compressor::new().compress(spec, bytes, &mut stored);
    assert!(stored.len() <= bytes.len());
    decompressor.decompress(used, &stored, bytes.len(), &mut back).unwrap();
    assert_eq!(back, bytes);
});
