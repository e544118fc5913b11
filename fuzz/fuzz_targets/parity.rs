//! Descriptions of parity files: no panic, and what decodes encodes to the same again.
#![no_main]

#[path = "../../crates/format/tests/every/mod.rs"]
mod every;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| every::parity(bytes));
