//! The only place that asks for the time or for random bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrigger_format::catalogue::Time;

use crate::error::{Error, ErrorKind, Result};

/// Nanoseconds since 1970.
pub fn now_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The kernel's coarse clock, the one that stamps files: a file stamped with a time before this cannot be stamped with it again.
pub fn now_coarse() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Time { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// What this thread has run for.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What all threads of this process have run for.
pub fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long this thread has run, or has been ready to while no processor was free.
pub fn wanted_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut nanos = times.split_ascii_whitespace().map_while(|field| field.parse().ok());
    match (nanos.next(), nanos.next()) {
        (Some(ran), Some(waited)) => Duration::from_nanos(ran) + Duration::from_nanos(waited),
        _ => thread_time(),
    }
}

/// Random bytes from the kernel.
///
/// # Errors
/// `Io` when the kernel has none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, "random bytes").caused_by(error))?;
    Ok(bytes)
}
