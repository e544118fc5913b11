//! The group of one attempt.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrigger_clock::Instant;
use rustix::process::{Pid, Signal, kill_process};

use super::Controllers;
use crate::job::limits::Limits;

/// How long killed processes may take to be gone.
const GONE: Duration = Duration::from_secs(2);
/// Enters the group whose `cgroup.procs` is `$0`, and becomes the rest of the words. Variables that
/// shells add to the environment are removed.
const ENTER: &str = r#"echo 0 >"$0" || exit 126; unset PWD OLDPWD SHLVL; exec "$@""#;
/// The least share of the processor that there is.
const LEAST: u32 = 1;

/// An attempt's use of resources, as far as it was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Processor time of all its processes.
    pub cpu: Option<Duration>,
    /// The most memory that they had at once, bytes.
    pub memory: Option<u64>,
}

impl Usage {
    /// The sum of both, if both were counted. The two need not have had their most memory at the
    /// same time, so for memory it is a bound.
    pub(crate) fn and(self, other: Self) -> Self {
        let cpu = self.cpu.zip(other.cpu).map(|(one, other)| one + other);
        Self { cpu, memory: self.memory.zip(other.memory).map(|(one, other)| one + other) }
    }
}

/// The limit that was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exceeded {
    Memory,
    Processes,
}

/// A group with one attempt in it. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    controllers: Controllers,
    weight: u32,
}

pub(super) fn read(dir: &Path, name: &str) -> io::Result<String> {
    std::fs::read_to_string(dir.join(name))
}

/// One `write`, as the kernel wants it; nothing is created.
pub(super) fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(dir.join(name))?.write_all(text.as_bytes())
}

/// The number behind `key` in a file of lines `KEY NUMBER`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

impl Group {
    pub(super) fn make(
        dir: PathBuf,
        controllers: Controllers,
        limits: &Limits,
        (weight, idle): (u32, bool),
    ) -> io::Result<Self> {
        std::fs::create_dir(&dir)?;
        // From here on it is removed if something fails.
        let group = Self { dir, controllers, weight };
        let number = |limit: Option<u64>| limit.map_or("max".to_string(), |limit| limit.to_string());
        if controllers.memory {
            group.write("memory.max", &number(limits.memory))?;
            // Swapped memory counts, too; and if one process is killed, the program cannot go on
            // without it. Neither setting exists everywhere.
            let _ = group.write("memory.swap.max", "0");
            let _ = group.write("memory.oom.group", "1");
        }
        if controllers.pids {
            group.write("pids.max", &number(limits.processes))?;
        }
        group.weigh(weight);
        if controllers.cpu && idle {
            // Since Linux 5.15; the weight is the least then.
            let _ = group.write("cpu.idle", "1");
        }
        Ok(group)
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        write(&self.dir, name, text)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        read(&self.dir, name)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// True if the kernel keeps the memory of all its processes within the limit.
    pub(crate) fn bounds_memory(&self) -> bool {
        self.controllers.memory
    }

    /// True if the kernel keeps the number of its processes and threads within the limit.
    pub(crate) fn bounds_processes(&self) -> bool {
        self.controllers.pids
    }

    /// The words before a command that run it in this group from its first instruction on: a shell
    /// that enters the group and becomes the command.
    ///
    /// A child of ours that entered it before it becomes the program would take a `fork`. That
    /// copies the page tables of this process (5 ms for 200 MB, and as much again for the faults
    /// after it); starting a program directly takes none. A change of user comes behind these
    /// words.
    pub(crate) fn words(&self) -> [OsString; 4] {
        ["/bin/sh".into(), "-c".into(), ENTER.into(), self.dir.join("cgroup.procs").into()]
    }

    fn processes(&self) -> Vec<u32> {
        let text = self.read("cgroup.procs").unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills all its processes, also frozen ones.
    pub(crate) fn kill(&self) {
        if self.write("cgroup.kill", "1").is_ok() {
            return;
        }
        // Before Linux 5.14: one by one, until no new ones come.
        for _ in 0..100 {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            for pid in processes.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Freezes all its processes, or lets them go on. Returns if the kernel took the request.
    pub(crate) fn freeze(&self, still: bool) -> bool {
        self.write("cgroup.freeze", if still { "1" } else { "0" }).is_ok()
    }

    /// While `back` is true, they have the least share of processor and disk.
    pub(crate) fn stand_back(&self, back: bool) {
        self.weigh(if back { LEAST } else { self.weight });
    }

    fn weigh(&self, weight: u32) {
        // A setting that does not exist, or (with `cpu.idle`) cannot be changed, stays as it is.
        if self.controllers.cpu {
            let _ = self.write("cpu.weight", &weight.to_string());
        }
        if self.controllers.io {
            for name in ["io.weight", "io.bfq.weight"] {
                let _ = self.write(name, &format!("default {weight}"));
            }
        }
    }

    /// The limit that they ran into, if they did.
    pub(crate) fn exceeded(&self) -> Option<Exceeded> {
        let count = |name: &str, key: &str| {
            let text = self.read(name).ok()?;
            keyed(&text, key).filter(|count| *count > 0)
        };
        if self.controllers.memory && count("memory.events", "oom_kill").is_some() {
            return Some(Exceeded::Memory);
        }
        (self.controllers.pids && count("pids.events", "max").is_some()).then_some(Exceeded::Processes)
    }

    /// Their use until now.
    pub fn usage(&self) -> Usage {
        let cpu = self.read("cpu.stat").ok().and_then(|text| keyed(&text, "usage_usec"));
        let memory = self.read("memory.peak").ok().and_then(|text| text.trim().parse().ok());
        Usage { cpu: cpu.map(Duration::from_micros), memory }
    }

    /// Kills its processes, removes it, and returns their use.
    pub(crate) fn end(&self) -> Usage {
        self.kill();
        let begun = Instant::now();
        while self.is_populated() && begun.elapsed() < GONE {
            outrigger_clock::sleep(Duration::from_millis(1));
        }
        let used = self.usage();
        remove(&self.dir);
        used
    }

    fn is_populated(&self) -> bool {
        self.read("cgroup.events").is_ok_and(|text| keyed(&text, "populated") == Some(1))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Kills the processes in a group and in those below it, and removes the groups, as far as
/// possible.
pub(super) fn remove(dir: &Path) {
    let _ = write(dir, "cgroup.kill", "1");
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let begun = Instant::now();
    // It is in use until the last killed process has gone.
    while let Err(error) = std::fs::remove_dir(dir) {
        if error.kind() != io::ErrorKind::ResourceBusy || begun.elapsed() > GONE {
            break;
        }
        outrigger_clock::sleep(Duration::from_millis(1));
    }
}

/// Locks a group's directory for as long as the result lives; `None` if another process has the
/// lock.
pub(super) fn lock(dir: &Path) -> Option<File> {
    let lock = File::open(dir).ok()?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_used_is_known_where_it_is_of_all() {
        let usage = |secs: u64, memory| Usage { cpu: Some(Duration::from_secs(secs)), memory };
        assert_eq!(usage(1, Some(5)).and(usage(2, Some(6))), usage(3, Some(11)));
        assert_eq!(usage(1, Some(5)).and(usage(2, None)), usage(3, None));
        assert_eq!(usage(1, Some(5)).and(Usage::default()), Usage::default());
    }

    #[test]
    fn numbers_are_found_by_their_whole_names() {
        let text = "oom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(
            (keyed(text, "oom"), keyed(text, "oom_kill"), keyed(text, "max")),
            (Some(3), Some(2), None)
        );
        assert_eq!(keyed("usage_usec 1500\nuser_usec 7", "usage_usec"), Some(1500));
    }
}
