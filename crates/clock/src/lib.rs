//! The only code that asks the system for the time, sleeps, or draws random bytes.
//!
//! All other code calls this crate, so that a test can replace the system's clock. Leases,
//! retention, retries and write-back then pass hours in a moment, and a seed repeats a run. A clock
//! belongs to a thread ([`with`]). A thread without one has the system's. `clippy.toml` denies the
//! ways around this crate. docs/decisions/0027-clock.md says why no clock is passed as an argument.
//!
//! Some waits still keep the system's time: timeouts of condition variables, sockets and child
//! processes, and those of tokio, at the edges towards object stores and PostgreSQL.

mod cpu;
mod instant;

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrigger_format::catalogue::Time;

pub use cpu::{process_time, thread_time, wanted_time};
pub use instant::Instant;

/// A source of time and of random bytes.
pub trait Clock: Send + Sync {
    /// The time since an arbitrary moment of this clock. It never goes back.
    fn monotonic(&self) -> Duration;

    /// Like [`Clock::monotonic`], since a moment that all processes of a host share.
    fn steady(&self) -> Duration {
        self.monotonic()
    }

    /// The time since 1970, according to this host.
    fn wall(&self) -> Duration;

    /// The clock that stamps files. Once a file has a stamp below this time, it cannot get the same
    /// stamp again.
    fn wall_coarse(&self) -> Duration {
        self.wall()
    }

    /// Returns after so much time.
    fn sleep(&self, time: Duration);

    /// Fills `bytes` with random bytes.
    ///
    /// # Errors
    /// If the system has no random bytes.
    fn random(&self, bytes: &mut [u8]) -> Result<(), NoRandom>;
}

/// The system has no random bytes, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRandom(String);

impl NoRandom {
    /// With the reason, for users.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for NoRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the system has no random bytes: {}", self.0)
    }
}

impl std::error::Error for NoRandom {}

thread_local! {
    /// The clock of this thread, unless it is the system's.
    static CURRENT: RefCell<Option<Arc<dyn Clock>>> = const { RefCell::new(None) };
}

/// Calls `f` with this thread's clock.
fn ask<T>(f: impl FnOnce(&dyn Clock) -> T) -> T {
    // Not borrowed during the call, as a clock that sleeps may run other code on this thread.
    match CURRENT.with_borrow(Clone::clone) {
        Some(clock) => f(&*clock),
        None => f(&cpu::System),
    }
}

/// Runs `f` on this thread with another clock. Threads that `f` starts have the system's.
pub fn with<T>(clock: Arc<dyn Clock>, f: impl FnOnce() -> T) -> T {
    struct Back(Option<Arc<dyn Clock>>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _back = Back(CURRENT.replace(Some(clock)));
    f()
}

/// Nanoseconds since 1970.
pub fn now_nanos() -> u64 {
    ask(|clock| clock.wall().as_nanos() as u64)
}

/// Nanoseconds since this machine started, without its time asleep. Nobody can set this clock, and
/// all processes read the same value.
pub fn steady_nanos() -> u64 {
    ask(|clock| clock.steady().as_nanos() as u64)
}

/// See [`Clock::wall_coarse`].
pub fn now_coarse() -> Time {
    let now = ask(|clock| clock.wall_coarse());
    Time { secs: now.as_secs() as i64, nanos: now.subsec_nanos() }
}

/// The age of a file with this stamp. `None` if the stamp lies in the future.
pub fn age(stamp: SystemTime) -> Option<Duration> {
    let stamp = stamp.duration_since(UNIX_EPOCH).unwrap_or_default();
    ask(|clock| clock.wall()).checked_sub(stamp)
}

/// Returns after so much time.
pub fn sleep(time: Duration) {
    ask(|clock| clock.sleep(time));
}

/// Random bytes.
///
/// # Errors
/// If the system has no random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    ask(|clock| clock.random(&mut bytes)).map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A clock that advances only when a thread sleeps.
    #[derive(Default)]
    struct Still(Mutex<Duration>);

    impl Clock for Still {
        fn monotonic(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn wall(&self) -> Duration {
            Duration::from_secs(1_000_000_000) + self.monotonic()
        }

        fn sleep(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }

        fn random(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
            bytes.fill(7);
            Ok(())
        }
    }

    #[test]
    fn another_clock_passes_hours_in_a_moment() {
        let clock: Arc<Still> = Arc::default();
        let (slept, wall) = with(Arc::clone(&clock) as Arc<dyn Clock>, || {
            let began = Instant::now();
            sleep(Duration::from_secs(3600));
            assert_eq!(random::<3>(), Ok([7; 3]));
            (began.elapsed(), now_nanos())
        });
        assert_eq!((slept, wall), (Duration::from_secs(3600), 1_000_003_600 * 1_000_000_000));
        assert_eq!(
            now_coarse().secs.cmp(&1_600_000_000),
            std::cmp::Ordering::Greater,
            "and afterwards it is the system's"
        );
    }

    #[test]
    fn the_system_has_time_and_random_bytes() {
        let (began, wall) = (Instant::now(), now_nanos());
        sleep(Duration::from_millis(2));
        assert!(began.elapsed() >= Duration::from_millis(2) && now_nanos() > wall);
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
    }
}
