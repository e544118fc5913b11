//! The trait of devices that work asynchronously, and the types that it exchanges.
//!
//! ```text
//!   manager thread                        device
//!   submit(Submission) ─────────────────▶ copy in ▶ kernel ▶ copy out       several at once
//!   poll(&mut done)    ◀───────────────── waker.wake() from any thread
//! ```
//!
//! A [`Submission`] has the request with its input ([`Work`]), which is shared and never written,
//! and the output, which moves. So if a device does not answer in time, the runtime can have the
//! processor do the same work from the same input, while the device still holds its share. A later
//! answer of the device is dropped.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::device::HostMemory;
use crate::work::{Output, Work};

/// A device's identity, for users, and as the key of its calibration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its name in this process: `cuda:0`, `sim:0`. No two devices of a runtime share one.
    pub name: String,
    /// The hardware: `NVIDIA H200`.
    pub model: String,
    /// The driver's version, as the driver gives it. Empty if there is none.
    pub driver: String,
    /// Its own memory in bytes. 0 if it works in the host's memory.
    pub memory_bytes: u64,
    /// True if it reads and writes host memory in place, so that nothing is copied.
    pub zero_copy: bool,
}

impl Identity {
    /// True for a simulated device: its times are a model's, and no measurement.
    pub fn is_modelled(&self) -> bool {
        self.name.starts_with("sim:")
    }

    /// The key of its calibration. It changes if the measurements may no longer hold.
    ///
    /// ```
    /// # use outrigger_offload::accelerator::Identity;
    /// let identity = Identity {
    ///     name: "cuda:0".into(),
    ///     model: "NVIDIA H200".into(),
    ///     driver: "570.86".into(),
    ///     memory_bytes: 139 << 30,
    ///     zero_copy: false,
    /// };
    /// assert_eq!(identity.key(), "NVIDIA H200 | 570.86 | 139 GiB");
    /// ```
    pub fn key(&self) -> String {
        let copy = if self.zero_copy { " | zero-copy" } else { "" };
        format!("{} | {} | {} GiB{copy}", self.model, self.driver, self.memory_bytes >> 30)
    }
}

/// Why a device did not execute a task. In any case, the processor does it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The device does not support this task after all. This is no failure of the device.
    #[error("not supported")]
    Unsupported,
    /// Other users occupy the device. It may work later.
    #[error("busy")]
    Busy,
    /// The device's memory does not suffice at the moment.
    #[error("out of device memory")]
    OutOfMemory,
    /// This task failed, but the device may be well. Also reported if the device takes the *data*
    /// for damaged: the processor tries again, and its verdict counts.
    #[error("failed: {0}")]
    Failed(Cow<'static, str>),
    /// The device is gone or its context is unusable, with everything in flight on it.
    #[error("lost: {0}")]
    Lost(Cow<'static, str>),
    /// It did not answer in time. Only the runtime reports this.
    #[error("no answer in time")]
    Hung,
    /// Its result differs from the processor's. Only the runtime reports this.
    #[error("wrong result")]
    Wrong,
}

impl Fault {
    /// True if the device cannot be trusted again before it is re-initialised.
    pub fn is_grave(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Hung | Self::Wrong)
    }

    /// The reason why a device is missing. It omits "lost", as a device that was never found was
    /// not lost.
    pub fn why_missing(&self) -> String {
        match self {
            Self::Lost(why) => why.to_string(),
            other => other.to_string(),
        }
    }

    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::Busy => "busy",
            Self::OutOfMemory => "out_of_memory",
            Self::Failed(_) => "failed",
            Self::Lost(_) => "lost",
            Self::Hung => "hung",
            Self::Wrong => "wrong",
        }
    }
}

/// How long each stage of one task took, by the device's own clock (events, for CUDA). Stages of
/// different tasks overlap. The times do not include waiting for another task's stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StageTimes {
    /// Host memory to device memory. Zero for zero-copy.
    pub copy_in: Duration,
    /// The kernels.
    pub kernel: Duration,
    /// Device memory to host memory.
    pub copy_out: Duration,
}

impl StageTimes {
    /// The sum of all stages.
    pub fn sum(&self) -> Duration {
        self.copy_in + self.kernel + self.copy_out
    }
}

/// A task on its way to a device.
#[derive(Debug)]
pub struct Submission {
    /// The runtime's number, returned unchanged.
    pub id: u64,
    /// The request and its input: read-only, and shared with the runtime.
    pub work: Arc<Work>,
    /// Empty, with capacity from earlier tasks. If [`Accelerator::output_room`] is above 0,
    /// `output.bytes.buffer()` has room for that many bytes, page-locked if the device has such
    /// memory.
    pub output: Output,
}

/// A task that a device has finished.
#[derive(Debug)]
pub struct Completion {
    /// The submission, with the outputs filled in on success. The device keeps nothing of it.
    pub submission: Submission,
    /// Stage times, or the fault. After a fault, the outputs are unspecified.
    pub result: Result<StageTimes, Fault>,
}

/// A device that works asynchronously on several tasks.
///
/// One thread, the device's manager, calls all methods, so a CUDA context may be bound to it in
/// [`Accelerator::attach`]. No method may block for long. If a manager is stuck in one, the runtime
/// takes its tasks away, and the device counts as hung.
pub trait Accelerator: Send {
    /// The device's identity. Constant.
    fn identity(&self) -> &Identity;

    /// How many tasks it wants in flight, so that copy-in, kernel and copy-out of different tasks
    /// overlap: 3 or 4. The runtime never has more tasks submitted and not completed. Constant.
    fn in_flight_max(&self) -> usize;

    /// The page-locked memory that this device copies from and to at full speed. `None` if any
    /// memory is as good. Called once, before the first task, from any thread.
    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        None
    }

    /// The capacity that a task's output buffer should have, in bytes. It exceeds
    /// [`Work::output_len_max`] if the device may write a longer result before it finds that the
    /// result is useless.
    fn output_room(&self, work: &Work) -> usize {
        work.output_len_max()
    }

    /// Called once on the manager thread before anything else. From then on, the device calls
    /// `waker` when [`Accelerator::poll`] will return something, from any thread and as often as it
    /// likes. A device that cannot do that returns a [`Accelerator::poll_interval`] instead.
    ///
    /// # Errors
    /// [`Fault`]: the device stays cut off until [`Accelerator::reset`] succeeds.
    fn attach(&mut self, waker: Waker) -> Result<(), Fault>;

    /// How often to poll while tasks are in flight, for a device that cannot call the waker.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// A function that says whether the device supports this operation with these parameters and
    /// this size. The runtime gets it once, and calls it at each placement, from any thread. It
    /// must be quick, and constant for equal arguments: a temporary lack is a [`Fault`].
    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync>;

    /// Takes a task and returns at once. [`Accelerator::poll`] reports the outcome, even a refusal.
    fn submit(&mut self, submission: Submission);

    /// Appends the tasks that were completed since the last call, in any order. Returns at once.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Checks cheaply that the device still answers.
    ///
    /// # Errors
    /// The fault that was found.
    fn probe(&mut self) -> Result<(), Fault>;

    /// Gives up everything in flight (later not reported, or as [`Fault::Lost`]) and re-initialises
    /// the device. Host memory that it handed out stays readable and writable until it is dropped,
    /// page-locked or not.
    ///
    /// # Errors
    /// The fault that persists.
    fn reset(&mut self) -> Result<(), Fault>;
}
