//! Which filter a frame gets.
//!
//! The sample proposes; a trial with the codec itself, on a piece of the frame with and without the filter, decides; and what it says is believed for
//! the next frames that look alike (`trust.rs`). So a filter is used only where it was seen to pay, and a frame that is neither numbers
//! nor code costs no more than a look at the sample.

use outrigger_format::{Codec, CodecSpec, Filter};

use super::encoder::{FrameCodec, compress_filtered};
use super::trust::Trust;
use crate::cpu::{Sample, apply_filter, x86_density};

/// Bytes of a trial: grouping shows on little, calls of the same functions need room.
const GROUP_TRIAL: usize = 32 << 10;
const BRANCH_TRIAL: usize = 128 << 10;
/// What must be saved in a trial: a share of what it takes without the filter.
const GROUP_GAIN: f32 = 0.03;
const BRANCH_GAIN: f32 = 0.015;
/// Trials are made with no higher level than this: whether a filter pays hardly depends on it, and their cost does.
const TRIAL_LEVEL: i8 = 2;
/// The share of operands that speaks for code: from here on a frame is worth a trial, which decides.
const X86_DENSITY: f32 = 0.006;

/// What one thread has learnt about filters.
pub(super) struct Filters {
    group: [Trust; 3],
    x86: Trust,
    arm64: Trust,
    filtered: Vec<u8>,
    scratch: Vec<u8>,
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            group: [Trust::new(8); 3],
            x86: Trust::new(16),
            arm64: Trust::new(16),
            filtered: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

impl Filters {
    /// The filter for `raw`, of which `sample` was taken.
    pub fn choose(
        &mut self,
        codec: &mut dyn FrameCodec,
        spec: CodecSpec,
        raw: &[u8],
        sample: &Sample,
    ) -> Filter {
        if let Some(strength) = x86_signs(raw, sample) {
            let piece = middle(raw, BRANCH_TRIAL);
            if self.decide(codec, spec, Filter::X86, strength, piece, BRANCH_GAIN) {
                return Filter::X86;
            }
        }
        if let Some((phase, strength)) = arm64_signs(sample) {
            let piece = middle(raw, BRANCH_TRIAL);
            if self.decide(codec, spec, Filter::Arm64(phase), strength, piece, BRANCH_GAIN) {
                return Filter::Arm64(phase);
            }
        }
        if let Some((width, strength)) = sample.element_width() {
            let filter = match width {
                2 => Filter::Group2,
                4 => Filter::Group4,
                _ => Filter::Group8,
            };
            let piece = middle(raw, GROUP_TRIAL);
            if self.decide(codec, spec, filter, strength, piece, GROUP_GAIN) {
                return filter;
            }
        }
        Filter::None
    }

    /// A frame with `filter` came out larger than could be expected.
    pub fn disappointed(&mut self, filter: Filter) {
        if let Some(trust) = self.trust(filter) {
            trust.forget();
        }
    }

    fn trust(&mut self, filter: Filter) -> Option<&mut Trust> {
        match filter {
            Filter::None => None,
            Filter::Group2 => Some(&mut self.group[0]),
            Filter::Group4 => Some(&mut self.group[1]),
            Filter::Group8 => Some(&mut self.group[2]),
            Filter::X86 => Some(&mut self.x86),
            Filter::Arm64(_) => Some(&mut self.arm64),
        }
    }

    fn decide(
        &mut self,
        codec: &mut dyn FrameCodec,
        spec: CodecSpec,
        filter: Filter,
        strength: f32,
        piece: &[u8],
        gain: f32,
    ) -> bool {
        if let Some(known) = self.trust(filter).and_then(|trust| trust.ask(strength)) {
            return known;
        }
        let spec = CodecSpec { level: spec.level.min(TRIAL_LEVEL), ..spec };
        apply_filter(filter, piece, &mut self.filtered);
        // More room than the piece has: also that something becomes compressible is a gain.
        let room = piece.len() + piece.len() / 8;
        let mut len = |filter, bytes: &[u8]| {
            let fits = compress_filtered(codec, spec, filter, bytes, room, &mut self.scratch);
            if fits { self.scratch.len().min(piece.len()) } else { piece.len() }
        };
        let (with, without) = (len(filter, &self.filtered), len(Filter::None, piece));
        let pays = (with as f32) < (1.0 - gain) * without as f32;
        self.trust(filter).is_some_and(|trust| trust.learn(pays, strength))
    }
}

/// Codecs whose results filters change enough to try.
pub(super) fn may_pay(codec: Codec) -> bool {
    !matches!(codec, Codec::None | Codec::Zle)
}

/// `len` bytes from the middle of `raw`, which begin at a multiple of 16, or all of it.
fn middle(raw: &[u8], len: usize) -> &[u8] {
    if raw.len() <= len {
        return raw;
    }
    let start = ((raw.len() - len) / 2) & !15;
    &raw[start..start + len]
}

/// The share of operands that the x86-64 filter would convert, if that speaks for code.
fn x86_signs(raw: &[u8], sample: &Sample) -> Option<f32> {
    // What is frequent in code: a prefix of 64-bit instructions, near calls, loads. The sample has 4,096 bytes.
    let often = |byte, least| sample.count(byte, 1, 0) >= least;
    if !often(0x48, 40) || !often(0xe8, 8) || !often(0x8b, 20) {
        return None;
    }
    let stretches = 8;
    let step = (raw.len() - 1024) / (stretches - 1);
    let density = (0..stretches).map(|number| x86_density(&raw[number * step..][..1024])).sum::<f32>();
    Some(density / stretches as f32).filter(|&density| density >= X86_DENSITY)
}

/// Where ARM64 instructions begin, and the share of words that are calls, if that speaks for code.
fn arm64_signs(sample: &Sample) -> Option<(u8, f32)> {
    (0..4)
        .filter_map(|phase| {
            let highest = |bytes: &[usize]| -> u32 {
                bytes.iter().map(|&byte| sample.count(byte, 4, (phase + 3) % 4)).sum()
            };
            // The sample has 1,024 words. Frequent in code: loads, stores, moves, additions, branches; then calls and pages.
            let usual =
                highest(&[0xf9, 0xa9, 0x91, 0xaa, 0xb9, 0x52, 0xd2, 0xf1, 0xeb, 0x54, 0xb4, 0xb5, 0xd6]);
            let calls = highest(&[0x94, 0x97, 0x90, 0xb0, 0xd0, 0xf0]);
            (usual >= 300 && calls >= 20).then_some((phase as u8, calls as f32 / 1024.0))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
}
