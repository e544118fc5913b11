//! Makes groups of packs that are in none, replaces groups that have become weak, and removes those
//! that are replaced.
//!
//! A group is *fit* if it is as the policy asks and all its files are there. Of its packs the
//! collector may have deleted half as many as it has files. A pack is *protected* if a fit group has
//! it. Packs that are not protected are sorted by length, so that little of a group is padding, and
//! cut into groups. The last group may be short. The next run takes its packs again, together with
//! new ones. So there is at most one short group, and a run reads few packs that are not new.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use outrigger_format::{PackId, ParityDescription};
use serde::{Deserialize, Serialize};

use super::code::{self, Failed};
use super::groups::{Group, is_about_the_file, survey};
use super::{sound, stored};
use crate::backend::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::PackRow;
use crate::policy::ParitySpec as Spec;
use crate::session::Session;
use crate::store::Store;

/// The work of a run for parity, and how far parity reaches now.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Upkeep {
    /// The policy asks for parity.
    pub is_on: bool,
    /// Packs that parity protects.
    pub packs_protected: u64,
    /// Committed packs that it does not protect.
    pub packs_unprotected: u64,
    /// Groups made.
    pub groups_made: u64,
    /// Groups removed.
    pub groups_removed: u64,
    /// Groups that are weak and stay: they have packs that cannot be read, and that only they can
    /// make anew.
    pub groups_held: u64,
    /// Bytes of the parity files written.
    pub bytes_written: u64,
    /// The disk has no room for more parity.
    pub is_full: bool,
    /// Packs that could not be protected, and why.
    pub unreadable: Vec<String>,
}

/// The committed packs, by id.
type Rows<'r> = BTreeMap<PackId, &'r PackRow>;

fn committed(rows: &[PackRow]) -> Rows<'_> {
    rows.iter().filter(|row| row.is_committed()).map(|row| (row.id, row)).collect()
}

/// The groups that count, and what they protect.
struct Cover {
    /// Positions in the list of groups.
    fit: Vec<usize>,
    packs: HashSet<PackId>,
}

fn gone(group: &Group, rows: &Rows<'_>) -> usize {
    group.members().iter().filter(|member| !rows.contains_key(&member.pack)).count()
}

fn is_fit(group: &Group, spec: Spec, rows: &Rows<'_>) -> bool {
    group.about().is_some_and(|about| {
        let gone = gone(group, rows);
        usize::from(about.files) == spec.files
            && about.members.len() <= spec.members
            && gone * 2 <= spec.files
            && gone < about.members.len()
            && group.lost_files().is_empty()
    })
}

/// Chooses among fit groups those that are needed, the best first.
fn cover(groups: &[Group], spec: Spec, rows: &Rows<'_>, distrusted: &BTreeSet<u64>) -> Cover {
    let is_candidate =
        |at: &usize| !distrusted.contains(&groups[*at].number) && is_fit(&groups[*at], spec, rows);
    let mut order: Vec<usize> = (0..groups.len()).filter(is_candidate).collect();
    order.sort_by_key(|at| {
        (gone(&groups[*at], rows), Reverse(groups[*at].members().len()), groups[*at].number)
    });
    let mut cover = Cover { fit: Vec::new(), packs: HashSet::new() };
    for at in order {
        let live = groups[at].members().iter().map(|member| member.pack).filter(|id| rows.contains_key(id));
        let before = cover.packs.len();
        cover.packs.extend(live);
        if cover.packs.len() > before {
            cover.fit.push(at);
        }
    }
    cover
}

/// How far parity reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reach {
    /// Packs that it protects.
    pub packs_protected: u64,
    /// Committed packs that it does not protect.
    pub packs_unprotected: u64,
}

impl Upkeep {
    /// How far parity reaches now.
    pub(crate) fn reach(&self) -> Reach {
        let Self { packs_protected, packs_unprotected, .. } = *self;
        Reach { packs_protected, packs_unprotected }
    }
}

impl From<Reach> for Upkeep {
    fn from(reach: Reach) -> Self {
        let Reach { packs_protected, packs_unprotected } = reach;
        Self { is_on: true, packs_protected, packs_unprotected, ..Self::default() }
    }
}

/// How far a store's parity reaches; `None` if it should have none. This asks the engine for the end
/// of each parity file.
///
/// # Errors
/// Those of the store.
pub fn reach(store: &Store) -> Result<Option<Reach>> {
    let Some(spec) = Spec::of(store)? else { return Ok(None) };
    let groups = survey(store)?;
    let rows = store.meta.packs()?;
    let rows = committed(&rows);
    let protected = cover(&groups, spec, &rows, &BTreeSet::new()).packs.len();
    let packs_unprotected = (rows.len() - protected) as u64;
    Ok(Some(Reach { packs_protected: protected as u64, packs_unprotected }))
}

/// Brings parity up to date, as the store's policy asks. The groups `distrusted` are replaced. Only
/// the collector may do this.
///
/// # Errors
/// Those of the store, and of the session when it is over. A pack that cannot be read is none, nor
/// is a full disk.
pub(crate) fn keep(store: &Store, session: &Session, distrusted: &BTreeSet<u64>) -> Result<Upkeep> {
    // Parity of what is in a cache would be no help.
    store.backend.use_cache(false);
    let kept = keep_uncached(store, session, distrusted);
    store.backend.use_cache(true);
    kept
}

fn keep_uncached(store: &Store, session: &Session, distrusted: &BTreeSet<u64>) -> Result<Upkeep> {
    let (spec, mut groups) = (Spec::of(store)?, survey(store)?);
    let mut upkeep = Upkeep { is_on: spec.is_some(), ..Upkeep::default() };
    let Some(spec) = spec else {
        session.check()?;
        groups.iter().try_for_each(|group| remove(stored(store), group, &mut upkeep))?;
        return Ok(upkeep);
    };
    let rows = store.meta.packs()?;
    let rows = committed(&rows);
    let covered = cover(&groups, spec, &rows, distrusted);
    let mut maker = Maker { store, session, spec, known: known(&groups), upkeep: &mut upkeep };
    let mut pool: Rows<'_> = BTreeMap::new();
    for (id, row) in rows.iter().filter(|(id, _)| !covered.packs.contains(id)) {
        if maker.is_sound(row)? {
            pool.insert(*id, row);
        }
    }
    let is_short = |at: &&usize| groups[**at].members().len() < spec.members;
    let short: Vec<usize> = covered.fit.iter().filter(is_short).copied().collect();
    if !pool.is_empty() || short.len() > 1 {
        let again = short.iter().flat_map(|at| groups[*at].members().iter().map(|member| member.pack));
        pool.extend(again.filter_map(|id| Some((id, *rows.get(&id)?))));
    }
    let mut pool: Vec<&PackRow> = pool.into_values().collect();
    pool.sort_by_key(|row| (Reverse(row.bytes), row.id));
    for packs in pool.chunks(spec.members) {
        match maker.make(packs) {
            Err(error) if error.kind() == ErrorKind::Full => {
                maker.upkeep.is_full = true;
                break;
            }
            made => groups.extend(made?),
        }
    }
    let covered = cover(&groups, spec, &rows, distrusted);
    session.check()?;
    for (at, group) in groups.iter().enumerate() {
        let is_needed = |id: PackId| rows.contains_key(&id) && !covered.packs.contains(&id);
        let says_nothing = group.is_in_doubt && group.named().next().is_none();
        if covered.fit.contains(&at) || says_nothing {
            continue;
        }
        if group.named().any(is_needed) {
            upkeep.groups_held += 1;
        } else {
            remove(stored(store), group, &mut upkeep)?;
        }
    }
    upkeep.packs_protected = covered.packs.len() as u64;
    upkeep.packs_unprotected = (rows.len() - covered.packs.len()) as u64;
    Ok(upkeep)
}

fn remove(stored: &dyn Backend, group: &Group, upkeep: &mut Upkeep) -> Result<()> {
    group.names().try_for_each(|id| stored.remove(id))?;
    upkeep.groups_removed += 1;
    Ok(())
}

/// The hashes that packs had when parity was made of them.
fn known(groups: &[Group]) -> HashMap<PackId, (u64, [u8; 32])> {
    let members = groups.iter().flat_map(Group::members);
    members.map(|member| (member.pack, (member.len, member.hash))).collect()
}

/// Makes groups.
struct Maker<'a> {
    store: &'a Store,
    session: &'a Session,
    spec: Spec,
    known: HashMap<PackId, (u64, [u8; 32])>,
    upkeep: &'a mut Upkeep,
}

impl Maker<'_> {
    /// False, with a report, if a pack must not enter a group: parity would keep its damage.
    fn is_sound(&mut self, row: &PackRow) -> Result<bool> {
        if self.known.contains_key(&row.id) {
            // It was verified when it entered a group, and will be compared with that.
            return Ok(true);
        }
        match sound::verify(&self.store.packs, row) {
            Ok(()) => Ok(true),
            Err(error) if is_about_the_file(&error) => {
                self.upkeep.unreadable.push(error.to_string());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a group of those of `packs` that can be read; `None` if none can.
    fn make(&mut self, packs: &[&PackRow]) -> Result<Option<Group>> {
        let mut packs = packs.to_vec();
        while !packs.is_empty() {
            self.session.check()?;
            match self.write(&packs) {
                Ok(group) => return Ok(Some(group)),
                Err(Failed::Pack(number, error)) if is_about_the_file(&error) => {
                    self.upkeep.unreadable.push(error.to_string());
                    packs.remove(number);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn write(&mut self, packs: &[&PackRow]) -> std::result::Result<Group, Failed> {
        let stored = stored(self.store);
        let number = u64::from_le_bytes(outrigger_clock::random().map_err(Error::from)?) >> 9;
        let names = (0..self.spec.files).map(|shard| PackId::of_parity(number, shard as u8));
        let names: Vec<PackId> = names.collect();
        let written = self.write_files(stored, number, &names, packs);
        if written.is_err() {
            // The next run removes files that are left.
            names.iter().for_each(|id| drop(stored.remove(*id)));
        }
        written
    }

    fn write_files(
        &mut self,
        stored: &dyn Backend,
        group: u64,
        names: &[PackId],
        packs: &[&PackRow],
    ) -> std::result::Result<Group, Failed> {
        let mut lens = Vec::new();
        for (number, row) in packs.iter().enumerate() {
            let missing = || Error::new(ErrorKind::NotFound, format!("pack {} is missing", row.id));
            let len = stored.len(row.id)?.ok_or_else(|| Failed::Pack(number, missing()))?;
            lens.push((row.id, len));
        }
        let mut writers: Vec<Box<dyn PackWriter>> =
            names.iter().map(|id| stored.create(*id)).collect::<Result<_>>()?;
        let mut hashers = vec![blake3::Hasher::new(); names.len()];
        let members = code::encode(stored, &lens, names.len(), &mut |number, bytes| {
            hashers[number].update(bytes);
            code::append(&mut *writers[number], bytes)
        })?;
        for (number, member) in members.iter().enumerate() {
            if self.known.get(&member.pack).is_some_and(|known| *known != (member.len, member.hash)) {
                // It has rotted, unless a database that was set back gave out its id again.
                sound::verify(&self.store.packs, packs[number])
                    .map_err(|error| Failed::Pack(number, error))?;
            }
        }
        let (store, files) = (self.store.config.id, names.len() as u8);
        let mut told = BTreeMap::new();
        for ((shard, writer), hasher) in (0..).zip(&mut writers).zip(&hashers) {
            let hash = *hasher.finalize().as_bytes();
            let about = ParityDescription { store, group, files, shard, hash, members: members.clone() };
            let description = about.encode();
            code::append(&mut **writer, &description)?;
            writer.finish()?;
            self.upkeep.bytes_written += about.parity_len() + description.len() as u64;
            told.insert(shard, Some(about));
        }
        self.session.check()?;
        writers.into_iter().try_for_each(PackWriter::seal)?;
        self.upkeep.groups_made += 1;
        Ok(Group::of(group, told))
    }
}
