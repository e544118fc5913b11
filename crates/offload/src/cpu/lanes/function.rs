//! MD5, SHA-1 and SHA-256 of one block in every lane, over any [`Vector`], and of one lane by the
//! crates. The code follows RFC 1321, RFC 3174 and FIPS 180-4 word for word.
#![allow(
    clippy::needless_range_loop,
    reason = "vectors are indexed by number: closures would be compiled without their instructions"
)]

use super::vector::Vector;

/// A hash function with blocks of 64 bytes and `W` words of 32 bits of state.
pub(super) trait Function<const W: usize> {
    /// The state before the first block.
    const INITIAL: [u32; W];
    /// True if words and lengths are big-endian.
    const BIG_ENDIAN: bool;
    /// If only this many lanes still have blocks, hashing them one after the other is faster (if
    /// the processor has instructions for the function).
    const FEW: usize;

    /// Processes whole blocks with one state.
    fn plain(state: &mut [u32; W], blocks: &[[u8; 64]]);

    /// Processes one block in each lane, with words in the processor's byte order.
    fn block<V: Vector<N>, const N: usize>(state: [V; W], words: [V; 16]) -> [V; W];
}

pub(super) struct Md5;

#[rustfmt::skip]
const MD5_K: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

impl Function<4> for Md5 {
    const INITIAL: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    const BIG_ENDIAN: bool = false;
    const FEW: usize = 1;

    fn plain(state: &mut [u32; 4], blocks: &[[u8; 64]]) {
        md5::block_api::compress(state, blocks);
    }

    #[inline(always)]
    fn block<V: Vector<N>, const N: usize>(state: [V; 4], x: [V; 16]) -> [V; 4] {
        let [mut a, mut b, mut c, mut d] = state;
        macro_rules! step {
            ($f:ident, $a:ident $b:ident $c:ident $d:ident, $step:expr, $g:expr, $l:literal, $r:literal) => {
                // Operands that are known early are added first, as the chain of steps takes the
                // time.
                let early = $a.add(x[($g) % 16].add(V::splat(MD5_K[$step])));
                $a = early.add($f!($b, $c, $d)).rotate::<$l, $r>().add($b);
            };
        }
        // Sixteen steps, four at a time. Step i uses the word (first + stride·i) mod 16. An
        // optimising compiler unrolls the loop. Writing out all steps would only slow the compiler
        // down.
        macro_rules! sixteen {
            ($f:ident, $from:literal, $first:literal, $stride:literal, $l0:literal $r0:literal $l1:literal $r1:literal $l2:literal $r2:literal $l3:literal $r3:literal) => {
                for i in ($from..$from + 16).step_by(4) {
                    step!($f, a b c d, i, $first + $stride * i, $l0, $r0);
                    step!($f, d a b c, i + 1, $first + $stride * (i + 1), $l1, $r1);
                    step!($f, c d a b, i + 2, $first + $stride * (i + 2), $l2, $r2);
                    step!($f, b c d a, i + 3, $first + $stride * (i + 3), $l3, $r3);
                }
            };
        }
        macro_rules! f {
            ($b:ident, $c:ident, $d:ident) => {
                $b.select($c, $d)
            };
        }
        macro_rules! g {
            ($b:ident, $c:ident, $d:ident) => {
                $d.select_late($b, $c)
            };
        }
        macro_rules! h {
            ($b:ident, $c:ident, $d:ident) => {
                $b.xor3($c, $d)
            };
        }
        macro_rules! i {
            ($b:ident, $c:ident, $d:ident) => {
                $b.md5_last($c, $d)
            };
        }
        sixteen!(f, 0, 0, 1, 7 25 12 20 17 15 22 10);
        sixteen!(g, 16, 1, 5, 5 27 9 23 14 18 20 12);
        sixteen!(h, 32, 5, 3, 4 28 11 21 16 16 23 9);
        sixteen!(i, 48, 0, 7, 6 26 10 22 15 17 21 11);
        [state[0].add(a), state[1].add(b), state[2].add(c), state[3].add(d)]
    }
}

pub(super) struct Sha1;

impl Function<5> for Sha1 {
    const INITIAL: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    const BIG_ENDIAN: bool = true;
    const FEW: usize = 3;

    fn plain(state: &mut [u32; 5], blocks: &[[u8; 64]]) {
        sha1::block_api::compress(state, blocks);
    }

    #[inline(always)]
    fn block<V: Vector<N>, const N: usize>(state: [V; 5], mut w: [V; 16]) -> [V; 5] {
        let [mut a, mut b, mut c, mut d, mut e] = state;
        macro_rules! choose {
            ($b:ident, $c:ident, $d:ident) => {
                $b.select($c, $d)
            };
        }
        macro_rules! parity {
            ($b:ident, $c:ident, $d:ident) => {
                $b.xor3($c, $d)
            };
        }
        macro_rules! majority {
            ($b:ident, $c:ident, $d:ident) => {
                $b.majority($c, $d)
            };
        }
        macro_rules! step {
            ($f:ident, $k:literal, $t:expr, $a:ident $b:ident $c:ident $d:ident $e:ident) => {
                if $t >= 16 {
                    let before = w[($t + 13) % 16].xor3(w[($t + 8) % 16], w[($t + 2) % 16]);
                    w[$t % 16] = before.xor(w[$t % 16]).rotate::<1, 31>();
                }
                let early = $e.add(w[$t % 16].add(V::splat($k)));
                $e = early.add($f!($b, $c, $d)).add($a.rotate::<5, 27>());
                $b = $b.rotate::<30, 2>();
            };
        }
        macro_rules! twenty {
            ($f:ident, $k:literal, $from:literal) => {
                for t in ($from..$from + 20).step_by(5) {
                    step!($f, $k, t, a b c d e);
                    step!($f, $k, t + 1, e a b c d);
                    step!($f, $k, t + 2, d e a b c);
                    step!($f, $k, t + 3, c d e a b);
                    step!($f, $k, t + 4, b c d e a);
                }
            };
        }
        twenty!(choose, 0x5a82_7999, 0);
        twenty!(parity, 0x6ed9_eba1, 20);
        twenty!(majority, 0x8f1b_bcdc, 40);
        twenty!(parity, 0xca62_c1d6, 60);
        [state[0].add(a), state[1].add(b), state[2].add(c), state[3].add(d), state[4].add(e)]
    }
}

pub(super) struct Sha256;

#[rustfmt::skip]
const SHA256_K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

impl Function<8> for Sha256 {
    const INITIAL: [u32; 8] = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
    const BIG_ENDIAN: bool = true;
    const FEW: usize = 8;

    fn plain(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
        sha2::block_api::compress256(state, blocks);
    }

    #[inline(always)]
    fn block<V: Vector<N>, const N: usize>(state: [V; 8], mut w: [V; 16]) -> [V; 8] {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        macro_rules! step {
            ($t:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
                if $t >= 16 {
                    let (x, y) = (w[($t + 1) % 16], w[($t + 14) % 16]);
                    let s0 = x.rotate::<25, 7>().xor3(x.rotate::<14, 18>(), x.shift_right::<3>());
                    let s1 = y.rotate::<15, 17>().xor3(y.rotate::<13, 19>(), y.shift_right::<10>());
                    w[$t % 16] = w[$t % 16].add(s0).add(w[($t + 9) % 16].add(s1));
                }
                let early = $h.add(w[$t % 16].add(V::splat(SHA256_K[$t])));
                let s1 = $e.rotate::<26, 6>().xor3($e.rotate::<21, 11>(), $e.rotate::<7, 25>());
                let t1 = early.add($e.select($f, $g)).add(s1);
                let s0 = $a.rotate::<30, 2>().xor3($a.rotate::<19, 13>(), $a.rotate::<10, 22>());
                $d = $d.add(t1);
                $h = t1.add(s0.add($a.majority($b, $c)));
            };
        }
        for t in (0..64).step_by(8) {
            step!(t, a b c d e f g h);
            step!(t + 1, h a b c d e f g);
            step!(t + 2, g h a b c d e f);
            step!(t + 3, f g h a b c d e);
            step!(t + 4, e f g h a b c d);
            step!(t + 5, d e f g h a b c);
            step!(t + 6, c d e f g h a b);
            step!(t + 7, b c d e f g h a);
        }
        let [s0, s1, s2, s3, s4, s5, s6, s7] = state;
        [s0.add(a), s1.add(b), s2.add(c), s3.add(d), s4.add(e), s5.add(f), s6.add(g), s7.add(h)]
    }
}

/// Blocks to prefetch. Processing one takes longer than a read from the third-level cache.
const AHEAD: usize = 4;

/// Processes the blocks of all lanes, which have equally many.
///
/// # Panics
/// If lanes have different numbers of blocks.
#[inline(always)]
pub(super) fn blocks<F: Function<W>, V: Vector<N>, const W: usize, const N: usize>(
    state: &mut [[u32; N]; W],
    lanes: &[&[[u8; 64]]; N],
) {
    let count = lanes[0].len();
    assert!(lanes.iter().all(|blocks| blocks.len() == count), "lanes go at one pace");
    let mut vectors = [V::splat(0); W];
    for word in 0..W {
        vectors[word] = V::load(&state[word]);
    }
    for at in 0..count {
        let mut blocks = [&lanes[0][at]; N];
        for lane in 0..N {
            blocks[lane] = &lanes[lane][at];
            // Processors do not prefetch so many streams by themselves.
            if at + AHEAD < count {
                V::prefetch(&lanes[lane][at + AHEAD]);
            }
        }
        let mut words = V::transposed(&blocks);
        if F::BIG_ENDIAN {
            for word in &mut words {
                *word = word.swap_bytes();
            }
        }
        vectors = F::block(vectors, words);
    }
    for word in 0..W {
        vectors[word].store(&mut state[word]);
    }
}

/// The last block or two of a message of `len` bytes, whose last `len % 64` are `rest`, and the
/// number of these blocks.
pub(super) fn tail<F: Function<W>, const W: usize>(rest: &[u8], len: u64, out: &mut [[u8; 64]; 2]) -> usize {
    let count = if rest.len() < 56 { 1 } else { 2 };
    let bytes = &mut out.as_flattened_mut()[..64 * count];
    bytes[..rest.len()].copy_from_slice(rest);
    bytes[rest.len()] = 0x80;
    bytes[rest.len() + 1..].fill(0);
    let bits = len.wrapping_mul(8);
    bytes[64 * count - 8..].copy_from_slice(&if F::BIG_ENDIAN {
        bits.to_be_bytes()
    } else {
        bits.to_le_bytes()
    });
    count
}

/// A state as a digest, in the first `4·W` bytes.
#[inline]
pub(super) fn digest<F: Function<W>, const W: usize>(state: &[u32; W]) -> [u8; 32] {
    let mut digest = [0; 32];
    for (bytes, &word) in digest.as_chunks_mut().0.iter_mut().zip(state) {
        *bytes = if F::BIG_ENDIAN { word.to_be_bytes() } else { word.to_le_bytes() };
    }
    digest
}
