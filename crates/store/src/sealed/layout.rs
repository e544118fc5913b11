//! Where what lies in an encrypted pack.

use outrigger_format::PACK_HEADER_LEN;

use crate::keys::{HEAD_LEN, NONCE_LEN, TAG_LEN};

/// Plain bytes of a block.
pub(super) const BLOCK: usize = 64 << 10;
/// Bytes that a block takes besides.
pub(super) const EXTRA: usize = NONCE_LEN + TAG_LEN;
/// Bytes of a whole block.
pub(super) const SEALED: usize = BLOCK + EXTRA;
/// Plain bytes of the header: a pack's first ones.
pub(super) const HEADER: usize = PACK_HEADER_LEN;
/// Where the frames begin: behind the head and the header's block.
pub(super) const FRAMES: usize = HEAD_LEN + HEADER + EXTRA;
/// Plain bytes of the tail.
pub(super) const TAIL_PLAIN: usize = 12;
/// Bytes of the tail's block, the pack's last ones.
pub(super) const TAIL: usize = TAIL_PLAIN + EXTRA;
/// Numbers of blocks under the footer key: of the header, …
pub(super) const HEADER_NUMBER: u32 = 0;
/// … of the tail, …
pub(super) const TAIL_NUMBER: u32 = 1;
/// … and of the first block of the end.
pub(super) const END_NUMBER: u32 = 2;

/// Lengths of a pack, plain bytes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Its frames end here, and its footer begins. At least the header's bytes.
    pub frames_end: u64,
    /// It ends here.
    pub len: u64,
    /// Zeros that were added behind it.
    pub zeros: u64,
    /// It has its tail, so these are its lengths.
    pub is_whole: bool,
}

impl Shape {
    /// The tail's bytes.
    pub fn encode(&self) -> [u8; TAIL_PLAIN] {
        let mut bytes = [0; TAIL_PLAIN];
        for (part, value) in bytes.chunks_exact_mut(4).zip([self.frames_end, self.len, self.zeros]) {
            part.copy_from_slice(&u32::try_from(value).expect("a pack is below 4 GiB").to_le_bytes());
        }
        bytes
    }

    /// Decodes the tail of a pack of `stored` bytes; `None` if it cannot have that length.
    pub fn decode(bytes: &[u8], stored: u64) -> Option<Self> {
        let (parts, []) = bytes.as_chunks::<4>() else { return None };
        let &[frames_end, len, zeros] = parts else { return None };
        let value = |part| u64::from(u32::from_le_bytes(part));
        let shape =
            Self { frames_end: value(frames_end), len: value(len), zeros: value(zeros), is_whole: true };
        let has_order = shape.frames_end >= HEADER as u64 && shape.frames_end <= shape.padded();
        (has_order && shape.stored() == stored).then_some(shape)
    }

    /// A pack without a tail, which is being written or was cut off: its whole blocks are taken for
    /// frames.
    pub fn unfinished(stored: u64) -> Self {
        let blocks = stored.saturating_sub(FRAMES as u64) / SEALED as u64;
        let len = if stored < FRAMES as u64 { 0 } else { HEADER as u64 + blocks * BLOCK as u64 };
        Self { frames_end: len.max(HEADER as u64), len, zeros: 0, is_whole: false }
    }

    /// Where the zeros end.
    fn padded(&self) -> u64 {
        self.len.max(HEADER as u64) + self.zeros
    }

    /// Bytes of the whole pack as it is stored.
    pub fn stored(&self) -> u64 {
        self.end().at + sealed_len(self.padded() - self.frames_end) + TAIL as u64
    }

    /// The blocks of frames.
    pub fn frames(&self) -> Section {
        let (from, to) = (HEADER as u64, self.frames_end);
        Section { from, to, at: FRAMES as u64, first: 0, is_content: true }
    }

    /// The blocks of the footer, the trailer and the zeros.
    pub fn end(&self) -> Section {
        let (from, to) = (self.frames_end, self.padded());
        let at = FRAMES as u64 + sealed_len(from - HEADER as u64);
        Section { from, to, at, first: END_NUMBER, is_content: false }
    }
}

/// Blocks that follow each other under one key; all but the last are whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    /// Plain bytes of the pack in them.
    pub from: u64,
    /// … and where these end.
    pub to: u64,
    /// Where the first block lies in the stored pack.
    pub at: u64,
    /// Its number.
    pub first: u32,
    /// Under the content key, not the footer key.
    pub is_content: bool,
}

impl Section {
    /// The blocks that have the plain bytes from `offset` to `end` of this section: their stored
    /// bytes, from and to; the number of the first; and its plain bytes before `offset`.
    pub fn blocks(&self, offset: u64, end: u64) -> (u64, u64, u32, usize) {
        let (block, sealed) = (BLOCK as u64, SEALED as u64);
        let (first, last) = ((offset - self.from) / block, (end - self.from).div_ceil(block));
        let stored_end = self.at + (last * sealed).min(sealed_len(self.to - self.from));
        let before = offset - self.from - first * block;
        (self.at + first * sealed, stored_end, self.first + first as u32, before as usize)
    }
}

/// Stored bytes of `len` plain bytes of a section.
pub(super) fn sealed_len(len: u64) -> u64 {
    len + len.div_ceil(BLOCK as u64) * EXTRA as u64
}

/// How many zeros make `more` stored bytes, if `len` plain bytes of the section are there; `None` if
/// no number does, as a block takes some bytes itself.
pub(super) fn zeros_for(len: u64, more: u64) -> Option<u64> {
    let room = len.next_multiple_of(BLOCK as u64) - len;
    let Some(rest) = more.checked_sub(room).filter(|rest| *rest > 0) else { return Some(more) };
    let (whole, rest) = (rest / SEALED as u64, rest % SEALED as u64);
    let part = if rest == 0 { Some(0) } else { rest.checked_sub(EXTRA as u64).filter(|part| *part > 0) };
    Some(room + whole * BLOCK as u64 + part?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_fill_what_they_are_asked_to_fill() {
        let block = BLOCK as u64;
        for len in [0, 1, 100, block - 30, block - 1, block, block + 1, 3 * block] {
            let mut refused = 0;
            for more in (0..200).chain(SEALED as u64 - 40..SEALED as u64 + 80) {
                match zeros_for(len, more) {
                    Some(zeros) => {
                        assert_eq!(sealed_len(len + zeros), sealed_len(len) + more, "{len} {more}")
                    }
                    None => refused += 1,
                }
            }
            assert!(refused <= 3 * EXTRA, "{len}: {refused}");
        }
    }

    #[test]
    fn a_tail_reads_back_for_its_length_only() {
        let shape = Shape { frames_end: 200_000, len: 250_000, zeros: 4_321, is_whole: true };
        let stored = shape.stored();
        assert_eq!(Shape::decode(&shape.encode(), stored), Some(shape));
        for other in [0, stored - 1, stored + 1, stored + SEALED as u64] {
            assert_eq!(Shape::decode(&shape.encode(), other), None);
        }
        let early = Shape { frames_end: 3, ..shape };
        assert_eq!(Shape::decode(&early.encode(), stored), None);
    }
}
