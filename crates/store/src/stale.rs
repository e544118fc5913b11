//! A stale database: it was restored from an older copy, or another copy of it is in use with the
//! same packs.
//!
//! Such a database does not know some packs that files of the other history need, or takes them for
//! leftovers of a session. Its counters would give out ids, sequences and inodes that are already
//! in use. So, before anything is given out or given up:
//!
//! 1. Counters are raised above every object seen
//!    ([`raise_counters`](crate::counters::raise_counters)). If listing objects costs little, that
//!    happens before the first session that writes in an opened store
//!    ([`Store::raise_counters_once`] says why that suffices). It always happens when a session
//!    becomes the collector. It also happens when a pack's name turns out to be taken; its intent
//!    is then withdrawn. Counters are raised by a gap: the lost history may have had ids that are
//!    no longer in use, but that indices on disk still name.
//! 2. A sealed pack (header and footer are valid) is [`evidence`] of a lost history if one of three
//!    things holds: no row knows it; it was left behind and another history made it
//!    ([`is_anothers`]); or it has catalogue blocks of sequences that the database never gave out.
//!    While there is evidence, nothing is swept, unlinked, deleted or given up in copies: the lost
//!    history may use what looks like garbage. The way out is `recover`, which brings both
//!    histories together.
//! 3. Two databases that are in use with the same packs announce the same ids. Only one client
//!    makes the object, and the other's intent gives it no right to that. An object whose mark
//!    differs from the intent's is not removed, sealed or not.
//!
//! The evidence is in the packs, so it stays whatever is done to the database. One case cannot be
//! told apart. If a copy was made while a `put` was about to commit, and it was put back when
//! nothing else had been stored, it looks like a `put` that was killed then. See
//! `docs/semantics.md`.
//!
//! Order: objects are listed before counters and rows are read. A live writer announces a pack
//! before it creates the object, so packs that it makes meanwhile are never taken for lost ones.

use std::collections::HashSet;

use outrigger_format::catalogue::Block;
use outrigger_format::{ChunkKind, PackId, PackKind};

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{PackRow, PackState};
use crate::store::Store;

/// How many packs a message names.
const NAMED: usize = 3;

/// Objects that do not belong among the packs, and those that show that the database is stale.
#[derive(Default)]
pub(crate) struct Unknown {
    /// Objects that no row knows, rising.
    pub strays: Vec<PackId>,
    /// Sealed strays, and left-behind packs of commits that the database never knew: rising, each
    /// once.
    pub lost: Vec<PackId>,
}

/// Looks for evidence, see the module.
///
/// # Errors
/// Those of the engine and the database; damage is none.
pub(crate) fn evidence(store: &Store) -> Result<Unknown> {
    let objects = store.backend.list()?;
    let rows = store.meta.packs()?;
    let known: HashSet<PackId> = rows.iter().map(|row| row.id).collect();
    let strays: Vec<PackId> = objects.iter().filter(|id| !known.contains(id)).copied().collect();
    let mut lost = Vec::new();
    for &id in &strays {
        // The nearby copy may be of a pack that another host has removed meanwhile.
        store.backend.forget(id);
        if is_whole(store, id)? {
            lost.push(id);
        }
    }
    let objects: HashSet<PackId> = objects.into_iter().collect();
    let mut left = Vec::new();
    for row in rows.iter().filter(|row| is_uncommitted(row) && objects.contains(&row.id)) {
        if is_anothers(store, row)? {
            if is_whole(store, row.id)? {
                lost.push(row.id);
            }
        } else if row.kind == PackKind::Meta {
            left.push((row.id, newest_sequence(store, row.id)?));
        }
    }
    // Read after the blocks: the writer of a block took its sequence before it wrote.
    let next_sequence = store.meta.counters()?.next_sequence;
    lost.extend(left.iter().filter(|(_, sequence)| *sequence >= next_sequence).map(|(id, _)| *id));
    lost.sort_unstable();
    Ok(Unknown { strays, lost })
}

/// True when another history made the object of this row's pack. Each client draws a random mark,
/// which its intent and its header both have. A pack that is recorded as sealed was made here, as
/// only one client can make an object of that name. If the header is missing or torn, the answer is
/// false: if somebody is still writing the object, sealing it will fail.
///
/// # Errors
/// Those of the engine; damage is none.
pub(crate) fn is_anothers(store: &Store, row: &PackRow) -> Result<bool> {
    if row.is_committed() || row.bytes > 0 {
        return Ok(false);
    }
    // The nearby copy may be an older one.
    store.backend.forget(row.id);
    match store.packs.read_header(row.id) {
        Ok(header) => Ok(header.mark != row.mark),
        Err(error) if is_about_the_pack(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fails when the database is stale; otherwise says which objects are strays.
///
/// # Errors
/// `Damaged`, with what to do.
pub(crate) fn refuse(store: &Store) -> Result<Vec<PackId>> {
    let Unknown { strays, lost } = evidence(store)?;
    if lost.is_empty() {
        return Ok(strays);
    }
    Err(Error::damaged(format!("{}; nothing was reclaimed. {}", describe(&lost), advice(store))))
}

/// Explains [`Unknown::lost`] in a clause.
pub(crate) fn describe(lost: &[PackId]) -> String {
    let named: Vec<String> = lost.iter().take(NAMED).map(PackId::to_string).collect();
    let more = if lost.len() > NAMED { ", …" } else { "" };
    let (noun, verb) = if lost.len() == 1 { ("pack", "is") } else { ("packs", "are") };
    format!(
        "the database is stale: it was restored from an older copy, or another copy of it is in use. It does not know {noun} {}{more}, which {verb} whole",
        named.join(", ")
    )
}

/// Says what a user can do about it.
pub(crate) fn advice(store: &Store) -> String {
    // Shells interpret some characters of a URL.
    let quote = if store.is_shared() { "'" } else { "" };
    format!(
        "Rebuild the database from the packs with `outrigger -s {quote}{}{quote} recover`; until then they are all kept",
        store.name().display()
    )
}

fn is_uncommitted(row: &PackRow) -> bool {
    // A dead pack was swept or deleted. If the pack is in use, the program that marked it did not
    // look for evidence.
    matches!(row.state, PackState::Writing | PackState::Sealed | PackState::Dead)
}

/// True when the header is this store's and the footer is valid.
fn is_whole(store: &Store, id: PackId) -> Result<bool> {
    let read = store.packs.read_header(id).and_then(|_| store.packs.read_footer(id));
    match read {
        Ok(_) => Ok(true),
        Err(error) if is_about_the_pack(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest sequence among a sealed pack's catalogue blocks; 0 if there are none, or it is not
/// sealed.
fn newest_sequence(store: &Store, id: PackId) -> Result<u64> {
    let footer = match store.packs.read_footer(id) {
        Ok(footer) => footer,
        Err(error) if is_about_the_pack(&error) => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut newest = 0;
    for (number, _) in (0u16..).zip(footer.frames()).filter(|(_, entry)| entry.kind == ChunkKind::Catalogue) {
        let Ok(frame) = store.packs.load(id, &footer, number) else { continue };
        let block = Block::decode(frame.chunk(0).unwrap_or_default());
        newest = newest.max(block.map_or(0, |block| block.sequence));
    }
    Ok(newest)
}

/// True for errors of a pack itself.
pub(crate) fn is_about_the_pack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Invalid)
}
