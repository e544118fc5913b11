//! Manifest nodes and roots. `docs/format.md` has the byte maps.
//!
//! A leaf lists chunks and holes, and an inner node lists nodes one level below it. The
//! fingerprints in a node decide where it ends, so equal runs of chunks become equal nodes,
//! whatever precedes them.

use crate::{Cursor, Fingerprint, FormatError, Put};

const WHAT: &str = "manifest node";
const ROOT: &str = "manifest root";
const MAGIC: [u8; 2] = *b"ON";
const VERSION: u8 = 1;
const HOLE: u32 = u32::MAX;

/// A node holds at least this many entries, unless it is the last of its level.
pub const NODE_ENTRIES_MIN: usize = 64;
/// A node holds at most this many entries.
pub const NODE_ENTRIES_MAX: usize = 1024;
/// A root keeps this many leaf entries itself instead of naming a node.
pub const INLINE_ENTRIES_MAX: usize = 4;
/// The deepest level a root node may have.
pub const MAX_LEVEL: u8 = 7;

/// One entry of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A chunk.
    Chunk {
        /// Its fingerprint.
        fingerprint: Fingerprint,
        /// Its length, 1 to 2^31 − 1 bytes.
        len: u32,
    },
    /// A run of zeros that is not stored and is restored as a hole.
    Hole {
        /// Its length, bytes, at least 1.
        len: u64,
    },
}

impl Entry {
    /// The bytes of the file that it stands for.
    pub fn len(&self) -> u64 {
        match *self {
            Self::Chunk { len, .. } => len.into(),
            Self::Hole { len } => len,
        }
    }

    /// Never true: entries stand for at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Chunk { fingerprint, len } => {
                out.put_u32(*len);
                out.extend_from_slice(&fingerprint.0);
            }
            Self::Hole { len } => {
                out.put_u32(HOLE);
                out.put_u64(*len);
                out.extend_from_slice(&[0; 24]);
            }
        }
    }

    fn decode(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        match cursor.u32()? {
            HOLE => {
                let len = cursor.u64()?;
                if len == 0 || cursor.array::<24>()? != [0; 24] {
                    return Err(cursor.range("hole", len));
                }
                Ok(Self::Hole { len })
            }
            len @ 1..=0x7fff_ffff => Ok(Self::Chunk { len, fingerprint: cursor.fingerprint()? }),
            len => Err(cursor.range("chunk length", len.into())),
        }
    }
}

/// True if a node of `entries` entries ends after the one with `fingerprint` (`None`: a hole).
pub fn ends_node(entries: usize, fingerprint: Option<&Fingerprint>) -> bool {
    entries >= NODE_ENTRIES_MAX
        || (entries >= NODE_ENTRIES_MIN && fingerprint.is_some_and(|fingerprint| fingerprint.0[0] == 0))
}

/// A decoded node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// Level 0.
    Leaf(Vec<Entry>),
    /// Level 1 and up: (child, total length below it).
    Inner {
        /// This node's level.
        level: u8,
        /// Children in order.
        children: Vec<(Fingerprint, u64)>,
    },
}

impl Node {
    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        match self {
            Self::Leaf(_) => 0,
            Self::Inner { level, .. } => *level,
        }
    }

    /// The bytes of the file below this node. `None` if they do not fit 64 bits.
    pub fn total_len(&self) -> Option<u64> {
        match self {
            Self::Leaf(entries) => entries.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.len())),
            Self::Inner { children, .. } => {
                children.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len))
            }
        }
    }

    /// The node's bytes, whose fingerprint names it.
    ///
    /// # Panics
    /// If the node is empty, too large, or its lengths overflow, which is a bug in the builder.
    pub fn encode(&self) -> Vec<u8> {
        let count = match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner { children, .. } => children.len(),
        };
        assert!((1..=NODE_ENTRIES_MAX).contains(&count), "a node of {count} entries");
        let mut out = Vec::with_capacity(16 + count * 40);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.level()]);
        out.put_u32(count as u32);
        out.put_u64(self.total_len().expect("the builder bounds a file's length"));
        match self {
            Self::Leaf(entries) => entries.iter().for_each(|entry| entry.encode(&mut out)),
            Self::Inner { children, .. } => {
                for (fingerprint, len) in children {
                    out.put_u64(*len);
                    out.extend_from_slice(&fingerprint.0);
                }
            }
        }
        out
    }

    /// Decodes a node and checks it against its parent's (or the root's) data.
    ///
    /// # Errors
    /// Any [`FormatError`]. An unexpected `level` or `total_len` is [`FormatError::Range`].
    pub fn decode(bytes: &[u8], level: u8, total_len: u64) -> Result<Self, FormatError> {
        let node = Self::decode_any(bytes)?;
        if node.level() != level {
            return Err(FormatError::Range { what: WHAT, field: "level", value: node.level().into() });
        }
        if node.total_len() != Some(total_len) {
            return Err(FormatError::Range { what: WHAT, field: "total length", value: total_len });
        }
        Ok(node)
    }

    /// Decodes a node without knowing its level or length.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode_any(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, bytes);
        if cursor.array::<2>()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = cursor.u8()?;
        if version != VERSION {
            return Err(FormatError::Newer { what: WHAT, version: version.into(), features: 0 });
        }
        let (level, count, total_len) = (cursor.u8()?, cursor.u32()? as usize, cursor.u64()?);
        if level > MAX_LEVEL {
            return Err(cursor.range("level", level.into()));
        }
        let entry_len = if level == 0 { 36 } else { 40 };
        if count == 0 || count > NODE_ENTRIES_MAX || cursor.rest().len() != count * entry_len {
            return Err(cursor.range("entries", count as u64));
        }
        let node = if level == 0 {
            Self::Leaf((0..count).map(|_| Entry::decode(&mut cursor)).collect::<Result<_, _>>()?)
        } else {
            let mut children = Vec::with_capacity(count);
            for _ in 0..count {
                let len = cursor.u64()?;
                if len == 0 {
                    return Err(cursor.range("child length", 0));
                }
                children.push((cursor.fingerprint()?, len));
            }
            Self::Inner { level, children }
        };
        if node.total_len() != Some(total_len) {
            return Err(FormatError::Range { what: WHAT, field: "total length", value: total_len });
        }
        Ok(node)
    }
}

/// The root of a file's content. The database and the catalogue keep it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Root {
    /// No bytes.
    #[default]
    Empty,
    /// A few entries, kept here.
    Inline(Vec<Entry>),
    /// A tree of nodes.
    Tree {
        /// Level of the root node.
        level: u8,
        /// Bytes of the file.
        len: u64,
        /// The root node.
        fingerprint: Fingerprint,
    },
}

impl Root {
    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Inline(entries) => entries.iter().map(Entry::len).sum(),
            Self::Tree { len, .. } => *len,
        }
    }

    /// True when the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The root's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Empty => vec![0],
            Self::Inline(entries) => {
                let mut out = Vec::with_capacity(2 + 36 * entries.len());
                out.extend_from_slice(&[1, entries.len() as u8]);
                entries.iter().for_each(|entry| entry.encode(&mut out));
                out
            }
            Self::Tree { level, len, fingerprint } => {
                let mut out = Vec::with_capacity(42);
                out.extend_from_slice(&[2, *level]);
                out.put_u64(*len);
                out.extend_from_slice(&fingerprint.0);
                out
            }
        }
    }

    /// Decodes a root that fills `bytes`.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(ROOT, bytes);
        let root = match cursor.u8()? {
            0 => Self::Empty,
            1 => {
                let count = cursor.u8()? as usize;
                if count == 0 || count > INLINE_ENTRIES_MAX {
                    return Err(cursor.range("entries", count as u64));
                }
                let entries =
                    (0..count).map(|_| Entry::decode(&mut cursor)).collect::<Result<Vec<_>, _>>()?;
                if entries.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.len())).is_none() {
                    return Err(cursor.range("total length", u64::MAX));
                }
                Self::Inline(entries)
            }
            2 => {
                let (level, len) = (cursor.u8()?, cursor.u64()?);
                if level > MAX_LEVEL {
                    return Err(cursor.range("level", level.into()));
                }
                if len == 0 {
                    return Err(cursor.range("total length", len));
                }
                Self::Tree { level, len, fingerprint: cursor.fingerprint()? }
            }
            tag => return Err(cursor.range("tag", tag.into())),
        };
        if !cursor.is_empty() {
            return Err(cursor.range("trailing bytes", cursor.rest().len() as u64));
        }
        Ok(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(byte: u8, len: u32) -> Entry {
        Entry::Chunk { fingerprint: Fingerprint([byte; 32]), len }
    }

    #[test]
    fn nodes_and_roots_read_back() {
        let leaf = Node::Leaf(vec![chunk(7, 4096), Entry::Hole { len: 1 << 40 }, chunk(9, 1)]);
        let total = leaf.total_len().unwrap();
        assert_eq!(Node::decode(&leaf.encode(), 0, total), Ok(leaf.clone()));
        assert!(Node::decode(&leaf.encode(), 0, total + 1).is_err());
        assert!(Node::decode(&leaf.encode(), 1, total).is_err());
        let inner =
            Node::Inner { level: 3, children: vec![(Fingerprint([1; 32]), 5), (Fingerprint([2; 32]), 6)] };
        assert_eq!(Node::decode(&inner.encode(), 3, 11), Ok(inner));
        for root in [
            Root::Empty,
            Root::Inline(vec![chunk(1, 2), Entry::Hole { len: 3 }]),
            Root::Tree { level: 2, len: 99, fingerprint: Fingerprint([3; 32]) },
        ] {
            assert_eq!(Root::decode(&root.encode()), Ok(root));
        }
    }

    #[test]
    fn absurd_lengths_are_refused() {
        let huge = Root::Inline(vec![Entry::Hole { len: u64::MAX }, Entry::Hole { len: 1 }]);
        let mut bytes = vec![1, 2];
        if let Root::Inline(entries) = &huge {
            entries.iter().for_each(|entry| entry.encode(&mut bytes));
        }
        assert!(Root::decode(&bytes).is_err());
        let node = Node::Inner {
            level: 1,
            children: vec![(Fingerprint([1; 32]), u64::MAX), (Fingerprint([2; 32]), 1)],
        };
        assert_eq!(node.total_len(), None);
        let mut bytes = b"ON\x01\x01\x02\0\0\0".to_vec();
        bytes.put_u64(0);
        bytes.put_u64(u64::MAX);
        bytes.extend_from_slice(&[1; 32]);
        bytes.put_u64(1);
        bytes.extend_from_slice(&[2; 32]);
        assert!(Node::decode_any(&bytes).is_err());
    }

    #[test]
    fn nodes_end_by_content() {
        assert!(!ends_node(NODE_ENTRIES_MIN - 1, Some(&Fingerprint([0; 32]))));
        assert!(ends_node(NODE_ENTRIES_MIN, Some(&Fingerprint([0; 32]))));
        assert!(!ends_node(NODE_ENTRIES_MIN, Some(&Fingerprint([1; 32]))));
        assert!(!ends_node(NODE_ENTRIES_MIN, None));
        assert!(ends_node(NODE_ENTRIES_MAX, None));
    }
}
