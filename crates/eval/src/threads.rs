//! Processor time of a process' threads by their names, and the bytes that the process hands to the
//! disk, while it runs.
//!
//! Threads come and go, and the end of a process removes its numbers. So a watcher reads them every
//! few milliseconds, and the last numbers of a thread count. The system's resolution is a hundredth
//! of a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the watcher reads.
const EVERY: Duration = Duration::from_millis(5);

/// Observations so far. Two of them give a difference.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// By thread number: name and hundredths of a second.
    threads: BTreeMap<u64, (String, u64)>,
    /// Bytes that went to the disk.
    pub written: u64,
}

/// A role: all threads whose names differ only in their numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// `write` of `write-0` and `write-1`.
    pub name: String,
    /// Processor seconds of all of them.
    pub seconds: f64,
    /// Processor seconds of the busiest one.
    pub most: f64,
}

impl Seen {
    /// The difference to `before`, the busiest role first.
    pub fn roles_since(&self, before: &Seen) -> Vec<Role> {
        let mut roles: Vec<Role> = Vec::new();
        for (id, (name, ticks)) in &self.threads {
            let earlier = before.threads.get(id).map_or(0, |(_, ticks)| *ticks);
            let (name, seconds) = (role(name), ticks.saturating_sub(earlier) as f64 / 100.0);
            match roles.iter_mut().find(|role| role.name == name) {
                Some(role) => (role.seconds, role.most) = (role.seconds + seconds, role.most.max(seconds)),
                None => roles.push(Role { name: name.to_string(), seconds, most: seconds }),
            }
        }
        roles.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        roles
    }

    fn look(&mut self, process: u32) {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let id = task.file_name().to_string_lossy().parse();
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if let (Ok(id), Some(thread)) = (id, parsed(&stat)) {
                self.threads.insert(id, thread);
            }
        }
        let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        self.written = written.unwrap_or(self.written).max(self.written);
    }
}

/// Processor seconds of the kernel's own threads since the machine started, without those of
/// threads that have ended.
pub fn of_kernel() -> f64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ticks = processes.filter_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        is_of_kernel(&stat).then(|| parsed(&stat))?
    });
    ticks.map(|(_, ticks)| ticks as f64 / 100.0).sum()
}

/// True if the flag `PF_KTHREAD` is set.
fn is_of_kernel(stat: &str) -> bool {
    let flags = stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(6);
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & 0x0020_0000 != 0)
}

/// A name without its number.
fn role(name: &str) -> &str {
    name.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches('-')
}

/// Name and hundredths of a second from a line of `stat`. The name may contain any letters.
fn parsed(stat: &str) -> Option<(String, u64)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    Some((name.to_string(), ticks(rest, 11)?))
}

/// The sum of two fields behind the name in a line of `stat`: user and system time, in hundredths
/// of a second on every Linux. Field 11 starts those of the process or thread itself, field 13
/// those of children that it has waited for.
pub fn ticks(behind_name: &str, field: usize) -> Option<u64> {
    behind_name.split_whitespace().skip(field).take(2).map(|field| field.parse::<u64>().ok()).sum()
}

/// Watches a process until it is dropped.
pub struct Watch {
    process: u32,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch this process.
    pub fn start(process: u32) -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let (watched, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                watched.lock().unwrap_or_else(PoisonError::into_inner).look(process);
                std::thread::sleep(EVERY);
            }
        });
        Self { process, seen, stop, thread: Some(thread) }
    }

    /// The present numbers, or those at the end of the process.
    pub fn now(&self) -> Seen {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.look(self.process);
        seen.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_stat_are_read_whatever_a_thread_is_called() {
        let line = "123 (a) (b-1) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20 0";
        assert_eq!(parsed(line), Some(("a) (b-1".to_string(), 281)));
        assert_eq!(parsed("123 (a) S 1 2"), Some(("a".to_string(), 0)));
        assert_eq!(parsed(""), None);
        assert_eq!(["write-0", "mount-cpu-11", "flusher"].map(role), ["write", "mount-cpu", "flusher"]);
    }

    #[test]
    fn the_kernels_threads_are_told_from_programs() {
        let stat = |process: &str| std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        assert!(!is_of_kernel(&stat("self")));
        assert!(is_of_kernel("15 (a) b) S 2 0 0 0 -1 2129984 0 0 0 0 0 9 0 0 20 0 1 0 23"));
        assert!(
            !is_of_kernel("15 (a) b) S 2 0 0 0 -1 4194304 0 0 0 0 0 9 0 0 20 0 1 0 23") && !is_of_kernel("")
        );
    }

    #[test]
    fn what_threads_took_in_between_is_summed_by_role() {
        let seen = |threads: &[(u64, &str, u64)]| Seen {
            threads: threads.iter().map(|(id, name, ticks)| (*id, (name.to_string(), *ticks))).collect(),
            written: 0,
        };
        let before = seen(&[(1, "write-0", 100), (2, "fuse", 50)]);
        let after = seen(&[(1, "write-0", 150), (2, "fuse", 60), (3, "write-1", 200)]);
        let roles = after.roles_since(&before);
        let role = |name: &str, seconds, most| Role { name: name.into(), seconds, most };
        assert_eq!(roles, [role("write", 2.5, 2.0), role("fuse", 0.1, 0.1)]);
    }

    /// This process' own threads. One works until a hundredth of a second is counted for it.
    #[test]
    fn a_thread_that_ends_is_remembered() {
        let watch = Watch::start(std::process::id());
        let before = watch.now();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let work = move || while !told.load(Ordering::Relaxed) {};
        let worker = std::thread::Builder::new().name("worker-7".into()).spawn(work).unwrap();
        let of_worker = || {
            let roles = watch.now().roles_since(&before);
            roles.into_iter().find(|role| role.name == "worker").map_or(0.0, |role| role.seconds)
        };
        while of_worker() == 0.0 {
            std::thread::sleep(EVERY);
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        assert!(of_worker() > 0.0);
    }
}
