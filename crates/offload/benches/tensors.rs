//! Tensors of a model that is trained first: sizes and processor time, with filters, and by
//! Zstandard alone.
//!
//! ```text
//! cargo bench -p outrigger-offload --bench tensors
//! ```
//!
//! `stored` is the output of the encoder within its budget. `zstd alone` is Zstandard's output,
//! even if it would not be worth storing. Times are this thread's processor time, the least of
//! several rounds in turns.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::time::Duration;

#[path = "../tests/it/tensors/model.rs"]
#[allow(dead_code, reason = "its tests use more of it")]
mod model;

use model::{Model, bfloat16, float32};
use outrigger_format::{Codec, CodecSpec, Filter};
use outrigger_offload::{Auto, Compressor, Decompressor, Encoder, FrameDecoder, Wanted, worst_case};

/// The usual length of frames.
const FRAME: usize = 512 << 10;
const ROUNDS: usize = 5;

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes of output, and processor time.
struct Measured {
    len: usize,
    write: Duration,
    read: Duration,
}

fn with_filters(raw: &[u8], spec: CodecSpec) -> (Measured, Filter) {
    let (mut encoder, mut decoder) = (Encoder::new(), FrameDecoder::new());
    let (mut out, mut back, mut filter) = (Vec::new(), Vec::new(), Filter::None);
    let mut all = Measured { len: 0, write: Duration::ZERO, read: Duration::ZERO };
    for frame in raw.chunks(FRAME) {
        let begun = processor_time();
        let encoding = encoder.encode(Wanted::of(spec.into(), &Auto::new()), frame, &mut out);
        let written = processor_time();
        let stored = if encoding.codec == Codec::None { frame } else { &out[..] };
        decoder.decode(encoding, stored, frame.len(), &mut back).expect("a frame");
        all.read += processor_time() - written;
        all.write += written - begun;
        all.len += stored.len();
        assert!(back == frame);
        filter = encoding.filter;
    }
    (all, filter)
}

fn alone(raw: &[u8], spec: CodecSpec) -> Measured {
    let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let mut all = Measured { len: 0, write: Duration::ZERO, read: Duration::ZERO };
    for frame in raw.chunks(FRAME) {
        let begun = processor_time();
        assert!(compressor.compress_within(spec, frame, worst_case(spec.codec, frame.len()), &mut out));
        let written = processor_time();
        decompressor.decompress(spec.codec, &out, frame.len(), &mut back).expect("a frame");
        all.read += processor_time() - written;
        all.write += written - begun;
        all.len += out.len();
        assert!(back == frame);
    }
    all
}

fn best(one: Measured, other: Measured) -> Measured {
    Measured { write: one.write.min(other.write), read: one.read.min(other.read), ..one }
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick" || arg == "--test");
    let model = Model::trained(if quick { 60 } else { 600 });
    println!("trained: loss {:.2} to {:.2} nats a character\n", model.losses.0, model.losses.1);
    let weights = model.weights();
    let kinds: [(&str, Vec<u8>); 5] = [
        ("weights, float32", float32(&weights)),
        ("weights, bfloat16", weights.iter().copied().flat_map(bfloat16).collect()),
        ("weights, float64", weights.iter().flat_map(|&one| (f64::from(one) / 3.0).to_le_bytes()).collect()),
        ("Adam's means, float32", float32(&model.hidden.mean)),
        ("Adam's squares, float32", float32(&model.hidden.square)),
    ];
    println!(
        "{:26} {:8} {:8} {:>8} {:>10} {:>8}   MB/s: {:>7} {:>7} {:>7} {:>7}",
        "", "codec", "filter", "stored", "zstd alone", "smaller", "write", "alone", "read", "alone"
    );
    for (name, raw) in kinds {
        for text in ["zstd:1", "zstd:2", "zstd:3"] {
            let spec = CodecSpec::parse(text).expect("a codec");
            let (mut filtered, filter) = with_filters(&raw, spec);
            let mut plain = alone(&raw, spec);
            for _ in 0..if quick { 1 } else { ROUNDS } {
                filtered = best(filtered, with_filters(&raw, spec).0);
                plain = best(plain, alone(&raw, spec));
            }
            let share = |len: usize| 100.0 * len as f64 / raw.len() as f64;
            let rate = |time: Duration| raw.len() as f64 / 1e6 / time.as_secs_f64().max(1e-9);
            println!(
                "{name:26} {text:8} {:8} {:>7.1}% {:>9.1}% {:>7.1}%         {:>7.0} {:>7.0} {:>7.0} {:>7.0}",
                filter.name(),
                share(filtered.len),
                share(plain.len),
                100.0 - 100.0 * filtered.len as f64 / plain.len as f64,
                rate(filtered.write),
                rate(plain.write),
                rate(filtered.read),
                rate(plain.read),
            );
        }
    }
}
