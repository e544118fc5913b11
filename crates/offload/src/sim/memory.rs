//! Page-locked memory of a simulated device: ordinary memory that takes as long to allocate.

use std::time::Duration;

use super::Speed;
use crate::device::{HostMemory, HostRegion};
use crate::pool::allocate_plain;

pub(super) struct SimMemory {
    once: Duration,
    seconds_a_byte: f64,
}

impl SimMemory {
    pub(super) fn new(speed: Speed, time_scale: f64) -> Self {
        let (once, seconds_a_byte) = speed.lock;
        Self { once: once.mul_f64(time_scale), seconds_a_byte: seconds_a_byte * time_scale }
    }
}

impl HostMemory for SimMemory {
    fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>> {
        outrigger_clock::sleep(self.once + Duration::from_secs_f64(bytes as f64 * self.seconds_a_byte));
        Some(allocate_plain(bytes))
    }
}
