//! The stand-in for QATzip.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::qat::QatOptions;

use crate::common::{Copy, built, compute};

static BUILT: LazyLock<PathBuf> = LazyLock::new(|| built("qatzip", "tests/it/qat/standin.c", &[]));

type PrepareFunction = unsafe extern "C" fn(c_int, *const u8, usize, *const u8, usize);

/// A stand-in for a card.
pub struct StandIn(Copy);

impl StandIn {
    /// A card that really compresses, with four instances.
    pub fn new() -> Self {
        Self(Copy::of(&BUILT, codec))
    }

    /// The options of a device on it.
    pub fn options(&self, sessions: usize) -> QatOptions {
        QatOptions { library: Some(self.path()), sessions }
    }

    /// From now on, `raw` gives this gzip member without any computation.
    pub fn prepare_gzip(&self, raw: &[u8], result: &[u8]) {
        // SAFETY: declared so in standin.c, which copies the result.
        unsafe {
            let prepare = self.library.get::<PrepareFunction>(b"standin_prepare").expect("a function");
            prepare(1, raw.as_ptr(), raw.len(), result.as_ptr(), result.len());
        }
    }

    /// Runs `work` while the card fails in alternating ways: for `pause`, one call in `every`
    /// fails; then for as long, no call fails, but all sessions so far are lost.
    #[allow(dead_code, reason = "the store's tests and benchmark have storms")]
    pub fn storm<T>(&self, every: i64, pause: Duration, work: impl FnOnce() -> T) -> T {
        /// Ends the storm even if the work panics, or nobody would see the reason.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let faults = [("code", -2), ("hang", 1), ("code", -3), ("code", -103), ("corrupt", 1)];
                for (what, to) in faults.into_iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    self.set(what, to);
                    self.set("every", every);
                    std::thread::sleep(pause);
                    self.set("every", 0);
                    self.set(what, 0);
                    self.set("life", self.get("life") + 1);
                    std::thread::sleep(pause);
                }
            });
            let _over = Over(&over);
            work()
        })
    }
}

impl Deref for StandIn {
    type Target = Copy;

    fn deref(&self) -> &Copy {
        &self.0
    }
}

/// The computation of the card.
unsafe extern "C" fn codec(
    format: c_int,
    level: c_int,
    decompress: c_int,
    source: *const u8,
    len: usize,
    target: *mut u8,
    room: usize,
) -> i64 {
    let (codec, level) = match format {
        1 => (Codec::Gzip, level as i8),
        3 => (Codec::Deflate, level as i8),
        _ => (Codec::Lz4, 0),
    };
    // SAFETY: both buffers are as long as standin.c says, and do not overlap.
    unsafe { compute(CodecSpec { codec, level }, decompress != 0, (source, len), (target, room), (-3, -4)) }
}
