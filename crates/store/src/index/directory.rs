//! The index directory: the runs in force, and how several processes agree on them.
//!
//! ```text
//! CURRENT, replaced whole by a rename
//!   0 magic "OUTRCURR"  8 version u32  12 runs R u32  16 next run number u64  24 store id  40 R × run number u64
//!   40 + 8R checksum of what precedes
//! ```
//! A process flocks `LOCK` to read `CURRENT` and open its runs, or to replace it: briefly, and
//! never for lookups. A process flocks `MERGE.lock` for the whole of a merge, so that one at a time
//! merges while others go on flushing. A merger takes `LOCK` only to install its result. No process
//! waits for `MERGE.lock`, and `LOCK` is never held while waiting for anything else.
//!
//! A new run is written under a temporary name, synced, renamed, and the directory synced, before
//! `CURRENT` names it. A replaced run is unlinked after `CURRENT` no longer names it. So a crash
//! leaves at most files that nothing names; the next open removes them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrigger_format::{Cursor, FormatError, Put, StoreId, checksum};

use super::run::{Run, Stamp};
use crate::error::{Context, Result};
use crate::home::Home;
use crate::owner;

const WHAT: &str = "index CURRENT";
const MAGIC: [u8; 8] = *b"OUTRCURR";
const VERSION: u32 = 1;

/// The contents of `CURRENT`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Current {
    /// The next run's number: no number is used twice while `CURRENT` is undamaged.
    pub next: u64,
    /// Runs in force.
    pub runs: Vec<u64>,
}

impl Current {
    fn encode(&self, store: StoreId) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.put_u32(VERSION);
        out.put_u32(self.runs.len() as u32);
        out.put_u64(self.next);
        out.extend_from_slice(&store.0);
        self.runs.iter().for_each(|&run| out.put_u64(run));
        out.put_u64(checksum(&[&out]));
        out
    }

    fn decode(bytes: &[u8], store: StoreId) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<8>()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let (version, count, next) = (cursor.u32()?, cursor.u32()?, cursor.u64()?);
        let owner = StoreId(cursor.array()?);
        if version != VERSION {
            return Err(FormatError::Newer { what: WHAT, version, features: 0 });
        }
        if owner != store || bytes.len() != 48 + count as usize * 8 {
            return Err(cursor.range("runs", count.into()));
        }
        let runs = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        if cursor.u64()? != checksum(&[&bytes[..bytes.len() - 8]]) {
            return Err(FormatError::Checksum { what: WHAT });
        }
        Ok(Self { next, runs })
    }
}

/// The name of a file that is removed when this is dropped, if it still bears that name.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An index directory whose locks are open.
pub(super) struct Directory {
    home: Home,
    /// Its name when it was opened, for messages.
    path: PathBuf,
    stamp: Stamp,
    lock: Mutex<File>,
    merge: Mutex<File>,
    writable: bool,
}

/// Holds one of the two locks until it is dropped.
pub(super) struct Held<'a>(MutexGuard<'a, File>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl Directory {
    /// Opens `path`, and makes it if it is not there. One that may only be read is opened for
    /// reading.
    pub fn open(path: &Path, stamp: Stamp) -> Result<Self> {
        let open = |writable: bool| {
            let file = |name: &str| {
                let mut options = OpenOptions::new();
                options
                    .read(true)
                    .write(writable)
                    .create(writable)
                    .truncate(false)
                    .custom_flags(owner::NO_LINK);
                options.open(path.join(name))
            };
            Ok::<_, std::io::Error>((Mutex::new(file("LOCK")?), Mutex::new(file("MERGE.lock")?)))
        };
        let (locks, writable) = match fs::create_dir_all(path).and_then(|()| open(true)) {
            Err(error) if is_denied(&error) => (open(false), false),
            other => (other, true),
        };
        [path, &path.join("LOCK"), &path.join("MERGE.lock")].into_iter().for_each(owner::give_path);
        let (lock, merge) = locks.context(|| format!("opening index {}", path.display()))?;
        Ok(Self { home: Home::of(path), path: path.to_path_buf(), stamp, lock, merge, writable })
    }

    /// False when runs can be used but not changed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Takes `LOCK`; waits for other holders, which are brief.
    pub fn lock(&self) -> Result<Held<'_>> {
        let file = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock().context(|| format!("locking index {}", self.path.display()))?;
        Ok(Held(file))
    }

    /// Takes `MERGE.lock`; `None` when another process merges already.
    pub fn try_lock_merge(&self) -> Result<Option<Held<'_>>> {
        let Ok(file) = self.merge.try_lock() else { return Ok(None) };
        match file.try_lock() {
            Ok(()) => Ok(Some(Held(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).context(|| "locking the index for a merge".into()),
        }
    }

    /// Reads `CURRENT`; one that is missing or damaged names no runs, and numbers then go on from
    /// the highest in use.
    pub fn read(&self, _lock: &Held<'_>) -> Current {
        let bytes = fs::read(self.home.path().join("CURRENT")).unwrap_or_default();
        Current::decode(&bytes, self.stamp.store).unwrap_or_else(|_| {
            let highest = self.names().iter().filter_map(|name| run_number(name)).max();
            Current { next: highest.map_or(1, |number| number.saturating_add(1)), runs: Vec::new() }
        })
    }

    /// True when there is a `CURRENT` that cannot be read: its runs are lost, and made again.
    pub fn is_damaged(&self, _lock: &Held<'_>) -> bool {
        let bytes = fs::read(self.home.path().join("CURRENT")).unwrap_or_default();
        !bytes.is_empty() && Current::decode(&bytes, self.stamp.store).is_err()
    }

    /// Replaces `CURRENT`, durably. Names made before this call in the same directory are durable
    /// then, too.
    pub fn write(&self, current: &Current, _lock: &Held<'_>) -> Result<()> {
        let what = || format!("replacing CURRENT in {}", self.path.display());
        let temporary = self.home.path().join("CURRENT.tmp");
        let file = owner::create(&temporary, true).context(what)?;
        owner::give_path(&temporary);
        std::io::Write::write_all(&mut &file, &current.encode(self.stamp.store)).context(what)?;
        file.sync_data().context(what)?;
        // A run that CURRENT names must have its own name on disk first.
        self.sync()?;
        fs::rename(&temporary, self.home.path().join("CURRENT")).context(what)?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        let synced = File::open(self.home.path()).and_then(|directory| directory.sync_all());
        synced.context(|| format!("syncing {}", self.path.display()))
    }

    /// Opens run `number`.
    pub fn open_run(&self, number: u64) -> Result<Run> {
        Run::open(&self.run_path(number), number, self.stamp)
    }

    /// A name for a new run's file that no other process of this host uses.
    pub fn temporary(&self) -> Temporary {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = self.home.path().join(format!("new-{}-{count}.tmp", std::process::id()));
            if !path.exists() {
                return Temporary(path);
            }
        }
    }

    /// True when the file that bears `run`'s number is the one it has open: numbers may come again
    /// after CURRENT was damaged.
    pub fn is_same(&self, run: &Run) -> bool {
        let named = fs::metadata(self.run_path(run.number));
        matches!((named, run.file.metadata()), (Ok(named), Ok(open)) if named.ino() == open.ino())
    }

    /// Gives the finished run at `temporary` the number `number`.
    pub fn name_run(&self, temporary: &Temporary, number: u64) -> Result<()> {
        fs::rename(temporary.path(), self.run_path(number)).context(|| format!("naming index run {number}"))
    }

    /// Removes a run's file; processes that have it open go on reading it. One that cannot be
    /// removed is removed by the next open.
    pub fn remove_run(&self, number: u64) {
        let _ = fs::remove_file(self.run_path(number));
    }

    /// Removes leftovers of a crash. Only while both locks are held: otherwise they may be work in
    /// progress of another process.
    pub fn clean(&self, current: &Current, _lock: &Held<'_>, _merge: &Held<'_>) {
        for name in self.names() {
            let unnamed = run_number(&name).is_some_and(|number| !current.runs.contains(&number));
            if unnamed || name.ends_with(".tmp") {
                let _ = fs::remove_file(self.home.path().join(name));
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.home.path()) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    fn run_path(&self, number: u64) -> PathBuf {
        self.home.path().join(format!("{number:08}.run"))
    }
}

fn is_denied(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem)
}

fn run_number(name: &str) -> Option<u64> {
    name.strip_suffix(".run")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_reads_back_and_every_flipped_bit_and_length_is_noticed() {
        let (store, current) = (StoreId([3; 16]), Current { next: 9, runs: vec![4, 8] });
        let mut bytes = current.encode(store);
        assert_eq!(Current::decode(&bytes, store), Ok(current));
        assert!(Current::decode(&bytes, StoreId([4; 16])).is_err());
        for len in 0..bytes.len() {
            assert!(Current::decode(&bytes[..len], store).is_err(), "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Current::decode(&bytes, store).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_lock_excludes_other_handles_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Directory::open(dir.path(), Stamp { store: StoreId([0; 16]), key_check: 0 }).unwrap();
        let (one, two) = (open(), open());
        let held = one.try_lock_merge().unwrap().unwrap();
        assert!(two.try_lock_merge().unwrap().is_none());
        assert!(one.try_lock_merge().unwrap().is_none());
        drop(held);
        assert!(two.try_lock_merge().unwrap().is_some());
    }
}
