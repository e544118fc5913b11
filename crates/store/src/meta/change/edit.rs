//! Changing the tree inside one transaction.
//!
//! Every change consists of a few steps here (`make`, `rewrite`, `relink`, `drop_name`,
//! `drop_inode`). Each of these first copies the row it changes to the history, if the row is from
//! an earlier epoch that is still visible. The editor's caches (known directories, interned traits,
//! aliases) were read in this transaction, and no other writes can interleave with it.

use std::collections::{HashMap, HashSet};

use outrigger_format::catalogue::{Attributes, OtherTimes, Time};
use outrigger_format::{Domain, Root};

use super::keep::KeepVersions;
use super::row::{self, Content, Stored};
use super::rows::Rows;
use super::times;
use super::totals::{Retained, TotalsDelta};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{Committed, ROOT_INODE};

const ROOT: i64 = ROOT_INODE as i64;

/// The new state from a put.
pub(in crate::meta) struct Arrival<T> {
    pub mode: i64,
    pub content: Content<T>,
    pub length: u64,
    pub stamp: i64,
}

/// State that the transaction read before its first change.
#[derive(Clone, Debug)]
pub(in crate::meta) struct Start {
    /// The current epoch.
    pub epoch: i64,
    /// Numbers below it were reserved.
    pub next_inode: i64,
    /// Epochs that are still visible.
    pub retained: Retained,
    /// Some directory has the policy `versions`.
    pub any_versions_policy: bool,
    /// The collector's generation.
    pub generation: u64,
    /// The time of the commit.
    pub time: u64,
}

/// Changes the tree inside one transaction.
pub(in crate::meta) struct Editor<R: Rows> {
    pub(super) rows: R,
    pub(super) epoch: i64,
    next_inode: i64,
    time: i64,
    retained: Retained,
    directories: HashSet<i64>,
    /// Domains of directories, as far as they were asked for.
    domains: HashMap<i64, Domain>,
    keep: HashMap<i64, KeepVersions>,
    keep_is_default: bool,
    totals: TotalsDelta,
    pub(super) done: Committed,
}

impl<R: Rows> Editor<R> {
    /// An editor for the transaction that `rows` works in.
    pub fn new(rows: R, start: Start) -> Self {
        Self {
            rows,
            epoch: start.epoch,
            next_inode: start.next_inode,
            time: start.time as i64,
            retained: start.retained,
            directories: HashSet::new(),
            domains: HashMap::new(),
            keep: HashMap::new(),
            keep_is_default: !start.any_versions_policy,
            totals: TotalsDelta::default(),
            done: Committed { generation: start.generation, ..Committed::default() },
        }
    }

    /// The engine's rows, the change of the totals, and the counts.
    pub fn finish(self) -> (R, TotalsDelta, Committed) {
        (self.rows, self.totals, self.done)
    }

    // ---- finding ----------------------------------------------------------------------------------------------------

    /// The number that a caller's number stands for in this commit.
    pub fn resolve(&self, inode: u64) -> Outcome<i64> {
        let number = self.done.aliases.get(&inode).copied().unwrap_or(inode) as i64;
        if number <= 0 || number >= self.next_inode {
            return Err(refuse(ErrorKind::Invalid, format!("inode {inode} was never reserved")));
        }
        Ok(number)
    }

    /// A directory that exists.
    pub fn directory(&mut self, inode: u64) -> Outcome<i64> {
        let number = self.resolve(inode)?;
        if !self.directories.contains(&number) {
            if self.parent_of(number)?.is_none() {
                return Err(refuse(ErrorKind::NotFound, format!("directory {inode} does not exist")));
            }
            self.directories.insert(number);
        }
        Ok(number)
    }

    /// The directory that a directory is in.
    pub fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>> {
        self.rows.parent_of(directory)
    }

    /// The entry `name` of `parent`: since when it exists, and its inode.
    pub fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored<R::Traits>)>> {
        self.rows.find(parent, name)
    }

    /// An inode.
    pub fn stored(&mut self, number: i64) -> Outcome<Option<Stored<R::Traits>>> {
        self.rows.stored(number)
    }

    /// Path of an entry, for messages: as much of it as can be found.
    pub fn path(&mut self, parent: i64, name: &[u8]) -> String {
        const LEVELS_SHOWN: usize = 64;
        let mut parts = vec![name.escape_ascii().to_string()];
        let mut at = parent;
        while at != ROOT {
            match self.rows.above(at) {
                Some((parent, name)) if parts.len() < LEVELS_SHOWN => {
                    parts.push(name.escape_ascii().to_string());
                    at = parent;
                }
                _ => {
                    parts.push(format!("[inode {at}]"));
                    break;
                }
            }
        }
        parts.push(String::new());
        parts.reverse();
        parts.join("/")
    }

    /// Fails unless an inode of these traits may have a name in a directory: what lies in a directory of
    /// a domain is of that domain. Domains of directories never change ([`Editor::rewrite`]).
    pub fn require_domain(&mut self, directory: i64, name: &[u8], traits: &R::Traits) -> Outcome<()> {
        let wanted = self.domain_of(directory)?;
        if wanted == Domain::COMMON || self.rows.domain(traits)? == wanted {
            return Ok(());
        }
        let path = self.path(directory, name);
        let why =
            "its directory has a key of its own: copy the contents there, as this cannot be moved or linked";
        Err(refuse(ErrorKind::Invalid, format!("{path}: {why}")))
    }

    /// The domain of a directory; [`Domain::COMMON`] if there is none.
    pub fn domain_of(&mut self, directory: i64) -> Outcome<Domain> {
        if let Some(&known) = self.domains.get(&directory) {
            return Ok(known);
        }
        let domain = match self.rows.glance(directory)? {
            Some(found) => self.rows.domain(&found.content.traits)?,
            None => return Ok(Domain::COMMON),
        };
        self.domains.insert(directory, domain);
        Ok(domain)
    }

    /// Checks attributes and content, and interns shared values.
    pub fn arrival(
        &mut self,
        attributes: &Attributes,
        root: &Root,
        stamp: u64,
    ) -> Outcome<Arrival<R::Traits>> {
        let (mode, special, xattrs) = row::columns(attributes, root)?;
        let traits =
            self.rows.traits((mode, i64::from(attributes.uid), i64::from(attributes.gid), xattrs))?;
        let mtime = attributes.mtime;
        let times = attributes.times.as_ref().map(|other| times::encode(other, mtime));
        let content = Content { traits, mtime, special, root: row::root_column(root), times };
        Ok(Arrival { mode, content, length: root.len(), stamp: stamp as i64 })
    }

    // ---- steps ------------------------------------------------------------------------------------------------------

    /// A new inode; false when its number is in use.
    pub fn make(&mut self, number: i64, parent: i64, new: &Arrival<R::Traits>) -> Outcome<bool> {
        let inode = Stored {
            number,
            epoch: self.epoch,
            links: 1,
            version: 1,
            time: self.time,
            stamp: new.stamp,
            mode: new.mode,
            content: new.content.clone(),
        };
        if !self.rows.insert_inode(&inode)? {
            return Ok(false);
        }
        if row::is_directory(new.mode) {
            self.rows.insert_directory(number, parent)?;
            self.directories.insert(number);
        }
        self.totals.count(1, new.mode, new.length)?;
        Ok(true)
    }

    /// Gives an inode new attributes and content and adds `more_links` to its names; true when
    /// anything but its stamp changed. The policy of the directory `keeper` says how many earlier
    /// contents are kept; without one the content is replaced and no version kept.
    pub fn rewrite(
        &mut self,
        old: &Stored<R::Traits>,
        new: &Arrival<R::Traits>,
        more_links: i64,
        keeper: Option<i64>,
    ) -> Outcome<bool> {
        if old.content == new.content && more_links == 0 {
            if old.stamp != new.stamp {
                // Not worth a row of history: a stamp says nothing about the file, only about the
                // state of its source.
                self.rows.update_stamp(old.number, new.stamp)?;
            }
            return Ok(false);
        }
        if old.content.traits != new.content.traits
            && self.rows.domain(&old.content.traits)? != self.rows.domain(&new.content.traits)?
        {
            let why = format!("inode {} would get another key than its contents have", old.number);
            return Err(refuse(ErrorKind::Invalid, why));
        }
        let (mut version, mut time) = (old.version, old.time);
        if old.content.root != new.content.root {
            if let Some(directory) = keeper {
                self.keep_version(old, directory)?;
                version += 1;
            }
            time = self.time;
        }
        self.archive_inode(old)?;
        self.rows.update_inode(&Stored {
            number: old.number,
            epoch: self.epoch,
            links: old.links + more_links,
            version,
            time,
            stamp: new.stamp,
            mode: new.mode,
            content: new.content.clone(),
        })?;
        self.totals.count(-1, old.mode, row::length(&old.content.root)?)?;
        self.totals.count(1, new.mode, new.length)?;
        Ok(true)
    }

    fn keep_version(&mut self, old: &Stored<R::Traits>, directory: i64) -> Outcome<()> {
        let keep = self.keep_versions(directory)?;
        if keep != KeepVersions::Newest(0) && row::is_file(old.mode) {
            self.rows.insert_version(old)?;
        }
        if let KeepVersions::Newest(count) = keep {
            let oldest = (old.version + 1).saturating_sub(count.into());
            if oldest > 1 || count == 0 {
                self.rows.trim_versions(old.number, oldest)?;
            }
        }
        Ok(())
    }

    fn keep_versions(&mut self, directory: i64) -> Outcome<KeepVersions> {
        if self.keep_is_default {
            return Ok(KeepVersions::default());
        }
        if let Some(&keep) = self.keep.get(&directory) {
            return Ok(keep);
        }
        let value = self.rows.versions_policy(directory)?;
        let keep = value.map_or(Ok(KeepVersions::default()), |value| KeepVersions::parse(&value))?;
        self.keep.insert(directory, keep);
        Ok(keep)
    }

    /// Makes the editor look policies up again, after directories have moved.
    pub fn forget_policies(&mut self) {
        self.keep.clear();
    }

    /// Changes the number of an inode's names; removes the inode with the last one.
    pub fn relink(&mut self, old: &Stored<R::Traits>, more_links: i64) -> Outcome<()> {
        let links = old.links + more_links;
        if links <= 0 {
            return self.drop_inode(old);
        }
        self.archive_inode(old)?;
        self.rows.update_links(old.number, self.epoch, links)
    }

    /// Sets the time of last change of an inode, if it exists, and with `modified` that of the last
    /// modification. Neither goes back: hosts' clocks differ.
    pub fn touch(&mut self, number: i64, modified: bool, time: Time) -> Outcome<()> {
        let Some(old) = self.stored(number)? else { return Ok(()) };
        let mtime = old.content.mtime;
        let before = match &old.content.times {
            Some(bytes) => times::decode(bytes, mtime)
                .map_err(|error| refuse(ErrorKind::Damaged, format!("times of inode {number}: {error}")))?,
            None => OtherTimes { atime: mtime, ctime: mtime },
        };
        let later = |one: Time, other: Time| {
            if (one.secs, one.nanos) < (other.secs, other.nanos) { other } else { one }
        };
        let mtime = if modified { later(mtime, time) } else { mtime };
        let after = OtherTimes { ctime: later(before.ctime, time), ..before };
        let mut new = old.clone();
        new.content.mtime = mtime;
        new.content.times = Some(times::encode(&after, mtime));
        if new.content == old.content {
            return Ok(());
        }
        self.archive_inode(&old)?;
        new.epoch = self.epoch;
        self.rows.update_inode(&new)
    }

    fn archive_inode(&mut self, old: &Stored<R::Traits>) -> Outcome<()> {
        if old.epoch < self.epoch && self.retained.sees(old.epoch, self.epoch) {
            self.rows.archive_inode(old.number, self.epoch)?;
        }
        Ok(())
    }

    /// Makes a name stand for an inode; false when it is taken.
    pub fn enter(&mut self, parent: i64, name: &[u8], number: i64) -> Outcome<bool> {
        self.rows.insert_name(parent, name, number, self.epoch)
    }

    /// Removes a name, which has existed since `since`, from its directory.
    pub fn drop_name(&mut self, parent: i64, name: &[u8], since: i64) -> Outcome<()> {
        if since < self.epoch && self.retained.sees(since, self.epoch) {
            self.rows.archive_name(parent, name, self.epoch)?;
        }
        self.rows.delete_name(parent, name)
    }

    /// Removes an inode without names, and everything that belongs to it.
    pub fn drop_inode(&mut self, old: &Stored<R::Traits>) -> Outcome<()> {
        self.archive_inode(old)?;
        self.rows.delete_inode(old.number)?;
        if old.version > 1 {
            self.rows.delete_versions(old.number)?;
        }
        if old.is_directory() {
            self.rows.delete_directory(old.number)?;
            self.rows.delete_policies(old.number)?;
            self.directories.remove(&old.number);
            self.domains.remove(&old.number);
            self.keep.remove(&old.number);
        }
        self.totals.count(-1, old.mode, row::length(&old.content.root)?)
    }

    /// Removes an entry and, with its last name, the inode; also everything below a directory.
    pub fn remove(&mut self, parent: i64, name: &[u8], since: i64, old: &Stored<R::Traits>) -> Outcome<()> {
        self.drop_name(parent, name, since)?;
        self.done.removed += 1;
        self.relink(old, -1)?;
        if old.is_directory() {
            self.empty(old.number)?;
        }
        Ok(())
    }

    /// Removes everything below a directory, depth first, in memory bounded by depth: the stack
    /// holds the directories of one batch per level.
    fn empty(&mut self, directory: i64) -> Outcome<()> {
        const BATCH: usize = 256;
        let mut stack = vec![directory];
        while let Some(&top) = stack.last() {
            let entries = self.rows.some_names(top, BATCH)?;
            if entries.is_empty() {
                stack.pop();
            }
            for (name, since, old) in entries {
                self.drop_name(top, &name, since)?;
                self.done.removed += 1;
                if old.is_directory() {
                    stack.push(old.number);
                    self.relink(&old, -1)?;
                } else {
                    // Read again: two names of one inode may be in the same batch.
                    let old = if old.links > 1 { self.stored(old.number)?.unwrap_or(old) } else { old };
                    self.relink(&old, -1)?;
                }
            }
        }
        Ok(())
    }

    /// True when a directory has no entries.
    pub fn is_empty(&mut self, directory: i64) -> Outcome<bool> {
        Ok(!self.rows.has_names(directory)?)
    }

    /// True when `directory` is `above` or lies below it.
    pub fn is_within(&mut self, directory: i64, above: i64) -> Outcome<bool> {
        const DEPTH_MAX: u32 = 1 << 20;
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            let parent = self.parent_of(at)?;
            at = parent.ok_or_else(|| refuse(ErrorKind::Damaged, format!("directory {at} hangs nowhere")))?;
        }
        Err(refuse(ErrorKind::Damaged, format!("directory {directory} is more than {DEPTH_MAX} levels deep")))
    }
}
