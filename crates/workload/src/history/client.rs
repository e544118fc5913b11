//! A client: a process that does random operations in a directory that it shares with others, and
//! logs them.
//!
//! It works from an open directory, the root of a mount. When that is gone it waits until something
//! is mounted there again: the directory below the mount is not shared.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{ABSENT, Action, EXISTS, FIRST, HERE, How, MOVED, Op, REMOVED, TORN, WON};
use crate::Rng;

/// Registers of each kind, and lengths of those written in place: at most a page, so that a read is
/// one request.
const REGISTERS: u64 = 3;
const LENGTHS: [usize; REGISTERS as usize] = [100, 1700, 4096];
/// Files that move, and how many move at a time.
const MOVING: u64 = 60;
const AT_A_TIME: u64 = 4;
const DIRS: u8 = 3;
/// How long the same files move and the same log is appended to, and how long the same name is
/// tried.
const EPOCH: Duration = Duration::from_secs(12);
const NAME_EPOCH: Duration = Duration::from_millis(400);

/// The monotonic clock of the machine, in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A value as a file holds it: its name, and bytes that follow from the name.
pub fn content(value: &str, len: usize) -> Vec<u8> {
    let mut bytes = format!("{value} {len}\n").into_bytes();
    let seed = value.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut more = vec![0; len.saturating_sub(bytes.len())];
    Rng::new(seed).fill(&mut more);
    bytes.extend(more);
    bytes
}

/// The value of which this is the whole content.
pub fn value_of(bytes: &[u8]) -> Option<String> {
    let head = bytes.split(|&byte| byte == b'\n').next()?;
    let (value, len) = std::str::from_utf8(head).ok()?.split_once(' ')?;
    (content(value, len.parse().ok()?) == bytes).then(|| value.to_owned())
}

/// Creates what the clients share; once, before they start.
///
/// # Errors
/// As of the operations.
pub fn prepare(dir: &Path) -> io::Result<()> {
    for number in 0..DIRS {
        std::fs::create_dir(dir.join(format!("d{number}")))?;
    }
    for number in 0..MOVING {
        let name = format!("m{number}");
        std::fs::write(dir.join("d0").join(&name), content(&name, 300))?;
    }
    for (number, len) in LENGTHS.into_iter().enumerate() {
        std::fs::write(dir.join(format!("w{number}")), content(FIRST, len))?;
    }
    std::fs::create_dir(dir.join("own"))?;
    std::fs::write(dir.join("flock0"), "0")?;
    std::fs::write(dir.join("fcntl0"), "0")
}

/// How far an operation came before it failed.
enum Failure {
    /// Nothing was changed.
    Before(Errno),
    /// Something may have been changed.
    After(Errno),
}

/// A failure before any change.
fn before(error: impl Into<io::Error>) -> Failure {
    Failure::Before(errno(&error.into()))
}

/// A failure after a possible change.
fn after(error: impl Into<io::Error>) -> Failure {
    Failure::After(errno(&error.into()))
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

type Done = Result<String, Failure>;

/// One client.
pub struct Client {
    name: String,
    dir: PathBuf,
    log: File,
    root: Option<OwnedFd>,
    number: u64,
}

impl Client {
    /// A client `HOST.NUMBER` that works in a mount and writes `logs/HOST.NUMBER.log`.
    ///
    /// # Errors
    /// The log cannot be made.
    pub fn new(dir: &Path, logs: &Path, name: &str) -> io::Result<Self> {
        let log = File::options().create_new(true).append(true).open(logs.join(format!("{name}.log")))?;
        Ok(Self { name: name.to_owned(), dir: dir.to_owned(), log, root: None, number: 0 })
    }

    /// Does random operations until `length` after `start`, a time of the machine's monotonic clock
    /// in nanoseconds that is the same for all clients.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn run(&mut self, seed: u64, start: u64, length: Duration) -> io::Result<()> {
        let part = self.name.bytes().fold(0, |part, byte| part * 257 + u64::from(byte));
        let mut rng = Rng::part(seed, part);
        loop {
            let passed = Duration::from_nanos(now().saturating_sub(start));
            if passed > length {
                return Ok(());
            }
            if !self.is_mounted() {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let (key, action) = choose(&mut rng, passed);
            let done = self.act(&key, action, &mut rng)?;
            std::thread::sleep(Duration::from_millis(if done { rng.below(15) } else { 100 }));
        }
    }

    /// Reads all keys of a history after all changes have ended. Returns true if all reads
    /// succeeded.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn look_at_all(&mut self, ops: &[Op]) -> io::Result<bool> {
        let mut all = self.is_mounted();
        let keys: BTreeSet<_> = ops.iter().map(|op| op.key.as_str()).collect();
        for key in keys {
            let looks = match key.as_bytes()[0] {
                b'm' => (0..DIRS).map(Action::Stat).collect(),
                b'n' => vec![Action::Find],
                b'l' => vec![Action::Lines],
                _ => vec![Action::Read],
            };
            for look in looks {
                all &= self.act(key, look, &mut Rng::new(0))?;
            }
        }
        Ok(all)
    }

    /// Opens the root again unless it is open. A directory on the file system around it does not
    /// count.
    fn is_mounted(&mut self) -> bool {
        if self.root.is_none() {
            let opened = rustix::fs::open(&self.dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let beneath = self.dir.parent().and_then(|parent| parent.metadata().ok());
            self.root = opened.ok().filter(|root| {
                let device = rustix::fs::fstat(root).map(|found| found.st_dev);
                beneath.is_some_and(|beneath| device.is_ok_and(|device| device != beneath.dev()))
            });
        }
        self.root.is_some()
    }

    /// Does and logs an operation. Returns true if it is done.
    fn act(&mut self, key: &str, action: Action, rng: &mut Rng) -> io::Result<bool> {
        self.number += 1;
        let (number, id) = (self.number, format!("{}/{}", self.name, self.number));
        let called = format!("> {number} {} {key} {action}\n", now());
        self.log.write_all(called.as_bytes())?;
        let Some(root) = self.root.take() else { return Ok(false) };
        let result = Files { root: &root, id: &id }.act(key, action, rng);
        let is_done = result.is_ok();
        let outcome = match result {
            Ok(value) => format!("done {value}"),
            Err(Failure::Before(error)) => format!("failed {error}"),
            Err(Failure::After(error)) => format!("unknown {error}"),
        };
        self.log.write_all(format!("< {number} {} {outcome}\n", now()).as_bytes())?;
        // The mount may be gone.
        self.root = is_done.then_some(root);
        Ok(is_done)
    }
}

/// Chooses the next operation and its key by the elapsed time.
fn choose(rng: &mut Rng, passed: Duration) -> (String, Action) {
    let epoch = passed.as_nanos() / EPOCH.as_nanos();
    let name = passed.as_nanos() / NAME_EPOCH.as_nanos();
    match rng.below(100) {
        0..10 => (format!("w{}", rng.below(REGISTERS)), Action::Write),
        10..24 => (format!("w{}", rng.below(REGISTERS)), Action::Read),
        24..32 => (format!("r{}", rng.below(REGISTERS)), Action::Replace),
        32..45 => (format!("r{}", rng.below(REGISTERS)), Action::Read),
        45 => (format!("r{}", rng.below(REGISTERS)), Action::Remove),
        46..51 => ("flock0".into(), Action::Count),
        51..56 => ("fcntl0".into(), Action::Count),
        56..66 => (format!("log{epoch}"), Action::Append),
        66..70 => (format!("log{epoch}"), Action::Lines),
        70..78 => {
            let ways = [How::Exclusive, How::Directory, How::Link, How::Rename];
            (format!("n{name}"), Action::Claim(ways[rng.index(4)]))
        }
        78..82 => (format!("n{}", name.saturating_sub(u128::from(rng.below(3)))), Action::Find),
        rest => {
            let file = (epoch as u64 * AT_A_TIME + rng.below(AT_A_TIME)) % MOVING;
            let from = rng.below(DIRS.into()) as u8;
            let to = (from + 1 + rng.below(u64::from(DIRS) - 1) as u8) % DIRS;
            let action = if rest < 92 { Action::Move { from, to } } else { Action::Stat(from) };
            (format!("m{file}"), action)
        }
    }
}

/// The files of an operation.
struct Files<'a> {
    root: &'a OwnedFd,
    id: &'a str,
}

impl Files<'_> {
    fn act(&self, key: &str, action: Action, rng: &mut Rng) -> Done {
        match action {
            Action::Write => self.write(key),
            Action::Replace => self.replace(key, rng),
            Action::Read => self.read(key),
            Action::Count => self.count(key),
            Action::Append => self.append(key, rng),
            Action::Lines => self.lines(key),
            Action::Claim(how) => self.claim(key, how),
            Action::Find => self.find(key),
            Action::Remove => match rustix::fs::unlinkat(self.root, key, AtFlags::empty()) {
                Ok(()) => Ok(REMOVED.into()),
                Err(Errno::NOENT) => Ok(ABSENT.into()),
                Err(error) => Err(after(error)),
            },
            Action::Move { from, to } => {
                let [from, to] = [from, to].map(|dir| format!("d{dir}/{key}"));
                match rustix::fs::renameat(self.root, from, self.root, to) {
                    Ok(()) => Ok(MOVED.into()),
                    Err(Errno::NOENT) => Ok(ABSENT.into()),
                    Err(error) => Err(after(error)),
                }
            }
            Action::Stat(dir) => {
                match rustix::fs::statat(self.root, format!("d{dir}/{key}"), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Ok(HERE.into()),
                    Err(Errno::NOENT) => Ok(ABSENT.into()),
                    Err(error) => Err(before(error)),
                }
            }
        }
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::openat(self.root, name, flags | OFlags::CLOEXEC, mode).map(File::from)
    }

    fn write(&self, key: &str) -> Done {
        let file = self.open(key, OFlags::WRONLY).map_err(before)?;
        let len = LENGTHS[key[1..].parse::<usize>().unwrap_or(0) % LENGTHS.len()];
        file.write_all_at(&content(self.id, len), 0).map_err(after)?;
        file.sync_all().map_err(after)?;
        close(file)
    }

    /// Writes a whole file of its own, to be given another name.
    fn own(&self, len: usize) -> Result<String, Failure> {
        let name = format!("own/{}", self.id.replace('/', "-"));
        let mut file = self.open(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).map_err(before)?;
        file.write_all(&content(self.id, len)).map_err(before)?;
        close(file).map_err(|failure| match failure {
            Failure::After(error) | Failure::Before(error) => Failure::Before(error),
        })?;
        Ok(name)
    }

    fn replace(&self, key: &str, rng: &mut Rng) -> Done {
        let own = self.own([100, 9000, 300_000][rng.index(3)])?;
        rustix::fs::renameat(self.root, own, self.root, key).map_err(after)?;
        Ok("ok".into())
    }

    fn read(&self, key: &str) -> Done {
        let mut file = match self.open(key, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(ABSENT.into()),
            Err(error) => return Err(before(error)),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(before)?;
        if key.starts_with('f') {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(value_of(&bytes).unwrap_or_else(|| TORN.into()))
    }

    fn count(&self, key: &str) -> Done {
        let file = self.open(key, OFlags::RDWR).map_err(before)?;
        let lock = |how| {
            if key.starts_with("flock") {
                rustix::fs::flock(&file, how)
            } else {
                rustix::fs::fcntl_lock(&file, how)
            }
        };
        lock(FlockOperation::LockExclusive).map_err(before)?;
        let mut bytes = [0; 20];
        let len = file.read_at(&mut bytes, 0).map_err(before)?;
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let Ok(number) = text.parse::<u64>() else { return Ok(format!("{text:?}")) };
        let written = file.write_all_at((number + 1).to_string().as_bytes(), 0);
        // The lock is kept while the data cannot be stored. Otherwise another client would not see
        // it, and it would be stored after theirs.
        loop {
            match lock(FlockOperation::Unlock) {
                Err(Errno::IO | Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(100)),
                unlocked => {
                    written.map_err(after)?;
                    unlocked.map_err(after)?;
                    break;
                }
            }
        }
        close(file).map(|_| number.to_string())
    }

    fn append(&self, key: &str, rng: &mut Rng) -> Done {
        let mut file = self.open(key, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).map_err(before)?;
        let line = format!("{} {}\n", self.id, "-".repeat(rng.below(200) as usize));
        let written = file.write(line.as_bytes()).map_err(after)?;
        if written < line.len() {
            return Err(after(Errno::IO));
        }
        close(file)
    }

    fn lines(&self, key: &str) -> Done {
        let mut text = String::new();
        match self.open(key, OFlags::RDONLY) {
            Ok(mut file) => file.read_to_string(&mut text).map_err(before)?,
            Err(Errno::NOENT) => 0,
            Err(error) => return Err(before(error)),
        };
        let id = |line: &str| match line.split_once(' ') {
            Some((id, rest)) if rest.bytes().all(|byte| byte == b'-') => id.to_owned(),
            _ => TORN.to_owned(),
        };
        Ok(text.lines().map(id).collect::<Vec<_>>().join(","))
    }

    fn claim(&self, key: &str, how: How) -> Done {
        let made = match how {
            How::Exclusive => match self.open(key, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
                Ok(mut file) => {
                    file.write_all(&content(self.id, 200)).map_err(after)?;
                    close(file)?;
                    Ok(())
                }
                Err(error) => Err(error),
            },
            How::Directory => rustix::fs::mkdirat(self.root, key, Mode::from_raw_mode(0o755)),
            How::Link => {
                let own = self.own(200)?;
                let made = rustix::fs::linkat(self.root, &own, self.root, key, AtFlags::empty());
                let _ = rustix::fs::unlinkat(self.root, &own, AtFlags::empty());
                made
            }
            How::Rename => {
                let own = self.own(200)?;
                rustix::fs::renameat_with(self.root, &own, self.root, key, RenameFlags::NOREPLACE)
            }
        };
        match made {
            Ok(()) => Ok(WON.into()),
            Err(Errno::EXIST) => Ok(EXISTS.into()),
            Err(error) => Err(after(error)),
        }
    }

    fn find(&self, key: &str) -> Done {
        match rustix::fs::statat(self.root, key, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if found.st_mode & 0o170_000 == 0o040_000 => Ok("dir".into()),
            Ok(_) => {
                let mut bytes = Vec::new();
                let mut file = self.open(key, OFlags::RDONLY).map_err(before)?;
                file.read_to_end(&mut bytes).map_err(before)?;
                let empty = if bytes.is_empty() { "empty" } else { TORN };
                Ok(value_of(&bytes).unwrap_or_else(|| empty.into()))
            }
            Err(Errno::NOENT) => Ok(ABSENT.into()),
            Err(error) => Err(before(error)),
        }
    }
}

/// Closes a written file. If that fails, the operation's outcome is unknown.
fn close(file: File) -> Done {
    super::shim::close(file).map_err(after)?;
    Ok("ok".into())
}
