//! Key slots: the keyring, locked by a key or a passphrase, as a small text beside the packs.
//!
//! A slot is written once and never changed. It says in the open which store and what kind it is,
//! its label, when it was made, how many epochs it opens, and what its owner may do. AES-256-GCM encrypts the keyring and
//! authenticates all of that, under a key that only the slot's key or passphrase gives.

use argon2::{Algorithm, Argon2, Params, Version};
use outrigger_format::{Domain, StoreId};
use serde::{Deserialize, Serialize};

use super::{Key, Keyring, Rights, RingId};
use crate::backend::KEYS_DIR;
use crate::error::{Error, ErrorKind, Result};

/// Passphrases are stretched by Argon2id with this much memory, KiB, …
const MEMORY_KIB: u32 = 256 << 10;
/// … in so many passes, …
const PASSES: u32 = 3;
/// … over so many lanes.
const LANES: u32 = 4;
/// A slot that asks for more memory is refused: it is not one of ours.
const MEMORY_KIB_MAX: u32 = 4 << 20;

/// Something that opens a slot.
#[derive(Clone, PartialEq)]
pub enum Secret {
    /// A random key: from a file, from paper, from a service.
    Key(Key),
    /// Words that a person remembers.
    Passphrase(zeroize::Zeroizing<String>),
}

/// The kind of secret that opens a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotKind {
    /// A random key.
    Key,
    /// A passphrase.
    Passphrase,
}

impl SlotKind {
    /// Its name in slots and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Passphrase => "passphrase",
        }
    }
}

/// How a passphrase is stretched (Argon2id, RFC 9106).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Stretch {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
}

/// A key slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Its name: 16 hex digits.
    pub id: String,
    /// The store's id.
    store: String,
    /// The number of the keyring in it.
    keyring: String,
    /// What opens it.
    pub kind: SlotKind,
    /// The name that its maker gave it.
    pub label: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// It opens the epochs up to this one.
    pub epochs: u32,
    /// The rights of its owner.
    pub rights: Rights,
    /// The domain that it reads, of one that reads a directory alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    /// Tells a wrong secret from a damaged slot: derived from the secret, and says nothing of it.
    check: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    argon2id: Option<Stretch>,
    /// The keyring, encrypted.
    ring: String,
}

impl Slot {
    /// Locks `ring`, with its rights, with `secret`.
    ///
    /// # Errors
    /// When the kernel has no random bytes, or too little memory for stretching a passphrase.
    pub fn lock(ring: &Keyring, secret: &Secret, label: &str, created: u64) -> Result<Self> {
        let id: [u8; 8] = outrigger_clock::random()?;
        let argon2id = match secret {
            Secret::Key(_) => None,
            Secret::Passphrase(_) => Some(Stretch {
                memory_kib: MEMORY_KIB,
                passes: PASSES,
                lanes: LANES,
                salt: hex(&outrigger_clock::random::<16>()?),
            }),
        };
        let mut slot = Self {
            id: hex(&id),
            store: ring.store().to_string(),
            keyring: format!("{:016x}", ring.id().number),
            kind: match secret {
                Secret::Key(_) => SlotKind::Key,
                Secret::Passphrase(_) => SlotKind::Passphrase,
            },
            label: label.to_string(),
            created,
            epochs: ring.epochs(),
            rights: ring.rights(),
            domain: ring.domain().map(|id| id.to_string()),
            check: String::new(),
            argon2id,
            ring: String::new(),
        };
        let key = slot.key(secret)?;
        slot.check = check(&key);
        slot.ring = hex(&key.seal(&slot.about(), &ring.encode())?);
        Ok(slot)
    }

    /// Opens it; `None` if `secret` is not the one that locks it.
    ///
    /// # Errors
    /// `Damaged` when the secret is right and the slot was changed.
    pub fn open(&self, secret: &Secret, id: RingId) -> Result<Option<Keyring>> {
        let fits = matches!(
            (self.kind, secret),
            (SlotKind::Key, Secret::Key(_)) | (SlotKind::Passphrase, Secret::Passphrase(_))
        );
        if !fits || self.ring_id() != Some(id) {
            return Ok(None);
        }
        let key = self.key(secret)?;
        if check(&key) != self.check {
            return Ok(None);
        }
        let ring = unhex(&self.ring).and_then(|sealed| key.open(&self.about(), &sealed));
        let ring = ring.map(zeroize::Zeroizing::new).and_then(|bytes| Keyring::decode(&bytes, id.store));
        let is_whole = |ring: &Keyring| {
            (ring.epochs(), ring.rights(), ring.id(), ring.domain())
                == (self.epochs, self.rights, id, self.domain())
        };
        match ring.filter(is_whole) {
            Some(ring) => Ok(Some(ring)),
            None => Err(Error::damaged(format!("key slot {} was changed since it was made", self.id))),
        }
    }

    /// The key that encrypts the keyring.
    fn key(&self, secret: &Secret) -> Result<Key> {
        let about: [&[u8]; 2] = [self.store.as_bytes(), self.id.as_bytes()];
        match secret {
            Secret::Key(key) => Ok(key.derive("outrigger 2026-11 key slot", &about)),
            Secret::Passphrase(words) => {
                let stretched = self.stretch(words)?;
                Ok(stretched.derive("outrigger 2026-11 passphrase slot", &about))
            }
        }
    }

    fn stretch(&self, words: &str) -> Result<Key> {
        let wrong = || Error::damaged(format!("key slot {}: its Argon2id settings make no sense", self.id));
        let stretch = self.argon2id.as_ref().ok_or_else(wrong)?;
        if stretch.memory_kib > MEMORY_KIB_MAX || stretch.passes > 100 {
            return Err(wrong());
        }
        let params = Params::new(stretch.memory_kib, stretch.passes, stretch.lanes, Some(32));
        let params = params.map_err(|_| wrong())?;
        let salt = unhex(&stretch.salt).ok_or_else(wrong)?;
        let mut out = zeroize::Zeroizing::new([0; 32]);
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon2.hash_password_into(words.as_bytes(), &salt, &mut *out).map_err(|_| wrong())?;
        Ok(Key::new(*out))
    }

    /// Everything in the open, which the encryption authenticates.
    fn about(&self) -> Vec<u8> {
        let open = Self { ring: String::new(), ..self.clone() };
        toml::to_string(&open).expect("strings and numbers serialise").into_bytes()
    }

    /// Its text.
    pub fn to_text(&self) -> String {
        let body = toml::to_string(self).expect("strings and numbers serialise");
        format!(
            "# A key slot of an Outrigger store: of no use without the key or passphrase that locks it.\n{body}"
        )
    }

    /// Parses the text.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn from_text(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::damaged(format!("a key slot: {}", error.message())))
    }

    /// The domain that it reads, of one that reads a directory alone.
    pub fn domain(&self) -> Option<Domain> {
        u64::from_str_radix(self.domain.as_deref()?, 16).ok().map(Domain)
    }

    /// The name of its file, below the place of packs.
    pub fn file_name(&self) -> String {
        format!("{KEYS_DIR}/{}", self.id)
    }

    /// The keyring in it.
    pub fn ring_id(&self) -> Option<RingId> {
        let store = StoreId(unhex(&self.store)?.try_into().ok()?);
        Some(RingId { store, number: u64::from_str_radix(&self.keyring, 16).ok()? })
    }

    /// Names it in messages.
    pub fn describe(&self) -> String {
        let kind = match self.rights {
            Rights::All => self.kind.name().to_string(),
            rights => format!("{} {}", rights.name(), self.kind.name()),
        };
        if self.label.is_empty() { format!("{kind} {}", self.id) } else { format!("{kind} `{}`", self.label) }
    }
}

/// Derived from a slot's key, to know it again.
fn check(key: &Key) -> String {
    hex(&key.derive("outrigger 2026-11 key slot check", &[]).bytes()[..16])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Refuses a passphrase that is too short to be one.
///
/// # Errors
/// `Invalid`.
pub fn require_passphrase(words: &str) -> Result<()> {
    if words.chars().count() < 8 {
        return Err(Error::new(ErrorKind::Invalid, "a passphrase needs at least 8 characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId([5; 16]);

    fn ring() -> Keyring {
        Keyring::new(STORE).unwrap()
    }

    #[test]
    fn a_slot_opens_with_its_key_alone() {
        let (ring, key) = (ring(), Secret::Key(Key::random().unwrap()));
        let slot = Slot::from_text(&Slot::lock(&ring, &key, "laptop", 7).unwrap().to_text()).unwrap();
        let opened = slot.open(&key, ring.id()).unwrap().unwrap();
        assert_eq!(opened.database_key(), ring.database_key());
        assert!(slot.open(&Secret::Key(Key::random().unwrap()), ring.id()).unwrap().is_none());
        assert!(slot.open(&Secret::Passphrase("key".to_string().into()), ring.id()).unwrap().is_none());
        assert!(
            slot.open(&key, RingId { store: StoreId([6; 16]), ..ring.id() }).unwrap().is_none(),
            "another store's"
        );
    }

    #[test]
    fn a_passphrase_is_stretched() {
        let (ring, words) = (ring(), Secret::Passphrase("correct horse".to_string().into()));
        let slot = Slot::lock(&ring, &words, "", 0).unwrap();
        assert_eq!(slot.argon2id.as_ref().map(|stretch| stretch.memory_kib), Some(MEMORY_KIB));
        assert!(slot.open(&words, ring.id()).unwrap().is_some());
        assert!(
            slot.open(&Secret::Passphrase("correct horsf".to_string().into()), ring.id()).unwrap().is_none()
        );
        let greedy = slot.to_text().replace("memory_kib = 262144", "memory_kib = 4294967295");
        let error = Slot::from_text(&greedy).unwrap().open(&words, ring.id()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_slot_opens_with_its_rights() {
        let (ring, key) = (ring(), Secret::Key(Key::random().unwrap()));
        let slot = Slot::lock(&ring.limited(Rights::ReadOnly).unwrap(), &key, "reader", 7).unwrap();
        let slot = Slot::from_text(&slot.to_text()).unwrap();
        assert_eq!((slot.rights, slot.describe().as_str()), (Rights::ReadOnly, "read-only key `reader`"));
        assert_eq!(slot.open(&key, ring.id()).unwrap().unwrap().rights(), Rights::ReadOnly);
        let more = Slot { rights: Rights::All, ..slot };
        assert_eq!(more.open(&key, ring.id()).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_changed_slot_is_damage_and_never_another_keyring() {
        let key = Secret::Key(Key::random().unwrap());
        let ring = ring();
        let (slot, id) = (Slot::lock(&ring, &key, "label", 7).unwrap(), ring.id());
        for changed in [
            Slot { label: "other".into(), ..slot.clone() },
            Slot { created: 8, ..slot.clone() },
            Slot { epochs: 2, ..slot.clone() },
            Slot { rights: Rights::ReadOnly, ..slot.clone() },
            Slot { ring: slot.ring.replace(&slot.ring[60..64], "0000"), ..slot.clone() },
        ] {
            assert_eq!(changed.open(&key, id).unwrap_err().kind(), ErrorKind::Damaged, "{changed:?}");
        }
        let moved = Slot { id: "0".repeat(16), ..slot };
        assert!(moved.open(&key, id).unwrap().is_none(), "under another name");
        assert!(Slot::from_text("id = 1").is_err());
    }
}
