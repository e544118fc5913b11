//! Branch addresses of x86-64. The filter makes addresses that are relative to the instruction
//! relative to the frame. Calls of one function from many places then have equal bytes, which a
//! codec finds.
//!
//! The filter converts the four bytes of an operand if their value is from −2^24 to 2^24 − 1:
//!
//! - after `e8` and `e9` (call, jump),
//! - after `8b` or `8d` and a byte `00xxx101` (a load, an address relative to the instruction
//!   pointer),
//! - after `ff 15` and `ff 25` (a call, a jump through a pointer).
//!
//! It adds the position of the byte after the instruction, modulo 2^25. So the result is in the
//! same range, and undoing, which walks in the same order, finds the same instructions. The four
//! bytes of an operand out of range are skipped as well. If an instruction among them were
//! converted, undoing could find the first operand within the range. The filter does not check that
//! these are instructions. It pays if they mostly are.

use super::Direction;

/// The bits of the modulus.
const BITS: u32 = 25;

/// Converts in place.
pub(super) fn convert(bytes: &mut [u8], direction: Direction) {
    let mut walk = Walk::default();
    while let Some((operand, value)) = walk.next_operand(bytes) {
        if is_near(value) {
            let end = operand + 4;
            let moved = match direction {
                Direction::Apply => value.wrapping_add(end as i32),
                Direction::Undo => value.wrapping_sub(end as i32),
            };
            bytes[operand..end].copy_from_slice(&ring(moved).to_le_bytes());
        }
    }
}

/// The share of `bytes` that [`convert`] would convert.
pub(super) fn density(bytes: &[u8]) -> f32 {
    let (mut walk, mut near) = (Walk::default(), 0);
    while let Some((_, value)) = walk.next_operand(bytes) {
        near += usize::from(is_near(value));
    }
    (4 * near) as f32 / bytes.len().max(1) as f32
}

/// Bytes that are checked together.
const BLOCK: usize = 64;

/// Walks from operand to operand. Bytes that it has passed may change during the walk, those ahead
/// must not.
#[derive(Default)]
struct Walk {
    /// The end of the last operand: an instruction begins here at the earliest.
    from: usize,
    /// The end of the last marked block.
    seen: usize,
    marks: Marks,
}

/// The positions in a block of the last byte before a possible operand, one bit for each byte.
/// `one` marks the opcode of a call or jump, and `two` the second byte of the others.
#[derive(Clone, Copy, Default)]
struct Marks {
    one: u64,
    two: u64,
}

impl Walk {
    /// The position and value of the next operand.
    fn next_operand(&mut self, bytes: &[u8]) -> Option<(usize, i32)> {
        loop {
            // Marks of the block before `seen` from `from` on. Before the first block there are
            // none.
            let block = self.seen.saturating_sub(BLOCK);
            let behind = self.from.saturating_sub(block) as u32;
            let ahead = u64::MAX.checked_shl(behind).unwrap_or(0);
            // The second byte of an instruction lies one byte further.
            let later = if self.from >= block { ahead.wrapping_shl(1) } else { ahead };
            let found = self.marks.one & ahead | self.marks.two & later;
            if found != 0 {
                let operand = block + found.trailing_zeros() as usize + 1;
                let field = bytes.get(operand..)?.first_chunk()?;
                self.from = operand + 4;
                return Some((operand, i32::from_le_bytes(*field)));
            }
            if self.seen >= bytes.len() {
                return None;
            }
            self.marks = Marks::of(bytes, self.seen);
            self.seen += BLOCK;
        }
    }
}

impl Marks {
    /// The marks of the block at `start`, which may be the last.
    fn of(bytes: &[u8], start: usize) -> Self {
        match bytes[start..].first_chunk() {
            Some(block) => Self::in_block(block, &bytes[..start]),
            None => {
                let (rest, mut block) = (&bytes[start..], [0; BLOCK]);
                block[..rest.len()].copy_from_slice(rest);
                Self::in_block(&block, &bytes[..start])
            }
        }
    }

    fn in_block(block: &[u8; BLOCK], before: &[u8]) -> Self {
        let mut earlier = [before.last().copied().unwrap_or(0); BLOCK];
        earlier[1..].copy_from_slice(&block[..BLOCK - 1]);
        let one = bits(|n| block[n] & 0xfe == 0xe8);
        // Without branches and the same for all bytes, so that the compiler vectorises it.
        let two = bits(|n| {
            let relative = ((earlier[n] == 0x8b) | (earlier[n] == 0x8d)) & (block[n] & 0xc7 == 0x05);
            let through = (earlier[n] == 0xff) & ((block[n] == 0x15) | (block[n] == 0x25));
            relative | through
        });
        Self { one, two }
    }
}

/// The positions of a block where `is` returns true, one bit each.
#[inline(always)]
fn bits(is: impl Fn(usize) -> bool) -> u64 {
    let flags: [u8; BLOCK] = std::array::from_fn(|n| u8::from(is(n)));
    // The multiplication gathers the lowest bits of eight bytes in the highest byte.
    let gather = |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    let words = flags.as_chunks::<8>().0.iter().enumerate();
    words.fold(0, |found, (n, eight)| found | gather(eight) << (8 * n))
}

fn ring(value: i32) -> i32 {
    value << (32 - BITS) >> (32 - BITS)
}

fn is_near(value: i32) -> bool {
    ring(value) == value
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

    /// The walk, byte by byte.
    fn by_bytes(bytes: &[u8]) -> Vec<usize> {
        let (mut from, mut at, mut operands) = (0, 0, Vec::new());
        while at < bytes.len() {
            let is_one = bytes[at] & 0xfe == 0xe8;
            let is_two = at > from
                && match bytes[at - 1] {
                    0x8b | 0x8d => bytes[at] & 0xc7 == 0x05,
                    0xff => matches!(bytes[at], 0x15 | 0x25),
                    _ => false,
                };
            at += 1;
            if is_one || is_two {
                if at + 4 > bytes.len() {
                    break;
                }
                operands.push(at);
                at += 4;
                from = at;
            }
        }
        operands
    }

    #[test]
    fn operands_are_found_at_every_place() {
        let mut state = 1_u32;
        for len in (0..300).chain([1000, 5000]) {
            // Mostly bytes that matter, so that instructions lie close together, within each
            // other's operands, and across blocks.
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                [0xe8, 0xe9, 0x8b, 0x8d, 0xff, 0x05, 0x3d, 0x15, 0x25, 0, 0, 0x90, 0x90, 0x48, 0x7f, 0xc3]
                    [(state >> 28) as usize]
            })
            .take(len)
            .collect();
            let mut walk = Walk::default();
            let found: Vec<usize> =
                std::iter::from_fn(|| walk.next_operand(&bytes).map(|(operand, _)| operand)).collect();
            assert_eq!(found, by_bytes(&bytes), "{len} bytes");
        }
        for (at, mark) in
            [&[0xe8][..], &[0x8b, 0x05], &[0xff, 0x25]].into_iter().cycle().take(300).enumerate()
        {
            let mut bytes = vec![0x90; 320];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            let found = Walk::default().next_operand(&bytes).map(|(operand, _)| operand);
            assert_eq!(found, Some(at + mark.len()).filter(|operand| operand + 4 <= bytes.len()));
        }
    }
}
