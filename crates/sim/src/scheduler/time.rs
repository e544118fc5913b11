//! The time of a simulation, as programs ask for it.

use std::time::Duration;

use outrigger_clock::{Clock, NoRandom};

/// The time of a simulation.
pub(crate) struct Virtual;

impl Clock for Virtual {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(super::monotonic())
    }

    fn wall(&self) -> Duration {
        Duration::from_nanos(super::wall())
    }

    fn sleep(&self, time: Duration) {
        super::sleep(time.as_nanos() as u64);
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        super::random(bytes);
        Ok(())
    }
}
