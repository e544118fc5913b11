//! The bytes of a keyring: what a slot and the kernel keep.
//!
//! ```text
//!  0  8  magic "OUTRRING"
//!  8 16  store id
//! 24  1  rights: 0 all, 1 read-only
//! 25 32n the secrets of the epochs, in order
//! ```

use std::sync::RwLock;

use outrigger_format::StoreId;
use zeroize::Zeroizing;

use super::{EPOCHS_MAX, Keyring, Rights};
use crate::keys::Key;

const MAGIC: &[u8; 8] = b"OUTRRING";
/// Bytes of the longest keyring.
pub(in crate::keys) const MAX: usize = 25 + EPOCHS_MAX * 32;

impl Keyring {
    /// The keyring's bytes: secret.
    pub(in crate::keys) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let epochs = self.read();
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX));
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.store.0);
        bytes.push(match self.rights {
            Rights::All => 0,
            Rights::ReadOnly => 1,
        });
        epochs.iter().for_each(|key| bytes.extend_from_slice(key.bytes()));
        bytes
    }

    /// Decodes what [`Keyring::encode`] returned; `None` for anything else, or another store's.
    pub(in crate::keys) fn decode(bytes: &[u8], store: StoreId) -> Option<Self> {
        let (rights, rest) = bytes.strip_prefix(MAGIC)?.strip_prefix(&store.0)?.split_first()?;
        let rights = match rights {
            0 => Rights::All,
            1 => Rights::ReadOnly,
            _ => return None,
        };
        let (keys, rest) = rest.as_chunks::<32>();
        if keys.is_empty() || keys.len() > EPOCHS_MAX || !rest.is_empty() {
            return None;
        }
        let epochs = RwLock::new(keys.iter().map(|key| Key::new(*key)).collect());
        Some(Self { store, rights, epochs })
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::PackId;

    use super::*;

    #[test]
    fn a_keyring_reads_back_for_its_store_only() {
        let (store, other) = (StoreId([1; 16]), StoreId([2; 16]));
        for rights in [Rights::All, Rights::ReadOnly] {
            let ring = Keyring::new(store).unwrap().rotated().unwrap().limited(rights).unwrap();
            let bytes = ring.encode();
            let read = Keyring::decode(&bytes, store).unwrap();
            assert_eq!((read.rights(), read.id()), (rights, ring.id()));
            assert_eq!(read.pack_keys(PackId(7)), ring.pack_keys(PackId(7)));
            assert!(Keyring::decode(&bytes, other).is_none());
            assert!(Keyring::decode(&bytes[..bytes.len() - 1], store).is_none());
            assert!(Keyring::decode(&bytes[..25], store).is_none());
            let mut unknown = bytes.to_vec();
            unknown[24] = 9;
            assert!(Keyring::decode(&unknown, store).is_none());
        }
    }
}
