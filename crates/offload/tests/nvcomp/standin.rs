//! The stand-in library: compiled once for each version, a copy of its own for each test, and a handle to what it does.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_format::{Codec, CodecSpec};
use outrigger_offload::nvcomp::{Memory, NvcompOptions};
use outrigger_offload::{Compressor, Decompressor, worst_case};

static SIX: LazyLock<PathBuf> = LazyLock::new(|| built("6", &[]));
static FIVE: LazyLock<PathBuf> = LazyLock::new(|| built("5", &["-DFIVE"]));

fn built(version: &str, more: &[&str]) -> PathBuf {
    let name = format!("nvcomp-{version}-{}.so", std::process::id());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvcomp/standin.c");
    let flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"];
    let mut command = Command::new(compiler);
    command.args(flags).args(more).arg("-o").arg(&out).arg(source);
    assert!(command.status().expect("a C compiler").success(), "the stand-in does not compile");
    out
}

type SetFunction = unsafe extern "C" fn(*const c_char, c_long);
type GetFunction = unsafe extern "C" fn(*const c_char) -> c_long;
type CodecFunction = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, usize, *mut u8, usize) -> i64;

/// A GPU that is not there.
pub struct StandIn {
    path: PathBuf,
    library: libloading::Library,
}

impl StandIn {
    /// nvCOMP 6.
    pub fn new() -> Self {
        Self::copy_of(&SIX)
    }

    /// nvCOMP 5.3.
    pub fn five() -> Self {
        Self::copy_of(&FIVE)
    }

    fn copy_of(built: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Another file is another library, with a state of its own.
        let path = built.with_extension(format!("{number}.so"));
        std::fs::copy(built, &path).expect("a copy");
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
    pub fn options(&self) -> NvcompOptions {
        NvcompOptions {
            library: Some(self.path.clone().into()),
            memory: Memory::Host,
            decompress: true,
            ..NvcompOptions::of_gpu(0)
        }
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
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the GPU computes.
unsafe extern "C" fn codec(
    codec: c_int,
    algorithm: c_int,
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
    let codec = Codec::from_byte(codec as u8).expect("a codec");
    TOOLS.with_borrow_mut(|(compressor, decompressor, out)| {
        if decompress != 0 {
            return match decompressor.decompress_into(codec, source, target) {
                Ok(()) => room as i64,
                Err(_) => -1,
            };
        }
        let level = if matches!(codec, Codec::Gzip | Codec::Deflate) { algorithm.max(1) as i8 } else { 1 };
        let spec = CodecSpec { codec, level: if codec == Codec::Lz4 { 0 } else { level } };
        if !compressor.compress_within(spec, source, worst_case(codec, len), out) || out.len() > room {
            return -1;
        }
        target[..out.len()].copy_from_slice(out);
        out.len() as i64
    })
}
