//! Reasons to write the catalogue anew: mounts and commands register them. A store without the
//! record that the catalogue is whole has one, too.

use crate::error::Result;
use crate::meta::Meta;
use crate::meta::records::{Record as _, RecordRow};
use crate::publish::{CatalogueDebt, is_whole, set_whole};
use crate::store::Store;

/// Why the catalogue has to be written anew.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Rows of reasons, and of what sessions that are over had not published. A row that this
    /// program cannot read is a reason.
    debts: Vec<RecordRow>,
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
        let mut debts = meta.records().records(CatalogueDebt::KIND)?;
        let live = meta.sessions()?;
        let session = |row: &RecordRow| serde_json::from_str::<CatalogueDebt>(&row.value).ok()?.session();
        debts.retain(|row| !session(row).is_some_and(|of| live.iter().any(|session| session.id == of)));
        // A session that has ended since, and had published everything, has removed its record.
        let still = meta.records().records(CatalogueDebt::KIND)?;
        debts.retain(|row| still.contains(row));
        Ok(Self { debts, is_whole: is_whole(meta)? })
    }

    /// Nothing is due.
    pub fn is_empty(&self) -> bool {
        self.debts.is_empty() && self.is_whole
    }

    /// The catalogue has been written anew, from an instant after this was read. Records that were
    /// made again since stay.
    ///
    /// # Errors
    /// Those of the database.
    pub fn settle(self, meta: &dyn Meta) -> Result<()> {
        if meta.publishing().is_none() {
            return Ok(());
        }
        for RecordRow { name, value, .. } in &self.debts {
            meta.records().swap_record(CatalogueDebt::KIND, name, value, None)?;
        }
        set_whole(meta)
    }
}
