//! Intel QAT by QATzip (`libqatzip`), which is opened at run time.
//!
//! ```text
//!   pool (worker_pool.rs): threads, each with sessions of its own (worker.rs) ──▶ libqatzip (library.rs) ──▶ instances of the cards
//! ```
//!
//! QATzip gives a call its session's last instance, or the next free one. So with as many threads
//! as there are instances, each thread keeps one, and the tasks rotate. QATzip's own fallback to
//! software is off. If the card fails at a task, the runtime has the processor do it, and reports
//! that.
//!
//! | codec | compress | decompress |
//! | --- | --- | --- |
//! | gzip, deflate, levels 1 to 9 | 1 KiB to 512 KiB: one request, hence one gzip member or one stream | the results of such sizes |
//! | lz4 | 1 KiB to 64 KiB: one block, taken out of the LZ4 frame that QATzip writes | no: it needs a frame with the content's checksum |
//! | zstd | no: the card only finds matches (LZ4s), and callers would have to bring the software that makes Zstandard of them | no |
//!
//! The structures are those of `qatzip.h` of QATzip 1.3.1 (API 2.5). A library with defaults at
//! other offsets is refused. This code has not run on a card yet. It was tested with a stand-in
//! that has the same ABI, and with the real library without a card (`library/real.rs`).

mod abi;
mod library;
mod lz4;
mod status;
mod worker;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use outrigger_format::Codec;

use self::library::Library;
use self::worker::QatWorker;
use crate::accelerator::{Accelerator, Completion, Fault, Identity, Submission};
use crate::device::HostMemory;
use crate::work::{Request, Work};
use crate::worker_pool::{Spawn, Worker, WorkerPool};

/// QATzip computes some shorter inputs in software, regardless of its settings.
const MIN_BYTES: usize = 1 << 10;
/// The most bytes of one request, and so of one stream.
const MAX_BYTES: usize = abi::HW_BUFF_MAX as usize;
/// The most bytes of an LZ4 block that QATzip writes.
const LZ4_MAX_BYTES: usize = 64 << 10;
/// With drivers of older cards, level 9 is software.
const LEVEL_MAX: u8 = 8;
/// The processor does higher levels of gzip and deflate, as a card has no counterpart.
const SPEC_LEVEL_MAX: i8 = 9;

/// Options of the device.
#[derive(Clone, Debug)]
pub struct QatOptions {
    /// The library. By default the system's `libqatzip.so.3`.
    pub library: Option<OsString>,
    /// Threads with sessions. Each works on one task at a time, and an instance serves one thread
    /// at a time. A thread sleeps while the card works.
    pub sessions: usize,
}

impl Default for QatOptions {
    /// The library that `OUTRIGGER_QATZIP` names, or the system's, with eight sessions.
    fn default() -> Self {
        Self { library: std::env::var_os("OUTRIGGER_QATZIP"), sessions: 8 }
    }
}

/// All QAT cards of this machine as one device.
///
/// ```
/// use outrigger_offload::qat::{QatDevice, QatOptions};
/// let options = QatOptions { library: Some("libnone.so".into()), ..QatOptions::default() };
/// assert!(QatDevice::open(&options).is_err_and(|why| why.contains("libnone.so")));
/// ```
pub struct QatDevice {
    identity: Identity,
    library: Arc<Library>,
    sessions: usize,
    /// Set when the first session was set up.
    does_lz4: Arc<AtomicBool>,
    pool: WorkerPool,
}

impl QatDevice {
    /// Opens the library, and asks it for hardware.
    ///
    /// # Errors
    /// The reason why there is none, for users.
    pub fn open(options: &QatOptions) -> Result<Self, String> {
        let library = Library::open(options.library.as_deref())?;
        library.start().map_err(|fault| library::why(&fault))?;
        let file = library.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let identity = Identity {
            name: "qat:0".into(),
            model: "Intel QAT".into(),
            driver: file,
            memory_bytes: 0,
            zero_copy: true,
        };
        let does_lz4 = Arc::new(AtomicBool::new(false));
        let (spawned, tells) = (Arc::clone(&library), Arc::clone(&does_lz4));
        let spawn: Spawn = Arc::new(move || {
            QatWorker::new(&spawned, &tells).map(|worker| Box::new(worker) as Box<dyn Worker>)
        });
        let sessions = options.sessions.max(1);
        let pool = WorkerPool::new("offload-qat", sessions, 1, spawn);
        Ok(Self { identity, library, sessions, does_lz4, pool })
    }
}

/// Room that suffices for the compressed form of `len` bytes. QATzip's own buffers have 9/8 and 1
/// KiB.
fn room_for(len: usize) -> usize {
    len + len / 8 + (1 << 10)
}

/// True if the card supports this task.
fn can(work: &Work, does_lz4: &AtomicBool) -> bool {
    let len = work.input_len();
    match work.request {
        Request::Compress { spec } => match spec.codec {
            Codec::Gzip | Codec::Deflate => {
                (MIN_BYTES..=MAX_BYTES).contains(&len) && spec.level <= SPEC_LEVEL_MAX
            }
            Codec::Lz4 => (MIN_BYTES..=LZ4_MAX_BYTES).contains(&len) && does_lz4.load(Ordering::Relaxed),
            _ => false,
        },
        Request::Decompress { codec, raw_len } => {
            matches!(codec, Codec::Gzip | Codec::Deflate) && len >= MIN_BYTES && raw_len <= MAX_BYTES
        }
        _ => false,
    }
}

impl Accelerator for QatDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        // For each thread, one task in work and one that waits, so that no thread waits for the
        // manager.
        2 * self.sessions
    }

    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        Some(Arc::clone(&self.library) as Arc<dyn HostMemory>)
    }

    fn attach(&mut self, waker: Waker) -> Result<(), Fault> {
        self.pool.set_waker(waker);
        self.pool.start()
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        let does_lz4 = Arc::clone(&self.does_lz4);
        Arc::new(move |work| can(work, &does_lz4))
    }

    fn output_room(&self, work: &Work) -> usize {
        match work.request {
            Request::Compress { .. } => room_for(work.input_len()) + (1 << 10),
            _ => work.output_len_max(),
        }
    }

    fn submit(&mut self, submission: Submission) {
        self.pool.submit(submission);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.pool.poll(done);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        if self.pool.has_workers() { self.library.start() } else { Err(Fault::Lost("no session".into())) }
    }

    fn reset(&mut self) -> Result<(), Fault> {
        self.library.start()?;
        self.pool.start()
    }
}
