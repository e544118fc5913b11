//! The record in a copy's database that names its source, and the moment whose state it has. `copy`
//! writes it into the frozen state, so it comes with the rows.
//!
//! It also has what the source had given out by then. A database that has given out more since was
//! written to by itself, which nothing else tells: both stores give out the same numbers.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::meta::records::{Record, Registry};
use crate::meta::{Counters, Meta};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyNote {
    /// The source, as it was named.
    pub source: String,
    /// The moment whose state this is, nanoseconds since 1970, by the clock of the host that
    /// copied.
    pub as_of: u64,
    next_pack: u64,
    next_inode: u64,
    next_sequence: u64,
}

impl Record for CopyNote {
    const KIND: &'static str = "copy";

    fn name(&self) -> String {
        String::new()
    }
}

impl CopyNote {
    /// Of a state of `source` that was frozen in `meta`.
    pub(crate) fn of(source: &str, as_of: u64, meta: &dyn Meta) -> Result<Self> {
        let Counters { next_pack, next_inode, next_sequence } = meta.counters()?;
        Ok(Self { source: source.to_owned(), as_of, next_pack, next_inode, next_sequence })
    }

    /// The note in a database, if there is one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(crate) fn read(meta: &dyn Meta) -> Result<Option<Self>> {
        Ok(Registry::of(meta).find(|_| true)?.map(|read| read.record))
    }

    /// What the database had given out when it was copied.
    pub(crate) fn counters(&self) -> Counters {
        Counters { next_pack: self.next_pack, next_inode: self.next_inode, next_sequence: self.next_sequence }
    }
}
