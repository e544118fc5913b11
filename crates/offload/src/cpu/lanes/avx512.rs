//! Sixteen lanes of AVX-512, or twice sixteen.
//!
//! Rotations and all three-operand functions are one instruction each (VPROLD, VPTERNLOGD).
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::function::Function;
use super::vector::{Pair, Vector};
use super::windows::Windows;
use crate::SimdLevel;

/// Takes `blocks` of each lane into its state.
///
/// # Panics
/// If the processor lacks AVX-512.
pub(super) fn blocks<F: Function<W>, const W: usize>(
    state: &mut [[u32; LANES]; W],
    blocks: &[&[[u8; 64]]; LANES],
) {
    assert!(SimdLevel::detect() >= SimdLevel::Avx512);
    // SAFETY: the line above checked that the processor has the features that `run_blocks` enables.
    unsafe { run_blocks::<F, W>(state, blocks) }
}

/// Lanes of [`blocks`].
pub(super) const LANES: usize = 16;

#[target_feature(enable = "avx512f,avx512bw")]
fn run_blocks<F: Function<W>, const W: usize>(state: &mut [[u32; LANES]; W], blocks: &[&[[u8; 64]]; LANES]) {
    super::function::blocks::<F, V16, W, LANES>(state, blocks);
}

/// Hashes groups of [`WINDOW_LANES`] windows.
///
/// # Panics
/// If the processor lacks AVX-512.
pub(super) fn windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    assert!(SimdLevel::detect() >= SimdLevel::Avx512);
    // SAFETY: the line above checked that the processor has the features that `run_windows`
    // enables.
    unsafe { run_windows::<F, W>(windows, groups, out) }
}

/// Lanes of [`windows`].
pub(super) const WINDOW_LANES: usize = 32;

#[target_feature(enable = "avx512f,avx512bw")]
fn run_windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    windows.groups::<F, Pair<V16>, W, WINDOW_LANES>(groups, out);
}

/// Values exist only inside functions that enable AVX-512 F and BW: `run_blocks`, `run_windows` and
/// the functions inlined into them.
#[derive(Clone, Copy)]
struct V16(__m512i);

/// The truth table of an instruction with three operands, bit by bit.
macro_rules! ternary {
    ($table:literal, $a:expr, $b:expr, $c:expr) => {
        // SAFETY: see the type.
        V16(unsafe { _mm512_ternarylogic_epi32::<$table>($a.0, $b.0, $c.0) })
    };
}

impl Vector<16> for V16 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }
    #[inline(always)]
    fn load(words: &[u32; 16]) -> Self {
        // SAFETY: see the type; the array has the 64 bytes that are read, without need of
        // alignment.
        Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }
    #[inline(always)]
    fn store(self, words: &mut [u32; 16]) {
        // SAFETY: see the type; the array has the 64 bytes that are written, without need of
        // alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) }
    }
    #[inline(always)]
    fn transposed(blocks: &[&[u8; 64]; 16]) -> [Self; 16] {
        // SAFETY: see the type; each array has the 64 bytes that are read, without need of
        // alignment.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            let mut lane = 0;
            while lane < 16 {
                rows[lane] = _mm512_loadu_si512(blocks[lane].as_ptr().cast());
                lane += 1;
            }
            let rows = transpose(rows);
            let mut words = [Self(rows[0]); 16];
            let mut word = 1;
            while word < 16 {
                words[word] = Self(rows[word]);
                word += 1;
            }
            words
        }
    }
    #[inline(always)]
    fn prefetch(block: &[u8; 64]) {
        // SAFETY: the processor has SSE if it has this; a prefetch reads nothing, and the address
        // is a valid one besides.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().cast()) }
    }
    #[inline(always)]
    fn adjacent(bytes: &[u8]) -> Self {
        let bytes: &[u8; 64] = bytes.first_chunk().expect("four bytes a lane");
        // SAFETY: see the type; the array has the 64 bytes that are read, without need of
        // alignment.
        Self(unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) })
    }
    #[inline(always)]
    fn sliding(bytes: &[u8]) -> Self {
        let bytes: &[u8; 32] = bytes.first_chunk().expect("sliding_len bytes");
        // SAFETY: see the type; the array has the 32 bytes that are read, without need of
        // alignment.
        unsafe {
            let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(bytes.as_ptr().cast()));
            // Quarter q gets words q and q + 1, and makes of these eight bytes the words at its
            // first four.
            let quarters = _mm512_set_epi32(0, 0, 4, 3, 0, 0, 3, 2, 0, 0, 2, 1, 0, 0, 1, 0);
            let words = _mm512_set4_epi32(0x0605_0403, 0x0504_0302, 0x0403_0201, 0x0302_0100);
            Self(_mm512_shuffle_epi8(_mm512_permutexvar_epi32(quarters, bytes), words))
        }
    }
    #[inline(always)]
    fn swap_bytes(self) -> Self {
        // SAFETY: see the type.
        unsafe {
            let order = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
            Self(_mm512_shuffle_epi8(self.0, order))
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    fn xor3(self, b: Self, c: Self) -> Self {
        ternary!(0x96, self, b, c)
    }
    #[inline(always)]
    fn select(self, yes: Self, no: Self) -> Self {
        ternary!(0xca, self, yes, no)
    }
    #[inline(always)]
    fn select_late(self, yes: Self, no: Self) -> Self {
        self.select(yes, no)
    }
    #[inline(always)]
    fn majority(self, b: Self, c: Self) -> Self {
        ternary!(0xe8, self, b, c)
    }
    #[inline(always)]
    fn md5_last(self, c: Self, d: Self) -> Self {
        // c ^ (b | !d), with the operands b, c, d.
        ternary!(0x39, self, c, d)
    }
    #[inline(always)]
    fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_rol_epi32::<L>(self.0) })
    }
    #[inline(always)]
    fn shift_right<const R: u32>(self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm512_srli_epi32::<R>(self.0) })
    }
}

/// Transposes a 16×16 matrix of 32-bit words.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(in crate::cpu) unsafe fn transpose(mut r: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = r;
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        for i in 0..8 {
            a[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for b in [0, 4, 8, 12] {
            r[b] = _mm512_unpacklo_epi64(a[b], a[b + 2]);
            r[b + 1] = _mm512_unpackhi_epi64(a[b], a[b + 2]);
            r[b + 2] = _mm512_unpacklo_epi64(a[b + 1], a[b + 3]);
            r[b + 3] = _mm512_unpackhi_epi64(a[b + 1], a[b + 3]);
        }
        for i in 0..4 {
            a[i] = _mm512_shuffle_i32x4::<0x88>(r[i], r[i + 4]);
            a[i + 4] = _mm512_shuffle_i32x4::<0xdd>(r[i], r[i + 4]);
            a[i + 8] = _mm512_shuffle_i32x4::<0x88>(r[i + 8], r[i + 12]);
            a[i + 12] = _mm512_shuffle_i32x4::<0xdd>(r[i + 8], r[i + 12]);
        }
        for i in 0..4 {
            r[i] = _mm512_shuffle_i32x4::<0x88>(a[i], a[i + 8]);
            r[i + 8] = _mm512_shuffle_i32x4::<0xdd>(a[i], a[i + 8]);
            r[i + 4] = _mm512_shuffle_i32x4::<0x88>(a[i + 4], a[i + 12]);
            r[i + 12] = _mm512_shuffle_i32x4::<0xdd>(a[i + 4], a[i + 12]);
        }
    }
    r
}
