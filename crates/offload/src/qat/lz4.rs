//! Finds an LZ4 block in the LZ4 frame that QATzip writes. Our frames are blocks without such a
//! wrapping.

use std::ops::Range;

/// The range of the only block of `frame`. `None` if the block is stored uncompressed, there are
/// several, or `frame` is no LZ4 frame.
pub(super) fn block_of(frame: &[u8]) -> Option<Range<usize>> {
    const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
    const STORED: u32 = 1 << 31;
    let flags = *frame.get(4)?;
    if frame[..4] != MAGIC || flags >> 6 != 1 {
        return None;
    }
    let has = |bit: u8| flags >> bit & 1 == 1;
    // Flags and block descriptor, the content's size, the dictionary's number, the header's
    // checksum.
    let header = 4 + 2 + if has(3) { 8 } else { 0 } + if has(0) { 4 } else { 0 } + 1;
    let word = |at: usize| Some(u32::from_le_bytes(*frame.get(at..)?.first_chunk()?));
    let len = word(header)?;
    let start = header + 4;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let behind = end + if has(4) { 4 } else { 0 };
    (len & STORED == 0 && len > 0 && word(behind)? == 0).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags as QATzip sets them: linked blocks, content size, content checksum.
    fn frame(blocks: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0x04, 0x22, 0x4d, 0x18, 0x4c, 0x40];
        bytes.extend([9, 0, 0, 0, 0, 0, 0, 0, 0xee]);
        for (len, block) in blocks {
            bytes.extend(len.to_le_bytes());
            bytes.extend_from_slice(block);
        }
        bytes.extend([0, 0, 0, 0, 1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn one_block_is_found_and_nothing_else() {
        let one = frame(&[(5, b"block")]);
        assert_eq!(block_of(&one).map(|range| &one[range]), Some(&b"block"[..]));
        assert_eq!(block_of(&frame(&[(5 | 1 << 31, b"plain")])), None);
        assert_eq!(block_of(&frame(&[(5, b"block"), (3, b"two")])), None);
        assert_eq!(block_of(&frame(&[])), None);
        for len in 0..one.len() - 4 {
            assert_eq!(block_of(&one[..len]), None, "{len} bytes of it");
        }
        assert_eq!(block_of(&frame(&[(u32::MAX >> 1, b"far")])), None);
        assert_eq!(block_of(b"something else altogether"), None);
    }
}
