//! Windows, the parallel construction, many chunks at once and one pass over a batch. Each SIMD
//! level gives the reference's results.
#![no_main]

use std::collections::HashMap;

use outrigger_format::{ChunkerSpec, FingerprintKind, WindowedHash};
use outrigger_offload::op::{Digest, Stream, WindowFunction, WindowSpec};
use outrigger_offload::{Ingester, SimdLevel, hash_many_with, pmd_hash_with, reference, window_hash_with};

libfuzzer_sys::fuzz_target!(|input: (u8, u8, u16, u16, u8, &[u8])| {
    let (function, keep, window, step, repeats, seed) = input;
    // Long enough for lanes and segments: the input many times, a little different each time.
    let data: Vec<u8> =
        (0..=repeats).flat_map(|turn| seed.iter().map(move |byte| byte.wrapping_add(turn / 3))).collect();
    let data = &data[..data.len().min(100_000)];

    let function = WindowFunction::ALL[function as usize % WindowFunction::ALL.len()];
    let spec = WindowSpec {
        function,
        window: window as usize % 300 + 1,
        step: step as usize % 80 + 1,
        keep: keep as usize % function.len() + 1,
    };
    let windows = reference::window_hash(spec, data);
    let digest = [Digest::Md5, Digest::Sha1, Digest::Sha256][keep as usize % 3];
    let pmd = reference::pmd_hash(digest, data);

    let kind = FingerprintKind::ALL[repeats as usize % FingerprintKind::ALL.len()];
    let cut = |at: u32| (at as usize * 7919 % (data.len() + 1)) as u32;
    let ranges: Vec<_> = (0..u32::from(window % 70))
        .map(|n| cut(n).min(cut(n + 1)) as usize..cut(n).max(cut(n + 1)) as usize)
        .collect();
    let fingerprints: Vec<_> =
        ranges.iter().map(|range| reference::fingerprint(kind, &data[range.clone()])).collect();

    let streams: Vec<_> = (0..u32::from(step % 5))
        .map(|n| Stream { range: cut(n).min(cut(n + 3))..cut(n).max(cut(n + 3)), last: n % 2 == 0 })
        .collect();
    let chunker = match window % 3 {
        0 => ChunkerSpec::Gear32 { min: 64, avg: 256, max: 1024 },
        1 => ChunkerSpec::Windowed { hash: WindowedHash::Rabin, min: 64, avg: 256, max: 1024 },
        _ => ChunkerSpec::Fixed { size: 512 },
    };
    let ingested = reference::ingest(data, &streams, chunker, kind, &HashMap::new());

    for level in SimdLevel::available() {
        let mut out = Vec::new();
        window_hash_with(level, spec, data, &mut out);
        assert_eq!(out, windows, "{level}: {spec:?}");
        out.clear();
        pmd_hash_with(level, digest, data, &mut out);
        assert_eq!(out, pmd, "{level}: pmd-{}", digest.name());
        let mut many = Vec::new();
        hash_many_with(level, kind, data, ranges.iter().cloned(), &mut many);
        assert_eq!(many, fingerprints, "{level}: {}", kind.name());
        let (mut chunks, mut counts) = (Vec::new(), Vec::new());
        Ingester::with_level(level, chunker, kind).ingest(data, &streams, None, &mut chunks, &mut counts);
        assert_eq!((chunks, counts), ingested, "{level}: {chunker}");
    }
});
