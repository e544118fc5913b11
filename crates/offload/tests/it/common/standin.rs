//! A stand-in library. It is compiled at first use. Each test gets its own copy, and a handle that
//! controls it (`standin.h`).

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CString, OsString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_format::CodecSpec;
use outrigger_offload::{Compressor, Decompressor, worst_case};

/// Compiles `source`, a path in the package `outrigger-offload`, and returns the path of the
/// library.
pub fn built(name: &str, source: &str, more: &[&str]) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../offload").join(source);
    let flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"];
    let mut command = Command::new(compiler);
    command.args(flags).args(more).arg("-o").arg(&out).arg(source);
    assert!(command.status().expect("a C compiler").success(), "the stand-in does not compile");
    out
}

/// The computation of the device: codec, level, whether to decompress, source, target. Returns the
/// length, or a negative code.
pub type CodecFunction = unsafe extern "C" fn(c_int, c_int, c_int, *const u8, usize, *mut u8, usize) -> i64;

/// A copy of a library.
pub struct Copy {
    path: PathBuf,
    pub library: libloading::Library,
}

impl Copy {
    /// A copy of the library at `built`, which computes by `codec`.
    pub fn of(built: &Path, codec: CodecFunction) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Another file is another library, with its own state.
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

    /// The path of the copy.
    pub fn path(&self) -> OsString {
        self.path.clone().into()
    }

    /// Sets the number with this name in standin.c.
    pub fn set(&self, name: &str, to: i64) {
        let name = CString::new(name).expect("a name");
        // SAFETY: declared so in standin.h.
        unsafe {
            let set = self.library.get::<unsafe extern "C" fn(*const c_char, c_long)>(b"standin_set");
            set.expect("a function")(name.as_ptr(), to as c_long);
        }
    }

    /// Reads the number with this name.
    pub fn get(&self, name: &str) -> i64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: declared so in standin.h.
        unsafe {
            let get = self.library.get::<unsafe extern "C" fn(*const c_char) -> c_long>(b"standin_get");
            get.expect("a function")(name.as_ptr())
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // The library stays open, because threads may be in it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Compresses `source` by `spec`, or decompresses it, into `target`. Returns the code of the
/// failure, if any.
///
/// # Safety
/// `source` can be read for `len` bytes and `target` written for `room`; they do not overlap.
pub unsafe fn compute(
    spec: CodecSpec,
    decompress: bool,
    (source, len): (*const u8, usize),
    (target, room): (*mut u8, usize),
    (too_long, damaged): (i64, i64),
) -> i64 {
    thread_local! {
        static TOOLS: RefCell<(Compressor, Decompressor, Vec<u8>)> = RefCell::default();
    }
    // SAFETY: as above.
    let (source, target) =
        unsafe { (std::slice::from_raw_parts(source, len), std::slice::from_raw_parts_mut(target, room)) };
    TOOLS.with_borrow_mut(|(compressor, decompressor, out)| {
        if decompress {
            return match decompressor.decompress_into(spec.codec, source, target) {
                Ok(()) => room as i64,
                Err(_) => damaged,
            };
        }
        if !compressor.compress_within(spec, source, worst_case(spec.codec, len), out) || out.len() > room {
            return too_long;
        }
        target[..out.len()].copy_from_slice(out);
        out.len() as i64
    })
}
