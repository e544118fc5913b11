//! The disks of simulated hosts, which are full for a while. The shim asks here, and so does the
//! staging log, which calls the kernel without the C library.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use crate::scheduler::{self, HostId};

/// Until when each host's disk takes nothing. A static, because functions of the C library read it.
static FULL: Mutex<BTreeMap<HostId, Duration>> = Mutex::new(BTreeMap::new());

/// A run begins: all disks have room.
pub fn begin_run() {
    outrigger_store::testing::full::disks_take(take);
    FULL.lock().expect("no panic while held").clear();
}

/// From now until `until` a host's disk takes nothing.
pub fn fill(host: HostId, until: Duration) {
    FULL.lock().expect("no panic while held").insert(host, until);
}

/// A host starts again under a new id, with the same disk.
pub fn inherit(before: HostId, again: HostId) {
    let mut full = FULL.lock().expect("no panic while held");
    if let Some(until) = full.remove(&before) {
        full.insert(again, until);
    }
}

/// True if the disk of this thread's host is full.
pub fn is_full() -> bool {
    let is_full = |full: &BTreeMap<HostId, Duration>| {
        full.get(&scheduler::own_host()).is_some_and(|until| *until > scheduler::elapsed())
    };
    scheduler::is_simulated() && is_full(&FULL.lock().expect("no panic while held"))
}

/// How many of `len` bytes the disk of this thread's host takes. A full one takes the beginning of
/// some writes.
///
/// # Errors
/// `ENOSPC`.
pub fn take(len: usize) -> std::io::Result<usize> {
    if !is_full() {
        return Ok(len);
    }
    match if len > 1 { scheduler::below(2 * len as u64) as usize } else { 0 } {
        part if (1..len).contains(&part) => Ok(part),
        _ => Err(rustix::io::Errno::NOSPC.into()),
    }
}

/// True for a path in the directory of one of a simulation's hosts.
pub fn is_of_a_host(path: &Path) -> bool {
    let mut names = path.components().map(|component| component.as_os_str().to_string_lossy());
    names.any(|name| name.starts_with("sim-")) && names.next().is_some_and(|name| name.starts_with("host"))
}
