//! Decompressors and filters. They never panic for any stored bytes and any promised length, and
//! take no more memory than promised. Compressed data decompresses to its source.
#![no_main]

use outrigger_format::{Codec, CodecSpec, Encoding, Filter};
use outrigger_offload::{Compressor, Decompressor, FrameDecoder, apply_filter, undo_filter, worst_case};

libfuzzer_sys::fuzz_target!(|input: (u8, u32, &[u8])| {
    let (codec, promised, bytes) = input;
    let promised = promised as usize % (1 << 20);
    let filter = Filter::ALL[codec as usize / Codec::ALL.len() % Filter::ALL.len()];
    let codec = Codec::ALL[codec as usize % Codec::ALL.len()];
    let (mut decompressor, mut out) = (Decompressor::new(), Vec::new());
    match decompressor.decompress(codec, bytes, promised, &mut out) {
        Ok(()) => assert_eq!(out.len(), promised),
        Err(_) => assert!(out.is_empty()),
    }
    assert!(out.capacity() <= promised + 64, "{} for {promised}", out.capacity());
    let mut room = vec![0; promised];
    let same = decompressor.decompress_into(codec, bytes, &mut room).is_ok();
    assert_eq!(same, out.len() == promised && (promised > 0 || same));

    let spec = CodecSpec { codec, level: codec.levels().map_or(0, |_| 1) };
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    let mut compressor = Compressor::new();
    let used = compressor.compress(spec, bytes, &mut stored);
    assert!(stored.len() <= bytes.len());
    decompressor.decompress(used, &stored, bytes.len(), &mut back).unwrap();
    assert_eq!(back, bytes);
    if compressor.compress_within(spec, bytes, worst_case(codec, bytes.len()), &mut stored) {
        decompressor.decompress(codec, &stored, bytes.len(), &mut back).unwrap();
        assert_eq!(back, bytes);
    }

    // Filters are one to one, so they also work in reverse.
    apply_filter(filter, bytes, &mut stored);
    undo_filter(filter, &stored, &mut back);
    assert_eq!(back, bytes);
    undo_filter(filter, bytes, &mut stored);
    apply_filter(filter, &stored, &mut back);
    assert_eq!(back, bytes);
    let encoding = Encoding { filter, ..Encoding::plain(codec) };
    match FrameDecoder::new().decode(encoding, bytes, promised, &mut out) {
        Ok(()) => assert_eq!(out.len(), promised),
        Err(_) => assert!(out.is_empty()),
    }
});
