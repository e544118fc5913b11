//! Chooses the filter of a frame.
//!
//! The sample proposes a filter. A trial decides: the codec compresses a piece of the frame with
//! and without the filter. The verdict then holds for the next frames that look alike (`trust.rs`).
//! So a filter is used only where a trial showed a gain, and a frame of neither numbers nor code
//! costs only a look at its sample.

use outrigger_format::{Codec, CodecSpec, Filter};

use super::encoder::{FrameCodec, compress_filtered};
use super::trust::Trust;
use crate::cpu::{Sample, apply_filter, x86_density};

/// Bytes of a trial. Grouping shows on a short piece. Branch conversion needs room for several
/// calls of the same function.
const GROUP_TRIAL: usize = 32 << 10;
const BRANCH_TRIAL: usize = 64 << 10;
/// Longer frames are checked in parts of at least this length.
const PART: usize = 512 << 10;
/// The share that a filter must save in a trial.
const GROUP_GAIN: f32 = 0.03;
const BRANCH_GAIN: f32 = 0.015;
/// The highest level of a trial. It hardly changes whether a filter pays, but it does change the
/// cost.
const TRIAL_LEVEL: i8 = 2;
/// A frame with at least this share of branch operands may be code and gets a trial.
const X86_DENSITY: f32 = 0.006;

/// One thread's memory of which filters paid.
pub(super) struct Filters {
    /// For elements of two, four and eight bytes: grouped, grouped and rotated, or neither.
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
    /// The filter for `raw`, whose sample is `sample`.
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

    /// Forgets the verdict on `filter`, as a frame with it exceeded its budget.
    pub fn disappointed(&mut self, filter: Filter) {
        match filter {
            Filter::None => {}
            Filter::X86 => self.x86.forget(),
            Filter::Arm64(_) => self.arm64.forget(),
            _ => self.group[group_place(filter.planes())].forget(),
        }
    }

    /// The grouping filter for elements of `width` bytes.
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

    /// True if the branch filter pays.
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

    /// The length of `piece` when compressed with `filter`, at most its own length.
    fn trial(&mut self, codec: &mut dyn FrameCodec, spec: CodecSpec, filter: Filter, piece: &[u8]) -> usize {
        let spec = CodecSpec { level: spec.level.min(TRIAL_LEVEL), ..spec };
        let filtered = if filter == Filter::None {
            piece
        } else {
            apply_filter(filter, piece, &mut self.filtered);
            &self.filtered
        };
        // The output may be longer than the piece, as a filter also gains if it makes planes
        // compressible.
        let room = piece.len() + piece.len() / 8;
        let fits = compress_filtered(codec, spec, filter, filtered, room, &mut self.scratch);
        if fits { self.scratch.len().min(piece.len()) } else { piece.len() }
    }
}

/// The index in [`Filters::group`] for elements of two, four and eight bytes.
fn group_place(width: usize) -> usize {
    match width {
        2 => 0,
        4 => 1,
        _ => 2,
    }
}

/// True for codecs that profit enough from filters to try them.
pub(super) fn may_pay(codec: Codec) -> bool {
    !matches!(codec, Codec::None | Codec::Zle)
}

/// `len` bytes from the middle of `raw`, beginning at a multiple of 16. All of `raw` if it is
/// shorter.
fn middle(raw: &[u8], len: usize) -> &[u8] {
    if raw.len() <= len {
        return raw;
    }
    let start = ((raw.len() - len) / 2) & !15;
    &raw[start..start + len]
}

/// Splits a long frame into parts of about the usual length. A program often lies beside other
/// data, and the whole frame's sample could miss it.
fn parts(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = (raw.len() / PART).max(1);
    // No architecture aligns its instructions to more than this.
    let len = (raw.len() / count) & !15;
    (0..count).map(move |number| {
        &raw[number * len..if number + 1 == count { raw.len() } else { (number + 1) * len }]
    })
}

/// The mean of `signs` over a frame's parts, where a part that does not look like code counts as
/// zero. `sample` is that of the whole frame.
fn in_parts(raw: &[u8], sample: &Sample, signs: fn(&[u8], &Sample) -> Option<f32>) -> Option<f32> {
    if raw.len() < 2 * PART {
        return signs(raw, sample);
    }
    let count = parts(raw).count();
    let all: f32 = parts(raw).filter_map(|part| signs(part, &Sample::take(part)?)).sum();
    (all > 0.0).then_some(all / count as f32)
}

/// The share of operands that the x86-64 filter would convert. `None` if the frame does not look
/// like code.
fn x86_signs(raw: &[u8], sample: &Sample) -> Option<f32> {
    // Frequent in code are the prefix of 64-bit instructions, near calls and loads. The sample has
    // 4,096 bytes.
    let often = |byte, least| sample.count(byte, 1, 0) >= least;
    if !often(0x48, 40) || !often(0xe8, 8) || !often(0x8b, 20) {
        return None;
    }
    let stretches = 8;
    let step = (raw.len() - 1024) / (stretches - 1);
    let density = (0..stretches).map(|number| x86_density(&raw[number * step..][..1024])).sum::<f32>();
    Some(density / stretches as f32).filter(|&density| density >= X86_DENSITY)
}

/// Where ARM64 instructions begin, and the share of words that are calls. `None` if the frame does
/// not look like code.
fn arm64_signs(sample: &Sample) -> Option<(u8, f32)> {
    (0..4)
        .filter_map(|phase| {
            let highest = |bytes: &[usize]| -> u32 {
                bytes.iter().map(|&byte| sample.count(byte, 4, (phase + 3) % 4)).sum()
            };
            // The sample has 1,024 words. Frequent in code: loads, stores, moves, additions,
            // branches; then calls and pages.
            let usual =
                highest(&[0xf9, 0xa9, 0x91, 0xaa, 0xb9, 0x52, 0xd2, 0xf1, 0xeb, 0x54, 0xb4, 0xb5, 0xd6]);
            let calls = highest(&[0x94, 0x97, 0x90, 0xb0, 0xd0, 0xf0]);
            (usual >= 300 && calls >= 20).then_some((phase as u8, calls as f32 / 1024.0))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
}
