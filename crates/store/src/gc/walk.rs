//! The threads that mark: a stack of work, from roots and nodes to bits.
//!
//! The thread that lists roots pushes them in batches, and waits while the stack is long. Other
//! threads take the newest batch, mark its chunks, and push the nodes below; so the stack stays
//! short. The first failure stops all.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard};

use outrigger_format::{Entry, Fingerprint, Node, Place, Root};

use super::mark::Marker;
use super::report::GcProgress;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::packs::Wanted;
use crate::read::Reader;
use crate::read::manifest::NodeSource as _;
use crate::store::Store;

/// A manifest node: its fingerprint, and the level and length that its parent records.
pub(super) type NodeRef = (Fingerprint, u8, u64);
/// Chunks and nodes that were not found at first.
pub(super) type Aside = (Vec<Fingerprint>, Vec<NodeRef>);

pub(super) enum Work {
    Roots(Vec<Root>),
    Nodes(Vec<NodeRef>),
}

/// Nodes handed over at once.
const NODES_AT_ONCE: usize = 16;
/// Batches on the stack beyond which no more roots are listed.
const STACK_MAX: usize = 64;

#[derive(Default)]
struct Stack {
    work: Vec<Work>,
    active: usize,
    closed: bool,
    failure: Option<Error>,
}

/// One walk over all roots, or over those put aside.
pub(super) struct Job<'a> {
    store: &'a Store,
    marker: &'a Marker,
    progress: &'a GcProgress,
    stack: Mutex<Stack>,
    changed: Condvar,
    aside: Mutex<Aside>,
}

impl<'a> Job<'a> {
    pub fn new(store: &'a Store, marker: &'a Marker, progress: &'a GcProgress) -> Self {
        let (stack, changed, aside) = Default::default();
        Self { store, marker, progress, stack, changed, aside }
    }

    fn lock(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().expect("no panic while held")
    }

    /// Hands over work; waits while there is much.
    pub fn submit(&self, work: Work) -> Result<()> {
        let mut stack = self.lock();
        while stack.work.len() >= STACK_MAX && stack.failure.is_none() {
            stack = self.changed.wait(stack).expect("no panic while held");
        }
        if stack.failure.is_some() {
            return Err(Error::new(ErrorKind::Cancelled, "marking has failed"));
        }
        stack.work.push(work);
        self.changed.notify_all();
        Ok(())
    }

    /// No more will be submitted.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The nodes put aside, once all threads have ended.
    pub fn finish(self) -> Result<Aside> {
        match self.stack.into_inner().expect("no panic while held").failure {
            Some(error) => Err(error),
            None => Ok(self.aside.into_inner().expect("no panic while held")),
        }
    }

    /// One thread's work: until nothing is left, or something failed.
    pub fn work(&self) {
        let mut stack = self.lock();
        loop {
            if stack.failure.is_some() || (stack.closed && stack.active == 0 && stack.work.is_empty()) {
                self.changed.notify_all();
                return;
            }
            let Some(work) = stack.work.pop() else {
                stack = self.changed.wait(stack).expect("no panic while held");
                continue;
            };
            stack.active += 1;
            drop(stack);
            let done = match work {
                Work::Roots(roots) => self.mark_roots(roots),
                Work::Nodes(nodes) => self.mark_nodes(&nodes),
            };
            stack = self.lock();
            stack.active -= 1;
            match done {
                Ok(children) => stack.work.extend(children),
                Err(error) => {
                    stack.failure.get_or_insert(error);
                }
            }
            self.changed.notify_all();
        }
    }

    fn mark_roots(&self, roots: Vec<Root>) -> Result<Vec<Work>> {
        self.progress.advance(roots.len() as u64);
        let (mut chunks, mut nodes) = (Vec::new(), Vec::new());
        for root in roots {
            match root {
                Root::Empty => {}
                Root::Inline(entries) => chunks.extend(entries.iter().filter_map(fingerprint)),
                Root::Tree { level, len, fingerprint } => nodes.push((fingerprint, level, len)),
            }
        }
        self.mark_chunks(&chunks)?;
        Ok(batches(nodes))
    }

    /// The places of the copies that count: of several the one in the lowest pack. A corrupt pack
    /// counts only if there is no other copy.
    fn counting(&self, names: &[Fingerprint]) -> Result<Vec<Option<Place>>> {
        let Self { store, marker, .. } = self;
        let mut places = Vec::new();
        let Some(verified) = store.verified() else {
            store.index.resolve_lowest_batch(names, |pack| marker.bits.has(pack), &mut places)?;
            return Ok(places);
        };
        let is_trusted = |pack| marker.bits.has(pack) && !verified.is_corrupt(pack);
        store.index.resolve_lowest_batch(names, is_trusted, &mut places)?;
        for (name, place) in names.iter().zip(&mut places).filter(|(_, place)| place.is_none()) {
            *place = store.index.resolve_lowest(name, |pack| marker.bits.has(pack))?;
        }
        Ok(places)
    }

    /// Marks chunks.
    pub fn mark_chunks(&self, chunks: &[Fingerprint]) -> Result<()> {
        for (fingerprint, place) in chunks.iter().zip(self.counting(chunks)?) {
            match place {
                Some(place) => drop(self.marker.bits.set(place)?),
                None => self.aside.lock().expect("no panic while held").0.push(*fingerprint),
            }
        }
        Ok(())
    }

    /// Marks nodes, and their chunks if no thread has done that yet.
    fn mark_nodes(&self, nodes: &[NodeRef]) -> Result<Vec<Work>> {
        let names: Vec<Fingerprint> = nodes.iter().map(|node| node.0).collect();
        let mut below = Vec::new();
        for (node, place) in nodes.iter().zip(self.counting(&names)?) {
            let Some(place) = place else {
                self.aside.lock().expect("no panic while held").1.push(*node);
                continue;
            };
            let Some(read) = self.mark_node(node, place)? else { continue };
            *self.marker.nodes.lock().expect("no panic while held") += 1;
            self.mark_named(read, &mut below)?;
        }
        Ok(batches(below))
    }

    /// Marks the children of nodes that are in no pack of the snapshot, but inline or in a pack
    /// committed since. Returns the nodes among them.
    pub fn mark_below(&self, nodes: Vec<NodeRef>) -> Result<Vec<NodeRef>> {
        let reader = Reader::new(self.store);
        let (mut seen, mut below) = (HashSet::new(), Vec::new());
        for (fingerprint, level, len) in nodes {
            if !seen.insert(fingerprint) {
                continue;
            }
            let what =
                || format!("manifest node {fingerprint}, which a stored file needs; `check` names the file");
            let bytes = reader.read_node(&fingerprint).context(what)?;
            self.mark_named(Node::decode(&bytes, level, len).context(what)?, &mut below)?;
        }
        Ok(below)
    }

    /// Marks the chunks that a node names; the nodes that it names go to `below`.
    fn mark_named(&self, node: Node, below: &mut Vec<NodeRef>) -> Result<()> {
        match node {
            Node::Leaf(entries) => {
                let chunks: Vec<Fingerprint> = entries.iter().filter_map(fingerprint).collect();
                self.mark_chunks(&chunks)
            }
            Node::Inner { level, children } => {
                below.extend(children.into_iter().map(|(child, len)| (child, level - 1, len)));
                Ok(())
            }
        }
    }

    /// Marks a node, and reads it if no thread has done that yet. If its pack turns out to be
    /// corrupt, goes on to another copy.
    fn mark_node(&self, node: &NodeRef, mut place: Place) -> Result<Option<Node>> {
        loop {
            if !self.marker.bits.set(place)? {
                return Ok(None);
            }
            match self.read_node(node, place) {
                // Nobody can read the file, so nothing needs its chunks.
                Err(error) if error.kind() == ErrorKind::Destroyed => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    place = self.trusted_copy(node.0, place)?.ok_or(error)?;
                }
                read => return read.map(Some),
            }
        }
    }

    /// Another copy, if the pack of this one is corrupt.
    fn trusted_copy(&self, name: Fingerprint, place: Place) -> Result<Option<Place>> {
        let Some(verified) = self.store.verified() else { return Ok(None) };
        if verified.proves(&self.store.packs, &self.store.index, place)? || !verified.is_corrupt(place.pack) {
            return Ok(None);
        }
        let other = self.counting(&[name])?.pop().flatten();
        Ok(other.filter(|other| !verified.is_corrupt(other.pack)))
    }

    fn read_node(&self, &(fingerprint, level, len): &NodeRef, place: Place) -> Result<Node> {
        let at = || format!("manifest node {fingerprint} in pack {}, slot {}", place.pack, place.slot);
        let missing = || Error::damaged(format!("{}: it is not there", at()));
        let footer = self.store.index.footers().get(place.pack)?.ok_or_else(missing)?;
        let (frame, position) = footer.position(place.slot).ok_or_else(missing)?;
        let frame = match self.store.packs.frame(place.pack, &footer, frame, Wanted::Now) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing().caused_by(error)),
            frame => frame.context(at)?,
        };
        let bytes = frame.chunk(position).ok_or_else(missing)?;
        if frame.name(bytes) != fingerprint {
            return Err(Error::damaged(format!("{}: its bytes do not match its name", at())));
        }
        Node::decode(bytes, level, len).context(at)
    }
}

fn fingerprint(entry: &Entry) -> Option<Fingerprint> {
    match entry {
        Entry::Chunk { fingerprint, .. } => Some(*fingerprint),
        Entry::Hole { .. } => None,
    }
}

/// In such an order that the first is taken first.
fn batches(nodes: Vec<NodeRef>) -> Vec<Work> {
    nodes.chunks(NODES_AT_ONCE).rev().map(|part| Work::Nodes(part.to_vec())).collect()
}
