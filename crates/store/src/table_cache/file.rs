//! The file that a table cache leaves for the next start: `table-cache` in the store's directory.
//!
//! ```text
//!   0  8  magic "OUTRTCAC"
//!   8  4  version = 1
//!  12  4  reserved, 0
//!  16 16  id of the store
//!  32 24  chunks that devices were asked about, found, and that were relied on for it, so far
//!  56  8  checksum of bytes 0 to 56
//!  64     what was counted: `offload/src/table/hot/bytes.rs`, with a checksum of its own
//! ```
//!
//! It is a cache: a file that is incomplete, damaged or of another store is dropped. And only its
//! counts are believed (`mod.rs`).

use outrigger_format::{StoreId, checksum};

use super::Asked;

const MAGIC: &[u8; 8] = b"OUTRTCAC";
const VERSION: u32 = 1;
const HEADER: usize = 64;

/// The header; the counts follow it.
pub(super) fn header(store: StoreId, asked: &Asked) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&store.0);
    for count in [asked.asked, asked.found, asked.relied] {
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    let sum = checksum(&[&bytes]);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The header's values and the bytes after it; or why the file is not for this store.
pub(super) fn parse(bytes: &[u8], store: StoreId) -> Result<(Asked, &[u8]), &'static str> {
    let Some((header, counted)) = bytes.split_first_chunk::<HEADER>() else { return Err("it is cut off") };
    let word = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("within the header"));
    if header[..8] != *MAGIC {
        return Err("it is something else");
    }
    if word(56) != checksum(&[&header[..56]]) {
        return Err("it is damaged");
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err("it is of another version");
    }
    if header[16..32] != store.0 {
        return Err("it is of another store");
    }
    Ok((Asked { asked: word(32), found: word(40), relied: word(48), ..Asked::default() }, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_for_this_store_is_dropped() {
        let (id, asked) = (StoreId([3; 16]), Asked { asked: 10, found: 4, relied: 3, ..Asked::default() });
        let mut bytes = header(id, &asked);
        bytes.extend_from_slice(b"counts");
        assert_eq!(parse(&bytes, id), Ok((asked, &b"counts"[..])));
        assert_eq!(parse(&bytes, StoreId([4; 16])), Err("it is of another store"));
        for at in 0..HEADER {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert!(parse(&flipped, id).is_err(), "byte {at}");
            assert!(parse(&bytes[..at], id).is_err(), "cut at {at}");
        }
    }
}
