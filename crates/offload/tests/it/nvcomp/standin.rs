//! The stand-in for nvCOMP.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::LazyLock;

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::nvcomp::{Memory, NvcompOptions};

use crate::common::{Copy, built, compute};

static SIX: LazyLock<PathBuf> = LazyLock::new(|| built("nvcomp-6", "tests/it/nvcomp/standin.c", &[]));
static FIVE: LazyLock<PathBuf> =
    LazyLock::new(|| built("nvcomp-5", "tests/it/nvcomp/standin.c", &["-DFIVE"]));

/// A stand-in for a GPU.
pub struct StandIn(Copy);

impl StandIn {
    /// nvCOMP 6.
    pub fn new() -> Self {
        Self(Copy::of(&SIX, codec))
    }

    /// nvCOMP 5.3.
    pub fn five() -> Self {
        Self(Copy::of(&FIVE, codec))
    }

    /// The options of a device on it.
    pub fn options(&self) -> NvcompOptions {
        NvcompOptions {
            library: Some(self.path()),
            memory: Memory::Host,
            decompress: true,
            ..NvcompOptions::of_gpu(0)
        }
    }
}

impl Deref for StandIn {
    type Target = Copy;

    fn deref(&self) -> &Copy {
        &self.0
    }
}

/// The computation of the GPU.
unsafe extern "C" fn codec(
    codec: c_int,
    algorithm: c_int,
    decompress: c_int,
    source: *const u8,
    len: usize,
    target: *mut u8,
    room: usize,
) -> i64 {
    let codec = Codec::from_byte(codec as u8).expect("a codec");
    let level = match codec {
        Codec::Gzip | Codec::Deflate => algorithm.max(1) as i8,
        Codec::Lz4 => 0,
        _ => 1,
    };
    // SAFETY: both buffers are as long as standin.c says, and do not overlap.
    unsafe { compute(CodecSpec { codec, level }, decompress != 0, (source, len), (target, room), (-1, -1)) }
}
