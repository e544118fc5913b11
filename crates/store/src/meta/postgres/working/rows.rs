//! The steps of a commit, on the rows in memory.
//!
//! Each step first reads the rows that it needs and that are not in memory, and changes rows in
//! memory alone. A directory's entries and policies are asked of the database step by step, as no
//! change names their rows.

use std::collections::HashMap;

use outrigger_format::{Domain, Root};

use super::load::LOAD_DIRECTORIES;
use super::{Name, Slot, Working};
use crate::meta::ROOT_INODE;
use crate::meta::change::Rows;
use crate::meta::change::row::{TraitsKey, domain_of, root_column};
use crate::meta::fault::{Fault, Outcome};
use crate::meta::postgres::connection::Query;
use crate::meta::postgres::row::{Stored, Traits, stored_columns};
use crate::meta::postgres::sealing::Subject;

const HAS_NAMES: &str = "SELECT name FROM @dentry WHERE parent = $1 LIMIT $2";
/// For a transaction that runs alone: no name is exchanged meanwhile.
const LOAD_ENTRIES: &str = concat!(
    "SELECT d.parent, d.name, d.inode, d.epoch, d.sum, ",
    stored_columns!(),
    " FROM @dentry d JOIN @inode i ON i.number = d.inode WHERE d.parent = $1 FOR UPDATE OF d, i"
);
const VERSIONS_POLICY: &str = "WITH RECURSIVE up (inode, distance) AS (SELECT $1::bigint, 0 UNION ALL \
    SELECT h.parent, up.distance + 1 FROM up JOIN @directory h ON h.inode = up.inode \
    WHERE h.parent <> up.inode AND up.distance < 100000) \
    SELECT p.value, p.inode FROM up JOIN @policy p ON p.inode = up.inode AND p.key = 'versions' ORDER BY up.distance LIMIT 1";
const ABOVE: &str = "SELECT h.parent, d.name FROM @directory h JOIN @dentry d ON d.parent = h.parent AND d.inode = h.inode \
    WHERE h.inode = $1";

impl Rows for Working<'_, '_> {
    type Traits = Traits;

    fn insert_name(&mut self, parent: i64, name: &[u8], inode: i64, epoch: i64) -> Outcome<bool> {
        let slot = self.slot_of_name(parent, name)?;
        if slot.now.is_some() {
            return Ok(false);
        }
        slot.now = Some(Name { inode, epoch });
        Ok(true)
    }

    fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored)>> {
        let Some(found) = self.now_named(parent, name)? else { return Ok(None) };
        let stored = self.know_inode(found.inode)?.now.clone();
        Ok(stored.map(|stored| (found.epoch, stored)))
    }

    fn name(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, i64)>> {
        Ok(self.now_named(parent, name)?.map(|found| (found.inode, found.epoch)))
    }

    fn has_names(&mut self, parent: i64) -> Outcome<bool> {
        if self.known_names(parent).next().is_some() {
            return Ok(true);
        }
        if self.whole.contains(&parent) {
            return Ok(false);
        }
        self.guard(parent)?;
        // This commit may already have removed as many of the names that are there.
        let gone = self.names.get(&parent).map_or(0, HashMap::len);
        let answer = self.tx.one(Query::new(HAS_NAMES).int(parent).int(gone as i64 + 1))?;
        for row in &answer.rows {
            let name = row.bytes(0, &Subject::Name { parent })?;
            if self.names.get(&parent).is_none_or(|names| !names.contains_key(&name)) {
                return Ok(true);
            }
        }
        // No commit can make one until this transaction has ended.
        self.whole.insert(parent);
        Ok(false)
    }

    fn some_names(&mut self, parent: i64, limit: usize) -> Outcome<Vec<(Vec<u8>, i64, Stored)>> {
        if !self.whole.contains(&parent) && self.has_names(parent)? {
            if !self.tx.is_alone() {
                return Err(Fault::Again { alone: true });
            }
            self.relieve()?;
            let answer = self.tx.one(Query::new(LOAD_ENTRIES).int(parent))?;
            for row in &answer.rows {
                self.take_name(row)?;
                self.take_inode(row, 5)?;
            }
            self.whole.insert(parent);
        }
        let some: Vec<(Vec<u8>, Name)> =
            self.known_names(parent).take(limit).map(|(name, found)| (name.clone(), found)).collect();
        let mut entries = Vec::with_capacity(some.len());
        for (name, found) in some {
            if let Some(stored) = self.know_inode(found.inode)?.now.clone() {
                entries.push((name, found.epoch, stored));
            }
        }
        Ok(entries)
    }

    fn archive_name(&mut self, parent: i64, name: &[u8], epoch_to: i64) -> Outcome<()> {
        if let Some(found) = self.now_named(parent, name)? {
            self.former_names.push((parent, name.to_vec(), found, epoch_to));
        }
        Ok(())
    }

    fn delete_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()> {
        self.slot_of_name(parent, name)?.now = None;
        Ok(())
    }

    fn stored(&mut self, number: i64) -> Outcome<Option<Stored>> {
        Ok(self.know_inode(number)?.now.clone())
    }

    fn glance(&mut self, number: i64) -> Outcome<Option<Stored>> {
        match self.glanced.get(&number) {
            Some(stored) if !self.inodes.contains_key(&number) => Ok(Some(stored.clone())),
            _ => self.stored(number),
        }
    }

    fn insert_inode(&mut self, new: &Stored) -> Outcome<bool> {
        let slot = self.know_inode(new.number)?;
        if slot.now.is_some() {
            return Ok(false);
        }
        slot.now = Some(new.clone());
        Ok(true)
    }

    fn update_inode(&mut self, new: &Stored) -> Outcome<()> {
        *self.present(new.number)? = new.clone();
        Ok(())
    }

    fn update_links(&mut self, number: i64, epoch: i64, links: i64) -> Outcome<()> {
        let stored = self.present(number)?;
        (stored.epoch, stored.links) = (epoch, links);
        Ok(())
    }

    fn update_stamp(&mut self, number: i64, stamp: i64) -> Outcome<()> {
        self.present(number)?.stamp = stamp;
        Ok(())
    }

    fn archive_inode(&mut self, number: i64, epoch_to: i64) -> Outcome<()> {
        let former = self.present(number)?.clone();
        self.former_inodes.push((former, epoch_to));
        Ok(())
    }

    fn delete_inode(&mut self, number: i64) -> Outcome<()> {
        self.know_inode(number)?.now = None;
        Ok(())
    }

    fn traits(&mut self, (mode, uid, gid, xattrs): TraitsKey) -> Outcome<Traits> {
        Ok(Traits { mode, uid, gid, xattrs })
    }

    fn domain(&mut self, traits: &Traits) -> Outcome<Domain> {
        domain_of(traits.xattrs.as_deref())
    }

    fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>> {
        if !self.directories.contains_key(&directory) {
            let answer = self.tx.one(Query::new(LOAD_DIRECTORIES).ints(vec![directory]))?;
            for row in &answer.rows {
                self.take_directory(row)?;
            }
        }
        Ok(self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now)
    }

    fn insert_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        // Its inode is new, so there is no such row.
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = Some(parent);
        self.whole.insert(directory);
        Ok(())
    }

    fn move_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        // No other transaction knows a directory that was made in this one.
        let known = self.directories.get(&directory).is_some_and(|slot| slot.before.is_none());
        if !known && !self.tx.is_alone() {
            return Err(Fault::Again { alone: true });
        }
        self.parent_of(directory)?;
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = Some(parent);
        Ok(())
    }

    fn delete_directory(&mut self, directory: i64) -> Outcome<()> {
        self.guard(directory)?;
        self.parent_of(directory)?;
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = None;
        Ok(())
    }

    fn delete_policies(&mut self, directory: i64) -> Outcome<()> {
        self.policies_gone.push(directory);
        Ok(())
    }

    fn versions_policy(&mut self, directory: i64) -> Outcome<Option<String>> {
        // Directories made or moved here are not in the database yet; those above them are.
        let mut at = directory;
        while self.directories.get(&at).is_some_and(|slot| slot.before != slot.now) && at != ROOT_INODE as i64
        {
            if let Some(value) = self.own_policy(at)? {
                return Ok(Some(value));
            }
            match self.directories.get(&at).and_then(|slot| slot.now) {
                Some(parent) => at = parent,
                None => return Ok(None),
            }
        }
        let answer = self.tx.one(Query::new(VERSIONS_POLICY).int(at))?;
        Ok(answer.first().map(|row| row.public(0)).transpose()?)
    }

    fn insert_version(&mut self, of: &Stored) -> Outcome<()> {
        self.versions.push(of.clone());
        Ok(())
    }

    fn trim_versions(&mut self, number: i64, oldest: i64) -> Outcome<()> {
        let kept = self.trims.entry(number).or_insert(oldest);
        *kept = oldest.max(*kept);
        self.versions.retain(|version| version.number != number || version.version >= oldest);
        Ok(())
    }

    fn delete_versions(&mut self, number: i64) -> Outcome<()> {
        self.trim_versions(number, i64::MAX)
    }

    fn hold_only(&mut self, holder: &str, root: &Root) -> Outcome<()> {
        self.held.insert(holder.to_owned(), root_column(root));
        Ok(())
    }

    fn above(&mut self, directory: i64) -> Option<(i64, Vec<u8>)> {
        let answer = self.tx.one(Query::new(ABOVE).int(directory)).ok()?;
        let row = answer.first()?;
        let parent: i64 = row.try_get(0).ok()?;
        Some((parent, row.bytes(1, &Subject::Name { parent }).ok()?))
    }
}

impl Working<'_, '_> {
    fn own_policy(&mut self, directory: i64) -> Outcome<Option<String>> {
        let sql = "SELECT value FROM @policy WHERE inode = $1 AND key = 'versions'";
        let answer = self.tx.one(Query::new(sql).int(directory))?;
        Ok(answer.first().map(|row| row.public(0)).transpose()?)
    }
}
