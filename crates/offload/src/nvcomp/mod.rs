//! Compression on NVIDIA GPUs by nvCOMP (`libnvcomp`), which users provide, and which is opened at
//! run time.
//!
//! ```text
//!   pool (worker_pool.rs): threads, each with a stream (worker.rs) ── frames that wait are one batch ──▶ libnvcomp (library.rs)
//! ```
//!
//! A GPU compresses a thousand frames as slowly as one. So a worker takes all waiting frames of one
//! codec and level together, up to [`NvcompOptions::batch_max`]. The results are gzip members, raw
//! deflate streams, Zstandard frames and LZ4 blocks, which the processor's codecs can read. The
//! runtime checks a sample of them by decompressing.
//!
//! Decompression is off by default. nvCOMP's behaviour is undefined for inputs that no encoder
//! wrote, and a checksum proves only that the input is what somebody wrote. In this process, the
//! memory of other frames would be at risk.
//!
//! Functions and structures are those of nvCOMP 5.3 and 6.0. Other versions are refused. This code
//! has run with nvCOMP 6.0 on one H100 (docs/evaluation/records/2026-11-27-gpu-h100.md). The tests
//! use a stand-in that has the same ABI and works in this machine's memory.

mod library;
mod memory;
mod worker;

use std::ffi::OsString;
use std::sync::Arc;
use std::task::Waker;

use outrigger_format::Codec;

use self::library::Library;
use self::memory::{Gpu, Host, Place};
use self::worker::NvcompWorker;
use crate::accelerator::{Accelerator, Completion, Fault, Identity, Submission};
use crate::work::{Request, Work};
use crate::worker_pool::{Spawn, Worker, WorkerPool};

/// Where the library's device memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// On this GPU.
    Gpu(usize),
    /// In this machine, for a library that stands in for nvCOMP.
    Host,
}

/// Options of the device.
#[derive(Clone, Debug)]
pub struct NvcompOptions {
    /// The library. By default the system's `libnvcomp.so.6` or `.so.5`.
    pub library: Option<OsString>,
    /// The memory that it works in.
    pub memory: Memory,
    /// Streams. While one copies, another computes.
    pub streams: usize,
    /// The most frames in a batch.
    pub batch_max: usize,
    /// True if it decompresses too.
    pub decompress: bool,
}

impl NvcompOptions {
    /// The library that `OUTRIGGER_NVCOMP` names, or the system's, on GPU `ordinal`, with two
    /// streams and batches of 64 frames, for compression only.
    pub fn of_gpu(ordinal: usize) -> Self {
        Self {
            library: std::env::var_os("OUTRIGGER_NVCOMP"),
            memory: Memory::Gpu(ordinal),
            streams: 2,
            batch_max: 64,
            decompress: false,
        }
    }
}

/// A GPU that compresses. ([`crate::cuda::CudaDevice`] does the other work of a GPU.)
///
/// ```
/// use outrigger_offload::nvcomp::{NvcompDevice, NvcompOptions};
/// let options = NvcompOptions { library: Some("libnone.so".into()), ..NvcompOptions::of_gpu(0) };
/// assert!(NvcompDevice::open(&options).is_err_and(|why| why.contains("libnone.so")));
/// ```
pub struct NvcompDevice {
    identity: Identity,
    options: NvcompOptions,
    pool: WorkerPool,
}

/// The longest frame, for which devices' buffers are made.
const MAX_BYTES: usize = 16 << 20;

impl NvcompDevice {
    /// Opens the library, and looks for the GPU.
    ///
    /// # Errors
    /// The reason why it cannot be used, for users.
    pub fn open(options: &NvcompOptions) -> Result<Self, String> {
        let library = Library::open(options.library.as_deref())?;
        let identity = match options.memory {
            Memory::Gpu(ordinal) => {
                let gpu =
                    crate::cuda::identity(ordinal).map_err(|fault| format!("nvCOMP has no GPU: {fault}"))?;
                let driver = format!("{}, {}", library.version(), gpu.driver);
                Identity { name: format!("nvcomp:{ordinal}"), driver, ..gpu }
            }
            Memory::Host => Identity {
                name: "nvcomp:host".into(),
                model: "a stand-in for nvCOMP".into(),
                driver: library.version(),
                memory_bytes: 0,
                zero_copy: false,
            },
        };
        let memory = options.memory;
        let spawn: Spawn = Arc::new(move || -> Result<Box<dyn Worker>, Fault> {
            let place = match memory {
                Memory::Gpu(ordinal) => Place::Gpu(Gpu::new(ordinal)?),
                Memory::Host => Place::Host(Host::default()),
            };
            Ok(Box::new(NvcompWorker { library: Arc::clone(&library), place }))
        });
        let pool = WorkerPool::new("offload-nvcomp", options.streams.max(1), options.batch_max.max(1), spawn);
        Ok(Self { identity, options: options.clone(), pool })
    }
}

fn is_known(codec: Codec) -> bool {
    matches!(codec, Codec::Zstd | Codec::Gzip | Codec::Deflate | Codec::Lz4)
}

impl Accelerator for NvcompDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        // A batch for each stream, and one that fills meanwhile.
        (self.options.streams.max(1) + 1) * self.options.batch_max.max(1)
    }

    fn attach(&mut self, waker: Waker) -> Result<(), Fault> {
        self.pool.set_waker(waker);
        self.pool.start()
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        let decompress = self.options.decompress;
        Arc::new(move |work| match work.request {
            Request::Compress { spec } => is_known(spec.codec) && (1..=MAX_BYTES).contains(&work.input_len()),
            Request::Decompress { codec, raw_len } => {
                decompress && is_known(codec) && work.input_len() > 0 && (1..=MAX_BYTES).contains(&raw_len)
            }
            _ => false,
        })
    }

    fn submit(&mut self, submission: Submission) {
        self.pool.submit(submission);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.pool.poll(done);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        if self.pool.has_workers() { Ok(()) } else { Err(Fault::Lost("no stream".into())) }
    }

    fn reset(&mut self) -> Result<(), Fault> {
        self.pool.start()
    }
}
