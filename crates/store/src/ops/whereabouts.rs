//! Which hosts hold a file's, or a tree's, data: every chunk's pack, and of every pack what its engine says.
//!
//! Each byte counts as often as files need it, as readers would. What is in no pack yet (small files on shared mounts) lies in the database. An engine is asked once a pack.

use std::collections::{BTreeMap, HashMap, HashSet};

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Entry, Fingerprint, PackId, Root};

use super::listing;
use crate::error::{Error, Result};
use crate::meta::{At, Inode};
use crate::read::Reader;
use crate::store::Store;

/// What one host holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostShare {
    /// Bytes that it has a copy of.
    pub bytes: u64,
    /// Bytes of which it is the first: reads are sent to it.
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
    /// Bytes of which the engine does not say which hosts hold them.
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

/// Says where the content of `top`, and of all below it if it is a directory, lies.
///
/// # Errors
/// Those of the store and of the packs' engine.
pub fn whereabouts(store: &Store, at: At, top: &Inode) -> Result<Whereabouts> {
    let mut look = Look {
        store,
        reader: Reader::new(store),
        said: Whereabouts::default(),
        hosts: HashMap::new(),
        asked: Vec::new(),
    };
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
    look.answer()?;
    look.said.packs = look.hosts.len() as u64;
    Ok(look.said)
}

struct Look<'a> {
    store: &'a Store,
    reader: Reader<'a>,
    said: Whereabouts,
    /// Of packs that were asked for.
    hosts: HashMap<PackId, Vec<String>>,
    asked: Vec<(Fingerprint, u32)>,
}

impl Look<'_> {
    fn file(&mut self, root: &Root) -> Result<()> {
        self.said.files += 1;
        let mut chunks = Vec::new();
        let (mut from, end) = (0, root.len());
        while from < end {
            let before = from;
            // A part at a time: a file may be of any length.
            self.reader.entries(root, from, end, &mut |at, entry| {
                from = at + entry.len();
                if let Entry::Chunk { fingerprint, len } = entry {
                    chunks.push((fingerprint, len));
                }
                Ok(chunks.len() < LOOKUPS)
            })?;
            self.asked.append(&mut chunks);
            if from == before {
                return Err(Error::damaged("a content ends before its length"));
            }
            if self.asked.len() >= LOOKUPS {
                self.answer()?;
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        let asked = std::mem::take(&mut self.asked);
        let names: Vec<Fingerprint> = asked.iter().map(|(name, _)| *name).collect();
        let mut places = Vec::new();
        self.store.index.resolve_batch(&names, |_| true, &mut places)?;
        let lost: Vec<Fingerprint> =
            names.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(name, _)| *name).collect();
        let in_database = match self.store.meta.loose() {
            Some(loose) if !lost.is_empty() => loose.loose_among(&lost)?,
            _ => HashSet::new(),
        };
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
        if !self.hosts.contains_key(&pack) {
            self.hosts.insert(pack, self.store.backend.locate(pack)?);
        }
        let hosts = &self.hosts[&pack];
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
