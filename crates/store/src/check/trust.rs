//! Is the store what it was when a head was taken? Is the database what the catalogue says?
//!
//! An attacker who can write where the packs or the database lie can put back what was there
//! before. Every pack and row is then valid by itself. So the catalogue is replayed into a database
//! of its own, which is compared with the present one (`catalogue/proof.rs`). The blocks of the
//! catalogue name each other, and a head that is kept elsewhere names the last of them
//! (`catalogue/chain.rs`).

use std::time::Duration;

use outrigger_clock::Instant;

use super::report::{CheckReport, Finding, FindingKind, Severity};
use super::step;
use crate::catalogue::Head;
use crate::catalogue::proof::{Catalogue, prove};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::CopyNote;
use crate::meta::records::{Record as _, RecordRow};
use crate::meta::{At, SessionKind};
use crate::publish::{CatalogueDebt, is_unpublished};
use crate::store::Store;
use crate::write::append_mark;

/// How far the past is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Nothing.
    #[default]
    No,
    /// The database against the catalogue.
    Present,
    /// That, and that the catalogue has the state with this head.
    Since(Head),
}

/// How long mounts are given to publish what they have changed: they do it after 20 seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often the comparison is repeated if others write meanwhile.
const TRIES: usize = 3;

/// Values that change while others write.
#[derive(PartialEq, Eq)]
struct Writes {
    next_sequence: u64,
    debts: Vec<RecordRow>,
}

impl Writes {
    fn so_far(store: &Store) -> Result<Self> {
        let debts = store.meta.records().records(CatalogueDebt::KIND)?;
        Ok(Self { next_sequence: store.meta.counters()?.next_sequence, debts })
    }
}

/// Adds what it finds to `report`, and a new head if it finds nothing.
pub(super) fn verify(store: &Store, trust: Trust, report: &mut CheckReport) -> Result<()> {
    let head = match trust {
        Trust::No => return Ok(()),
        Trust::Present => None,
        Trust::Since(head) => Some(head),
    };
    if let Some(Err(error)) = head.map(|head| head.require_of(store.config.id)) {
        report.findings.push(finding(error.to_string()));
        return Ok(());
    }
    step("the catalogue's chain");
    store.backend.use_cache(false);
    let verified = compare(store);
    store.backend.use_cache(true);
    let (catalogue, mut findings) = verified?;
    if let Some(Err(error)) = head.map(|head| catalogue.chain.require(&head)) {
        findings.push(finding(error.to_string()));
    }
    report.findings.extend(findings);
    if report.findings.iter().all(|finding| finding.severity != Severity::Damage) {
        match new_head(store, &catalogue) {
            Ok(head) => report.head = Some(head.to_string()),
            Err(error) if error.kind() == ErrorKind::Denied => {
                let what = format!("no new head was made: {error}");
                report.findings.push(Finding::new(FindingKind::Trust, Severity::Note, what));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn finding(what: impl Into<String>) -> Finding {
    Finding::damage(FindingKind::Trust, what)
}

/// Compares the database with the catalogue, while nobody writes.
fn compare(store: &Store) -> Result<(Catalogue, Vec<Finding>)> {
    for _ in 0..TRIES {
        let is_published = wait_until_published(store)?;
        let before = Writes::so_far(store)?;
        let catalogue = Catalogue::read(store)?;
        let mut findings = broken(&catalogue);
        step("the database, compared with the catalogue");
        let differences = prove(store, catalogue.blocks.clone(), At::Now)?;
        let is_still = is_published && before == Writes::so_far(store)?;
        let differs = !differences.is_empty();
        if differs && !is_still {
            if is_published {
                continue;
            }
            break;
        }
        let debt = if before.debts.is_empty() { "" } else { UNPUBLISHED };
        findings.extend(differences.named.into_iter().map(|what| finding(format!("{what}{debt}"))));
        if differences.more > 0 {
            findings.push(finding(format!("and {} more differences", differences.more)));
        }
        if differs {
            let what = format!("if the packs are right and the database is not: {}", store.database_advice());
            findings.push(Finding::new(FindingKind::Trust, Severity::Note, what));
        }
        return Ok((catalogue, findings));
    }
    let why = "others write to the store, so its database cannot be compared with the catalogue: try again when they rest";
    Err(Error::new(ErrorKind::Busy, why))
}

/// Why a difference may be harmless.
const UNPUBLISHED: &str =
    "; a mount that has not published its changes may have made this one: if you know it, `gc` takes it over";

/// Waits for mounts that publish their changes. False if they have not.
fn wait_until_published(store: &Store) -> Result<bool> {
    let began = Instant::now();
    while is_unpublished(&*store.meta)? {
        let debts = store.meta.records().records(CatalogueDebt::KIND)?;
        let sessions = store.meta.sessions()?;
        let is_live = |row: &RecordRow| {
            let debt = serde_json::from_str::<CatalogueDebt>(&row.value).ok();
            let of = debt.and_then(|debt| debt.session());
            of.is_some_and(|of| sessions.iter().any(|session| session.id == of))
        };
        if !debts.iter().any(is_live) {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        outrigger_clock::sleep(Duration::from_millis(200));
    }
    Ok(true)
}

/// Finds damage of the catalogue itself.
fn broken(catalogue: &Catalogue) -> Vec<Finding> {
    let mut findings: Vec<Finding> = catalogue.problems.iter().map(finding).collect();
    let unsealed = catalogue.standing.unsealed.iter().map(|sequence| {
        finding(format!(
            "the catalogue of sequence {sequence} would supersede all before it, and nobody who may do that has sealed it"
        ))
    });
    findings.extend(unsealed);
    findings.extend(catalogue.chain.missing_in_words().map(finding));
    findings
}

/// A head of all that is there.
fn new_head(store: &Store, catalogue: &Catalogue) -> Result<Head> {
    if let Some(head) = catalogue.chain.head(store.config.id) {
        return Ok(head);
    }
    store.require_all_rights()?;
    if CopyNote::read(&*store.meta)?.is_some() {
        // A mark would make it a store of its own.
        return Err(Error::new(ErrorKind::Denied, "this is a copy; take heads in its source"));
    }
    let session = store.session(SessionKind::Writer, "check")?;
    let (sequence, mark) = append_mark(store, &session, &catalogue.chain.tips)?;
    Ok(Head::new(store.config.id, sequence, mark))
}
