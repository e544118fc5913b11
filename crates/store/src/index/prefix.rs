//! The 8 bytes by which the index knows a fingerprint.
//!
//! A plain index takes the fingerprint's first 8 bytes. Whoever reads them on the disk can tell
//! whether a file that he knows is stored. So with a key it takes 8 bytes of the encryption of the
//! first 16 under AES-256: as evenly spread, and without meaning to all who lack the key.

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use outrigger_format::{Fingerprint, StoreId};

use super::run::Stamp;
use crate::keys::Key;

/// Computes prefixes; see the module's header.
pub(super) struct Prefixes {
    cipher: Option<Aes256>,
    stamp: Stamp,
}

impl Prefixes {
    pub fn new(store: StoreId, key: Option<&Key>) -> Self {
        let Some(key) = key else { return Self { cipher: None, stamp: Stamp { store, key_check: 0 } } };
        let check = key.derive("outrigger index check", &[&store.0]);
        let first = check.bytes().first_chunk().expect("a key of 32 bytes");
        // A plain index has 0.
        let stamp = Stamp { store, key_check: u32::from_le_bytes(*first).max(1) };
        let key = key.derive("outrigger index prefixes", &[&store.0]);
        Self { cipher: Some(Aes256::new(key.bytes().into())), stamp }
    }

    /// Tells apart runs with other prefixes.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// True when there is a key.
    pub fn are_keyed(&self) -> bool {
        self.cipher.is_some()
    }

    /// The prefix of a fingerprint.
    #[inline]
    pub fn of(&self, fingerprint: &Fingerprint) -> u64 {
        let Some(cipher) = &self.cipher else { return fingerprint.prefix() };
        let mut block = [0; 16];
        block.copy_from_slice(&fingerprint.0[..16]);
        let mut block = aes::Block::from(block);
        cipher.encrypt_block(&mut block);
        let (prefix, _) = block.split_first_chunk().expect("a block of 16 bytes");
        u64::from_le_bytes(*prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_depend_on_key_and_store() {
        let (store, fingerprint) = (StoreId([1; 16]), Fingerprint([7; 32]));
        let (one, two) = (Key::new([1; 32]), Key::new([2; 32]));
        let all = [
            Prefixes::new(store, None),
            Prefixes::new(store, Some(&one)),
            Prefixes::new(store, Some(&two)),
            Prefixes::new(StoreId([2; 16]), Some(&one)),
        ];
        assert_eq!((all[0].of(&fingerprint), all[0].stamp().key_check), (fingerprint.prefix(), 0));
        for (at, prefixes) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.of(&fingerprint) != prefixes.of(&fingerprint)));
            assert!(all[..at].iter().all(|other| other.stamp() != prefixes.stamp()));
        }
    }
}
