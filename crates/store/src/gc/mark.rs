//! Marking: from roots to bits (rules 16 and 19).
//!
//! ```text
//!  database snapshot ──roots──▶ work stack ◀──children── threads: resolve (index), mark, read nodes, verify
//! ```
//!
//! The roots stream out of one read transaction; the thread that lists them waits while the stack
//! is long. A thread takes a batch of roots or of nodes, looks up the chunks of the whole batch in
//! the index, and sets their bits. A manifest node is a chunk like others. The thread that sets its
//! bit also reads it, so equal subtrees are read once, in both marks together. Memory: a bit for
//! each chunk, a short stack, and the digests of the first million roots, which let the second mark
//! skip roots that the first has seen.
//!
//! A place counts only in packs that were committed before the snapshot was taken. A chunk that is
//! in none of them was committed in between, or a damaged index run hides it. It is put aside, and
//! looked up again once the index covers all packs of the snapshot. If it is still missing, it is
//! inline (`crate::inline`), has been packed since, or is damage, which ends the run. An inline
//! node has no bit; its children are marked all the same.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use outrigger_format::{ChunkKind, Fingerprint, FingerprintKind, PackId, PackKind, Place, Root};

use super::bits::Bits;
use super::report::GcProgress;
use super::walk::{Aside, Job, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::PackRow;
use crate::store::Store;

/// Roots handed over at once.
const ROOTS_AT_ONCE: usize = 256;
/// Digests of roots kept: 16 bytes each.
const SEEN_MAX: usize = 1 << 20;

/// Marks, kept from the first mark to the second.
#[derive(Default)]
pub(super) struct Marker {
    /// The chunks in use.
    pub bits: Bits,
    /// Roots listed.
    pub roots: u64,
    /// Manifest nodes read, counted by the threads.
    pub(super) nodes: Mutex<u64>,
    seen: HashSet<u128>,
    blocks: HashMap<Fingerprint, Place>,
    /// Catalogue blocks that a later one supersedes: (pack, frame).
    pub superseded: HashSet<(PackId, u16)>,
}

impl Marker {
    /// Manifest nodes read.
    pub fn nodes(&self) -> u64 {
        *self.nodes.lock().expect("no panic while held")
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> u64 {
        let seen = self.seen.capacity() * (size_of::<u128>() + 1);
        let blocks = self.blocks.capacity() * size_of::<(Fingerprint, Place)>();
        (self.bits.memory() + seen + blocks) as u64
    }

    /// Marks everything that is retained in one snapshot of the database, and returns the rows of
    /// its committed packs.
    ///
    /// # Errors
    /// `Damaged` names a chunk that a retained file needs and no pack has.
    pub fn mark(&mut self, store: &Store, threads: usize, progress: &GcProgress) -> Result<Vec<PackRow>> {
        let before: Vec<PackRow> = store.meta.packs()?.into_iter().filter(PackRow::is_committed).collect();
        self.admit(store, &before)?;
        let (rows, (chunks, nodes)) = self.walk(store, threads, progress)?;
        self.admit(store, &rows)?;
        require_objects(store, &rows)?;
        self.mark_blocks(store, &rows)?;
        if !chunks.is_empty() || !nodes.is_empty() {
            let job = Job::new(store, self, progress);
            job.submit(Work::Nodes(nodes))?;
            job.close();
            job.mark_chunks(&chunks)?;
            job.work();
            let (mut chunks, mut nodes) = job.finish()?;
            while !nodes.is_empty() {
                let job = Job::new(store, self, progress);
                let below = job.mark_below(nodes)?;
                job.submit(Work::Nodes(below))?;
                job.close();
                job.work();
                let aside = job.finish()?;
                chunks.extend(aside.0);
                nodes = aside.1;
            }
            let chunks = without_inline(store, chunks)?;
            if let Some(fingerprint) = chunks.first() {
                return Err(Error::damaged(format!(
                    "chunk {fingerprint}, which a stored file needs, is in no pack; `check` names the file"
                )));
            }
        }
        Ok(rows)
    }

    /// Makes sure that the index finds the chunks of the packs `rows`.
    fn admit(&mut self, store: &Store, rows: &[PackRow]) -> Result<()> {
        self.bits.admit(rows);
        let ids: Vec<PackId> = rows.iter().map(|row| row.id).collect();
        store.index.cover(&ids)?;
        match store.index.missing(&ids).first() {
            None => Ok(()),
            Some(&pack) => Err(match store.packs.read_footer(pack) {
                Err(error) if error.kind() == ErrorKind::NotFound => Error::damaged(error.to_string()),
                Err(error) => error,
                Ok(_) => Error::new(ErrorKind::Busy, format!("pack {pack} is being repaired; try again")),
            }),
        }
    }

    fn walk(
        &mut self,
        store: &Store,
        threads: usize,
        progress: &GcProgress,
    ) -> Result<(Vec<PackRow>, Aside)> {
        let (mut seen, mut roots) = (std::mem::take(&mut self.seen), 0);
        let job = Job::new(store, self, progress);
        let listed = std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| job.work());
            }
            let mut batch = Vec::new();
            let listed = store.meta.visit_roots(&mut |root| {
                roots += 1;
                if is_new(&mut seen, &root) {
                    batch.push(root);
                }
                if batch.len() < ROOTS_AT_ONCE {
                    Ok(())
                } else {
                    job.submit(Work::Roots(std::mem::take(&mut batch)))
                }
            });
            let listed = listed.and_then(|rows| job.submit(Work::Roots(batch)).map(|()| rows));
            job.close();
            listed
        });
        // A thread that failed knows why; the listing only knows that it was stopped.
        let aside = job.finish();
        self.roots = roots;
        let rows = match aside {
            Ok(aside) => (listed?, aside),
            Err(error) => return Err(error),
        };
        self.seen = seen;
        Ok(rows)
    }

    /// Catalogue blocks are roots of their own; of equal ones (an interrupted run leaves such) the
    /// one in the lowest pack counts.
    fn mark_blocks(&mut self, store: &Store, rows: &[PackRow]) -> Result<()> {
        let mut metas: Vec<PackId> =
            rows.iter().filter(|row| row.kind == PackKind::Meta).map(|row| row.id).collect();
        metas.sort_unstable();
        for pack in metas {
            let footer = store.index.footers().get(pack)?;
            let footer =
                footer.ok_or_else(|| Error::damaged(format!("pack {pack} has no readable footer")))?;
            for (slot, fingerprint) in (0..).zip(footer.fingerprints()) {
                let Some((frame, _)) = footer.position(slot) else { continue };
                if footer.frames()[frame as usize].kind != ChunkKind::Catalogue
                    || self.superseded.contains(&(pack, frame))
                {
                    continue;
                }
                let place = Place { pack, slot };
                if *self.blocks.entry(*fingerprint).or_insert(place) == place {
                    self.bits.set(place)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns those of the needed chunks that are really missing: neither in a pack of the snapshot,
/// nor inline, nor packed since. Packs that are newer than the snapshot are no candidates, as it
/// does not have them.
pub(crate) fn without_inline(store: &Store, mut chunks: Vec<Fingerprint>) -> Result<Vec<Fingerprint>> {
    if chunks.is_empty() {
        return Ok(chunks);
    }
    let inline = store.meta.inline().inline_among(&chunks)?;
    chunks.retain(|chunk| !inline.contains(chunk));
    if !chunks.is_empty() {
        let committed: HashSet<PackId> = store.committed_packs()?.into_iter().collect();
        store.refresh_index()?;
        let mut found = Vec::new();
        store.index.resolve_batch(&chunks, |pack| committed.contains(&pack), &mut found)?;
        let mut found = found.into_iter();
        chunks.retain(|_| found.next().flatten().is_none());
    }
    Ok(chunks)
}

/// A chunk's mark must not go to a pack that is not there while a good copy of it is taken for
/// garbage.
fn require_objects(store: &Store, rows: &[PackRow]) -> Result<()> {
    for row in rows {
        match store.backend.len(row.id)? {
            Some(len) if len == row.bytes => {}
            Some(len) => {
                let why = format!("pack {} is {len} bytes long and should be {}", row.id, row.bytes);
                return Err(Error::damaged(why));
            }
            None => return Err(Error::damaged(format!("pack {} is missing", row.id))),
        }
    }
    Ok(())
}

/// False when a root was seen before, as far as that is remembered.
fn is_new(seen: &mut HashSet<u128>, root: &Root) -> bool {
    let digest = outrigger_offload::hash(FingerprintKind::Blake3, &root.encode());
    let mut half = [0; 16];
    half.copy_from_slice(&digest.0[..16]);
    let half = u128::from_le_bytes(half);
    if seen.len() < SEEN_MAX { seen.insert(half) } else { !seen.contains(&half) }
}
