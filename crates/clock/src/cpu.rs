//! The system's clocks, and the processor time of threads.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::{Clock, NoRandom};

/// The system's clocks and random bytes.
pub(crate) struct System;

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn read(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    // A host whose clock is before 1970 gets the time zero.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
}

/// Asks the C library and not the kernel, so that a replacement of it works (libfaketime, the
/// simulation).
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
impl Clock for System {
    fn monotonic(&self) -> Duration {
        // The standard library's moments can only be subtracted from each other.
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        Instant::now().saturating_duration_since(*FIRST)
    }

    fn steady(&self) -> Duration {
        read(ClockId::Monotonic)
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn wall_coarse(&self) -> Duration {
        read(ClockId::RealtimeCoarse)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        getrandom::fill(bytes).map_err(|error| NoRandom::new(error.to_string()))
    }
}

/// The processor time of this thread.
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// The processor time of all threads of this process.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// The time that this thread has run, or has been ready to run without a free processor.
pub fn wanted_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut nanos = times.split_ascii_whitespace().map_while(|field| field.parse().ok());
    match (nanos.next(), nanos.next()) {
        (Some(ran), Some(waited)) => Duration::from_nanos(ran) + Duration::from_nanos(waited),
        _ => thread_time(),
    }
}
