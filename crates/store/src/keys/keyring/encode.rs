//! The bytes of a keyring: what a slot and the kernel keep.
//!
//! ```text
//!   0  8  magic "OUTRRING"
//!   8 16  store id
//!  24  1  rights: 0 all, 1 read-only, 2 put-only, 3 one directory
//!  25 32n of each epoch: its secret, or of a put-only one what every host has of it
//! ```
//!
//! A put-only keyring goes on at byte 25 with these, before what it has of each epoch:
//!
//! ```text
//!  25  8  the keyring's number
//!  33 32  the database's key, then those of columns, index, table cache
//! 161 32  the public key of the last epoch
//! ```
//!
//! One of one directory does so, too, and ends in the domain (8 bytes) and what opens its key (32 bytes).

use std::sync::RwLock;

use outrigger_format::{Domain, StoreId};
use zeroize::Zeroizing;

use super::{EPOCHS_MAX, Epochs, Keyring, OtherKeys, Rights};
use crate::keys::Key;

const MAGIC: &[u8; 8] = b"OUTRRING";
/// Bytes of the longest keyring.
pub(in crate::keys) const MAX: usize = 25 + 8 + 5 * 32 + EPOCHS_MAX * 32 + READS;
/// Bytes of a domain and of what opens its key.
const READS: usize = 8 + 32;

impl Keyring {
    /// The keyring's bytes: secret.
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.store.0);
        bytes.push(match self.rights {
            Rights::All => 0,
            Rights::ReadOnly => 1,
            Rights::PutOnly => 2,
            Rights::Subtree => 3,
        });
        let epochs = self.read();
        let each = match &*epochs {
            Epochs::Secrets(secrets) => secrets,
            Epochs::Stores { common, public } => {
                let OtherKeys { number, database, columns, index, table_cache, .. } = &self.others;
                bytes.extend_from_slice(&number.to_le_bytes());
                for key in [database, columns, index, table_cache] {
                    bytes.extend_from_slice(key.bytes());
                }
                bytes.extend_from_slice(public);
                common
            }
        };
        each.iter().for_each(|key| bytes.extend_from_slice(key.bytes()));
        if let Some((domain, lock)) = &self.reads {
            bytes.extend_from_slice(&domain.0.to_le_bytes());
            bytes.extend_from_slice(lock.bytes());
        }
        bytes
    }

    /// Decodes what [`Keyring::encode`] returned; `None` for anything else, or another store's.
    pub(in crate::keys) fn decode(bytes: &[u8], store: StoreId) -> Option<Self> {
        let (rights, rest) = bytes.strip_prefix(MAGIC)?.strip_prefix(&store.0)?.split_first()?;
        let rights = match rights {
            0 => Rights::All,
            1 => Rights::ReadOnly,
            2 => Rights::PutOnly,
            3 => Rights::Subtree,
            _ => return None,
        };
        let (rest, reads) = match rights {
            Rights::Subtree => {
                let (rest, reads) = rest.split_last_chunk::<READS>()?;
                let (domain, lock) = reads.split_first_chunk::<8>()?;
                (rest, Some((Domain(u64::from_le_bytes(*domain)), Key::new(lock.try_into().ok()?))))
            }
            _ => (rest, None),
        };
        let number = match rights {
            Rights::PutOnly | Rights::Subtree => Some(u64::from_le_bytes(*rest.first_chunk()?)),
            Rights::All | Rights::ReadOnly => None,
        };
        let (keys, rest) = rest[if number.is_some() { 8 } else { 0 }..].as_chunks::<32>();
        let (others, each) = keys.split_at_checked(if number.is_some() { 5 } else { 0 })?;
        if each.is_empty() || each.len() > EPOCHS_MAX || !rest.is_empty() {
            return None;
        }
        let each: Vec<Key> = each.iter().map(|key| Key::new(*key)).collect();
        let key = |at: usize| Key::new(others[at]);
        Some(match number {
            None => Self { rights, ..Self::of_secrets(store, each) },
            Some(number) => Self {
                store,
                rights,
                reads,
                others: OtherKeys {
                    number,
                    database: key(0),
                    columns: key(1),
                    index: key(2),
                    table_cache: key(3),
                    contents: None,
                },
                epochs: RwLock::new(Epochs::Stores { common: each, public: others[4] }),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::PackId;

    use super::*;

    #[test]
    fn a_keyring_reads_back_for_its_store_only() {
        let (store, other) = (StoreId([1; 16]), StoreId([2; 16]));
        for rights in [Rights::All, Rights::ReadOnly, Rights::PutOnly, Rights::Subtree] {
            let ring = Keyring::new(store).unwrap().rotated().unwrap();
            let ring = match rights {
                Rights::Subtree => ring.limited_to(Domain(5), Key::new([5; 32])).unwrap(),
                rights => ring.limited(rights).unwrap(),
            };
            let bytes = ring.encode();
            let read = Keyring::decode(&bytes, store).unwrap();
            assert_eq!((read.rights(), read.id(), read.epochs()), (rights, ring.id(), 2));
            assert_eq!((read.domain(), ring.domain().is_some()), (ring.domain(), rights == Rights::Subtree));
            assert_eq!(*read.encode(), *bytes);
            let (head, keys) = read.new_pack(PackId(7), None).unwrap();
            assert!(ring.pack(PackId(7), &head, None).unwrap().footer == keys.footer);
            assert!(Keyring::decode(&bytes, other).is_none());
            assert!(Keyring::decode(&bytes[..bytes.len() - 1], store).is_none());
            assert!(Keyring::decode(&bytes[..bytes.len() - 64], store).is_none());
            let mut unknown = bytes.to_vec();
            unknown[24] = 9;
            assert!(Keyring::decode(&unknown, store).is_none());
        }
    }

    /// Nothing of what a put-only slot holds is a secret of an epoch, or a key of contents.
    #[test]
    fn a_keyring_that_only_stores_has_no_secret_of_an_epoch() {
        let ring = Keyring::new(StoreId([1; 16])).unwrap().rotated().unwrap();
        let bytes = ring.limited(Rights::PutOnly).unwrap().encode();
        let all = ring.encode();
        let secrets = all[25..].as_chunks::<32>().0;
        let contents = ring.content_keys().unwrap();
        for secret in secrets.iter().chain([contents.staging.bytes(), contents.inline.bytes()]) {
            assert!(!bytes.windows(32).any(|window| window == secret));
        }
    }
}
