//! Eight lanes of AVX2, whose table entries GFNI or the AES instructions compute.
//!
//! 16 bytes of each lane are loaded and interleaved, so that each register holds four consecutive
//! bytes of every lane. A gather per step would be slower than the plain loop. But the table is an
//! inverse in GF(2^8) under an affine map, and GFNI has just that.
//!
//! The map is that of AES. So byte `k` of an entry also is AES's S-box of the input byte xor
//! `GEAR_XOR[k]`. Only the S-box's last step has to be undone, the xor with 0x63. AESENCLAST looks
//! up sixteen bytes in the S-box. It also xors them with a key, which undoes that step, and it moves
//! them (ShiftRows), which the shuffle before it makes up for.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "positions are the same in every lane, not one lane's")]

use std::arch::x86_64::*;

use outrigger_format::boundary::{GEAR_MATRIX, GEAR_XOR, GearMasks};

use super::Lanes;

/// Makes a kernel: its function for callers, and the loop of eight lanes for processors with these
/// features, whose table entries `$entries` makes.
macro_rules! kernel {
    ($scan:ident, $run:ident, $level:ident, $features:literal, $entries:ident) => {
        /// Appends the candidates of the lanes' bytes in any order. If they are dense, returns false
        /// with only some of them.
        ///
        /// # Panics
        /// If the processor lacks the level.
        pub(super) fn $scan(data: &[u8], lanes: &Lanes<8>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
            assert!(crate::SimdLevel::detect() >= crate::SimdLevel::$level);
            // SAFETY: the line above checked that the processor has the features that the function
            // enables.
            unsafe { $run(data, lanes, masks, out) }
        }

        #[target_feature(enable = $features)]
        fn $run(data: &[u8], lanes: &Lanes<8>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
            let limit = _mm256_set1_epi32((!masks.inline).cast_signed());
            let found = out.len();
            let mut h = _mm256_setzero_si256();
            let rows: [&[[u8; 16]]; 8] = lanes.rows(data);
            for at in 0..lanes.run / 16 {
                let mut row = [h; 4];
                for lane in 0..4 {
                    row[lane] = load(&rows[lane][at], &rows[lane + 4][at]);
                }
                for (word, bytes) in transpose(row).into_iter().enumerate() {
                    let hashes = roll(&mut h, $entries(bytes));
                    if any_below(hashes, limit) {
                        report(&hashes, 16 * at + 4 * word, lanes, masks, out);
                        if out.len() - found > lanes.dense {
                            return false;
                        }
                    }
                }
            }
            true
        }
    };
}

kernel!(scan_aes, run_aes, Avx2, "avx2,aes", entries_aes);
kernel!(scan_vaes, run_vaes, Avx2Vaes, "avx2,vaes", entries_vaes);
kernel!(scan_gfni, run_gfni, Avx2Gfni, "avx2,gfni", entries_gfni);

/// The hashes of four steps, from their table entries and the previous hash.
#[inline]
#[target_feature(enable = "avx2")]
fn roll(h: &mut __m256i, mut entries: [__m256i; 4]) -> [__m256i; 4] {
    for entry in &mut entries {
        *h = _mm256_add_epi32(_mm256_add_epi32(*h, *h), *entry);
        *entry = *h;
    }
    entries
}

/// True if a hash is at most `limit`.
#[inline]
#[target_feature(enable = "avx2")]
fn any_below([a, b, c, d]: [__m256i; 4], limit: __m256i) -> bool {
    let least = _mm256_min_epu32(_mm256_min_epu32(a, b), _mm256_min_epu32(c, d));
    let hit = _mm256_cmpeq_epi32(_mm256_min_epu32(least, limit), least);
    _mm256_movemask_epi8(hit) != 0
}

/// The rare case: finds the lanes with candidates in four steps.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2")]
fn report<const N: usize>(
    hashes: &[__m256i; 4],
    offset: usize,
    lanes: &Lanes<N>,
    masks: GearMasks,
    out: &mut Vec<u32>,
) {
    for (step, &hash) in hashes.iter().enumerate() {
        // SAFETY: both are 32 bytes of plain integers.
        let hash: [u32; 8] = unsafe { std::mem::transmute(hash) };
        for (lane, h) in hash.into_iter().enumerate().filter(|(_, h)| h & masks.inline == 0) {
            lanes.emit(lane, offset + step, h, masks, out);
        }
    }
}

/// The table entries of four steps, by GF2P8AFFINEINVQB.
#[inline]
#[target_feature(enable = "avx2,gfni")]
fn entries_gfni(bytes: __m256i) -> [__m256i; 4] {
    let matrix = _mm256_set1_epi64x(GEAR_MATRIX.cast_signed());
    let xor = _mm256_set1_epi32(u32::from_le_bytes(GEAR_XOR).cast_signed());
    let mut copy = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0101_0101, 0x0202_0202, 0x0303_0303));
    let mut entries = [bytes; 4];
    for entry in &mut entries {
        // This step's byte of each lane four times. Then `copy` moves on to the next step.
        let copies = _mm256_shuffle_epi8(bytes, copy);
        *entry = _mm256_gf2p8affineinv_epi64_epi8::<0>(_mm256_xor_si256(copies, xor), matrix);
        copy = _mm256_add_epi8(copy, _mm256_set1_epi8(4));
    }
    entries
}

/// The table entries of four steps, by AESENCLAST of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,vaes")]
fn entries_vaes(bytes: __m256i) -> [__m256i; 4] {
    let mut entries = [bytes; 4];
    for (entry, copy) in entries.iter_mut().zip(&COPY) {
        *entry = _mm256_aesenclast_epi128(for_sbox(bytes, copy), _mm256_set1_epi8(SBOX_XOR));
    }
    entries
}

/// The table entries of four steps, by AESENCLAST of 16 bytes twice.
#[inline]
#[target_feature(enable = "avx2,aes")]
fn entries_aes(bytes: __m256i) -> [__m256i; 4] {
    let key = _mm_set1_epi8(SBOX_XOR);
    let mut entries = [bytes; 4];
    for (entry, copy) in entries.iter_mut().zip(&COPY) {
        let copies = for_sbox(bytes, copy);
        let low = _mm_aesenclast_si128(_mm256_castsi256_si128(copies), key);
        let high = _mm_aesenclast_si128(_mm256_extracti128_si256::<1>(copies), key);
        *entry = _mm256_set_m128i(high, low);
    }
    entries
}

/// The constant that AES's S-box adds to an affine map of an inverse.
const SBOX_XOR: i8 = 0x63;
/// Where AESENCLAST wants each step's byte of four lanes, four times. It moves byte `k` to lane `n`
/// from lane `n + k`.
const COPY: [[u8; 16]; 4] = {
    let mut copy = [[0, 3, 2, 1, 1, 0, 3, 2, 2, 1, 0, 3, 3, 2, 1, 0]; 4];
    let mut at = 16;
    while at < 64 {
        copy[at / 16][at % 16] += 4 * (at / 16) as u8;
        at += 1;
    }
    copy
};

/// One step's bytes as the S-box takes them.
#[inline]
#[target_feature(enable = "avx2")]
fn for_sbox(bytes: __m256i, copy: &[u8; 16]) -> __m256i {
    let xor = _mm256_set1_epi32(u32::from_le_bytes(GEAR_XOR).cast_signed());
    _mm256_xor_si256(_mm256_shuffle_epi8(bytes, load(copy, copy)), xor)
}

/// 16 bytes of one lane and 16 of another.
#[inline]
#[target_feature(enable = "avx2")]
fn load(low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    // SAFETY: the arrays have the 16 bytes each that are read; the loads need no alignment.
    unsafe { _mm256_loadu2_m128i(high.as_ptr().cast(), low.as_ptr().cast()) }
}

/// Turns 16 bytes of each lane (lanes n and n + 4 in register n) into four registers of four steps
/// each. For each step, the lower half has a byte of lanes 0 to 3, and the upper half one of lanes
/// 4 to 7.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
    [
        _mm256_unpacklo_epi16(ab, cd),
        _mm256_unpackhi_epi16(ab, cd),
        _mm256_unpacklo_epi16(ab_high, cd_high),
        _mm256_unpackhi_epi16(ab_high, cd_high),
    ]
}
