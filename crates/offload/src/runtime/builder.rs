//! Configures and starts a runtime.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::lane::Lane;
use super::manager::Manager;
use super::queue::{Board, LANES_MAX};
use super::shared::Shared;
use super::{Runtime, cpu, watchdog};
use crate::SimdLevel;
use crate::accelerator::{Accelerator, Identity};
use crate::placement::{Calibration, Model, Objective, Policy};
use crate::pool::Pool;

/// Unused buffers to keep by default: enough for four tasks in flight of 16 MiB, in and out, on two
/// devices.
const KEEP_BYTES: u64 = 256 << 20;

const _: () = assert!(LANES_MAX == crate::placement::LANES_MAX, "one place a device everywhere");

/// The parts of a runtime.
pub struct Builder {
    threads: usize,
    devices: Vec<Box<dyn Accelerator>>,
    policy: Policy,
    calibration: Calibration,
    keep_bytes: u64,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            devices: Vec::new(),
            policy: Policy::default(),
            calibration: Calibration::default(),
            keep_bytes: KEEP_BYTES,
        }
    }

    /// Worker threads, at least 1. The default is one for each processor.
    #[must_use]
    pub fn cpu_threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Adds a device. There may be 23.
    #[must_use]
    pub fn device(mut self, device: Box<dyn Accelerator>) -> Self {
        self.devices.push(device);
        self
    }

    /// Replaces the default policy.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// The known speeds of devices. By default none are known.
    #[must_use]
    pub fn calibration(self, calibration: Calibration) -> Self {
        Self { calibration, ..self }
    }

    /// The most bytes of unused buffers to keep. The default is 256 MiB.
    #[must_use]
    pub fn keep_bytes(self, keep_bytes: u64) -> Self {
        Self { keep_bytes, ..self }
    }

    /// Starts the threads.
    ///
    /// # Panics
    /// If there are more than 23 devices, two have the same name, or a thread cannot be started.
    pub fn build(self) -> Runtime {
        let Self { threads, devices, policy, calibration, keep_bytes } = self;
        assert!(
            devices.len() < LANES_MAX,
            "a runtime has at most {} devices beside the processor",
            LANES_MAX - 1
        );
        let mut lanes = vec![Lane::new(processor(), threads, None, &policy, 0)];
        for device in &devices {
            let identity = device.identity().clone();
            let known = lanes.iter().any(|lane| lane.identity.name == identity.name);
            assert!(!known, "two devices are named {}", identity.name);
            lanes.push(Lane::new(identity, 1, Some(device.capabilities()), &policy, device.in_flight_max()));
        }
        // The processor and the devices take items from each other's queues, unless the policy
        // spares the processor.
        let steals = policy.objective != Objective::Cpu;
        let widths: Vec<(usize, bool)> = lanes.iter().map(|lane| (lane.width, steals)).collect();
        let board = Board::new(&widths, policy.outstanding_max);
        let keys = lanes.iter().map(|lane| lane.identity.key()).collect();
        let memory = devices.iter().find_map(|device| device.host_memory());
        let pool = Pool::new(memory, keep_bytes);
        let shared = Arc::new(Shared::new(
            policy,
            board,
            lanes,
            Model::with_threads(keys, threads, calibration),
            pool,
        ));
        let workers = (0..threads)
            .map(|n| {
                let shared = Arc::clone(&shared);
                spawn(format!("offload-cpu-{n}"), move || cpu::run(&shared))
            })
            .collect();
        let managers = devices
            .into_iter()
            .zip(1..)
            .map(|(device, lane)| {
                let name = format!("offload-{}", device.identity().name);
                let manager = Manager::new(Arc::clone(&shared), lane, device);
                spawn(name, move || manager.run())
            })
            .collect();
        let watched = Arc::clone(&shared);
        let watchdog = spawn("offload-watchdog".into(), move || watchdog::run(&watched));
        Runtime { shared, workers, managers, watchdog: Some(watchdog) }
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name).spawn(run).expect("a thread can be started")
}

/// The processor's identity, for one thread. Its calibration also depends on how this program was
/// compiled.
fn processor() -> Identity {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let model = model.map_or("processor", |(_, model)| model.trim());
    let build = if cfg!(debug_assertions) { ", debug" } else { "" };
    Identity {
        name: "cpu".into(),
        model: model.to_string(),
        driver: format!("{}{build} {}", SimdLevel::current(), env!("CARGO_PKG_VERSION")),
        memory_bytes: 0,
        zero_copy: true,
    }
}
