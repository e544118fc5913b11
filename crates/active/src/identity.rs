//! The submitter of a job: the files that this user may read and write in the store, and the user
//! that runs the job's programs.
//!
//! | when | what is checked |
//! | --- | --- |
//! | a job is made, by `run` or by a rule | its submitter may read every input, through the directories above it, and write every output |
//! | a file is made in a mount that a rule tails | the rule's owner may read it then; otherwise it is not tailed for this rule |
//! | it is published | the submitter may still write every output, and owns new files and directories |
//! | it is run | the runner's user may run it (`trust.rs`): root runs programs as their submitter, every other user only their own jobs |
//!
//! Modes and access control lists count as they do for the kernel; root may do everything. An
//! existing file gets new content if it may be written; a new one is made if its directory may be
//! written.
//!
//! `trust.rs` decides if the submitter in a job's row is believed.

use std::collections::BTreeSet;

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_store::local::acl::{self, Tag};
use outrigger_store::meta::{At, Inode, Meta, ROOT_INODE};
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// A user with all groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submitter {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
}

fn account(uid: u32) -> Result<uzers::User> {
    uzers::get_user_by_uid(uid).ok_or_else(|| {
        let why = format!(
            "it was submitted by uid {uid}, whom this host does not know: its programs run only where that user has an account"
        );
        Error::new(ErrorKind::Denied, why)
    })
}

impl Submitter {
    /// The user of this process.
    pub fn here() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    /// A user of this host, with the groups of this host. Groups in a job's row do not count, as
    /// every client that may write to the database can write them.
    ///
    /// # Errors
    /// `Denied` for a number that no user has here.
    pub fn known_here(uid: u32) -> Result<Self> {
        let user = account(uid)?;
        let gid = user.primary_group_id();
        let groups = uzers::get_user_groups(user.name(), gid).unwrap_or_default();
        let others = groups.iter().map(uzers::Group::gid).filter(|other| *other != gid).collect();
        Ok(Self { uid, gid, groups: others })
    }

    /// A user's name on this host.
    ///
    /// # Errors
    /// `Denied` for a number that no user has here.
    pub fn name_of(uid: u32) -> Result<String> {
        Ok(account(uid)?.name().to_string_lossy().into_owned())
    }

    /// A user of this host, by name or number, with the groups that this host says.
    ///
    /// # Errors
    /// `Invalid` when there is none.
    pub fn named(user: &str) -> Result<Self> {
        let uid = uzers::get_user_by_name(user).map(|user| user.uid()).or_else(|| user.parse().ok());
        let known = uid.and_then(|uid| Self::known_here(uid).ok());
        known.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("there is no user `{user}` here")))
    }

    /// Root, in root's group only: it needs no other.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new() }
    }

    /// A user whose groups are unknown.
    pub(crate) fn alone(uid: u32) -> Self {
        Self { uid, ..Self::nobody() }
    }

    /// The user who owns nothing.
    pub fn nobody() -> Self {
        const NOBODY: u32 = 65534;
        Self { uid: NOBODY, gid: NOBODY, groups: Vec::new() }
    }

    /// True for root, for whom modes do not count.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// True if the user may do all of `wanted`, as bits of a mode.
    pub fn may(&self, attributes: &Attributes, wanted: u32) -> bool {
        let grants = |bits: u32| bits & wanted == wanted;
        if self.is_root() {
            return true;
        }
        if attributes.uid == self.uid {
            return grants(attributes.mode >> 6);
        }
        let list = attributes.xattrs.iter().find(|(name, _)| name.as_slice() == acl::ACCESS);
        let Some(entries) = list.and_then(|(_, value)| acl::decode(value)) else {
            let shift = if self.is_in(attributes.gid) { 3 } else { 0 };
            return grants(attributes.mode >> shift);
        };
        let mask = entries.iter().find(|entry| entry.tag == Tag::Mask).map_or(7, |entry| entry.permissions);
        let masked = |permissions: u16| grants(u32::from(permissions & mask));
        if let Some(own) = entries.iter().find(|entry| entry.tag == Tag::User && entry.id == self.uid) {
            return masked(own.permissions);
        }
        // Any of the user's groups that grants all of it is enough. A member of a group that does
        // not is not one of the others.
        let of_groups: Vec<u16> = entries
            .iter()
            .filter(|entry| match entry.tag {
                Tag::OwningGroup => self.is_in(attributes.gid),
                Tag::Group => self.is_in(entry.id),
                _ => false,
            })
            .map(|entry| entry.permissions)
            .collect();
        if !of_groups.is_empty() {
            return of_groups.into_iter().any(masked);
        }
        let other = entries.iter().find(|entry| entry.tag == Tag::Other);
        other.is_some_and(|entry| grants(u32::from(entry.permissions)))
    }

    /// Refuses a file that is just being made, known only to its mount, if the user may not read
    /// it. Uses the attributes of the file and of the directories from the root on.
    ///
    /// # Errors
    /// `Denied`, naming it.
    pub(crate) fn require_readable_now(
        &self,
        path: &StorePath,
        file: &Attributes,
        above: &[Attributes],
    ) -> Result<()> {
        if let Some(depth) = above.iter().position(|directory| !self.may(directory, SEARCH)) {
            let at = StorePath { components: path.components[..depth.min(path.components.len())].to_vec() };
            return Err(self.refused(path, &format!("search the directory `{at}`")));
        }
        if self.may(file, READ) { Ok(()) } else { Err(self.refused(path, "read it")) }
    }

    fn refused(&self, path: &StorePath, what: &str) -> Error {
        let why = format!("`{path}`: permission denied (EACCES): uid {} may not {what}", self.uid);
        Error::new(ErrorKind::Denied, why)
    }
}

/// Checks paths for one submitter; directories that were passed once are not checked again.
pub(crate) struct Permissions<'a> {
    meta: &'a dyn Meta,
    at: At,
    who: Option<&'a Submitter>,
    passed: BTreeSet<StorePath>,
}

impl<'a> Permissions<'a> {
    /// Checks the tree as it is `at`; root may do everything, and so may a job without a submitter.
    pub fn new(meta: &'a dyn Meta, at: At, who: Option<&'a Submitter>) -> Self {
        Self { meta, at, who: who.filter(|who| !who.is_root()), passed: BTreeSet::new() }
    }

    /// Goes to the last existing directory along `path`; returns how many of its names lead there.
    fn directory(&mut self, who: &Submitter, path: &StorePath) -> Result<(Option<Inode>, usize)> {
        let (mut inode, mut at) = (self.meta.inode(self.at, ROOT_INODE)?, StorePath::default());
        for (depth, name) in path.components.iter().enumerate() {
            let Some(parent) = inode.as_ref().filter(|inode| inode.attributes.kind == FileKind::Directory)
            else {
                return Ok((inode, depth));
            };
            if !who.may(&parent.attributes, SEARCH) {
                return Err(who.refused(path, &format!("search the directory `{at}`")));
            }
            match self.meta.lookup(self.at, parent.number, name)? {
                None => return Ok((inode, depth)),
                found => inode = found,
            }
            at = at.join(name);
        }
        Ok((inode, path.components.len()))
    }

    /// Refuses an input that the submitter may not read.
    ///
    /// # Errors
    /// `Denied`, naming it.
    pub fn require_readable(&mut self, path: &StorePath, inode: &Inode) -> Result<()> {
        let Some(who) = self.who else { return Ok(()) };
        let above = path.parent();
        if !self.passed.contains(&above) {
            let (directory, _) = self.directory(who, &above)?;
            if !directory.is_none_or(|directory| who.may(&directory.attributes, SEARCH)) {
                return Err(who.refused(path, &format!("search the directory `{above}`")));
            }
            self.passed.insert(above);
        }
        if who.may(&inode.attributes, READ) { Ok(()) } else { Err(who.refused(path, "read it")) }
    }

    /// Refuses an output that the submitter may not write: the file, if it exists, otherwise the
    /// directory that it, or its topmost new directory, is to be made in.
    ///
    /// # Errors
    /// `Denied`, naming it.
    pub fn require_writable(&mut self, path: &StorePath) -> Result<()> {
        let Some(who) = self.who else { return Ok(()) };
        let (found, depth) = self.directory(who, path)?;
        let Some(inode) = found else { return Ok(()) };
        if inode.attributes.kind == FileKind::Directory {
            let at = StorePath { components: path.components[..depth].to_vec() };
            let may = who.may(&inode.attributes, WRITE | SEARCH);
            return if may { Ok(()) } else { Err(who.refused(path, &format!("make files in `{at}`"))) };
        }
        if who.may(&inode.attributes, WRITE) { Ok(()) } else { Err(who.refused(path, "write it")) }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_store::local::acl::{ACCESS, AclEntry, NOBODY, encode};
    use outrigger_store::local::put::made_now;

    use super::*;

    fn file(mode: u32, uid: u32, gid: u32) -> Attributes {
        Attributes { uid, gid, ..made_now(FileKind::File, mode) }
    }

    #[test]
    fn modes_hold_for_owner_group_and_others_in_this_order() {
        let who = Submitter { uid: 10, gid: 20, groups: vec![21] };
        let may = |mode, uid, gid| who.may(&file(mode, uid, gid), READ);
        assert!(may(0o400, 10, 1) && !may(0o077, 10, 20), "the owner is none of the others");
        assert!(may(0o040, 1, 20) && may(0o040, 1, 21) && !may(0o704, 1, 21));
        assert!(may(0o004, 1, 1) && !may(0o770, 1, 1));
        assert!(!who.may(&file(0o400, 10, 1), READ | WRITE));
        let root = Submitter { uid: 0, gid: 0, groups: Vec::new() };
        assert!(root.may(&file(0, 10, 20), READ | WRITE));
    }

    #[test]
    fn lists_hold_as_the_kernel_has_them() {
        let who = Submitter { uid: 10, gid: 20, groups: vec![21] };
        let entry = |tag, id, permissions| AclEntry { tag, id, permissions };
        let with = |more: &[AclEntry], mask: u16, other: u16| {
            let mut list = vec![entry(Tag::Owner, NOBODY, 6)];
            list.extend_from_slice(more);
            list.extend([
                entry(Tag::OwningGroup, NOBODY, 0),
                entry(Tag::Mask, NOBODY, mask),
                entry(Tag::Other, NOBODY, other),
            ]);
            list.sort_unstable();
            let mut attributes = file(0o664, 1, 1);
            attributes.xattrs = vec![(ACCESS.to_vec(), encode(&list))];
            who.may(&attributes, READ)
        };
        assert!(with(&[entry(Tag::User, 10, 4)], 7, 0));
        assert!(
            !with(&[entry(Tag::User, 10, 4)], 2, 4),
            "the mask takes it away, and he is none of the others"
        );
        assert!(!with(&[entry(Tag::User, 11, 4)], 7, 0));
        assert!(with(&[entry(Tag::Group, 21, 4), entry(Tag::Group, 20, 0)], 7, 0), "one group is enough");
        assert!(!with(&[entry(Tag::Group, 20, 0)], 7, 4), "a group without keeps him from being another");
        assert!(with(&[], 0, 4));
    }
}
