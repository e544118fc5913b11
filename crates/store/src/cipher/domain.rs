//! The secret of a domain ([`crate::keys::domains`]), and the names that it gives chunks.

use outrigger_format::{Domain, Fingerprint, StoreId};

use super::Key;

/// The secret of a domain.
pub struct DomainKey {
    /// Whose.
    pub id: Domain,
    secret: Key,
    names: Key,
}

impl DomainKey {
    /// The key of a domain, with its secret.
    pub(crate) fn new(store: StoreId, id: Domain, secret: Key) -> Self {
        let names = secret.derive("outrigger 2026-11 domain names", &[&store.0, &id.0.to_le_bytes()]);
        Self { id, secret, names }
    }

    /// The name in this domain of a chunk with this fingerprint. Without the secret it says nothing of
    /// the chunk.
    pub fn name(&self, fingerprint: &Fingerprint) -> Fingerprint {
        Fingerprint(*blake3::keyed_hash(self.names.bytes(), &fingerprint.0).as_bytes())
    }

    /// For the keys of packs.
    pub(crate) fn secret(&self) -> &Key {
        &self.secret
    }
}

impl std::fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the key of {:?}", self.id)
    }
}
