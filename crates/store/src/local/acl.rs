//! Access control lists as the kernel stores them. The value of `system.posix_acl_access` and
//! `_default` is a version (4 bytes), then 8 bytes an entry: tag (2), permissions (2), user or
//! group (4), all little-endian.

/// The attribute with the permissions of a file; the group's permission bits are then its mask.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files in a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// The identifier of entries without a user or group.
pub const NOBODY: u32 = u32::MAX;

/// The subject of an entry, in the order in which the kernel wants entries sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Other = 32,
}

/// One entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AclEntry {
    /// Its subject.
    pub tag: Tag,
    /// The user or group, for [`Tag::User`] and [`Tag::Group`]; else [`NOBODY`].
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// The entries of an attribute's value; `None` when it is not one.
pub fn decode(value: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let entry = |bytes: &[u8]| {
        let tag = match u16::from_le_bytes([bytes[0], bytes[1]]) {
            1 => Tag::Owner,
            2 => Tag::User,
            4 => Tag::OwningGroup,
            8 => Tag::Group,
            16 => Tag::Mask,
            32 => Tag::Other,
            _ => return None,
        };
        let permissions = u16::from_le_bytes([bytes[2], bytes[3]]) & 7;
        Some(AclEntry { tag, id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]), permissions })
    };
    entries.chunks_exact(8).map(entry).collect()
}

/// The inverse of [`decode`].
pub fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
        value.extend_from_slice(&entry.permissions.to_le_bytes());
        value.extend_from_slice(&entry.id.to_le_bytes());
    }
    value
}

/// `mode` as it should be where a file's list cannot be: its group bits are the list's mask, which
/// may be more than the owning group was ever given.
pub fn mode_without(mode: u32, entries: &[AclEntry]) -> u32 {
    let of = |tag| entries.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.permissions));
    let group = of(Tag::OwningGroup).unwrap_or(0) & of(Tag::Mask).unwrap_or(7);
    mode & !0o070 | (mode & 0o070 & group << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_and_its_loss_gives_nobody_more() {
        let entry = |tag, id, permissions| AclEntry { tag, id, permissions };
        let list = [
            entry(Tag::Owner, NOBODY, 6),
            entry(Tag::User, 1234, 6),
            entry(Tag::OwningGroup, NOBODY, 4),
            entry(Tag::Mask, NOBODY, 6),
            entry(Tag::Other, NOBODY, 0),
        ];
        let value = encode(&list);
        assert_eq!(decode(&value).unwrap(), list);
        assert_eq!(mode_without(0o660, &list), 0o640);
        assert_eq!(mode_without(0o660, &[]), 0o600);
        assert!(decode(&value[..11]).is_none() && decode(&[1, 0, 0, 0]).is_none() && decode(b"").is_none());
    }
}
