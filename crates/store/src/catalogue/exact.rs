//! The parts of a commit of names and inodes.

use std::collections::HashMap;

use crate::error::Result;
use crate::meta::{At, Change, Meta};

/// Changes with the same tie belong together.
#[derive(PartialEq, Eq, Hash)]
enum Tie {
    Inode(u64),
    Name(u64, Vec<u8>),
}

/// The indivisible parts. Changes of one inode belong together, and so do those of one name, and of
/// the inode that it stood for. A move is one part, and so is an exchange; a directory is in
/// another part than its contents.
pub(super) fn parts(meta: &dyn Meta, changes: Vec<Change>) -> Result<Vec<Vec<Change>>> {
    let mut sets = Sets::default();
    let mut first_of = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        sets.0.push(at);
        let mut join = |tie: Tie| {
            let first = *first_of.entry(tie).or_insert(at);
            sets.join(first, at);
        };
        match change {
            Change::Node { inode, .. } => join(Tie::Inode(*inode)),
            Change::Name { parent, name, inode } => {
                join(Tie::Name(*parent, name.clone()));
                let old = meta.lookup(At::Now, *parent, name)?.map(|old| old.number);
                inode.iter().chain(&old).for_each(|&inode| join(Tie::Inode(inode)));
            }
            _ => {}
        }
    }
    let mut parts: Vec<Vec<Change>> = Vec::new();
    let mut part_of = HashMap::new();
    for (at, change) in changes.into_iter().enumerate() {
        let part = *part_of.entry(sets.find(at)).or_insert_with(|| {
            parts.push(Vec::new());
            parts.len() - 1
        });
        parts[part].push(change);
    }
    Ok(parts)
}

/// Disjoint sets of positions.
#[derive(Default)]
struct Sets(Vec<usize>);

impl Sets {
    fn find(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.find(one), self.find(other));
        self.0[one.max(other)] = one.min(other);
    }
}
