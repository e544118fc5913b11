//! Limits of one attempt.

use std::time::Duration;

use outrigger_format::parse_size;
use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Limits of an attempt; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes together, bytes.
    pub memory: Option<u64>,
    /// From its start to its end.
    pub time: Option<Duration>,
    /// Processor time of all its processes together.
    pub cpu: Option<Duration>,
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Bytes of all its outputs, and of its work directory, which may also take at most half of the
    /// disk's free space.
    pub output: Option<u64>,
}

impl Default for Limits {
    /// Room for honest programs, and a bound for others: half of the machine's memory, 512
    /// processes, 1 TiB of output.
    fn default() -> Self {
        Self {
            memory: machine_memory().map(|bytes| bytes / 2),
            time: None,
            cpu: None,
            processes: Some(512),
            output: Some(1 << 40),
        }
    }
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

impl Limits {
    /// Changes what `text` names: `memory=1G,time=10m,cpu=60s,processes=64,output=10G`; `none`
    /// lifts a limit.
    ///
    /// # Errors
    /// `Invalid`, saying what would be accepted.
    pub fn set(&mut self, text: &str) -> Result<()> {
        for one in text.split(',').filter(|one| !one.is_empty()) {
            let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("--limits {one}: {why}"));
            let (key, value) = one.split_once('=').ok_or_else(|| invalid("use KEY=VALUE"))?;
            let size = || match value {
                "none" => Ok(None),
                _ => parse_size(value).map(Some).map_err(|_| invalid("give a size, such as 512M, or none")),
            };
            let time = || match value {
                "none" => Ok(None),
                _ => duration(value)
                    .map(Some)
                    .ok_or_else(|| invalid("give a time, such as 30s or 10m, or none")),
            };
            match key {
                "memory" => self.memory = size()?,
                "output" => self.output = size()?,
                "processes" => self.processes = size()?,
                "time" => self.time = time()?,
                "cpu" => self.cpu = time()?,
                _ => return Err(invalid("there are memory, time, cpu, processes and output")),
            }
        }
        Ok(())
    }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_one_by_one() {
        let mut limits = Limits::default();
        limits.set("memory=1G,time=10m").unwrap();
        limits.set("processes=none,output=5,cpu=1.5s").unwrap();
        assert_eq!(limits.memory, Some(1 << 30));
        assert_eq!(limits.time, Some(Duration::from_secs(600)));
        assert_eq!((limits.processes, limits.output), (None, Some(5)));
        assert_eq!(limits.cpu, Some(Duration::from_millis(1500)));
        for wrong in ["memory", "memory=x", "time=5y", "colour=red"] {
            assert_eq!(limits.set(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
