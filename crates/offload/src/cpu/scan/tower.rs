//! Inverses in GF(2^8) from sixteen-entry tables, computed at compile time for the shuffles of the
//! AVX2 kernel.
//!
//! GF(2^8) is a plane over its subfield GF(2^4). Let `x' = x^16` be the conjugate of `x`, let `t`
//! be an element with `t + t' = 1`, and let `n = t·t'`, which lies in the subfield. Every `x` is
//! `i·t + j·t'` with `i = (x·t) + (x·t)'` and `j = (x·t') + (x·t')'` in the subfield. With `k = i +
//! j`, the norm of `x` is `N = x·x' = i·j + n·k²`, and `x^−1 = x' / N = (j·t + i·t') / N`. Tables
//! of one operand cannot give the products in `N`. But with `a = 1 / n`, inverses and sums suffice
//! (the idea is Mike Hamburg's, "Accelerating AES with vector permute instructions", 2009):
//!
//! ```text
//! 1 / (1/i + a/k) + j  =  a·N / (k + a·i)  =  1 / u   where  u = k/(a·N) + i/N
//! 1 / (1/j + a/k) + i  =  a·N / (k + a·j)  =  1 / w   where  w = k/(a·N) + j/N
//! x^−1 = u·(n·t + (1+n)·t') + w·((1+n)·t + n·t')      since  u + w = k/N
//! ```
//!
//! Infinity (`1/0`) is 0x80. Sums with it keep that bit, and a shuffle turns it into 0, which is
//! `1/∞`.

use outrigger_format::boundary::{GEAR_XOR, gear_affine, gf_inverse, gf_mul};

const INFINITY: u8 = 0x80;

/// Element `n` of the subfield in GF(2^8): bit `b` of `n` stands for `s^b`.
const SUBFIELD: [u8; 16] = {
    // s = x^17 has order 15 for any generator x, and 3 is one.
    let s = power(3, 17);
    let basis = [1, s, gf_mul(s, s), gf_mul(gf_mul(s, s), s)];
    let mut elements = [0; 16];
    let mut n = 0;
    while n < 16 {
        let mut bit = 0;
        while bit < 4 {
            if n >> bit & 1 == 1 {
                elements[n] ^= basis[bit];
            }
            bit += 1;
        }
        n += 1;
    }
    elements
};

const T: u8 = {
    let mut t = 2;
    while power(t, 16) ^ t != 1 {
        t += 1;
    }
    t
};
const T_CONJUGATE: u8 = T ^ 1;
const NORM: u8 = gf_mul(T, T_CONJUGATE);

const fn power(x: u8, exponent: u32) -> u8 {
    let (mut result, mut n) = (1, 0);
    while n < exponent {
        result = gf_mul(result, x);
        n += 1;
    }
    result
}

/// The number of an element of the subfield.
const fn number(element: u8) -> u8 {
    let mut n = 0;
    while SUBFIELD[n] != element {
        n += 1;
    }
    n as u8
}

/// `i` and `j` of `x`, as numbers.
const fn split(x: u8) -> (u8, u8) {
    let (xt, xc) = (gf_mul(x, T), gf_mul(x, T_CONJUGATE));
    (number(xt ^ power(xt, 16)), number(xc ^ power(xc, 16)))
}

/// `i | j << 4` of each byte `n << shift`.
const fn basis(shift: u32) -> [u8; 16] {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        let (i, j) = split((n as u8) << shift);
        table[n] = i | j << 4;
        n += 1;
    }
    table
}

/// `i | j << 4` of a byte's low nibble.
pub(super) const BASIS_LOW: [u8; 16] = basis(0);
/// `i | j << 4` of a byte's high nibble; the sum of both is the byte's.
pub(super) const BASIS_HIGH: [u8; 16] = basis(4);

/// The number of `factor / (n + offset)`.
const fn quotients(factor: u8, offset: u8) -> [u8; 16] {
    let mut table = [INFINITY; 16];
    let mut n = 0;
    while n < 16 {
        let divisor = SUBFIELD[n ^ offset as usize];
        if divisor != 0 {
            table[n] = number(gf_mul(factor, gf_inverse(divisor)));
        }
        n += 1;
    }
    table
}

/// `1 / n`.
pub(super) const INVERSE: [u8; 16] = quotients(1, 0);

/// `M · (factor / (n + offset))`, one of the two parts of a byte of a table entry.
const fn outputs(factor: u8, offset: u8) -> [u8; 16] {
    let mut table = [0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = gear_affine(gf_mul(factor, gf_inverse(SUBFIELD[n ^ offset as usize])));
        n += 1;
    }
    table
}

/// The tables for one byte of a table entry. Their indices are `i`, `j` and `k` of the input byte
/// *before* its xor with that byte's `GEAR_XOR`.
pub(super) struct Plane {
    pub(super) one_over_i: [u8; 16],
    pub(super) one_over_j: [u8; 16],
    pub(super) a_over_k: [u8; 16],
    pub(super) out_u: [u8; 16],
    pub(super) out_w: [u8; 16],
}

pub(super) static PLANES: [Plane; 4] =
    [plane(GEAR_XOR[0]), plane(GEAR_XOR[1]), plane(GEAR_XOR[2]), plane(GEAR_XOR[3])];

const fn plane(xor: u8) -> Plane {
    let (i, j) = split(xor);
    let (nt, nc) = (gf_mul(NORM, T), gf_mul(NORM, T_CONJUGATE));
    Plane {
        one_over_i: quotients(1, i),
        one_over_j: quotients(1, j),
        a_over_k: quotients(gf_inverse(NORM), i ^ j),
        out_u: outputs(nt ^ nc ^ T_CONJUGATE, j),
        out_w: outputs(nt ^ nc ^ T, i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_format::boundary::GEAR;

    #[test]
    fn tables_give_every_entry() {
        let look_up =
            |table: &[u8; 16], index: u8| if index & 0x80 == 0 { table[(index & 15) as usize] } else { 0 };
        for byte in 0..=255u8 {
            let both = BASIS_LOW[(byte & 15) as usize] ^ BASIS_HIGH[(byte >> 4) as usize];
            let (i, j) = (both & 15, both >> 4);
            let entry = [0, 1, 2, 3].map(|k| {
                let plane = &PLANES[k];
                let a_over_k = look_up(&plane.a_over_k, i ^ j);
                let u = look_up(&INVERSE, look_up(&plane.one_over_i, i) ^ a_over_k) ^ j;
                let w = look_up(&INVERSE, look_up(&plane.one_over_j, j) ^ a_over_k) ^ i;
                look_up(&plane.out_u, u) ^ look_up(&plane.out_w, w)
            });
            assert_eq!(u32::from_le_bytes(entry), GEAR[byte as usize], "byte {byte:#x}");
        }
    }
}
