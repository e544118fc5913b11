//! The names of chunks, by the domain of their pack.

use std::sync::Arc;

use outrigger_format::{Domain, Fingerprint, FingerprintKind, PackId};

use super::PackReader;
use crate::error::{ErrorKind, Result};
use crate::keys::DomainKey;

/// How the chunks of a pack are named.
#[derive(Clone)]
pub(crate) struct Naming {
    pub(super) kind: FingerprintKind,
    /// The key of the pack's domain, if it has one.
    pub(super) domain: Option<Arc<DomainKey>>,
}

impl Naming {
    /// The name of a chunk with these bytes.
    pub fn name(&self, chunk: &[u8]) -> Fingerprint {
        self.of(&outrigger_offload::hash(self.kind, chunk))
    }

    pub(super) fn of(&self, fingerprint: &Fingerprint) -> Fingerprint {
        self.domain.as_ref().map_or(*fingerprint, |domain| domain.name(fingerprint))
    }
}

impl PackReader {
    /// How the chunks of a pack are named.
    ///
    /// # Errors
    /// As [`Backend::domain_of`](crate::backend::Backend::domain_of) and [`Backend::domain_key`](crate::backend::Backend::domain_key).
    pub(crate) fn naming(&self, pack: PackId) -> Result<Naming> {
        let domain = match self.backend.domain_of(pack)? {
            Domain::COMMON => None,
            domain => Some(self.backend.domain_key(domain)?),
        };
        Ok(Naming { kind: self.fingerprint, domain })
    }

    /// How chunks outside of domains are named.
    pub(crate) fn common_naming(&self) -> Naming {
        Naming { kind: self.fingerprint, domain: None }
    }

    /// True if a pack is of a domain whose key was destroyed: nobody can read it.
    ///
    /// # Errors
    /// As [`Backend::domain_of`](crate::backend::Backend::domain_of) and [`Backend::domain_key`](crate::backend::Backend::domain_key).
    pub(crate) fn is_destroyed(&self, pack: PackId) -> Result<bool> {
        match self.naming(pack) {
            Err(error) if error.kind() == ErrorKind::Destroyed => Ok(true),
            naming => naming.map(|_| false),
        }
    }

    /// The domain of a pack.
    ///
    /// # Errors
    /// As [`Backend::domain_of`](crate::backend::Backend::domain_of).
    pub fn domain_of(&self, pack: PackId) -> Result<Domain> {
        self.backend.domain_of(pack)
    }

    /// The key of a domain.
    ///
    /// # Errors
    /// As [`Backend::domain_key`](crate::backend::Backend::domain_key).
    pub fn domain_key(&self, domain: Domain) -> Result<Arc<DomainKey>> {
        self.backend.domain_key(domain)
    }
}
