//! A database that is older than its packs: a copy of it that was put back, or that goes on beside the other one.
//!
//! Such a database says of packs that files of the other history need that nobody knows them, or that a session left them behind. Its counters
//! would give out ids, sequences and inodes that stand for something else already. So, before anything is given out or given up:
//!
//! 1. Counters are raised above every object seen ([`raise_counters`](crate::counters::raise_counters)): before the first session that writes in a store that was opened, where listing objects costs little
//!    ([`Store::raise_counters_once`] says why that suffices); always when one becomes the collector; and elsewhere when a pack's name turns out to be taken, whose intent is withdrawn then. They are raised by
//!    a gap, as the lost history may have had ids that are in use no more, and indices on disk still name.
//! 2. A sealed pack (header and footer hold) that no row knows, or a left-behind one that another has made ([`is_anothers`]), or with catalogue blocks of sequences that the
//!    database never gave out, is [`evidence`] of a lost history. While there is any, nothing is swept, unlinked, buried or
//!    given up in copies: what looks like garbage may be in use by what the database has forgotten. `recover` brings both histories
//!    together, and is the way out.
//! 3. Two databases that go on beside each other announce the same ids. Of those who did one makes the object, and the intent that the other has left is no right to it: what
//!    carries another mark than the intent is not removed, sealed or not.
//!
//! The evidence is in the packs, so it stays whatever is done to the database. What it cannot tell: a copy that was made while a `put` was about
//! to commit, put back when nothing else had been stored, looks like a `put` that was killed then. See `docs/semantics.md`.
//!
//! Order: objects are listed before counters and rows are read. A live writer announces a pack before it creates the object, so what it makes meanwhile is
//! never taken for a lost one.

use std::collections::HashSet;

use outrigger_format::catalogue::Block;
use outrigger_format::{ChunkKind, PackId, PackKind};

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{PackRow, PackState};
use crate::store::Store;

/// Packs named in a sentence.
const NAMED: usize = 3;

/// What lies among the packs without belonging there, and what says that the database is older than they are.
#[derive(Default)]
pub(crate) struct Unknown {
    /// Objects that no row knows, rising.
    pub strays: Vec<PackId>,
    /// Those that are sealed, and packs left behind of commits that the database never knew: rising, each once.
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
        // What another host has removed meanwhile may be kept nearby.
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
    // Asked after the blocks were read: whoever writes one has taken its sequence before.
    let next_sequence = store.meta.counters()?.next_sequence;
    lost.extend(left.iter().filter(|(_, sequence)| *sequence >= next_sequence).map(|(id, _)| *id));
    lost.sort_unstable();
    Ok(Unknown { strays, lost })
}

/// True when the object of a pack was not made by who announced it here, but by who announced the same id in another database: by their marks, which both have drawn at random. What was recorded as
/// sealed was made here, as an object of that name is made once. One that has no header yet, or a torn one, is not told apart: if somebody is still writing it, sealing it will fail.
///
/// # Errors
/// Those of the engine; damage is none.
pub(crate) fn is_anothers(store: &Store, row: &PackRow) -> Result<bool> {
    if row.is_committed() || row.bytes > 0 {
        return Ok(false);
    }
    // What is kept nearby may be from before.
    store.backend.forget(row.id);
    match store.packs.read_header(row.id) {
        Ok(header) => Ok(header.mark != row.mark),
        Err(error) if is_about_the_pack(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fails when the database is older than its packs; otherwise says which objects are strays.
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

/// What [`Unknown::lost`] means, in a clause.
pub(crate) fn describe(lost: &[PackId]) -> String {
    let named: Vec<String> = lost.iter().take(NAMED).map(PackId::to_string).collect();
    let more = if lost.len() > NAMED { ", …" } else { "" };
    let (noun, verb, it) = if lost.len() == 1 { ("pack", "is", "it") } else { ("packs", "are", "them") };
    format!(
        "the database is an older copy of itself that was put back, or goes on beside another one: {noun} {}{more} {verb} whole, and it does not know what is in {it}",
        named.join(", ")
    )
}

/// What to do about it.
pub(crate) fn advice(store: &Store) -> String {
    // A URL has characters that shells know.
    let quote = if store.is_shared() { "'" } else { "" };
    format!(
        "Rebuild the database from the packs with `outrigger -s {quote}{}{quote} recover`; until then they are all kept",
        store.name().display()
    )
}

fn is_uncommitted(row: &PackRow) -> bool {
    // A dead pack was swept or buried; a database that says so of one that is in use was asked by a program that did not look.
    matches!(row.state, PackState::Writing | PackState::Sealed | PackState::Dead)
}

/// True when the header is this store's and the footer holds.
fn is_whole(store: &Store, id: PackId) -> Result<bool> {
    let read = store.packs.read_header(id).and_then(|_| store.packs.read_footer(id));
    match read {
        Ok(_) => Ok(true),
        Err(error) if is_about_the_pack(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest sequence among a sealed pack's catalogue blocks; 0 if there are none, or it is not sealed.
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

fn is_about_the_pack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Invalid)
}
