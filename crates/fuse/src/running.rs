//! Files that programs are being run from.
//!
//! Linux lets nobody write to such a file (`ETXTBSY`), and looks before it opens a file to write.
//! An `open` that may only read but has `O_TRUNC` is different: the kernel first has the volume
//! empty the file, then looks. The caller is told `ETXTBSY`, the file is empty, and the program
//! dies of a lost page. So a volume refuses such an `open` itself. It knows what runs: the kernel
//! opens a program's file with [`EXEC`] and releases that handle when the last process that runs it
//! has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::fs::{OpenFlags, Result, writes};

/// The file is opened to be run: `__FMODE_EXEC` of the kernel, which no program can pass.
pub const EXEC: OpenFlags = OFlags::from_bits_retain(0x20);

/// How often each file is open to be run.
#[derive(Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<u64, usize>>>);

/// One file that is open to be run.
pub(crate) struct Run {
    number: u64,
    running: Arc<Mutex<HashMap<u64, usize>>>,
}

impl Running {
    /// The file is opened like this; what is returned lasts as long as the handle.
    pub fn opened(&self, number: u64, flags: OpenFlags) -> Option<Run> {
        flags.contains(EXEC).then(|| {
            *locked(&self.0).entry(number).or_default() += 1;
            Run { number, running: Arc::clone(&self.0) }
        })
    }

    /// `ETXTBSY` for an `open` that would empty a running program and that the kernel has not
    /// looked at.
    pub fn check(&self, number: u64, flags: OpenFlags) -> Result<()> {
        let unseen = flags.contains(OFlags::TRUNC) && !writes(flags);
        if unseen && locked(&self.0).contains_key(&number) { Err(Errno::TXTBSY) } else { Ok(()) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut running = locked(&self.running);
        if let Some(count) = running.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.number);
            }
        }
    }
}

fn locked(running: &Mutex<HashMap<u64, usize>>) -> MutexGuard<'_, HashMap<u64, usize>> {
    running.lock().expect("no panic while it is held")
}
