//! Compression as a service: finds the best frame within a policy's budget.
//!
//! ```text
//!  policy: codec or auto ──▶ Auto: level by what processors have time for   (auto.rs; one per writer)
//!                                   │
//!  frame ──▶ sample ──▶ filter? ──▶ codec within the budget ──▶ frame, or "store it as it is"   (encoder.rs; one per thread)
//!                          │ a trial on a piece, remembered        │
//!                          └── plan ──────────────────────────────▶ or a device (route.rs, devices.rs), and nobody waits
//! ```
//!
//! The calling thread compresses with a [`FrameCodec`]: the processor's
//! [`Compressor`](crate::Compressor), or a test's. Devices get planned frames through the runtime
//! ([`FrameDevices`]). [`FrameDecoder`] reads every frame, no matter who compressed it.

mod auto;
mod decoder;
mod decoding;
mod devices;
mod encoder;
mod filters;
mod route;
mod trust;

use outrigger_format::{CodecChoice, CodecSpec, Objective};

pub use self::auto::Auto;
pub use self::decoder::FrameDecoder;
pub use self::decoding::Decoded;
pub use self::devices::{FrameDevices, Made};
pub use self::encoder::{Encoder, FrameCodec, FramePlan, Planned, Wanted};
pub use self::route::{Backlog, Route};

/// The largest compressed size, as a share of the source. Above it, the source is stored as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Budget {
    percent: u8,
}

impl Budget {
    /// A budget of so many per cent. `None` unless `percent` is from 1 to 99.
    pub fn of_percent(percent: u8) -> Option<Self> {
        (1..100).contains(&percent).then_some(Self { percent })
    }

    /// The share in per cent.
    pub fn percent(self) -> u8 {
        self.percent
    }

    /// The most bytes for a source of `len` bytes.
    ///
    /// ```
    /// assert_eq!(outrigger_offload::Budget::default().room(1000), 900);
    /// ```
    pub fn room(self, len: usize) -> usize {
        (len as u64 * u64::from(self.percent) / 100) as usize
    }
}

impl Default for Budget {
    /// 90 %: decompression is not worth a smaller saving.
    fn default() -> Self {
        Self { percent: 90 }
    }
}

/// A policy's compression settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Compression {
    /// Which codec.
    pub codec: CodecChoice,
    /// True if filters may be applied before the codec.
    pub filters: bool,
    /// The size up to which a compressed frame is kept.
    pub budget: Budget,
}

impl Compression {
    /// Stores frames as they are.
    pub const NONE: Compression =
        Compression { codec: CodecChoice::NONE, filters: false, budget: Budget { percent: 90 } };

    /// How many times the usual length its frames should have. A longer frame saves as much as a
    /// higher level would, and costs no extra time to compress. But reading a part of it costs
    /// more. So only `auto` chooses longer frames, and `ratio` the longest.
    pub fn frame_factor(&self) -> usize {
        match self.codec {
            CodecChoice::Auto(Objective::Ratio) => 4,
            CodecChoice::Auto(Objective::Throughput | Objective::Cpu) => 2,
            CodecChoice::Fixed(_) | CodecChoice::Listed(_) => 1,
        }
    }
}

impl From<CodecChoice> for Compression {
    /// With filters, and the usual budget.
    fn from(codec: CodecChoice) -> Self {
        Self { codec, filters: true, budget: Budget::default() }
    }
}

impl From<CodecSpec> for Compression {
    /// With filters, and the usual budget.
    fn from(spec: CodecSpec) -> Self {
        CodecChoice::Fixed(spec).into()
    }
}
