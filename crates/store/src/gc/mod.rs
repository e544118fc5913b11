//! The collector: finds data that nothing refers to any more, and frees its space, while others
//! read and write.
//!
//! The rules are those of `docs/decisions/0003-reclaim-protocol.md`, named here by number. A run,
//! in order:
//!
//! | step | rules | file |
//! | --- | --- | --- |
//! | fence sessions without a process, become the collector, sweep their leftovers | 11, 14, 15 | `sweep.rs` |
//! | pack inline chunks of ended sessions; release the prefixes that they stored of open files | | `crate::inline`, `crate::increments` |
//! | drop history that no snapshot sees; rewrite the catalogue if it has grown | | `catalogue.rs`, `crate::catalogue` |
//! | mark all that is retained, in one snapshot of the database | 16 | `mark.rs`, `walk.rs`, `bits.rs` |
//! | judge the packs, mark those worth emptying as deletion candidates | 17 | `plan.rs`, `recompress.rs`, `localize.rs` |
//! | wait until every writer has acknowledged | 18 | here |
//! | mark what is retained by now; packs that sessions unmarked are no victims | 19 | `mark.rs` |
//! | if a chunk has several copies, verify the one that counts | 16 | `duplicates.rs` |
//! | group by group: copy, make durable, delete, unlink | 20, 21, 22 | `copy.rs`, `frame.rs` |
//! | make parity, if the store has it | | `crate::parity` |
//! | end the run; sweep, unlink, tidy; renew object locks | 22 | `sweep.rs`, `locks.rs` |
//!
//! While the store has parity, deleted packs are unlinked only at the end, behind the parity that
//! does without them: until then others can be made anew with their help.
//!
//! A failure before the first deletion leaves the store as it was, except for swept packs; a later
//! one keeps the groups that were deleted before. No run needs to understand the state of a run
//! that died.

mod bits;
mod catalogue;
mod copy;
mod due;
mod duplicates;
mod frame;
mod last;
mod localize;
mod locks;
mod mark;
mod plan;
mod recompress;
mod report;
mod sweep;
mod walk;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::PackId;

pub(crate) use self::catalogue::{Otherwise, compact as write_catalogue_anew};
use self::copy::Copier;
pub use self::last::{Collecting, LastGc};
use self::localize::Gather;
pub use self::localize::{Localize, LocalizeReport, localize};
use self::mark::Marker;
pub(crate) use self::mark::without_inline;
use self::recompress::Targets;
pub use self::recompress::{Recompress, RecompressReport, recompress};
pub use self::report::{GcOptions, GcProgress, GcReport};
use crate::error::{Error, ErrorKind, Result};
use crate::increments;
use crate::inline;
use crate::lock_files::remove_old_locks;
use crate::meta::{PackRow, PackState, SessionKind, is_gone};
use crate::parity::{self, Upkeep};
use crate::policy::ParitySpec;
use crate::session::Session;
use crate::stale;
use crate::store::Store;

/// Time between two looks at the acknowledgements.
const POLL: Duration = Duration::from_millis(50);
/// A group of victims ends when so many packs' worth of chunks was copied.
const GROUP_PACKS: u64 = 2;

/// Reclaims data that nothing refers to. Others may read and write meanwhile; a second collector is
/// refused.
///
/// [`GcReport::unreadable`] names packs that should have been emptied and could not be read. The
/// run leaves them as they are.
///
/// # Errors
/// `Busy` when another run is at work, or a session does not acknowledge in time; `Damaged` when
/// needed data is missing, and then nothing was reclaimed; `Fenced` when another run took over;
/// failures of the store. Space that was reclaimed before stays so.
pub fn collect(store: &Store, options: &GcOptions, progress: &GcProgress) -> Result<GcReport> {
    if options.dry_run {
        return dry_run(store, options, progress);
    }
    store.require_writable()?;
    store.require_may_remove("remove packs")?;
    let (mut report, began) = (GcReport::default(), Instant::now());
    progress.enter("preparing", 0);
    let (session, fenced) = store.collector("gc")?;
    report.sessions_fenced += fenced;
    // If the database is stale, neither the run nor the cleanup after it may remove anything.
    let strays = match stale::refuse(store) {
        Ok(strays) => strays,
        Err(error) => {
            // The end of the session would release it, too.
            let _ = store.meta.release_collector(session.id());
            return Err(error);
        }
    };
    let begun = store.meta.now()?;
    let has_parity = ParitySpec::of(store)?.is_some();
    let run = Run { store, options, progress, session: &session, begun, has_parity };
    run.is_at("beginning");
    let ended = run.run(&strays, &mut report).and_then(|()| run.keep_parity(&mut report));
    // `status` does without.
    if let Ok(Some(own)) = store.registry().find(|run: &Collecting| run.session == session.id()) {
        let _ = store.registry().take_read(&own);
    }
    // Old parity still needs the packs that were deleted, unless there is new parity.
    let is_held = report.parity.groups_held > 0 && !report.parity.is_full;
    let keeps_dead = has_parity && (ended.is_err() || is_held);
    let released = store.meta.release_collector(session.id());
    // If another run has taken over, that run may have moved the data that this one found missing.
    let is_over = matches!(&released, Err(error) if error.kind() == ErrorKind::Fenced);
    let ended = if is_over { Ok(()) } else { ended };
    // Packs that this run could not finish are swept like any other session's, so it must be over
    // first.
    drop(session);
    progress.enter("removing", 0);
    let swept = clean_up(store, options, keeps_dead, &mut report);
    ended.and(released).and(swept)?;
    locks::renew(store, &mut report)?;
    // Runs that recompress or localize reclaim as well, but each is for a part of the store, so
    // they do not count as the last run.
    if options.recompress.is_none() && options.localize.is_none() {
        // The run is through whether or not `status` can show it.
        let _ = store.registry().put(&LastGc::of(&report, began.elapsed()));
    }
    Ok(report)
}

/// The last steps, which are done however the run ended.
fn clean_up(store: &Store, options: &GcOptions, keeps_dead: bool, report: &mut GcReport) -> Result<()> {
    report.packs_swept += store.meta.sweep_packs(store.meta.now()?)?;
    let rows = store.meta.packs()?;
    if !keeps_dead {
        sweep::unlink_dead(store, &rows, options, report)?;
    }
    let committed = rows.iter().filter(|row| row.is_committed());
    (report.packs_after, report.bytes_after) =
        committed.fold((0, 0), |(packs, bytes), row| (packs + 1, bytes + row.bytes));
    remove_old_locks(&*store.meta, &store.locks_dir());
    if report.packs_buried > 0 {
        store.index.flush()?;
        store.index.merge()?;
    }
    store.meta.tidy()
}

/// Reports what a run would do now.
fn dry_run(store: &Store, options: &GcOptions, progress: &GcProgress) -> Result<GcReport> {
    let mut report = GcReport { dry_run: true, ..GcReport::default() };
    report.parity = parity::reach(store)?.map_or_else(Upkeep::default, Upkeep::from);
    if let Some(other) = sweep::other_collector(store)? {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("session {other}, a `gc` or `copy`, is collecting; try again when it has finished"),
        ));
    }
    let strays = stale::refuse(store)?;
    sweep::unlink_dead(store, &store.meta.packs()?, options, &mut report)?;
    sweep::remove_strays(store, &strays, options, &mut report)?;
    let mut marker = Marker::default();
    marker.superseded = catalogue::survey(store, &mut report)?;
    let aims = Aims::load(store, options)?;
    let (_, marked) = mark_and_judge(store, &mut marker, &aims, options, progress, &mut report)?;
    report.packs_marked = marked.len() as u64;
    report.packs_after = report.packs_before - report.packs_marked;
    let kept = marked.iter().filter(|row| marker.bits.pack(row.id).is_some_and(|bits| bits.count() > 0));
    let mut copied = 0;
    for row in kept {
        let bits = marker.bits.pack(row.id).expect("just seen");
        report.chunks_copied += u64::from(bits.count());
        copied += store.index.footers().get(row.id)?.map_or(row.bytes, |footer| bits.live_bytes(&footer));
    }
    let going: u64 = marked.iter().map(|row| row.bytes).sum();
    report.bytes_copied = copied;
    report.packs_after += copied.div_ceil(store.config.pack_size.into());
    report.bytes_after = report.bytes_before.saturating_sub(going) + copied;
    report.bytes_freed += going;
    Ok(report)
}

/// The aims of a run besides reclaiming.
struct Aims {
    /// The codecs to which it brings frames.
    targets: Option<Targets>,
    /// The data that it gathers on one host.
    gather: Option<Gather>,
}

impl Aims {
    fn load(store: &Store, options: &GcOptions) -> Result<Self> {
        let targets = options.recompress.as_ref().map(|how| Targets::load(store, how)).transpose()?;
        let gather = options.localize.as_ref().map(|how| Gather::load(store, how)).transpose()?;
        Ok(Self { targets, gather })
    }

    /// Raw bytes that it copies a second at most; 0: as fast as it goes.
    fn bytes_per_sec(&self) -> u64 {
        let rate = self.targets.as_ref().map(|targets| targets.bytes_per_sec);
        rate.or(self.gather.as_ref().map(|gather| gather.bytes_per_sec)).unwrap_or(0)
    }
}

/// The first mark and its judgement: returns all committed rows, and the candidates among them.
fn mark_and_judge(
    store: &Store,
    marker: &mut Marker,
    aims: &Aims,
    options: &GcOptions,
    progress: &GcProgress,
    report: &mut GcReport,
) -> Result<(Vec<PackRow>, Vec<PackRow>)> {
    let began = Instant::now();
    progress.enter("marking", 0);
    let rows = marker.mark(store, options.threads(), progress)?;
    (report.roots, report.nodes, report.chunks) = (marker.roots, marker.nodes(), marker.bits.count());
    report.mark_memory = marker.memory();
    let mut marked = plan::judge(store, &rows, &marker.bits, options, report)?;
    if let Some(gather) = &aims.gather {
        let scattered = gather.scattered(&rows);
        (report.packs_elsewhere, report.bytes_elsewhere) = (scattered.len() as u64, gather.bytes_elsewhere);
        marked.extend(scattered);
    }
    if let Some(targets) = &aims.targets {
        let outdated = targets.outdated(store, &rows)?;
        report.packs_outdated = outdated.len() as u64;
        marked.extend(outdated);
    }
    report.mark_ms += began.elapsed().as_millis() as u64;
    let chosen: HashSet<PackId> = marked.into_iter().collect();
    let marked = rows.iter().filter(|row| chosen.contains(&row.id)).cloned().collect();
    Ok((rows, marked))
}

/// A run that holds the lease.
struct Run<'a> {
    store: &'a Store,
    options: &'a GcOptions,
    progress: &'a GcProgress,
    session: &'a Arc<Session>,
    /// By the database's clock.
    begun: u64,
    /// The store's policy asks for parity.
    has_parity: bool,
}

impl Run<'_> {
    fn at(&self, phase: &str) -> Collecting {
        Collecting { session: self.session.id(), phase: phase.to_owned(), began: self.begun, age: 0 }
    }

    /// Says what the run is at, for `status`. It goes on whether or not that can be done.
    fn is_at(&self, phase: &str) {
        let _ = self.store.registry().put(&self.at(phase));
    }

    fn run(&self, strays: &[PackId], report: &mut GcReport) -> Result<()> {
        let Self { store, options, progress, session, .. } = *self;
        report.packs_swept = store.meta.sweep_packs(store.meta.now()?)?;
        sweep::remove_strays(store, strays, options, report)?;
        if !self.has_parity {
            sweep::unlink_dead(store, &store.meta.packs()?, options, report)?;
        }
        match inline::pack_left(store, options.threads()) {
            Ok(packed) => report.chunks_packed = packed,
            // The unreadable packs stay where they are.
            Err(error) if error.kind() == ErrorKind::Damaged => report.unreadable.push(error.to_string()),
            Err(error) => return Err(error),
        }
        increments::sweep(store)?;
        report.history_rows = store.meta.purge_history()?;
        let mut marker = Marker::default();
        marker.superseded = catalogue::compact_if_grown(store, session, options, progress, report)?;

        let aims = Aims::load(store, options)?;
        self.is_at("marking");
        let (_, marked) = mark_and_judge(store, &mut marker, &aims, options, progress, report)?;
        if marked.is_empty() {
            return Ok(());
        }
        let ids: Vec<PackId> = marked.iter().map(|row| row.id).collect();
        report.packs_marked = ids.len() as u64;
        let generation = store.meta.mark_candidates(session.id(), &ids)?;
        self.is_at("waiting for sessions");
        self.wait(generation, report)?;

        self.is_at("marking what is new");
        let began = Instant::now();
        progress.enter("marking what is new", 0);
        let rows = marker.mark(store, options.threads(), progress)?;
        report.mark_ms += began.elapsed().as_millis() as u64;
        report.mark_memory = report.mark_memory.max(marker.memory());
        let victims: Vec<&PackRow> = rows.iter().filter(|row| row.state == PackState::Candidate).collect();
        report.packs_reprieved = report.packs_marked.saturating_sub(victims.len() as u64);

        self.is_at("copying what is in use");
        let began = Instant::now();
        let done = self.empty(&victims, &marker, &aims, report);
        report.copy_ms = began.elapsed().as_millis() as u64;
        done
    }

    /// Rule 18.
    fn wait(&self, generation: u64, report: &mut GcReport) -> Result<()> {
        let (began, locks) = (Instant::now(), self.store.locks_dir());
        let limit = Duration::from_secs(self.options.wait_secs);
        loop {
            let waited = began.elapsed();
            report.waited_ms = waited.as_millis() as u64;
            if self.store.meta.all_acknowledged(generation)? {
                return Ok(());
            }
            let mut slow = None;
            for row in self.store.meta.sessions()? {
                if row.kind != SessionKind::Writer || row.acknowledged >= generation {
                    continue;
                }
                if is_gone(&row, Some(&locks)) {
                    self.store.meta.fence(row.id)?;
                    report.sessions_fenced += 1;
                } else {
                    slow.get_or_insert(row);
                }
            }
            let Some(slow) = slow else { continue };
            self.session.check()?;
            self.progress.enter(format!("waiting for session {} ({})", slow.id.0, slow.owner), 0);
            if waited >= limit {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "session {} ({}) has not acknowledged the run for {} s; nothing was reclaimed",
                        slow.id.0,
                        slow.owner,
                        limit.as_secs()
                    ),
                ));
            }
            outrigger_clock::sleep(POLL);
        }
    }

    /// Rules 20 to 22, group by group.
    fn empty(&self, victims: &[&PackRow], marker: &Marker, aims: &Aims, report: &mut GcReport) -> Result<()> {
        duplicates::keep_unproven(self.store, victims, marker, report)?;
        let in_use = |row: &PackRow| marker.bits.pack(row.id).is_some_and(|bits| bits.count() > 0);
        let (mut full, empty): (Vec<&PackRow>, Vec<&PackRow>) =
            victims.iter().copied().partition(|row| in_use(row));
        // Packs that need no copying go first: they free the space that copies need.
        self.delete_packs(&[], empty.iter().map(|row| row.id).collect(), report)?;
        full.sort_by_key(|row| row.id);
        self.progress.enter("copying what is in use", report_total(&full, marker, self.store)?);
        let threads = self.options.threads();
        let mut copier = Copier::new(self.store, self.session, threads, self.progress, aims);
        let group_bytes = GROUP_PACKS * u64::from(self.store.config.pack_size);
        let (mut group, mut before) = (Vec::new(), report.bytes_copied);
        let mut raw = 0;
        for (at, row) in full.iter().enumerate() {
            self.session.check()?;
            let bits = marker.bits.pack(row.id).expect("it has marks");
            match copier.copy(row.id, bits, report) {
                // The packs that were emptied so far are gone, and the others stay as they are.
                Err(error) if error.kind() == ErrorKind::Full => {
                    report.packs_without_room = (full.len() - at + group.len()) as u64;
                    return Ok(());
                }
                Err(error) => return Err(error),
                Ok(Ok(())) => group.push(row.id),
                Ok(Err(error)) => {
                    // If the object is gone because another run has taken over, this transaction
                    // says so.
                    self.store.meta.unmark(self.session.id(), &[row.id])?;
                    report.unreadable.push(format!("pack {}: {error}", row.id));
                }
            }
            raw += row.bytes;
            let copied = report.bytes_copied - before;
            if at + 1 == full.len() || copied >= group_bytes || raw >= 4 * group_bytes {
                let copies = match copier.finish_group(report) {
                    Err(error) if error.kind() == ErrorKind::Full => {
                        report.packs_without_room = (full.len() - at - 1 + group.len()) as u64;
                        return Ok(());
                    }
                    copies => copies?,
                };
                self.delete_packs(&copies, std::mem::take(&mut group), report)?;
                (before, raw) = (report.bytes_copied, 0);
            }
        }
        Ok(())
    }

    /// Rule 21, and 22 at once if there is no grace period.
    fn delete_packs(&self, copies: &[PackId], victims: Vec<PackId>, report: &mut GcReport) -> Result<()> {
        if copies.is_empty() && victims.is_empty() {
            return Ok(());
        }
        let store = self.store;
        store.meta.delete_packs(self.session.id(), copies, &victims, store.meta.now()?)?;
        let victims: HashSet<PackId> = victims.into_iter().collect();
        let mut rows = store.meta.packs()?;
        rows.retain(|row| victims.contains(&row.id) && row.state == PackState::Dead);
        report.packs_buried += rows.len() as u64;
        let buried: Vec<PackId> = rows.iter().map(|row| row.id).collect();
        store.index.remove_packs(&buried);
        if self.has_parity {
            return Ok(());
        }
        sweep::unlink_dead(store, &rows, self.options, report)
    }

    /// Brings parity up to date, before anything is unlinked that it was made of.
    fn keep_parity(&self, report: &mut GcReport) -> Result<()> {
        self.is_at("making parity");
        self.progress.enter("making parity", 0);
        let upkeep = parity::keep(self.store, self.session, &BTreeSet::new())?;
        report.unreadable.extend(upkeep.unreadable.iter().cloned());
        report.parity = upkeep;
        Ok(())
    }
}

/// Bytes to copy, for the display.
fn report_total(victims: &[&PackRow], marker: &Marker, store: &Store) -> Result<u64> {
    let mut total = 0;
    for row in victims {
        if let (Some(bits), Some(footer)) = (marker.bits.pack(row.id), store.index.footers().get(row.id)?) {
            total += bits.live_bytes(&footer);
        }
    }
    Ok(total)
}
