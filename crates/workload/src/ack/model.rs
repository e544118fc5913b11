//! The allowed states: what every name may stand for, and which bytes every file may have.

use std::collections::{BTreeMap, BTreeSet};

use super::{Op, Promise};
use crate::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(usize),
    Dir,
    Symlink(String),
}

/// A change of a file's bytes that may be lost.
#[derive(Clone, Debug)]
enum Change {
    /// The bytes of operation `op`.
    Write {
        at: u64,
        len: u64,
        op: u64,
    },
    Truncate(u64),
}

#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// The bytes that must be there, except for `changes`.
    base: Vec<u8>,
    changes: Vec<Change>,
    /// The file's length after all changes.
    pub(super) len: u64,
    /// Its present names.
    pub(super) names: BTreeSet<String>,
    /// All names that it had since its last `fsync`; none if it need not be found under any.
    pub(super) found_under: BTreeSet<String>,
}

/// The state after some operations, with what the promise leaves open.
#[derive(Clone, Debug)]
pub(super) struct Model {
    promise: Promise,
    seed: u64,
    pub(super) files: Vec<File>,
    /// For each name, what it may stand for. The last one is the present one.
    pub(super) names: BTreeMap<String, Vec<Option<Node>>>,
}

/// The bytes that operation `op` writes.
pub(super) fn bytes(seed: u64, op: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::part(seed, op).fill(&mut bytes);
    bytes
}

pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(parent, _)| parent)
}

impl Model {
    pub(super) fn new(promise: Promise, seed: u64) -> Self {
        Self { promise, seed, files: Vec::new(), names: BTreeMap::new() }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Node> {
        self.names.get(path)?.last()?.as_ref()
    }

    pub(super) fn file(&self, path: &str) -> Option<usize> {
        match self.get(path) {
            Some(Node::File(id)) => Some(*id),
            _ => None,
        }
    }

    /// Applies an operation that may have happened. Earlier states of a file or name stay possible
    /// until [`Model::acked`].
    pub(super) fn apply(&mut self, number: u64, op: &Op) {
        match op {
            Op::Create(path) => {
                self.files.push(File::default());
                self.bind(path, Some(Node::File(self.files.len() - 1)));
            }
            Op::Write { path, at, len } => self.write(number, path, Some(*at), *len),
            Op::Append { path, len } => self.write(number, path, None, *len),
            Op::Truncate { path, len } => {
                if let Some(id) = self.file(path) {
                    self.files[id].changes.push(Change::Truncate(*len));
                    self.files[id].len = *len;
                }
            }
            Op::Rename { from, to } => {
                let node = self.get(from).cloned();
                // Both names are of one file: POSIX says that nothing happens.
                let same = matches!((&node, self.file(to)), (Some(Node::File(a)), Some(b)) if *a == b);
                if from != to && !same {
                    self.bind(to, node);
                    self.bind(from, None);
                }
            }
            Op::Link { from, to } => self.bind(to, self.get(from).cloned()),
            Op::Symlink { path, target } => self.bind(path, Some(Node::Symlink(target.clone()))),
            Op::Unlink(path) | Op::Rmdir(path) => self.bind(path, None),
            Op::Mkdir(path) => self.bind(path, Some(Node::Dir)),
            Op::Fsync(_) | Op::FsyncDir(_) | Op::Close(_) => {}
        }
    }

    fn write(&mut self, number: u64, path: &str, at: Option<u64>, len: u64) {
        if let Some(id) = self.file(path) {
            let file = &mut self.files[id];
            let at = at.unwrap_or(file.len);
            file.changes.push(Change::Write { at, len, op: number });
            file.len = file.len.max(at + len);
        }
    }

    fn bind(&mut self, path: &str, node: Option<Node>) {
        if let Some(id) = self.file(path) {
            let file = &mut self.files[id];
            file.names.remove(path);
            if file.names.is_empty() {
                file.found_under.clear();
            }
        }
        if let Some(Node::File(id)) = node {
            let file = &mut self.files[id];
            file.names.insert(path.to_owned());
            if !file.found_under.is_empty() {
                file.found_under.insert(path.to_owned());
            }
        }
        self.names.entry(path.to_owned()).or_insert_with(|| vec![None]).push(node);
    }

    /// An operation that was applied before has returned: the promise about it holds from now on.
    pub(super) fn acked(&mut self, op: &Op) {
        match (self.promise, op) {
            (Promise::Durable, Op::Fsync(path)) => {
                if let Some(id) = self.file(path) {
                    self.settle_file(id);
                    self.files[id].found_under = self.files[id].names.clone();
                    for name in self.files[id].names.clone() {
                        self.settle_name(&name);
                    }
                }
            }
            (Promise::Durable, Op::FsyncDir(dir)) => {
                let inside: Vec<String> =
                    self.names.keys().filter(|name| parent(name) == dir).cloned().collect();
                inside.iter().for_each(|name| self.settle_name(name));
            }
            (Promise::Durable, _) => {}
            (_, Op::Rename { from, to }) => {
                self.settle_name(from);
                self.settle_name(to);
            }
            (_, Op::Create(path) | Op::Symlink { path, .. } | Op::Unlink(path)) => self.settle_name(path),
            (_, Op::Mkdir(path) | Op::Rmdir(path)) => self.settle_name(path),
            (_, Op::Link { to, .. }) => self.settle_name(to),
            (_, Op::Fsync(path) | Op::Close(path)) => self.settle_data(path),
            (Promise::Acked, Op::Write { path, .. } | Op::Append { path, .. }) => self.settle_data(path),
            (Promise::Acked, Op::Truncate { path, .. }) => self.settle_data(path),
            (Promise::Names, Op::Write { .. } | Op::Append { .. } | Op::Truncate { .. }) => {}
            (_, Op::FsyncDir(_)) => {}
        }
    }

    fn settle_data(&mut self, path: &str) {
        if let Some(id) = self.file(path) {
            self.settle_file(id);
        }
    }

    fn settle_name(&mut self, path: &str) {
        if let Some(states) = self.names.get_mut(path) {
            states.drain(..states.len() - 1);
        }
    }

    fn settle_file(&mut self, id: usize) {
        let file = &mut self.files[id];
        let mut base = std::mem::take(&mut file.base);
        for change in file.changes.drain(..) {
            make(&mut base, &change, self.seed);
        }
        file.base = base;
    }

    /// Checks that these bytes may be the file's. The error says what is wrong.
    pub(super) fn accepts(&self, id: usize, found: &[u8]) -> Result<(), String> {
        let file = &self.files[id];
        let mut now = file.base.clone();
        let mut good = vec![false; found.len()];
        let mut mark = |now: &[u8], from: usize, to: usize| {
            let (to, from) = (to.min(found.len()).min(now.len()), from.min(found.len()));
            for at in from..to {
                good[at] |= found[at] == now[at];
            }
        };
        mark(&now, 0, now.len());
        // Behind an earlier end of the file, bytes may have been extended before they were written.
        let mut shortest = now.len();
        let mut len_ok = found.len() == now.len();
        for change in &file.changes {
            let before = now.len();
            let touched = make(&mut now, change, self.seed);
            mark(&now, touched.start, touched.end);
            shortest = shortest.min(now.len());
            // An interrupted write may end anywhere within it.
            let partly =
                matches!(change, Change::Write { .. }) && (before..=now.len()).contains(&found.len());
            len_ok |= partly || found.len() == now.len();
        }
        if !len_ok {
            return Err(format!("{} bytes long, expected {}{}", found.len(), now.len(), self.or_older(id)));
        }
        let open = file.changes.is_empty();
        let wrong = |at: &usize| !good[*at] && (open || *at < shortest || found[*at] != 0);
        match (0..found.len()).find(wrong) {
            None => Ok(()),
            Some(at) => {
                let count = (at..found.len()).filter(wrong).count();
                Err(format!(
                    "{count} of {} bytes are wrong, the first at {at}: {:#04x}{}",
                    found.len(),
                    found[at],
                    now.get(at)
                        .map_or(String::new(), |byte| format!(", expected {byte:#04x}{}", self.or_older(id)))
                ))
            }
        }
    }

    fn or_older(&self, id: usize) -> &'static str {
        if self.files[id].changes.is_empty() { "" } else { " or an older state" }
    }
}

/// Makes a change; returns the range of bytes that may differ now.
fn make(bytes: &mut Vec<u8>, change: &Change, seed: u64) -> std::ops::Range<usize> {
    let before = bytes.len();
    match *change {
        Change::Write { at, len, op } => {
            let (at, end) = (at as usize, (at + len) as usize);
            bytes.resize(before.max(end), 0);
            bytes[at..end].copy_from_slice(&self::bytes(seed, op, len));
            before.min(at)..end
        }
        Change::Truncate(len) => {
            bytes.resize(len as usize, 0);
            before.min(len as usize)..len as usize
        }
    }
}
