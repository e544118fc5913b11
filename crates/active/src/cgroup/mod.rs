//! Control groups (version 2): every program of an attempt in a group of its own, where this
//! process may make groups.
//!
//! ```text
//!  the group that this process is in ── `/` for root, or what systemd has delegated (`Delegate=yes`)
//!    └─ outrigger-attempts-PID-N ── locked as long as this process lives; what a killed one left is removed by the next
//!         ├─ agent ── this process, if the group above has to be empty to be shared out (it is the only one in there then)
//!         ├─ 1 ── a program of an attempt: memory.max, pids.max, cpu.weight or cpu.idle, io.weight
//!         └─ 2 …
//! ```
//!
//! Groups give more than a watch over `/proc`. Limits cannot be exceeded, and no process escapes
//! the counts of processor time and memory. One step ends all processes, also those that left their
//! session. Programs can be frozen while others have the machine (`foreground::Yielding`).
//!
//! The administrator decides which controllers there are: controllers that are not delegated, or
//! belong to a hierarchy of version 1, are left out, and the watch takes their place. Killing,
//! freezing and counting processor time need none.

mod group;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::job::limits::Limits;

pub(crate) use group::Exceeded;
pub use group::{Group, Usage};
use group::{lock, read, remove, write};

/// Prefix of our groups' names.
const PREFIX: &str = "outrigger-attempts-";
/// The group of this process, if it needs one.
const OWN: &str = "agent";
/// The kernel's default weight.
const USUAL: u32 = 100;

/// Where groups are made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Where {
    /// In this process's group, if possible.
    #[default]
    Auto,
    /// Nowhere.
    Nowhere,
    /// In this one, a directory of a file system of type `cgroup2`.
    At(PathBuf),
}

impl std::str::FromStr for Where {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Nowhere,
            path => Self::At(path.into()),
        })
    }
}

/// The resources that the kernel distributes among groups here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Controllers {
    pub cpu: bool,
    pub memory: bool,
    pub pids: bool,
    pub io: bool,
}

impl Controllers {
    fn set(&mut self, name: &str) {
        match name {
            "cpu" => self.cpu = true,
            "memory" => self.memory = true,
            "pids" => self.pids = true,
            "io" => self.io = true,
            _ => {}
        }
    }

    /// The names of the present ones.
    fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [(self.cpu, "cpu"), (self.memory, "memory"), (self.pids, "pids"), (self.io, "io")];
        all.into_iter().filter_map(|(has, name)| has.then_some(name))
    }
}

/// The groups of this process's attempts.
#[derive(Debug)]
pub struct Groups {
    /// The group that this process was in.
    above: PathBuf,
    base: PathBuf,
    controllers: Controllers,
    /// This process was moved, to empty the group above.
    moved: bool,
    /// The processor weight of each, and if it gets only idle time.
    share: (u32, bool),
    next: AtomicU64,
    _lock: File,
}

/// The weight for a `nice` value, as it works among processes.
fn weight(nice: i32) -> u32 {
    ((f64::from(USUAL) / 1.25f64.powi(nice)).round() as u32).clamp(1, 10_000)
}

impl Groups {
    /// Begins to make groups. `nice` (-20 to 19) and `idle` say how far their programs yield to
    /// others.
    ///
    /// # Errors
    /// A text for a person: why that cannot be done here, and what would help.
    pub fn begin(at: &Where, nice: i32, idle: bool) -> Result<Self, String> {
        Self::prepare(at, nice, idle)?.tried()
    }

    /// The first half of [`Groups::begin`], to be done while this process has no children: it may
    /// have to be moved, which works only for a single process. Takes no time.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(at: &Where, nice: i32, idle: bool) -> Result<Self, String> {
        let above = match at {
            Where::Nowhere => return Err("they are turned off".to_string()),
            Where::Auto => own()?,
            Where::At(path) => path.clone(),
        };
        sweep(&above);
        let (base, lock) = make_base(&above).map_err(|error| {
            format!(
                "no group can be made in {}: {error}; one is delegated with `systemd-run --scope --property Delegate=yes` (for users --user) before the command",
                above.display()
            )
        })?;
        let mut groups = Self {
            above,
            base,
            controllers: Controllers::default(),
            moved: false,
            share: (weight(nice), idle),
            next: AtomicU64::new(1),
            _lock: lock,
        };
        groups.distribute();
        if !groups.moved && groups.controllers.cpu {
            // Beside other groups, ours counts as one.
            let _ = write(&groups.base, "cpu.weight", &groups.share.0.to_string());
            let _ = write(&groups.base, "cpu.idle", if idle { "1" } else { "0" });
        }
        Ok(groups)
    }

    /// The second half: tests if programs can be put into the groups. The first program waits until
    /// the kernel has seen all processors do something else (ten milliseconds and more, which the
    /// caller can use otherwise). One that comes soon after it does not wait.
    ///
    /// # Errors
    /// As there.
    pub fn tried(self) -> Result<Self, String> {
        match self.try_out() {
            Ok(()) => Ok(self),
            Err(error) => {
                Err(format!("no program can be put into a group in {}: {error}", self.above.display()))
            }
        }
    }

    /// Enables the existing controllers in our groups.
    ///
    /// Except for the root, a group distributes them among its groups only if it has no process of
    /// its own. The kernel would still distribute some (`cpu`, `pids`), and then accept no
    /// processes in the groups below; so none is enabled while there are processes.
    fn distribute(&mut self) {
        let is_root = !self.above.join("cgroup.type").exists();
        let is_empty = |dir: &Path| read(dir, "cgroup.procs").is_ok_and(|processes| processes.is_empty());
        if !is_root && !is_empty(&self.above) {
            self.moved = self.make_room().is_ok();
            if !is_empty(&self.above) {
                return;
            }
        }
        let there = read(&self.above, "cgroup.controllers").unwrap_or_default();
        let mut wanted = Controllers::default();
        there.split_ascii_whitespace().for_each(|name| wanted.set(name));
        for name in wanted.names() {
            let enable = |dir: &Path| write(dir, "cgroup.subtree_control", &format!("+{name}"));
            if enable(&self.above).and_then(|()| enable(&self.base)).is_ok() {
                self.controllers.set(name);
            }
        }
    }

    /// Tests if a program can be started in a group: a group that can be made may still refuse
    /// processes.
    fn try_out(&self) -> io::Result<()> {
        let group =
            self.make(&Limits { memory: None, time: None, cpu: None, processes: None, output: None })?;
        let [shell, words @ ..] = group.words();
        let tried = Command::new(shell).args(words).arg("/bin/true").stdin(Stdio::null()).output()?;
        let why = || io::Error::other(String::from_utf8_lossy(&tried.stderr).trim().to_string());
        if tried.status.success() { Ok(()) } else { Err(why()) }
    }

    /// Moves this process out of the group above, if it is the only one there.
    fn make_room(&self) -> io::Result<()> {
        let own = std::process::id().to_string();
        if read(&self.above, "cgroup.procs")?.lines().any(|pid| pid != own) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let dir = self.base.join(OWN);
        std::fs::create_dir(&dir)?;
        write(&dir, "cgroup.procs", &own)
    }

    /// The directory with the groups.
    pub fn path(&self) -> &Path {
        &self.base
    }

    /// The controllers, for a person.
    pub fn describe(&self) -> String {
        let names: Vec<&str> = self.controllers.names().collect();
        match names.as_slice() {
            [] => "without controllers: limits of memory and processes are looked after, not enforced"
                .to_string(),
            names => names.join(", "),
        }
    }

    /// A group for a program of an attempt.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn make(&self, limits: &Limits) -> io::Result<Group> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Group::make(self.base.join(number.to_string()), self.controllers, limits, self.share)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if self.moved {
            // The kernel takes a process back only when nothing is distributed any more.
            for name in self.controllers.names() {
                for dir in [&self.base, &self.above] {
                    let _ = write(dir, "cgroup.subtree_control", &format!("-{name}"));
                }
            }
            if write(&self.above, "cgroup.procs", &std::process::id().to_string()).is_err() {
                // Then this process ends in that group, and the next one removes it.
                return;
            }
        }
        remove(&self.base);
    }
}

/// Makes a group with a lock on it, which tells others that it is in use.
fn make_base(above: &Path) -> io::Result<(PathBuf, File)> {
    // In an ordinary directory no group would ever become one.
    if !above.join("cgroup.procs").exists() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a control group"));
    }
    for number in 0.. {
        let base = above.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match std::fs::create_dir(&base) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        // A process that cleans up may have been faster.
        if let Some(lock) = lock(&base)
            && base.join("cgroup.procs").exists()
        {
            return Ok((base, lock));
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes groups that killed processes have left in `above`: nobody waits for their attempts any
/// more, and some may be frozen.
fn sweep(above: &Path) {
    for entry in std::fs::read_dir(above).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && path.is_dir()
            && let Some(_lock) = lock(&path)
        {
            remove(&path);
        }
    }
}

/// The directory of the group that this process is in.
fn own() -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    find(&mounts, &groups).ok_or_else(|| "this system has no control groups of version 2 mounted".to_string())
}

/// The same, from the kernel's list of mounts and of this process's groups.
fn find(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if after.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // In a container, only a part of the tree may be mounted.
        let below = Path::new(own).strip_prefix(root).ok()?;
        // Not `join`, which appends a slash to the mount point if nothing is below it.
        Some(Path::new(point).components().chain(below.components()).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let mounts = "25 20 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let found = |mounts: &str, groups: &str| find(mounts, groups).map(|path| path.display().to_string());
        let own = "0::/user.slice/user-1000.slice\n";
        assert_eq!(found(mounts, own).as_deref(), Some("/sys/fs/cgroup/user.slice/user-1000.slice"));
        assert_eq!(found(mounts, "5:pids:/x\n0::/\n").as_deref(), Some("/sys/fs/cgroup"));
        let part = mounts.replace("/ /sys/fs/cgroup", "/user.slice /sys/fs/cgroup");
        assert_eq!(found(&part, own).as_deref(), Some("/sys/fs/cgroup/user-1000.slice"));
        assert_eq!(found(&part, "0::/system.slice\n"), None, "it is not to be seen");
        assert_eq!(found("", own), None);
        assert_eq!(found(mounts, "5:pids:/x\n"), None, "only groups of version 1");
    }

    #[test]
    fn an_ordinary_directory_is_refused_and_stays_empty() {
        let dir = tempfile::tempdir().unwrap();
        let why = Groups::prepare(&Where::At(dir.path().to_path_buf()), 0, false).unwrap_err();
        assert!(why.contains("not a control group"), "{why}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_share_is_what_niceness_means() {
        assert_eq!((weight(0), weight(10), weight(19)), (100, 11, 1));
    }

    #[test]
    fn where_groups_go_is_read() {
        let read = |text: &str| text.parse::<Where>().unwrap();
        assert_eq!((read("auto"), read("off")), (Where::Auto, Where::Nowhere));
        assert_eq!(read("/sys/fs/cgroup/jobs"), Where::At("/sys/fs/cgroup/jobs".into()));
        assert!(Groups::begin(&Where::Nowhere, 0, false).unwrap_err().contains("turned off"));
    }
}
