//! The stand-in library: compiled once, a copy of its own for each test, and a handle to what it does.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::qat::QatOptions;
use outrigger_offload::{Compressor, Decompressor, worst_case};

/// Compiled when it is first needed.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{}.so", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/qat/standin.c");
    let flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"];
    let status = Command::new(compiler).args(flags).arg(&out).arg(source).status();
    assert!(status.expect("a C compiler").success(), "the stand-in does not compile");
    out
});

type SetFunction = unsafe extern "C" fn(*const c_char, c_long);
type GetFunction = unsafe extern "C" fn(*const c_char) -> c_long;
type CodecFunction = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, usize, *mut u8, usize) -> i64;
type PrepareFunction = unsafe extern "C" fn(c_int, *const u8, usize, *const u8, usize);

/// A card that is not there.
pub struct StandIn {
    path: PathBuf,
    library: libloading::Library,
}

impl StandIn {
    /// One that compresses truly, with four instances.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Another file is another library, with a state of its own.
        let path = BUILT.with_extension(format!("{number}.so"));
        std::fs::copy(&*BUILT, &path).expect("a copy");
        // SAFETY: it has no initialisers.
        let library = unsafe { libloading::Library::new(&path) }.expect("it opens");
        // SAFETY: declared so in standin.c.
        unsafe {
            let set =
                library.get::<unsafe extern "C" fn(CodecFunction)>(b"standin_codec").expect("a function");
            set(codec);
        }
        Self { path, library }
    }

    /// How a device on it is opened.
    pub fn options(&self, sessions: usize) -> QatOptions {
        QatOptions { library: Some(self.path.clone().into()), sessions }
    }

    /// Changes what standin.c has under this name.
    pub fn set(&self, name: &str, to: i64) {
        let name = CString::new(name).expect("a name");
        // SAFETY: declared so in standin.c.
        unsafe {
            let set = self.library.get::<SetFunction>(b"standin_set").expect("a function");
            set(name.as_ptr(), to as c_long);
        }
    }

    /// Reads it.
    pub fn get(&self, name: &str) -> i64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: declared so in standin.c.
        unsafe {
            let get = self.library.get::<GetFunction>(b"standin_get").expect("a function");
            get(name.as_ptr())
        }
    }

    /// From now on, `raw` gives this gzip member, without anything being computed.
    pub fn prepare_gzip(&self, raw: &[u8], result: &[u8]) {
        // SAFETY: declared so in standin.c, which copies the result.
        unsafe {
            let prepare = self.library.get::<PrepareFunction>(b"standin_prepare").expect("a function");
            prepare(1, raw.as_ptr(), raw.len(), result.as_ptr(), result.len());
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It stays open: threads may be in it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the card computes.
unsafe extern "C" fn codec(
    format: c_int,
    level: c_int,
    decompress: c_int,
    source: *const u8,
    len: usize,
    target: *mut u8,
    room: usize,
) -> i64 {
    thread_local! {
        static TOOLS: RefCell<(Compressor, Decompressor, Vec<u8>)> = RefCell::default();
    }
    // SAFETY: both buffers are as long as the caller says, and do not overlap.
    let (source, target) =
        unsafe { (std::slice::from_raw_parts(source, len), std::slice::from_raw_parts_mut(target, room)) };
    let (codec, level) = match format {
        1 => (Codec::Gzip, level as i8),
        3 => (Codec::Deflate, level as i8),
        _ => (Codec::Lz4, 0),
    };
    TOOLS.with_borrow_mut(|(compressor, decompressor, out)| {
        if decompress != 0 {
            return match decompressor.decompress_into(codec, source, target) {
                Ok(()) => room as i64,
                Err(_) => -4,
            };
        }
        let spec = CodecSpec { codec, level };
        if !compressor.compress_within(spec, source, worst_case(codec, len), out) || out.len() > room {
            return -3;
        }
        target[..out.len()].copy_from_slice(out);
        out.len() as i64
    })
}
