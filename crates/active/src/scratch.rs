//! The directory in which a job's attempts work.
//!
//! Its runner removes it. A killed runner leaves it, and perhaps a mount in it that nobody serves
//! any more: the user's next command removes both ([`sweep`]). A live runner has a lock on the
//! directory, which ends with its process in any case. A directory gets its name once it is locked,
//! so one of that name without a lock is nobody's.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrigger_fuse::mounts::unmount;
use outrigger_store::{Context as _, Result};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, renameat_with};

/// Prefix of these directories' names.
const PREFIX: &str = "outrigger-job-";
/// Prefix before they are locked.
const PREFIX_NEW: &str = "outrigger-new-";
/// A younger directory of the second kind may be about to be locked.
const AGE_MIN: Duration = Duration::from_secs(600);
/// Where the job's inputs are mounted in it.
pub(crate) const FILES: &str = "in";

/// See the module.
pub(crate) struct Scratch {
    dir: PathBuf,
    _lock: File,
}

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self> {
        let at = || "making a directory for the job's attempts".to_string();
        let new = tempfile::Builder::new().prefix(PREFIX_NEW).tempdir().context(at)?;
        let lock = File::open(new.path()).context(at)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(std::io::Error::from).context(at)?;
        let name =
            new.path().file_name().unwrap_or_default().to_string_lossy().replacen(PREFIX_NEW, PREFIX, 1);
        let dir = new.path().with_file_name(name);
        renameat_with(CWD, new.path(), CWD, &dir, RenameFlags::NOREPLACE)
            .map_err(std::io::Error::from)
            .context(at)?;
        let _ = new.keep();
        Ok(Self { dir, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Removes the leftovers of this user's killed runners on this host; root also removes other
/// users'. A directory that cannot be removed stays, without an error.
pub fn sweep() {
    sweep_in(&std::env::temp_dir(), AGE_MIN);
}

fn sweep_in(above: &Path, age_min: Duration) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_new = name.starts_with(PREFIX_NEW);
        if !is_new && !name.starts_with(PREFIX) {
            continue;
        }
        // Its owner can put a link there at any time, as can the programs that root's agent runs
        // for other users: so the opened directory itself is checked.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(dir) = rustix::fs::open(entry.path(), flags, Mode::empty()).map(File::from) else { continue };
        let Ok(metadata) = dir.metadata() else { continue };
        let is_old = || outrigger_clock::age(metadata.modified().ok()?).map(|age| age >= age_min);
        if (metadata.uid() != own && own != 0) || is_new && is_old() != Some(true) {
            continue;
        }
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Others than root ask a helper, which has not got this descriptor; what they remove is
            // their own.
            let opened = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            let at = if own == 0 { opened } else { entry.path() };
            let _ = unmount(&at.join(FILES), true);
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_runner_left_goes_and_nothing_else() {
        let above = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = above.path().join(name);
            std::fs::create_dir_all(path.join("work-1")).unwrap();
            path
        };
        let (left, other, busy) = (make("outrigger-job-left"), make("another"), make("outrigger-job-busy"));
        let new = make("outrigger-new-one");
        let lock = File::open(&busy).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let link = above.path().join("outrigger-job-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        sweep_in(above.path(), AGE_MIN);
        assert!(new.exists(), "it may be locked in a moment");
        assert!(!left.exists() && other.join("work-1").exists() && busy.exists() && link.exists());
        drop(lock);
        sweep_in(above.path(), Duration::ZERO);
        assert!(!busy.exists() && !new.exists());
    }
}
