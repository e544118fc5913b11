//! Frames that are stored as they are.

/// The most bytes of output.
pub(super) fn worst_case(len: usize) -> usize {
    len
}

/// Replaces `out` by at most the promised bytes of `stored`, and returns the length of `stored`.
pub(super) fn decompress(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> usize {
    out.clear();
    out.extend_from_slice(&stored[..stored.len().min(raw_len)]);
    stored.len()
}

/// Fills `out` if `stored` has the same length. Returns the length of `stored`.
pub(super) fn decompress_into(stored: &[u8], out: &mut [u8]) -> usize {
    if stored.len() == out.len() {
        out.copy_from_slice(stored);
    }
    stored.len()
}
