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
const BRANCH_TRIAL: usize = 64 << 10;
/// Longer frames are looked at in parts of at least this.
const PART: usize = 512 << 10;
/// What must be saved in a trial: a share of what it takes without the filter.
const GROUP_GAIN: f32 = 0.03;
const BRANCH_GAIN: f32 = 0.015;
/// Trials are made with no higher level than this: whether a filter pays hardly depends on it, and their cost does.
const TRIAL_LEVEL: i8 = 2;
/// The share of operands that speaks for code: from here on a frame is worth a trial, which decides.
const X86_DENSITY: f32 = 0.006;

/// What one thread has learnt about filters.
pub(super) struct Filters {
    /// For elements of two, four and eight bytes: as they are, rotated, or not at all.
    group: [Trust<Filter>; 3],
    x86: Trust,
    arm64: Trust,
    filtered: Vec<u8>,
    scratch: Vec<u8>,
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            group: [Trust::new(16); 3],
            x86: Trust::new(64),
            arm64: Trust::new(64),
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
        if let Some(strength) = in_parts(raw, sample, x86_signs)
            && self.branches(codec, spec, Filter::X86, strength, raw)
        {
            return Filter::X86;
        }
        if let Some((phase, strength)) = arm64_signs(sample)
            && self.branches(codec, spec, Filter::Arm64(phase), strength, raw)
        {
            return Filter::Arm64(phase);
        }
        match sample.element_width() {
            Some((width, strength)) => self.grouping(codec, spec, width, strength, raw),
            None => Filter::None,
        }
    }

    /// A frame with `filter` came out larger than could be expected.
    pub fn disappointed(&mut self, filter: Filter) {
        match filter {
            Filter::None => {}
            Filter::X86 => self.x86.forget(),
            Filter::Arm64(_) => self.arm64.forget(),
            _ => self.group[group_place(filter.planes())].forget(),
        }
    }

    /// How elements of `width` bytes are grouped.
    fn grouping(
        &mut self,
        codec: &mut dyn FrameCodec,
        spec: CodecSpec,
        width: usize,
        strength: f32,
        raw: &[u8],
    ) -> Filter {
        let place = group_place(width);
        if let Some(known) = self.group[place].ask(strength) {
            return known;
        }
        let (plain, rotated) = [
            (Filter::Group2, Filter::Float2),
            (Filter::Group4, Filter::Float4),
            (Filter::Group8, Filter::Float8),
        ][place];
        let piece = middle(raw, GROUP_TRIAL);
        let mut len = |filter| self.trial(codec, spec, filter, piece) as f32;
        let best = (1.0 - GROUP_GAIN) * len(Filter::None);
        let (plain_len, rotated_len) = (len(plain), len(rotated));
        let verdict = match plain_len.min(rotated_len) {
            least if least >= best => Filter::None,
            least if least == plain_len => plain,
            _ => rotated,
        };
        self.group[place].learn(verdict, strength)
    }

    /// Whether branches are converted.
    fn branches(
        &mut self,
        codec: &mut dyn FrameCodec,
        spec: CodecSpec,
        filter: Filter,
        strength: f32,
        raw: &[u8],
    ) -> bool {
        if let Some(known) = self.branch_trust(filter).ask(strength) {
            return known;
        }
        let (mut with, mut without) = (0, 0);
        for part in parts(raw) {
            let piece = middle(part, BRANCH_TRIAL);
            with += self.trial(codec, spec, filter, piece);
            without += self.trial(codec, spec, Filter::None, piece);
        }
        let pays = (with as f32) < (1.0 - BRANCH_GAIN) * without as f32;
        self.branch_trust(filter).learn(pays, strength)
    }

    fn branch_trust(&mut self, filter: Filter) -> &mut Trust {
        if filter == Filter::X86 { &mut self.x86 } else { &mut self.arm64 }
    }

    /// How long `piece` becomes with `filter`: no longer than it is.
    fn trial(&mut self, codec: &mut dyn FrameCodec, spec: CodecSpec, filter: Filter, piece: &[u8]) -> usize {
        let spec = CodecSpec { level: spec.level.min(TRIAL_LEVEL), ..spec };
        let filtered = if filter == Filter::None {
            piece
        } else {
            apply_filter(filter, piece, &mut self.filtered);
            &self.filtered
        };
        // More room than the piece has: also that something becomes compressible is a gain.
        let room = piece.len() + piece.len() / 8;
        let fits = compress_filtered(codec, spec, filter, filtered, room, &mut self.scratch);
        if fits { self.scratch.len().min(piece.len()) } else { piece.len() }
    }
}

/// Where what is known of elements of two, four and eight bytes lies.
fn group_place(width: usize) -> usize {
    match width {
        2 => 0,
        4 => 1,
        _ => 2,
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

/// A frame of several times the usual length, as parts of about that: programs lie beside other things, and what is looked at should not be the other things alone.
fn parts(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = (raw.len() / PART).max(1);
    // Instructions of all architectures begin at multiples of this at most.
    let len = (raw.len() / count) & !15;
    (0..count).map(move |number| {
        &raw[number * len..if number + 1 == count { raw.len() } else { (number + 1) * len }]
    })
}

/// The mean of what `signs` says of a frame's parts, of which some may speak for code and others not. `sample` is the whole frame's.
fn in_parts(raw: &[u8], sample: &Sample, signs: fn(&[u8], &Sample) -> Option<f32>) -> Option<f32> {
    if raw.len() < 2 * PART {
        return signs(raw, sample);
    }
    let count = parts(raw).count();
    let all: f32 = parts(raw).filter_map(|part| signs(part, &Sample::take(part)?)).sum();
    (all > 0.0).then_some(all / count as f32)
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
