//! Sixteen lanes of AVX-512; table entries are computed by GFNI.
//!
//! 64 bytes of each lane are loaded and transposed, so that each register holds four consecutive
//! bytes of every lane. For each of the four, a shuffle copies that byte to its lane's four bytes.
//! One xor and one GF2P8AFFINEINVQB then make the entry of `boundary::GEAR`, without gathers. So 16
//! bytes of input take a shuffle, an xor, an affine-inverse, two additions, and a minimum that is
//! compared once every four steps. Closures are avoided, as they would be compiled without the
//! features, and then called.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use outrigger_format::boundary::{GEAR_MATRIX, GEAR_XOR, GearMasks};

use super::Lanes;
use crate::cpu::lanes::avx512::transpose;

/// Appends the candidates of the lanes' bytes in any order. If they are dense, returns false with
/// only some of them.
///
/// # Panics
/// If the processor lacks AVX-512 or GFNI.
pub(super) fn scan(data: &[u8], lanes: &Lanes<16>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    assert!(crate::SimdLevel::detect() >= crate::SimdLevel::Avx512);
    // SAFETY: the line above checked that the processor has the features that `run` enables.
    unsafe { run(data, lanes, masks, out) }
}

#[target_feature(enable = "gfni,avx512f,avx512bw")]
fn run(data: &[u8], lanes: &Lanes<16>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    let matrix = _mm512_set1_epi64(GEAR_MATRIX.cast_signed());
    let xor = _mm512_set1_epi32(u32::from_le_bytes(GEAR_XOR).cast_signed());
    let limit = _mm512_set1_epi32((!masks.inline).cast_signed());
    // Byte q of each 32-bit lane, four times.
    let mut copy = [_mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0); 4];
    for q in 1..4 {
        copy[q] = _mm512_add_epi32(copy[q - 1], _mm512_set1_epi32(0x0101_0101));
    }
    let found = out.len();
    let mut h = _mm512_setzero_si512();
    let rows: [&[[u8; 64]]; 16] = lanes.rows(data);
    for at in 0..lanes.run / 64 {
        let mut row = [h; 16];
        for (row, rows) in row.iter_mut().zip(rows) {
            *row = load(&rows[at]);
        }
        // SAFETY: this function enables AVX-512 F.
        let row = unsafe { transpose(row) };
        for (word, row) in row.into_iter().enumerate() {
            let mut hashes = [h; 4];
            for (hash, copy) in hashes.iter_mut().zip(copy) {
                let bytes = _mm512_xor_si512(_mm512_shuffle_epi8(row, copy), xor);
                let entry = _mm512_gf2p8affineinv_epi64_epi8::<0>(bytes, matrix);
                h = _mm512_add_epi32(_mm512_add_epi32(h, h), entry);
                *hash = h;
            }
            let least = _mm512_min_epu32(
                _mm512_min_epu32(hashes[0], hashes[1]),
                _mm512_min_epu32(hashes[2], hashes[3]),
            );
            if _mm512_cmple_epu32_mask(least, limit) != 0 {
                // A copy, so that the hashes themselves stay in registers.
                let hashes = hashes;
                report(&hashes, 64 * at + 4 * word, lanes, masks, out);
                if out.len() - found > lanes.dense {
                    return false;
                }
            }
        }
    }
    true
}

/// The rare case: finds the lanes with candidates in four steps.
#[cold]
#[inline(never)]
#[target_feature(enable = "gfni,avx512f,avx512bw")]
fn report(hashes: &[__m512i; 4], offset: usize, lanes: &Lanes<16>, masks: GearMasks, out: &mut Vec<u32>) {
    for (step, &hash) in hashes.iter().enumerate() {
        // SAFETY: both are 64 bytes of plain integers.
        let hash: [u32; 16] = unsafe { std::mem::transmute(hash) };
        for (lane, h) in hash.into_iter().enumerate().filter(|(_, h)| h & masks.inline == 0) {
            lanes.emit(lane, offset + step, h, masks, out);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
