//! Tasks for devices that compress, and checks of their results.

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::Decompressor;
use outrigger_offload::runtime::{Draft, Finished, Runtime};
use outrigger_offload::work::Request;
use outrigger_workload::Rng;

/// Compressible bytes, different for each number.
pub fn data(number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(number) * 2 + 1;
    let mut bytes = Vec::with_capacity(len + 32);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(format!("{number} saw {:x}, and so on. ", state >> 52).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Incompressible bytes.
pub fn noise(len: usize) -> Vec<u8> {
    Rng::new(1).bytes(len)
}

pub fn spec(text: &str) -> CodecSpec {
    CodecSpec::parse(text).unwrap()
}

/// A frame for the device to compress.
pub fn compression(runtime: &Runtime, text: &str, raw: &[u8]) -> Draft {
    let mut draft = runtime.draft(raw.len());
    draft.input().extend_from_slice(raw);
    draft.set_request(Request::Compress { spec: spec(text) }).pin(1);
    draft
}

/// A frame for the device to decompress.
pub fn decompression(runtime: &Runtime, codec: Codec, stored: &[u8], raw_len: usize) -> Draft {
    let mut draft = runtime.draft(stored.len());
    draft.input().extend_from_slice(stored);
    draft.set_request(Request::Decompress { codec, raw_len }).pin(1);
    draft
}

/// Checks that the processor's codec decodes the frame to its source.
pub fn assert_right(done: &Finished) {
    let (mut back, raw) = (Vec::new(), done.work().data());
    let output = done.output();
    assert!(output.bytes.len() <= raw.len());
    Decompressor::new().decompress(output.codec, &output.bytes, raw.len(), &mut back).expect("a frame");
    assert!(back == raw);
}
