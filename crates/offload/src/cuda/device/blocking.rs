//! Synchronous tasks on a GPU, and tables that are changed on it.

#![allow(unsafe_code)]

use std::sync::Arc;

use outrigger_format::Fingerprint;

use super::super::driver::{DeviceMemory, Stream};
use super::super::lane::{Address, Lane};
use super::super::plan::{Data, ResidentTable, Step};
use super::super::sync::Blocking;
use super::super::table::{Changing, table_methods};
use super::super::tables;
use super::CudaDevice;
use crate::accelerator::Fault;
use crate::table::Table;

/// A table in a GPU's memory, which is changed there. Every call fails after a reset of its device,
/// and on another device.
pub struct CudaTable(Changing<DeviceMemory>);

table_methods!(CudaDevice, CudaTable, CudaDevice::idle);

/// Waits for the stream, even if a panic passes through.
struct Wait<'a>(&'a mut Stream);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

impl Blocking for Stream {
    type Held = DeviceMemory;

    fn lane(&mut self) -> &mut dyn Lane {
        self
    }

    fn hold(&mut self, table: &Table) -> Result<(DeviceMemory, ResidentTable), Fault> {
        tables::copy(self.context(), table)
    }

    fn allocate(&mut self, bytes: usize) -> Result<(DeviceMemory, Address), Fault> {
        let memory = DeviceMemory::new(self.context(), bytes)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn reaches(&self, held: &DeviceMemory) -> bool {
        Arc::ptr_eq(self.context(), held.context())
    }

    fn with_input(
        &mut self,
        history: &[u8],
        data: &[u8],
        then: &mut dyn FnMut(&mut Self, Data) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let wait = Wait(self);
        // SAFETY: both are borrowed until this returns, and `wait` is dropped before.
        let at = unsafe { wait.0.input(history, data) }?;
        then(wait.0, Data { at, len: data.len() })
    }

    fn read(&mut self, step: Step) -> Result<Vec<u8>, Fault> {
        self.fetch(step.bytes())?;
        self.wait()?;
        Ok(self.result(step.bytes()).to_vec())
    }
}
