//! Eight lanes of AVX2, twice: sixteen.
//!
//! Rotations and three-operand functions take several instructions here, so the chain of a step is
//! longer. Two vectors at once hide that.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::function::Function;
use super::vector::{Pair, Vector};
use super::windows::Windows;
use crate::SimdLevel;

/// Takes `blocks` of each lane into its state.
///
/// # Panics
/// If the processor lacks AVX2.
pub(super) fn blocks<F: Function<W>, const W: usize>(
    state: &mut [[u32; LANES]; W],
    blocks: &[&[[u8; 64]]; LANES],
) {
    assert!(SimdLevel::detect() >= SimdLevel::Avx2);
    // SAFETY: the line above checked that the processor has the feature that `run_blocks` enables.
    unsafe { run_blocks::<F, W>(state, blocks) }
}

/// Lanes of [`blocks`] and [`windows`].
pub(super) const LANES: usize = 16;

#[target_feature(enable = "avx2")]
fn run_blocks<F: Function<W>, const W: usize>(state: &mut [[u32; LANES]; W], blocks: &[&[[u8; 64]]; LANES]) {
    super::function::blocks::<F, Pair<V8>, W, LANES>(state, blocks);
}

/// Hashes groups of [`LANES`] windows.
///
/// # Panics
/// If the processor lacks AVX2.
pub(super) fn windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    assert!(SimdLevel::detect() >= SimdLevel::Avx2);
    // SAFETY: the line above checked that the processor has the feature that `run_windows` enables.
    unsafe { run_windows::<F, W>(windows, groups, out) }
}

#[target_feature(enable = "avx2")]
fn run_windows<F: Function<W>, const W: usize>(windows: &Windows<'_>, groups: usize, out: &mut [u8]) {
    windows.groups::<F, Pair<V8>, W, LANES>(groups, out);
}

/// Values exist only inside functions that enable AVX2: `run_blocks`, `run_windows` and the
/// functions inlined into them.
#[derive(Clone, Copy)]
struct V8(__m256i);

impl Vector<8> for V8 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
    }
    #[inline(always)]
    fn load(words: &[u32; 8]) -> Self {
        // SAFETY: see the type; the array has the 32 bytes that are read, without need of
        // alignment.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }
    #[inline(always)]
    fn store(self, words: &mut [u32; 8]) {
        // SAFETY: see the type; the array has the 32 bytes that are written, without need of
        // alignment.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
    }
    #[inline(always)]
    fn transposed(blocks: &[&[u8; 64]; 8]) -> [Self; 16] {
        // SAFETY: see the type; each array has the 64 bytes that are read, without need of
        // alignment.
        unsafe {
            let mut words = [Self(_mm256_setzero_si256()); 16];
            let mut half = 0;
            while half < 2 {
                let mut rows = [_mm256_setzero_si256(); 8];
                let mut lane = 0;
                while lane < 8 {
                    rows[lane] = _mm256_loadu_si256(blocks[lane].as_ptr().cast::<__m256i>().add(half));
                    lane += 1;
                }
                let rows = transpose(rows);
                let mut word = 0;
                while word < 8 {
                    words[8 * half + word] = Self(rows[word]);
                    word += 1;
                }
                half += 1;
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
        let bytes: &[u8; 32] = bytes.first_chunk().expect("four bytes a lane");
        // SAFETY: see the type; the array has the 32 bytes that are read, without need of
        // alignment.
        Self(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }
    #[inline(always)]
    fn sliding(bytes: &[u8]) -> Self {
        let bytes: &[u8; 16] = bytes.first_chunk().expect("sliding_len bytes");
        // SAFETY: see the type; the array has the 16 bytes that are read, without need of
        // alignment.
        unsafe {
            let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
            let words = _mm256_set_epi32(
                0x0a09_0807,
                0x0908_0706,
                0x0807_0605,
                0x0706_0504,
                0x0605_0403,
                0x0504_0302,
                0x0403_0201,
                0x0302_0100,
            );
            Self(_mm256_shuffle_epi8(bytes, words))
        }
    }
    #[inline(always)]
    fn swap_bytes(self) -> Self {
        // SAFETY: see the type.
        unsafe {
            let order = _mm_set_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
            Self(_mm256_shuffle_epi8(self.0, _mm256_broadcastsi128_si256(order)))
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_and_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_or_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn xor3(self, b: Self, c: Self) -> Self {
        self.xor(b.xor(c))
    }
    #[inline(always)]
    fn select(self, yes: Self, no: Self) -> Self {
        no.xor(self.and(yes.xor(no)))
    }
    #[inline(always)]
    fn select_late(self, yes: Self, no: Self) -> Self {
        // SAFETY: see the type.
        let no = Self(unsafe { _mm256_andnot_si256(self.0, no.0) });
        self.and(yes).or(no)
    }
    #[inline(always)]
    fn majority(self, b: Self, c: Self) -> Self {
        self.and(b.or(c)).or(b.and(c))
    }
    #[inline(always)]
    fn md5_last(self, c: Self, d: Self) -> Self {
        c.xor(self.or(d.xor(Self::splat(u32::MAX))))
    }
    #[inline(always)]
    fn rotate<const L: i32, const R: i32>(self) -> Self {
        // SAFETY: see the type.
        Self(unsafe { _mm256_or_si256(_mm256_slli_epi32::<L>(self.0), _mm256_srli_epi32::<R>(self.0)) })
    }
    #[inline(always)]
    fn shift_right<const R: u32>(self) -> Self {
        // SAFETY: see the type. (The count is a constant: it becomes the immediate form.)
        Self(unsafe { _mm256_srl_epi32(self.0, _mm_cvtsi32_si128(R.cast_signed())) })
    }
}

/// Transposes an 8×8 matrix of 32-bit words.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn transpose(mut r: [__m256i; 8]) -> [__m256i; 8] {
    let mut a = r;
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        for i in 0..4 {
            a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for b in [0, 4] {
            r[b] = _mm256_unpacklo_epi64(a[b], a[b + 2]);
            r[b + 1] = _mm256_unpackhi_epi64(a[b], a[b + 2]);
            r[b + 2] = _mm256_unpacklo_epi64(a[b + 1], a[b + 3]);
            r[b + 3] = _mm256_unpackhi_epi64(a[b + 1], a[b + 3]);
        }
        for i in 0..4 {
            a[i] = _mm256_permute2x128_si256::<0x20>(r[i], r[i + 4]);
            a[i + 4] = _mm256_permute2x128_si256::<0x31>(r[i], r[i + 4]);
        }
    }
    a
}
