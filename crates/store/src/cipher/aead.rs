//! AES-256-GCM by the library that is quicker on this processor. Both give the same bytes.
//!
//! | processor | GB/s of `aws-lc-rs`, `ring` | taken |
//! | --- | --- | --- |
//! | x86-64 with AVX-512 and VAES | 22.9, 10.6 (Zen 5); 10.2, 7.7 (a Xeon) | `aws-lc-rs` |
//! | x86-64 with VAES, without AVX-512 | 5.6, 10.5 (Zen 5, whose AVX-512 was hidden) | `ring` |
//! | x86-64 without VAES | the same code in both | `aws-lc-rs` |
//! | ARM | the same code, and a wider one in `aws-lc-rs` | `aws-lc-rs` |
//!
//! Blocks of 64 KiB in place. `aws-lc-rs` also works from one buffer into another, without a copy before.

use aws_lc_rs::aead as lc;
use ring::aead as ring;

/// Bytes of a nonce.
pub(crate) const NONCE_LEN: usize = 12;
/// Bytes of a tag.
pub(crate) const TAG_LEN: usize = 16;

/// A key of AES-256-GCM. The caller sees to the nonces: a key that meets one twice is lost.
pub(crate) enum Aead {
    Lc(lc::LessSafeKey),
    Ring(Box<ring::LessSafeKey>),
}

impl Aead {
    pub fn new(key: &[u8; 32]) -> Self {
        match ring_is_quicker() {
            true => Self::by_ring(key),
            false => Self::by_lc(key),
        }
    }

    fn by_lc(key: &[u8; 32]) -> Self {
        let key = lc::UnboundKey::new(&lc::AES_256_GCM, key).expect("a key of 32 bytes");
        Self::Lc(lc::LessSafeKey::new(key))
    }

    fn by_ring(key: &[u8; 32]) -> Self {
        let key = ring::UnboundKey::new(&ring::AES_256_GCM, key).expect("a key of 32 bytes");
        Self::Ring(Box::new(ring::LessSafeKey::new(key)))
    }

    /// Encrypts `bytes` in place; returns the tag, which also covers `about`.
    pub fn seal(&self, nonce: [u8; NONCE_LEN], about: &[u8], bytes: &mut [u8]) -> [u8; TAG_LEN] {
        const FITS: &str = "shorter than 64 GiB";
        match self {
            Self::Lc(key) => {
                let (nonce, about) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(about));
                let tag = key.seal_in_place_separate_tag(nonce, about, bytes).expect(FITS);
                tag.as_ref().try_into().expect("a tag")
            }
            Self::Ring(key) => {
                let (nonce, about) = (ring::Nonce::assume_unique_for_key(nonce), ring::Aad::from(about));
                let tag = key.seal_in_place_separate_tag(nonce, about, bytes).expect(FITS);
                tag.as_ref().try_into().expect("a tag")
            }
        }
    }

    /// Encrypts `plain` into `sealed`, which is longer by the tag at its end.
    ///
    /// # Panics
    /// When `sealed` has another length.
    pub fn seal_to(&self, nonce: [u8; NONCE_LEN], about: &[u8], plain: &[u8], sealed: &mut [u8]) {
        let (bytes, room) = sealed.split_last_chunk_mut::<TAG_LEN>().expect("room for the tag");
        match self {
            Self::Lc(key) => {
                let (nonce, about) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(about));
                let sealed = key.seal_out_of_place_scatter(nonce, about, plain, bytes, &[], room);
                sealed.expect("a buffer for the encrypted bytes");
            }
            Self::Ring(_) => {
                bytes.copy_from_slice(plain);
                *room = self.seal(nonce, about, bytes);
            }
        }
    }

    /// Decrypts `sealed`, whose last bytes are the tag, into `plain`, which is as long as the rest. False
    /// if they are not what was sealed with this nonce about this; then `plain` may have any bytes.
    ///
    /// # Panics
    /// When `plain` has another length.
    #[must_use]
    pub fn open_to(&self, nonce: [u8; NONCE_LEN], about: &[u8], sealed: &[u8], plain: &mut [u8]) -> bool {
        let Some((sealed, tag)) = sealed.split_last_chunk::<TAG_LEN>() else { return false };
        assert_eq!(sealed.len(), plain.len(), "a buffer for the plain bytes");
        match self {
            Self::Lc(key) => {
                let (nonce, about) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(about));
                key.open_separate_gather(nonce, about, sealed, tag, plain).is_ok()
            }
            Self::Ring(_) => {
                plain.copy_from_slice(sealed);
                self.open(nonce, about, plain, tag)
            }
        }
    }

    /// Decrypts `bytes` in place. False if they and `tag` are not what was sealed with this nonce about
    /// this; then they may be any.
    #[must_use]
    pub fn open(&self, nonce: [u8; NONCE_LEN], about: &[u8], bytes: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        match self {
            Self::Lc(key) => {
                let (nonce, about) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(about));
                key.open_in_place_separate_tag(nonce, about, tag, bytes).is_ok()
            }
            Self::Ring(key) => {
                let (nonce, about) = (ring::Nonce::assume_unique_for_key(nonce), ring::Aad::from(about));
                key.open_in_place_separate_tag(nonce, about, (*tag).into(), bytes, 0..).is_ok()
            }
        }
    }
}

/// `aws-lc-rs` has no code for VAES without AVX-512.
fn ring_is_quicker() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx512 = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl");
        std::arch::is_x86_feature_detected!("vaes") && !has_avx512
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_give_the_same_bytes_and_refuse_others() {
        let (key, nonce) = ([7; 32], [9; NONCE_LEN]);
        let libraries = [Aead::by_lc(&key), Aead::by_ring(&key)];
        // Around a block of the cipher, and the widths of the libraries' loops.
        for len in (0..70).chain([127, 128, 129, 255, 256, 257, 4095, 65_536, 65_537]) {
            let plain: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let sealed = libraries.each_ref().map(|aead| {
                let mut bytes = plain.clone();
                let tag = aead.seal(nonce, b"about", &mut bytes);
                bytes.extend_from_slice(&tag);
                let mut elsewhere = vec![1; len + TAG_LEN];
                aead.seal_to(nonce, b"about", &plain, &mut elsewhere);
                assert_eq!(elsewhere, bytes);
                bytes
            });
            assert_eq!(sealed[0], sealed[1], "{len} bytes");
            for aead in &libraries {
                let opened = |sealed: &[u8], about: &[u8], nonce| {
                    let mut out = vec![1; len];
                    let is_right = aead.open_to(nonce, about, sealed, &mut out);
                    let (body, tag) = sealed.split_last_chunk().expect("it has a tag");
                    let mut in_place = body.to_vec();
                    assert_eq!(aead.open(nonce, about, &mut in_place, tag), is_right);
                    assert!(!is_right || out == plain && in_place == plain, "{len} bytes");
                    is_right
                };
                assert!(opened(&sealed[0], b"about", nonce));
                assert!(!opened(&sealed[0], b"other", nonce) && !opened(&sealed[0], b"about", [8; 12]));
                for at in [0, len / 2, len, len + TAG_LEN - 1] {
                    let mut changed = sealed[0].clone();
                    changed[at] ^= 1;
                    assert!(!opened(&changed, b"about", nonce), "{len} bytes, byte {at}");
                }
            }
        }
        assert!(!libraries[0].open_to(nonce, b"", b"short", &mut []));
    }
}
