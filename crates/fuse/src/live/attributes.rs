//! Attributes: mode, owner, times, length, extended attributes.

use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time, Xattrs};
use outrigger_format::staging::Operation;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::acl;
use super::core::{Core, is_privileged, now};
use super::node::{Node, State};
use super::world::Seen;
use crate::fs::{Caller, DROP_SET_GROUP, Result, SetAttr, SetTime};

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const CAPABILITY: &[u8] = b"security.capability";
/// As Linux has them.
const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 64 << 10;
/// All of a file's together: they travel with every change of its attributes.
const XATTRS_MAX: usize = 1 << 20;

/// Takes away what a change of content or owner must not leave: set-id bits and capabilities.
pub(crate) fn drop_privileges(attributes: &mut Attributes) -> bool {
    if attributes.kind == FileKind::Directory {
        return false;
    }
    let mut mode = attributes.mode & !SET_USER;
    // Without the group's execute bit, set-group-id means mandatory locking, or nothing.
    if mode & 0o010 != 0 {
        mode &= !SET_GROUP;
    }
    let before = attributes.xattrs.len();
    attributes.xattrs.retain(|(name, _)| name != CAPABILITY);
    let changed = mode != attributes.mode || attributes.xattrs.len() != before;
    attributes.mode = mode;
    changed
}

fn to_time(set: SetTime, present: Time) -> Time {
    match set {
        SetTime::To(time) => time,
        SetTime::Now => present,
    }
}

impl Core {
    /// Changes attributes, and logs them.
    pub fn edit(&self, node: &Arc<Node>, state: &mut State, change: impl FnOnce(&mut State)) -> Result<()> {
        let before = state.attributes.clone();
        change(state);
        let operation = Operation::Attributes { inode: node.number, attributes: state.attributes.clone() };
        if let Err(errno) = self.append(&operation, &[]) {
            state.attributes = before;
            return Err(errno);
        }
        state.edited();
        self.world.mark(node);
        Ok(())
    }

    /// `chmod`, `chown`, `truncate`, `utimensat`.
    pub fn set_attributes_of(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<Arc<Node>> {
        let node = self.node(number)?;
        let bytes = self.room_for_attributes(&node);
        let cuts = set.size.is_some_and(|len| len < node.read().len());
        let _room = if cuts { self.room_to_free(bytes) } else { Some(self.room(bytes)?) };
        let _gate = self.enter();
        let mut state = node.write();
        let present = now();
        if let Some(len) = set.size {
            if node.kind != FileKind::File {
                return Err(if node.is_directory() { Errno::ISDIR } else { Errno::INVAL });
            }
            self.truncate_in(&node, &mut state, len)?;
            if !is_privileged(caller) && drop_privileges(&mut state.attributes) {
                self.edit(&node, &mut state, |_| {})?;
            }
        }
        if !sets_more_than_size(set) {
            drop(state);
            return Ok(node);
        }
        self.edit(&node, &mut state, |state| apply(&mut state.attributes, set, present))?;
        drop(state);
        Ok(node)
    }

    /// Bytes that a record of a node's attributes takes, more or less.
    pub fn room_for_attributes(&self, node: &Node) -> usize {
        let state = node.read();
        let xattrs: usize =
            state.attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        xattrs + state.attributes.target.len()
    }

    // ---- extended attributes ----------------------------------------------------------------------------------------

    /// Extended attributes of something.
    pub fn xattrs_of(&self, number: u64) -> Result<Xattrs> {
        Ok(match self.seen(number)? {
            Seen::Node(node) => node.read().attributes.xattrs.clone(),
            Seen::Row(row) => row.attributes.xattrs,
        })
    }

    /// Sets an extended attribute.
    pub fn set_xattr_of(&self, number: u64, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_xattr(name, value)?;
        let node = self.node(number)?;
        let _room = self.room(self.room_for_attributes(&node) + name.len() + value.len())?;
        let _gate = self.enter();
        let mut state = node.write();
        let (mode, kept) = set_xattr(&state.attributes, name, value, flags)?;
        self.edit(&node, &mut state, |state| {
            state.attributes.mode = mode;
            put_xattr(&mut state.attributes.xattrs, name, kept);
            state.changed_at(now());
        })
    }

    /// Removes an extended attribute.
    pub fn remove_xattr_of(&self, number: u64, name: &[u8]) -> Result<()> {
        let node = self.node(number)?;
        let _room = self.room(self.room_for_attributes(&node))?;
        let _gate = self.enter();
        let mut state = node.write();
        if !state.attributes.xattrs.iter().any(|(key, _)| key == name) {
            return Err(Errno::NODATA);
        }
        self.edit(&node, &mut state, |state| {
            put_xattr(&mut state.attributes.xattrs, name, None);
            state.changed_at(now());
        })
    }
}

/// Something other than the length is set.
pub(crate) fn sets_more_than_size(set: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, atime, mtime, .. } = *set;
    mode.is_some() || uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some()
}

/// Sets all but the length.
pub(crate) fn apply(attributes: &mut Attributes, set: &SetAttr, present: Time) {
    let SetAttr { mode, uid, gid, atime, mtime, ctime, .. } = *set;
    if uid.is_some() || gid.is_some() {
        drop_privileges(attributes);
    }
    attributes.uid = uid.unwrap_or(attributes.uid);
    attributes.gid = gid.unwrap_or(attributes.gid);
    if let Some(mode) = mode {
        attributes.mode = mode & 0o7777;
        acl::follow_mode(&mut attributes.xattrs, mode);
    }
    let before = attributes.mtime;
    let times = attributes.times.get_or_insert(OtherTimes { atime: before, ctime: before });
    times.atime = atime.map_or(times.atime, |set| to_time(set, present));
    times.ctime = ctime.unwrap_or(present);
    if let Some(set) = mtime {
        attributes.mtime = to_time(set, present);
    }
}

/// Refuses what cannot be an extended attribute.
pub(crate) fn check_xattr(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Errno::RANGE);
    }
    if value.len() > XATTR_VALUE_MAX {
        return Err(Errno::TOOBIG);
    }
    Ok(())
}

/// The mode that follows from setting an extended attribute, and the value to keep, if any.
pub(crate) fn set_xattr(
    attributes: &Attributes,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Result<(u32, Option<Vec<u8>>)> {
    let there = attributes.xattrs.iter().any(|(key, _)| key == name);
    if there && flags.contains(XattrFlags::CREATE) {
        return Err(Errno::EXIST);
    }
    if !there && flags.contains(XattrFlags::REPLACE) {
        return Err(Errno::NODATA);
    }
    let (mut mode, mut kept) = (attributes.mode, Some(value.to_vec()));
    if name == acl::ACCESS {
        (mode, kept) = acl::set_access(value, mode)?;
        if flags.contains(DROP_SET_GROUP) {
            mode &= !SET_GROUP;
        }
    } else if name == acl::DEFAULT {
        if attributes.kind != FileKind::Directory {
            return Err(Errno::ACCESS);
        }
        kept = acl::check_default(value)?;
    }
    let others = attributes.xattrs.iter().filter(|(key, _)| key != name);
    let bytes: usize = others.map(|(key, value)| key.len() + value.len()).sum();
    if kept.as_ref().is_some_and(|kept| bytes + name.len() + kept.len() > XATTRS_MAX) {
        return Err(Errno::NOSPC);
    }
    Ok((mode, kept))
}

/// Sets, or removes, keeping the order of names.
pub(crate) fn put_xattr(xattrs: &mut Xattrs, name: &[u8], value: Option<Vec<u8>>) {
    match (xattrs.binary_search_by(|(key, _)| key.as_slice().cmp(name)), value) {
        (Ok(at), Some(value)) => xattrs[at].1 = value,
        (Ok(at), None) => drop(xattrs.remove(at)),
        (Err(at), Some(value)) => xattrs.insert(at, (name.to_vec(), value)),
        (Err(_), None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_attributes_stay_in_order() {
        let mut xattrs = Xattrs::new();
        for name in [b"user.b".as_slice(), b"user.a", b"user.c"] {
            put_xattr(&mut xattrs, name, Some(name.to_vec()));
        }
        put_xattr(&mut xattrs, b"user.b", None);
        put_xattr(&mut xattrs, b"user.x", None);
        put_xattr(&mut xattrs, b"user.a", Some(b"new".to_vec()));
        let names: Vec<_> = xattrs.iter().map(|(name, _)| name.as_slice()).collect();
        assert_eq!(names, [b"user.a", b"user.c"]);
        assert_eq!(xattrs[0].1, b"new");
    }
}
