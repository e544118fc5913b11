//! Access control lists of archives. They are text, as GNU tar, star and libarchive write and read
//! it under `SCHILY.acl.access` and `SCHILY.acl.default`. `tar x --acls` does not read the kernel's
//! own form in `SCHILY.xattr.`.

use outrigger_store::local::acl::{AclEntry, NOBODY, Tag, decode, encode};

/// Each key of an archive, and the attribute that it stands for.
pub const KEYS: [(&[u8], &[u8]); 2] = [
    (b"SCHILY.acl.access", outrigger_store::local::acl::ACCESS),
    (b"SCHILY.acl.default", outrigger_store::local::acl::DEFAULT),
];

/// The key for `attribute` in an archive, and its text; `None` if it is no list.
pub fn record(attribute: &[u8], value: &[u8]) -> Option<(&'static [u8], String)> {
    let (key, _) = KEYS.into_iter().find(|(_, name)| *name == attribute)?;
    let lines = decode(value)?.into_iter().map(|AclEntry { tag, id, permissions }| {
        let letter = |bit, letter| if permissions & bit != 0 { letter } else { '-' };
        let permissions: String = [letter(4, 'r'), letter(2, 'w'), letter(1, 'x')].iter().collect();
        match tag {
            Tag::Owner => format!("user::{permissions}"),
            Tag::User => format!("user:{id}:{permissions}"),
            Tag::OwningGroup => format!("group::{permissions}"),
            Tag::Group => format!("group:{id}:{permissions}"),
            Tag::Mask => format!("mask::{permissions}"),
            Tag::Other => format!("other::{permissions}"),
        }
    });
    Some((key, lines.collect::<Vec<_>>().join("\n")))
}

/// A list that was read from text.
pub struct Parsed {
    /// Its entries in the kernel's order, without those that cannot be parsed.
    pub entries: Vec<AclEntry>,
    /// Why the list is not whole: its first entry that cannot be parsed, or that names a user or
    /// group unknown to this machine.
    pub lacks: Option<String>,
}

impl Parsed {
    /// True when permission bits can express the whole list.
    pub fn is_minimal(&self) -> bool {
        self.lacks.is_none()
            && self
                .entries
                .iter()
                .all(|entry| matches!(entry.tag, Tag::Owner | Tag::OwningGroup | Tag::Other))
    }

    /// The list in the kernel's form.
    pub fn value(&self) -> Vec<u8> {
        encode(&self.entries)
    }
}

/// Parses a list: entries in lines or between commas, each `WHOM:NAME:rwx`, possibly followed by
/// the number of NAME.
pub fn parse(text: &[u8]) -> Parsed {
    let mut parsed = Parsed { entries: Vec::new(), lacks: None };
    for line in String::from_utf8_lossy(text).split(['\n', ',']) {
        // The comment behind `#` states the effective permissions.
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match entry(line) {
            Ok(entry) => parsed.entries.push(entry),
            Err(why) => drop(parsed.lacks.get_or_insert(why)),
        }
    }
    parsed.entries.sort_unstable();
    parsed
}

fn entry(line: &str) -> Result<AclEntry, String> {
    let bad = || format!("`{line}` is no entry of an access control list");
    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
    let (whom, name, permissions, number) = match fields[..] {
        // Star's short form.
        [whom @ ("mask" | "m" | "other" | "o"), permissions] => (whom, "", permissions, None),
        [whom, name, permissions] => (whom, name, permissions, None),
        [whom, name, permissions, number] => (whom, name, permissions, Some(number)),
        _ => return Err(bad()),
    };
    let tag = match (whom, name.is_empty()) {
        ("user" | "u", true) => Tag::Owner,
        ("user" | "u", false) => Tag::User,
        ("group" | "g", true) => Tag::OwningGroup,
        ("group" | "g", false) => Tag::Group,
        ("mask" | "m", true) => Tag::Mask,
        ("other" | "o", true) => Tag::Other,
        _ => return Err(bad()),
    };
    let id = match tag {
        Tag::User | Tag::Group => id(tag, name, number)?,
        _ => NOBODY,
    };
    let bits = permissions.chars().try_fold(0, |bits, letter| match letter {
        'r' => Ok(bits | 4),
        'w' => Ok(bits | 2),
        'x' => Ok(bits | 1),
        '-' => Ok(bits),
        _ => Err(bad()),
    });
    Ok(AclEntry { tag, id, permissions: bits? })
}

/// The number, if there is one, or else this machine's number for the name.
fn id(tag: Tag, name: &str, number: Option<&str>) -> Result<u32, String> {
    if let Some(id) = number.unwrap_or(name).parse().ok().or_else(|| name.parse().ok()) {
        return Ok(id);
    }
    if tag == Tag::User {
        let user = uzers::get_user_by_name(name).map(|user| user.uid());
        return user.ok_or_else(|| {
            format!("its access control list names the user `{name}`, who is unknown on this host")
        });
    }
    let group = uzers::get_group_by_name(name).map(|group| group.gid());
    group.ok_or_else(|| {
        format!("its access control list names the group `{name}`, which is unknown on this host")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_back_however_they_are_written() {
        let ours = "user::rw-\nuser:1234:rw-\ngroup::---\ngroup:7:r-x\nmask::rwx\nother::---";
        let parsed = parse(ours.as_bytes());
        assert!(parsed.lacks.is_none() && !parsed.is_minimal());
        let attribute = outrigger_store::local::acl::ACCESS;
        assert_eq!(record(attribute, &parsed.value()), Some((KEYS[0].0, ours.to_string())));
        for other in [
            "other:---,group::---,user::rw-,user:somebody:rw-:1234,mask:rwx,group:7:r-x",
            "u::rw-\nu:1234:rw-\t#effective:rw-\ng::---\ng:7:r-x\nm::rwx\n\no::---\n",
        ] {
            assert_eq!(parse(other.as_bytes()).entries, parsed.entries, "{other}");
        }
        assert!(parse(b"user::rw-\ngroup::r--\nother::---").is_minimal());
        assert_eq!(parse(b"user:root:r--").entries[0].id, 0);
        for bad in ["user:nobody has this name:rw-", "mask:5:rw-", "user::rq-", "x", "user:1:2:3:4"] {
            assert!(parse(bad.as_bytes()).lacks.is_some(), "{bad}");
        }
        assert_eq!(record(attribute, b"no list"), None);
    }
}
