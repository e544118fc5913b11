//! Follows every retained content: each manifest node once, each chunk it names to a place in a
//! committed pack.
//!
//! The database hands out roots while it holds one state; workers follow them. A node that many
//! files share is read once, by a table of known nodes. So stored nodes bound the work, even if a
//! hostile manifest repeats itself. The table also has the level and length that a parent recorded
//! for each node, so a contradiction between two parents is noticed.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};

use outrigger_format::{Entry, Fingerprint, Node, PackId, Root};

use super::report::{CheckProgress, add};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::gc::without_inline;
use crate::meta::PackRow;
use crate::read::Reader;
use crate::read::manifest::NodeSource;
use crate::store::Store;

/// The results of following the roots.
#[derive(Default)]
pub(super) struct Followed {
    /// Committed packs of the same state of the database.
    pub rows: Vec<PackRow>,
    /// Nodes that cannot be read or do not match, and why.
    pub bad_nodes: HashMap<Fingerprint, String>,
    /// Chunks that no committed pack has in its footer.
    pub missing: HashSet<Fingerprint>,
}

struct Walk<'a> {
    store: &'a Store,
    reader: Reader<'a>,
    progress: &'a CheckProgress,
    seen: Mutex<HashMap<Fingerprint, (u8, u64)>>,
    bad_nodes: Mutex<HashMap<Fingerprint, String>>,
    missing: Mutex<HashSet<Fingerprint>>,
    /// Packs asked for so far, and whether their footers can be read: a single fingerprint may be
    /// found in a damaged one.
    footers: Mutex<HashMap<PackId, bool>>,
    failed: Mutex<Option<Error>>,
}

const BATCH: usize = 1024;

/// Follows all roots.
pub(super) fn follow(store: &Store, threads: usize, progress: &CheckProgress) -> Result<Followed> {
    if !store.is_read_only() {
        store.refresh_index()?;
    }
    let walk = Walk {
        store,
        reader: Reader::new(store),
        progress,
        seen: Mutex::default(),
        bad_nodes: Mutex::default(),
        missing: Mutex::default(),
        footers: Mutex::default(),
        failed: Mutex::default(),
    };
    let (sender, receiver) = sync_channel::<Vec<Root>>(threads * 2 + 2);
    let receiver = Mutex::new(receiver);
    let rows = std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| walk.work(&receiver));
        }
        let mut batch = Vec::with_capacity(BATCH);
        let rows = store.meta.visit_roots(&mut |root| {
            batch.push(root);
            if batch.len() == BATCH {
                // Workers go on receiving after a failure, so this never blocks for ever.
                let _ = sender.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
            }
            Ok(())
        });
        let _ = sender.send(batch);
        drop(sender);
        rows
    })?;
    if let Some(error) = walk.failed.into_inner().expect("no panic while held") {
        return Err(error);
    }
    let mut missing = walk.missing.into_inner().expect("no panic while held");
    let bad_nodes = walk.bad_nodes.into_inner().expect("no panic while held");
    recheck(store, &rows, &mut missing)?;
    Ok(Followed { rows, bad_nodes, missing })
}

/// Removes chunks that are there after all: in packs committed between the index's refresh and the
/// database's state, inline chunks, and chunks packed since.
fn recheck(store: &Store, rows: &[PackRow], missing: &mut HashSet<Fingerprint>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let committed: HashSet<PackId> = rows.iter().map(|row| row.id).collect();
    let ids: Vec<PackId> = rows.iter().map(|row| row.id).collect();
    store.index.cover(&ids)?;
    let asked: Vec<Fingerprint> = missing.iter().copied().collect();
    let mut found = Vec::new();
    store.index.resolve_batch(&asked, |pack| committed.contains(&pack), &mut found)?;
    for (fingerprint, place) in asked.iter().zip(found) {
        if let Some(place) = place
            && store.index.footers().get(place.pack)?.is_some()
        {
            missing.remove(fingerprint);
        }
    }
    *missing = without_inline(store, missing.drain().collect())?.into_iter().collect();
    Ok(())
}

impl Walk<'_> {
    fn work(&self, receiver: &Mutex<Receiver<Vec<Root>>>) {
        loop {
            let batch = receiver.lock().expect("no panic while held").recv();
            let Ok(batch) = batch else { return };
            if self.failed.lock().expect("no panic while held").is_some() {
                continue;
            }
            if let Err(error) = self.follow_all(&batch) {
                self.failed.lock().expect("no panic while held").get_or_insert(error);
            }
        }
    }

    fn follow_all(&self, roots: &[Root]) -> Result<()> {
        let mut entries = Vec::new();
        for root in roots {
            add(&self.progress.roots, 1);
            match root {
                Root::Empty => {}
                Root::Inline(some) => entries.extend_from_slice(some),
                Root::Tree { level, len, fingerprint } => self.tree(*fingerprint, *level, *len)?,
            }
            if entries.len() >= BATCH {
                self.resolve(&entries)?;
                entries.clear();
            }
        }
        self.resolve(&entries)
    }

    fn tree(&self, root: Fingerprint, level: u8, len: u64) -> Result<()> {
        let mut open = vec![(root, level, len)];
        while let Some((fingerprint, level, len)) = open.pop() {
            let before = self.seen.lock().expect("no panic while held").insert(fingerprint, (level, len));
            match before {
                Some(promised) if promised == (level, len) => continue,
                // The bytes are the same, so one of the two records is false: decoding decides.
                Some(_) | None => {}
            }
            match self.node(&fingerprint, level, len) {
                Ok(Node::Leaf(entries)) => self.resolve(&entries)?,
                Ok(Node::Inner { level, children }) => {
                    open.extend(children.into_iter().map(|(child, len)| (child, level - 1, len)));
                }
                // Nobody can read the file, so nothing needs its chunks.
                Err(error) if error.kind() == ErrorKind::Destroyed => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Io) =>
                {
                    let mut bad = self.bad_nodes.lock().expect("no panic while held");
                    bad.insert(fingerprint, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn node(&self, fingerprint: &Fingerprint, level: u8, len: u64) -> Result<Node> {
        let bytes = self.reader.read_node(fingerprint)?;
        add(&self.progress.nodes, 1);
        Node::decode(&bytes, level, len).context(|| format!("manifest node {fingerprint}"))
    }

    fn resolve(&self, entries: &[Entry]) -> Result<()> {
        let asked: Vec<Fingerprint> = entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Chunk { fingerprint, .. } => Some(*fingerprint),
                Entry::Hole { .. } => None,
            })
            .collect();
        let mut found = Vec::new();
        self.store.index.resolve_batch(&asked, |_| true, &mut found)?;
        for (fingerprint, place) in asked.iter().zip(found) {
            let is_there = match place {
                Some(place) => self.has_footer(place.pack)?,
                None => false,
            };
            if !is_there {
                self.missing.lock().expect("no panic while held").insert(*fingerprint);
            }
        }
        Ok(())
    }

    fn has_footer(&self, pack: PackId) -> Result<bool> {
        if let Some(&known) = self.footers.lock().expect("no panic while held").get(&pack) {
            return Ok(known);
        }
        let is_readable = self.store.index.footers().get(pack)?.is_some();
        self.footers.lock().expect("no panic while held").insert(pack, is_readable);
        Ok(is_readable)
    }
}
