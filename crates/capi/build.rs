//! Gives the shared library the name that programs look for: it changes when the interface breaks.

/// `OUTRIGGER_ABI` of `src/status.rs`; a test compares them.
const ABI: u32 = 1;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboutrigger.so.{ABI}");
    }
}
