//! Parity in a check: damaged packs that can be made anew from it, parity files that are lost, and
//! packs that it does not protect yet.
//!
//! A repair makes packs anew before anything else is repaired, as that restores all of them. Then
//! the roots are followed again, and the rest is repaired. Lost parity files come last: their groups
//! are replaced, with the packs as the repair has left them.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_format::PackId;

use super::packs::PackFinding;
use super::report::{CheckProgress, CheckReport, Finding, FindingKind, Severity, add};
use crate::error::Result;
use crate::meta::PackRow;
use crate::parity::{self, Group, Healer};
use crate::policy::ParitySpec;
use crate::session::Session;
use crate::store::Store;

/// The parity of a store.
pub(super) struct Protection {
    groups: Vec<Group>,
    spec: Option<ParitySpec>,
}

/// Groups with lost files, and the positions of their findings in the report.
pub(super) type LostFiles = Vec<(u64, usize)>;

impl Protection {
    /// Reads what there is; `None` if the store has no parity and should have none.
    pub fn load(store: &Store) -> Result<Option<Self>> {
        let (groups, spec) = (parity::survey(store)?, ParitySpec::of(store)?);
        Ok((spec.is_some() || !groups.is_empty()).then_some(Self { groups, spec }))
    }

    /// Makes the packs of `found` anew, as far as that can be done; takes their findings out, and
    /// returns them.
    pub fn heal(
        &self,
        store: &Store,
        session: &Session,
        rows: &[PackRow],
        found: &mut Vec<PackFinding>,
    ) -> Result<Vec<Finding>> {
        let mut healer = Healer::new(store, session, &self.groups);
        let mut healed = BTreeSet::new();
        for (id, numbers) in by_pack(rows, found) {
            let row = rows.iter().find(|row| row.id == id).expect("it is among them");
            let first = &mut found[numbers[0]].finding;
            match healer.heal(row)? {
                Ok(()) => {
                    first.what += "; the pack was made anew from parity";
                    healed.insert(id.to_string());
                }
                Err(why) => first.what += &format!("; parity cannot make it anew: {why}"),
            }
        }
        let is_healed =
            |found: &PackFinding| found.finding.pack.as_ref().is_some_and(|id| healed.contains(id));
        let (done, rest) = std::mem::take(found).into_iter().partition(is_healed);
        *found = rest;
        let done: Vec<PackFinding> = done;
        Ok(done.into_iter().map(|found| Finding { mendable: true, mended: true, ..found.finding }).collect())
    }

    /// Says which of the packs of `found` a repair could make anew, as far as that shows without
    /// reading their groups.
    pub fn foresee(&self, store: &Store, rows: &[PackRow], found: &mut [PackFinding]) -> Result<()> {
        let by_pack = by_pack(rows, found);
        let is_there = |id: PackId| {
            Ok::<_, crate::Error>(store.backend.stored().unwrap_or(&*store.backend).len(id)?.is_some())
        };
        for (id, numbers) in &by_pack {
            let of = |group: &&Group| group.members().iter().any(|member| member.pack == *id);
            let Some(group) = self.groups.iter().find(of) else {
                if self.spec.is_some() {
                    found[numbers[0]].finding.what += "; it is not protected by parity";
                }
                continue;
            };
            let files = group.about().map_or(0, |about| usize::from(about.files));
            let mut lost = group.lost_files().len();
            for member in group.members() {
                lost += usize::from(by_pack.contains_key(&member.pack) || !is_there(member.pack)?);
            }
            let first = &mut found[numbers[0]].finding;
            if lost > files {
                first.what += &format!(
                    "; parity cannot make it anew: {lost} of the {} packs and {files} parity files of its group are lost or damaged, and only {files} can be made anew",
                    group.members().len()
                );
                continue;
            }
            first.what += "; `check --repair` makes the pack anew from parity";
            numbers.iter().for_each(|number| found[*number].finding.mendable = true);
        }
        Ok(())
    }

    /// Reports lost parity files; with `read_data` also those whose parity has changed.
    pub fn examine(
        &self,
        store: &Store,
        read_data: bool,
        progress: &CheckProgress,
        report: &mut CheckReport,
    ) -> Result<LostFiles> {
        let mut lost = Vec::new();
        // Without the policy the collector removes them all.
        for group in self.groups.iter().filter(|_| self.spec.is_some()) {
            let what = self.wrong_with(store, group, read_data, progress)?;
            let Some(what) = what else { continue };
            lost.push((group.number, report.findings.len()));
            let mut finding = Finding::damage(FindingKind::Parity, what);
            finding.mendable = true;
            report.findings.push(finding);
        }
        Ok(lost)
    }

    fn wrong_with(
        &self,
        store: &Store,
        group: &Group,
        read_data: bool,
        progress: &CheckProgress,
    ) -> Result<Option<String>> {
        let number = group.number;
        if group.is_contradictory() {
            return Ok(Some(format!(
                "parity group {number:014x}: its files contradict each other, so none of them is used"
            )));
        }
        let Some(about) = group.about() else {
            return Ok(Some(format!("parity group {number:014x}: none of its files can be read")));
        };
        let mut lost = group.lost_files();
        if read_data {
            for shard in (0..about.files).filter(|shard| group.files.get(shard).is_some_and(Option::is_some))
            {
                add(&progress.bytes_expected, about.parity_len());
                if !group.is_file_whole(store, shard)? {
                    lost.push(PackId::of_parity(number, shard));
                }
                add(&progress.bytes_done, about.parity_len());
            }
        }
        let names: Vec<String> = lost.iter().map(PackId::to_string).collect();
        let (noun, verb) = if names.len() == 1 { ("file", "is") } else { ("files", "are") };
        Ok((!names.is_empty()).then(|| {
            format!(
                "parity {noun} {} {verb} lost or damaged: of the {} packs of its group and these files, fewer can be made anew",
                names.join(", "),
                about.members.len()
            )
        }))
    }

    /// Replaces the groups with lost files, and marks their findings.
    pub fn mend(store: &Store, session: &Session, lost: &LostFiles, findings: &mut [Finding]) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let numbers = lost.iter().map(|(group, _)| *group).collect();
        parity::keep(store, session, &numbers)?;
        let left: BTreeSet<u64> = parity::survey(store)?.iter().map(|group| group.number).collect();
        for (group, finding) in lost {
            findings[*finding].mended = !left.contains(group);
        }
        Ok(())
    }

    /// How far parity reaches now.
    pub fn sum_up(store: &Store, report: &mut CheckReport) -> Result<()> {
        report.parity = parity::reach(store)?;
        let unprotected = report.parity.map_or(0, |reach| reach.packs_unprotected);
        if unprotected > 0 {
            let (noun, verb) = if unprotected == 1 { ("pack", "is") } else { ("packs", "are") };
            let what = format!("{unprotected} {noun} {verb} not protected by parity yet; `gc` makes it");
            report.findings.push(Finding::new(FindingKind::Parity, Severity::Note, what));
        }
        Ok(())
    }
}

/// The findings of each damaged pack, by their numbers.
fn by_pack(rows: &[PackRow], found: &[PackFinding]) -> BTreeMap<PackId, Vec<usize>> {
    let ids: BTreeMap<String, PackId> = rows.iter().map(|row| (row.id.to_string(), row.id)).collect();
    let mut packs: BTreeMap<PackId, Vec<usize>> = BTreeMap::new();
    for (number, found) in found.iter().enumerate() {
        if let Some(id) = found.finding.pack.as_ref().and_then(|pack| ids.get(pack)) {
            packs.entry(*id).or_default().push(number);
        }
    }
    packs
}
