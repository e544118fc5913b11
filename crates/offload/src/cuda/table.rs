//! Tables that kernels change in a device's memory, and the host's bookkeeping for them
//! (`kernels/table.cu`).
//!
//! If thousands of threads insert, they can neither stop half-way at a full table nor reuse removed
//! slots. So the host counts. It inserts only entries that certainly fit, and refreshes when marks
//! have used up the slots that end probes.

use outrigger_format::Fingerprint;

use super::lane::Address;
use super::plan::{self, ResidentTable};
use super::sync::Blocking;
use crate::accelerator::Fault;
use crate::table::Table;

/// A table in memory that `M` owns.
pub(super) struct Changing<M> {
    held: M,
    resident: ResidentTable,
    capacity: usize,
    len: usize,
    /// Slots that are full or marked as removed.
    used: usize,
}

impl<M> Changing<M> {
    /// Copies a table to the device.
    pub(super) fn of<L: Blocking<Held = M>>(lane: &mut L, table: &Table) -> Result<Self, Fault> {
        let (held, resident) = lane.hold(table)?;
        let used = table.slot_words().as_chunks::<4>().0.iter().filter(|slot| slot[3] != 0).count();
        Ok(Self { held, resident, capacity: table.capacity(), len: table.len(), used })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The memory: slots, and the summary vector from [`ResidentTable::slot_bytes`] on.
    #[cfg(feature = "grid")]
    pub(super) fn memory(&self) -> (&M, ResidentTable) {
        (&self.held, self.resident)
    }

    fn reach<L: Blocking<Held = M>>(&self, lane: &L) -> Result<(), Fault> {
        if lane.reaches(&self.held) {
            return Ok(());
        }
        Err(Fault::Failed("the table lies in memory that the device has lost, or another one has".into()))
    }

    pub(super) fn insert<L: Blocking<Held = M>>(
        &mut self,
        lane: &mut L,
        entries: &[(Fingerprint, u64)],
    ) -> Result<usize, Fault> {
        self.reach(lane)?;
        if self.len + entries.len() > self.capacity {
            return Err(Fault::Failed("no room for so many entries".into()));
        }
        let slots = self.resident.slots();
        if self.used + entries.len() > slots - slots / 8 - 1 {
            self.refresh(lane)?;
        }
        if entries.is_empty() {
            return Ok(0);
        }
        let step = plan::insert(lane.lane(), self.resident, entries)?;
        let added = plan::count(&lane.read(step)?);
        self.len += added;
        self.used += added;
        Ok(added)
    }

    pub(super) fn remove<L: Blocking<Held = M>>(
        &mut self,
        lane: &mut L,
        keys: &[Fingerprint],
    ) -> Result<usize, Fault> {
        self.reach(lane)?;
        if keys.is_empty() {
            return Ok(0);
        }
        let step = plan::remove(lane.lane(), self.resident, keys)?;
        let removed = plan::count(&lane.read(step)?);
        self.len -= removed;
        Ok(removed)
    }

    pub(super) fn refresh<L: Blocking<Held = M>>(&mut self, lane: &mut L) -> Result<(), Fault> {
        self.reach(lane)?;
        let (held, at): (M, Address) = lane.allocate(self.resident.bytes())?;
        let step = plan::refresh(lane.lane(), self.resident, at)?;
        let entries = plan::count(&lane.read(step)?);
        if entries != self.len {
            return Err(Fault::Failed("a refreshed table has another number of entries".into()));
        }
        self.resident.at = at;
        self.held = held;
        self.used = entries;
        Ok(())
    }

    pub(super) fn lookup<L: Blocking<Held = M>>(
        &self,
        lane: &mut L,
        keys: &[Fingerprint],
        out: &mut Vec<Option<u64>>,
    ) -> Result<(), Fault> {
        self.reach(lane)?;
        let step = plan::lookup(lane.lane(), Some(self.resident), keys)?;
        let bytes = lane.read(step)?;
        plan::looked_up(keys.len(), &bytes, out);
        Ok(())
    }
}

/// The public methods, which are the same for every device. `$device` makes and changes a `$table`
/// through `$lane`.
macro_rules! table_methods {
    ($device:ty, $table:ident, $lane:expr) => {
        /// Tables in the device's memory, which are changed there. The keys of one call must
        /// differ.
        impl $device {
            /// Copies a table into the device's memory.
            ///
            /// # Errors
            /// [`Fault`].
            pub fn table(&mut self, table: &Table) -> Result<$table, Fault> {
                Ok($table(Changing::of($lane(self)?, table)?))
            }

            /// Inserts entries, or replaces the numbers of existing ones. Returns how many were
            /// added.
            ///
            /// # Errors
            /// [`Fault::Failed`] if they might not all fit. Nothing is inserted then.
            pub fn insert(
                &mut self,
                table: &mut $table,
                entries: &[(Fingerprint, u64)],
            ) -> Result<usize, Fault> {
                table.0.insert($lane(self)?, entries)
            }

            /// Removes entries and returns how many of them existed. Until it is rebuilt, the
            /// summary vector still answers "perhaps" for them.
            ///
            /// # Errors
            /// [`Fault`].
            pub fn remove(&mut self, table: &mut $table, keys: &[Fingerprint]) -> Result<usize, Fault> {
                table.0.remove($lane(self)?, keys)
            }

            /// Rebuilds the slots and the summary vector from the entries. While it runs, the table
            /// takes twice its memory.
            ///
            /// # Errors
            /// [`Fault`]. The table is then unchanged.
            pub fn refresh(&mut self, table: &mut $table) -> Result<(), Fault> {
                table.0.refresh($lane(self)?)
            }

            /// Appends the number of each key, in their order.
            ///
            /// # Errors
            /// [`Fault`]. Nothing was appended then.
            pub fn lookup(
                &mut self,
                table: &$table,
                keys: &[Fingerprint],
                out: &mut Vec<Option<u64>>,
            ) -> Result<(), Fault> {
                table.0.lookup($lane(self)?, keys, out)
            }
        }

        impl $table {
            /// The number of entries.
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// True if there are no entries.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}
pub(super) use table_methods;
