//! `store.toml`. Its reader never panics, and a valid one is written unchanged. A correct checksum
//! lets the fuzzer reach the rest.
#![no_main]

use outrigger_format::checksum;
use outrigger_store::StoreConfig;

fn check(text: &str) {
    if let Ok(config) = StoreConfig::from_text(text) {
        assert_eq!(StoreConfig::from_text(&config.to_text()).unwrap(), config);
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    check(text);
    check(&format!("{text}checksum = \"{:016x}\"\n", checksum(&[text.as_bytes()])));
});
