//! Stored as it is.

/// Bytes that come out at most.
pub(super) fn worst_case(len: usize) -> usize {
    len
}

/// Replaces `out` by what of `stored` is promised; returns how many bytes there are.
pub(super) fn decompress(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> usize {
    out.clear();
    out.extend_from_slice(&stored[..stored.len().min(raw_len)]);
    stored.len()
}

/// Fills `out` if `stored` is as long; returns how long that is.
pub(super) fn decompress_into(stored: &[u8], out: &mut [u8]) -> usize {
    if stored.len() == out.len() {
        out.copy_from_slice(stored);
    }
    stored.len()
}
