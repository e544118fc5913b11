//! The findings of a check, in words and in fields.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::parity::Reach;

/// The subject of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The database: its pages, or the contents of its rows.
    Database,
    /// A pack's object: missing, of another length, its header, footer or trailer.
    Pack,
    /// One frame of a pack, or chunks in it.
    Frame,
    /// A catalogue block.
    Catalogue,
    /// A manifest node: missing, or different from its parent's record.
    Manifest,
    /// Chunks that files need and no pack holds.
    Missing,
    /// The index: a cache.
    Index,
    /// Something left behind by a process that died.
    Leftover,
    /// Parity: a file of it, or packs that it does not protect.
    Parity,
    /// The database is not what the catalogue says, or the catalogue not what it was.
    Trust,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is lost; worth knowing.
    Note,
    /// Stored data, or a reference to it, is damaged.
    Damage,
}

/// A file that a finding affects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AffectedFile {
    /// Its path; bytes that are not text are escaped.
    pub path: String,
    /// Its inode.
    pub inode: u64,
    /// The earlier version, when it is not the present content.
    pub version: Option<u64>,
    /// The snapshot, when it is not the present tree.
    pub snapshot: Option<String>,
    /// Where the first damaged byte lies in the file.
    pub offset: u64,
    /// How many of its bytes are damaged.
    pub bytes: u64,
}

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Its subject.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// The pack's id, as in its file name.
    pub pack: Option<String>,
    /// The frame's number in the pack.
    pub frame: Option<u16>,
    /// Where it lies in the pack, bytes.
    pub offset: Option<u64>,
    /// A sentence.
    pub what: String,
    /// True when `--repair` can restore all of it.
    pub mendable: bool,
    /// True when this run has.
    pub mended: bool,
    /// The files that cannot be read in full because of it.
    pub files: Vec<AffectedFile>,
    /// How many more there are than `files` lists.
    pub files_more: u64,
}

impl Finding {
    /// A finding that names no place yet.
    pub(super) fn new(kind: FindingKind, severity: Severity, what: impl Into<String>) -> Self {
        Self {
            kind,
            severity,
            pack: None,
            frame: None,
            offset: None,
            what: what.into(),
            mendable: false,
            mended: false,
            files: Vec::new(),
            files_more: 0,
        }
    }

    /// Damage.
    pub(super) fn damage(kind: FindingKind, what: impl Into<String>) -> Self {
        Self::new(kind, Severity::Damage, what)
    }
}

/// The work and the findings of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Packs looked at.
    pub packs: u64,
    /// Packs that nobody can read, as the key of their directory was destroyed.
    pub packs_destroyed: u64,
    /// Frames read and decoded.
    pub frames: u64,
    /// Chunks whose fingerprint was computed.
    pub chunks: u64,
    /// Bytes of packs read.
    pub bytes: u64,
    /// Contents followed: of files, versions, snapshots.
    pub roots: u64,
    /// Distinct manifest nodes read.
    pub nodes: u64,
    /// Catalogue blocks read.
    pub blocks: u64,
    /// Findings that are damage and were not mended. Not zero: exit code 3.
    pub damaged: u64,
    /// Findings that were mended.
    pub mended: u64,
    /// How far parity reaches; `None` if the store has none.
    pub parity: Option<Reach>,
    /// A head of the state that was found, if it was asked for and nothing is wrong with it.
    pub head: Option<String>,
    /// All findings.
    pub findings: Vec<Finding>,
}

/// Live counters of a check.
#[derive(Debug, Default)]
pub struct CheckProgress {
    /// Bytes of packs that will be read.
    pub bytes_expected: AtomicU64,
    /// Bytes read so far.
    pub bytes_done: AtomicU64,
    /// Packs done.
    pub packs_done: AtomicU64,
    /// Packs whose directory's key was destroyed.
    pub packs_destroyed: AtomicU64,
    /// Frames decoded.
    pub frames: AtomicU64,
    /// Chunks whose fingerprint was computed.
    pub chunks: AtomicU64,
    /// Manifest nodes read.
    pub nodes: AtomicU64,
    /// Contents followed.
    pub roots: AtomicU64,
    /// Catalogue blocks read.
    pub blocks: AtomicU64,
}

/// Adds to one of [`CheckProgress`]'s counters.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl CheckReport {
    /// Sums up.
    pub(super) fn finish(mut self, progress: &CheckProgress) -> Self {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.packs = get(&progress.packs_done);
        self.packs_destroyed = get(&progress.packs_destroyed);
        self.frames = get(&progress.frames);
        self.chunks = get(&progress.chunks);
        self.bytes = get(&progress.bytes_done);
        self.roots = get(&progress.roots);
        self.nodes = get(&progress.nodes);
        self.blocks = get(&progress.blocks);
        let damage = |finding: &&Finding| finding.severity == Severity::Damage && !finding.mended;
        self.damaged = self.findings.iter().filter(damage).count() as u64;
        self.mended = self.findings.iter().filter(|finding| finding.mended).count() as u64;
        self
    }
}
