//! Access control lists, as far as a file system has to understand them: the kernel checks them, but what a new file inherits, and how lists
//! and permission bits follow each other, is ours.
//!
//! The value of `system.posix_acl_access` and `_default` is what the kernel calls `posix_acl_xattr`: a version (4 bytes), then 8 bytes an entry:
//! tag (2), permissions (2), user or group (4), all little-endian.

use outrigger_format::catalogue::Xattrs;
use rustix::io::Errno;

use crate::fs::Result;

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy)]
struct Item {
    tag: u16,
    permissions: u16,
    id: u32,
}

fn decode(value: &[u8]) -> Result<Vec<Item>> {
    let (version, items) = value.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
    if u32::from_le_bytes(*version) != VERSION || items.len() % 8 != 0 {
        return Err(Errno::INVAL);
    }
    let item = |bytes: &[u8]| Item {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        permissions: u16::from_le_bytes([bytes[2], bytes[3]]) & 7,
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Ok(items.chunks_exact(8).map(item).collect())
}

fn encode(items: &[Item]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for item in items {
        out.extend_from_slice(&item.tag.to_le_bytes());
        out.extend_from_slice(&item.permissions.to_le_bytes());
        out.extend_from_slice(&item.id.to_le_bytes());
    }
    out
}

/// True when permission bits say all of it.
fn is_minimal(items: &[Item]) -> bool {
    items.iter().all(|item| matches!(item.tag, USER_OBJ | GROUP_OBJ | OTHER))
}

/// The tag that the group's permission bits stand for.
fn group_class(items: &[Item]) -> u16 {
    if items.iter().any(|item| item.tag == MASK) { MASK } else { GROUP_OBJ }
}

/// The nine permission bits that belong to a list.
fn bits(items: &[Item]) -> u32 {
    let class = group_class(items);
    let of =
        |tag: u16| items.iter().find(|item| item.tag == tag).map_or(0, |item| u32::from(item.permissions));
    of(USER_OBJ) << 6 | of(class) << 3 | of(OTHER)
}

/// Changes the entries that permission bits stand for.
fn apply(items: &mut [Item], change: impl Fn(u16, u16) -> u16) {
    let class = group_class(items);
    for item in items {
        let shift = match item.tag {
            USER_OBJ => 6,
            OTHER => 0,
            tag if tag == class => 3,
            _ => continue,
        };
        item.permissions = change(item.permissions, shift);
    }
}

/// What something new inherits from the default list of its directory, if that has one: its mode and lists.
pub(crate) fn inherited(above: &Xattrs, is_directory: bool, mode: u32) -> Option<(u32, Xattrs)> {
    let default = get(above, DEFAULT)?;
    let mut items = decode(default).ok()?;
    apply(&mut items, |permissions, shift| permissions & (mode >> shift) as u16 & 7);
    let mut xattrs = Xattrs::new();
    if !is_minimal(&items) {
        xattrs.push((ACCESS.to_vec(), encode(&items)));
    }
    if is_directory {
        xattrs.push((DEFAULT.to_vec(), default.to_vec()));
    }
    Some((mode & !0o777 | bits(&items), xattrs))
}

/// Makes the access list follow a change of the mode.
pub(crate) fn follow_mode(xattrs: &mut Xattrs, mode: u32) {
    let Some((_, value)) = xattrs.iter_mut().find(|(name, _)| name == ACCESS) else { return };
    if let Ok(mut items) = decode(value) {
        apply(&mut items, |_, shift| (mode >> shift) as u16 & 7);
        *value = encode(&items);
    }
}

/// An access list that is set: the mode that follows it, and the list, unless the mode says all of it.
pub(crate) fn set_access(value: &[u8], mode: u32) -> Result<(u32, Option<Vec<u8>>)> {
    let items = decode(value)?;
    if items.is_empty() {
        return Ok((mode, None));
    }
    let mode = mode & !0o777 | bits(&items);
    Ok((mode, (!is_minimal(&items)).then(|| value.to_vec())))
}

/// Checks a default list that is set; an empty one is none.
pub(crate) fn check_default(value: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok((!decode(value)?.is_empty()).then(|| value.to_vec()))
}

fn get<'a>(xattrs: &'a Xattrs, name: &[u8]) -> Option<&'a [u8]> {
    xattrs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(tag: u16, permissions: u16) -> Item {
        Item { tag, permissions, id: u32::MAX }
    }

    fn list(mask: u16) -> Vec<u8> {
        const USER: u16 = 0x02;
        let named = Item { tag: USER, permissions: 7, id: 1000 };
        encode(&[item(USER_OBJ, 7), named, item(GROUP_OBJ, 5), item(MASK, mask), item(OTHER, 0)])
    }

    #[test]
    fn a_new_file_gets_the_default_list_within_what_was_asked_for() {
        let above = vec![(DEFAULT.to_vec(), list(7))];
        let (mode, xattrs) = inherited(&above, false, 0o100_644).unwrap();
        assert_eq!(
            mode & 0o777,
            0o640,
            "the mask is cut to what was asked for the group, others get nothing"
        );
        assert_eq!(xattrs.len(), 1);
        assert_eq!(bits(&decode(&xattrs[0].1).unwrap()), 0o640);
        let (_, xattrs) = inherited(&above, true, 0o755).unwrap();
        assert_eq!(xattrs[1], above[0], "directories hand it on");
        assert!(inherited(&Vec::new(), true, 0o755).is_none());
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let (mode, kept) = set_access(&list(6), 0o4755).unwrap();
        assert_eq!(mode, 0o4760);
        let mut xattrs = vec![(ACCESS.to_vec(), kept.unwrap())];
        follow_mode(&mut xattrs, 0o4741);
        assert_eq!(bits(&decode(&xattrs[0].1).unwrap()), 0o741);
        let minimal = encode(&[item(USER_OBJ, 6), item(GROUP_OBJ, 4), item(OTHER, 4)]);
        assert_eq!(set_access(&minimal, 0).unwrap(), (0o644, None));
        assert!(set_access(b"junk", 0).is_err() && set_access(&[9; 12], 0).is_err());
    }
}
