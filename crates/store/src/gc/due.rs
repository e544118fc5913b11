//! Reasons to write the catalogue anew: mounts and commands register them. A store without the record that the catalogue is
//! whole has one, too.

use crate::error::Result;
use crate::meta::Meta;
use crate::meta::records::{Record as _, Registered, Registry};
use crate::publish::{CatalogueDebt, is_whole, set_whole};
use crate::store::Store;

/// Why the catalogue has to be written anew.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Reasons, and what sessions that are over had not published.
    debts: Vec<Registered<CatalogueDebt>>,
    is_whole: bool,
}

impl Due {
    /// What is due now.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read(store: &Store) -> Result<Self> {
        let meta = &*store.meta;
        if meta.publishing().is_none() {
            return Ok(Self { is_whole: true, ..Self::default() });
        }
        store.fence_gone()?;
        let registry = store.registry();
        let mut debts = registry.all::<CatalogueDebt>()?;
        let live = meta.sessions()?;
        debts.retain(|read| !live.iter().any(|session| read.record.session() == Some(session.id)));
        // A session that has ended since, and had published everything, has removed its record.
        let still = registry.all()?;
        debts.retain(|read| still.contains(read));
        Ok(Self { debts, is_whole: is_whole(meta)? })
    }

    /// Nothing is due.
    pub fn is_empty(&self) -> bool {
        self.debts.is_empty() && self.is_whole
    }

    /// The catalogue has been written anew, from an instant after this was read. Records that were made again since stay.
    ///
    /// # Errors
    /// Those of the database.
    pub fn settle(self, meta: &dyn Meta) -> Result<()> {
        if meta.publishing().is_none() {
            return Ok(());
        }
        for read in &self.debts {
            Registry::of(meta).take_read(read)?;
        }
        set_whole(meta)
    }
}
