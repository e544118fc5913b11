//! Branch addresses of x86-64: what an instruction says relative to itself is said relative to the frame instead, so that
//! calls of one function from many places become equal bytes, which a codec finds.
//!
//! Converted are the four bytes after `e8` and `e9` (call, jump), after `8b` or `8d` and a byte `00xxx101` (a load, an address
//! relative to the instruction pointer), and after `ff 15` and `ff 25` (a call, a jump through a pointer), when they stand for −2^24
//! to 2^24 − 1. The number of the byte after the instruction is added in a ring of 25 bits, so the result is in the same range, and
//! undoing, which walks the same way, meets the same instructions. Also the four bytes of an operand out of range are passed
//! over: were an instruction found among them, and converted, undoing could take the first one's operand for one in range.
//! Nothing checks that these are instructions: it need only be true often.

use super::Direction;

/// The ring's bits.
const BITS: u32 = 25;

/// Converts in place.
pub(super) fn convert(bytes: &mut [u8], direction: Direction) {
    let mut at = 0;
    while let Some((operand, value)) = next_operand(bytes, at) {
        at = operand + 4;
        if is_near(value) {
            let moved = match direction {
                Direction::Apply => value.wrapping_add(at as i32),
                Direction::Undo => value.wrapping_sub(at as i32),
            };
            bytes[operand..at].copy_from_slice(&ring(moved).to_le_bytes());
        }
    }
}

/// The share of `bytes` that [`convert`] would convert.
pub(super) fn density(bytes: &[u8]) -> f32 {
    let (mut at, mut near) = (0, 0);
    while let Some((operand, value)) = next_operand(bytes, at) {
        at = operand + 4;
        near += usize::from(is_near(value));
    }
    (4 * near) as f32 / bytes.len().max(1) as f32
}

/// The first operand of an instruction to look at that begins at `from` or later: where it is, and what it is.
fn next_operand(bytes: &[u8], from: usize) -> Option<(usize, i32)> {
    let mut at = from;
    loop {
        // The last byte before the operand: a call's or jump's opcode, or what follows the opcode of the others. Opcodes are too
        // frequent to stop at.
        let last = next_mark(bytes, at)?;
        let is_one = bytes[last] & 0xfe == 0xe8
            || last > from
                && match bytes[last - 1] {
                    0x8b | 0x8d => true,
                    0xff => matches!(bytes[last], 0x15 | 0x25),
                    _ => false,
                };
        at = last + 1;
        if is_one {
            let field = bytes.get(at..at + 4)?;
            return Some((at, i32::from_le_bytes([field[0], field[1], field[2], field[3]])));
        }
    }
}

fn ring(value: i32) -> i32 {
    value << (32 - BITS) >> (32 - BITS)
}

fn is_near(value: i32) -> bool {
    ring(value) == value
}

/// The first byte from `from` on that may be the last before an operand: eight at a time.
fn next_mark(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    let mut words = bytes.get(from..)?.chunks_exact(8);
    for eight in words.by_ref() {
        let word = u64::from_le_bytes(std::array::from_fn(|byte| eight[byte]));
        let found = is_zero((word & every(0xfe)) ^ every(0xe8)) | is_zero((word & every(0xc7)) ^ every(0x05));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let is_mark = |byte: &u8| byte & 0xfe == 0xe8 || byte & 0xc7 == 0x05;
    words.remainder().iter().position(is_mark).map(|more| at + more)
}

fn every(byte: u8) -> u64 {
    u64::from(byte) * 0x0101_0101_0101_0101
}

/// The highest bit of each byte that is zero.
fn is_zero(word: u64) -> u64 {
    let low = every(0x7f);
    !(((word & low) + low) | word | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_function_become_equal() {
        let mut bytes = vec![0x90; 100];
        for at in [10usize, 50, 90] {
            bytes[at] = 0xe8;
            bytes[at + 1..at + 5].copy_from_slice(&(0x1234 - (at as i32 + 5)).to_le_bytes());
        }
        let raw = bytes.clone();
        convert(&mut bytes, Direction::Apply);
        for at in [10, 50, 90] {
            assert_eq!(bytes[at..at + 5], [0xe8, 0x34, 0x12, 0, 0]);
        }
        assert!((density(&raw) - 0.12).abs() < 1e-6);
        convert(&mut bytes, Direction::Undo);
        assert_eq!(bytes, raw);
    }

    #[test]
    fn each_kind_of_instruction_is_converted_and_others_are_not() {
        let converted = |head: &[u8], value: i32| {
            let mut bytes = [head, &value.to_le_bytes(), &[0; 8]].concat();
            let raw = bytes.clone();
            convert(&mut bytes, Direction::Apply);
            bytes != raw
        };
        for head in
            [&[0xe8][..], &[0xe9], &[0x48, 0x8b, 0x05], &[0x4c, 0x8d, 0x3d], &[0xff, 0x15], &[0xff, 0x25]]
        {
            assert!(converted(head, 0x1234) && converted(head, -0x1234), "{head:02x?}");
            assert!(!converted(head, 1 << 24) && !converted(head, -(1 << 24) - 1), "{head:02x?}: too far");
        }
        for head in [&[0xe7][..], &[0x48, 0x8b, 0x45], &[0x48, 0x89, 0x05], &[0xff, 0x35]] {
            assert!(!converted(head, 0x1234), "{head:02x?}");
        }
    }

    #[test]
    fn marks_are_found_at_every_place() {
        for len in 0..40 {
            for place in 0..len {
                for mark in [0xe8, 0xe9, 0x05, 0x0d, 0x3d, 0x25] {
                    let mut bytes = vec![0x7f; len];
                    bytes[place] = mark;
                    for from in 0..=len {
                        let expected = (from <= place).then_some(place);
                        assert_eq!(next_mark(&bytes, from), expected, "{mark:02x} at {place} of {len}");
                    }
                }
            }
        }
    }
}
