//! Access control lists. The kernel checks them; the file system decides which lists a new file
//! inherits, and keeps lists and permission bits consistent. Their encoding:
//! [`outrigger_store::local::acl`].

use outrigger_format::catalogue::Xattrs;
use outrigger_store::local::acl::{self, AclEntry, Tag, encode};
pub(crate) use outrigger_store::local::acl::{ACCESS, DEFAULT};
use rustix::io::Errno;

use crate::fs::Result;

fn decode(value: &[u8]) -> Result<Vec<AclEntry>> {
    acl::decode(value).ok_or(Errno::INVAL)
}

/// True when permission bits say all of it.
fn is_minimal(items: &[AclEntry]) -> bool {
    items.iter().all(|item| matches!(item.tag, Tag::Owner | Tag::OwningGroup | Tag::Other))
}

/// The tag that the group's permission bits stand for.
fn group_class(items: &[AclEntry]) -> Tag {
    if items.iter().any(|item| item.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
}

/// The nine permission bits that belong to a list.
fn bits(items: &[AclEntry]) -> u32 {
    let class = group_class(items);
    let of =
        |tag: Tag| items.iter().find(|item| item.tag == tag).map_or(0, |item| u32::from(item.permissions));
    of(Tag::Owner) << 6 | of(class) << 3 | of(Tag::Other)
}

/// Changes the entries that permission bits stand for.
fn apply(items: &mut [AclEntry], change: impl Fn(u16, u16) -> u16) {
    let class = group_class(items);
    for item in items {
        let shift = match item.tag {
            Tag::Owner => 6,
            Tag::Other => 0,
            tag if tag == class => 3,
            _ => continue,
        };
        item.permissions = change(item.permissions, shift);
    }
}

/// The mode and lists that a new inode inherits from its directory's default list, if there is one.
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

/// An access list that is set: the mode that follows it, and the list, unless the mode says all of
/// it.
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

    fn item(tag: Tag, permissions: u16) -> AclEntry {
        AclEntry { tag, permissions, id: u32::MAX }
    }

    fn list(mask: u16) -> Vec<u8> {
        let named = AclEntry { tag: Tag::User, permissions: 7, id: 1000 };
        encode(&[
            item(Tag::Owner, 7),
            named,
            item(Tag::OwningGroup, 5),
            item(Tag::Mask, mask),
            item(Tag::Other, 0),
        ])
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
        let minimal = encode(&[item(Tag::Owner, 6), item(Tag::OwningGroup, 4), item(Tag::Other, 4)]);
        assert_eq!(set_access(&minimal, 0).unwrap(), (0o644, None));
        assert!(set_access(b"junk", 0).is_err() && set_access(&[9; 12], 0).is_err());
    }
}
