//! The keyring: the secrets of all epochs, and the keys derived from them.

mod encode;
mod packs;
mod rights;

use std::sync::{PoisonError, RwLock};

use outrigger_format::{Domain, StoreId};

use super::Key;
use crate::error::{Error, ErrorKind, Result};

pub(super) use encode::MAX;
pub(crate) use packs::{HEAD_LEN, PackHead};
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

/// The secrets of an encrypted store, one for each epoch, or what of them its holder has. Epochs
/// count from 1; new data is encrypted with keys of the last one.
pub struct Keyring {
    store: StoreId,
    rights: Rights,
    /// For a host that reads one directory alone: its domain, and the lock of the domain's key.
    reads: Option<(Domain, Key)>,
    others: OtherKeys,
    epochs: RwLock<Epochs>,
}

/// The secrets from which keys of packs are derived.
#[derive(Clone)]
enum Epochs {
    /// The secret of each epoch.
    Secrets(Vec<Key>),
    /// For a host that only stores: what every host has of each epoch, and the public key of the last
    /// one.
    Stores { common: Vec<Key>, public: [u8; 32] },
}

impl Epochs {
    fn keys(&self) -> &[Key] {
        match self {
            Self::Secrets(keys) | Self::Stores { common: keys, .. } => keys,
        }
    }
}

/// Keys that stay the same in all epochs.
#[derive(Clone)]
struct OtherKeys {
    number: u64,
    database: Key,
    columns: Key,
    index: Key,
    table_cache: Key,
    /// `None` for a host that only stores.
    contents: Option<ContentKeys>,
}

/// Keys of contents outside of packs.
#[derive(Clone, Debug)]
pub struct ContentKeys {
    /// For a mount's staging log.
    pub staging: Key,
    /// For contents that PostgreSQL keeps until they are packed.
    pub inline: Key,
    /// For seals of catalogue blocks.
    pub catalogue: Key,
}

impl ContentKeys {
    /// The seal of a catalogue block, of these bytes.
    pub fn seal_of(&self, bytes: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(self.catalogue.bytes(), bytes).as_bytes()
    }
}

impl OtherKeys {
    /// Those derived from the secret of the first epoch.
    fn of(store: StoreId, first: &Key) -> Self {
        let key = |purpose| first.derive(purpose, &[&store.0, &[]]);
        let number = key("outrigger 2026-11 keyring id");
        Self {
            number: u64::from_le_bytes(*number.bytes().first_chunk().expect("32 bytes")),
            database: key("outrigger 2026-11 database"),
            columns: key("outrigger 2026-11 columns"),
            index: key("outrigger 2026-11 index"),
            table_cache: key("outrigger 2026-11 table cache"),
            contents: Some(ContentKeys {
                staging: key("outrigger 2026-11 staging"),
                inline: key("outrigger 2026-11 inline chunks"),
                catalogue: key("outrigger 2026-11 catalogue"),
            }),
        }
    }
}

impl Keyring {
    /// A keyring for a new store, with one epoch.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn new(store: StoreId) -> Result<Self> {
        Ok(Self::of_secrets(store, vec![Key::random()?]))
    }

    /// With all rights.
    fn of_secrets(store: StoreId, secrets: Vec<Key>) -> Self {
        let others = OtherKeys::of(store, &secrets[0]);
        Self {
            store,
            rights: Rights::All,
            reads: None,
            others,
            epochs: RwLock::new(Epochs::Secrets(secrets)),
        }
    }

    /// The rights of its holder.
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
        let mut others = self.others.clone();
        let epochs = match (&*self.read(), rights) {
            (Epochs::Secrets(secrets), Rights::PutOnly | Rights::Subtree) => {
                others.contents = None;
                let common = secrets.iter().map(|secret| packs::common(self.store, secret)).collect();
                let last = secrets.last().expect("at least one epoch");
                Epochs::Stores { common, public: packs::public(self.store, last) }
            }
            (epochs, _) => epochs.clone(),
        };
        Ok(Self { store: self.store, rights, reads: self.reads.clone(), others, epochs: RwLock::new(epochs) })
    }

    /// The same keyring for a host that reads domain `id` alone; `lock` opens its key.
    ///
    /// # Errors
    /// `Denied` without all rights.
    pub(in crate::keys) fn limited_to(&self, id: Domain, lock: Key) -> Result<Self> {
        self.rights.require_all()?;
        Ok(Self { reads: Some((id, lock)), ..self.limited(Rights::Subtree)? })
    }

    /// The domain that it reads, of one that reads a directory alone.
    pub fn domain(&self) -> Option<Domain> {
        self.reads.as_ref().map(|(id, _)| *id)
    }

    /// The key of the text that says that a domain's key was destroyed; `None` without all secrets, or
    /// for an epoch that there is not.
    pub(in crate::keys) fn domain_seal(&self, epoch: u32, id: Domain) -> Option<Key> {
        let Epochs::Secrets(secrets) = &*self.read() else { return None };
        let secret = secrets.get((epoch as usize).checked_sub(1)?)?;
        Some(secret.derive("outrigger 2026-11 domain seal", &[&self.store.0, &id.0.to_le_bytes()]))
    }

    /// The lock of a domain that was made in this epoch; `None` if the holder of the keyring has no
    /// right to it.
    pub(in crate::keys) fn domain_lock(&self, epoch: u32, id: Domain) -> Option<Key> {
        match &*self.read() {
            Epochs::Secrets(secrets) => {
                let secret = secrets.get((epoch as usize).checked_sub(1)?)?;
                Some(secret.derive("outrigger 2026-11 domain lock", &[&self.store.0, &id.0.to_le_bytes()]))
            }
            Epochs::Stores { .. } => {
                self.reads.as_ref().filter(|(reads, _)| *reads == id).map(|(_, lock)| lock.clone())
            }
        }
    }

    /// The store that it is for.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Its name, the same in all epochs.
    pub fn id(&self) -> RingId {
        RingId { store: self.store, number: self.others.number }
    }

    /// How many epochs there are.
    pub fn epochs(&self) -> u32 {
        self.read().keys().len() as u32
    }

    /// This keyring with one more epoch.
    ///
    /// # Errors
    /// `Denied` without all rights; `Invalid` after 500 rotations; when the kernel has no random
    /// bytes.
    pub fn rotated(&self) -> Result<Self> {
        self.rights.require_all()?;
        let mut secrets = self.read().keys().to_vec();
        if secrets.len() >= EPOCHS_MAX {
            return Err(Error::new(ErrorKind::Invalid, "the keys were rotated too often; copy the store"));
        }
        secrets.push(Key::random()?);
        Ok(Self::of_secrets(self.store, secrets))
    }

    /// Takes over the epochs of a keyring of the same store that has more of them, and no fewer
    /// rights. True if it has.
    pub fn adopt(&self, newer: &Self) -> bool {
        let Ok(newer) = newer.limited(self.rights) else { return false };
        let newer = newer.read().clone();
        let mut epochs = self.epochs.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = newer.keys().len() > epochs.keys().len() && newer.keys().starts_with(epochs.keys());
        if is_newer {
            *epochs = newer;
        }
        is_newer
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Epochs> {
        self.epochs.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of the metadata in SQLite. It stays the same in all epochs.
    pub fn database_key(&self) -> Key {
        self.others.database.clone()
    }

    /// The key of names and texts in PostgreSQL. It stays the same in all epochs, since names are
    /// looked up by what they are encrypted to.
    pub fn columns_key(&self) -> Key {
        self.others.columns.clone()
    }

    /// The key of the index's prefixes.
    pub fn index_key(&self) -> Key {
        self.others.index.clone()
    }

    /// The key of the table cache's file.
    pub fn table_cache_key(&self) -> Key {
        self.others.table_cache.clone()
    }

    /// The keys of contents outside of packs; `None` for a host that only stores.
    pub fn content_keys(&self) -> Option<&ContentKeys> {
        self.others.contents.as_ref()
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "keyring of store {}, {}, {} epochs", self.store, self.rights.name(), self.epochs())
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::PackId;

    use super::*;

    /// True if `ring` opens what `writer` stores in a new pack.
    fn opens(ring: &Keyring, writer: &Keyring) -> bool {
        let (head, keys) = writer.new_pack(PackId(1), None).unwrap();
        ring.pack(PackId(1), &head, None).is_some_and(|opened| opened.content == keys.content)
    }

    #[test]
    fn the_epochs_of_a_newer_keyring_are_taken_over() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let rotated = ring.rotated().unwrap();
        assert_eq!(ring.columns_key(), rotated.columns_key());
        assert!(opens(&rotated, &ring) && !opens(&ring, &rotated));
        assert!(ring.adopt(&rotated) && !ring.adopt(&rotated));
        assert!(opens(&ring, &rotated));
        assert!(!ring.adopt(&Keyring::new(StoreId([1; 16])).unwrap().rotated().unwrap().rotated().unwrap()));
    }

    #[test]
    fn nobody_gives_more_rights_than_they_have() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        for (fewer, other) in [(Rights::ReadOnly, Rights::PutOnly), (Rights::PutOnly, Rights::ReadOnly)] {
            let limited = ring.limited(fewer).unwrap();
            assert_eq!(limited.id(), ring.id());
            for more in [Rights::All, other] {
                assert_eq!(limited.limited(more).unwrap_err().kind(), ErrorKind::Denied);
            }
            assert_eq!(limited.rotated().unwrap_err().kind(), ErrorKind::Denied);
            let rotated = ring.rotated().unwrap();
            assert!(!ring.adopt(&rotated.limited(fewer).unwrap()), "its epochs come with fewer rights");
            assert!(limited.adopt(&rotated) && (limited.rights(), limited.epochs()) == (fewer, 2));
            assert!(opens(&rotated, &limited), "it stores in the new epoch");
            assert_eq!(opens(&limited, &rotated), fewer == Rights::ReadOnly);
        }
    }

    #[test]
    fn keys_differ_by_purpose() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let (_, pack) = ring.new_pack(PackId(1), None).unwrap();
        let contents = ring.content_keys().unwrap().clone();
        let keys = [
            pack.footer,
            pack.content.unwrap(),
            ring.database_key(),
            ring.columns_key(),
            contents.staging,
            contents.inline,
            contents.catalogue,
            ring.index_key(),
            ring.table_cache_key(),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != key), "{at}");
        }
    }
}
