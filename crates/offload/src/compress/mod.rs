//! Compression as a service: what is asked for goes in, the best frame that can be had for it comes out.
//!
//! ```text
//!  policy: codec or auto ──▶ Auto: level by what processors have time for   (auto.rs; one per writer)
//!                                   │
//!  frame ──▶ sample ──▶ filter? ──▶ codec within the budget ──▶ frame, or "store it as it is"   (encoder.rs; one per thread)
//!                          │ a trial on a piece, remembered        │
//!                          └── plan ──────────────────────────────▶ or a device (route.rs, devices.rs), and nobody waits
//! ```
//!
//! What compresses on the calling thread is a [`FrameCodec`]: the processor's [`Compressor`](crate::Compressor), or what a test gives. Devices take what the
//! encoder has planned, by way of the runtime ([`FrameDevices`]). Whatever wrote a frame, [`FrameDecoder`] reads it.

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

/// The most that a compressed frame may have of its source: beyond it, the source is stored as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Budget {
    percent: u8,
}

impl Budget {
    /// Of so many per cent; `None` unless that is from 1 to 99.
    pub fn of_percent(percent: u8) -> Option<Self> {
        (1..100).contains(&percent).then_some(Self { percent })
    }

    /// In per cent.
    pub fn percent(self) -> u8 {
        self.percent
    }

    /// Bytes for a source of `len`.
    ///
    /// ```
    /// assert_eq!(outrigger_offload::Budget::default().room(1000), 900);
    /// ```
    pub fn room(self, len: usize) -> usize {
        (len as u64 * u64::from(self.percent) / 100) as usize
    }
}

impl Default for Budget {
    /// 90 %: what saves less is not worth decompressing.
    fn default() -> Self {
        Self { percent: 90 }
    }
}

/// What a policy says about compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Compression {
    /// Which codec.
    pub codec: CodecChoice,
    /// Whether filters may be put before it.
    pub filters: bool,
    /// What is worth it.
    pub budget: Budget,
}

impl Compression {
    /// Stored as it is.
    pub const NONE: Compression =
        Compression { codec: CodecChoice::NONE, filters: false, budget: Budget { percent: 90 } };

    /// How many times as long as usual its frames are best: `auto` may choose that, too. A longer frame is smaller by what a higher level saves, and costs no time to make, but
    /// more to read a part of; so those of `ratio` are the longest.
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
