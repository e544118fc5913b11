//! Encodes weights from gradient descent.

mod model;

use std::sync::LazyLock;

use model::{Model, bfloat16, float32};
use outrigger_format::{Codec, CodecChoice, Encoding, Filter};
use outrigger_offload::{Auto, Compressor, Encoder, FrameDecoder, Wanted, worst_case};

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::trained(150));

/// Encodes `raw` and checks that it decodes. Returns the encoding and its length.
fn encoded(raw: &[u8], filters: bool) -> (Encoding, usize) {
    let wanted = Wanted { filters, ..Wanted::of(CodecChoice::parse("zstd:1").unwrap().into(), &Auto::new()) };
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    let encoding = Encoder::new().encode(wanted, raw, &mut stored);
    if encoding.codec == Codec::None {
        return (encoding, raw.len());
    }
    FrameDecoder::new().decode(encoding, &stored, raw.len(), &mut back).unwrap();
    assert!(back == raw);
    (encoding, stored.len())
}

/// The length of Zstandard's output alone, even if it would not be worth storing.
fn zstd_alone(raw: &[u8]) -> usize {
    let (mut stored, room) = (Vec::new(), worst_case(Codec::Zstd, raw.len()));
    let CodecChoice::Fixed(spec) = CodecChoice::parse("zstd:1").unwrap() else { panic!("it has a level") };
    assert!(Compressor::new().compress_within(spec, raw, room, &mut stored));
    stored.len()
}

fn say(what: &str, raw: &[u8], len: usize) {
    let share = |len: usize| 100.0 * len as f64 / raw.len() as f64;
    println!("{what}: {:.1} % of its size, by zstd alone {:.1} %", share(len), share(zstd_alone(raw)));
}

#[test]
fn the_model_has_learnt() {
    let (first, last) = MODEL.losses;
    println!("loss {first:.2} to {last:.2} nats a character");
    // Even guesses would have ln(96) = 4.56, and guesses by the frequencies of characters about 3.
    assert!(first > 3.0 && last < 2.8, "{first} to {last}");
}

#[test]
fn float32_weights_are_grouped_with_their_exponents_apart() {
    let raw = float32(&MODEL.weights());
    let (encoding, len) = encoded(&raw, true);
    say("float32", &raw, len);
    assert_eq!(encoding.filter, Filter::Float4);
    // Without filters they are not worth compressing, and are stored as they are.
    let (without, plain) = encoded(&raw, false);
    assert_eq!((without.codec, plain), (Codec::None, raw.len()));
    assert!(len * 100 <= plain * 86, "{len} of {plain}");
    assert!(len * 100 <= zstd_alone(&raw) * 94, "{len} of {}", zstd_alone(&raw));
}

#[test]
fn bfloat16_weights_are_grouped_with_their_exponents_apart() {
    let raw: Vec<u8> = MODEL.weights().into_iter().flat_map(bfloat16).collect();
    let (encoding, len) = encoded(&raw, true);
    say("bfloat16", &raw, len);
    assert_eq!(encoding.filter, Filter::Float2);
    assert!(len * 100 <= zstd_alone(&raw) * 92, "{len} of {}", zstd_alone(&raw));
}

#[test]
fn what_the_optimizer_keeps_is_compressed_too() {
    for (what, values) in [("means", &MODEL.hidden.mean), ("squares", &MODEL.hidden.square)] {
        let raw = float32(values);
        let (_, len) = encoded(&raw, true);
        say(what, &raw, len);
        assert!(len <= encoded(&raw, false).1);
    }
    let doubles: Vec<u8> =
        MODEL.weights().into_iter().flat_map(|weight| (f64::from(weight) / 3.0).to_le_bytes()).collect();
    let (encoding, len) = encoded(&doubles, true);
    say("float64", &doubles, len);
    assert_eq!(encoding.filter.planes(), 8);
}

#[test]
fn exponents_cost_little_more_than_they_say() {
    // Nearly normally distributed, like the initial weights of layers. Exponents then have 2.55
    // bits, and the rest is noise.
    let mut rng = outrigger_workload::Rng::new(1);
    let mut normal = || (0..12).map(|_| rng.below(1 << 24) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0;
    let weights: Vec<f32> = (0..200_000).map(|_| 0.02 * normal()).collect();
    let raw: Vec<u8> = weights.iter().flat_map(|&weight| bfloat16(weight)).collect();
    let (encoding, len) = encoded(&raw, true);
    say("normal bfloat16", &raw, len);
    assert_eq!(encoding.filter, Filter::Float2);
    // 8 bits of sign and mantissa, 2.55 bits of exponent, and 2 % for a prefix code: 66.3 %.
    assert!(len * 1000 <= raw.len() * 670, "{len} of {}", raw.len());
    assert!(len * 100 <= zstd_alone(&raw) * 86, "{len} of {}", zstd_alone(&raw));
    let raw = float32(&weights);
    let (_, len) = encoded(&raw, true);
    say("normal float32", &raw, len);
    assert!(len * 1000 <= raw.len() * 835, "{len} of {}", raw.len());
}
