//! The keys of packs.
//!
//! Each pack has two keys of its own. The *content key* encrypts its frames. It comes from an
//! agreement (X25519) between a key pair that the writer draws for this pack and the epoch's key
//! pair. The writer needs the epoch's public key for it, and readers the private one, which comes
//! from the epoch's secret. So a host that only stores cannot read what is stored, its own packs
//! included. The *footer key* encrypts header and footer, which say what is in a pack. It comes from
//! a secret of the epoch that every host has: a host that stores must know what is stored already.
//!
//! That secret goes into the content key, too. So nobody makes a pack that opens, or opens one, who
//! has no slot: also not with the public key, which lies in the slots alone.

use outrigger_format::{Domain, PackId, StoreId};
use x25519_dalek::{PublicKey, StaticSecret};

use super::{Epochs, Keyring};
use crate::error::Result;
use crate::keys::{DomainKey, Key};

/// Bytes of a [`PackHead`].
pub(crate) const HEAD_LEN: usize = 4 + 8 + 32;

/// The beginning of a pack, in the open: the epoch that its keys are of, counted from 1, its domain,
/// and the public key that its writer drew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackHead(pub [u8; HEAD_LEN]);

impl PackHead {
    fn new(epoch: u32, domain: Domain, drawn: &PublicKey) -> Self {
        let mut head = [0; HEAD_LEN];
        head[..4].copy_from_slice(&epoch.to_le_bytes());
        head[4..12].copy_from_slice(&domain.0.to_le_bytes());
        head[12..].copy_from_slice(drawn.as_bytes());
        Self(head)
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        u32::from_le_bytes(*self.0.first_chunk().expect("44 bytes"))
    }

    /// The domain.
    pub fn domain(&self) -> Domain {
        Domain(u64::from_le_bytes(*self.0[4..].first_chunk().expect("44 bytes")))
    }

    fn drawn(&self) -> PublicKey {
        PublicKey::from(*self.0.last_chunk::<32>().expect("44 bytes"))
    }
}

/// The keys of one pack.
pub(crate) struct PackKeys {
    /// Of header and footer.
    pub footer: Key,
    /// Of the frames; `None` for a host without the right to them.
    pub content: Option<Key>,
}

/// The key pair of the epoch with this secret.
pub(super) fn private(store: StoreId, secret: &Key) -> StaticSecret {
    StaticSecret::from(*secret.derive("outrigger 2026-11 pack agreement", &[&store.0, &[]]).bytes())
}

/// The public key of the epoch with this secret.
pub(super) fn public(store: StoreId, secret: &Key) -> [u8; 32] {
    PublicKey::from(&private(store, secret)).to_bytes()
}

/// What every host has of the epoch with this secret.
pub(super) fn common(store: StoreId, secret: &Key) -> Key {
    secret.derive("outrigger 2026-11 pack common", &[&store.0, &[]])
}

impl Keyring {
    /// Draws the keys of the new pack `id`, in the last epoch, for a domain if it is in one.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub(crate) fn new_pack(&self, id: PackId, domain: Option<&DomainKey>) -> Result<(PackHead, PackKeys)> {
        let (epoch, common, public) = match &*self.read() {
            Epochs::Secrets(secrets) => {
                let last = secrets.last().expect("at least one epoch");
                (secrets.len(), self::common(self.store, last), self::public(self.store, last))
            }
            Epochs::Stores { common, public } => {
                (common.len(), common.last().expect("at least one epoch").clone(), *public)
            }
        };
        let drawn = StaticSecret::from(outrigger_clock::random::<32>()?);
        let of = domain.map_or(Domain::COMMON, |domain| domain.id);
        let head = PackHead::new(epoch as u32, of, &PublicKey::from(&drawn));
        let agreed = drawn.diffie_hellman(&PublicKey::from(public));
        let content = match domain {
            Some(domain) => self.domain_content_key(&common, id, &head, domain),
            None => self.content_key(&common, id, &head, &public, agreed.as_bytes()),
        };
        Ok((head, PackKeys { footer: self.footer_key(&common, id, &head), content: Some(content) }))
    }

    /// The keys of pack `id`, which begins with `head`; `None` if its epoch is not one of this
    /// keyring, or its public key is none. `domain` is the key of its domain, if that is at hand.
    pub(crate) fn pack(&self, id: PackId, head: &PackHead, domain: Option<&DomainKey>) -> Option<PackKeys> {
        let at = (head.epoch() as usize).checked_sub(1)?;
        let (common, content) = match &*self.read() {
            epochs if head.domain() != Domain::COMMON => {
                let common = match epochs {
                    Epochs::Secrets(secrets) => self::common(self.store, secrets.get(at)?),
                    Epochs::Stores { common, .. } => common.get(at)?.clone(),
                };
                let domain = domain.filter(|domain| domain.id == head.domain());
                let content = domain.map(|domain| self.domain_content_key(&common, id, head, domain));
                (common, content)
            }
            Epochs::Secrets(secrets) => {
                let secret = secrets.get(at)?;
                let (common, private) = (self::common(self.store, secret), private(self.store, secret));
                let agreed = private.diffie_hellman(&head.drawn());
                // A public key with which all agree on the same tells nothing of its writer.
                if !agreed.was_contributory() {
                    return None;
                }
                let public = PublicKey::from(&private).to_bytes();
                let content = self.content_key(&common, id, head, &public, agreed.as_bytes());
                (common, Some(content))
            }
            Epochs::Stores { common, .. } => (common.get(at)?.clone(), None),
        };
        Some(PackKeys { footer: self.footer_key(&common, id, head), content })
    }

    fn footer_key(&self, common: &Key, id: PackId, head: &PackHead) -> Key {
        common.derive("outrigger 2026-11 pack footer", &[&self.store.0, &id.0.to_le_bytes(), &head.0])
    }

    /// The content key of a pack of a domain. It needs the secret that every slot of the epoch has, too: a
    /// host with the domain's key alone opens nothing.
    fn domain_content_key(&self, common: &Key, id: PackId, head: &PackHead, domain: &DomainKey) -> Key {
        let about: [&[u8]; 4] = [&self.store.0, &id.0.to_le_bytes(), &head.0, domain.secret().bytes()];
        common.derive("outrigger 2026-11 domain pack content", &about)
    }

    fn content_key(
        &self,
        common: &Key,
        id: PackId,
        head: &PackHead,
        public: &[u8; 32],
        agreed: &[u8; 32],
    ) -> Key {
        let about: [&[u8]; 5] = [&self.store.0, &id.0.to_le_bytes(), &head.0, public, agreed];
        common.derive("outrigger 2026-11 pack content", &about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Rights;

    const STORE: StoreId = StoreId([1; 16]);

    #[test]
    fn readers_open_what_any_host_writes_and_those_who_only_store_open_nothing() {
        let ring = Keyring::new(STORE).unwrap().rotated().unwrap();
        let stores = ring.limited(Rights::PutOnly).unwrap();
        for writer in [&ring, &stores] {
            let (head, keys) = writer.new_pack(PackId(7), None).unwrap();
            assert_eq!(head.epoch(), 2);
            let read = ring.pack(PackId(7), &head, None).unwrap();
            assert!(read.footer == keys.footer && read.content == keys.content);
            let other = stores.pack(PackId(7), &head, None).unwrap();
            assert!(other.footer == keys.footer && other.content.is_none());
            assert!(ring.pack(PackId(8), &head, None).unwrap().content != keys.content, "another pack's");
            let other = Keyring::new(STORE).unwrap().rotated().unwrap();
            assert!(other.pack(PackId(7), &head, None).unwrap().footer != keys.footer, "another store's");
        }
    }

    #[test]
    fn a_rotation_changes_the_keys_of_new_packs_and_keeps_the_old_ones() {
        let ring = Keyring::new(STORE).unwrap();
        let (head, keys) = ring.new_pack(PackId(1), None).unwrap();
        let rotated = ring.rotated().unwrap();
        assert!(rotated.pack(PackId(1), &head, None).unwrap().content == keys.content);
        let (newer, keys) = rotated.new_pack(PackId(1), None).unwrap();
        assert!(newer.epoch() == 2 && ring.pack(PackId(1), &newer, None).is_none());
        // The old secret gives nothing of the new epoch.
        let mut old = newer;
        old.0[..4].copy_from_slice(&1u32.to_le_bytes());
        assert!(ring.pack(PackId(1), &old, None).unwrap().content != keys.content);
    }

    #[test]
    fn a_public_key_of_low_order_is_refused() {
        let ring = Keyring::new(STORE).unwrap();
        // The point of order one, and one of order two.
        for first in [0, 1] {
            let mut head = PackHead([0; HEAD_LEN]);
            (head.0[0], head.0[12]) = (1, first);
            assert!(ring.pack(PackId(1), &head, None).is_none());
        }
    }
}
