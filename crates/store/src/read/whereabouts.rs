//! The hosts that hold a file's or a tree's data: the pack of every chunk, and the engine's answer
//! for every pack.
//!
//! Each byte counts as often as files need it, as for readers. Inline chunks (small files on shared
//! mounts) lie in the database. The engine is asked once for each pack.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Fingerprint, PackId, Root};

use crate::error::{Error, Result};
use crate::meta::{At, Inode};
use crate::read::Reader;
use crate::store::Store;
use crate::tree::listing;

/// The data on one host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostShare {
    /// Bytes that it has a copy of.
    pub bytes: u64,
    /// Bytes for which it is the first host, to which reads are sent.
    pub bytes_first: u64,
}

/// Where data lies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Whereabouts {
    /// Files.
    pub files: u64,
    /// Their bytes, without holes.
    pub bytes: u64,
    /// Bytes that lie in the database.
    pub bytes_in_database: u64,
    /// Bytes whose hosts the engine does not know.
    pub bytes_unknown: u64,
    /// Bytes that are nowhere: damage.
    pub bytes_missing: u64,
    /// Packs that hold some of it.
    pub packs: u64,
    /// By host.
    pub hosts: BTreeMap<String, HostShare>,
}

/// Chunks looked up at once.
const LOOKUPS: usize = 512;

/// Finds the hosts of the content of `top`, and of all below it if it is a directory.
///
/// # Errors
/// Those of the store and of the packs' engine.
pub fn whereabouts(store: &Store, at: At, top: &Inode) -> Result<Whereabouts> {
    look_below(store, at, top)?.end()
}

/// The packs that hold the content of `top`, and of all below it if it is a directory.
///
/// # Errors
/// As [`whereabouts`].
pub fn packs_of(store: &Store, at: At, top: &Inode) -> Result<HashSet<PackId>> {
    let mut look = look_below(store, at, top)?;
    look.answer()?;
    Ok(look.hosts.0.into_keys().collect())
}

fn look_below<'a>(store: &'a Store, at: At, top: &Inode) -> Result<Look<'a>> {
    let mut look = Look::new(store, &|_| true);
    match top.attributes.kind {
        FileKind::File => look.file(&top.root)?,
        FileKind::Directory => {
            listing::walk::<Error>(&*store.meta, at, top.number, true, &mut |_, entry| match entry
                .inode
                .attributes
                .kind
            {
                FileKind::File => look.file(&entry.inode.root),
                _ => Ok(()),
            })?
        }
        _ => {}
    }
    Ok(look)
}

/// Finds the hosts of these contents, until `goes_on` returns false.
///
/// # Errors
/// As [`whereabouts`].
pub fn whereabouts_while<'a>(
    store: &Store,
    roots: impl Iterator<Item = &'a Root>,
    goes_on: &dyn Fn(&Whereabouts) -> bool,
) -> Result<Whereabouts> {
    let mut look = Look::new(store, goes_on);
    for root in roots {
        look.file(root)?;
        if !goes_on(&look.said) {
            break;
        }
    }
    look.end()
}

/// A range of a content whose reads are sent to one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Its first byte.
    pub from: u64,
    /// The first byte behind it.
    pub to: u64,
    /// The host.
    pub host: String,
}

/// Chunks that [`stretches`] looks up; the content behind them belongs to the last stretch.
const STRETCH_CHUNKS_MAX: u64 = 1 << 22;

/// Divides a content into stretches by the host that serves reads, in order and without gaps. A
/// stretch shorter than `shortest` bytes joins a neighbour, and a chunk in no pack joins the
/// stretch before it. Empty if the engine does not know the hosts, or if the content is too short
/// for two stretches.
///
/// # Errors
/// Those of the store and of the packs' engine.
pub fn stretches(store: &Store, root: &Root, shortest: u64) -> Result<Vec<Stretch>> {
    let (mut hosts, mut found, mut looked) = (Hosts::default(), Vec::<Stretch>::new(), 0);
    if root.len() < shortest.saturating_mul(2) {
        // There is room for one only.
        return Ok(found);
    }
    each_part(&Reader::new(store), root, &mut |chunks| {
        looked += chunks.len() as u64;
        let names: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.name).collect();
        let mut places = Vec::new();
        store.index.resolve_batch(&names, |_| true, &mut places)?;
        for (place, chunk) in places.into_iter().zip(chunks) {
            let host = match place {
                Some(place) => hosts.of(store, place.pack)?.first(),
                None => None,
            };
            match (found.last_mut(), host) {
                (Some(last), Some(host)) if last.host != *host => {
                    let from = last.to;
                    found.push(Stretch { from, to: chunk.end, host: host.clone() });
                }
                (Some(last), _) => last.to = chunk.end,
                (None, Some(host)) => found.push(Stretch { from: 0, to: chunk.end, host: host.clone() }),
                (None, None) => {}
            }
        }
        let engine_knows = !found.is_empty() || hosts.0.is_empty();
        Ok(engine_knows && looked < STRETCH_CHUNKS_MAX)
    })?;
    if let Some(last) = found.last_mut() {
        last.to = root.len();
    }
    Ok(joined(found, shortest))
}

/// Joins short stretches to a neighbour.
fn joined(found: Vec<Stretch>, shortest: u64) -> Vec<Stretch> {
    let mut kept: Vec<Stretch> = Vec::with_capacity(found.len());
    for next in found {
        match kept.last_mut() {
            Some(last) if last.host == next.host || next.to - next.from < shortest => last.to = next.to,
            // The first ones are too short, and have no stretch before them.
            Some(last) if last.to - last.from < shortest => (last.to, last.host) = (next.to, next.host),
            _ => kept.push(next),
        }
    }
    kept
}

/// Of packs, the hosts that hold them: the engine is asked once a pack.
#[derive(Debug, Default)]
pub struct Hosts(HashMap<PackId, Vec<String>>);

impl Hosts {
    /// The hosts of a pack, the one to read from first; empty if the engine does not know.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn of(&mut self, store: &Store, pack: PackId) -> Result<&[String]> {
        Ok(match self.0.entry(pack) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(store.backend.locate(pack)?),
        })
    }
}

/// A chunk of a file.
struct Chunk {
    name: Fingerprint,
    len: u32,
    /// The first byte of the file behind it.
    end: u64,
}

/// Hands out the chunks of a content, a part at a time as a file may be of any length, until `take`
/// has enough.
fn each_part(
    reader: &Reader<'_>,
    root: &Root,
    take: &mut dyn FnMut(Vec<Chunk>) -> Result<bool>,
) -> Result<()> {
    let (mut from, end) = (0, root.len());
    while from < end {
        let (before, mut chunks) = (from, Vec::new());
        reader.entries(root, from, end, &mut |at, entry| {
            from = at + entry.len();
            if let outrigger_format::Entry::Chunk { fingerprint, len } = entry {
                chunks.push(Chunk { name: fingerprint, len, end: from });
            }
            Ok(chunks.len() < LOOKUPS)
        })?;
        if from == before {
            return Err(Error::damaged("a content ends before its length"));
        }
        if !take(chunks)? {
            break;
        }
    }
    Ok(())
}

struct Look<'a> {
    store: &'a Store,
    said: Whereabouts,
    hosts: Hosts,
    asked: Vec<(Fingerprint, u32)>,
    goes_on: &'a dyn Fn(&Whereabouts) -> bool,
}

impl<'a> Look<'a> {
    fn new(store: &'a Store, goes_on: &'a dyn Fn(&Whereabouts) -> bool) -> Self {
        Self { store, said: Whereabouts::default(), hosts: Hosts::default(), asked: Vec::new(), goes_on }
    }

    fn end(mut self) -> Result<Whereabouts> {
        self.answer()?;
        self.said.packs = self.hosts.0.len() as u64;
        Ok(self.said)
    }

    fn file(&mut self, root: &Root) -> Result<()> {
        self.said.files += 1;
        each_part(&Reader::new(self.store), root, &mut |chunks| {
            self.asked.extend(chunks.into_iter().map(|chunk| (chunk.name, chunk.len)));
            if self.asked.len() >= LOOKUPS {
                self.answer()?;
            }
            Ok((self.goes_on)(&self.said))
        })
    }

    fn answer(&mut self) -> Result<()> {
        let asked = std::mem::take(&mut self.asked);
        let names: Vec<Fingerprint> = asked.iter().map(|(name, _)| *name).collect();
        let mut places = Vec::new();
        self.store.index.resolve_batch(&names, |_| true, &mut places)?;
        let lost: Vec<Fingerprint> =
            names.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(name, _)| *name).collect();
        let in_database =
            if lost.is_empty() { HashSet::new() } else { self.store.meta.inline().inline_among(&lost)? };
        for ((name, len), place) in asked.into_iter().zip(places) {
            let len = u64::from(len);
            self.said.bytes += len;
            match place {
                Some(place) => self.pack(place.pack, len)?,
                None if in_database.contains(&name) => self.said.bytes_in_database += len,
                None => self.said.bytes_missing += len,
            }
        }
        Ok(())
    }

    fn pack(&mut self, pack: PackId, len: u64) -> Result<()> {
        let hosts = self.hosts.of(self.store, pack)?;
        if hosts.is_empty() {
            self.said.bytes_unknown += len;
        }
        for (number, host) in hosts.iter().enumerate() {
            let share = self.said.hosts.entry(host.clone()).or_default();
            share.bytes += len;
            if number == 0 {
                share.bytes_first += len;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined_of(parts: &[(u64, &str)], shortest: u64) -> Vec<(u64, u64, String)> {
        let mut from = 0;
        let found = parts.iter().map(|(len, host)| {
            from += len;
            Stretch { from: from - len, to: from, host: (*host).to_string() }
        });
        joined(found.collect(), shortest).into_iter().map(|one| (one.from, one.to, one.host)).collect()
    }

    #[test]
    fn short_stretches_go_to_a_neighbour_and_nothing_is_left_out() {
        let is = |parts: &[(u64, &str)], wanted: &[(u64, u64, &str)]| {
            let wanted: Vec<_> =
                wanted.iter().map(|(from, to, host)| (*from, *to, (*host).to_string())).collect();
            assert_eq!(joined_of(parts, 10), wanted, "{parts:?}");
        };
        is(&[], &[]);
        is(&[(30, "a"), (20, "b")], &[(0, 30, "a"), (30, 50, "b")]);
        is(&[(30, "a"), (3, "b"), (20, "c")], &[(0, 33, "a"), (33, 53, "c")]);
        // A stretch in between is joined, and both sides are on one host.
        is(&[(30, "a"), (3, "b"), (20, "a")], &[(0, 53, "a")]);
        // The first ones are too short: the next stretch gets them.
        is(&[(3, "a"), (20, "b")], &[(0, 23, "b")]);
        is(&[(3, "a"), (4, "b"), (20, "c")], &[(0, 27, "c")]);
        is(&[(3, "a")], &[(0, 3, "a")]);
    }
}
