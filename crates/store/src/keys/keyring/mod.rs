//! The keyring: the secrets of all epochs, and the keys derived from them.

mod encode;
mod rights;

use std::sync::{PoisonError, RwLock};

use outrigger_format::{PackId, StoreId};

use super::Key;
use crate::error::{Error, ErrorKind, Result};

pub(super) use encode::MAX;
pub use rights::Rights;

/// Epochs in a keyring at most, so that a slot stays a small text.
const EPOCHS_MAX: usize = 500;

/// Names a keyring: the store that it is for, and a number derived from its first secret, which says
/// nothing of it. A store's configuration has it, so that no other keyring is taken for its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingId {
    /// The store.
    pub store: StoreId,
    /// The number.
    pub number: u64,
}

impl std::fmt::Display for RingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:016x}", self.store, self.number)
    }
}

/// The secrets of an encrypted store, one for each epoch. Epochs count from 1; new data is
/// encrypted with keys of the last one.
pub struct Keyring {
    store: StoreId,
    rights: Rights,
    epochs: RwLock<Vec<Key>>,
}

impl Keyring {
    /// A keyring for a new store, with one epoch.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn new(store: StoreId) -> Result<Self> {
        Ok(Self { store, rights: Rights::All, epochs: RwLock::new(vec![Key::random()?]) })
    }

    /// What its holder may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The same keyring with these rights: for a slot of another host.
    ///
    /// # Errors
    /// `Denied` if `self` has fewer.
    pub fn limited(&self, rights: Rights) -> Result<Self> {
        if !self.rights.cover(rights) {
            let why = format!("a key that is {} makes no key that is {}", self.rights.name(), rights.name());
            return Err(Error::new(ErrorKind::Denied, why));
        }
        Ok(Self { store: self.store, rights, epochs: RwLock::new(self.read().clone()) })
    }

    /// The store that it is for.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Its name, the same in all epochs.
    pub fn id(&self) -> RingId {
        let derived = self.derive(&self.read()[0], "outrigger 2026-11 keyring id", &[]);
        let number = u64::from_le_bytes(*derived.bytes().first_chunk().expect("32 bytes"));
        RingId { store: self.store, number }
    }

    /// How many epochs there are.
    pub fn epochs(&self) -> u32 {
        self.read().len() as u32
    }

    /// This keyring with one more epoch.
    ///
    /// # Errors
    /// `Denied` without all rights; `Invalid` after 500 rotations; when the kernel has no random
    /// bytes.
    pub fn rotated(&self) -> Result<Self> {
        self.rights.require_changes()?;
        let mut epochs = self.read().clone();
        if epochs.len() >= EPOCHS_MAX {
            return Err(Error::new(ErrorKind::Invalid, "the keys were rotated too often; copy the store"));
        }
        epochs.push(Key::random()?);
        Ok(Self { store: self.store, rights: self.rights, epochs: RwLock::new(epochs) })
    }

    /// Takes over the epochs of a keyring of the same store that has more of them, and no fewer
    /// rights. True if it has.
    pub fn adopt(&self, newer: &Self) -> bool {
        if !newer.rights.cover(self.rights) {
            return false;
        }
        let (newer, mut epochs) =
            (newer.read().clone(), self.epochs.write().unwrap_or_else(PoisonError::into_inner));
        let is_newer = newer.len() > epochs.len() && newer[..epochs.len()] == epochs[..];
        if is_newer {
            *epochs = newer;
        }
        is_newer
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Key>> {
        self.epochs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn derive(&self, secret: &Key, purpose: &str, about: &[u8]) -> Key {
        secret.derive(purpose, &[&self.store.0, about])
    }

    /// The key of pack `id` in the last epoch.
    pub fn pack_key(&self, id: PackId) -> Key {
        self.pack_keys(id).swap_remove(0)
    }

    /// The keys that pack `id` may be encrypted with, the last epoch's first.
    pub fn pack_keys(&self, id: PackId) -> Vec<Key> {
        let epochs = self.read();
        let key = |secret| self.derive(secret, "outrigger 2026-11 pack", &id.0.to_le_bytes());
        epochs.iter().rev().map(key).collect()
    }

    /// The key of the metadata in SQLite. It stays the same in all epochs.
    pub fn database_key(&self) -> Key {
        self.derive(&self.read()[0], "outrigger 2026-11 database", &[])
    }

    /// The key of names and texts in PostgreSQL. It stays the same in all epochs, since names are
    /// looked up by what they are encrypted to.
    pub fn columns_key(&self) -> Key {
        self.derive(&self.read()[0], "outrigger 2026-11 columns", &[])
    }

    /// The key of a mount's staging log.
    pub fn staging_key(&self) -> Key {
        self.derive(&self.read()[0], "outrigger 2026-11 staging", &[])
    }

    /// The key of the index's prefixes.
    pub fn index_key(&self) -> Key {
        self.derive(&self.read()[0], "outrigger 2026-11 index", &[])
    }

    /// The key of the table cache's file.
    pub fn table_cache_key(&self) -> Key {
        self.derive(&self.read()[0], "outrigger 2026-11 table cache", &[])
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "keyring of store {}, {}, {} epochs", self.store, self.rights.name(), self.epochs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_changes_the_keys_of_new_packs_and_keeps_the_old_ones() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let rotated = ring.rotated().unwrap();
        assert_ne!(ring.pack_key(PackId(1)), rotated.pack_key(PackId(1)));
        assert_eq!(rotated.pack_keys(PackId(1))[1], ring.pack_key(PackId(1)));
        assert_eq!(ring.columns_key(), rotated.columns_key());
        assert!(ring.adopt(&rotated) && !ring.adopt(&rotated));
        assert_eq!(ring.pack_key(PackId(1)), rotated.pack_key(PackId(1)));
        assert!(!ring.adopt(&Keyring::new(StoreId([1; 16])).unwrap().rotated().unwrap().rotated().unwrap()));
    }

    #[test]
    fn nobody_gives_more_rights_than_they_have() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let reader = ring.limited(Rights::ReadOnly).unwrap();
        assert_eq!(reader.id(), ring.id());
        assert_eq!(reader.limited(Rights::All).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(reader.rotated().unwrap_err().kind(), ErrorKind::Denied);
        let rotated = ring.rotated().unwrap();
        assert!(
            !ring.adopt(&rotated.limited(Rights::ReadOnly).unwrap()),
            "its epochs come with fewer rights"
        );
        assert!(reader.adopt(&rotated) && reader.rights() == Rights::ReadOnly);
        assert_eq!(reader.pack_key(PackId(1)), rotated.pack_key(PackId(1)));
    }

    #[test]
    fn keys_differ_by_pack_and_purpose() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let keys = [
            ring.pack_key(PackId(1)),
            ring.pack_key(PackId(2)),
            ring.database_key(),
            ring.columns_key(),
            ring.staging_key(),
            ring.index_key(),
            ring.table_cache_key(),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != key), "{at}");
        }
    }
}
