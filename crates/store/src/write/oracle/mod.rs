//! Hashing that costs nothing, for experiments: how fast would the store be if boundaries and
//! fingerprints came at once?
//!
//! One put *records* the result of the pipeline for each file: chunk lengths and fingerprints, in
//! order, under the file's path within the source. Another put of the same bytes *replays* them:
//! its workers read the files, and neither scan, cut nor hash them. All later stages are unchanged.
//!
//! This comes before the operations of the offload interface, and is none of its devices. A task is
//! a buffer without a name, and tasks come in any order. So a device could recognise its input only
//! by looking at it, and that is the work to be saved.
//!
//! Replayed answers are not checked, except for lengths: other bytes of the same length are stored
//! under wrong fingerprints. Readers notice, as they verify every chunk. But a file with the right
//! bytes, which is stored later and found to be there already, would be damaged, too. So this is
//! only for stores made for experiments.

mod record;

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_format::boundary::CutWalk;
use outrigger_format::{ChunkerSpec, Fingerprint};

use self::record::{Record, Recorder};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::text::show;

/// The name of a chunk before it is hashed. (A chunk with this very fingerprint would be hashed
/// once more.)
pub(super) const UNNAMED: Fingerprint = Fingerprint([0; 32]);

/// How to use an oracle's record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OracleMode {
    /// Compute everything, and write it into a new file.
    Record(PathBuf),
    /// Believe the file.
    Replay(PathBuf),
}

/// A record that was opened.
pub enum OracleRecord {
    /// Being written.
    Writing(Arc<Recorder>),
    /// To be believed.
    Reading(Record),
}

impl OracleRecord {
    /// Opens it for use with `store`.
    ///
    /// # Errors
    /// `Invalid` when the store was not made for experiments; `Exists` when the file to write is
    /// there already; `NotFound`, `Damaged` or `Invalid` when it cannot be replayed here.
    pub fn open(store: &Store, mode: &OracleMode) -> Result<Self> {
        if !store.config.experiment {
            let why = "--oracle needs a store made with `init --experiment`, because its fingerprints are not checked";
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{why}; {} is not one", store.dir().display()),
            ));
        }
        let kind = store.config.fingerprint;
        Ok(match mode {
            OracleMode::Record(path) => Self::Writing(Arc::new(Recorder::create(path, kind)?)),
            OracleMode::Replay(path) => Self::Reading(Record::read(path, kind)?),
        })
    }

    /// For the file `name`, to be cut by `chunker`, of `len` bytes if that is known.
    ///
    /// # Errors
    /// `Invalid` when the record has no answer for such a file.
    pub fn about(&self, name: &[u8], chunker: ChunkerSpec, len: Option<u64>) -> Result<Oracle> {
        let record = match self {
            Self::Writing(recorder) => return Ok(Oracle::Record(Arc::clone(recorder), name.to_vec())),
            Self::Reading(record) => record,
        };
        let shown = show(name);
        let Some(answers) = record.files.get(name) else {
            return Err(Error::new(ErrorKind::Invalid, format!("the oracle's record has no file `{shown}`")));
        };
        if answers.chunker != chunker {
            let recorded = answers.chunker;
            let why =
                format!("`{shown}` was recorded with chunker {recorded}, and is to be cut with {chunker}");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        if let Some(len) = len {
            answers.check_len(len)?;
        }
        Ok(Oracle::Replay(Arc::clone(answers)))
    }

    /// Completes a record that was written. Without this call there is no record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Writing(recorder) => recorder.finish(),
            Self::Reading(_) => Ok(()),
        }
    }
}

/// Source and destination of the boundaries and fingerprints of one file.
#[derive(Clone, Default)]
pub enum Oracle {
    /// They are computed.
    #[default]
    Off,
    /// They are computed, and recorded under this name.
    Record(Arc<Recorder>, Vec<u8>),
    /// They are known. For a content with [`super::Part::Keep`], those of the new data.
    Replay(Arc<Answers>),
}

impl Oracle {
    /// Records the chunks of a file of `len` bytes, if it is to be recorded.
    pub(super) fn note(&self, chunker: ChunkerSpec, len: u64, chunks: &[(u32, Fingerprint)]) -> Result<()> {
        match self {
            Self::Record(recorder, name) => recorder.note(name, chunker, len, chunks),
            Self::Off | Self::Replay(_) => Ok(()),
        }
    }

    pub(super) fn records(&self) -> bool {
        matches!(self, Self::Record(..))
    }

    pub(super) fn answers(&self) -> Option<&Arc<Answers>> {
        match self {
            Self::Replay(answers) => Some(answers),
            Self::Off | Self::Record(..) => None,
        }
    }
}

/// The record of one file.
#[derive(Debug, PartialEq, Eq)]
pub struct Answers {
    pub(super) name: Vec<u8>,
    pub(super) chunker: ChunkerSpec,
    /// Bytes of the file, holes included, and of its chunks.
    pub(super) len: u64,
    pub(super) data: u64,
    /// Lengths, none of them 0 or more than the chunker allows, and fingerprints.
    pub(super) chunks: Vec<(u32, Fingerprint)>,
}

impl Answers {
    /// Fails unless the file has as many bytes as the one that was recorded.
    pub(super) fn check_len(&self, len: u64) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(self.other(&format!("has {len} bytes, and had {} when it was recorded", self.len)))
    }

    /// As [`Answers::check_len`], for a file that has no holes.
    pub(super) fn check_data(&self, len: u64) -> Result<()> {
        self.check_len(len)?;
        if self.data == len { Ok(()) } else { Err(self.other("had holes when it was recorded")) }
    }

    fn other(&self, how: &str) -> Error {
        let why = format!("`{}` {how}: the oracle knows nothing of it", show(&self.name));
        Error::new(ErrorKind::Invalid, why)
    }
}

/// Finds the chunks of a large file, in order: by a walk over candidates, or from an oracle's
/// record.
pub(super) enum Cuts {
    Walk(CutWalk),
    Told(Told),
}

/// Progress in a file with an oracle's record.
pub(super) struct Told {
    answers: Arc<Answers>,
    /// The chunk whose end is returned next, and the one whose name is.
    next: usize,
    unnamed: usize,
    /// Positions within the extent: the beginning of that chunk, and the end of the bytes that were
    /// fed.
    open: u64,
    fed: u64,
}

impl Cuts {
    pub fn new(chunker: ChunkerSpec, oracle: &Oracle) -> Self {
        match oracle.answers() {
            None => Self::Walk(CutWalk::new(chunker)),
            Some(answers) => {
                Self::Told(Told { answers: Arc::clone(answers), next: 0, unnamed: 0, open: 0, fed: 0 })
            }
        }
    }

    /// Appends the ends of chunks in the next `len` bytes, as positions within the extent. The
    /// extent ends with these bytes if `extent_ends`.
    ///
    /// # Errors
    /// `Invalid` when the file differs from the oracle's record.
    pub fn feed(
        &mut self,
        len: usize,
        candidates: &[u32],
        extent_ends: bool,
        ends: &mut Vec<u64>,
    ) -> Result<()> {
        match self {
            Self::Walk(walk) => {
                walk.feed(len, candidates, ends);
                if extent_ends {
                    ends.extend(walk.finish());
                }
                Ok(())
            }
            Self::Told(told) => told.feed(len as u64, extent_ends, ends),
        }
    }

    /// Lets `on` continue the walk.
    pub fn meet(&mut self, on: impl FnOnce(&mut CutWalk)) {
        match self {
            Self::Walk(walk) => on(walk),
            Self::Told(_) => unreachable!("nobody else is asked where an oracle tells"),
        }
    }

    /// The fingerprint of the next chunk whose end was given, or [`UNNAMED`].
    pub fn name(&mut self) -> Fingerprint {
        match self {
            Self::Walk(_) => UNNAMED,
            Self::Told(told) => {
                told.unnamed += 1;
                told.answers.chunks[told.unnamed - 1].1
            }
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// `Invalid` when the oracle's record has more chunks.
    pub fn finish(&self) -> Result<()> {
        match self {
            Self::Told(told) if told.next < told.answers.chunks.len() => {
                Err(told.answers.other("is shorter than when it was recorded"))
            }
            _ => Ok(()),
        }
    }
}

impl Told {
    fn feed(&mut self, len: u64, extent_ends: bool, ends: &mut Vec<u64>) -> Result<()> {
        self.fed += len;
        while let Some((len, _)) = self.answers.chunks.get(self.next)
            && self.open + u64::from(*len) <= self.fed
        {
            self.open += u64::from(*len);
            self.next += 1;
            ends.push(self.open);
        }
        if self.open < self.fed && self.next == self.answers.chunks.len() {
            return Err(self.answers.other("is longer than when it was recorded"));
        }
        if extent_ends {
            if self.open < self.fed {
                return Err(self
                    .answers
                    .other("is shorter than when it was recorded, or has its holes elsewhere"));
            }
            (self.open, self.fed) = (0, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lens: &[u32]) -> Cuts {
        let chunks: Vec<(u32, Fingerprint)> =
            lens.iter().enumerate().map(|(at, len)| (*len, Fingerprint([at as u8 + 1; 32]))).collect();
        let len = lens.iter().map(|len| u64::from(*len)).sum();
        let (name, chunker, data) = (b"f".to_vec(), ChunkerSpec::DEFAULT, len);
        Cuts::new(chunker, &Oracle::Replay(Arc::new(Answers { name, chunker, len, data, chunks })))
    }

    #[test]
    fn chunks_are_told_as_their_bytes_come() {
        let (mut cuts, mut ends) = (told(&[10, 20, 5, 7]), Vec::new());
        cuts.feed(9, &[], false, &mut ends).unwrap();
        assert!(ends.is_empty(), "{ends:?}");
        cuts.feed(26, &[], true, &mut ends).unwrap();
        assert_eq!(ends, [10, 30, 35]);
        assert_eq!(cuts.name(), Fingerprint([1; 32]));
        cuts.feed(7, &[], true, &mut ends).unwrap();
        assert_eq!(ends, [10, 30, 35, 7], "another extent");
        cuts.finish().unwrap();
    }

    #[test]
    fn another_length_is_noticed() {
        let mut ends = Vec::new();
        assert!(told(&[10]).feed(11, &[], false, &mut ends).unwrap_err().to_string().contains("longer"));
        assert!(told(&[10]).feed(9, &[], true, &mut ends).unwrap_err().to_string().contains("shorter"));
        let mut early = told(&[10, 5]);
        early.feed(10, &[], true, &mut ends).unwrap();
        assert!(early.finish().unwrap_err().to_string().contains("shorter"));
        told(&[]).feed(0, &[], true, &mut ends).unwrap();
    }
}
