//! Recompressing: brings old data to the codec that policies now ask for.
//!
//! It is a collector's run (`mod.rs`) that also empties packs with data frames that would be stored
//! differently today. It encodes their frames anew while it copies them; everything else, and every
//! rule, is the same. So writers and readers go on meanwhile, and a run that is killed loses at
//! most the group that it was copying. The next run goes on from there, because each frame says
//! what codec it was asked to be stored in.
//!
//! Each run takes a part of the packs: writers cannot rely on a deletion candidate, and so no pack
//! is one for long.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use outrigger_format::catalogue::FileKind;
use outrigger_format::{
    Codec, CodecChoice, CodecSpec, Encoding, Entry, Fingerprint, FrameHeader, PackId, PackKind, Reason,
};
use outrigger_offload::{Auto, Compression};
use serde::Serialize;

use super::{GcOptions, GcProgress, GcReport, collect};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, PackRow, PackState, ROOT_INODE};
use crate::policy::{Policies, WritePolicy};
use crate::read::Nodes;
use crate::read::manifest::walk_entries;
use crate::store::Store;
use crate::tree::listing;
use crate::write::hinted;

/// How old data is recompressed.
#[derive(Clone, Debug, Default)]
pub struct Recompress {
    /// The codec for all data; `None`: the one that the store and its directories ask for.
    pub to: Option<CodecChoice>,
    /// Raw bytes a second at most; 0: as fast as it goes.
    pub bytes_per_sec: u64,
    /// Packs that a run takes at most; 0: an eighth of them, at least 16.
    pub packs_max: usize,
    /// Keep all codecs, and take the packs that are encrypted with keys from before the last
    /// rotation, of manifests and of the catalogue, too.
    pub rekey: bool,
    /// Packs in which all frames were found right: they are not looked at again. Begins empty.
    pub current: Arc<Mutex<BTreeSet<PackId>>>,
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecompressReport {
    /// Collector runs.
    pub runs: u64,
    /// Packs with outdated frames that are gone now.
    pub packs: u64,
    /// Packs that still have outdated frames: they could not be read, or writers came to rely on
    /// them.
    pub packs_left: u64,
    /// Frames that were encoded anew.
    pub frames: u64,
    /// Their raw bytes.
    pub raw_bytes: u64,
    /// Their stored bytes before.
    pub stored_before: u64,
    /// Their stored bytes now.
    pub stored_after: u64,
    /// Packs that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// Runs without progress after which it gives up: sessions may have relied on all packs that it
/// took.
const IN_VAIN_MAX: u32 = 3;

/// Brings old data to the wanted codec, run by run, until all of it is. Others may read and write
/// meanwhile.
///
/// # Errors
/// As [`collect`]; what was done before stays done, and another call goes on from there.
pub fn recompress(
    store: &Store,
    how: &Recompress,
    options: &GcOptions,
    progress: &GcProgress,
) -> Result<RecompressReport> {
    let options = GcOptions { recompress: Some(how.clone()), ..options.clone() };
    let (mut report, mut in_vain) = (RecompressReport::default(), 0);
    loop {
        let run = collect(store, &options, progress)?;
        report.add(&run);
        if run.packs_outdated == 0 || options.dry_run {
            return Ok(report);
        }
        in_vain = if run.packs_buried > 0 { 0 } else { in_vain + 1 };
        if in_vain == IN_VAIN_MAX {
            return Ok(report);
        }
    }
}

impl RecompressReport {
    fn add(&mut self, run: &GcReport) {
        self.runs += 1;
        self.packs += run.packs_outdated.min(run.packs_buried);
        self.packs_left = run.packs_outdated.saturating_sub(run.packs_buried);
        self.frames += run.frames_recoded;
        self.raw_bytes += run.recoded_raw;
        self.stored_before += run.recoded_before;
        self.stored_after += run.recoded_after;
        self.unreadable = run.unreadable.clone();
    }
}

/// Passes over what nobody can read.
pub(super) fn unless_destroyed(walked: Result<()>) -> Result<()> {
    match walked {
        Err(error) if error.kind() == ErrorKind::Destroyed => Ok(()),
        walked => walked,
    }
}

/// How each frame should be stored.
pub(super) struct Targets {
    default: Compression,
    /// The codecs that directories and single files ask for, and the frames of these files.
    choices: Vec<Compression>,
    own: HashMap<(PackId, u16), u8>,
    packs_max: usize,
    current: Arc<Mutex<BTreeSet<PackId>>>,
    rekeys: bool,
    pub bytes_per_sec: u64,
}

/// Choices beside the root's, at most; those beyond count as the root's.
const CHOICES_MAX: usize = 250;
/// Chunks looked up at once.
const LOOKUPS: usize = 512;

impl Targets {
    /// Reads what the policies say now.
    pub fn load(store: &Store, how: &Recompress) -> Result<Self> {
        let policies = Policies::load(store)?;
        let root = policies.below(policies.store_default(), ROOT_INODE)?;
        let mut targets = Self {
            default: how.to.map_or(root.codec, |codec| Compression { codec, ..root.codec }),
            choices: Vec::new(),
            own: HashMap::new(),
            packs_max: how.packs_max,
            current: Arc::clone(&how.current),
            rekeys: how.rekey,
            bytes_per_sec: how.bytes_per_sec,
        };
        if how.to.is_none() && !how.rekey {
            targets.visit(store, &policies, root)?;
        }
        Ok(targets)
    }

    /// Finds the frames of files that ask for another codec than the root. The first of its files
    /// decides about a frame of several.
    fn visit(&mut self, store: &Store, policies: &Policies, root: WritePolicy) -> Result<()> {
        let packs: HashSet<PackId> = live_data(&store.meta.packs()?).map(|row| row.id).collect();
        let nodes = Nodes::new(store);
        // The policies of the directories that lead to the present entry.
        let mut holds = vec![root];
        let mut chunks: Vec<Fingerprint> = Vec::new();
        listing::walk::<Error>(&*store.meta, At::Now, ROOT_INODE, true, &mut |path, entry| {
            let inode = &entry.inode;
            let depth = path.iter().filter(|byte| **byte == b'/').count();
            let inherited = holds.get(depth).copied().unwrap_or(root);
            if inode.attributes.kind == FileKind::Directory {
                holds.truncate(depth + 1);
                holds.push(policies.below(inherited, inode.number)?);
                return Ok(());
            }
            let wanted = hinted(inherited.codec, &inode.attributes.xattrs);
            if inode.attributes.kind != FileKind::File || wanted == root.codec {
                return Ok(());
            }
            let Some(choice) = self.choice(wanted) else { return Ok(()) };
            let walked = walk_entries(&nodes, &inode.root, 0, u64::MAX, &mut |_, entry| {
                if let Entry::Chunk { fingerprint, .. } = entry {
                    chunks.push(fingerprint);
                }
                if chunks.len() == LOOKUPS {
                    self.claim(store, &packs, choice, &mut chunks)?;
                }
                Ok(true)
            });
            unless_destroyed(walked)?;
            self.claim(store, &packs, choice, &mut chunks)
        })
    }

    fn choice(&mut self, compression: Compression) -> Option<u8> {
        let at = match self.choices.iter().position(|known| *known == compression) {
            Some(at) => at,
            None if self.choices.len() == CHOICES_MAX => return None,
            None => {
                self.choices.push(compression);
                self.choices.len() - 1
            }
        };
        Some(at as u8)
    }

    fn claim(
        &mut self,
        store: &Store,
        packs: &HashSet<PackId>,
        choice: u8,
        chunks: &mut Vec<Fingerprint>,
    ) -> Result<()> {
        let mut places = Vec::new();
        store.index.resolve_lowest_batch(chunks, |pack| packs.contains(&pack), &mut places)?;
        for place in places.into_iter().flatten() {
            let Some(footer) = store.index.footers().get(place.pack)? else { continue };
            if let Some((frame, _)) = footer.position(place.slot) {
                self.own.entry((place.pack, frame)).or_insert(choice);
            }
        }
        chunks.clear();
        Ok(())
    }

    /// The codec that a frame should have, if it has another.
    pub fn other(&self, pack: PackId, frame: u16, encoding: Encoding) -> Option<Compression> {
        if self.rekeys {
            return None;
        }
        let own = self.own.get(&(pack, frame)).map(|&choice| self.choices[usize::from(choice)]);
        Some(own.unwrap_or(self.default)).filter(|target| !conforms(encoding, *target))
    }

    /// The packs among `rows` that are not stored as they should be, as many as one run takes.
    pub fn outdated(&self, store: &Store, rows: &[PackRow]) -> Result<Vec<PackId>> {
        let rows = || rows.iter().filter(|row| row.state == PackState::Live && self.takes(row.kind));
        let all = rows().count();
        let most = if self.packs_max > 0 { self.packs_max } else { (all / 8).max(16) };
        let mut found = Vec::new();
        for row in rows() {
            if self.current.lock().expect("no panic while held").contains(&row.id) {
                continue;
            }
            match self.is_outdated(store, row.id) {
                Ok(true) => found.push(row.id),
                Ok(false) => drop(self.current.lock().expect("no panic while held").insert(row.id)),
                // The frame cannot be read: that is for `check`, and the pack is not given up.
                Err(_) => {}
            }
            if found.len() == most {
                break;
            }
        }
        Ok(found)
    }

    /// Manifests and the catalogue have no codec to choose, but keys.
    fn takes(&self, kind: PackKind) -> bool {
        kind == PackKind::Data || self.rekeys
    }

    fn is_outdated(&self, store: &Store, pack: PackId) -> Result<bool> {
        if store.packs.is_destroyed(pack)? {
            return Ok(false);
        }
        if self.rekeys {
            return Ok(!store.backend.has_newest_key(pack)?);
        }
        let footer = store.packs.read_footer(pack)?;
        let mut bytes = Vec::new();
        for number in 0..footer.frames().len() as u16 {
            let Some(range) = footer.frame_range(number) else { continue };
            let header = read_header(store, pack, range.start, range.len().min(HEADER_BYTES), &mut bytes)
                .or_else(|_| read_header(store, pack, range.start, range.len(), &mut bytes))?;
            if self.other(pack, number, header.encoding).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Packs of data that are live.
pub(super) fn live_data(rows: &[PackRow]) -> impl Iterator<Item = &PackRow> {
    rows.iter().filter(|row| row.kind == PackKind::Data && row.state == PackState::Live)
}

/// Bytes of a frame's header with the lengths of this many chunks, read at once.
const HEADER_BYTES: usize = 4096;

fn read_header(store: &Store, pack: PackId, at: u32, len: usize, bytes: &mut Vec<u8>) -> Result<FrameHeader> {
    bytes.resize(len, 0);
    store.backend.read_at(pack, at.into(), bytes)?;
    FrameHeader::decode(bytes).context(|| format!("pack {pack}, frame at byte {at}"))
}

/// True if a frame is stored as `target` asks. For `auto` its usual level, a higher one, or one
/// that was found to be as good conforms. A frame without a recorded level never does.
fn conforms(encoding: Encoding, target: Compression) -> bool {
    let at_least = |asked: CodecSpec, spec: CodecSpec| asked.codec == spec.codec && asked.level >= spec.level;
    let in_vain = |spec: CodecSpec| {
        let tried = encoding.asked.filter(|_| encoding.is_incompressible());
        tried.is_some_and(|tried| encoding.reason == Reason::Random || at_least(tried, spec))
    };
    match (target.codec, encoding.asked) {
        (CodecChoice::Fixed(spec), _) if spec.codec == Codec::None => encoding.codec == Codec::None,
        (CodecChoice::Fixed(spec), Some(asked)) => asked == spec || in_vain(spec),
        (CodecChoice::Fixed(spec), None) => encoding.codec == spec.codec && spec.codec.levels().is_none(),
        (CodecChoice::Auto(objective), Some(asked)) => {
            let (usual, _) = Auto::new().choose(objective);
            let compressed = encoding.codec != Codec::None;
            (compressed && (at_least(asked, usual) || encoding.reason == Reason::NoGain)) || in_vain(usual)
        }
        (CodecChoice::Auto(_), None) => false,
        // Any codec of the list conforms.
        (CodecChoice::Listed(list), _) => list
            .entries()
            .any(|entry| conforms(encoding, Compression { codec: entry.codec.into(), ..target })),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_offload::Budget;

    use super::*;

    fn frame(codec: &str, asked: Option<&str>, reason: Reason) -> Encoding {
        let asked = asked.map(|asked| CodecSpec::parse(asked).unwrap());
        Encoding { asked, reason, ..Encoding::plain(CodecSpec::parse(codec).unwrap().codec) }
    }

    #[test]
    fn choices_beyond_the_most_are_none_and_never_another_one() {
        let mut targets = Targets {
            default: CodecChoice::parse("none").unwrap().into(),
            choices: Vec::new(),
            own: HashMap::new(),
            packs_max: 0,
            current: Arc::default(),
            rekeys: false,
            bytes_per_sec: 0,
        };
        let of = |number: usize| {
            let choice = CodecChoice::parse(["zstd:1", "zstd:2", "lz4", "gzip:6"][number % 4]).unwrap();
            let budget = Budget::of_percent(1 + (number / 4) as u8).unwrap();
            Compression { budget, ..Compression::from(choice) }
        };
        for _ in 0..2 {
            for number in 0..300 {
                let expected = (number < CHOICES_MAX).then_some(number as u8);
                assert_eq!(targets.choice(of(number)), expected, "{number}");
            }
        }
    }

    #[test]
    fn what_is_as_it_should_be_is_left_alone() {
        let is = |encoding, target: &str| conforms(encoding, CodecChoice::parse(target).unwrap().into());
        let of = |spec| frame(spec, Some(spec), Reason::Policy);
        for (encoding, target, expected) in [
            (of("zstd:3"), "zstd:3", true),
            (of("zstd:3"), "zstd:9", false),
            (of("zstd:9"), "zstd:3", false),
            (of("zstd:9"), "auto", true),
            (of("zstd:1"), "auto", true),
            (of("zstd:1"), "auto:ratio", false),
            (frame("zstd", Some("zstd:1"), Reason::NoGain), "auto", true),
            (of("lz4"), "auto", false),
            (of("none"), "none", true),
            (of("none"), "auto", false),
            (of("none"), "zstd:1", false),
            (of("zstd:1"), "none", false),
            // It was tried in vain, so a lower level is not tried.
            (frame("none", Some("zstd:3"), Reason::Budget), "zstd:1", true),
            (frame("none", Some("zstd:3"), Reason::Budget), "zstd:9", false),
            (frame("none", Some("lz4"), Reason::Budget), "auto", false),
            (frame("none", Some("lz4"), Reason::Random), "zstd:9", true),
            (frame("none", Some("zstd:3"), Reason::Known), "none", true),
            // Without a recorded codec.
            (frame("lz4", None, Reason::Unstated), "lz4", true),
            (frame("zstd", None, Reason::Unstated), "zstd:2", false),
            (frame("none", None, Reason::Unstated), "none", true),
            (frame("none", None, Reason::Unstated), "auto", false),
        ] {
            assert_eq!(is(encoding, target), expected, "{encoding:?} for {target}");
        }
    }
}
