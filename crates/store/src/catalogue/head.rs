//! A head: the name of a state of the catalogue, short enough to be written down.
//!
//! ```text
//! OHEAD1-XXXX-XXXX-...    16 groups of 4 digits: 8 bytes of the store's id, the block's sequence as 8 bytes
//!                         (little-endian), 20 bytes of its fingerprint, 4 of a checksum
//! ```

use std::fmt;
use std::str::FromStr;

use outrigger_format::{Fingerprint, StoreId};

use crate::digits;
use crate::error::{Error, ErrorKind, Result};

const PREFIX: &str = "OHEAD1";
const BYTES: usize = 40;
const STORE: usize = 8;
const HASH: usize = 20;

/// Names a catalogue block, and with it all blocks that the block says came before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Head {
    store: [u8; STORE],
    /// The block's sequence.
    pub sequence: u64,
    hash: [u8; HASH],
}

impl Head {
    pub(crate) fn new(store: StoreId, sequence: u64, block: Fingerprint) -> Self {
        let store = *store.0.first_chunk().expect("16 bytes");
        Self { store, sequence, hash: *block.0.first_chunk().expect("32 bytes") }
    }

    /// Refuses a head of another store than this.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn require_of(&self, store: StoreId) -> Result<()> {
        if store.0.starts_with(&self.store) {
            return Ok(());
        }
        let why = "this is the head of another store, or another store was put in this one's place";
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// True if it names the block with this fingerprint.
    pub(crate) fn names(&self, block: &Fingerprint) -> bool {
        block.0.starts_with(&self.hash)
    }
}

fn check_bytes(rest: &[u8]) -> [u8; 4] {
    let sum = outrigger_format::checksum(&[b"outrigger head text", rest]).to_le_bytes();
    *sum.first_chunk().expect("8 bytes")
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [&self.store[..], &self.sequence.to_le_bytes(), &self.hash].concat();
        bytes.extend(check_bytes(&bytes));
        f.write_str(&digits::encode(PREFIX, &bytes))
    }
}

impl FromStr for Head {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::new(ErrorKind::Invalid, format!("this is not a head: {why}"));
        let bytes = digits::decode::<BYTES>(PREFIX, text).map_err(|why| wrong(&why))?;
        let (rest, check) = bytes.split_last_chunk::<4>().expect("40 bytes");
        if *check != check_bytes(rest) {
            return Err(wrong("a digit was mistyped"));
        }
        let (store, rest) = rest.split_first_chunk().expect("36 bytes");
        let (sequence, hash) = rest.split_first_chunk().expect("28 bytes");
        let hash = *hash.first_chunk().expect("20 bytes");
        Ok(Self { store: *store, sequence: u64::from_le_bytes(*sequence), hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_and_a_mistyped_digit_is_noticed() {
        let head = Head::new(StoreId([3; 16]), 1 << 33, Fingerprint([9; 32]));
        let text = head.to_string();
        assert_eq!(text.len(), PREFIX.len() + 16 * 5);
        assert_eq!(text.parse::<Head>().unwrap(), head);
        assert_eq!(text.to_lowercase().replace('-', " ").parse::<Head>().unwrap(), head);
        assert!(head.require_of(StoreId([3; 16])).is_ok() && head.require_of(StoreId([4; 16])).is_err());
        assert!(head.names(&Fingerprint([9; 32])) && !head.names(&Fingerprint([8; 32])));
        for at in (PREFIX.len()..text.len()).filter(|at| text.as_bytes()[*at] != b'-') {
            let mut typed = text.clone().into_bytes();
            typed[at] = if typed[at] == b'7' { b'8' } else { b'7' };
            let error = String::from_utf8(typed).unwrap().parse::<Head>().unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("mistyped"), "{error}");
        }
        assert!("".parse::<Head>().is_err() && "OKEY1-0000".parse::<Head>().is_err());
    }
}
