//! The catalogue under the collector: finds superseded blocks, and rewrites it when it has grown.
//!
//! Every commit appends to the catalogue, and nothing in it becomes garbage until it is rewritten.
//! A rewrite is a reset, then what `recover` needs to make the tree, its snapshots, versions and
//! policies again (`crate::catalogue::rewrite`), then the end of the reset. All earlier blocks are then
//! superseded, and go like other garbage.
//!
//! **In a shared store** the rewrite runs beside other writers. It describes the tree as it was,
//! pinned, at the instant at which the new catalogue's sequence was taken. A client that took a
//! sequence before and commits later publishes its changes again (`publish.rs`). There the rewrite
//! also runs when a mount could not publish all its changes, or when a snapshot was taken before it
//! had.
//!
//! **In other stores** it runs only while no session writes. A writer takes its block's sequence
//! before its transaction. So a writer at work could commit something that neither the new
//! catalogue nor a block behind it has. Hence no writing session may be open when the new
//! catalogue's sequence has been taken, and no other sequence may be taken until it is written. A
//! writer that begins later takes a later sequence, and comes after it. If a writer does come in
//! between, the attempt is dropped.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_format::catalogue::Record;
use outrigger_format::{Fingerprint, PackId, PackKind};

use super::due::Due;
use super::report::{GcOptions, GcProgress, GcReport};
use crate::catalogue::blocks::{self, FoundBlock};
use crate::catalogue::chain::Standing;
use crate::catalogue::proof::{Catalogue, prove};
use crate::catalogue::rewrite;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::publishing::{Anew, Publishing};
use crate::meta::{At, SessionKind};
use crate::session::Session;
use crate::store::Store;
use crate::write::{append_at, append_records};

/// The catalogue is rewritten when it is so many times as large as it would be then.
const GROWTH: u64 = 2;
/// Records are missing if there are fewer than so many fourths of the inodes: mounts of earlier
/// versions published nothing.
const FOURTHS: u64 = 3;

/// The contents of the catalogue.
#[derive(Default)]
struct Survey {
    bytes: u64,
    records: u64,
    superseded: HashSet<(PackId, u16)>,
    blocks: Vec<FoundBlock>,
}

/// The blocks that a later reset supersedes: (pack, frame).
pub(super) fn survey(store: &Store, report: &mut GcReport) -> Result<HashSet<(PackId, u16)>> {
    let survey = read_blocks(store)?;
    report.catalogue_bytes = survey.bytes;
    Ok(survey.superseded)
}

/// Like [`survey`], after rewriting the catalogue if that is worth it.
pub(super) fn compact_if_grown(
    store: &Store,
    session: &Arc<Session>,
    options: &GcOptions,
    progress: &GcProgress,
    report: &mut GcReport,
) -> Result<HashSet<(PackId, u16)>> {
    let mut survey = read_blocks(store)?;
    report.catalogue_bytes = survey.bytes;
    // Blocks that others name are lost.
    let is_broken = !Catalogue::of(std::mem::take(&mut survey.blocks), Vec::new()).chain.missing.is_empty();
    let due = Due::read(store)?;
    let has_grown = || {
        Ok::<_, Error>(
            survey.bytes > options.catalogue_min && survey.bytes > GROWTH * size_anew(store, &survey)?,
        )
    };
    let otherwise = match due.is_empty() && !is_broken && !misses_some(store, &survey)? {
        // The catalogue lacks something, so the database cannot be what it says.
        false => Otherwise::Accept,
        true if has_grown()? => Otherwise::Refuse,
        true => return Ok(survey.superseded),
    };
    progress.enter("writing the catalogue anew", 0);
    match compact(store, session, otherwise) {
        Ok(()) => {
            due.settle(&*store.meta)?;
            report.catalogue_compacted = true;
            Ok(read_blocks(store)?.superseded)
        }
        // A session is writing; a later run will find a quieter moment.
        Err(error) if error.kind() == ErrorKind::Busy => Ok(survey.superseded),
        Err(error) if error.kind() == ErrorKind::Changed => {
            report.catalogue_differs = true;
            Ok(survey.superseded)
        }
        Err(error) => Err(error),
    }
}

/// True if the catalogue of a shared store cannot have all inodes.
fn misses_some(store: &Store, survey: &Survey) -> Result<bool> {
    if store.meta.publishing().is_none() {
        return Ok(false);
    }
    let totals = store.meta.totals()?;
    let inodes = totals.files + totals.directories + totals.others;
    // The root directory may not have been published.
    Ok((survey.records + 1) * 4 < inodes * FOURTHS)
}

/// Estimates how large the catalogue would be after a rewrite, in stored bytes.
fn size_anew(store: &Store, survey: &Survey) -> Result<u64> {
    let totals = store.meta.totals()?;
    let mut roots = 0;
    store.meta.visit_roots(&mut |_| {
        roots += 1;
        Ok(())
    })?;
    let records = totals.directories + totals.others + totals.files.max(roots);
    Ok(records.saturating_mul(survey.bytes) / survey.records.max(1))
}

/// Reads all blocks. Blocks that cannot be read count as in use: `check` names them.
fn read_blocks(store: &Store) -> Result<Survey> {
    let keys = store.keys().and_then(|keys| keys.content_keys());
    let (mut survey, mut lengths) = (Survey::default(), Vec::new());
    let is_meta = |row: &crate::meta::PackRow| row.kind == PackKind::Meta && row.is_committed();
    for row in store.meta.packs()?.into_iter().filter(is_meta) {
        let Some(footer) = store.index.footers().get(row.id)? else { continue };
        for block in blocks::read(&store.packs, keys, row.id, &footer).flatten() {
            let range = footer.frame_range(block.frame).unwrap_or(0..0);
            survey.records += block.records;
            lengths.push(u64::from(range.end - range.start));
            survey.blocks.push(block);
        }
    }
    let standing = Standing::of(&survey.blocks);
    for (found, bytes) in survey.blocks.iter().zip(lengths) {
        if standing.counts(found.sequence) {
            survey.bytes += bytes;
        } else {
            survey.superseded.insert((found.pack, found.frame));
        }
    }
    Ok(survey)
}

/// The action if the database is not what the catalogue says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Otherwise {
    /// The catalogue is written anew all the same, and stands for no earlier head.
    Accept,
    /// It stays as it is.
    Refuse,
}

/// Rewrites the catalogue; all earlier blocks are superseded. If a head was given out, the database is
/// first compared with the catalogue.
///
/// # Errors
/// `Busy` when a session is writing to a store that is not shared, `Changed` when the database is not
/// what the catalogue says: nothing has changed then.
pub(crate) fn compact(store: &Store, session: &Arc<Session>, otherwise: Otherwise) -> Result<()> {
    match store.meta.publishing() {
        Some(publishing) => compact_beside(store, session, publishing, otherwise),
        None => compact_alone(store, session, otherwise),
    }
}

/// The heads that a reset with this sequence carries on. The tree that it describes is that of `now`.
fn heads(store: &Store, sequence: u64, now: At, otherwise: Otherwise) -> Result<Vec<Record>> {
    let mut blocks = read_blocks(store)?.blocks;
    blocks.retain(|found| found.sequence < sequence);
    let Catalogue { blocks, chain, .. } = Catalogue::of(blocks, Vec::new());
    if chain.heads.is_empty() {
        return Ok(Vec::new());
    }
    let is_proven = chain.missing.is_empty() && prove(store, blocks, now)?.is_empty();
    if !is_proven && otherwise == Otherwise::Refuse {
        return Err(Error::new(ErrorKind::Changed, "the database is not what the catalogue says"));
    }
    let mut heads: Vec<(bool, Fingerprint)> =
        chain.heads.into_iter().map(|(head, was_proven)| (was_proven && is_proven, head)).collect();
    heads.sort_unstable();
    let records = heads.chunk_by(|one, other| one.0 == other.0).map(|heads| Record::Heads {
        is_proven: heads[0].0,
        heads: heads.iter().map(|(_, head)| *head).collect(),
    });
    Ok(records.collect())
}

/// Rewrites while others write.
fn compact_beside(
    store: &Store,
    session: &Arc<Session>,
    publishing: &dyn Publishing,
    otherwise: Otherwise,
) -> Result<()> {
    // Kept open while the tree is read.
    let reader = store.session(SessionKind::Reader, "catalogue")?;
    let Anew { sequence, epoch } = publishing.begin_anew(reader.id())?;
    let heads = heads(store, sequence, At::Epoch(epoch), otherwise)?;
    rewrite::stream(store, At::Epoch(epoch), |records, whole| {
        let after = || require_whole(whole);
        let records = records.into_iter().chain(heads.into_iter().map(Ok));
        let guarded = Guarded { records, before: &|| Ok(()), after: &after, state: Guard::Before };
        append_at(store, session, sequence, guarded)
    })
}

/// Checks that all records have been made.
fn require_whole(whole: &AtomicBool) -> Result<()> {
    if whole.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, "the thread that reads the tree ended: please report this"))
}

fn compact_alone(store: &Store, session: &Arc<Session>, otherwise: Otherwise) -> Result<()> {
    let busy = || Error::new(ErrorKind::Busy, "the catalogue is being written to");
    // An expired session could go on with a sequence that it took before.
    let require_alone = || match store.live_sessions(|row| row.kind == SessionKind::Writer)?.is_empty() {
        true => Ok(()),
        false => Err(busy()),
    };
    require_alone()?;
    let first = store.meta.next_sequence()?;
    let heads = match heads(store, first, At::Now, otherwise) {
        // A writer came in between: what it has stored is no difference.
        Err(error) if error.kind() == ErrorKind::Changed && store.meta.next_sequence()? != first + 1 => {
            return Err(busy());
        }
        heads => heads?,
    };
    rewrite::stream(store, At::Now, |records, whole| {
        // Runs when all records have been made. Only our sequence may lie between these two.
        let after = || -> Result<()> {
            require_whole(whole)?;
            if store.meta.next_sequence()? == first + 2 { Ok(()) } else { Err(busy()) }
        };
        let records = records.into_iter().chain(heads.into_iter().map(Ok));
        append_records(
            store,
            session,
            // The first runs when the sequence of the new blocks has been taken.
            Guarded { records, before: &require_alone, after: &after, state: Guard::Before },
        )
        .map(drop)
    })
}

enum Guard {
    Before,
    Within,
    After,
}

/// The records, with a check before the first and after the last.
struct Guarded<'a, I> {
    records: I,
    before: &'a dyn Fn() -> Result<()>,
    after: &'a dyn Fn() -> Result<()>,
    state: Guard,
}

impl<I: Iterator<Item = Result<Record>>> Iterator for Guarded<'_, I> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        match self.state {
            Guard::Before => {
                self.state = Guard::Within;
                match (self.before)() {
                    Ok(()) => Some(Ok(Record::Reset)),
                    Err(error) => Some(Err(error)),
                }
            }
            Guard::Within => self.records.next().or_else(|| {
                self.state = Guard::After;
                (self.after)().err().map(Err)
            }),
            Guard::After => None,
        }
    }
}
