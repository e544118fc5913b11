//! From damaged chunks and nodes to the files that hold them: the present tree, every snapshot,
//! every kept version.
//!
//! This runs only when something is damaged. It finds out once per manifest node whether there is
//! damage below. Then only the damaged branches of a file are walked again for its ranges, so the
//! cost is that of listing the tree.

use std::collections::{BTreeMap, HashMap, HashSet};

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Entry, Fingerprint, Node, Root};

use super::report::{AffectedFile, Finding};
use crate::error::Result;
use crate::meta::{At, Inode, ROOT_INODE};
use crate::read::Reader;
use crate::read::manifest::NodeSource;
use crate::store::Store;
use crate::text::show;

/// Files that are listed for one finding; more are only counted.
const LISTED: usize = 1000;
const LISTING: usize = 4096;

/// Which findings a chunk or node belongs to, by their numbers.
pub(super) type BadChunks = HashMap<Fingerprint, Vec<usize>>;

struct Search<'a> {
    store: &'a Store,
    reader: Reader<'a>,
    bad: &'a BadChunks,
    /// Node → whether anything at or below it is bad.
    nodes: HashMap<Fingerprint, bool>,
    findings: &'a mut [Finding],
}

/// Fills in the files of each finding.
pub(super) fn name_files(store: &Store, bad: &BadChunks, findings: &mut [Finding]) -> Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    let mut search = Search { store, reader: Reader::new(store), bad, nodes: HashMap::new(), findings };
    search.tree(At::Now, None)?;
    for snapshot in store.meta.snapshots()? {
        search.tree(At::Epoch(snapshot.epoch), Some(&snapshot.name))?;
    }
    Ok(())
}

impl Search<'_> {
    fn tree(&mut self, at: At, snapshot: Option<&str>) -> Result<()> {
        // A directory has one place; one that comes again lies below itself, which a check of the
        // database has named.
        let mut seen = HashSet::from([ROOT_INODE]);
        let mut directories = vec![(ROOT_INODE, String::new())];
        while let Some((directory, path)) = directories.pop() {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let entries = self.store.meta.read_dir(at, directory, after.as_deref(), LISTING)?;
                after = (entries.len() == LISTING).then(|| entries[LISTING - 1].name.clone());
                for entry in entries {
                    let path =
                        format!("{path}{}{}", if path.is_empty() { "" } else { "/" }, show(&entry.name));
                    match entry.inode.attributes.kind {
                        FileKind::Directory if seen.insert(entry.inode.number) => {
                            directories.push((entry.inode.number, path));
                        }
                        FileKind::File => self.file(&entry.inode, &path, snapshot)?,
                        _ => {}
                    }
                }
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, inode: &Inode, path: &str, snapshot: Option<&str>) -> Result<()> {
        self.content(&inode.root, inode.number, path, None, snapshot);
        if snapshot.is_none() {
            for version in self.store.meta.versions(inode.number)? {
                self.content(&version.root, inode.number, path, Some(version.number), None);
            }
        }
        Ok(())
    }

    fn content(&mut self, root: &Root, inode: u64, path: &str, version: Option<u64>, snapshot: Option<&str>) {
        // finding → (first damaged byte, damaged bytes)
        let mut hit: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        match root {
            Root::Empty => {}
            Root::Inline(entries) => self.entries(entries, 0, &mut hit),
            Root::Tree { level, len, fingerprint } => self.ranges(fingerprint, *level, *len, 0, &mut hit),
        }
        for (finding, (offset, bytes)) in hit {
            let finding = &mut self.findings[finding];
            if finding.files.len() == LISTED {
                finding.files_more += 1;
                continue;
            }
            let (path, snapshot) = (path.to_string(), snapshot.map(str::to_string));
            finding.files.push(AffectedFile { path, inode, version, snapshot, offset, bytes });
        }
    }

    fn entries(&self, entries: &[Entry], mut at: u64, hit: &mut BTreeMap<usize, (u64, u64)>) {
        for entry in entries {
            if let Entry::Chunk { fingerprint, .. } = entry {
                self.note(fingerprint, at, entry.len(), hit);
            }
            at += entry.len();
        }
    }

    fn note(&self, fingerprint: &Fingerprint, at: u64, len: u64, hit: &mut BTreeMap<usize, (u64, u64)>) {
        for finding in self.bad.get(fingerprint).into_iter().flatten() {
            hit.entry(*finding).or_insert((at, 0)).1 += len;
        }
    }

    /// Damaged ranges below a node.
    fn ranges(
        &mut self,
        node: &Fingerprint,
        level: u8,
        len: u64,
        at: u64,
        hit: &mut BTreeMap<usize, (u64, u64)>,
    ) {
        if self.bad.contains_key(node) {
            return self.note(node, at, len, hit);
        }
        if !self.touches(node, level, len) {
            return;
        }
        match self.node(node, level, len) {
            Some(Node::Leaf(entries)) => self.entries(&entries, at, hit),
            Some(Node::Inner { level, children }) => {
                let mut at = at;
                for (child, len) in children {
                    self.ranges(&child, level - 1, len, at, hit);
                    at += len;
                }
            }
            None => {}
        }
    }

    fn node(&self, node: &Fingerprint, level: u8, len: u64) -> Option<Node> {
        let bytes = self.reader.read_node(node).ok()?;
        Node::decode(&bytes, level, len).ok()
    }

    /// True when anything at or below `node` is bad; asked of each node once.
    fn touches(&mut self, node: &Fingerprint, level: u8, len: u64) -> bool {
        if let Some(&known) = self.nodes.get(node) {
            return known;
        }
        let touches = self.bad.contains_key(node)
            || match self.node(node, level, len) {
                Some(Node::Leaf(entries)) => entries.iter().any(
                    |entry| matches!(entry, Entry::Chunk { fingerprint, .. } if self.bad.contains_key(fingerprint)),
                ),
                Some(Node::Inner { level, children }) => {
                    // All of them are asked, so that every answer is known afterwards.
                    children.iter().fold(false, |any, (child, len)| self.touches(child, level - 1, *len) | any)
                }
                None => false,
            };
        self.nodes.insert(*node, touches);
        touches
    }
}
