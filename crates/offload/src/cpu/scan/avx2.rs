//! Eight lanes of AVX2. GFNI computes the table entries if the processor has it, otherwise nibble
//! look-ups do.
//!
//! 16 bytes of each lane are loaded and interleaved, so that each register holds four consecutive
//! bytes of every lane. A gather per step would be slower than the plain loop. But the table is an
//! inverse in GF(2^8) under a linear map. A tower of fields reduces it to sixteen-entry tables,
//! each of which is one shuffle ([`super::tower`] explains it). The change of basis is linear, so
//! it is done once for all four bytes of an entry, and the xor with `GEAR_XOR` is folded into the
//! tables of each. So four table entries for eight lanes take 30 look-ups and 8 interleavings.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "positions are the same in every lane, not one lane's")]

use std::arch::x86_64::*;

use outrigger_format::boundary::{GEAR, GEAR_MATRIX, GEAR_XOR, GearMasks};

use super::Lanes;
use super::tower::{BASIS_HIGH, BASIS_LOW, INVERSE, PLANES, Plane};

/// Appends the candidates of the lanes' bytes in any order. If they are dense, returns false with
/// only some of them.
///
/// # Panics
/// If the processor lacks AVX2.
pub(super) fn scan(data: &[u8], lanes: &Lanes<12>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    assert!(crate::SimdLevel::detect() >= crate::SimdLevel::Avx2);
    // SAFETY: the line above checked that the processor has the feature that `run_mixed` enables.
    unsafe { run_mixed(data, lanes, masks, out) }
}

/// [`scan`] with GFNI.
///
/// # Panics
/// If the processor lacks AVX2 or GFNI.
pub(super) fn scan_gfni(data: &[u8], lanes: &Lanes<8>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    assert!(crate::SimdLevel::detect() >= crate::SimdLevel::Avx2Gfni);
    // SAFETY: the line above checked that the processor has the features that `run_gfni` enables.
    unsafe { run_gfni(data, lanes, masks, out) }
}

/// Eight lanes by vector instructions with GFNI.
#[target_feature(enable = "avx2,gfni")]
fn run_gfni(data: &[u8], lanes: &Lanes<8>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
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
            let hashes = roll(&mut h, entries_gfni(bytes));
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

/// Eight lanes by vector instructions and four by plain ones, in turns. Nibble tables keep the
/// vector units busy, but leave the other units idle, and the loads that a plain look-up needs.
#[target_feature(enable = "avx2")]
fn run_mixed(data: &[u8], lanes: &Lanes<12>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    let plain_limit = !masks.inline;
    let limit = _mm256_set1_epi32(plain_limit.cast_signed());
    let enough = out.len() + lanes.dense;
    let mut h = _mm256_setzero_si256();
    let mut plain = [0u32; 4];
    let rows: [&[[u8; 16]]; 12] = lanes.rows(data);
    for at in 0..lanes.run / 16 {
        let mut row = [h; 4];
        for lane in 0..4 {
            row[lane] = load(&rows[lane][at], &rows[lane + 4][at]);
        }
        let plain_rows = [&rows[8][at], &rows[9][at], &rows[10][at], &rows[11][at]];
        for (word, bytes) in transpose(row).into_iter().enumerate() {
            let hashes = roll(&mut h, entries(bytes));
            if any_below(hashes, limit) {
                report(&hashes, 16 * at + 4 * word, lanes, masks, out);
            }
            for step in 4 * word..4 * word + 4 {
                for lane in 0..4 {
                    let byte = plain_rows[lane][step];
                    plain[lane] = (plain[lane] << 1).wrapping_add(GEAR[byte as usize]);
                    if plain[lane] <= plain_limit {
                        report_plain(8 + lane, 16 * at + step, plain[lane], lanes, masks, out);
                    }
                }
            }
        }
        if out.len() > enough {
            return false;
        }
    }
    true
}

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

/// The rare case of a plain lane. It is a function of its own, to leave the loop's registers alone.
#[cold]
#[inline(never)]
fn report_plain(lane: usize, offset: usize, h: u32, lanes: &Lanes<12>, masks: GearMasks, out: &mut Vec<u32>) {
    lanes.emit(lane, offset, h, masks, out);
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

/// The table entries of four steps, by nibble tables.
#[inline]
#[target_feature(enable = "avx2")]
fn entries(bytes: __m256i) -> [__m256i; 4] {
    let nibble = _mm256_set1_epi8(15);
    let low = look_up(&BASIS_LOW, _mm256_and_si256(bytes, nibble));
    let high = look_up(&BASIS_HIGH, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble));
    let both = _mm256_xor_si256(low, high);
    let i = _mm256_and_si256(both, nibble);
    let j = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
    let k = _mm256_xor_si256(i, j);
    let (p, q) = (plane(&PLANES[0], i, j, k), plane(&PLANES[1], i, j, k));
    let (r, s) = (plane(&PLANES[2], i, j, k), plane(&PLANES[3], i, j, k));
    let (pq, rs) = (_mm256_unpacklo_epi8(p, q), _mm256_unpacklo_epi8(r, s));
    let (pq_high, rs_high) = (_mm256_unpackhi_epi8(p, q), _mm256_unpackhi_epi8(r, s));
    [
        _mm256_unpacklo_epi16(pq, rs),
        _mm256_unpackhi_epi16(pq, rs),
        _mm256_unpacklo_epi16(pq_high, rs_high),
        _mm256_unpackhi_epi16(pq_high, rs_high),
    ]
}

/// One byte of 32 table entries, as [`super::tower`] explains.
#[inline]
#[target_feature(enable = "avx2")]
fn plane(plane: &Plane, i: __m256i, j: __m256i, k: __m256i) -> __m256i {
    let a_over_k = look_up(&plane.a_over_k, k);
    let from_i = _mm256_xor_si256(look_up(&plane.one_over_i, i), a_over_k);
    let from_j = _mm256_xor_si256(look_up(&plane.one_over_j, j), a_over_k);
    let u = _mm256_xor_si256(look_up(&INVERSE, from_i), j);
    let w = _mm256_xor_si256(look_up(&INVERSE, from_j), i);
    _mm256_xor_si256(look_up(&plane.out_u, u), look_up(&plane.out_w, w))
}

/// 32 look-ups in a table of 16; an index with its top bit set gives 0.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up(table: &[u8; 16], index: __m256i) -> __m256i {
    // SAFETY: the table has the 16 bytes that are read; the load needs no alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index)
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
