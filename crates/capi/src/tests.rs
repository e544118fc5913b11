//! Tests that need the crate's internals.

use crate::metrics::{outrigger_device_metrics, outrigger_metrics};
use crate::status::outrigger_status::*;
use crate::status::{self, OUTRIGGER_ABI, outrigger_last_error, outrigger_status_name};
use crate::task::outrigger_report;
use crate::types::*;

fn text(pointer: *const std::ffi::c_char) -> String {
    // SAFETY: what the library's functions return ends with a zero.
    unsafe { std::ffi::CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

#[test]
fn a_panic_is_an_error() {
    let panics = || -> status::Result { panic!("seven is {}", 8) };
    assert_eq!(status::status(panics), OUTRIGGER_BUG);
    assert!(text(outrigger_last_error()).contains("seven is 8"));
    assert_eq!(status::value(5, || Err(status::Error::invalid("zero\0inside"))), 5);
    assert_eq!(text(outrigger_last_error()), "zero inside");
}

#[test]
fn errors_are_each_threads_own() {
    assert_eq!(status::value(1, || Err(status::Error::invalid("here"))), 1);
    let there = std::thread::spawn(|| text(outrigger_last_error())).join().expect("no panic");
    assert_eq!((text(outrigger_last_error()), there), ("here".to_string(), String::new()));
}

#[test]
fn every_status_has_its_name() {
    let all = [
        OUTRIGGER_OK,
        OUTRIGGER_INVALID,
        OUTRIGGER_STATE,
        OUTRIGGER_SPACE,
        OUTRIGGER_FULL,
        OUTRIGGER_PENDING,
        OUTRIGGER_CANCELLED,
        OUTRIGGER_EXPIRED,
        OUTRIGGER_STOPPED,
        OUTRIGGER_DATA,
        OUTRIGGER_UNSUPPORTED,
        OUTRIGGER_ABSENT,
        OUTRIGGER_IO,
        OUTRIGGER_BUG,
    ];
    for (number, status) in (0..).zip(all) {
        assert_eq!((status as i32, text(outrigger_status_name(number))), (number, format!("{status:?}")));
    }
    assert_eq!(text(outrigger_status_name(14)), "unknown");
    assert_eq!(text(outrigger_status_name(-1)), "unknown");
}

/// Sizes and offsets of version 1 on 64-bit machines, to notice a change. It needs another
/// OUTRIGGER_ABI, except for fields that are appended to the last three.
#[test]
#[cfg(target_pointer_width = "64")]
fn the_binary_interface_is_what_it_was() {
    use std::mem::offset_of;
    assert_eq!(OUTRIGGER_ABI, 1);
    assert_eq!(size_of::<outrigger_fingerprint>(), 32);
    assert_eq!((size_of::<outrigger_range>(), size_of::<outrigger_stream>()), (8, 12));
    assert_eq!((size_of::<outrigger_chunk>(), offset_of!(outrigger_chunk, found)), (48, 44));
    assert_eq!((size_of::<outrigger_window>(), offset_of!(outrigger_window, step)), (24, 16));
    assert_eq!(size_of::<crate::operation::outrigger_kernel>(), 32);
    assert_eq!((size_of::<outrigger_report>(), offset_of!(outrigger_report, predicted_ns)), (64, 56));
    assert_eq!((size_of::<outrigger_metrics>(), offset_of!(outrigger_metrics, buffers_kept_bytes)), (48, 40));
    assert_eq!(offset_of!(outrigger_device_metrics, faults), 256);
    assert_eq!(size_of::<outrigger_device_metrics>(), 312);
}

/// C's numbers mean the same in the library.
#[test]
fn numbers_mean_what_they_say() {
    use outrigger_format::Codec;
    use outrigger_format::FingerprintKind::*;
    use outrigger_hash_kind::*;
    let kinds = [
        (OUTRIGGER_BLAKE3, Blake3),
        (OUTRIGGER_SHA256, Sha256),
        (OUTRIGGER_MD5, Md5),
        (OUTRIGGER_SHA1, Sha1),
        (OUTRIGGER_PMD_MD5, PmdMd5),
        (OUTRIGGER_PMD_SHA1, PmdSha1),
        (OUTRIGGER_PMD_SHA256, PmdSha256),
    ];
    for (number, kind) in kinds {
        assert_eq!(super::types::kind(number as u32).expect("a kind"), kind);
    }
    let codecs = [
        outrigger_codec::OUTRIGGER_CODEC_NONE,
        outrigger_codec::OUTRIGGER_CODEC_ZSTD,
        outrigger_codec::OUTRIGGER_CODEC_LZ4,
        outrigger_codec::OUTRIGGER_CODEC_GZIP,
        outrigger_codec::OUTRIGGER_CODEC_DEFLATE,
        outrigger_codec::OUTRIGGER_CODEC_ZLE,
        outrigger_codec::OUTRIGGER_CODEC_LZJB,
    ];
    assert_eq!(codecs.len(), Codec::ALL.len());
    for (number, codec) in codecs.into_iter().zip(Codec::ALL) {
        let name = format!("{number:?}").replace("OUTRIGGER_CODEC_", "").to_lowercase();
        assert_eq!((number as u32, &name[..]), (codec as u32, codec.name()));
    }
    let functions = [
        outrigger_window_function::OUTRIGGER_WINDOW_MD5,
        outrigger_window_function::OUTRIGGER_WINDOW_SHA1,
        outrigger_window_function::OUTRIGGER_WINDOW_RABIN,
        outrigger_window_function::OUTRIGGER_WINDOW_GEAR32,
    ];
    for (function, known) in functions.into_iter().zip(outrigger_offload::op::WindowFunction::ALL) {
        let spec = outrigger_window { function: function as u32, keep: 1, window: 20, step: 1 };
        assert_eq!(window(&spec).expect("valid").function, known);
    }
}
