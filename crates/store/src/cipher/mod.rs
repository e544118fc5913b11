//! Secrets, and what is done with them: AES-256-GCM, and derived keys.

mod aead;
mod domain;

use std::fmt;

use zeroize::Zeroize;

use crate::error::Result;

pub(crate) use aead::{Aead, NONCE_LEN, TAG_LEN};
pub use domain::DomainKey;

/// Bytes that [`Key::seal`] adds.
pub const SEAL_LEN: usize = NONCE_LEN + TAG_LEN;

/// A secret of 32 bytes. It is wiped from memory when it is dropped, and is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A random key.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self(outrigger_clock::random()?))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A key for another purpose. Neither can be computed from the derived one. `purpose` is a
    /// constant of the program; `about` tells apart what has keys of one purpose.
    #[must_use]
    pub fn derive(&self, purpose: &str, about: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0);
        for part in about {
            // Lengths keep different lists apart.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The AEAD under this key, for callers that see to the nonces.
    pub(crate) fn aead(&self) -> Aead {
        Aead::new(&self.0)
    }

    /// Encrypts `plain` with AES-256-GCM under a random nonce, which comes first in the result.
    /// `about` is authenticated and not stored: [`Key::open`] must be given the same. For at most
    /// 2^32 messages under one key.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn seal(&self, about: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = outrigger_clock::random()?;
        let mut out = Vec::with_capacity(plain.len() + SEAL_LEN);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let tag = self.aead().seal(nonce, about, &mut out[NONCE_LEN..]);
        out.extend_from_slice(&tag);
        Ok(out)
    }

    /// Decrypts what [`Key::seal`] returned; `None` if it was sealed with another key or about
    /// something else, or was changed since.
    pub fn open(&self, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut plain = vec![0; rest.len().checked_sub(TAG_LEN)?];
        self.aead().open_to(*nonce, about, rest, &mut plain).then_some(plain)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_text_opens_with_its_key_and_subject_only() {
        let key = Key::random().unwrap();
        let sealed = key.seal(b"subject", b"text").unwrap();
        assert_eq!(sealed.len(), 4 + SEAL_LEN);
        assert_eq!(key.open(b"subject", &sealed).as_deref(), Some(&b"text"[..]));
        assert_eq!(key.open(b"other", &sealed), None);
        assert_eq!(Key::random().unwrap().open(b"subject", &sealed), None);
        assert_ne!(key.seal(b"subject", b"text").unwrap(), sealed, "each time under another nonce");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key.open(b"subject", &changed), None, "byte {at}");
            assert_eq!(key.open(b"subject", &sealed[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn derived_keys_differ_by_purpose_and_subject() {
        let key = Key::new([1; 32]);
        let derived = [
            key.derive("a", &[]),
            key.derive("b", &[]),
            key.derive("a", &[b"x"]),
            key.derive("a", &[b"xy", b"z"]),
            key.derive("a", &[b"x", b"yz"]),
            Key::new([2; 32]).derive("a", &[]),
        ];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[..at].iter().all(|other| other != one), "{at}");
        }
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
