//! Tests codecs and the encoder. Every frame decodes to its source, for all lengths and kinds of
//! data. Hostile input gives errors. Other programs can read the formats that they know.

use std::io::Write;
use std::process::{Command, Stdio};

use outrigger_format::{Codec, CodecChoice, CodecSpec, Encoding, Filter, Reason};
use outrigger_offload::{
    Auto, Budget, CodecError, Compression, Compressor, Decompressor, Encoder, FrameCodec, FrameDecoder,
    Wanted, worst_case,
};
use outrigger_workload::Rng;

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Every kind of data that codecs treat differently, `len` bytes of each.
fn kinds(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut noise = Rng::new(len as u64 + 1);
    let text = b"the quick brown fox jumps over the lazy dog and says so; ".iter().copied().cycle();
    let sparse =
        |noise: &mut Rng| if noise.next_u64().is_multiple_of(9) { noise.next_u64() as u8 } else { 0 };
    let floats = (0..len / 4 + 1).flat_map(|_| {
        let bits = 0x3f00_0000 | (noise.next_u64() as u32 & 0x007f_ffff);
        bits.to_le_bytes()
    });
    let floats: Vec<u8> = floats.take(len).collect();
    vec![
        ("zeros", vec![0; len]),
        ("text", text.take(len).collect()),
        ("noise", random(&mut noise, len)),
        ("sparse", (0..len).map(|_| sparse(&mut noise)).collect()),
        ("floats", floats),
        ("one byte", vec![255; len]),
    ]
}

const SPECS: [&str; 15] = [
    "none",
    "lz4",
    "zle",
    "lzjb",
    "zstd:-7",
    "zstd:1",
    "zstd:2",
    "zstd:3",
    "zstd:19",
    "gzip:1",
    "gzip:6",
    "gzip:12",
    "deflate:1",
    "deflate:9",
    "deflate:12",
];

fn lengths() -> impl Iterator<Item = usize> {
    (0..70).chain([127, 128, 129, 191, 192, 193, 255, 256, 1023, 1024, 4095, 4097, 65_535, 65_536, 150_001])
}

#[test]
fn every_codec_gives_back_what_it_took_and_stays_within_its_worst_case() {
    let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for spec in SPECS.map(|spec| CodecSpec::parse(spec).unwrap()) {
        for (kind, raw) in lengths().flat_map(kinds) {
            let case = || format!("{spec}, {} bytes of {kind}", raw.len());
            let room = worst_case(spec.codec, raw.len());
            assert!(room >= raw.len());
            // With room for the worst case, every frame fits.
            let fits = compressor.compress_within(spec, &raw, room, &mut stored);
            assert_eq!(fits, spec.codec != Codec::None && room > 0, "{}", case());
            if fits {
                decompressor.decompress(spec.codec, &stored, raw.len(), &mut back).unwrap();
                assert!(back == raw, "{}", case());
                back.fill(1);
                decompressor.decompress_into(spec.codec, &stored, &mut back).unwrap();
                assert!(back == raw, "{}", case());
                let len = stored.len();
                // Codecs write whole words, so they need a little more room than the result.
                let fits = compressor.compress_within(spec, &raw, len + 64, &mut stored);
                assert!(fits && stored.len() == len, "{}: enough", case());
                assert!(
                    !compressor.compress_within(spec, &raw, len / 2, &mut stored),
                    "{}: too little",
                    case()
                );
            }
            let used = compressor.compress(spec, &raw, &mut stored);
            assert!(stored.len() <= raw.len(), "{}", case());
            decompressor.decompress(used, &stored, raw.len(), &mut back).unwrap();
            assert!(back == raw, "{}", case());
        }
    }
}

#[test]
fn another_length_than_the_promised_one_is_an_error() {
    let raw = kinds(10_000).remove(1).1;
    let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for spec in SPECS.map(|spec| CodecSpec::parse(spec).unwrap()) {
        if !compressor.compress_within(spec, &raw, worst_case(spec.codec, raw.len()), &mut stored) {
            stored = raw.clone();
        }
        for promised in [0, 1, raw.len() - 1, raw.len() + 1, 2 * raw.len(), 65 << 20] {
            let result = decompressor.decompress(spec.codec, &stored, promised, &mut back);
            assert!(result.is_err() && back.is_empty(), "{spec}: {promised} of {}", raw.len());
            assert!(back.capacity() <= (64 << 20) + 64);
        }
        // If truncated, a frame gives an error, or, if a codec's last bytes carry nothing, the same
        // result.
        for len in (0..stored.len()).step_by(stored.len() / 50 + 1) {
            match decompressor.decompress(spec.codec, &stored[..len], raw.len(), &mut back) {
                Ok(()) => assert_eq!(back, raw, "{spec}"),
                Err(CodecError::Malformed(codec) | CodecError::Length { codec, .. }) => {
                    assert_eq!(codec, spec.codec)
                }
                Err(error) => panic!("{spec}: {error}"),
            }
        }
    }
}

#[test]
fn hostile_bytes_never_panic_nor_give_more_than_promised() {
    let mut noise = Rng::new(99);
    let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for round in 0..4000 {
        let len = noise.next_u64() as usize % 300;
        let bytes = random(&mut noise, len);
        let promised = noise.next_u64() as usize % 2000;
        for codec in Codec::ALL {
            if let Ok(()) = decompressor.decompress(codec, &bytes, promised, &mut back) {
                assert_eq!(back.len(), promised);
            }
        }
        // Also input that is valid except for one bit.
        let raw = &kinds(len)[round % 6].1;
        let spec = CodecSpec::parse(SPECS[round % SPECS.len()]).unwrap();
        if compressor.compress_within(spec, raw, worst_case(spec.codec, len), &mut stored)
            && !stored.is_empty()
        {
            let bit = noise.next_u64() as usize % (8 * stored.len());
            stored[bit / 8] ^= 1 << (bit % 8);
            if let Ok(()) = decompressor.decompress(spec.codec, &stored, len, &mut back) {
                assert_eq!(back.len(), len);
            }
        }
    }
}

/// The output of `command` for `input`. `None` if it is not installed.
fn piped(command: &str, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let child = Command::new(command).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.ok()?;
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads all");
    assert!(output.status.success(), "{command} refused it");
    Some(output.stdout)
}

#[test]
fn gzip_reads_gzip_frames_and_the_other_way_round() {
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for (kind, raw) in [0, 1, 5, 4096, 200_000].into_iter().flat_map(kinds) {
        for level in [1, 6, 9, 12] {
            let spec = CodecSpec { codec: Codec::Gzip, level };
            let room = worst_case(Codec::Gzip, raw.len());
            assert!(Compressor::new().compress_within(spec, &raw, room, &mut stored));
            let Some(read) = piped("gzip", &["-d", "-c"], &stored) else {
                outrigger_workload::skipped!("gzip is not installed");
                return;
            };
            assert!(read == raw, "{kind}, {} bytes, level {level}", raw.len());
        }
        let Some(written) = piped("gzip", &["-9", "-c"], &raw) else { return };
        Decompressor::new().decompress(Codec::Gzip, &written, raw.len(), &mut back).unwrap();
        assert!(back == raw, "{kind}, {} bytes", raw.len());
    }
}

fn wanted(text: &str) -> Wanted {
    Wanted::of(CodecChoice::parse(text).unwrap().into(), &Auto::new())
}

#[test]
fn frames_come_back_whatever_codec_filter_and_length() {
    let mut decoder = FrameDecoder::new();
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    for text in SPECS.into_iter().chain(["auto", "auto:ratio", "auto:cpu"]) {
        let mut encoder = Encoder::new();
        for (kind, raw) in lengths().chain([16_383, 16_384, 300_001]).flat_map(kinds) {
            let encoding = encoder.encode(wanted(text), &raw, &mut stored);
            let stored = if encoding.codec == Codec::None { &raw } else { &stored };
            assert!(stored.len() <= raw.len(), "{text}: {kind}");
            decoder.decode(encoding, stored, raw.len(), &mut back).unwrap();
            assert!(back == raw, "{text}: {} bytes of {kind}", raw.len());
            assert!(encoding.asked.is_some() && encoding.reason != Reason::Unstated, "{text}: {encoding:?}");
        }
    }
}

#[test]
fn filters_are_used_where_they_pay_and_nowhere_else() {
    let mut stored = Vec::new();
    let mut noise = Rng::new(3);
    let mut encoder = Encoder::new();
    let mut filter = |raw: &[u8]| encoder.encode(wanted("zstd:1"), raw, &mut stored).filter;
    let len = 256 << 10;
    let float = |noise: &mut Rng| f32::from_bits(0x3f80_0000 | (noise.next_u64() as u32 & 0x007f_ffff)) - 1.5;
    let floats: Vec<u8> = (0..len / 4).flat_map(|_| float(&mut noise).to_le_bytes()).collect();
    let halves: Vec<u8> =
        (0..len / 2).flat_map(|_| ((float(&mut noise).to_bits() >> 16) as u16).to_le_bytes()).collect();
    let doubles: Vec<u8> = (0..len / 8)
        .flat_map(|_| {
            (f64::from(float(&mut noise)) * f64::from(float(&mut noise)).sqrt().max(0.1)).to_le_bytes()
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(filter(&floats), Filter::Float4);
        assert_eq!(filter(&halves), Filter::Float2);
        assert_eq!(filter(&doubles).planes(), 8);
        for (kind, raw) in kinds(len).into_iter().filter(|(kind, _)| *kind != "floats") {
            assert_eq!(filter(&raw), Filter::None, "{kind}");
        }
    }
}

/// Data that resembles code for x86-64: calls of few functions from many places.
fn code(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Rng::new(seed);
    let functions: Vec<i32> = (0..200).map(|_| (noise.next_u64() % 400_000) as i32).collect();
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        let function = functions[noise.next_u64() as usize % functions.len()];
        match noise.next_u64() % 6 {
            0 => bytes.extend_from_slice(&[0x48, 0x89, 0xc7]),
            1 => bytes.extend_from_slice(&[0x48, 0x8b, 0x44, 0x24, (noise.next_u64() % 16 * 8) as u8]),
            2 => bytes.extend_from_slice(&[0x85, 0xc0, 0x74, noise.next_u64() as u8 & 0x3f]),
            3 => bytes.extend_from_slice(&[0x48, 0x83, 0xc4, (noise.next_u64() % 8 * 8) as u8]),
            4 => {
                let after = bytes.len() as i32 + 5;
                bytes.push(0xe8);
                bytes.extend_from_slice(&(function - after).to_le_bytes());
            }
            _ => {
                let after = bytes.len() as i32 + 7;
                bytes.extend_from_slice(&[0x48, 0x8d, 0x3d]);
                bytes.extend_from_slice(&(function - after).to_le_bytes());
            }
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn code_is_filtered_and_smaller_for_it() {
    let raw = code(400_000, 5);
    let (mut with, mut without, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let encoding = Encoder::new().encode(wanted("zstd:2"), &raw, &mut with);
    assert_eq!(encoding.filter, Filter::X86);
    let plain = Wanted { filters: false, ..wanted("zstd:2") };
    assert_eq!(Encoder::new().encode(plain, &raw, &mut without).filter, Filter::None);
    assert!(with.len() * 100 < without.len() * 96, "{} to {}", with.len(), without.len());
    FrameDecoder::new().decode(encoding, &with, raw.len(), &mut back).unwrap();
    assert!(back == raw);
}

#[test]
fn in_a_long_frame_code_is_found_though_something_else_is_in_the_middle() {
    let words = "the outrigger takes load, so that the hull can go fast; ".repeat(20_000);
    let raw = [&code(600_000, 6), &words.as_bytes()[..900_000], &code(600_000, 7)].concat();
    let (mut with, mut without, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let encoding = Encoder::new().encode(wanted("zstd:1"), &raw, &mut with);
    assert_eq!(encoding.filter, Filter::X86);
    let plain = Wanted { filters: false, ..wanted("zstd:1") };
    Encoder::new().encode(plain, &raw, &mut without);
    assert!(with.len() * 100 < without.len() * 96, "{} to {}", with.len(), without.len());
    FrameDecoder::new().decode(encoding, &with, raw.len(), &mut back).unwrap();
    assert!(back == raw);
}

#[test]
fn the_budget_decides_and_what_is_refused_says_so() {
    let mut noise = Rng::new(8);
    // Seven of eight bits, of which a codec with an entropy stage can save 12 %.
    let raw: Vec<u8> = random(&mut noise, 100_000).into_iter().map(|byte| byte & 0x7f).collect();
    let mut stored = Vec::new();
    let mut encode = |percent, text| {
        let budget = Budget::of_percent(percent).unwrap();
        let encoding = Encoder::new().encode(Wanted { budget, ..wanted(text) }, &raw, &mut stored);
        (encoding, stored.len())
    };
    let (kept, len) = encode(90, "gzip:6");
    assert_eq!((kept.codec, kept.reason), (Codec::Gzip, Reason::Policy));
    assert!(len <= 90_000);
    let (refused, _) = encode(80, "gzip:6");
    assert_eq!((refused.codec, refused.reason), (Codec::None, Reason::Budget));
    assert!(refused.is_incompressible());
    assert_eq!(refused.asked, Some(CodecSpec::parse("gzip:6").unwrap()));
    let random = random(&mut noise, 100_000);
    let mut encoder = Encoder::new();
    for _ in 0..40 {
        let encoding = encoder.encode(wanted("zstd:9"), &random, &mut stored);
        assert_eq!((encoding.codec, encoding.reason), (Codec::None, Reason::Random));
    }
    // A repetition in random-looking data is found, even after much data without one.
    let repeated = random[..9000].repeat(12);
    assert_eq!(encoder.encode(wanted("zstd:9"), &repeated, &mut stored).codec, Codec::Zstd);
    assert_eq!([0, 100].map(Budget::of_percent), [None; 2]);
}

#[test]
fn auto_takes_a_cheaper_level_where_the_costly_one_gains_nothing() {
    let mut noise = Rng::new(4);
    let mut stored = Vec::new();
    // Bytes with an uneven distribution and without repetition. Only the entropy stage helps, which
    // all levels have.
    let uneven: Vec<u8> =
        random(&mut noise, 300_000).into_iter().map(|byte| byte & byte.rotate_left(3) & 0x3f).collect();
    let costly = Wanted { or_cheaper: true, ..wanted("zstd:9") };
    let encoding = Encoder::new().encode(costly, &uneven, &mut stored);
    assert_eq!((encoding.asked, encoding.reason), (CodecSpec::parse("zstd:1").ok(), Reason::NoGain));
    // A policy that names a level gets it.
    assert_eq!(Encoder::new().encode(wanted("zstd:9"), &uneven, &mut stored).reason, Reason::Policy);
}

/// A codec that never fits, and counts its calls.
#[derive(Default)]
struct Refusing {
    asked: usize,
}

impl FrameCodec for &mut Refusing {
    fn compress(&mut self, _: CodecSpec, _: &[u8], _: usize, _: &mut Vec<u8>) -> bool {
        self.asked += 1;
        false
    }
}

#[test]
fn a_device_may_hand_a_frame_back() {
    let mut device = Refusing::default();
    let raw = kinds(50_000).remove(1).1;
    let encoding = Encoder::with_codec(&mut device).encode(wanted("gzip:6"), &raw, &mut Vec::new());
    assert_eq!(encoding, Encoding { asked: encoding.asked, reason: Reason::Budget, ..Encoding::NONE });
    assert!(encoding.is_incompressible() && device.asked == 1);
}

#[test]
fn nothing_is_tried_where_nothing_is_wanted() {
    let mut device = Refusing::default();
    let none = Wanted::of(Compression::NONE, &Auto::new());
    let encoding = Encoder::with_codec(&mut device).encode(none, &[0; 50_000], &mut Vec::new());
    assert_eq!((encoding.codec, encoding.is_incompressible(), device.asked), (Codec::None, false, 0));
}
