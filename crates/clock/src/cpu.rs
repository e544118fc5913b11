//! The system's clocks, and what processors have done.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::{Clock, NoRandom};

/// The system's clocks and random bytes.
pub(crate) struct System;

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn read(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    // A host whose clock says less than 1970 has no time.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
}

/// By the C library, not by the kernel: what stands in front of it (libfaketime, the simulation) is asked.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
impl Clock for System {
    fn monotonic(&self) -> Duration {
        // A moment of the standard library's is nothing but a difference to another one.
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

/// What this thread has run for.
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// What all threads of this process have run for.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
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
