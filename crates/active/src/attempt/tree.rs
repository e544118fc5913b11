//! The resources that a process and its descendants use, from `/proc`.
//!
//! Only the attempt's own processes are read, from parents to children: other processes on this
//! machine may hang, and `/proc` with them. If the kernel does not list children
//! (`CONFIG_PROC_CHILDREN`), all processes are searched for them. Either way a read may block as
//! long as a process hangs in a file system; [`super::watch`] says which thread waits then.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use crate::job::limits::Limits;

/// Sums over a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// Resident memory, bytes.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
    /// Processor time, including that of descendants that have ended and were waited for.
    pub cpu: Duration,
}

impl Used {
    fn add(&mut self, other: Self) {
        self.memory += other.memory;
        self.threads += other.threads;
        self.cpu += other.cpu;
    }

    /// The reason why that is more than an attempt may use, if it is.
    pub fn exceeds(&self, limits: &Limits) -> Option<&'static str> {
        if limits.memory.is_some_and(|memory| self.memory > memory) {
            Some(TOO_MUCH_MEMORY)
        } else if limits.processes.is_some_and(|processes| self.threads > processes) {
            Some(TOO_MANY_PROCESSES)
        } else if limits.cpu.is_some_and(|cpu| self.cpu > cpu) {
            Some(TOO_MUCH_PROCESSOR)
        } else {
            None
        }
    }
}

/// The reason when an attempt has too much memory.
pub(super) const TOO_MUCH_MEMORY: &str = "it used more memory than it may (--limits memory=SIZE)";
/// The reason when an attempt has too many processes.
pub(super) const TOO_MANY_PROCESSES: &str = "it started more processes than it may (--limits processes=N)";

/// The reason when an attempt has used too much processor time.
pub(super) const TOO_MUCH_PROCESSOR: &str = "it used more processor time than it may (--limits cpu=TIME)";

/// `pid` and all below it, where the kernel lists them.
pub(super) fn pids_below(pid: i32) -> Vec<i32> {
    let (mut all, mut waiting) = (Vec::new(), vec![pid]);
    while let Some(pid) = waiting.pop() {
        all.push(pid);
        // Each of many threads may have children.
        waiting.extend(children(pid, u64::MAX));
    }
    all
}

/// The use by `pid` and its descendants. Counting stops as soon as it exceeds the limits, so that a
/// program cannot start processes faster than they are counted.
pub(super) fn below(pid: i32, limits: &Limits) -> Used {
    static LISTED: OnceLock<bool> = OnceLock::new();
    let is_listed = *LISTED.get_or_init(|| std::fs::metadata("/proc/thread-self/children").is_ok());
    let page = rustix::param::page_size() as u64;
    if is_listed { walk(pid, limits, page, children) } else { search(pid, limits, page) }
}

fn walk(pid: i32, limits: &Limits, page: u64, children: impl Fn(i32, u64) -> Vec<i32>) -> Used {
    let (mut sum, mut waiting) = (Used::default(), vec![pid]);
    while let Some(pid) = waiting.pop() {
        // It may have ended since.
        let Some((_, used)) = stat(pid, page) else { continue };
        sum.add(used);
        if sum.exceeds(limits).is_some() {
            break;
        }
        waiting.extend(children(pid, used.threads));
    }
    sum
}

/// The children of all threads of a process.
fn children(pid: i32, threads: u64) -> Vec<i32> {
    let mut found = Vec::new();
    let mut of = |thread: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
        found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    };
    if threads <= 1 {
        of(&pid.to_string());
    } else {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            of(&thread.file_name().to_string_lossy());
        }
    }
    found
}

/// As [`walk`], by a search of all processes of this machine.
fn search(pid: i32, limits: &Limits, page: u64) -> Used {
    let mut below: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some((parent, _)) = stat(pid, page) {
            below.entry(parent).or_default().push(pid);
        }
    }
    walk(pid, limits, page, |pid, _| below.get(&pid).cloned().unwrap_or_default())
}

/// Parent of a process, and its use.
fn stat(pid: i32, page: u64) -> Option<(i32, Used)> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, page)
}

/// The same from a line of `/proc/PID/stat`, whose second field is a name that may hold anything.
fn parse(stat: &str, page: u64) -> Option<(i32, Used)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let first: u64 = fields.nth(9)?.parse().ok()?;
    // Its own time in user mode and in the kernel, and that of children that it waited for.
    let ticks = fields.by_ref().take(3).try_fold(first, |sum, more| Some(sum + more.parse::<u64>().ok()?))?;
    let threads = fields.nth(2)?.parse().ok()?;
    let pages: u64 = fields.nth(3)?.parse().ok()?;
    let cpu = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    Some((parent, Used { memory: pages * page, threads, cpu }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    const NONE: Limits = Limits { memory: None, time: None, cpu: None, processes: None, output: None };

    #[test]
    fn lines_of_stat_are_understood() {
        let line = "4242 (a) b) S 17 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 12345 1000000 250 18446744073709551615";
        let cpu = Duration::from_secs_f64(26.0 / rustix::param::clock_ticks_per_second() as f64);
        assert_eq!(parse(line, 4096), Some((17, Used { memory: 250 * 4096, threads: 3, cpu })));
    }

    #[test]
    fn processes_are_counted_with_what_they_started_however_that_is_found() {
        // A shell, which waits, and two below it.
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & sleep 60 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = shell.id() as i32;
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let page = rustix::param::page_size() as u64;
        for used in [below(pid, &NONE), search(pid, &NONE, page)] {
            assert!(used.memory > 0 && used.threads == 3, "{used:?}");
        }
        assert_eq!(pids_below(pid).len(), 3);
        let two = Limits { processes: Some(1), ..NONE };
        let used = below(pid, &two);
        assert_eq!((used.threads, used.exceeds(&two)), (2, Some(TOO_MANY_PROCESSES)), "more is not counted");
        let group = rustix::process::Pid::from_child(&shell);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
    }
}
