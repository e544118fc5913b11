//! Tables that lie in a device's memory: each is copied there once, when a task first asks for it.

use std::sync::{Arc, Weak};

use super::driver::{Context, DeviceMemory};
use super::lane::Address;
use super::plan::ResidentTable;
use crate::accelerator::Fault;
use crate::table::Table;

/// A table in memory of its own.
pub(super) fn copy(context: &Arc<Context>, table: &Table) -> Result<(DeviceMemory, ResidentTable), Fault> {
    let mut resident = ResidentTable::of(table, Address::NONE);
    let memory = DeviceMemory::new(context, resident.bytes())?;
    memory.write(0, table.slot_words())?;
    memory.write(resident.slot_bytes, table.summary_words())?;
    resident.at = memory.address();
    Ok((memory, resident))
}

/// The tables that are there. While its `Weak` is held, the memory of an `Arc` is not used for another, and what is in it
/// does not change (`Arc::make_mut` moves it away): so a table is known by where it lies on the host.
#[derive(Default)]
pub(super) struct Tables {
    held: Vec<(Weak<Table>, ResidentTable, DeviceMemory)>,
}

impl Tables {
    /// Where `table` lies. Copying it there takes its time; tables that nobody has any more make room first.
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
