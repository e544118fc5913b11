//! Builds a file's manifest bottom-up while its chunks arrive, in memory proportional to its depth.

use outrigger_format::{Domain, Entry, Fingerprint, INLINE_ENTRIES_MAX, MAX_LEVEL, Node, Root, ends_node};

use crate::error::{Error, ErrorKind, Result};

/// Takes finished nodes, stores them unless they are stored already, and returns their
/// fingerprints.
pub trait NodeSink {
    /// The nodes that follow belong to a file of this domain.
    fn enter_domain(&mut self, _domain: Domain) {}

    /// Stores one node.
    ///
    /// # Errors
    /// When the store fails.
    fn put_node(&mut self, node: &Node) -> Result<Fingerprint>;
}

/// Where nodes end; [`ends_node`] but in tests.
pub(super) type Rule = fn(usize, Option<&Fingerprint>) -> bool;

/// Collects entries; see the module.
pub struct ManifestBuilder {
    leaf: Vec<Entry>,
    /// Open inner nodes, level 1 first.
    inner: Vec<Vec<(Fingerprint, u64)>>,
    len: u64,
    pub(super) ends: Rule,
}

impl Default for ManifestBuilder {
    fn default() -> Self {
        Self { leaf: Vec::new(), inner: Vec::new(), len: 0, ends: ends_node }
    }
}

impl ManifestBuilder {
    /// Appends an entry; a hole that follows a hole is merged with it.
    ///
    /// # Errors
    /// When the sink fails, or the file would exceed 2^63 bytes.
    pub fn push(&mut self, entry: Entry, sink: &mut dyn NodeSink) -> Result<()> {
        self.grow(entry.len())?;
        if let (Entry::Hole { len }, Some(Entry::Hole { len: last })) = (entry, self.leaf.last_mut()) {
            *last += len;
            return Ok(());
        }
        self.leaf.push(entry);
        let fingerprint = match &entry {
            Entry::Chunk { fingerprint, .. } => Some(fingerprint),
            Entry::Hole { .. } => None,
        };
        if (self.ends)(self.leaf.len(), fingerprint) {
            self.close_leaf(sink)?;
        }
        Ok(())
    }

    /// True when a node of `level` could be appended as a whole: no node of that level or below it
    /// is open.
    pub fn takes_subtree(&self, level: u8) -> bool {
        self.leaf.is_empty() && self.inner.iter().take(level.into()).all(Vec::is_empty)
    }

    /// Appends all entries of a stored node of `level` that stands for `len` bytes, without reading
    /// it. The result is the same as pushing these entries, on two conditions:
    /// [`ManifestBuilder::takes_subtree`] is true, and the node and the last nodes of every level
    /// below it ended by [`ends_node`], not because their file did.
    ///
    /// # Errors
    /// As [`ManifestBuilder::push`].
    pub fn push_subtree(
        &mut self,
        level: u8,
        fingerprint: Fingerprint,
        len: u64,
        sink: &mut dyn NodeSink,
    ) -> Result<()> {
        debug_assert!(self.takes_subtree(level));
        self.grow(len)?;
        self.add_child(level + 1, fingerprint, len, sink)
    }

    fn grow(&mut self, by: u64) -> Result<()> {
        self.len = self
            .len
            .checked_add(by)
            .filter(|&len| len < 1 << 63)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "a file of more than 2^63 bytes"))?;
        Ok(())
    }

    fn close_leaf(&mut self, sink: &mut dyn NodeSink) -> Result<()> {
        let node = Node::Leaf(std::mem::take(&mut self.leaf));
        let len = node.total_len().expect("the file's length was checked");
        let fingerprint = sink.put_node(&node)?;
        self.add_child(1, fingerprint, len, sink)
    }

    fn add_child(&mut self, level: u8, child: Fingerprint, len: u64, sink: &mut dyn NodeSink) -> Result<()> {
        if level > MAX_LEVEL {
            return Err(Error::new(ErrorKind::Invalid, "a manifest of more than 8 levels"));
        }
        if self.inner.len() < level as usize {
            self.inner.resize_with(level.into(), Vec::new);
        }
        let children = &mut self.inner[level as usize - 1];
        children.push((child, len));
        if (self.ends)(children.len(), Some(&child)) {
            self.close_inner(level, sink)?;
        }
        Ok(())
    }

    fn close_inner(&mut self, level: u8, sink: &mut dyn NodeSink) -> Result<()> {
        let children = std::mem::take(&mut self.inner[level as usize - 1]);
        let node = Node::Inner { level, children };
        let len = node.total_len().expect("the file's length was checked");
        let fingerprint = sink.put_node(&node)?;
        self.add_child(level + 1, fingerprint, len, sink)
    }

    /// Closes all open nodes and returns the root; the builder is empty afterwards.
    ///
    /// # Errors
    /// As [`ManifestBuilder::push`].
    pub fn finish(&mut self, sink: &mut dyn NodeSink) -> Result<Root> {
        let len = std::mem::take(&mut self.len);
        if self.inner.is_empty() {
            if self.leaf.is_empty() {
                return Ok(Root::Empty);
            }
            if self.leaf.len() <= INLINE_ENTRIES_MAX {
                // Exactly as long as needed: a million of these may wait for their commit.
                return Ok(Root::Inline(std::mem::take(&mut self.leaf).into_boxed_slice().into_vec()));
            }
        }
        if !self.leaf.is_empty() {
            self.close_leaf(sink)?;
        }
        let mut level = 1;
        loop {
            let top = level as usize == self.inner.len();
            let children = &self.inner[level as usize - 1];
            if top && children.len() == 1 {
                let fingerprint = children[0].0;
                self.inner.clear();
                return Ok(Root::Tree { level: level - 1, len, fingerprint });
            }
            if !children.is_empty() {
                self.close_inner(level, sink)?;
            }
            level += 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use super::*;

    #[derive(Default)]
    pub struct Nodes(pub HashMap<Fingerprint, Vec<u8>>);

    impl NodeSink for Nodes {
        fn put_node(&mut self, node: &Node) -> Result<Fingerprint> {
            let bytes = node.encode();
            let fingerprint = Fingerprint(hash(&bytes));
            self.0.insert(fingerprint, bytes);
            Ok(fingerprint)
        }
    }

    /// A stand-in for the store's fingerprint: any mixing function will do here.
    pub fn hash(bytes: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        for (lane, slot) in out.chunks_mut(8).enumerate() {
            let salt = [lane as u8];
            slot.copy_from_slice(&outrigger_format::checksum(&[bytes, &salt]).to_le_bytes());
        }
        out
    }

    impl Nodes {
        fn read(&self, fingerprint: &Fingerprint, level: u8, len: u64, out: &mut Vec<Entry>) {
            match Node::decode(&self.0[fingerprint], level, len).unwrap() {
                Node::Leaf(entries) => out.extend(entries),
                Node::Inner { children, .. } => {
                    children.iter().for_each(|(child, len)| self.read(child, level - 1, *len, out));
                }
            }
        }
    }

    pub fn entries(count: u64, seed: u64) -> Vec<Entry> {
        (0..count)
            .map(|i| Entry::Chunk { fingerprint: Fingerprint(hash(&(i + seed).to_le_bytes())), len: 100 })
            .collect()
    }

    fn build(nodes: &mut Nodes, entries: &[Entry]) -> Root {
        let mut builder = ManifestBuilder::default();
        entries.iter().for_each(|&entry| builder.push(entry, nodes).unwrap());
        builder.finish(nodes).unwrap()
    }

    #[test]
    fn every_size_reads_back() {
        for count in [0, 1, 4, 5, 63, 64, 65, 1024, 5000, 300_000] {
            let mut nodes = Nodes::default();
            let entries = entries(count, 0);
            match build(&mut nodes, &entries) {
                Root::Empty => assert_eq!(count, 0),
                Root::Inline(inline) => assert_eq!(inline, entries),
                Root::Tree { level, len, fingerprint } => {
                    let mut read = Vec::new();
                    nodes.read(&fingerprint, level, len, &mut read);
                    assert_eq!(read, entries);
                    assert!(count < 300_000 || level >= 2, "a large file is a deep tree");
                }
            }
        }
    }

    #[test]
    fn an_insertion_changes_few_nodes() {
        let mut nodes = Nodes::default();
        let mut list = entries(200_000, 0);
        build(&mut nodes, &list);
        let before = nodes.0.len();
        list.insert(70_000, entries(1, 1 << 40)[0]);
        build(&mut nodes, &list);
        let added = nodes.0.len() - before;
        assert!(added <= 12, "{added} new nodes of {before}");
    }

    #[test]
    fn neighbouring_holes_are_one() {
        let mut nodes = Nodes::default();
        let root = build(&mut nodes, &[Entry::Hole { len: 5 }, Entry::Hole { len: 7 }]);
        assert_eq!(root, Root::Inline(vec![Entry::Hole { len: 12 }]));
    }
}
