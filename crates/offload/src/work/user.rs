//! Operations of users: a function for the processor, and optionally a kernel for devices. They get
//! the same queues, buffers, overlap, placement and handling of failures as the built-in ones.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// `(parameters, data, out)`: appends to `out`, which is empty. An error means that the *data* is
/// bad, and is the task's result.
pub type CpuFunction = dyn Fn(&[u8], &[u8], &mut Vec<u8>) -> Result<(), String> + Send + Sync;

/// Maps `(parameters, length of the data)` to the most bytes of output.
pub type OutputLen = dyn Fn(&[u8], usize) -> usize + Send + Sync;

/// The source of a kernel's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelCode {
    /// CUDA C++, which NVRTC compiles if it is installed.
    Cuda(String),
    /// PTX, for every driver that knows its version.
    Ptx(String),
}

/// A kernel with the same result as the processor's function. Its signature is
///
/// ```c
/// extern "C" __global__ void NAME(const unsigned char *data, unsigned long long data_len,
///                                 const unsigned char *parameters, unsigned long long parameters_len,
///                                 unsigned char *out, unsigned long long out_len);
/// ```
///
/// It gets at least one thread for every `bytes_per_thread` bytes of data, in one dimension. All of
/// `out_len` ([`UserOperation::output_len`]) is copied back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The code.
    pub code: KernelCode,
    /// The function's name in the code.
    pub name: String,
    /// Threads of a block, 32 to 1024.
    pub block_threads: u32,
    /// The bytes of data for each thread, at least 1.
    pub bytes_per_thread: usize,
}

/// An operation that a user registered. Two live operations of the same name must mean the same,
/// because calibrations are kept under the name.
pub struct UserOperation {
    id: u32,
    name: String,
    cpu: Box<CpuFunction>,
    output_len: Box<OutputLen>,
    kernel: Option<Kernel>,
    brief: bool,
}

/// The names of all operations ever made. An id is an index in it.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl UserOperation {
    /// An operation that only the processor supports so far.
    ///
    /// ```
    /// use outrigger_offload::work::UserOperation;
    /// let sum = UserOperation::new(
    ///     "byte-sum",
    ///     |_, data, out| {
    ///         out.extend(data.iter().map(|&byte| u64::from(byte)).sum::<u64>().to_le_bytes());
    ///         Ok(())
    ///     },
    ///     |_, _| 8,
    /// );
    /// assert_eq!(sum.name(), "byte-sum");
    /// ```
    pub fn new(
        name: impl Into<String>,
        cpu: impl Fn(&[u8], &[u8], &mut Vec<u8>) -> Result<(), String> + Send + Sync + 'static,
        output_len: impl Fn(&[u8], usize) -> usize + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let id = names.iter().position(|known| *known == name).unwrap_or(names.len());
        if id == names.len() {
            names.push(name.clone());
        }
        Self {
            id: id as u32,
            name,
            cpu: Box::new(cpu),
            output_len: Box::new(output_len),
            kernel: None,
            brief: false,
        }
    }

    /// Adds a kernel for CUDA devices.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Self { kernel: Some(kernel), ..self }
    }

    /// Declares that its function never blocks and takes no lock that a submitter may hold. The
    /// submitting thread may then run it
    /// ([`Policy::inline_max`](crate::placement::Policy::inline_max)).
    #[must_use]
    pub fn brief(mut self) -> Self {
        self.set_brief();
        self
    }

    /// Like [`UserOperation::brief`].
    pub fn set_brief(&mut self) {
        self.brief = true;
    }

    /// True if it is [brief](UserOperation::brief).
    pub fn is_brief(&self) -> bool {
        self.brief
    }

    /// The operation for a [`super::Request::User`].
    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// The id of its name in this process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its kernel.
    pub fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// The most bytes of output.
    pub fn output_len(&self, parameters: &[u8], data_len: usize) -> usize {
        (self.output_len)(parameters, data_len)
    }

    /// Runs the function on the processor.
    ///
    /// # Errors
    /// The function's error about the data.
    pub fn run(&self, parameters: &[u8], data: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        (self.cpu)(parameters, data, out)
    }

    /// The name of the operations with this id ([`UserOperation::id`]).
    pub(crate) fn name_of(id: u32) -> String {
        let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(id as usize).cloned().unwrap_or_default()
    }
}

impl fmt::Debug for UserOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOperation").field("name", &self.name).finish_non_exhaustive()
    }
}
