//! The system's clocks, and what processors have done.

use std::time::Duration;

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

impl Clock for System {
    fn monotonic(&self) -> Duration {
        read(ClockId::Monotonic)
    }

    fn wall(&self) -> Duration {
        read(ClockId::Realtime)
    }

    fn wall_coarse(&self) -> Duration {
        read(ClockId::RealtimeCoarse)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
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
