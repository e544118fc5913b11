//! Makes lost and rotten packs anew.
//!
//! First, all packs and files of the group are compared with their hashes. Packs and files that
//! differ count as lost. The pack is computed into memory, compared with its hash, and verified: that
//! it is the pack of its row, of this store, and that its chunks have their fingerprints. So a
//! description that lies changes nothing, nor does parity of damage. Only then the rotten pack is set
//! aside, and the new one is written and read again. If the process dies in between, the pack is
//! lost, and the next run makes it anew.
//!
//! Memory: one pack, and a stripe for each shard of its group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use outrigger_format::{PackId, ParityDescription};

use super::code::{self, Lossy, STRIPE};
use super::groups::{Group, has_hash, is_about_the_file};
use super::{sound, stored};
use crate::backend::{Backend, MemoryBackend};
use crate::error::{Error, Result};
use crate::keys::domains;
use crate::meta::PackRow;
use crate::packs::PackReader;
use crate::sealed::sealed;
use crate::session::Session;
use crate::store::Store;

/// The shards of a group that are what they were.
struct Shards {
    members: Vec<bool>,
    parity: Vec<(u8, PackId)>,
}

/// See the module.
pub(crate) struct Healer<'a> {
    store: &'a Store,
    session: &'a Session,
    groups: &'a [Group],
    shards: HashMap<u64, Shards>,
}

impl<'a> Healer<'a> {
    /// Uses `groups`. The session is the collector's.
    pub fn new(store: &'a Store, session: &'a Session, groups: &'a [Group]) -> Self {
        Self { store, session, groups, shards: HashMap::new() }
    }

    /// Makes the pack of `row` anew; the inner error says why that cannot be done, and that nothing
    /// was changed.
    ///
    /// # Errors
    /// Those of the engine, and of the session when it is over.
    pub fn heal(&mut self, row: &PackRow) -> Result<std::result::Result<(), String>> {
        let mut why = "no parity group has it".to_owned();
        for group in self.groups {
            let Some(about) = group.about() else { continue };
            let Some(at) = about.members.iter().position(|member| member.pack == row.id) else { continue };
            match self.heal_from(group, about, at, row)? {
                Ok(()) => return Ok(Ok(())),
                Err(reason) => why = reason,
            }
        }
        Ok(Err(why))
    }

    fn heal_from(
        &mut self,
        group: &Group,
        about: &ParityDescription,
        at: usize,
        row: &PackRow,
    ) -> Result<std::result::Result<(), String>> {
        let (store, stored, member) = (self.store, stored(self.store), &about.members[at]);
        let shards = match self.shards.entry(group.number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(find_shards(store, group, about)?),
        };
        if shards.members[at] {
            return Ok(Err("its parity was made of these bytes".to_owned()));
        }
        let (count, files) = (about.members.len(), usize::from(about.files));
        let lost = count + files - shards.members.iter().filter(|good| **good).count() - shards.parity.len();
        if lost > files {
            return Ok(Err(format!(
                "{lost} of the {count} packs and {files} parity files of its group are lost or damaged, and only {files} can be made anew"
            )));
        }
        let new = MemoryBackend::new();
        let lossy = Lossy { members: &about.members, good: &shards.members, parity: &shards.parity, files };
        let mut writer = new.create(row.id)?;
        code::decode(stored, &lossy, at, &mut |bytes| code::append(&mut *writer, bytes))?;
        writer.seal()?;
        if !has_hash(&new, row.id, member.len, &member.hash)? {
            return Ok(Err("what its parity gives has another checksum than was recorded".to_owned()));
        }
        domains::copy_texts(&*store.backend, &new)?;
        let plain = sealed(Arc::new(new.clone()), store.keys());
        let reader = PackReader::new(Arc::clone(&plain), store.config.id, store.config.fingerprint);
        let verified = sound::verify(&reader, row).and_then(|()| match plain.len(row.id)? {
            Some(len) if len == row.bytes => Ok(()),
            _ => Err(Error::damaged(format!("pack {} would have another length", row.id))),
        });
        match verified {
            Err(error) if is_about_the_file(&error) => {
                return Ok(Err(format!("what its parity gives is not that pack: {error}")));
            }
            verified => verified?,
        }
        self.session.check()?;
        write(store, &new, row.id, member.len, &member.hash)?;
        let footer = Arc::new(reader.read_footer(row.id)?);
        store.index.add_pack(row.id, &footer);
        // The index may know the pack, and remember that its footer could not be read.
        store.index.footers().insert(row.id, footer);
        shards.members[at] = true;
        Ok(Ok(()))
    }
}

fn find_shards(store: &Store, group: &Group, about: &ParityDescription) -> Result<Shards> {
    let stored = stored(store);
    let mut shards = Shards { members: Vec::new(), parity: Vec::new() };
    for member in &about.members {
        stored.forget(member.pack);
        shards.members.push(
            has_hash(stored, member.pack, member.len, &member.hash)?
                && stored.len(member.pack)? == Some(member.len),
        );
    }
    for shard in 0..about.files {
        if group.is_file_whole(store, shard)? {
            shards.parity.push((shard, PackId::of_parity(group.number, shard)));
        }
    }
    Ok(shards)
}

/// Puts pack `id` of `new` in the place of what is there, durably.
fn write(store: &Store, new: &MemoryBackend, id: PackId, len: u64, hash: &[u8; 32]) -> Result<()> {
    let stored = stored(store);
    if stored.len(id)?.is_some() {
        stored.set_aside(id)?;
    }
    let mut writer = stored.create(id)?;
    let mut bytes = vec![0; STRIPE as usize];
    for start in (0..len).step_by(STRIPE as usize) {
        let bytes = &mut bytes[..(len - start).min(STRIPE) as usize];
        new.read_at(id, start, bytes)?;
        code::append(&mut *writer, bytes)?;
    }
    writer.finish()?;
    writer.seal()?;
    store.packs.forget(id);
    if has_hash(stored, id, len, hash)? {
        return Ok(());
    }
    Err(Error::damaged(format!(
        "pack {id} was made anew from parity, and is read as something else; check the disk, and run `outrigger check --repair` again"
    )))
}
