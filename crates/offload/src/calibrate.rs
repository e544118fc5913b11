//! Calibration on request: every operation on every device, at one size in each decade, one task at
//! a time.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::boundary::GearMasks;
use outrigger_format::{ChunkerSpec, CodecSpec, Fingerprint, FingerprintKind};

use crate::Compressor;
use crate::op::{Digest, Stream, WindowFunction, WindowSpec};
use crate::placement::{Point, Stages};
use crate::runtime::{Draft, Failed, Runtime};
use crate::table::Table;
use crate::work::split::is_usually_worth_it;
use crate::work::{Class, Request};

/// An operation to measure, with data that is typical for it.
#[derive(Clone)]
pub struct Case {
    request: Asked,
    /// The size of the largest useful task of this kind.
    max: usize,
}

#[derive(Clone)]
enum Asked {
    HashMany(FingerprintKind),
    Compress(CodecSpec),
    Decompress(CodecSpec),
    Other(Request),
    /// Cut and fingerprinted. The flag says if chunks are looked up.
    Ingest(ChunkerSpec, FingerprintKind, bool),
    Lookup,
}

/// The largest tasks: of hashing, of lookups and windows, and of codecs (a frame).
const LARGE: usize = 128 << 20;
const MEDIUM: usize = 16 << 20;
const FRAME: usize = 2 << 20;

/// How thoroughly to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CalibrateOptions {
    /// The largest task, bytes.
    pub max_bytes: usize,
    /// The least number of tasks of one kind and size. The first one only warms up.
    pub repeats: u32,
    /// Tasks are repeated at least for this time.
    pub at_least: Duration,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self { max_bytes: 128 << 20, repeats: 4, at_least: Duration::from_millis(10) }
    }
}

/// One size in each decade from 4 KiB to `max`.
pub fn sizes(max: usize) -> impl Iterator<Item = usize> {
    (0..).map(|step| (4 << 10) << (3 * step)).take_while(move |&bytes| bytes <= max)
}

/// The operations of the store, and the papers' primitives.
pub fn builtin_cases() -> Vec<Case> {
    let codec = |text| CodecSpec::parse(text).expect("a codec");
    let window = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
    let ingest = |lookup| Asked::Ingest(ChunkerSpec::DEFAULT, FingerprintKind::Blake3, lookup);
    let mut all = vec![
        Asked::Other(scan()),
        Asked::HashMany(FingerprintKind::Blake3),
        Asked::HashMany(FingerprintKind::Sha256),
        ingest(false),
        ingest(true),
        Asked::Lookup,
        Asked::Other(Request::PmdHash { digest: Digest::Sha256 }),
        Asked::Other(Request::WindowHash { spec: window }),
    ];
    let codecs = ["lz4", "zstd:2", "gzip:6", "deflate:6"].map(codec);
    all.extend(codecs.map(Asked::Compress));
    all.extend(codecs.map(Asked::Decompress));
    all.into_iter().map(Case::of).collect()
}

fn scan() -> Request {
    Request::Scan { history: 0, masks: GearMasks::for_average(16 << 10) }
}

/// Words, of which a text has only a few.
const WORDS: [&[u8; 40]; 4] = [
    b"the height of the tide at the old harbou",
    b"a rope, two oars and a lantern; nothing ",
    b"came in with the morning and left by noo",
    b"counted, weighed, written down and paid ",
];

/// About half words and half noise, so that every codec makes it smaller. If a codec returned it
/// unchanged, the measurement would be one of copying.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for piece in bytes.chunks_mut(64) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let words = WORDS[(state >> 60) as usize & 3];
        for (at, byte) in piece.iter_mut().enumerate() {
            *byte = if at < 24 { state.rotate_left(at as u32 * 7) as u8 } else { words[at - 24] };
        }
    }
}

/// The fingerprint of this number. It is spread as evenly as real ones, and a lookup's time depends
/// only on that.
fn fingerprint(number: u64) -> Fingerprint {
    let mut fingerprint = Fingerprint([0; 32]);
    let mut state = number;
    for word in fingerprint.0.as_chunks_mut::<8>().0 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *word = (mixed ^ (mixed >> 31)).to_le_bytes();
    }
    fingerprint
}

/// Entries of the table for lookups: as many as a mount's hot table may have.
const KNOWN: u64 = 1 << 18;

/// A table that has every other fingerprint of the lookups.
fn table() -> Arc<Table> {
    static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| {
        let mut table = Table::with_capacity(KNOWN as usize);
        let entries: Vec<_> = (0..KNOWN).map(|number| (fingerprint(2 * number), number)).collect();
        table.insert_many(&entries).expect("there is room for all");
        Arc::new(table)
    });
    Arc::clone(&TABLE)
}

/// `md5:20/4/4`: function, window, step, bytes kept.
fn window(text: &str) -> Option<WindowSpec> {
    let (name, numbers) = text.split_once(':')?;
    let function = WindowFunction::ALL.into_iter().find(|function| function.name() == name)?;
    let mut numbers = numbers.split('/').map(|number| number.parse::<usize>().ok());
    let spec =
        WindowSpec { function, window: numbers.next()??, step: numbers.next()??, keep: numbers.next()?? };
    // The output is at most as long as the input.
    (spec.is_valid() && spec.keep <= spec.step).then_some(spec)
}

impl Case {
    fn of(request: Asked) -> Self {
        let max = match &request {
            Asked::Compress(_) | Asked::Decompress(_) => FRAME,
            // The output may have four bytes for four bytes of input.
            Asked::Lookup | Asked::Other(Request::WindowHash { .. }) => MEDIUM,
            _ => LARGE,
        };
        Self { request, max }
    }

    /// The operation of a class by its name, as [`Class`] prints it. `None` for other names, and
    /// for a user's operation.
    ///
    /// ```
    /// use outrigger_offload::calibrate::Case;
    /// assert_eq!(Case::parse("compress/zstd:7").unwrap().name(), "compress/zstd:7");
    /// assert!(Case::parse("dance").is_none());
    /// ```
    pub fn parse(name: &str) -> Option<Self> {
        let digest = |name: &str| Digest::ALL.into_iter().find(|digest| digest.name() == name);
        let (operation, rest) = name.split_once('/').unwrap_or((name, ""));
        let request = match operation {
            "scan" => Asked::Other(scan()),
            "lookup" => Asked::Lookup,
            "hash_many" => Asked::HashMany(FingerprintKind::parse(rest).ok()?),
            "compress" => Asked::Compress(CodecSpec::parse(rest).ok()?),
            "decompress" => Asked::Decompress(CodecSpec::parse(rest).ok()?),
            "pmd_hash" => {
                Asked::Other(Request::PmdHash { digest: digest(rest).filter(|digest| digest.has_pmd())? })
            }
            "window_hash" => Asked::Other(Request::WindowHash { spec: window(rest)? }),
            "ingest" => {
                let (rest, lookup) = match rest.strip_suffix("+lookup") {
                    Some(rest) => (rest, true),
                    None => (rest, false),
                };
                let (chunker, kind) = rest.rsplit_once('/')?;
                Asked::Ingest(ChunkerSpec::parse(chunker).ok()?, FingerprintKind::parse(kind).ok()?, lookup)
            }
            _ => return None,
        };
        let case = Self::of(request);
        // Excludes codecs that do nothing to the test data, and names that the parser accepted in
        // another form.
        let idle = ["compress/none", "decompress/none", "decompress/zle"];
        (case.name() == name && !idle.contains(&name)).then_some(case)
    }

    /// The size of the largest useful task of its kind, in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max
    }

    /// The name of its class: `hash_many/blake3`.
    pub fn name(&self) -> String {
        let request = match &self.request {
            Asked::HashMany(kind) => Request::HashMany { kind: *kind, ranges: Vec::new() },
            Asked::Compress(spec) => Request::Compress { spec: *spec },
            Asked::Decompress(spec) => Request::Decompress { codec: spec.codec, raw_len: 0 },
            Asked::Ingest(chunker, kind, lookup) => {
                let table = lookup.then(table);
                Request::Ingest { streams: Vec::new(), chunker: *chunker, kind: *kind, table }
            }
            Asked::Lookup => Request::Lookup { table: table(), keys: Vec::new() },
            Asked::Other(request) => request.clone(),
        };
        request.class().to_string()
    }

    /// A task of about so many bytes. `None` if that is too large to be useful.
    pub fn draft(&self, runtime: &Runtime, bytes: usize) -> Option<Draft> {
        if bytes > self.max {
            return None;
        }
        let mut draft = runtime.draft(bytes);
        draft.input().set_len(bytes);
        fill(draft.input());
        match &self.request {
            Asked::HashMany(kind) => {
                const CHUNK: u32 = 16 << 10;
                let end = bytes as u32;
                draft.hash_many(*kind, (0..end.div_ceil(CHUNK)).map(|n| n * CHUNK..end.min((n + 1) * CHUNK)));
            }
            Asked::Compress(spec) => {
                draft.set_request(Request::Compress { spec: *spec });
            }
            Asked::Decompress(spec) => {
                let mut stored = Vec::new();
                let codec = Compressor::new().compress(*spec, draft.input(), &mut stored);
                assert_eq!(codec, spec.codec, "it finds something in these data");
                draft.input().clear();
                draft.input().extend_from_slice(&stored);
                draft.set_request(Request::Decompress { codec, raw_len: bytes });
            }
            Asked::Ingest(chunker, kind, lookup) => {
                let streams = vec![Stream { range: 0..bytes as u32, last: true }];
                let table = lookup.then(table);
                draft.set_request(Request::Ingest { streams, chunker: *chunker, kind: *kind, table });
            }
            Asked::Lookup => {
                draft.input().clear();
                let keys = (0..(bytes / size_of::<Fingerprint>()) as u64).map(fingerprint).collect();
                draft.set_request(Request::Lookup { table: table(), keys });
            }
            Asked::Other(request) => {
                draft.set_request(request.clone());
            }
        }
        Some(draft)
    }
}

/// The measurement of a single task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Its stages. For the processor, the work of all its threads.
    pub point: Point,
    /// The time from its beginning to its end, in nanoseconds.
    pub took_ns: f64,
}

/// Measures `case` on a device at a size, puts the result into the runtime's model, and returns it.
/// `None` if the device does not support it, did not execute it, or the size is not useful.
///
/// # Errors
/// [`Failed`] if the processor itself fails.
pub fn calibrate(
    runtime: &Runtime,
    device: usize,
    case: &Case,
    bytes: usize,
    options: &CalibrateOptions,
) -> Result<Option<Point>, Failed> {
    let Some((class, measured)) = measure(runtime, device, case, bytes, options)? else { return Ok(None) };
    let Measured { point, took_ns } = measured;
    runtime.model().put(device, class, point);
    if device == 0 && is_usually_worth_it(class, point.bytes as usize) {
        let stages = Stages { work: took_ns, ..Stages::default() };
        runtime.model().put_together(class, Point { stages, ..point });
    }
    Ok(Some(point))
}

/// Like [`calibrate`], without storing the result in the model.
///
/// # Errors
/// [`Failed`] if the processor itself fails.
pub fn measure(
    runtime: &Runtime,
    device: usize,
    case: &Case,
    bytes: usize,
    options: &CalibrateOptions,
) -> Result<Option<(Class, Measured)>, Failed> {
    let Some(mut draft) = case.draft(runtime, bytes) else { return Ok(None) };
    let (class, len) = (draft.work().class(), bytes_of(&draft));
    if !runtime.supports(device, draft.work()) {
        return Ok(None);
    }
    let mut runs: Vec<(f64, Stages)> = Vec::new();
    let mut begun = None;
    loop {
        write_again(draft.input());
        draft.pin(device);
        let Ok(ticket) = runtime.submit(draft) else { return Ok(None) };
        let done = ticket.wait()?;
        let report = *done.report();
        if report.device != device {
            return Ok(None);
        }
        let nanos = |time: Duration| time.as_nanos() as f64;
        // The first run warms up caches, buffers, and the device's clock.
        let first = begun.is_none();
        let begun = *begun.get_or_insert_with(Instant::now);
        if !first && !report.checked {
            let took = report.total.saturating_sub(report.queue);
            let stages = Stages {
                overhead: nanos(took.saturating_sub(report.stages.sum())),
                copy_in: nanos(report.stages.copy_in),
                work: nanos(report.stages.kernel),
                copy_out: nanos(report.stages.copy_out),
            };
            runs.push((nanos(took), stages));
        }
        draft = done.again();
        let enough = runs.len() as u32 + 1 >= options.repeats && begun.elapsed() >= options.at_least;
        if enough && !runs.is_empty() {
            break;
        }
    }
    let (took_ns, stages) = median(&runs);
    let point = Point { bytes: len as f64, stages, samples: runs.len() as u32, error: 0.0 };
    Ok(Some((class, Measured { point, took_ns })))
}

/// Writes the data again from this thread. As in real use, it is then not in the cache of the
/// thread that works on it.
fn write_again(data: &mut [u8]) {
    for line in data.chunks_mut(64) {
        line[0] = std::hint::black_box(line[0]);
    }
}

/// The size on which the task's prediction is based. Its range is only set at submission.
fn bytes_of(draft: &Draft) -> usize {
    draft.work().input.bytes().len() + draft.work().request.side_len()
}

/// The run with the median time.
fn median(runs: &[(f64, Stages)]) -> (f64, Stages) {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    runs[runs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_size_in_each_decade() {
        let decades: Vec<usize> = sizes(128 << 20).map(crate::placement::decade).collect();
        assert_eq!(decades, [3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn every_case_can_be_measured_on_the_processor() {
        let runtime = Runtime::builder().cpu_threads(1).build();
        let options = CalibrateOptions { max_bytes: 4096, repeats: 2, at_least: Duration::ZERO };
        for case in builtin_cases() {
            let point = calibrate(&runtime, 0, &case, 4096, &options).unwrap().expect("a point");
            assert!(point.stages.work > 0.0 && point.stages.copy_in == 0.0);
        }
    }

    #[test]
    fn every_case_is_measured_under_its_own_name() {
        let runtime = Runtime::builder().cpu_threads(1).build();
        for case in builtin_cases() {
            for bytes in [4096, 256 << 10, case.max_bytes().min(2 << 20)] {
                let draft = case.draft(&runtime, bytes).expect("a task");
                assert_eq!(draft.work().class().to_string(), case.name(), "{bytes}");
            }
            assert_eq!(Case::parse(&case.name()).expect("its own name").name(), case.name());
        }
    }

    #[test]
    fn names_of_classes_are_cases_and_others_are_not() {
        for name in [
            "compress/zstd:1",
            "compress/lzjb",
            "decompress/gzip",
            "window_hash/sha1:52/20/8",
            "pmd_hash/md5",
            "ingest/fixed:64K/sha256+lookup",
            "lookup",
        ] {
            assert_eq!(Case::parse(name).expect(name).name(), name);
        }
        for name in [
            "",
            "dance",
            "scan/",
            "compress/none",
            "compress/brotli",
            "decompress/none",
            "pmd_hash/blake3",
            "window_hash/md5:20/4",
            "window_hash/md5:20/0/4",
            "window_hash/md5:20/4/17",
            "ingest/blake3",
            "user/histogram",
        ] {
            assert!(Case::parse(name).is_none(), "{name}");
        }
    }
}
