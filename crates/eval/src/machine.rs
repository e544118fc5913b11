//! The machine on which a record was made.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The properties that decide how fast things are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model, in its own words.
    pub cpu: String,
    /// The number of its threads that this system has.
    pub cpus: usize,
    /// The instructions in use, as `OUTRIGGER_SIMD` names them.
    pub simd: String,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The measured file system, and the storage that it names.
    pub storage: String,
    /// Devices beside the processor.
    pub devices: Vec<String>,
}

impl Machine {
    /// This machine. `work` lies on the measured file system.
    pub fn here(work: &std::path::Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let memory = read("/proc/meminfo")
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok())
            .unwrap_or(0_u64);
        let found = outrigger_offload::discover();
        let devices = found.devices.iter().map(|device| device.identity().model.clone()).collect();
        Self {
            cpu: model.map_or("processor", |(_, model)| model.trim()).to_string(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            simd: outrigger_offload::SimdLevel::current().name().to_string(),
            memory: memory * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            storage: storage(work),
            devices,
        }
    }

    /// The name of its directory of records: `amd-epyc-2cpu-25gb-avx512`. Processors of one name
    /// differ most in their instructions.
    pub fn slug(&self) -> String {
        let mut words: Vec<String> = vec![self.cpu.clone(), format!("{}cpu", self.cpus)];
        words.push(format!("{}gb", (self.memory as f64 / 1e9).round() as u64));
        words.push(self.simd.clone());
        words.extend(self.devices.iter().cloned());
        let plain: String = words
            .join("-")
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
            .collect();
        plain.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }

    /// The number of processors that are busy while the caller waits; 0 if the system does not say.
    pub fn busy(wait: Duration) -> f64 {
        let before = ticks();
        std::thread::sleep(wait);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        cpus * ticks().busy_since(before)
    }

    /// The text for a heading.
    pub fn describe(&self) -> String {
        let devices = if self.devices.is_empty() { "no device".into() } else { self.devices.join(", ") };
        format!(
            "{}, {} CPUs ({}), {:.0} GB, {}, {}, Linux {}",
            self.cpu,
            self.cpus,
            self.simd,
            self.memory as f64 / 1e9,
            devices,
            self.storage,
            self.kernel
        )
    }
}

/// Ticks of all processors since the machine started.
#[derive(Clone, Copy, Default)]
pub struct Ticks {
    idle: u64,
    all: u64,
}

/// The present ticks; zero if the system does not say.
pub fn ticks() -> Ticks {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // A guest's ticks are included in its host's.
    let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    Ticks { idle: numbers.iter().skip(3).take(2).sum(), all: numbers.iter().sum() }
}

impl Ticks {
    /// The share of processor time in use since `before`.
    pub fn busy_since(self, before: Ticks) -> f64 {
        let all = self.all.saturating_sub(before.all);
        if all == 0 {
            return 0.0;
        }
        (1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64).clamp(0.0, 1.0)
    }
}

/// The type of the file system at `path`, which has the longest mount point that is a prefix.
fn storage(path: &std::path::Path) -> String {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut best: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(_), Some(at), Some(kind)) = (words.next(), words.next(), words.next()) else { continue };
        if path.starts_with(at) && best.as_ref().is_none_or(|(len, _)| at.len() >= *len) {
            best = Some((at.len(), kind.to_string()));
        }
    }
    best.map_or("unknown file system".into(), |(_, kind)| kind)
}
