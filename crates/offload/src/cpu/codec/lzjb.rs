//! LZJB: a small, old code of short matches within the last 1,023 bytes. `docs/format.md` has the
//! byte map.
//!
//! ```text
//! m             a byte for the next 8 items, lowest bit first: 0 a literal byte, 1 a match
//! match, 2 B    6 bits length − 3, 10 bits distance (1 to 1,023), the higher byte first
//! ```

use outrigger_format::Codec;

use crate::op::CodecError;

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
const TABLE: usize = 1024;

/// One more byte for every eight.
pub(super) fn worst_case(len: usize) -> usize {
    len + len.div_ceil(8)
}

#[derive(Default)]
pub(super) struct Encoder {
    /// The last position of three bytes with this hash, plus 1.
    table: Vec<u32>,
}

impl Encoder {
    /// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds.
    pub(super) fn compress(&mut self, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        self.table.clear();
        self.table.resize(TABLE, 0);
        out.clear();
        let (mut at, mut map, mut item) = (0, 0, 8);
        while at < raw.len() {
            if item == 8 {
                // An item takes at most two bytes, so the check is made once for eight of them.
                if out.len() > room {
                    return false;
                }
                (map, item) = (out.len(), 0);
                out.push(0);
            }
            match self.find(raw, at) {
                Some((distance, len)) => {
                    out[map] |= 1 << item;
                    out.extend_from_slice(&(((len - MATCH_MIN) << 10 | distance) as u16).to_be_bytes());
                    at += len;
                }
                None => {
                    out.push(raw[at]);
                    at += 1;
                }
            }
            item += 1;
        }
        out.len() <= room
    }

    /// The match for the bytes at `at`: its distance and length.
    fn find(&mut self, raw: &[u8], at: usize) -> Option<(usize, usize)> {
        let here = raw.get(at..at + MATCH_MIN)?;
        let value = u32::from_le_bytes([here[0], here[1], here[2], 0]);
        let slot = &mut self.table[(value.wrapping_mul(0x9e37_79b1) >> 22) as usize];
        let before = std::mem::replace(slot, at as u32 + 1).checked_sub(1)? as usize;
        let distance = at - before;
        if distance > DISTANCE_MAX || raw[before..before + MATCH_MIN] != *here {
            return None;
        }
        let most = (raw.len() - at).min(MATCH_MAX);
        let same = (MATCH_MIN..most).take_while(|&len| raw[before + len] == raw[at + len]).count();
        Some((distance, MATCH_MIN + same))
    }
}

/// Fills the front of `out` and returns the number of bytes.
pub(super) fn decompress_into(stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let malformed = CodecError::Malformed(Codec::Lzjb);
    let (mut from, mut to) = (0, 0);
    while from < stored.len() {
        let map = stored[from];
        from += 1;
        for item in 0..8 {
            if from == stored.len() {
                break;
            }
            if map >> item & 1 == 0 {
                *out.get_mut(to).ok_or(malformed)? = stored[from];
                (from, to) = (from + 1, to + 1);
                continue;
            }
            let pair = stored.get(from..from + 2).ok_or(malformed)?;
            let word = usize::from(u16::from_be_bytes([pair[0], pair[1]]));
            let (len, distance) = ((word >> 10) + MATCH_MIN, word & DISTANCE_MAX);
            if distance == 0 || distance > to || to + len > out.len() {
                return Err(malformed);
            }
            // Byte by byte, because a match may overlap itself.
            for at in to..to + len {
                out[at] = out[at - distance];
            }
            (from, to) = (from + 2, to + len);
        }
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_map_is_what_is_written() {
        let mut out = Vec::new();
        assert!(Encoder::default().compress(b"abcabcabcabcx", 100, &mut out));
        // Three literals, a match of 9 at distance 3, a literal.
        assert_eq!(out, [&[0b0_1000][..], b"abc", &[6 << 2, 3], b"x"].concat());
        let mut back = vec![0; 13];
        assert_eq!(decompress_into(&out, &mut back), Ok(13));
        assert_eq!(back, b"abcabcabcabcx");
    }

    #[test]
    fn matches_from_before_the_beginning_or_beyond_the_end_are_refused() {
        let malformed = Err(CodecError::Malformed(Codec::Lzjb));
        assert_eq!(decompress_into(&[1, 0, 1], &mut [0; 10]), malformed, "nothing is before it");
        assert_eq!(decompress_into(&[2, 7, 0, 0], &mut [0; 10]), malformed, "no distance");
        assert_eq!(decompress_into(&[2, 7, 0, 2], &mut [0; 10]), malformed, "one byte is before it");
        assert_eq!(decompress_into(&[2, 7, 0, 1], &mut [0; 3]), malformed, "no room");
        assert_eq!(decompress_into(&[1, 0], &mut [0; 10]), malformed, "half a match");
        assert_eq!(decompress_into(&[2, 7, 0, 1], &mut [0; 4]), Ok(4));
    }
}
