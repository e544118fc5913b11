//! The speed of a simulated device.

use std::time::Duration;

use crate::accelerator::StageTimes;
use crate::work::{Class, Work};

/// The times of a device, computed from a few numbers.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// The device that it resembles.
    pub name: &'static str,
    /// The time before each stage: a copy's set-up, a kernel's launch.
    pub launch: Duration,
    /// Bytes a second to the device.
    pub in_rate: f64,
    /// Bytes a second from the device.
    pub out_rate: f64,
    /// Bytes of data that kernels process in a second, for every class without a rate in
    /// `kernel_rate_of`.
    pub kernel_rate: f64,
    /// Rates of certain classes.
    pub kernel_rate_of: fn(Class) -> Option<f64>,
    /// Page-locking host memory: a fixed time, and seconds for each byte. (The pool does it rarely.
    /// Benchmarks show the cost without reuse.)
    pub lock: (Duration, f64),
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// True if it works in the host's memory, so that nothing is copied.
    pub zero_copy: bool,
}

fn same(_: Class) -> Option<f64> {
    None
}

impl Speed {
    /// A GeForce 8800 GTX on PCIe 1.1 x16, from StoreGPU's times for hashing 96 MB: 37.06 ms in,
    /// 14.7 ms, 0.72 ms out (for 1/32 of the bytes). The launch latency is a guess for its time.
    pub const GEFORCE_8800: Speed = Speed {
        name: "GeForce 8800 GTX",
        launch: Duration::from_micros(20),
        in_rate: 2.5e9,
        out_rate: 2.5e9,
        kernel_rate: 6.5e9,
        kernel_rate_of: same,
        lock: (Duration::from_micros(200), 0.4e-9),
        memory_bytes: 768 << 20,
        zero_copy: false,
    };

    /// A large GPU on PCIe 5.0 x16, limited by the bus. The kernels' rate is an assumption, not a
    /// measurement.
    pub const PCIE5_GPU: Speed = Speed {
        name: "GPU on PCIe 5.0 x16",
        launch: Duration::from_micros(8),
        in_rate: 55e9,
        out_rate: 55e9,
        kernel_rate: 200e9,
        kernel_rate_of: same,
        lock: (Duration::from_micros(100), 0.1e-9),
        memory_bytes: 128 << 30,
        zero_copy: false,
    };

    /// A small GPU in the processor's package, which shares its memory.
    pub const INTEGRATED: Speed = Speed {
        name: "integrated GPU",
        launch: Duration::from_micros(15),
        in_rate: f64::INFINITY,
        out_rate: f64::INFINITY,
        kernel_rate: 8e9,
        kernel_rate_of: same,
        lock: (Duration::from_micros(20), 0.0),
        memory_bytes: 0,
        zero_copy: true,
    };

    /// A device that is too slow for any task.
    pub const SLOW: Speed = Speed {
        name: "slow device",
        launch: Duration::from_micros(100),
        in_rate: 0.2e9,
        out_rate: 0.2e9,
        kernel_rate: 0.1e9,
        kernel_rate_of: same,
        lock: (Duration::from_micros(500), 1e-9),
        memory_bytes: 256 << 20,
        zero_copy: false,
    };

    /// Parses a preset's name on the command line: `geforce-8800`, `pcie5-gpu`, `integrated` or
    /// `slow`.
    pub fn preset(name: &str) -> Option<Self> {
        Self::PRESETS.into_iter().find(|(known, _)| *known == name).map(|(_, speed)| speed)
    }

    /// Every preset with its name.
    pub const PRESETS: [(&'static str, Speed); 4] = [
        ("geforce-8800", Self::GEFORCE_8800),
        ("pcie5-gpu", Self::PCIE5_GPU),
        ("integrated", Self::INTEGRATED),
        ("slow", Self::SLOW),
    ];

    /// A device that is `factor` times as fast as one with `rate` bytes a second. Its copies are a
    /// little faster than its kernels.
    pub fn relative(name: &'static str, rate: f64, factor: f64) -> Self {
        let kernel_rate = rate * factor;
        let (in_rate, out_rate) = (kernel_rate * 1.25, kernel_rate * 1.25);
        Speed { name, in_rate, out_rate, kernel_rate, ..Self::PCIE5_GPU }
    }

    /// The stage times of a task with so many bytes in and out.
    pub fn times(&self, class: Class, bytes_in: usize, bytes_out: usize) -> StageTimes {
        let stage = |bytes: usize, rate: f64| self.launch + Duration::from_secs_f64(bytes as f64 / rate);
        let copy = |bytes: usize, rate: f64| {
            if self.zero_copy || bytes == 0 { Duration::ZERO } else { stage(bytes, rate) }
        };
        let kernel = stage(bytes_in, (self.kernel_rate_of)(class).unwrap_or(self.kernel_rate));
        StageTimes { copy_in: copy(bytes_in, self.in_rate), kernel, copy_out: copy(bytes_out, self.out_rate) }
    }

    /// The stage times of a finished task, whose result has `bytes_out` bytes.
    pub(super) fn times_of(&self, work: &Work, bytes_out: usize) -> StageTimes {
        self.times(work.class(), work.len_in(), bytes_out)
    }
}
