//! Four lanes of NEON, four times: sixteen.
//!
//! A step of MD5 is a chain of six instructions that wait for each other. Four vectors at once keep
//! a processor with two or four vector units busy, and the states of MD5 and SHA-1 still fit into
//! the 32 registers.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::function::Function;
use super::vector::{Pair, Vector};
use super::windows::Windows;
use crate::SimdLevel;

/// Takes `blocks` of each lane into its state.
///
/// # Panics
/// If the processor lacks NEON.
pub(super) fn blocks<F: Function<W>, const W: usize>(
    state: &mut [[u32; LANES]; W],
    blocks: &[&[[u8; 64]]; LANES],
) {
    assert!(SimdLevel::detect() >= SimdLevel::Neon);
    // SAFETY: the line above checked that the processor has the feature that `run_blocks` enables.
    unsafe { run_blocks::<F, W>(state, blocks) }
}

/// Lanes of [`blocks`] and [`windows`].
pub(super) const LANES: usize = 16;

type Lanes = Pair<Pair<V4>>;

#[target_feature(enable = "neon")]
fn run_blocks<F: Function<W>, const W: usize>(state: &mut [[u32; LANES]; W], blocks: &[&[[u8; 64]]; LANES]) {
    super::function::blocks::<F, Lanes, W, LANES>(state, blocks);
}

/// Hashes groups of [`LANES`] windows.
///
/// # Panics
/// If the processor lacks NEON.
pub(super) fn windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    assert!(SimdLevel::detect() >= SimdLevel::Neon);
    // SAFETY: the line above checked that the processor has the feature that `run_windows` enables.
    unsafe { run_windows::<F, W>(windows, groups, out) }
}

#[target_feature(enable = "neon")]
fn run_windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    windows.groups::<F, Lanes, W, LANES>(groups, out);
}

/// Values exist only inside functions that enable NEON: `run_blocks`, `run_windows` and the
/// functions inlined into them.
#[derive(Clone, Copy)]
struct V4(uint32x4_t);

impl Vector<4> for V4 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vdupq_n_u32(word) })
    }
    #[inline(always)]
    fn load(words: &[u32; 4]) -> Self {
        // SAFETY: see the type; the array has the four words that are read.
        Self(unsafe { vld1q_u32(words.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, words: &mut [u32; 4]) {
        // SAFETY: see the type; the array has the four words that are written.
        unsafe { vst1q_u32(words.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn transposed(blocks: &[&[u8; 64]; 4]) -> [Self; 16] {
        // SAFETY: see the type; each array has the 64 bytes that are read, without need of
        // alignment.
        unsafe {
            let mut words = [Self(vdupq_n_u32(0)); 16];
            let mut quarter = 0;
            while quarter < 4 {
                let mut rows = [vdupq_n_u8(0); 4];
                let mut lane = 0;
                while lane < 4 {
                    rows[lane] = vld1q_u8(blocks[lane].as_ptr().add(16 * quarter));
                    lane += 1;
                }
                let rows = transpose(rows);
                let mut word = 0;
                while word < 4 {
                    words[4 * quarter + word] = Self(rows[word]);
                    word += 1;
                }
                quarter += 1;
            }
            words
        }
    }
    #[inline(always)]
    fn prefetch(block: &[u8; 64]) {
        // SAFETY: every processor has PRFM, which reads nothing, and the address is a valid one
        // besides.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) block.as_ptr(), options(readonly, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    fn adjacent(bytes: &[u8]) -> Self {
        let bytes: &[u8; 16] = bytes.first_chunk().expect("four bytes a lane");
        // SAFETY: see the type; the array has the 16 bytes that are read, without need of
        // alignment.
        Self(unsafe { vreinterpretq_u32_u8(vld1q_u8(bytes.as_ptr())) })
    }
    #[inline(always)]
    fn sliding(bytes: &[u8]) -> Self {
        const WORDS: [u8; 16] = [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6];
        let bytes: &[u8; 16] = bytes.first_chunk().expect("sliding_len bytes");
        // SAFETY: see the type; the arrays have the 16 bytes that are read, without need of
        // alignment.
        unsafe {
            let words = vqtbl1q_u8(vld1q_u8(bytes.as_ptr()), vld1q_u8(WORDS.as_ptr()));
            Self(vreinterpretq_u32_u8(words))
        }
    }
    #[inline(always)]
    fn swap_bytes(self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(self.0))) })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vaddq_u32(self.0, other.0) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vandq_u32(self.0, other.0) })
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vorrq_u32(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { veorq_u32(self.0, other.0) })
    }
    #[inline(always)]
    fn xor3(self, b: Self, c: Self) -> Self {
        self.xor(b.xor(c))
    }
    #[inline(always)]
    fn select(self, yes: Self, no: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { vbslq_u32(self.0, yes.0, no.0) })
    }
    #[inline(always)]
    fn select_late(self, yes: Self, no: Self) -> Self {
        self.select(yes, no)
    }
    #[inline(always)]
    fn majority(self, b: Self, c: Self) -> Self {
        // This is known last: it decides where the two others differ.
        b.xor(c).select(self, b)
    }
    #[inline(always)]
    fn md5_last(self, c: Self, d: Self) -> Self {
        // SAFETY: see the type.
        c.xor(Self(unsafe { vornq_u32(self.0, d.0) }))
    }
    #[inline(always)]
    fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: see the type. (Shifts right and inserts beside the bits that were shifted left.)
        Self(unsafe { vsriq_n_u32::<R>(vshlq_n_u32::<L>(self.0), self.0) })
    }
    #[inline(always)]
    fn shift_right<const R: u32>(self) -> Self {
        // SAFETY: see the type. (The count is a constant: it becomes the immediate form.)
        Self(unsafe { vshlq_u32(self.0, vdupq_n_s32(-R.cast_signed())) })
    }
}

/// Transposes a 4×4 matrix of 32-bit words.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
pub(in crate::cpu) unsafe fn transpose(rows: [uint8x16_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let [a, b, c, d] = [
            vreinterpretq_u32_u8(rows[0]),
            vreinterpretq_u32_u8(rows[1]),
            vreinterpretq_u32_u8(rows[2]),
            vreinterpretq_u32_u8(rows[3]),
        ];
        let ab = [vreinterpretq_u64_u32(vtrn1q_u32(a, b)), vreinterpretq_u64_u32(vtrn2q_u32(a, b))];
        let cd = [vreinterpretq_u64_u32(vtrn1q_u32(c, d)), vreinterpretq_u64_u32(vtrn2q_u32(c, d))];
        [
            vreinterpretq_u32_u64(vtrn1q_u64(ab[0], cd[0])),
            vreinterpretq_u32_u64(vtrn1q_u64(ab[1], cd[1])),
            vreinterpretq_u32_u64(vtrn2q_u64(ab[0], cd[0])),
            vreinterpretq_u32_u64(vtrn2q_u64(ab[1], cd[1])),
        ]
    }
}
