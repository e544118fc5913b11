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
//! With a key the whole is sealed (`Key::seal`), about the store's id.
//!
//! It is a cache: a file that is incomplete, damaged, of another store or of another key is
//! dropped. And only its counts are believed (`mod.rs`).

use outrigger_format::{StoreId, checksum};

use super::Asked;
use crate::error::Result as Outcome;
use crate::keys::Key;

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

fn file_key(key: &Key, store: StoreId) -> Key {
    key.derive("outrigger table cache", &[&store.0])
}

/// The bytes of the file: `plain` itself, or sealed with the store's key.
///
/// # Errors
/// When the kernel has no random bytes.
pub(super) fn seal(plain: Vec<u8>, store: StoreId, key: Option<&Key>) -> Outcome<Vec<u8>> {
    let Some(key) = key else { return Ok(plain) };
    file_key(key, store).seal(&store.0, &plain)
}

/// The plain bytes of a file; or why there are none.
pub(super) fn unseal(bytes: Vec<u8>, store: StoreId, key: Option<&Key>) -> Result<Vec<u8>, &'static str> {
    let Some(key) = key else { return Ok(bytes) };
    file_key(key, store)
        .open(&store.0, &bytes)
        .ok_or("it is damaged, or was written with another key or none")
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

    #[test]
    fn a_sealed_file_opens_with_its_key_only() {
        let (id, key, other) = (StoreId([3; 16]), Key::new([1; 32]), Key::new([2; 32]));
        let mut plain = header(id, &Asked::default());
        plain.extend_from_slice(b"counts of fingerprints");
        assert_eq!(seal(plain.clone(), id, None).unwrap(), plain);
        let sealed = seal(plain.clone(), id, Some(&key)).unwrap();
        assert!(!plain.windows(16).any(|part| sealed.windows(16).any(|other| part == other)));
        assert_eq!(unseal(sealed.clone(), id, Some(&key)).as_ref(), Ok(&plain));
        assert!(unseal(sealed.clone(), id, Some(&other)).is_err());
        assert!(unseal(sealed.clone(), StoreId([4; 16]), Some(&key)).is_err());
        assert!(unseal(plain, id, Some(&key)).is_err());
        assert!(parse(&unseal(sealed.clone(), id, None).unwrap(), id).is_err());
        for at in 0..sealed.len() {
            let mut flipped = sealed.clone();
            flipped[at] ^= 4;
            assert!(unseal(flipped, id, Some(&key)).is_err(), "byte {at}");
        }
    }
}
