//! The groups that there are, as the parity files' own descriptions tell.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_format::{PARITY_END_LEN, PackId, ParityDescription, ParityMember};

use super::{code, stored};
use crate::backend::Backend;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::store::Store;

/// Descriptions that are read at once where requests are slow.
const AT_ONCE: usize = 16;

/// A group, as far as its files tell.
pub(crate) struct Group {
    pub number: u64,
    /// Its parity files that are there, and what each says; `None` where that cannot be read.
    pub files: BTreeMap<u8, Option<ParityDescription>>,
    /// All that can be read say the same, and at least one can.
    is_clear: bool,
    /// A file could not be read just now, so it may say something later.
    pub(super) is_in_doubt: bool,
}

impl Group {
    pub(super) fn of(number: u64, files: BTreeMap<u8, Option<ParityDescription>>) -> Self {
        let mut told = files.values().flatten();
        let is_clear = told.next().is_some_and(|first| {
            told.all(|other| {
                (&first.members, first.files, first.store) == (&other.members, other.files, other.store)
            })
        });
        Self { number, files, is_clear, is_in_doubt: false }
    }

    /// A description of the group; `None` if none can be read, or they contradict each other.
    pub fn about(&self) -> Option<&ParityDescription> {
        self.files.values().flatten().next().filter(|_| self.is_clear)
    }

    /// The packs that it was made of.
    pub fn members(&self) -> &[ParityMember] {
        self.about().map_or(&[], |about| &about.members)
    }

    /// All packs that any of its files names.
    pub(super) fn named(&self) -> impl Iterator<Item = PackId> {
        self.files.values().flatten().flat_map(|about| about.members.iter().map(|member| member.pack))
    }

    /// True if its files contradict each other.
    pub fn is_contradictory(&self) -> bool {
        !self.is_clear && self.files.values().flatten().next().is_some()
    }

    /// The parity files that are missing, or whose descriptions cannot be read.
    pub fn lost_files(&self) -> Vec<PackId> {
        let count = self.about().map_or(0, |about| about.files);
        let is_lost = |shard: &u8| !matches!(self.files.get(shard), Some(Some(_)));
        (0..count).filter(is_lost).map(|shard| PackId::of_parity(self.number, shard)).collect()
    }

    /// The names of its files that are there.
    pub fn names(&self) -> impl Iterator<Item = PackId> {
        self.files.keys().map(|shard| PackId::of_parity(self.number, *shard))
    }

    /// True if a parity file that is there has the parity that it had when it was made.
    ///
    /// # Errors
    /// Those of the engine that are not about the file.
    pub fn is_file_whole(&self, store: &Store, shard: u8) -> Result<bool> {
        let Some(Some(about)) = self.files.get(&shard) else { return Ok(false) };
        has_hash(stored(store), PackId::of_parity(self.number, shard), about.parity_len(), &about.hash)
    }
}

/// True if the first `len` bytes of a pack or parity file have this hash.
pub(super) fn has_hash(stored: &dyn Backend, id: PackId, len: u64, hash: &[u8; 32]) -> Result<bool> {
    match code::hash(stored, id, len) {
        Ok(found) => Ok(found == *hash),
        Err(error) if is_about_the_file(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Errors of the file itself, not of the way there.
pub(super) fn is_about_the_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Io | ErrorKind::Invalid)
}

/// Reads what all parity files say. A file that cannot be read, or is of another store, says
/// nothing.
///
/// # Errors
/// `Newer` when a newer program made a file; those of the engine.
pub(crate) fn survey(store: &Store) -> Result<Vec<Group>> {
    let stored = stored(store);
    let ids = stored.list_parity()?;
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for (id, told) in ids.iter().zip(describe_all(stored, &ids)?) {
        let Some((number, shard)) = id.parity() else { continue };
        let group = groups.entry(number).or_insert_with(|| Group::of(number, BTreeMap::new()));
        group.is_in_doubt |= matches!(told, Told::NotNow);
        let about = if let Told::This(about) = told { Some(about) } else { None };
        group.files.insert(shard, about.filter(|about| about.store == store.config.id));
    }
    let whole =
        |group: Group| Group { is_in_doubt: group.is_in_doubt, ..Group::of(group.number, group.files) };
    Ok(groups.into_values().map(whole).collect())
}

/// The answer of a parity file that was asked for its description.
#[derive(Clone)]
enum Told {
    This(ParityDescription),
    /// It has none.
    Nothing,
    /// It could not be read.
    NotNow,
}

fn describe_all(stored: &dyn Backend, ids: &[PackId]) -> Result<Vec<Told>> {
    let threads = if stored.uploads_max() > 1 { AT_ONCE } else { 1 };
    let (next, told) = (AtomicUsize::new(0), Mutex::new(vec![Told::Nothing; ids.len()]));
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(ids.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(id) = ids.get(at) else { break };
                    match describe(stored, *id) {
                        Ok(this) => told.lock().expect("no panic while held")[at] = this,
                        Err(error) => {
                            next.store(ids.len(), Ordering::Relaxed);
                            failed.lock().expect("no panic while held").get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    match failed.into_inner().expect("no panic while held") {
        Some(error) => Err(error),
        None => Ok(told.into_inner().expect("no panic while held")),
    }
}

fn describe(stored: &dyn Backend, id: PackId) -> Result<Told> {
    // A cached block may be from before the file was damaged.
    stored.forget(id);
    let read = stored.read_end(id, PARITY_END_LEN).and_then(|end| match end {
        None => Ok(Told::Nothing),
        Some((end, len)) => {
            ParityDescription::decode(&end, len, id).map(Told::This).context(|| format!("parity file {id}"))
        }
    });
    match read {
        Err(error) if error.kind() == ErrorKind::Io => Ok(Told::NotNow),
        Err(error) if is_about_the_file(&error) => Ok(Told::Nothing),
        read => read,
    }
}
