//! Takes over a range of a stored manifest into one that is being built, and reads only the nodes
//! at its ends.
//!
//! The content of a node, from its beginning, decides where it ends. So if building begins a node
//! where a stored one begins, it builds the same node, bit for bit, and can append the stored one
//! unread. The exceptions are the last nodes of each level of a file, which end because the file
//! does. They are read, and count as whole only if they happen to end by the rule.

use std::sync::Arc;

use outrigger_format::{Entry, Fingerprint, MAX_LEVEL, Node, Root};

use super::manifest::{ManifestBuilder, NodeSink};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::read::manifest::NodeSource;

/// Decoded nodes kept: those at both ends of a range, on every level.
const NODES_KEPT: usize = 2 * (MAX_LEVEL as usize + 1);

/// Stored nodes, and those read last: ranges that follow each other share the nodes at their ends.
pub(super) struct StoredNodes {
    source: Box<dyn NodeSource + Send>,
    /// Most recently used last, each with the length it was checked against.
    recent: Vec<(Fingerprint, u64, Arc<Node>)>,
}

impl StoredNodes {
    pub fn new(source: Box<dyn NodeSource + Send>) -> Self {
        Self { source, recent: Vec::with_capacity(NODES_KEPT) }
    }

    fn read(&mut self, fingerprint: &Fingerprint, level: u8, len: u64) -> Result<Arc<Node>> {
        let same = |(name, known, node): &(Fingerprint, u64, Arc<Node>)| {
            name == fingerprint && *known == len && node.level() == level
        };
        let found = match self.recent.iter().position(same) {
            Some(at) => self.recent.remove(at),
            None => {
                let bytes = self.source.read_node(fingerprint)?;
                let node =
                    Node::decode(&bytes, level, len).context(|| format!("manifest node {fingerprint}"))?;
                if self.recent.len() == NODES_KEPT {
                    self.recent.remove(0);
                }
                (*fingerprint, len, Arc::new(node))
            }
        };
        let node = Arc::clone(&found.2);
        self.recent.push(found);
        Ok(node)
    }
}

/// Appends the entries of `root` in `from..to` to `builder`. A hole may be kept in part.
///
/// # Errors
/// `Invalid` when the range is not in the file or does not begin and end with an entry; those of
/// both stores.
pub(super) fn keep(
    builder: &mut ManifestBuilder,
    root: &Root,
    (from, to): (u64, u64),
    nodes: &mut StoredNodes,
    sink: &mut dyn NodeSink,
) -> Result<()> {
    let len = root.len();
    if from > to || to > len {
        let why = format!("bytes {from} to {to} of a file of {len} cannot be kept");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let mut walk = Keeping { builder, from, to, len, nodes, sink };
    match root {
        Root::Empty => Ok(()),
        Root::Inline(entries) => walk.leaf(entries, 0),
        Root::Tree { level, fingerprint, .. } => walk.node(*level, fingerprint, len, 0),
    }
}

struct Keeping<'a> {
    builder: &'a mut ManifestBuilder,
    from: u64,
    to: u64,
    /// The whole file's.
    len: u64,
    nodes: &'a mut StoredNodes,
    sink: &'a mut dyn NodeSink,
}

impl Keeping<'_> {
    /// The part of the range that lies in the node at `at`.
    fn node(&mut self, level: u8, fingerprint: &Fingerprint, len: u64, mut at: u64) -> Result<()> {
        let end = at + len;
        if end <= self.from || at >= self.to {
            return Ok(());
        }
        let inside = self.from <= at && end <= self.to;
        if inside
            && self.builder.takes_subtree(level)
            && (end < self.len || self.ends_by_rule(level, fingerprint, len)?)
        {
            return self.builder.push_subtree(level, *fingerprint, len, self.sink);
        }
        match &*self.nodes.read(fingerprint, level, len)? {
            Node::Leaf(entries) => self.leaf(entries, at),
            Node::Inner { children, .. } => {
                for (child, child_len) in children {
                    self.node(level - 1, child, *child_len, at)?;
                    at += child_len;
                }
                Ok(())
            }
        }
    }

    fn leaf(&mut self, entries: &[Entry], mut at: u64) -> Result<()> {
        for &entry in entries {
            let (start, end) = (at.max(self.from), (at + entry.len()).min(self.to));
            let kept = match entry {
                _ if start >= end => None,
                Entry::Hole { .. } => Some(Entry::Hole { len: end - start }),
                Entry::Chunk { .. } if end - start == entry.len() => Some(entry),
                Entry::Chunk { len, .. } => {
                    let why = format!("byte {start} to {end} is only a part of the {len} of a chunk");
                    return Err(Error::new(ErrorKind::Invalid, why));
                }
            };
            if let Some(kept) = kept {
                self.builder.push(kept, self.sink)?;
            }
            at += entry.len();
        }
        Ok(())
    }

    /// True if a node at the right edge of its file, and all on the edge below it, would end there
    /// even if the file went on.
    fn ends_by_rule(&mut self, level: u8, fingerprint: &Fingerprint, len: u64) -> Result<bool> {
        let node = self.nodes.read(fingerprint, level, len)?;
        match &*node {
            Node::Leaf(entries) => {
                let last = match entries.last() {
                    Some(Entry::Chunk { fingerprint, .. }) => Some(fingerprint),
                    _ => None,
                };
                Ok((self.builder.ends)(entries.len(), last))
            }
            Node::Inner { children, .. } => {
                let Some((last, last_len)) = children.last() else { return Ok(false) };
                Ok((self.builder.ends)(children.len(), Some(last))
                    && self.ends_by_rule(level - 1, last, *last_len)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use outrigger_format::ends_node;
    use outrigger_workload::Rng;

    use super::super::manifest::Rule;
    use super::super::manifest::tests::{Nodes, entries, hash};
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<(Nodes, usize)>>);

    impl NodeSink for Shared {
        fn put_node(&mut self, node: &Node) -> Result<Fingerprint> {
            self.0.lock().unwrap().0.put_node(node)
        }
    }

    impl NodeSource for Shared {
        fn read_node(&self, fingerprint: &Fingerprint) -> Result<Vec<u8>> {
            let mut inner = self.0.lock().unwrap();
            inner.1 += 1;
            Ok(inner.0.0[fingerprint].clone())
        }
    }

    fn small(entries: usize, fingerprint: Option<&Fingerprint>) -> bool {
        entries >= 9 || entries >= 2 && fingerprint.is_some_and(|fingerprint| fingerprint.0[0] < 64)
    }

    fn builder(rule: Rule) -> ManifestBuilder {
        let mut builder = ManifestBuilder::default();
        builder.ends = rule;
        builder
    }

    fn build(nodes: &mut Shared, rule: Rule, entries: &[Entry]) -> Root {
        let mut builder = builder(rule);
        entries.iter().for_each(|&entry| builder.push(entry, nodes).unwrap());
        builder.finish(nodes).unwrap()
    }

    /// A file's entries as its manifest has them: holes merged where they are.
    fn all_entries(nodes: &Shared, root: &Root) -> Vec<Entry> {
        let mut all = Vec::new();
        crate::read::manifest::walk_entries(nodes, root, 0, u64::MAX, &mut |_, entry| {
            all.push(entry);
            Ok(true)
        })
        .unwrap();
        all
    }

    fn random_entries(rng: &mut Rng, count: u64) -> Vec<Entry> {
        // Few different chunks in some files: runs of equal nodes. Holes in runs in others.
        let (kinds, holes) = ([3, 50, 1 << 40][rng.below(3) as usize], [0, 3, 30][rng.below(3) as usize]);
        (0..count)
            .map(|_| {
                if rng.below(100) < holes {
                    return Entry::Hole { len: 1 + rng.below(500) };
                }
                let fingerprint = Fingerprint(hash(&rng.below(kinds).to_le_bytes()));
                Entry::Chunk { fingerprint, len: 100 }
            })
            .collect()
    }

    /// Composes files of random ranges of random files; compares with the result of pushing all
    /// their entries.
    fn compose(rule: Rule, rounds: u64, count: u64, seed: u64) {
        let mut rng = Rng::new(seed);
        for _ in 0..rounds {
            let mut nodes = Shared::default();
            let bases: Vec<(Root, Vec<Entry>)> = (0..3)
                .map(|_| {
                    let len = rng.below(count);
                    let root = build(&mut nodes, rule, &random_entries(&mut rng, len));
                    let entries = all_entries(&nodes, &root);
                    (root, entries)
                })
                .collect();
            let mut stored = StoredNodes::new(Box::new(nodes.clone()));
            let (mut built, mut plain) = (builder(rule), Vec::new());
            for _ in 0..1 + rng.below(6) {
                if rng.below(3) == 0 {
                    for entry in random_entries(&mut rng, 4) {
                        built.push(entry, &mut nodes).unwrap();
                        plain.push(entry);
                    }
                    continue;
                }
                let (root, entries) = &bases[rng.below(3) as usize];
                let count = entries.len() as u64;
                let (a, b) = (rng.below(count + 1), rng.below(count + 1));
                let (mut a, mut b) = (a.min(b) as usize, a.max(b) as usize);
                // Files keep whole heads and tails most of the time.
                match rng.below(4) {
                    0 => a = 0,
                    1 => b = entries.len(),
                    2 => (a, b) = (0, entries.len()),
                    _ => {}
                }
                let at = |n: usize| entries[..n].iter().map(Entry::len).sum::<u64>();
                keep(&mut built, root, (at(a), at(b)), &mut stored, &mut nodes).unwrap();
                plain.extend_from_slice(&entries[a..b]);
            }
            let root = built.finish(&mut nodes).unwrap();
            assert_eq!(root, build(&mut nodes, rule, &plain));
        }
    }

    #[test]
    fn a_composed_manifest_is_that_of_its_entries() {
        compose(small, 3000, 60, 1);
        compose(small, 300, 2000, 2);
        compose(ends_node, 60, 500, 3);
        compose(ends_node, 10, 30_000, 4);
    }

    #[test]
    fn few_nodes_are_read_however_much_is_kept() {
        let mut nodes = Shared::default();
        let list = entries(400_000, 0);
        let root = build(&mut nodes, ends_node, &list);
        assert!(matches!(root, Root::Tree { level: 2.., .. }), "deep enough to tell");
        let mut stored = StoredNodes::new(Box::new(nodes.clone()));
        let mut built = builder(ends_node);
        let new = entries(3, 1 << 40);
        keep(&mut built, &root, (0, 15_000_000), &mut stored, &mut nodes).unwrap();
        new.iter().for_each(|&entry| built.push(entry, &mut nodes).unwrap());
        keep(&mut built, &root, (15_000_200, 40_000_000), &mut stored, &mut nodes).unwrap();
        let root = built.finish(&mut nodes).unwrap();
        let read = nodes.0.lock().unwrap().1;
        assert!(read <= 20, "{read} nodes read");
        let plain = [&list[..150_000], &new, &list[150_002..]].concat();
        assert_eq!(root, build(&mut nodes, ends_node, &plain));
    }

    #[test]
    fn ranges_that_follow_each_other_read_their_edges_once() {
        let mut nodes = Shared::default();
        let root = build(&mut nodes, ends_node, &entries(5000, 0));
        let mut stored = StoredNodes::new(Box::new(nodes.clone()));
        let mut built = builder(ends_node);
        for at in 0..2500 {
            let from = at * 200;
            keep(&mut built, &root, (from, from + 100), &mut stored, &mut nodes).unwrap();
            built.push(entries(1, at + (1 << 40))[0], &mut nodes).unwrap();
        }
        let (inner, all) = (nodes.0.lock().unwrap().1, 1 + 5000 / 64);
        assert!(inner <= all, "{inner} reads of at most {all} nodes");
    }

    #[test]
    fn a_range_that_cuts_a_chunk_is_refused_and_a_hole_is_split() {
        let mut nodes = Shared::default();
        let chunk = entries(1, 0)[0];
        let root = Root::Inline(vec![chunk, Entry::Hole { len: 50 }, chunk]);
        let mut stored = StoredNodes::new(Box::new(nodes.clone()));
        let mut built = builder(ends_node);
        keep(&mut built, &root, (110, 120), &mut stored, &mut nodes).unwrap();
        for range in [(0, 99), (1, 100), (140, 151), (0, 251), (9, 8)] {
            let error = keep(&mut builder(ends_node), &root, range, &mut stored, &mut nodes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{range:?}");
        }
        assert_eq!(built.finish(&mut nodes).unwrap(), Root::Inline(vec![Entry::Hole { len: 10 }]));
    }
}
