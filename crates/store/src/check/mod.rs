//! `check`: is everything there, and is it what it was? And `repair`: mend what can be mended.
//!
//! ```text
//!   database ─▶ roots ─▶ manifest nodes ─▶ chunks in footers      (manifests.rs: each node once)
//!       │                                        │
//!       └─▶ pack rows ─▶ objects ─▶ footers ─▶ frames ─▶ chunks    (packs.rs: each pack once)
//!                                                │
//!               findings ◀───────────────────────┴─▶ files that are hit (affected.rs)
//!                   └─▶ parity.rs, repair.rs, salvage.rs
//! ```
//!
//! A check changes nothing, except that its session's row keeps the collector away meanwhile.
//! Errors of the machine and data of a newer version end it; damage never does: it becomes a
//! [`Finding`].

mod affected;
mod index;
mod manifests;
mod packs;
mod parity;
mod repair;
mod report;
pub(crate) mod salvage;
mod trust;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use outrigger_format::{Fingerprint, PackId};

use crate::error::{Error, ErrorKind, Result};
use crate::layout::CONFIG_FILE;
use crate::meta::{PackRow, PackState};
use crate::note::{Level, note};
use crate::session::Session;
use crate::stale;
use crate::store::Store;
use affected::BadChunks;
use packs::PackFinding;
use parity::{LostFiles, Protection};

pub use crate::backend::DAMAGED_DIR;
pub use report::{AffectedFile, CheckProgress, CheckReport, Finding, FindingKind, Severity};
pub use trust::Trust;

/// The extent of a check, and whether it repairs.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Read every frame of every pack and compute every chunk's fingerprint.
    pub read_data: bool,
    /// Repair what can be repaired.
    pub repair: bool,
    /// Worker threads.
    pub threads: usize,
}

/// Missing chunks named in a finding's sentence.
const NAMED: usize = 3;

/// Checks the store, and repairs it if asked to.
///
/// # Errors
/// `Busy` while the collector runs, `Newer`, `Denied` (repairing a read-only store,
/// or with a key that reads no contents), and failures
/// of the machine. Damage is no error: it is in the report.
pub fn check(store: &Store, options: &CheckOptions, progress: &CheckProgress) -> Result<CheckReport> {
    check_since(store, options, Trust::No, progress)
}

/// Checks the store, and compares it with its past.
///
/// # Errors
/// As [`check`]; `Busy` while others write so much that the database cannot be compared.
pub fn check_since(
    store: &Store,
    options: &CheckOptions,
    trust: Trust,
    progress: &CheckProgress,
) -> Result<CheckReport> {
    store.require_all_contents()?;
    if options.repair {
        store.require_writable()?;
    }
    let mut report = CheckReport::default();
    step("the configuration and the database");
    check_config(store, &mut report);
    let is_sound = check_database(store, &mut report)?;
    // If the database's own totals are wrong, its records of content are still compared with the
    // packs. But nothing is written to it, and no repair relies on it.
    let options = &CheckOptions { repair: options.repair && is_sound, ..*options };
    let from_database = report.clone();
    let session = if is_sound { hold_off_the_collector(store) } else { Ok(None) };
    let checked = session.and_then(|session| {
        let mut checked = check_content(store, options, session.as_ref(), progress, report);
        if let Ok(report) = &mut checked
            && let Err(error) = trust::verify(store, trust, report)
        {
            checked = Err(error);
        }
        if let Some(session) = session {
            // The end of the session would release it, too. A failure here changes no finding.
            let _ = store.meta.release_collector(session.id());
        }
        checked
    });
    match checked {
        // This database cannot lead to anything else.
        Err(error) if !is_sound && is_damage(&error) => Ok(from_database.finish(progress)),
        checked => Ok(checked?.finish(progress)),
    }
}

/// Reports which part is checked next.
fn step(what: &'static str) {
    note(Level::Info, "step", || (what.to_owned(), Vec::new()));
}

fn check_config(store: &Store, report: &mut CheckReport) {
    let what = match store.read_config() {
        Ok(config) if config == store.config => return,
        Ok(_) => format!("{CONFIG_FILE} has changed since the store was opened"),
        Err(error) => error.to_string(),
    };
    report.findings.push(Finding::damage(FindingKind::Database, what));
}

/// Checks the database's own structures; false when nothing more can be asked of it.
fn check_database(store: &Store, report: &mut CheckReport) -> Result<bool> {
    let advice = store.database_advice();
    let found = match store.meta.check() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::Damaged || error.kind() == ErrorKind::Io => {
            vec![error.to_string()]
        }
        Err(error) => return Err(error),
    };
    for what in &found {
        report.findings.push(Finding::damage(FindingKind::Database, format!("metadata: {what}; {advice}")));
    }
    Ok(found.is_empty())
}

/// While this session is the collector, no pack can go away.
fn hold_off_the_collector(store: &Store) -> Result<Option<Arc<Session>>> {
    if store.is_read_only() || store.meta.only_adds().is_some() {
        return Ok(None);
    }
    Ok(Some(store.collector("check")?.0))
}

fn check_content(
    store: &Store,
    options: &CheckOptions,
    session: Option<&Arc<Session>>,
    progress: &CheckProgress,
    mut report: CheckReport,
) -> Result<CheckReport> {
    step("what files need");
    let dropped = index::check_at_open(store, &mut report);
    let mut followed = manifests::follow(store, options.threads, progress)?;
    step("packs");
    // The stored packs are checked, not cached blocks of them.
    store.backend.use_cache(false);
    let found = check_packs(store, options, session, progress, &followed.rows, &mut report);
    store.backend.use_cache(true);
    let (found, lost_files, is_healed) = found?;
    if is_healed {
        followed = manifests::follow(store, options.threads, &CheckProgress::default())?;
    }
    index::check_against_footers(store, &followed.rows, dropped, &mut report)?;
    step("objects and rows that do not belong together");
    let leftovers = check_objects(store, &mut report)?;

    let mut bad: BadChunks = BadChunks::new();
    if options.read_data {
        check_inline(store, progress, &mut bad, &mut report)?;
    }
    // Findings of the packs come after those so far, in their order; then nodes, then missing
    // chunks.
    let first = report.findings.len();
    for (number, found) in found.iter().enumerate() {
        found.bad.iter().for_each(|fingerprint| bad.entry(*fingerprint).or_default().push(first + number));
        report.findings.push(found.finding.clone());
    }
    let nodes = node_findings(&followed.bad_nodes, &mut bad, &mut report);
    let missing = missing_finding(&followed.missing, &found, &mut bad, &mut report);
    affected::name_files(store, &bad, &mut report.findings)?;
    let gone: Vec<PackId> = found.iter().filter_map(|found| found.gone).collect();
    let needless = !gone.is_empty() && repair::needs_none(store, &followed, &gone)?;
    if needless {
        let about = found.iter().zip(&mut report.findings[first..]).filter(|(found, _)| found.gone.is_some());
        for (found, finding) in about {
            let id = found.gone.expect("just looked");
            finding.what = format!(
                "pack {id} is missing, and nothing needs it: all that is stored is found elsewhere; `check --repair` gives it up"
            );
            finding.mendable = true;
        }
    }

    if let (true, Some(session)) = (options.repair, session) {
        let mendable = Mendable {
            found,
            first,
            nodes,
            missing: missing.map(|number| (number, followed.missing.into_iter().collect())),
            needless: if needless { gone } else { Vec::new() },
            leftovers,
        };
        mendable.mend(store, session, options.threads, &mut report.findings)?;
        Protection::mend(store, session, &lost_files, &mut report.findings)?;
    }
    Protection::sum_up(store, &mut report)?;
    Ok(report)
}

/// Checks the packs, and makes those anew for which there is parity, if this is a repair. Returns
/// what is still wrong with packs and parity, and whether any pack was made anew.
fn check_packs(
    store: &Store,
    options: &CheckOptions,
    session: Option<&Arc<Session>>,
    progress: &CheckProgress,
    rows: &[PackRow],
    report: &mut CheckReport,
) -> Result<(Vec<PackFinding>, LostFiles, bool)> {
    let mut found = packs::check_packs(store, rows, options.read_data, options.threads, progress)?;
    found.sort_by_key(|found| (found.finding.pack.clone(), found.finding.frame));
    let Some(parity) = Protection::load(store)? else { return Ok((found, Vec::new(), false)) };
    let healed = match session.filter(|_| options.repair) {
        Some(session) => parity.heal(store, session, rows, &mut found)?,
        None => parity.foresee(store, rows, &mut found).map(|()| Vec::new())?,
    };
    let is_healed = !healed.is_empty();
    report.findings.extend(healed);
    let lost_files = parity.examine(store, options.read_data, progress, report)?;
    Ok((found, lost_files, is_healed))
}

/// What a repair mends. Numbers are positions in the report's findings.
struct Mendable {
    found: Vec<PackFinding>,
    /// The number of the first of `found`; the others come after it, in their order.
    first: usize,
    nodes: Vec<(usize, Fingerprint)>,
    /// Chunks that files need and that are in no pack.
    missing: Option<(usize, Vec<Fingerprint>)>,
    /// Packs that are missing, and that nothing needs.
    needless: Vec<PackId>,
    leftovers: Vec<PackRow>,
}

impl Mendable {
    /// Repairs, and marks the findings that are mended.
    fn mend(
        &self,
        store: &Store,
        session: &Arc<Session>,
        threads: usize,
        findings: &mut [Finding],
    ) -> Result<()> {
        let Self { found, first, .. } = self;
        let salvaged = repair::rewrite_packs(store, session, found)?;
        for (number, found) in found.iter().enumerate() {
            let Some(row) = &found.rewrite else { continue };
            let Some(salvage) = salvaged.get(&row.id) else { continue };
            let whole =
                if found.bad.is_empty() { salvage.losses == 0 } else { all_resolve(store, &found.bad)? };
            findings[first + number].mended = whole;
        }
        for (number, fingerprint) in &self.nodes {
            findings[*number].mended = node_reads(store, fingerprint);
        }
        if let Some((number, missing)) = &self.missing {
            findings[*number].mended = all_resolve(store, missing)?;
        }
        let given_up = match &self.needless[..] {
            [] => Vec::new(),
            needless => repair::give_up_missing(store, session, needless, threads)?,
        };
        for (number, found) in found.iter().enumerate() {
            findings[first + number].mended |= found.gone.is_some_and(|id| given_up.contains(&id));
        }
        repair::replace_lost_catalogue(store, session, found, &mut findings[*first..])?;
        repair::remove_leftovers(store, &self.leftovers, findings)?;
        if findings.iter().any(|finding| finding.kind == FindingKind::Index) {
            repair::drop_index(store)?;
            let about = findings.iter_mut().filter(|finding| finding.kind == FindingKind::Index);
            about.for_each(|finding| finding.mended = true);
        }
        Ok(())
    }
}

/// Compares the chunks that lie in the database with their names.
fn check_inline(
    store: &Store,
    progress: &CheckProgress,
    bad: &mut BadChunks,
    report: &mut CheckReport,
) -> Result<()> {
    let advice = store.database_advice();
    store.meta.inline().visit_inline(&mut |chunk| {
        report::add(&progress.chunks, 1);
        if !chunk.is_whole(store.config.fingerprint) {
            let what = format!("metadata: chunk {} is not what was written; {advice}", chunk.fingerprint);
            bad.entry(chunk.fingerprint).or_default().push(report.findings.len());
            report.findings.push(Finding::damage(FindingKind::Database, what));
        }
        Ok(())
    })
}

fn node_findings(
    bad_nodes: &std::collections::HashMap<Fingerprint, String>,
    bad: &mut BadChunks,
    report: &mut CheckReport,
) -> Vec<(usize, Fingerprint)> {
    let sorted: BTreeMap<&Fingerprint, &String> = bad_nodes.iter().collect();
    let mut numbers = Vec::new();
    for (fingerprint, why) in sorted {
        // Named already with the frame it lies in.
        if bad.contains_key(fingerprint) {
            continue;
        }
        let number = report.findings.len();
        bad.entry(*fingerprint).or_default().push(number);
        report
            .findings
            .push(Finding::damage(FindingKind::Manifest, format!("manifest node {fingerprint}: {why}")));
        numbers.push((number, *fingerprint));
    }
    numbers
}

fn missing_finding(
    missing: &HashSet<Fingerprint>,
    found: &[PackFinding],
    bad: &mut BadChunks,
    report: &mut CheckReport,
) -> Option<usize> {
    if missing.is_empty() {
        return None;
    }
    let number = report.findings.len();
    let mut named: Vec<&Fingerprint> = missing.iter().collect();
    named.sort_unstable();
    let named: Vec<String> = named.iter().take(NAMED).map(|fingerprint| fingerprint.to_string()).collect();
    let more = if missing.len() > NAMED { ", …" } else { "" };
    let what = format!("{} chunks that files need are in no pack: {}{more}", missing.len(), named.join(", "));
    let mut finding = Finding::damage(FindingKind::Missing, what);
    finding.mendable =
        found.iter().any(|found| found.finding.kind == FindingKind::Pack && found.rewrite.is_some());
    report.findings.push(finding);
    missing.iter().for_each(|fingerprint| bad.entry(*fingerprint).or_default().push(number));
    Some(number)
}

fn all_resolve(store: &Store, fingerprints: &[Fingerprint]) -> Result<bool> {
    let mut found = Vec::new();
    store.index.resolve_batch(fingerprints, |_| true, &mut found)?;
    Ok(found.iter().all(Option::is_some))
}

fn node_reads(store: &Store, fingerprint: &Fingerprint) -> bool {
    use crate::read::manifest::NodeSource;
    crate::read::Reader::new(store).read_node(fingerprint).is_ok()
}

/// Objects and rows that do not belong together; returns the rows that a repair sweeps: none while
/// the database is older than its packs.
fn check_objects(store: &Store, report: &mut CheckReport) -> Result<Vec<PackRow>> {
    let unknown = stale::evidence(store)?;
    let rows = store.meta.packs()?;
    let is_older = !unknown.lost.is_empty();
    if is_older {
        let what = format!("{}. {}", stale::describe(&unknown.lost), stale::advice(store));
        report.findings.push(Finding::damage(FindingKind::Database, what));
    }
    for id in unknown.strays.iter().filter(|id| !unknown.lost.contains(id)) {
        let what = format!("pack {id} is a torn object that the database does not know; `gc` removes it");
        let mut finding = Finding::new(FindingKind::Leftover, Severity::Note, what);
        finding.pack = Some(id.to_string());
        report.findings.push(finding);
    }
    let leftovers = repair::leftovers(store, &rows)?;
    for row in &leftovers {
        let is =
            if row.state == PackState::Writing { "was being written" } else { "was sealed, not committed," };
        let advice = if is_older { "it is kept" } else { "`gc` or `check --repair` removes it" };
        let what = format!("pack {} {is} by a session that is over; {advice}", row.id);
        let mut finding = Finding::new(FindingKind::Leftover, Severity::Note, what);
        finding.pack = Some(row.id.to_string());
        finding.mendable = !is_older;
        report.findings.push(finding);
    }
    Ok(if is_older { Vec::new() } else { leftovers })
}

/// True for errors that are findings, not ends.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Io)
}
