//! Measures the bandwidth of the bus, which bounds all work on a device.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::super::driver::{Options, Registered, Stream};
use super::super::lane::{Area, Lane};
use super::CudaDevice;
use crate::accelerator::Fault;
use crate::device::HostRegion;

/// The bandwidth of the bus in GB (10^9 bytes) a second, with page-locked memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopyBandwidth {
    /// To the device.
    pub in_gbs: f64,
    /// From the device.
    pub out_gbs: f64,
    /// In each direction while both run, on separate streams.
    pub both_gbs: f64,
}

impl CudaDevice {
    /// Measures `rounds` copies of `bytes`. Their speed bounds all work on the device.
    ///
    /// # Errors
    /// [`Fault`]. [`Fault::Busy`] if tasks are in flight.
    pub fn copy_bandwidth(&mut self, bytes: usize, rounds: usize) -> Result<CopyBandwidth, Fault> {
        let state = self.state.as_mut().ok_or(Fault::Lost("not initialised".into()))?;
        if state.slots.iter().any(|slot| slot.flight.is_some()) {
            return Err(Fault::Busy);
        }
        let options = Options::default();
        let constants = Arc::new(state.context.constants()?);
        let page_locked = || Registered::new(&state.context, bytes).ok_or(Fault::OutOfMemory);
        let (from, mut to) = (page_locked()?, page_locked()?);
        // Declared after the memory, so that they are dropped before it. Their drop waits.
        let mut one = Stream::new(&state.context, &constants, options)?;
        let mut other = Stream::new(&state.context, &constants, options)?;
        let mut run = |input: bool, output: bool| -> Result<f64, Fault> {
            let mut begin = outrigger_clock::Instant::now();
            // The first round warms up.
            for round in 0..=rounds {
                if round == 1 {
                    one.wait()?;
                    other.wait()?;
                    begin = outrigger_clock::Instant::now();
                }
                if input {
                    // SAFETY: `from` is not touched, and lives until both streams were waited for,
                    // here or by their drop.
                    unsafe { one.input(&[], from.bytes()) }?;
                }
                if output {
                    other.memory(Area::Result, bytes)?;
                    // SAFETY: as above; nobody looks at what lies there.
                    unsafe { other.fetch_to(&mut to.bytes_mut()[..bytes]) }?;
                }
            }
            one.wait()?;
            other.wait()?;
            Ok((bytes * rounds) as f64 / begin.elapsed().as_secs_f64() / 1e9)
        };
        Ok(CopyBandwidth {
            in_gbs: run(true, false)?,
            out_gbs: run(false, true)?,
            both_gbs: run(true, true)?,
        })
    }
}
