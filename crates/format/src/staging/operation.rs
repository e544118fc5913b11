//! The operations in the records of the staging log.

use super::RECORD;
use crate::catalogue::Attributes;
use crate::{Cursor, FormatError, Put, Root};

/// One acknowledged operation, without the data of a write.
///
/// It says what a name, an inode or a range of bytes *is* afterwards. So replaying an operation
/// that already took effect changes nothing in the end: see `docs/format.md`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A new inode and its first name.
    Create {
        /// The directory's inode.
        parent: u64,
        /// The name in it. Empty for a file without a name yet.
        name: Vec<u8>,
        /// The new inode.
        inode: u64,
        /// Its attributes.
        attributes: Attributes,
    },
    /// Another name for an inode.
    Link {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The inode.
        inode: u64,
    },
    /// A name of a file or of an empty directory was removed.
    Unlink {
        /// The directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The inode that it stood for.
        inode: u64,
    },
    /// A name moved.
    Rename {
        /// The old directory's inode.
        parent: u64,
        /// The old name.
        name: Vec<u8>,
        /// The new directory's inode.
        new_parent: u64,
        /// The new name.
        new_name: Vec<u8>,
        /// The inode that it stands for.
        inode: u64,
        /// The inode that the new name stood for before, if any.
        replaced: Option<u64>,
    },
    /// Two names changed places.
    Exchange {
        /// One directory's inode.
        parent: u64,
        /// The name in it.
        name: Vec<u8>,
        /// The inode that this name stood for before. The other name now stands for it.
        inode: u64,
        /// The other directory's inode.
        other_parent: u64,
        /// The name in that.
        other_name: Vec<u8>,
        /// The inode that the other name stood for before.
        other_inode: u64,
    },
    /// An inode's attributes, all of them.
    Attributes {
        /// The inode.
        inode: u64,
        /// The new attributes.
        attributes: Attributes,
    },
    /// The record's data was written. Afterwards the file is at least long enough to hold it.
    Write {
        /// The file.
        inode: u64,
        /// Where the data begins.
        offset: u64,
    },
    /// The file has this length. New bytes read as zero.
    Truncate {
        /// The file.
        inode: u64,
        /// Its length.
        len: u64,
    },
    /// These bytes read as zero. Afterwards the file is at least long enough to hold them. A writer
    /// limits a punched hole to the file's length.
    Zero {
        /// The file.
        inode: u64,
        /// Where they begin.
        offset: u64,
        /// How many, at least 1.
        len: u64,
    },
    /// These bytes are those of another file's committed content. The file is at least so long
    /// afterwards.
    Clone {
        /// The file that the content belonged to, for messages. It may have changed since.
        from: u64,
        /// The committed content.
        root: Root,
        /// Where the bytes begin in that content.
        from_offset: u64,
        /// The file that has them now.
        inode: u64,
        /// Where they begin in it.
        offset: u64,
        /// How many, at least 1.
        len: u64,
    },
    /// An inode without a name was closed for the last time.
    Forget {
        /// The inode.
        inode: u64,
    },
    /// A file's content is in packs and in the database.
    Destaged {
        /// The file.
        inode: u64,
        /// `root` has its records up to this sequence.
        sequence: u64,
        /// The committed content.
        root: Root,
    },
    /// Name-space operations are in the database.
    Committed {
        /// Operations up to this sequence.
        sequence: u64,
    },
}

impl Operation {
    /// Its number on disk.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Create { .. } => 1,
            Self::Link { .. } => 2,
            Self::Unlink { .. } => 3,
            Self::Rename { .. } => 4,
            Self::Exchange { .. } => 5,
            Self::Attributes { .. } => 6,
            Self::Write { .. } => 7,
            Self::Truncate { .. } => 8,
            Self::Zero { .. } => 9,
            Self::Clone { .. } => 10,
            Self::Forget { .. } => 11,
            Self::Destaged { .. } => 12,
            Self::Committed { .. } => 13,
        }
    }

    /// True for operations that a [`Operation::Committed`] covers. False for changes of a file's
    /// content, and for the log's own records.
    pub fn is_name_space(&self) -> bool {
        matches!(self.kind(), 1..=6 | 11)
    }

    /// Appends the fields to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create { parent, name, inode, attributes } => {
                put_name(out, *parent, name);
                out.put_varint(*inode);
                attributes.encode(out);
            }
            Self::Link { parent, name, inode } | Self::Unlink { parent, name, inode } => {
                put_name(out, *parent, name);
                out.put_varint(*inode);
            }
            Self::Rename { parent, name, new_parent, new_name, inode, replaced } => {
                put_name(out, *parent, name);
                put_name(out, *new_parent, new_name);
                out.put_varint(*inode);
                out.put_varint(replaced.unwrap_or(0));
            }
            Self::Exchange { parent, name, inode, other_parent, other_name, other_inode } => {
                put_name(out, *parent, name);
                out.put_varint(*inode);
                put_name(out, *other_parent, other_name);
                out.put_varint(*other_inode);
            }
            Self::Attributes { inode, attributes } => {
                out.put_varint(*inode);
                attributes.encode(out);
            }
            Self::Write { inode, offset } => {
                out.put_varint(*inode);
                out.put_varint(*offset);
            }
            Self::Truncate { inode, len } => {
                out.put_varint(*inode);
                out.put_varint(*len);
            }
            Self::Zero { inode, offset, len } => {
                out.put_varint(*inode);
                out.put_varint(*offset);
                out.put_varint(*len);
            }
            Self::Clone { from, root, from_offset, inode, offset, len } => {
                out.put_varint(*from);
                out.put_bytes(&root.encode());
                [from_offset, inode, offset, len].into_iter().for_each(|field| out.put_varint(*field));
            }
            Self::Forget { inode } => out.put_varint(*inode),
            Self::Destaged { inode, sequence, root } => {
                out.put_varint(*inode);
                out.put_varint(*sequence);
                out.put_bytes(&root.encode());
            }
            Self::Committed { sequence } => out.put_varint(*sequence),
        }
    }

    /// Decodes the fields of an operation of this kind, which fill `fields`.
    ///
    /// # Errors
    /// Any [`FormatError`]. [`FormatError::Range`] for an unknown kind, and for ranges that are
    /// empty or end beyond 2^64.
    pub fn decode(kind: u8, fields: &[u8]) -> Result<Self, FormatError> {
        let cursor = &mut Cursor::new(RECORD, fields);
        let operation = match kind {
            1 => {
                let (parent, name) = get_name(cursor)?;
                Self::Create {
                    parent,
                    name,
                    inode: cursor.varint()?,
                    attributes: Attributes::decode(cursor)?,
                }
            }
            2 | 3 => {
                let ((parent, name), inode) = (get_name(cursor)?, cursor.varint()?);
                if kind == 2 {
                    Self::Link { parent, name, inode }
                } else {
                    Self::Unlink { parent, name, inode }
                }
            }
            4 => {
                let ((parent, name), (new_parent, new_name)) = (get_name(cursor)?, get_name(cursor)?);
                let (inode, replaced) = (cursor.varint()?, cursor.varint()?);
                let replaced = (replaced != 0).then_some(replaced);
                Self::Rename { parent, name, new_parent, new_name, inode, replaced }
            }
            5 => {
                let ((parent, name), inode) = (get_name(cursor)?, cursor.varint()?);
                let ((other_parent, other_name), other_inode) = (get_name(cursor)?, cursor.varint()?);
                Self::Exchange { parent, name, inode, other_parent, other_name, other_inode }
            }
            6 => Self::Attributes { inode: cursor.varint()?, attributes: Attributes::decode(cursor)? },
            7 => Self::Write { inode: cursor.varint()?, offset: cursor.varint()? },
            8 => Self::Truncate { inode: cursor.varint()?, len: cursor.varint()? },
            9 => {
                let (inode, (offset, len)) = (cursor.varint()?, get_range(cursor)?);
                Self::Zero { inode, offset, len }
            }
            10 => {
                let (from, root) = (cursor.varint()?, Root::decode(cursor.bytes()?)?);
                let (from_offset, inode, (offset, len)) =
                    (cursor.varint()?, cursor.varint()?, get_range(cursor)?);
                if from_offset.checked_add(len).is_none_or(|end| end > root.len()) {
                    return Err(cursor.range("source offset", from_offset));
                }
                Self::Clone { from, root, from_offset, inode, offset, len }
            }
            11 => Self::Forget { inode: cursor.varint()? },
            12 => Self::Destaged {
                inode: cursor.varint()?,
                sequence: cursor.varint()?,
                root: Root::decode(cursor.bytes()?)?,
            },
            13 => Self::Committed { sequence: cursor.varint()? },
            kind => return Err(cursor.range("kind", kind.into())),
        };
        if !cursor.is_empty() {
            return Err(cursor.range("bytes after the fields", cursor.rest().len() as u64));
        }
        Ok(operation)
    }
}

fn put_name(out: &mut Vec<u8>, parent: u64, name: &[u8]) {
    out.put_varint(parent);
    out.put_bytes(name);
}

fn get_name(cursor: &mut Cursor<'_>) -> Result<(u64, Vec<u8>), FormatError> {
    Ok((cursor.varint()?, cursor.bytes()?.to_vec()))
}

/// An offset, and a length that is not 0 and ends at most at the largest offset.
fn get_range(cursor: &mut Cursor<'_>) -> Result<(u64, u64), FormatError> {
    let (offset, len) = (cursor.varint()?, cursor.varint()?);
    if len == 0 || offset.checked_add(len).is_none() {
        return Err(cursor.range("length", len));
    }
    Ok((offset, len))
}
