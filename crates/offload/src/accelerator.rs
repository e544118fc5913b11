//! Devices that work by themselves: the trait, and what passes through it.
//!
//! ```text
//!   manager thread                        device
//!   submit(Submission) ─────────────────▶ copy in ▶ kernel ▶ copy out       several at once
//!   poll(&mut done)    ◀───────────────── waker.wake() from any thread
//! ```
//!
//! A [`Submission`] is the request with its input, shared and never written ([`Work`]), and the output, which moves. So a
//! runtime that has lost patience can have the processor do the same work from the same input while the device still
//! holds its share; whatever the device says later about it is thrown away.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::device::HostMemory;
use crate::work::{Output, Work};

/// What a device is: calibrations are kept under it, and people are shown it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its name in this process: `cuda:0`, `sim:0`. No two devices of a runtime share one.
    pub name: String,
    /// What it is: `NVIDIA H200`.
    pub model: String,
    /// The driver's version, in the driver's words; empty where there is none.
    pub driver: String,
    /// Its own memory in bytes; 0 where it works in the host's.
    pub memory_bytes: u64,
    /// Whether it reads and writes host memory in place, so that nothing is copied.
    pub zero_copy: bool,
}

impl Identity {
    /// The key of its calibration: it changes when what was measured may no longer hold.
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

/// Why a device did not execute a task. Whatever it is, the task goes to the processor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// It does not do this after all. No failure of the device's.
    #[error("not supported")]
    Unsupported,
    /// Others are using it: later, perhaps.
    #[error("busy")]
    Busy,
    /// Its memory does not suffice at the moment.
    #[error("out of device memory")]
    OutOfMemory,
    /// This task failed; the device may be well. Also where the device takes the *data* for damaged: the processor looks
    /// again and has the last word.
    #[error("failed: {0}")]
    Failed(Cow<'static, str>),
    /// The device is gone or its context is unusable, with everything in flight on it.
    #[error("lost: {0}")]
    Lost(Cow<'static, str>),
    /// It did not answer in time. Said by the runtime, never by a device.
    #[error("no answer in time")]
    Hung,
    /// Its result differs from the processor's. Said by the runtime, never by a device.
    #[error("wrong result")]
    Wrong,
}

impl Fault {
    /// Whether only a re-initialised device can be trusted again.
    pub fn is_grave(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Hung | Self::Wrong)
    }

    /// Why a device is not there, in the words of who looked for it: nothing was lost that never was there.
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

/// How long each stage of one task took on the device, as the device's own clock has it (events, for CUDA). Stages of
/// different tasks overlap; these do not contain waiting for another task's.
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
    /// All of it.
    pub fn sum(&self) -> Duration {
        self.copy_in + self.kernel + self.copy_out
    }
}

/// A task on its way to a device.
#[derive(Debug)]
pub struct Submission {
    /// Given back as it is.
    pub id: u64,
    /// The request and its input: read-only, and shared with the runtime.
    pub work: Arc<Work>,
    /// Empty, with room from earlier tasks; where [`Accelerator::output_room`] is above 0, `output.bytes.buffer()` has room for so
    /// much, page-locked if the device has such memory.
    pub output: Output,
}

/// A task that a device is done with.
#[derive(Debug)]
pub struct Completion {
    /// As it was submitted, with the outputs filled in if the result says so. The device keeps nothing of it.
    pub submission: Submission,
    /// Stage times, or why not. After an error, outputs are unspecified.
    pub result: Result<StageTimes, Fault>,
}

/// A device that works by itself on several tasks at once.
///
/// All methods are called by one thread, the device's manager, so a CUDA context may be bound to it in
/// [`Accelerator::attach`]. No method may block for long: a manager that is stuck in one has its tasks taken away, and
/// the device counts as hung.
pub trait Accelerator: Send {
    /// What it is. Constant.
    fn identity(&self) -> &Identity;

    /// How many tasks it wants in flight so that copy-in, kernel and copy-out of different tasks overlap: 3 or 4. The
    /// runtime never has more than these submitted and not yet completed. Constant.
    fn in_flight_max(&self) -> usize;

    /// Where page-locked memory comes from that this device copies from and to at full speed; `None` if any memory is as
    /// good. Asked once, before tasks come, from any thread.
    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        None
    }

    /// The bytes that a task's output buffer should have room for: more than [`Work::output_len_max`] where the device writes results that are
    /// longer before it is seen that they are of no use.
    fn output_room(&self, work: &Work) -> usize {
        work.output_len_max()
    }

    /// Called once on the manager thread before anything else. From then on, the device calls `waker` (from any thread,
    /// as often as it likes) when [`Accelerator::poll`] will have something. A device that cannot do that says how often
    /// it wants to be polled instead.
    ///
    /// # Errors
    /// [`Fault`]: the device stays out until [`Accelerator::reset`] succeeds.
    fn attach(&mut self, waker: Waker) -> Result<(), Fault>;

    /// How often to poll while tasks are in flight, for devices that cannot call the waker.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// A function that says whether the device does this operation with these parameters and this size. Asked for once;
    /// the function is called at each placement, from any thread: quick, and constant for equal arguments (what is
    /// missing only at the moment is a [`Fault`]).
    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync>;

    /// Takes a task. Returns at once; whatever becomes of it is told by [`Accelerator::poll`], also that it was refused.
    fn submit(&mut self, submission: Submission);

    /// Appends what was completed since the last call, in any order. Returns at once.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Takes a cheap look whether the device still answers.
    ///
    /// # Errors
    /// What is wrong.
    fn probe(&mut self) -> Result<(), Fault>;

    /// Gives up everything in flight (it is no longer reported, or as [`Fault::Lost`]) and begins anew. Host memory that
    /// was handed out stays readable and writable all the same, page-locked or not, until it is dropped.
    ///
    /// # Errors
    /// What is wrong still.
    fn reset(&mut self) -> Result<(), Fault>;
}
