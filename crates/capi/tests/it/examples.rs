//! Compiles the C programs in `examples/` with the system's compiler, linked both ways and under
//! sanitizers. Their results must equal those of the library's Rust functions.

use crate::common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Link, crate_dir, program, sanitized, stdout};
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};
use outrigger_offload::op::{Stream, WindowFunction, WindowSpec};
use outrigger_offload::{Ingester, hash, pmd_hash, reference, window_hash};

const LINKS: [Link; 3] = [Link::Static, Link::Shared, Link::Sanitized];

/// Data whose second half repeats the first, a little shifted.
fn data() -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    let mut data: Vec<u8> = noise.take(5_000_000).collect();
    data.extend_from_slice(b"shift");
    data.extend_from_within(..5_000_000);
    data
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

struct Place {
    dir: tempfile::TempDir,
    data: Vec<u8>,
    file: PathBuf,
}

fn place() -> Place {
    let (dir, data) = (tempfile::tempdir().expect("a folder"), data());
    let file = dir.path().join("data");
    std::fs::write(&file, &data).expect("written");
    Place { dir, data, file }
}

impl Place {
    /// Calls `check` with the program, linked in each way.
    fn each(&self, name: &str, check: impl Fn(Command)) {
        let source = crate_dir().join("examples").join(name).with_extension("c");
        for link in LINKS {
            let program = program(&source, self.dir.path(), link);
            check(if link == Link::Sanitized { sanitized(&program) } else { Command::new(program) });
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let place = place();
    for name in ["callbacks", "dedup", "own_operation", "storegpu"] {
        let source = crate_dir().join("examples").join(name).with_extension("c");
        let mut command = Command::new(program(&source, place.dir.path(), LINKS[0]));
        let said = command.arg("/nowhere/file").output().expect("it runs");
        let error = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{name}: {error}");
        assert!(error.contains("/nowhere/file") && !error.contains("usage"), "{name}: {error}");
    }
}

#[test]
fn hash_file() {
    let place = place();
    let empty = place.dir.path().join("empty");
    std::fs::write(&empty, b"").expect("written");
    place.each("hash_file", |mut command| {
        let program = PathBuf::from(command.get_program());
        command.arg("nothing").arg(&place.file);
        assert_eq!(command.status().expect("it runs").code(), Some(2), "an unknown function");
        for kind in FingerprintKind::ALL {
            let lines = stdout(sanitized(&program).arg(kind.name()).arg(&place.file).arg(&empty));
            let len = outrigger_offload::op::Digest::of_kind(kind).0.len();
            let line = |data: &[u8], path: &Path| {
                let fingerprint = reference::fingerprint(kind, data);
                format!("{}  {}\n", hex(&fingerprint.0[..len]), path.display())
            };
            assert_eq!(lines, line(&place.data, &place.file) + &line(b"", &empty), "{}", kind.name());
        }
    });
}

#[test]
fn callbacks() {
    let place = place();
    let mut sum = [0; 32];
    let blocks = place.data.chunks(16 << 10);
    let count = blocks.len();
    for block in blocks {
        let Fingerprint(hash) = hash(FingerprintKind::Blake3, block);
        sum.iter_mut().zip(hash).for_each(|(sum, byte)| *sum ^= byte);
    }
    let expected = format!("{count} blocks, sum {}\n", hex(&sum));
    place.each("callbacks", |mut command| {
        let program = PathBuf::from(command.get_program());
        assert!(stdout(command.arg(&place.file)).starts_with(&expected));
        let text = stdout(sanitized(&program).arg(&place.file).arg("sim:integrated"));
        assert!(text.starts_with(&expected), "{text}");
        let (_, devices) = text.split_once("tasks, ").expect("it says how many tasks");
        assert!(!devices.starts_with("0 "), "first tasks go to a new device: {text}");
        let absent = sanitized(&program).arg(&place.file).arg("cuda:99").output().expect("it runs");
        assert!(String::from_utf8_lossy(&absent.stderr).contains("cuda:99"), "{absent:?}");
    });
}

#[test]
fn own_operation() {
    let place = place();
    let mut totals = [0u64; 256];
    place.data.iter().for_each(|&byte| totals[usize::from(byte)] += 1);
    let lines: String = (0..256).map(|n| format!("{n:02x} {}\n", totals[n])).collect();
    place.each("own_operation", |mut command| {
        let text = stdout(command.arg(&place.file));
        let rest = text.strip_prefix(&lines).expect("the counts");
        assert!(rest.starts_with("refused: ") && rest.contains("returned 22"), "{rest}");
        assert!(rest.ends_with("\nreleased\n"), "the context's end: {rest}");
    });
}

#[test]
fn dedup() {
    let place = place();
    let mut chunks = Vec::new();
    let streams = [Stream { range: 0..place.data.len() as u32, last: true }];
    let mut ingester = Ingester::new(ChunkerSpec::DEFAULT, FingerprintKind::Blake3);
    ingester.ingest(&place.data, &streams, None, &mut chunks, &mut Vec::new());
    let (mut seen, mut again, mut start) = (std::collections::HashSet::new(), 0, 0);
    for chunk in &chunks {
        if !seen.insert(chunk.fingerprint) {
            again += chunk.end - start;
        }
        start = chunk.end;
    }
    assert!(again > 4_800_000, "the data has duplicates");
    let (bytes, different) = (place.data.len(), seen.len());
    let expected = format!(
        "{bytes} bytes in {} chunks, {different} of them different; {again} bytes are there already\n",
        chunks.len()
    );
    place.each("dedup", |mut command| assert_eq!(stdout(command.arg(&place.file)), expected));
}

#[test]
fn storegpu() {
    let place = place();
    let block = &place.data[..1 << 20];
    let direct = |digest| {
        let mut out = Vec::new();
        pmd_hash(digest, block, &mut out);
        hex(&out)
    };
    let windows = |function: WindowFunction| {
        let mut out = Vec::new();
        let spec = WindowSpec { function, window: 20, step: 4, keep: function.len() };
        window_hash(spec, block, &mut out);
        (out.len() / function.len(), hex(&out[..function.len()]))
    };
    let (count, sha) = windows(WindowFunction::Sha1);
    let (_, md5) = windows(WindowFunction::Md5);
    use outrigger_offload::op::Digest;
    let expected = format!(
        "sha     {}\nmd5     {}\n{count} windows, of the first one:\nsha     {sha}\nmd5     {md5}\n",
        direct(Digest::Sha1),
        direct(Digest::Md5),
    );
    place.each("storegpu", |mut command| assert_eq!(stdout(command.arg(&place.file)), expected));
}
