//! Tables in a device's memory. Each is copied there when a task first needs it.

use std::sync::{Arc, Weak};

use super::driver::{Context, DeviceMemory};
use super::lane::Address;
use super::plan::ResidentTable;
use crate::accelerator::Fault;
use crate::table::Table;

/// Copies a table into new device memory.
pub(super) fn copy(context: &Arc<Context>, table: &Table) -> Result<(DeviceMemory, ResidentTable), Fault> {
    let mut resident = ResidentTable::of(table, Address::NONE);
    let memory = DeviceMemory::new(context, resident.bytes())?;
    memory.write(0, table.slot_words())?;
    memory.write(resident.slot_bytes, table.summary_words())?;
    resident.at = memory.address();
    Ok((memory, resident))
}

/// The tables in the device's memory. As long as its `Weak` is held, the memory of an `Arc` is not
/// used for another table, and its content does not change (`Arc::make_mut` moves it away). So the
/// host address identifies a table.
#[derive(Default)]
pub(super) struct Tables {
    held: Vec<(Weak<Table>, ResidentTable, DeviceMemory)>,
}

impl Tables {
    /// The place of `table`. Copies it first if necessary, which takes time. Tables that nobody
    /// holds any more are dropped first.
    pub(super) fn place(
        &mut self,
        context: &Arc<Context>,
        table: &Arc<Table>,
    ) -> Result<ResidentTable, Fault> {
        let known = self.held.iter().find(|(held, ..)| std::ptr::eq(held.as_ptr(), Arc::as_ptr(table)));
        if let Some((_, resident, _)) = known {
            return Ok(*resident);
        }
        self.held.retain(|(held, ..)| held.strong_count() > 0);
        let (memory, resident) = copy(context, table)?;
        self.held.push((Arc::downgrade(table), resident, memory));
        Ok(resident)
    }
}
