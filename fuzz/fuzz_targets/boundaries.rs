//! Every kernel finds the candidates of the reference, wherever the data is split, and cuts respect
//! their bounds.
#![no_main]

use outrigger_format::ChunkerSpec;
use outrigger_format::boundary::{CutWalk, GearMasks, scan_reference};
use outrigger_offload::{SimdLevel, scan_with};

libfuzzer_sys::fuzz_target!(|input: (u8, u16, u16, &[u8])| {
    let (avg, repeats, split, seed) = input;
    if seed.is_empty() {
        return;
    }
    // Long enough for blocks and lanes: the input many times, a little different each time.
    let repeats = (repeats as usize % 200_000 / seed.len()).max(1);
    let data: Vec<u8> = (0..repeats)
        .flat_map(|turn| seed.iter().map(move |byte| byte.wrapping_add((turn / 7) as u8)))
        .collect();
    let bits = 8 + u32::from(avg) % 10;
    let masks = GearMasks::for_average(1 << bits);
    let (history, rest) = data.split_at(split as usize % (data.len() + 1));
    let mut expected = Vec::new();
    scan_reference(history, rest, masks, &mut expected);
    for level in SimdLevel::available() {
        let mut found = Vec::new();
        scan_with(level, history, rest, masks, &mut found);
        assert_eq!(found, expected, "{level}");
    }

    let (min, max) = (1 << (bits - 2), 1 << (bits + 2));
    let spec = ChunkerSpec::Gear32 { min, avg: 1 << bits, max };
    let (mut whole, mut parts, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
    scan_reference(&[], &data, masks, &mut candidates);
    let mut walk = CutWalk::new(spec);
    walk.feed(data.len(), &candidates, &mut whole);
    whole.extend(walk.finish());
    let mut walk = CutWalk::new(spec);
    candidates.clear();
    scan_reference(&[], history, masks, &mut candidates);
    walk.feed(history.len(), &candidates, &mut parts);
    walk.feed(rest.len(), &expected, &mut parts);
    parts.extend(walk.finish());
    assert_eq!(whole, parts);
    let mut start = 0;
    for (number, &end) in whole.iter().enumerate() {
        let len = end - start;
        assert!(len <= u64::from(max) && (len > u64::from(min) || number + 1 == whole.len()));
        start = end;
    }
    assert_eq!(start, data.len() as u64);
});
