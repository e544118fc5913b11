//! ZLE shortens runs of zeros and copies all else. `docs/format.md` has the byte map.
//!
//! ```text
//! 0 ≤ b ≤ 63     b + 1 bytes follow as they are
//! 64 ≤ b ≤ 255   b − 63 zeros
//! ```

use outrigger_format::Codec;

use crate::op::CodecError;

const LITERALS_MAX: usize = 64;
const ZEROS_MAX: usize = 192;

/// One more byte for every 64 literals.
pub(super) fn worst_case(len: usize) -> usize {
    len + len.div_ceil(LITERALS_MAX)
}

/// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds.
pub(super) fn compress(raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut at = 0;
    while at < raw.len() {
        let zeros = zeros_at(&raw[at..]);
        // A single zero costs less among literals than between them.
        if zeros >= 2 || zeros == raw.len() - at {
            for run in std::iter::successors(Some(zeros), |left| left.checked_sub(ZEROS_MAX)) {
                if run > 0 {
                    out.push((run.min(ZEROS_MAX) + 63) as u8);
                }
            }
            at += zeros;
        } else {
            let literals = literals_at(&raw[at..]);
            out.push((literals - 1) as u8);
            out.extend_from_slice(&raw[at..at + literals]);
            at += literals;
        }
        if out.len() > room {
            return false;
        }
    }
    true
}

/// The number of zeros at the beginning of `bytes`.
fn zeros_at(bytes: &[u8]) -> usize {
    let mut words = bytes.chunks_exact(8);
    let whole = 8 * words.by_ref().take_while(|word| *word == [0; 8]).count();
    whole + bytes[whole..].iter().take(8).take_while(|byte| **byte == 0).count()
}

/// The number of bytes before two zeros, from 1 to 64.
fn literals_at(bytes: &[u8]) -> usize {
    let most = bytes.len().min(LITERALS_MAX);
    bytes[..most].windows(2).skip(1).position(|two| two == [0, 0]).map_or(most, |at| at + 1)
}

/// Fills the front of `out` and returns the number of bytes.
pub(super) fn decompress_into(stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let malformed = CodecError::Malformed(Codec::Zle);
    let (mut from, mut to) = (0, 0);
    while let Some(&head) = stored.get(from) {
        from += 1;
        let head = usize::from(head);
        if head < LITERALS_MAX {
            let len = head + 1;
            let source = stored.get(from..from + len).ok_or(malformed)?;
            out.get_mut(to..to + len).ok_or(malformed)?.copy_from_slice(source);
            (from, to) = (from + len, to + len);
        } else {
            let len = head - 63;
            out.get_mut(to..to + len).ok_or(malformed)?.fill(0);
            to += len;
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
        let raw = [&b"ab"[..], &[0; 3], b"c", &[0], b"d", &[0; 400]].concat();
        assert!(compress(&raw, raw.len(), &mut out));
        assert_eq!(out, [&[1][..], b"ab", &[66, 2], b"c", &[0], b"d", &[255, 255, 79]].concat());
        let mut back = vec![1; raw.len()];
        assert_eq!(decompress_into(&out, &mut back), Ok(raw.len()));
        assert_eq!(back, raw);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_refused() {
        let malformed = Err(CodecError::Malformed(Codec::Zle));
        assert_eq!(decompress_into(&[3, 1, 2, 3], &mut [0; 10]), malformed);
        assert_eq!(decompress_into(&[1, 1, 2], &mut [0; 1]), malformed);
        assert_eq!(decompress_into(&[255], &mut [0; 191]), malformed);
    }
}
