//! `libqatzip`, opened at run time: its functions, sessions and memory. All `unsafe` code for QAT
//! is in this file.

#![allow(unsafe_code)]

#[cfg(test)]
mod real;

use std::ffi::{OsStr, c_uint};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{self, Common, Deflate};
use super::status::{self, name};
use crate::accelerator::Fault;
use crate::device::{HostMemory, HostRegion};
use crate::loader;

/// The library with the functions that are used. It is never closed, because it has threads of its
/// own.
pub(super) struct Library {
    path: PathBuf,
    init: abi::Init,
    defaults: abi::GetDefaultsDeflate,
    setup_deflate: abi::SetupDeflate,
    setup_lz4: abi::SetupLz4,
    compress: abi::CompressExt,
    decompress: abi::DecompressExt,
    max_compressed: abi::MaxCompressedLength,
    teardown: abi::Teardown,
    malloc: abi::Malloc,
    free: abi::Free,
    _opened: ManuallyDrop<libloading::Library>,
}

/// Names of the library. The first that exists is used.
const NAMES: [&str; 2] = ["libqatzip.so.3", "libqatzip.so"];

/// The session parameters that differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Setup {
    /// One gzip member.
    Gzip(u8),
    /// A raw deflate stream.
    Deflate(u8),
    /// One LZ4 frame.
    Lz4,
}

impl Library {
    /// Opens the library at `path`, or the system's.
    ///
    /// # Errors
    /// What is missing, for users.
    pub(super) fn open(path: Option<&OsStr>) -> Result<Arc<Self>, String> {
        // SAFETY: the initialisers are Intel's, or those of a library that the user has named.
        let opened = unsafe { loader::open(path, &NAMES) };
        let (opened, path) = opened.map_err(|why| format!("no QATzip: {why}"))?;
        Self::with_functions(opened, path).map(Arc::new)
    }

    fn with_functions(opened: libloading::Library, path: PathBuf) -> Result<Self, String> {
        fn find<T: Copy>(opened: &libloading::Library, symbol: &str) -> Result<T, String> {
            // SAFETY: every symbol is requested with the type that qatzip.h declares (`abi.rs`).
            unsafe { loader::find(opened, symbol) }
                .ok_or_else(|| format!("a QATzip without {symbol}: 1.0.9 or newer is needed"))
        }
        let library = Self {
            init: find(&opened, "qzInit")?,
            defaults: find(&opened, "qzGetDefaultsDeflate")?,
            setup_deflate: find(&opened, "qzSetupSessionDeflate")?,
            setup_lz4: find(&opened, "qzSetupSessionLZ4")?,
            compress: find(&opened, "qzCompressExt")?,
            decompress: find(&opened, "qzDecompressExt")?,
            max_compressed: find(&opened, "qzMaxCompressedLength")?,
            teardown: find(&opened, "qzTeardownSession")?,
            malloc: find(&opened, "qzMalloc")?,
            free: find(&opened, "qzFree")?,
            path,
            _opened: ManuallyDrop::new(opened),
        };
        if let Ok(set_level) = find::<abi::SetLogLevel>(&library._opened, "qzSetLogLevel") {
            // SAFETY: takes a number. Codes report everything that it would print.
            unsafe { set_level(abi::LOG_NONE) };
        }
        library.check_layout().map(|()| library)
    }

    /// Checks that the library has our layout of its parameters: the documented defaults must be at
    /// the expected offsets.
    fn check_layout(&self) -> Result<(), String> {
        let found = self.default_parameters().map_err(|fault| format!("QATzip has no defaults: {fault}"))?;
        let Deflate { common, huffman_hdr, data_fmt } = found;
        let expected = (abi::DIR_BOTH, 1, abi::DEFLATE, 64 << 10, abi::DYNAMIC_HDR, abi::DEFLATE_GZIP_EXT);
        let got = (
            common.direction,
            common.comp_lvl,
            common.comp_algorithm,
            common.hw_buff_sz,
            huffman_hdr,
            data_fmt,
        );
        if got == expected {
            Ok(())
        } else {
            Err(format!("a QATzip with another ABI: its defaults read as {found:?}"))
        }
    }

    fn default_parameters(&self) -> Result<Deflate, Fault> {
        // Several, so that there is room after the first, in case the library's structure is larger
        // than ours.
        let mut roomy = [Deflate::default(); 4];
        // SAFETY: the structure is that of qatzip.h, and there is room after it.
        let code = unsafe { (self.defaults)(roomy.as_mut_ptr()) };
        if code == status::OK { Ok(roomy[0]) } else { Err(status::fault(code)) }
    }

    /// The path where it was found.
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Starts the process's access to the hardware, without fallback to software.
    ///
    /// # Errors
    /// The code's fault. A code that reports a fallback to software is a fault here.
    pub(super) fn start(&self) -> Result<(), Fault> {
        let mut session = abi::Session::EMPTY;
        // SAFETY: an empty session, which the call may fill; nothing is kept of it (its `internal`
        // is set by set-up only).
        let code = unsafe { (self.init)(&raw mut session, 0) };
        match code {
            status::OK | status::DUPLICATE => Ok(()),
            code => Err(status::fault(code)),
        }
    }

    fn parameters(&self, setup: Setup) -> Result<Deflate, Fault> {
        let Deflate { common, .. } = self.default_parameters()?;
        let (algorithm, level, format) = match setup {
            Setup::Gzip(level) => (abi::DEFLATE, level, abi::DEFLATE_GZIP),
            Setup::Deflate(level) => (abi::DEFLATE, level, abi::DEFLATE_RAW),
            Setup::Lz4 => (abi::LZ4, 1, abi::DEFLATE_GZIP),
        };
        let common = Common {
            direction: abi::DIR_BOTH,
            comp_lvl: level.into(),
            comp_algorithm: algorithm,
            // A frame is one request, and only we create threads.
            max_forks: 0,
            sw_backup: 0,
            hw_buff_sz: abi::HW_BUFF_MAX,
            input_sz_thrshold: abi::THRESHOLD_MIN,
            polling_mode: abi::PERIODICAL_POLLING,
            is_sensitive_mode: 0,
            ..common
        };
        Ok(Deflate { common, huffman_hdr: abi::DYNAMIC_HDR, data_fmt: format })
    }
}

/// A session, for the thread that created it.
pub(super) struct Session {
    library: Arc<Library>,
    raw: Box<abi::Session>,
    /// Sessions stay on their thread.
    _thread: PhantomData<*const ()>,
}

/// The result of a call.
pub(super) struct Done {
    /// Bytes of input used.
    pub taken: usize,
    /// Bytes of output.
    pub made: usize,
}

impl Session {
    /// Sets up a session.
    ///
    /// # Errors
    /// The code's fault, even if a session in software would have been set up.
    pub(super) fn new(library: &Arc<Library>, setup: Setup) -> Result<Self, Fault> {
        library.start()?;
        let mut parameters = library.parameters(setup)?;
        match Self::set_up(library, setup, &mut parameters) {
            (session, status::OK | status::DUPLICATE) => Ok(session),
            (_, code) => Err(status::fault(code)),
        }
    }

    /// Returns the session with its code. It is torn down in any case.
    fn set_up(library: &Arc<Library>, setup: Setup, parameters: &mut Deflate) -> (Self, i32) {
        let mut raw = Box::new(abi::Session::EMPTY);
        let session = &raw mut *raw;
        // SAFETY: an empty session and parameters as qatzip.h has them. The session does not move:
        // it is boxed.
        let code = unsafe {
            match setup {
                Setup::Gzip(_) | Setup::Deflate(_) => (library.setup_deflate)(session, &raw mut *parameters),
                Setup::Lz4 => (library.setup_lz4)(session, &raw mut parameters.common),
            }
        };
        (Self { library: Arc::clone(library), raw, _thread: PhantomData }, code)
    }

    /// The room that always suffices for the compressed form of `len` bytes. 0 if the driver does
    /// not say.
    pub(super) fn room(&mut self, len: usize) -> usize {
        let Ok(len) = c_uint::try_from(len) else { return usize::MAX };
        // SAFETY: the session was set up.
        unsafe { (self.library.max_compressed)(len, &raw mut *self.raw) as usize }
    }

    /// Compresses all of `raw` into `out`. `None` if it does not fit.
    ///
    /// # Errors
    /// The code's fault.
    pub(super) fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> Result<Option<Done>, Fault> {
        let (mut taken, mut made, mut more) = (length(raw.len())?, length(out.len())?, 0);
        // SAFETY: the session was set up on this thread; both buffers are as long as is said.
        let code = unsafe {
            let (session, source, target) = (&raw mut *self.raw, raw.as_ptr(), out.as_mut_ptr());
            (self.library.compress)(session, source, &raw mut taken, target, &raw mut made, 1, &raw mut more)
        };
        if code == status::BUF_ERROR {
            return Ok(None);
        }
        done(code, more, taken, made, out.len()).map(Some)
    }

    /// Decompresses `stored` into `out`.
    ///
    /// # Errors
    /// The code's fault, also for data that the device takes for damaged.
    pub(super) fn decompress(&mut self, stored: &[u8], out: &mut [u8]) -> Result<Done, Fault> {
        let (mut taken, mut made, mut more) = (length(stored.len())?, length(out.len())?, 0);
        // SAFETY: as above.
        let code = unsafe {
            let (session, source, target) = (&raw mut *self.raw, stored.as_ptr(), out.as_mut_ptr());
            (self.library.decompress)(session, source, &raw mut taken, target, &raw mut made, &raw mut more)
        };
        done(code, more, taken, made, out.len())
    }
}

fn length(len: usize) -> Result<c_uint, Fault> {
    c_uint::try_from(len).map_err(|_| Fault::Unsupported)
}

fn done(code: i32, more: u64, taken: c_uint, made: c_uint, room: usize) -> Result<Done, Fault> {
    if code != status::OK {
        return Err(status::fault(code));
    }
    if more & abi::EXT_TIMEOUT != 0 {
        return Err(Fault::Lost("the hardware timed out".into()));
    }
    if more & abi::EXT_SOFTWARE != 0 {
        return Err(Fault::Failed("QATzip computed it in software".into()));
    }
    if made as usize > room {
        return Err(Fault::Lost(format!("{made} bytes are said to be in a buffer of {room}").into()));
    }
    Ok(Done { taken: taken as usize, made: made as usize })
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: set up on this thread, or the set-up failed, which the function handles. Its code
        // has no use.
        unsafe { (self.library.teardown)(&raw mut *self.raw) };
    }
}

impl HostMemory for Library {
    fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>> {
        Pinned::new(self, bytes).map(|region| Box::new(region) as Box<dyn HostRegion>)
    }
}

/// Memory that the card reads and writes in place.
struct Pinned {
    /// As QATzip returned it, aligned to 64.
    memory: NonNull<u8>,
    /// The offset of the region.
    offset: usize,
    bytes: usize,
    free: abi::Free,
}

const PAGE: usize = 4096;

// SAFETY: it owns its allocation, as a box would; any thread may free it.
unsafe impl Send for Pinned {}
// SAFETY: shared references only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn new(library: &Library, bytes: usize) -> Option<Self> {
        // SAFETY: a plain allocation.
        let memory = unsafe { (library.malloc)(bytes + PAGE, abi::ANY_NODE, abi::PINNED) };
        let memory = NonNull::new(memory.cast::<u8>())?;
        let offset = memory.as_ptr().align_offset(PAGE);
        // SAFETY: `bytes + PAGE` were allocated.
        unsafe { memory.as_ptr().add(offset).write_bytes(0, bytes) };
        Some(Self { memory, offset, bytes, free: library.free })
    }
}

impl HostRegion for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated, zeroed, and ours until it is dropped.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(self.offset), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(self.offset), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the same library, which is never closed.
        unsafe { (self.free)(self.memory.as_ptr().cast()) };
    }
}

/// The meaning of a fault, for users.
pub(super) fn why(fault: &Fault) -> String {
    match fault {
        Fault::Busy => format!("all instances are in use: {}", name(-103)),
        Fault::OutOfMemory => format!("no memory that the card reaches: {}", name(-104)),
        Fault::Lost(why) if why.contains("_NO_HW") => {
            format!("QATzip finds no QAT hardware that is up: {why}")
        }
        other => format!("QATzip does not start: {other}"),
    }
}
