//! Sixteen lanes of NEON; table entries are computed by the AES instructions.
//!
//! Byte `k` of an entry of `boundary::GEAR` is an affine map of an inverse in GF(2^8), and the map
//! is that of AES. So it is AES's S-box of the input byte xor `GEAR_XOR[k]`, without the S-box's
//! last step, the xor with 0x63. AESE looks up sixteen bytes in the S-box. It also xors them with
//! a key before, which does the xor with `GEAR_XOR`, and it moves them (ShiftRows), which the
//! shuffle before it makes up for.
//!
//! 16 bytes of each lane are loaded, and transposed by fours, so that each register holds four
//! consecutive bytes of four lanes. Four bytes of input then take a shuffle, an AESE, an xor, two
//! additions, and a minimum that is compared once every four steps. With all else that is two
//! instructions for each byte. The plain loop takes five or six, and tables of nibbles
//! would take as many. So processors without AES use the plain loop.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "closures would be compiled without the features")]

use std::arch::aarch64::*;

use outrigger_format::boundary::{GEAR_XOR, GearMasks};

use super::Lanes;
use crate::cpu::lanes::neon::transpose;

/// The constant that AES's S-box adds to an affine map of an inverse.
const SBOX_XOR: u8 = 0x63;

/// Appends the candidates of the lanes' bytes in any order. If they are dense, returns false with
/// only some of them.
///
/// # Panics
/// If the processor lacks NEON or its AES instructions.
pub(super) fn scan(data: &[u8], lanes: &Lanes<16>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    assert!(crate::SimdLevel::detect() >= crate::SimdLevel::NeonAes);
    // SAFETY: the line above checked that the processor has the features that `run` enables.
    unsafe { run(data, lanes, masks, out) }
}

#[target_feature(enable = "neon,aes")]
fn run(data: &[u8], lanes: &Lanes<16>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    let limit = !masks.inline;
    let found = out.len();
    let mut h = [vdupq_n_u32(0); 4];
    let rows: [&[[u8; 16]]; 16] = lanes.rows(data);
    for at in 0..lanes.run / 16 {
        let mut words = [h; 4];
        for four in 0..4 {
            let mut row = [vdupq_n_u8(0); 4];
            for lane in 0..4 {
                row[lane] = load(&rows[4 * four + lane][at]);
            }
            // SAFETY: this function enables NEON.
            words[four] = unsafe { transpose(row) };
        }
        for word in 0..4 {
            let mut hashes = [[h[0]; 4]; 4];
            for four in 0..4 {
                hashes[four] = roll(&mut h[four], words[four][word]);
            }
            if least(hashes) <= limit {
                // A copy, so that the hashes themselves stay in registers.
                let hashes = hashes;
                report(&hashes, 16 * at + 4 * word, lanes, masks, out);
                if out.len() - found > lanes.dense {
                    return false;
                }
            }
        }
    }
    true
}

/// Where AESE wants byte 0 of each lane, four times. It moves byte `k` to lane `n` from lane
/// `n + k`.
const COPY: [u8; 16] = [0, 12, 8, 4, 4, 0, 12, 8, 8, 4, 0, 12, 12, 8, 4, 0];

/// The hashes of four steps of four lanes, from their bytes and the previous hash.
#[inline]
#[target_feature(enable = "neon,aes")]
fn roll(h: &mut uint32x4_t, bytes: uint32x4_t) -> [uint32x4_t; 4] {
    let key = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(GEAR_XOR)));
    let mut copy = load(&COPY);
    let mut hashes = [bytes; 4];
    for hash in &mut hashes {
        // This step's byte of each lane four times. Then `copy` moves on to the next step.
        let copies = vqtbl1q_u8(vreinterpretq_u8_u32(bytes), copy);
        let entry = veorq_u8(vaeseq_u8(copies, key), vdupq_n_u8(SBOX_XOR));
        *h = vaddq_u32(vaddq_u32(*h, *h), vreinterpretq_u32_u8(entry));
        *hash = *h;
        copy = vaddq_u8(copy, vdupq_n_u8(1));
    }
    hashes
}

/// The least of the hashes of four steps of sixteen lanes.
#[inline]
#[target_feature(enable = "neon")]
fn least(hashes: [[uint32x4_t; 4]; 4]) -> u32 {
    let mut least = hashes[0];
    for [a, b, c, d] in hashes {
        least =
            [vminq_u32(least[0], a), vminq_u32(least[1], b), vminq_u32(least[2], c), vminq_u32(least[3], d)];
    }
    let [a, b, c, d] = least;
    vminvq_u32(vminq_u32(vminq_u32(a, b), vminq_u32(c, d)))
}

/// The rare case: finds the lanes with candidates in four steps.
#[cold]
#[inline(never)]
#[target_feature(enable = "neon")]
fn report(
    hashes: &[[uint32x4_t; 4]; 4],
    offset: usize,
    lanes: &Lanes<16>,
    masks: GearMasks,
    out: &mut Vec<u32>,
) {
    for (four, hashes) in hashes.iter().enumerate() {
        for (step, &hash) in hashes.iter().enumerate() {
            // SAFETY: both are 16 bytes of plain integers.
            let hash: [u32; 4] = unsafe { std::mem::transmute(hash) };
            for (lane, h) in hash.into_iter().enumerate().filter(|(_, h)| h & masks.inline == 0) {
                lanes.emit(4 * four + lane, offset + step, h, masks, out);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the array has the 16 bytes that are read; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
