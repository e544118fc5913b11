//! `libnvcomp`, opened at run time. Its batched functions have the same form for all codecs. The
//! structures and types are those of nvCOMP 5.3 and 6.0. The two versions differ in the two
//! functions that return the size of the temporary memory: `...GetTempSizeAsync` became
//! `...GetTempSize` with a stream.

#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use outrigger_format::{Codec, CodecSpec};

use crate::accelerator::Fault;
use crate::loader;

/// A CUDA stream.
pub(super) type Stream = *mut c_void;

/// Options of a codec, to compress or to decompress: 64 bytes, passed by value. Fields that are not
/// set are zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Options([u32; 16]);

impl Options {
    /// The nearest equivalent of a level.
    pub(super) fn compressing(spec: CodecSpec) -> Self {
        let mut options = Self::default();
        if matches!(spec.codec, Codec::Gzip | Codec::Deflate) {
            // `algorithm`: 1 is quick, 2 beats zlib's level 1, 4 beats its level 6, 5 is the best.
            options.0[0] = match spec.level {
                ..=2 => 1,
                3..=5 => 2,
                6..=9 => 4,
                _ => 5,
            };
        }
        options
    }

    /// Decompresses by CUDA kernels. The decompression engine of newer GPUs would need memory
    /// allocated for it.
    pub(super) fn decompressing() -> Self {
        let mut options = Self::default();
        options.0[0] = 2;
        options
    }
}

type TempSize5 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize) -> c_int;
type TempSize6 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize, Stream) -> c_int;
type MaxOutput = unsafe extern "C" fn(usize, Options, *mut usize) -> c_int;
type Compress = unsafe extern "C" fn(
    u64, // inputs
    u64, // their lengths
    usize,
    usize,
    u64, // temporary memory
    usize,
    u64, // outputs
    u64, // their lengths
    Options,
    u64, // statuses
    Stream,
) -> c_int;
type Decompress = unsafe extern "C" fn(
    u64, // inputs
    u64, // their lengths
    u64, // room of the outputs
    u64, // their lengths
    usize,
    u64, // temporary memory
    usize,
    u64, // outputs
    Options,
    u64, // statuses
    Stream,
) -> c_int;
type GetProperties = unsafe extern "C" fn(*mut [u32; 2]) -> c_int;

#[derive(Clone, Copy)]
enum TempSize {
    Five(TempSize5),
    Six(TempSize6),
}

/// The functions of one codec.
struct Functions {
    codec: Codec,
    compress_temp: TempSize,
    max_output: MaxOutput,
    compress: Compress,
    decompress_temp: TempSize,
    decompress: Decompress,
}

/// The library. It is never closed, because kernels may be running.
pub(super) struct Library {
    functions: Vec<Functions>,
    version: u32,
    _opened: ManuallyDrop<libloading::Library>,
}

const NAMES: [&str; 3] = ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so"];

/// A batch in device memory: addresses of lists with `count` entries each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub count: usize,
    /// The longest chunk before compression.
    pub longest: usize,
    pub inputs: u64,
    pub input_lens: u64,
    pub outputs: u64,
    pub output_lens: u64,
    /// The room of the outputs, only to decompress.
    pub output_rooms: u64,
    pub statuses: u64,
    pub temp: u64,
    pub temp_bytes: usize,
}

impl Library {
    /// Opens the library at `path`, or the system's.
    ///
    /// # Errors
    /// What is missing, for users.
    pub(super) fn open(path: Option<&OsStr>) -> Result<Arc<Self>, String> {
        // SAFETY: the initialisers are NVIDIA's, or those of a library that the user has named.
        let opened = unsafe { loader::open(path, &NAMES) };
        let (opened, _) = opened.map_err(|why| format!("no nvCOMP: {why}"))?;
        Self::with_functions(opened).map(Arc::new)
    }

    fn with_functions(opened: libloading::Library) -> Result<Self, String> {
        fn find<T: Copy>(opened: &libloading::Library, name: &str) -> Result<T, String> {
            // SAFETY: every symbol is requested with the type that nvCOMP's headers declare.
            // Pointers to device memory are addresses.
            unsafe { loader::find(opened, name) }
                .ok_or_else(|| format!("an nvCOMP without {name}: 5.3 or 6.0 is needed"))
        }
        let temp = |prefix: &str| match find::<TempSize6>(&opened, &format!("{prefix}GetTempSize")) {
            Ok(six) => Ok(TempSize::Six(six)),
            Err(_) => find(&opened, &format!("{prefix}GetTempSizeAsync")).map(TempSize::Five),
        };
        let functions =
            [(Codec::Zstd, "Zstd"), (Codec::Gzip, "Gzip"), (Codec::Deflate, "Deflate"), (Codec::Lz4, "LZ4")]
                .into_iter()
                .map(|(codec, name)| {
                    let compress = format!("nvcompBatched{name}Compress");
                    let decompress = format!("nvcompBatched{name}Decompress");
                    Ok(Functions {
                        codec,
                        compress_temp: temp(&compress)?,
                        max_output: find(&opened, &format!("{compress}GetMaxOutputChunkSize"))?,
                        compress: find(&opened, &format!("{compress}Async"))?,
                        decompress_temp: temp(&decompress)?,
                        decompress: find(&opened, &format!("{decompress}Async"))?,
                    })
                })
                .collect::<Result<_, String>>()?;
        let properties: GetProperties = find(&opened, "nvcompGetProperties")?;
        let mut found = [0; 2];
        // SAFETY: `nvcompProperties_t` has two such numbers.
        unsafe { properties(&raw mut found) };
        let version = found[0];
        if !(5300..7000).contains(&version) {
            return Err(format!("nvCOMP {}: 5.3 or 6 is needed", text_of(version)));
        }
        Ok(Self { functions, version, _opened: ManuallyDrop::new(opened) })
    }

    /// Its version, for users.
    pub(super) fn version(&self) -> String {
        format!("nvCOMP {}", text_of(self.version))
    }

    fn of(&self, codec: Codec) -> Result<&Functions, Fault> {
        self.functions.iter().find(|functions| functions.codec == codec).ok_or(Fault::Unsupported)
    }

    /// The most bytes of a compressed chunk of `longest` bytes.
    pub(super) fn max_output(&self, spec: CodecSpec, longest: usize) -> Result<usize, Fault> {
        let mut bytes = 0;
        // SAFETY: `bytes` is where the answer goes.
        check(unsafe {
            (self.of(spec.codec)?.max_output)(longest, Options::compressing(spec), &raw mut bytes)
        })?;
        Ok(bytes)
    }

    /// The size of the temporary memory to compress.
    pub(super) fn compress_temp(
        &self,
        spec: CodecSpec,
        count: usize,
        longest: usize,
        total: usize,
        stream: Stream,
    ) -> Result<usize, Fault> {
        let functions = self.of(spec.codec)?;
        temp_size(functions.compress_temp, Options::compressing(spec), count, longest, total, stream)
    }

    /// The size of the temporary memory to decompress.
    pub(super) fn decompress_temp(
        &self,
        codec: Codec,
        count: usize,
        longest: usize,
        total: usize,
        stream: Stream,
    ) -> Result<usize, Fault> {
        let functions = self.of(codec)?;
        temp_size(functions.decompress_temp, Options::decompressing(), count, longest, total, stream)
    }

    /// Launches a compression.
    ///
    /// # Safety
    /// The batch's lists and the memory that they point to are device memory of the given lengths.
    /// Each output has room for [`Library::max_output`]. All of it stays until the stream is done.
    pub(super) unsafe fn compress(
        &self,
        spec: CodecSpec,
        batch: &Batch,
        stream: Stream,
    ) -> Result<(), Fault> {
        let compress = self.of(spec.codec)?.compress;
        // SAFETY: as the caller has promised.
        check(unsafe {
            compress(
                batch.inputs,
                batch.input_lens,
                batch.longest,
                batch.count,
                batch.temp,
                batch.temp_bytes,
                batch.outputs,
                batch.output_lens,
                Options::compressing(spec),
                batch.statuses,
                stream,
            )
        })
    }

    /// Launches a decompression.
    ///
    /// # Safety
    /// As for compression, with the room that the batch says. nvCOMP does not promise to survive
    /// inputs that no encoder wrote.
    pub(super) unsafe fn decompress(&self, codec: Codec, batch: &Batch, stream: Stream) -> Result<(), Fault> {
        let decompress = self.of(codec)?.decompress;
        // SAFETY: as the caller has promised.
        check(unsafe {
            decompress(
                batch.inputs,
                batch.input_lens,
                batch.output_rooms,
                batch.output_lens,
                batch.count,
                batch.temp,
                batch.temp_bytes,
                batch.outputs,
                Options::decompressing(),
                batch.statuses,
                stream,
            )
        })
    }
}

fn temp_size(
    function: TempSize,
    options: Options,
    count: usize,
    longest: usize,
    total: usize,
    stream: Stream,
) -> Result<usize, Fault> {
    let mut bytes = 0;
    // SAFETY: `bytes` is where the answer goes.
    check(unsafe {
        match function {
            TempSize::Five(ask) => ask(count, longest, options, &raw mut bytes, total),
            TempSize::Six(ask) => ask(count, longest, options, &raw mut bytes, total, stream),
        }
    })?;
    Ok(bytes)
}

fn text_of(version: u32) -> String {
    format!("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100)
}

/// The meaning of a status.
pub(super) fn check(status: c_int) -> Result<(), Fault> {
    let name = match status {
        0 => return Ok(()),
        10 => "nvcompErrorInvalidValue",
        11 | 18 | 21 => return Err(Fault::Unsupported),
        12 => "nvcompErrorCannotDecompress",
        13 => "nvcompErrorBadChecksum",
        14 => "nvcompErrorCannotVerifyChecksums",
        15 => "nvcompErrorOutputBufferTooSmall",
        16 => "nvcompErrorWrongHeaderLength",
        17 => "nvcompErrorAlignment",
        19 => "nvcompErrorCannotCompress",
        20 => "nvcompErrorWrongInputLength",
        // A kernel has failed, so the context is useless. After a failure inside nvCOMP, the state
        // is unknown.
        1000 => return Err(Fault::Lost("nvcompErrorCudaError".into())),
        10_000 => return Err(Fault::Lost("nvcompErrorInternal".into())),
        other => return Err(Fault::Failed(format!("nvCOMP's status {other}").into())),
    };
    Err(Fault::Failed(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_fault() {
        assert_eq!(check(0), Ok(()));
        assert!([11, 18, 21].map(check).iter().all(|result| *result == Err(Fault::Unsupported)));
        assert!([1000, 10_000].map(check).iter().all(|result| result.as_ref().is_err_and(Fault::is_grave)));
        for status in [10, 12, 13, 14, 15, 16, 17, 19, 20, 22, 23, 24, 999] {
            assert!(matches!(check(status), Err(Fault::Failed(_))), "{status}");
        }
    }

    #[test]
    fn options_are_as_long_as_the_headers_say() {
        assert_eq!((size_of::<Options>(), align_of::<Options>()), (64, 4));
        let gzip = |level| Options::compressing(CodecSpec { codec: Codec::Gzip, level }).0[0];
        assert_eq!([1, 3, 6, 9, 12].map(gzip), [1, 2, 4, 4, 5]);
    }
}
