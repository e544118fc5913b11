//! The records of a store, and those that sessions have left behind which are over.

pub use crate::meta::records::{Record, Registered, Registry};

use crate::error::Result;
use crate::meta::SessionId;
use crate::store::Store;

impl Store {
    /// The records of this store.
    pub fn registry(&self) -> Registry<'_> {
        Registry::of(&*self.meta)
    }

    /// The records of a kind whose sessions are over.
    ///
    /// # Errors
    /// Those of the database.
    pub fn leftover_records<R: Record>(&self) -> Result<Vec<Registered<R>>> {
        // The records are read first: the session of each was there before it.
        let mut records = self.registry().all::<R>()?;
        records.retain(|read| read.record.session().is_some());
        if records.is_empty() {
            return Ok(records);
        }
        let is_of = |read: &Registered<R>, session: SessionId| read.record.session() == Some(session);
        let live = self.live_sessions(|row| records.iter().any(|read| is_of(read, row.id)))?;
        records.retain(|read| !live.iter().any(|row| is_of(read, row.id)));
        Ok(records)
    }

    /// Removes the records of a kind whose sessions are over.
    ///
    /// # Errors
    /// Those of the database.
    pub fn sweep_records<R: Record>(&self) -> Result<()> {
        let leftovers = self.leftover_records::<R>()?;
        leftovers.iter().try_for_each(|read| self.registry().take_read(read).map(drop))
    }
}
