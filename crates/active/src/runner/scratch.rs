//! The directory in which a job's attempts work.
//!
//! It goes with its runner. Of a runner that was killed it stays, and perhaps a mount in it that nobody serves any more: the next runner removes both. That
//! one is alive is told by a lock on the directory, which ends with the process however it ends.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use outrigger_fuse::mounts::unmount;
use outrigger_store::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// What the names of these directories begin with.
const PREFIX: &str = "outrigger-job-";
/// A younger one may not have been locked yet.
const AGE_MIN: Duration = Duration::from_secs(600);
/// Where the job's inputs are mounted in it.
pub(super) const FILES: &str = "in";

/// See the module.
pub(crate) struct Scratch {
    dir: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self> {
        let at = || "making a directory for the job's attempts".to_string();
        sweep(&std::env::temp_dir(), AGE_MIN);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().context(at)?;
        let lock = File::open(dir.path()).context(at)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(std::io::Error::from).context(at)?;
        Ok(Self { dir, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes what killed runners have left in `above`, as far as that is this user's to do; what is not stays, and is no failure.
fn sweep(above: &Path, age_min: Duration) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(above).into_iter().flatten().flatten() {
        // Whoever else may write there may have made a link of that name.
        let Ok(metadata) = entry.metadata() else { continue };
        let is_old = || outrigger_clock::age(metadata.modified().ok()?).map(|age| age >= age_min);
        if !entry.file_name().to_string_lossy().starts_with(PREFIX)
            || !metadata.is_dir()
            || (metadata.uid() != own && own != 0)
            || is_old() != Some(true)
        {
            continue;
        }
        let Ok(dir) = File::open(entry.path()) else { continue };
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unmount(&entry.path().join(FILES), true);
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
        let lock = File::open(&busy).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let link = above.path().join("outrigger-job-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        sweep(above.path(), AGE_MIN);
        assert!(left.exists(), "it is too young");
        sweep(above.path(), Duration::ZERO);
        assert!(!left.exists() && other.join("work-1").exists() && busy.exists() && link.exists());
        drop(lock);
        sweep(above.path(), Duration::ZERO);
        assert!(!busy.exists());
    }
}
