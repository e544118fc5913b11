//! The bytes of all packs, for frequent callers: monitors, file managers and every `df` ask for
//! `statfs`, on each mount.
//!
//! The answer is a sum over all rows, which grows with the store. It is computed again when it is
//! two seconds old, or later if that takes long: so it costs at most a twentieth of the database's
//! time, however often it is asked for. It is always computed again when it is a minute old.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;

use crate::error::Result;

const AT_LEAST: Duration = Duration::from_secs(2);
const AT_MOST: Duration = Duration::from_secs(60);
/// A sum is used for so many times as long as it took to make.
const TIMES: u32 = 20;

/// The last sum.
#[derive(Default)]
pub(crate) struct StoredBytes(Mutex<Option<Known>>);

#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    until: Instant,
}

impl StoredBytes {
    /// The cached sum, or else that of `ask`. No caller waits for another's `ask`.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn get(&self, ask: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let began = Instant::now();
        if let Some(bytes) = self.known(began) {
            return Ok(bytes);
        }
        let bytes = ask()?;
        self.learn(bytes, began, began.elapsed());
        Ok(bytes)
    }

    fn known(&self, now: Instant) -> Option<u64> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|known| now < known.until).map(|known| known.bytes)
    }

    fn learn(&self, bytes: u64, began: Instant, took: Duration) {
        let until = began + took + (took * TIMES).clamp(AT_LEAST, AT_MOST);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Known { bytes, until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_used_for_as_long_as_it_is_worth() {
        let (stored, began) = (StoredBytes::default(), Instant::now());
        let known = |millis| stored.known(began + Duration::from_millis(millis));
        assert_eq!(known(0), None);
        stored.learn(5, began, Duration::from_millis(1));
        assert_eq!((known(0), known(1_999), known(2_002)), (Some(5), Some(5), None));
        stored.learn(6, began, Duration::from_millis(500));
        assert_eq!((known(10_400), known(10_501)), (Some(6), None));
        stored.learn(7, began, Duration::from_secs(10));
        assert_eq!((known(69_000), known(70_001)), (Some(7), None));
    }
}
