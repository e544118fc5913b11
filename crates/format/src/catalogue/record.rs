//! The records of a catalogue block: each is one change of the tree, with a type byte in front.
//!
//! `docs/format.md` has the byte map, and what a replay makes of each record.

use super::attributes::{Attributes, Time, get_time, put_time};
use crate::{Cursor, Fingerprint, FormatError, Put, Root};

/// One change of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An entry was made or its file changed. Entries with the same inode are hard links.
    Upsert {
        /// The file.
        inode: u64,
        /// The directory's inode.
        parent: u64,
        /// The name in it; empty for the root directory itself.
        name: Vec<u8>,
        /// Attributes.
        attributes: Attributes,
        /// Content.
        root: Root,
        /// The name stood for another inode before, which it leaves.
        replace: bool,
    },
    /// Another name for an inode.
    Link {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The file.
        inode: u64,
    },
    /// An entry was removed, with all below it.
    Unlink {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
    },
    /// An entry was moved and replaced what was there.
    Rename {
        /// The old directory.
        parent: u64,
        /// The old name.
        name: Vec<u8>,
        /// The new directory.
        new_parent: u64,
        /// The new name.
        new_name: Vec<u8>,
    },
    /// A snapshot of the tree as it is at this point of the log.
    Snapshot {
        /// Its name.
        name: Vec<u8>,
        /// When it was taken, nanoseconds since 1970.
        time: u64,
        /// Its tags.
        tags: Vec<Vec<u8>>,
    },
    /// A snapshot got these tags in place of its old ones.
    Tags {
        /// Its name.
        name: Vec<u8>,
        /// Its tags.
        tags: Vec<Vec<u8>>,
    },
    /// A snapshot was deleted.
    Forget {
        /// Its name.
        name: Vec<u8>,
    },
    /// The following records supersede all earlier blocks.
    Reset,
    /// An earlier version that is kept.
    Version {
        /// The file.
        inode: u64,
        /// The version's number, rising from 1.
        number: u64,
        /// When it was committed, nanoseconds since 1970.
        time: u64,
        /// Time of its last modification.
        mtime: Time,
        /// Its content.
        root: Root,
    },
    /// A policy of a directory was set or unset.
    Policy {
        /// The directory.
        inode: u64,
        /// The policy's name.
        key: Vec<u8>,
        /// Its value; `None`: unset.
        value: Option<Vec<u8>>,
    },
    /// Ends the [`Record::Reset`] of the same sequence. Without it the whole sequence is ignored.
    ResetEnd,
    /// The name stands for `inode` or nothing. An inode without a name at the sequence's end goes.
    Name {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The inode.
        inode: Option<u64>,
    },
    /// An inode's attributes and content. The inode is made if it does not exist.
    Node {
        /// The inode.
        inode: u64,
        /// A directory that has a name for it at the end of the sequence.
        parent: u64,
        /// Attributes.
        attributes: Attributes,
        /// Content.
        root: Root,
        /// The previous content becomes an earlier version.
        keep: bool,
    },
    /// Blocks that came before this one: each one's sequence and fingerprint.
    After {
        /// The blocks.
        blocks: Vec<(u64, Fingerprint)>,
    },
    /// Heads that were given out before this reset, whose blocks it supersedes.
    Heads {
        /// The tree that the reset describes was compared with all that these heads stand for.
        is_proven: bool,
        /// The fingerprint of each one's block.
        heads: Vec<Fingerprint>,
    },
    /// A keyed hash of the block, see [`super::sealed_bytes`]. It is the last record.
    Seal {
        /// The hash.
        mac: [u8; 32],
    },
}

/// The type of [`Record::Seal`].
pub(super) const SEAL: u8 = 18;

fn put_strings(out: &mut Vec<u8>, strings: &[Vec<u8>]) {
    out.put_varint(strings.len() as u64);
    strings.iter().for_each(|string| out.put_bytes(string));
}

fn get_strings(cursor: &mut Cursor<'_>) -> Result<Vec<Vec<u8>>, FormatError> {
    let count = cursor.varint()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        strings.push(cursor.bytes()?.to_vec());
    }
    Ok(strings)
}

impl Record {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Upsert { inode, parent, name, attributes, root, replace } => {
                out.push(if *replace { 9 } else { 1 });
                out.put_varint(*inode);
                out.put_varint(*parent);
                out.put_bytes(name);
                attributes.encode(out);
                out.put_bytes(&root.encode());
            }
            Self::Link { parent, name, inode } => {
                out.push(8);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(*inode);
            }
            Self::Unlink { parent, name } => {
                out.push(2);
                out.put_varint(*parent);
                out.put_bytes(name);
            }
            Self::Rename { parent, name, new_parent, new_name } => {
                out.push(3);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(*new_parent);
                out.put_bytes(new_name);
            }
            Self::Snapshot { name, time, tags } => {
                out.push(4);
                out.put_bytes(name);
                out.put_varint(*time);
                put_strings(out, tags);
            }
            Self::Tags { name, tags } => {
                out.push(15);
                out.put_bytes(name);
                put_strings(out, tags);
            }
            Self::Forget { name } => {
                out.push(5);
                out.put_bytes(name);
            }
            Self::Reset => out.push(6),
            Self::Version { inode, number, time, mtime, root } => {
                out.push(7);
                out.put_varint(*inode);
                out.put_varint(*number);
                out.put_varint(*time);
                put_time(out, *mtime);
                out.put_bytes(&root.encode());
            }
            Self::Policy { inode, key, value } => {
                out.push(10);
                out.put_varint(*inode);
                out.put_bytes(key);
                out.push(u8::from(value.is_some()));
                value.iter().for_each(|value| out.put_bytes(value));
            }
            Self::ResetEnd => out.push(11),
            Self::Name { parent, name, inode } => {
                out.push(12);
                out.put_varint(*parent);
                out.put_bytes(name);
                out.put_varint(inode.unwrap_or(0));
            }
            Self::Node { inode, parent, attributes, root, keep } => {
                out.push(if *keep { 14 } else { 13 });
                out.put_varint(*inode);
                out.put_varint(*parent);
                attributes.encode(out);
                out.put_bytes(&root.encode());
            }
            Self::After { blocks } => {
                out.push(16);
                out.put_varint(blocks.len() as u64);
                for (sequence, fingerprint) in blocks {
                    out.put_varint(*sequence);
                    out.extend_from_slice(&fingerprint.0);
                }
            }
            Self::Heads { is_proven, heads } => {
                out.push(17);
                out.push(u8::from(*is_proven));
                out.put_varint(heads.len() as u64);
                heads.iter().for_each(|head| out.extend_from_slice(&head.0));
            }
            Self::Seal { mac } => {
                out.push(SEAL);
                out.extend_from_slice(mac);
            }
        }
    }

    pub(super) fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(match cursor.u8()? {
            kind @ (1 | 9) => Self::Upsert {
                inode: cursor.varint()?,
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                attributes: Attributes::decode(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
                replace: kind == 9,
            },
            8 => Self::Link {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                inode: cursor.varint()?,
            },
            2 => Self::Unlink { parent: cursor.varint()?, name: cursor.bytes()?.to_vec() },
            3 => Self::Rename {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                new_parent: cursor.varint()?,
                new_name: cursor.bytes()?.to_vec(),
            },
            4 => Self::Snapshot {
                name: cursor.bytes()?.to_vec(),
                time: cursor.varint()?,
                tags: get_strings(cursor)?,
            },
            15 => Self::Tags { name: cursor.bytes()?.to_vec(), tags: get_strings(cursor)? },
            5 => Self::Forget { name: cursor.bytes()?.to_vec() },
            6 => Self::Reset,
            7 => Self::Version {
                inode: cursor.varint()?,
                number: cursor.varint()?,
                time: cursor.varint()?,
                mtime: get_time(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
            },
            10 => Self::Policy {
                inode: cursor.varint()?,
                key: cursor.bytes()?.to_vec(),
                value: match cursor.u8()? {
                    0 => None,
                    1 => Some(cursor.bytes()?.to_vec()),
                    value => return Err(cursor.range("policy", value.into())),
                },
            },
            11 => Self::ResetEnd,
            12 => Self::Name {
                parent: cursor.varint()?,
                name: cursor.bytes()?.to_vec(),
                inode: Some(cursor.varint()?).filter(|&inode| inode != 0),
            },
            kind @ (13 | 14) => Self::Node {
                inode: cursor.varint()?,
                parent: cursor.varint()?,
                attributes: Attributes::decode(cursor)?,
                root: Root::decode(cursor.bytes()?)?,
                keep: kind == 14,
            },
            16 => {
                let count = cursor.varint()?;
                let mut blocks = Vec::new();
                for _ in 0..count {
                    blocks.push((cursor.varint()?, cursor.fingerprint()?));
                }
                Self::After { blocks }
            }
            17 => {
                let is_proven = match cursor.u8()? {
                    value @ (0 | 1) => value == 1,
                    value => return Err(cursor.range("heads", value.into())),
                };
                let count = cursor.varint()?;
                let mut heads = Vec::new();
                for _ in 0..count {
                    heads.push(cursor.fingerprint()?);
                }
                Self::Heads { is_proven, heads }
            }
            SEAL => Self::Seal { mac: cursor.array()? },
            kind => return Err(cursor.range("record type", kind.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::attributes::{FileKind, OtherTimes};
    use super::*;

    /// The byte map of docs/format.md.
    #[test]
    fn golden_bytes() {
        let attributes = Attributes {
            kind: FileKind::Symlink,
            mode: 0o777,
            uid: 1,
            gid: 2,
            mtime: Time { secs: -1, nanos: 2 },
            rdev: 0,
            target: b"to".to_vec(),
            xattrs: Vec::new(),
            times: Some(OtherTimes {
                atime: Time { secs: 3, nanos: 4 },
                ctime: Time { secs: 5, nanos: 128 },
            }),
        };
        let node = |keep| {
            let attributes = attributes.clone();
            Record::Node { inode: 300, parent: 1, attributes, root: Root::Empty, keep }
        };
        let name = |inode| Record::Name { parent: 1, name: b"ab".to_vec(), inode };
        let fields = b"\xac\x02\x01\x82\xff\x03\x01\x02\x01\x02\x02to\x00\x06\x04\x0a\x80\x01\x01\x00";
        for (record, golden) in [
            (name(Some(300)), b"\x0c\x01\x02ab\xac\x02".to_vec()),
            (name(None), b"\x0c\x01\x02ab\x00".to_vec()),
            (node(false), [b"\x0d", &fields[..]].concat()),
            (node(true), [b"\x0e", &fields[..]].concat()),
        ] {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(bytes, golden, "{record:?}");
        }
    }
}
