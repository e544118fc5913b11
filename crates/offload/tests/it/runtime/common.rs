//! Tasks with known results, and a gate that blocks a thread.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use outrigger_format::FingerprintKind::Blake3;
use outrigger_format::boundary::{GearMasks, scan_reference};
use outrigger_format::{Codec, CodecSpec, Fingerprint};
use outrigger_offload::runtime::{Draft, Finished, Runtime};
use outrigger_offload::work::{Request, UserOperation};
use outrigger_offload::{Decompressor, hash};
use outrigger_workload::Rng;

/// Random bytes, followed by compressible ones.
pub fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![b'x'; len];
    rng.fill(&mut bytes[..len / 2]);
    bytes
}

/// The expected result of a task.
#[derive(Debug)]
pub enum Expected {
    Candidates(Vec<u32>),
    Fingerprints(Vec<Fingerprint>),
    /// A frame that decompresses to this.
    Frame(Vec<u8>),
    Bytes(Vec<u8>),
}

impl Expected {
    pub fn check(&self, done: &Finished) {
        let output = done.output();
        match self {
            Self::Candidates(candidates) => assert_eq!(output.candidates, *candidates),
            Self::Fingerprints(fingerprints) => assert_eq!(output.fingerprints, *fingerprints),
            Self::Bytes(bytes) => assert_eq!(*output.bytes, **bytes),
            Self::Frame(raw) => {
                let mut back = Vec::new();
                let codec: Codec = output.codec;
                Decompressor::new().decompress(codec, &output.bytes, raw.len(), &mut back).expect("a frame");
                assert_eq!(back, *raw);
            }
        }
    }
}

fn pieces(len: usize) -> impl Iterator<Item = Range<u32>> {
    (0..len as u32).step_by(5000).map(move |at| at..(at + 5000).min(len as u32))
}

/// A task over random bytes, of one of several operations.
pub fn task(runtime: &Runtime, numbers: &mut Rng, len: usize) -> (Draft, Expected) {
    let data = bytes(numbers, len);
    let mut draft = runtime.draft(len);
    draft.input().extend_from_slice(&data);
    let expected = match numbers.below(4) {
        0 => {
            let masks = GearMasks::for_average(1024);
            draft.set_request(Request::Scan { history: 0, masks });
            let mut candidates = Vec::new();
            scan_reference(&[], &data, masks, &mut candidates);
            Expected::Candidates(candidates)
        }
        1 => {
            draft.set_request(Request::Compress { spec: CodecSpec::parse("lz4").unwrap() });
            Expected::Frame(data)
        }
        2 => {
            let operation = reverse();
            draft.set_request(Request::User { operation, parameters: vec![3] });
            Expected::Bytes(data.iter().rev().map(|byte| byte ^ 3).collect())
        }
        _ => {
            draft.hash_many(Blake3, pieces(len));
            let of = |piece: Range<u32>| hash(Blake3, &data[piece.start as usize..piece.end as usize]);
            Expected::Fingerprints(pieces(len).map(of).collect())
        }
    };
    (draft, expected)
}

/// A user's operation that reverses the data and changes each byte by the parameter.
pub fn reverse() -> Arc<UserOperation> {
    let run = |parameters: &[u8], data: &[u8], out: &mut Vec<u8>| {
        out.extend(data.iter().rev().map(|byte| byte ^ parameters[0]));
        Ok(())
    };
    UserOperation::new("reverse", run, |_, len| len).shared()
}

/// A task whose fingerprint shows whether the result is right.
pub fn hash_task(runtime: &Runtime, data: &[u8]) -> Draft {
    let mut draft = runtime.draft(data.len());
    draft.input().extend_from_slice(data);
    draft.hash_many(Blake3, std::iter::once(0..data.len() as u32));
    draft
}

/// True if a hash task's result is right.
pub fn is_right(done: &Finished) -> bool {
    done.output().fingerprints == [hash(Blake3, done.work().data())]
}

/// An operation that reports when it begins, and then blocks its thread until the gate opens.
pub struct Gate {
    pub operation: Arc<UserOperation>,
    begun: std::sync::mpsc::Receiver<()>,
    go: Sender<()>,
}

impl Gate {
    pub fn new() -> Self {
        let (says_begun, begun) = channel();
        let (go, waits) = channel::<()>();
        let (says_begun, waits) = (Mutex::new(says_begun), Mutex::new(waits));
        let run = move |_: &[u8], _: &[u8], _: &mut Vec<u8>| {
            says_begun.lock().unwrap().send(()).unwrap();
            // Also continues when the gate is dropped.
            let _ = waits.lock().unwrap().recv();
            Ok(())
        };
        Self { operation: UserOperation::new("gate", run, |_, _| 0).shared(), begun, go }
    }

    pub fn draft(&self, runtime: &Runtime) -> Draft {
        let mut draft = runtime.draft(0);
        draft.set_request(Request::User { operation: Arc::clone(&self.operation), parameters: Vec::new() });
        draft
    }

    /// Waits until a thread is blocked.
    pub fn wait(&self) {
        self.begun.recv().unwrap();
    }

    /// Lets one thread continue.
    pub fn open(&self) {
        self.go.send(()).unwrap();
    }
}
