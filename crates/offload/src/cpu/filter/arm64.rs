//! Branch addresses of ARM64. The offset of `bl` counts words from the instruction, that of `adrp`
//! counts pages. The filter makes both count from the frame's beginning. Instructions are words of
//! four bytes, which begin at multiples of four from the frame's `phase`.
//!
//! The offset is a whole field of 26 or 21 bits, and the addition wraps in that size. The bits that
//! identify the instruction do not change, so undoing finds the same instructions.

use super::Direction;

/// Converts in place.
pub(super) fn convert(bytes: &mut [u8], phase: u8, direction: Direction) {
    let Some(words) = bytes.get_mut(usize::from(phase)..) else { return };
    for (number, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (word, number) = (u32::from_le_bytes(*four), number as u32);
        let moved = |value: u32, by: u32| match direction {
            Direction::Apply => value.wrapping_add(by),
            Direction::Undo => value.wrapping_sub(by),
        };
        let converted = if word >> 26 == 0x25 {
            word & 0xfc00_0000 | moved(word, number) & 0x03ff_ffff
        } else if word & 0x9f00_0000 == 0x9000_0000 {
            let pages = (word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3;
            let pages = moved(pages, number >> 10);
            word & 0x9f00_001f | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5
        } else {
            continue;
        };
        *four = converted.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_function_become_equal_at_every_phase() {
        for phase in 0..4u8 {
            let mut bytes = vec![0; 400];
            for at in [10u32, 50, 90] {
                let word = 0x9400_0000 | 1000u32.wrapping_sub(at) & 0x03ff_ffff;
                bytes[usize::from(phase) + 4 * at as usize..][..4].copy_from_slice(&word.to_le_bytes());
            }
            let raw = bytes.clone();
            convert(&mut bytes, phase, Direction::Apply);
            for at in [10, 50, 90] {
                assert_eq!(bytes[usize::from(phase) + 4 * at..][..4], (0x9400_0000u32 | 1000).to_le_bytes());
            }
            convert(&mut bytes, phase, Direction::Undo);
            assert_eq!(bytes, raw);
        }
    }

    #[test]
    fn a_page_of_another_place_becomes_equal() {
        // Two `adrp x3` to the frame's second page: one page back from the third page, and one page
        // ahead from the first.
        let mut bytes = vec![0; 3 * 4096];
        let adrp = |pages: u32| 0x9000_0003 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5;
        bytes[8192..8196].copy_from_slice(&adrp(u32::MAX).to_le_bytes());
        bytes[..4].copy_from_slice(&adrp(1).to_le_bytes());
        convert(&mut bytes, 0, Direction::Apply);
        assert_eq!(bytes[8192..8196], bytes[..4]);
    }
}
