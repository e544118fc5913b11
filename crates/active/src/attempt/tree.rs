//! What a process and all that it started use, from `/proc`.

use std::collections::HashMap;

/// Sums over a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// Resident memory, bytes.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
}

/// One look at all processes of this machine.
pub(super) struct Look {
    children: HashMap<i32, Vec<i32>>,
    used: HashMap<i32, Used>,
}

impl Look {
    pub fn now() -> Self {
        let mut look = Self { children: HashMap::new(), used: HashMap::new() };
        let page = rustix::param::page_size() as u64;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            // It may have ended since.
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((parent, used)) = parse(&stat, page) else { continue };
            look.children.entry(parent).or_default().push(pid);
            look.used.insert(pid, used);
        }
        look
    }

    /// What `pid` and all below it use.
    pub fn below(&self, pid: i32) -> Used {
        let (mut sum, mut waiting) = (Used::default(), vec![pid]);
        while let Some(pid) = waiting.pop() {
            let used = self.used.get(&pid).copied().unwrap_or_default();
            sum.memory += used.memory;
            sum.threads += used.threads;
            waiting.extend(self.children.get(&pid).into_iter().flatten());
        }
        sum
    }
}

/// Parent, memory and threads of a line of `/proc/PID/stat`, whose second field is a name that may hold anything.
fn parse(stat: &str, page: u64) -> Option<(i32, Used)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let threads = fields.nth(15)?.parse().ok()?;
    let pages: u64 = fields.nth(3)?.parse().ok()?;
    Some((parent, Used { memory: pages * page, threads }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_stat_are_understood() {
        let line = "4242 (a) b) S 17 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 12345 1000000 250 18446744073709551615";
        assert_eq!(parse(line, 4096), Some((17, Used { memory: 250 * 4096, threads: 3 })));
    }

    #[test]
    fn this_process_is_seen_with_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id() as i32;
        let used = Look::now().below(own);
        assert!(used.memory > 0 && used.threads >= 2, "{used:?}");
        assert_eq!(Look::now().below(child.id() as i32).threads, 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
