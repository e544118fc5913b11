//! Locate, fetch, verify, assemble: a file's bytes from its root.

use std::sync::Arc;

use outrigger_format::{Entry, Fingerprint, FingerprintKind, Footer, PackId, Place, Root};

use super::manifest::{NodeSource, walk_entries};
use crate::error::{Error, ErrorKind, Result};
use crate::file::Extent;
use crate::follow::{follow_packs, refresh_index};
use crate::index::Index;
use crate::meta::Meta;
use crate::packs::{PackReader, Wanted};
use crate::store::Store;
use crate::verified::Verified;

/// Reads verified bytes. Cheap to make; shared by reference between threads.
pub struct Reader<'a> {
    meta: &'a dyn Meta,
    index: &'a Index,
    packs: &'a PackReader,
    verified: Option<&'a Verified>,
    fingerprint: FingerprintKind,
    told: Option<&'a Told>,
}

/// Called for each chunk of a file that is read, with its length and its pack; without a pack if it
/// came from the database.
pub type Told = dyn Fn(Option<PackId>, u64) + Send + Sync;

/// How often the index is updated for one chunk.
const REFRESHES: usize = 3;
/// Extents of a sparse file that [`Reader::sparse_extents`] names at most.
const EXTENTS_MAX: usize = 4096;
/// Bytes handed to a sink at once, about.
const RUN: usize = 1 << 20;

impl<'a> Reader<'a> {
    /// A reader of `store`.
    pub fn new(store: &'a Store) -> Self {
        let (meta, fingerprint) = (&*store.meta, store.config.fingerprint);
        let verified = store.verified().map(|verified| &**verified);
        Self { meta, index: &store.index, packs: &store.packs, verified, fingerprint, told: None }
    }

    /// This reader, calling `told` for the chunks that it reads.
    #[must_use]
    pub fn publishing(self, told: &'a Told) -> Self {
        Self { told: Some(told), ..self }
    }

    /// The function that names the store's chunks.
    pub fn fingerprint_kind(&self) -> FingerprintKind {
        self.fingerprint
    }

    /// Appends the verified bytes of a chunk to `out`.
    ///
    /// # Errors
    /// `Damaged`, naming chunk, pack and frame; `out` is then unchanged.
    pub fn append_chunk(&self, fingerprint: &Fingerprint, len: u32, out: &mut Vec<u8>) -> Result<()> {
        self.with_listed_chunk(fingerprint, len, |chunk| out.extend_from_slice(chunk))
    }

    /// Hands the verified bytes of a chunk to `take`, if it is as long as the manifest says.
    fn with_listed_chunk(
        &self,
        fingerprint: &Fingerprint,
        len: u32,
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        self.with_chunk(fingerprint, |chunk, pack| {
            if chunk.len() != len as usize {
                let why = "its length is not what the manifest says";
                return Err(Error::damaged(format!("chunk {fingerprint}: {why}")));
            }
            take(chunk);
            if let Some(told) = self.told {
                told(pack, u64::from(len));
            }
            Ok(())
        })
    }

    /// Brings the frame of a chunk into the cache of decoded frames, for a read that will follow.
    /// Verifies nothing: the read does that, and reports errors.
    ///
    /// # Errors
    /// When the chunk's frame cannot be read at its first place.
    pub fn prefetch(&self, fingerprint: &Fingerprint) -> Result<()> {
        self.prefetch_after(fingerprint, &mut None)
    }

    /// The same, unless it is the frame that was brought there `last`.
    pub(super) fn prefetch_after(
        &self,
        fingerprint: &Fingerprint,
        last: &mut Option<(PackId, u16)>,
    ) -> Result<()> {
        let missing = || Error::new(ErrorKind::NotFound, format!("chunk {fingerprint} is in no known pack"));
        let place = self.index.resolve(fingerprint, |_| true)?.ok_or_else(missing)?;
        let (footer, number, _) = self.position(place)?;
        if last.replace((place.pack, number)) != Some((place.pack, number)) {
            self.packs.frame(place.pack, &footer, number, Wanted::Ahead)?;
        }
        Ok(())
    }

    /// Updates the index: first with the changes, then with all packs.
    fn look_again(&self, time: usize) -> Result<()> {
        if time == 1 { follow_packs(self.meta, self.index) } else { refresh_index(self.meta, self.index) }
    }

    /// Hands the verified bytes of a chunk to `take`. If one copy is damaged, another pack's copy
    /// serves.
    fn with_chunk<T>(
        &self,
        fingerprint: &Fingerprint,
        mut take: impl FnMut(&[u8], Option<PackId>) -> Result<T>,
    ) -> Result<T> {
        let (mut bad, mut first, mut refreshes, mut doubted) = (Vec::new(), None, 0, None);
        loop {
            let place = self.index.resolve(fingerprint, |pack| !bad.contains(&pack))?;
            let Some(place) = place else {
                // In this order: a chunk leaves the database when its pack is committed. So if it
                // is found neither here nor there, it was packed in between.
                if let Some(bytes) = self.inline(fingerprint, &mut first)? {
                    return take(&bytes, None);
                }
                if first.is_none() && refreshes < REFRESHES {
                    refreshes += 1;
                    self.look_again(refreshes)?;
                    continue;
                }
                return Err(
                    first.unwrap_or_else(|| Error::damaged(format!("chunk {fingerprint} is in no pack")))
                );
            };
            match self.fetch(fingerprint, place, &mut take) {
                // Rule 13: a pack that is gone, or an index that is behind, is looked up again
                // before it is called damage. More than once, since the next run of the collector
                // may have moved it again.
                Err(error) if error.kind() == ErrorKind::NotFound && refreshes < REFRESHES => {
                    refreshes += 1;
                    self.look_again(refreshes)?;
                }
                // Cached data may be damaged, and the store not.
                Err(error)
                    if error.kind() == ErrorKind::Damaged
                        && doubted.replace(place.pack) != Some(place.pack)
                        && self.packs.forget(place.pack) => {}
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) => {
                    bad.push(place.pack);
                    let lost = || Error::damaged(format!("chunk {fingerprint}")).caused_by(error);
                    first.get_or_insert_with(lost);
                }
                fetched => return fetched,
            }
        }
    }

    /// The verified bytes of an inline chunk. If it is damaged, sets `bad`, unless that is set
    /// already.
    fn inline(&self, fingerprint: &Fingerprint, bad: &mut Option<Error>) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.meta.inline().inline_chunk(fingerprint)? else { return Ok(None) };
        if outrigger_offload::hash(self.fingerprint, &bytes) == *fingerprint {
            return Ok(Some(bytes));
        }
        bad.get_or_insert_with(|| {
            Error::damaged(format!("chunk {fingerprint}: the database has other bytes for it"))
        });
        Ok(None)
    }

    fn fetch<T>(
        &self,
        fingerprint: &Fingerprint,
        place: Place,
        take: &mut impl FnMut(&[u8], Option<PackId>) -> Result<T>,
    ) -> Result<T> {
        let (footer, number, position) = self.position(place)?;
        let frame = self.packs.frame(place.pack, &footer, number, Wanted::Now)?;
        let chunk = frame.chunk(position).ok_or_else(|| damaged(place, "its frame is too short"))?;
        if frame.name(chunk) != *fingerprint {
            return Err(damaged(place, "its bytes do not match its fingerprint"));
        }
        if let Some(verified) = self.verified.filter(|_| frame.note_matched(position)) {
            verified.note_frame(place.pack, number, footer.frames().len());
        }
        take(chunk, Some(place.pack))
    }

    /// The footer of the pack of `place`, the frame that it lies in, and which of its chunks that
    /// is.
    fn position(&self, place: Place) -> Result<(Arc<Footer>, u16, u16)> {
        // An unreadable footer counts as a pack that is gone.
        let Some(footer) = self.index.footers().get(place.pack)? else {
            let why = format!("pack {} is gone, or its footer cannot be read", place.pack);
            return Err(Error::new(ErrorKind::NotFound, why));
        };
        let (number, position) =
            footer.position(place.slot).ok_or_else(|| damaged(place, "there is no such slot"))?;
        Ok((footer, number, position))
    }

    /// Calls `visit` with each entry that overlaps `from..to`; see [`walk_entries`].
    ///
    /// # Errors
    /// As there.
    pub fn entries(
        &self,
        root: &Root,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(u64, Entry) -> Result<bool>,
    ) -> Result<()> {
        walk_entries(self, root, from, to, visit)
    }

    /// Data and holes of a file that has holes, if there are 4,096 runs of data at most; `None` for
    /// all others.
    ///
    /// # Errors
    /// Those of reading the manifest.
    pub fn sparse_extents(&self, root: &Root) -> Result<Option<Vec<Extent>>> {
        let mut extents: Vec<Extent> = Vec::new();
        let (mut data, mut hole) = (0, 0);
        self.entries(root, 0, u64::MAX, &mut |at, entry| {
            match entry {
                Entry::Hole { len } => {
                    if hole == 0 && at > 0 {
                        let last = extents.last_mut().expect("data came before");
                        last.len = at - last.start;
                    }
                    hole += len;
                }
                Entry::Chunk { .. } if hole > 0 || at == 0 => {
                    extents.push(Extent { hole_before: hole, start: at, len: 0 });
                    hole = 0;
                }
                Entry::Chunk { .. } => {}
            }
            data = at + entry.len();
            Ok(extents.len() <= EXTENTS_MAX)
        })?;
        let has_holes = hole > 0 || extents.iter().any(|extent| extent.hole_before > 0);
        if !has_holes || extents.len() > EXTENTS_MAX {
            return Ok(None);
        }
        match extents.last_mut() {
            Some(last) if hole == 0 => last.len = data - last.start,
            _ => extents.push(Extent { hole_before: hole, start: data, len: 0 }),
        }
        Ok(Some(extents))
    }

    /// Fills `out` with a file's bytes from `offset`, holes with zeros, and returns their number,
    /// which is lower at the file's end. Each byte is copied once.
    ///
    /// # Errors
    /// `Damaged`, with the offset in the file. Bytes that were filled in before it are verified.
    pub fn read_into(&self, root: &Root, offset: u64, out: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(out.len() as u64);
        let mut done = 0;
        self.entries(root, offset, end, &mut |at, entry| {
            let (from, to) = (at.max(offset), (at + entry.len()).min(end));
            let (skip, len) = ((from - at) as usize, (to - from) as usize);
            let target = &mut out[done..done + len];
            done += len;
            match entry {
                Entry::Hole { .. } => target.fill(0),
                Entry::Chunk { fingerprint, len: whole } => self
                    .with_listed_chunk(&fingerprint, whole, |chunk| {
                        target.copy_from_slice(&chunk[skip..skip + len]);
                    })
                    .map_err(|error| error.context(format!("at byte {at}")))?,
            }
            Ok(true)
        })?;
        Ok(done)
    }

    /// Hands the bytes `offset..offset + len` of a file to `sink`, in order, about a mebibyte at a
    /// time; holes as zeros. Stops at the file's end.
    ///
    /// # Errors
    /// `Damaged`, with the offset in the file; what was handed out before it is verified.
    pub fn read(
        &self,
        root: &Root,
        offset: u64,
        len: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len);
        let (mut run, mut skip) = (Vec::with_capacity(RUN), None);
        self.entries(root, offset, end, &mut |at, entry| {
            let skip = skip.get_or_insert(offset - at.min(offset));
            let before = run.len();
            let entry_end = at + entry.len();
            match entry {
                Entry::Chunk { fingerprint, len } => {
                    self.append_chunk(&fingerprint, len, &mut run)
                        .map_err(|error| error.context(format!("at byte {at}")))?;
                    run.drain(before..before + *skip as usize);
                    if entry_end > end {
                        run.truncate(run.len() - (entry_end - end) as usize);
                    }
                }
                Entry::Hole { .. } => {
                    let mut zeros = entry_end.min(end) - at - *skip;
                    while zeros > 0 {
                        let part = zeros.min((RUN - run.len().min(RUN - 1)) as u64);
                        run.resize(run.len() + part as usize, 0);
                        zeros -= part;
                        if run.len() >= RUN {
                            sink(&run)?;
                            run.clear();
                        }
                    }
                }
            }
            *skip = 0;
            if run.len() >= RUN {
                sink(&run)?;
                run.clear();
            }
            Ok(true)
        })?;
        if run.is_empty() { Ok(()) } else { sink(&run) }
    }
}

fn damaged(place: Place, why: &str) -> Error {
    Error::damaged(format!("pack {}, slot {}: {why}", place.pack, place.slot))
}

impl NodeSource for Reader<'_> {
    fn read_node(&self, fingerprint: &Fingerprint) -> Result<Vec<u8>> {
        self.with_chunk(fingerprint, |bytes, _| Ok(bytes.to_vec()))
    }
}

/// The manifest nodes of a store, for callers that outlive a reference to it.
pub struct Nodes {
    meta: Arc<dyn Meta>,
    index: Arc<Index>,
    packs: Arc<PackReader>,
    verified: Option<Arc<Verified>>,
    fingerprint: FingerprintKind,
}

impl Nodes {
    /// The nodes of `store`.
    pub fn new(store: &Store) -> Self {
        let (meta, index, packs) =
            (Arc::clone(&store.meta), Arc::clone(&store.index), Arc::clone(&store.packs));
        let (verified, fingerprint) = (store.verified().cloned(), store.config.fingerprint);
        Self { meta, index, packs, verified, fingerprint }
    }
}

impl NodeSource for Nodes {
    fn read_node(&self, fingerprint: &Fingerprint) -> Result<Vec<u8>> {
        let Self { meta, index, packs, verified, fingerprint: kind } = self;
        let verified = verified.as_deref();
        Reader { meta: &**meta, index, packs, verified, fingerprint: *kind, told: None }
            .read_node(fingerprint)
    }
}
