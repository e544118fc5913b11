//! Rows as statements take them: an array for each column.

use tokio_postgres::types::Type;

use super::connection::Query;
use super::row;
use super::sealing::{Private, Public, Seals, Subject};
use super::working::Name;
use crate::meta::SessionId;
use crate::meta::inline::InlineChunk;

/// Rows of `dentry`.
pub(super) struct NameColumns {
    seals: Seals,
    parents: Vec<i64>,
    inodes: Vec<i64>,
    epochs: Vec<i64>,
    sums: Vec<i32>,
    names: Vec<Private<Vec<u8>>>,
}

impl NameColumns {
    /// None yet, for the engine that has these.
    pub fn new(seals: &Seals) -> Self {
        Self {
            seals: seals.clone(),
            parents: Vec::new(),
            inodes: Vec::new(),
            epochs: Vec::new(),
            sums: Vec::new(),
            names: Vec::new(),
        }
    }

    /// One more.
    pub fn push(&mut self, parent: i64, name: Vec<u8>, Name { inode, epoch }: Name) {
        self.sums.push(row::name_sum(&self.seals, parent, &name, inode, epoch));
        self.parents.push(parent);
        self.inodes.push(inode);
        self.epochs.push(epoch);
        self.names.push(Private::new(Subject::Name { parent }, name));
    }

    /// Takes all out.
    pub fn drain(&mut self) -> Self {
        let none = Self::new(&self.seals);
        std::mem::replace(self, none)
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds the last one to a statement: name, sum.
    pub fn with_last(mut self, query: Query) -> Query {
        query.maybe_private(self.names.pop()).with(self.sums.pop(), Type::INT4)
    }

    /// Adds them to a statement: parents, inodes, epochs, sums, names.
    pub fn with_all(self, query: Query) -> Query {
        let query = query.ints(self.parents).ints(self.inodes).ints(self.epochs);
        query.with(self.sums, Type::INT4_ARRAY).each_bytes(self.names)
    }

    /// The same for a statement that gives them all its own epoch.
    pub fn with_all_but_epochs(self, query: Query) -> Query {
        let query = query.ints(self.parents).ints(self.inodes);
        query.with(self.sums, Type::INT4_ARRAY).each_bytes(self.names)
    }
}

/// Rows of `directory`.
pub(super) struct DirectoryColumns {
    seals: Seals,
    inodes: Vec<i64>,
    parents: Vec<i64>,
    sums: Vec<i32>,
}

impl DirectoryColumns {
    /// None yet, for the engine that has these.
    pub fn new(seals: &Seals) -> Self {
        Self { seals: seals.clone(), inodes: Vec::new(), parents: Vec::new(), sums: Vec::new() }
    }

    /// One more.
    pub fn push(&mut self, inode: i64, parent: i64) {
        self.sums.push(row::directory_sum(&self.seals, inode, parent));
        self.inodes.push(inode);
        self.parents.push(parent);
    }

    /// Takes all out.
    pub fn drain(&mut self) -> Self {
        let none = Self::new(&self.seals);
        std::mem::replace(self, none)
    }

    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Adds the last one's sum to a statement, or a NULL.
    pub fn with_last_sum(mut self, query: Query) -> Query {
        query.with(self.sums.pop(), Type::INT4)
    }

    /// Adds them to a statement: inodes, parents, sums.
    pub fn with_all(self, query: Query) -> Query {
        query.ints(self.inodes).ints(self.parents).with(self.sums, Type::INT4_ARRAY)
    }
}

/// Rows of `inline`.
#[derive(Default)]
pub(super) struct InlineColumns {
    fingerprints: Vec<Private<Vec<u8>>>,
    sessions: Vec<i64>,
    codecs: Vec<Public<String>>,
    bytes: Vec<Private<Vec<u8>>>,
}

impl InlineColumns {
    /// One more.
    pub fn push(&mut self, chunk: &InlineChunk, owner: SessionId) {
        self.fingerprints.push(Private::new(Subject::Fingerprint, chunk.fingerprint.0.to_vec()));
        self.sessions.push(owner.0 as i64);
        self.codecs.push(Public(chunk.codec.to_string()));
        self.bytes.push(Private::new(Subject::inline(&chunk.fingerprint.0), chunk.bytes.clone()));
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True if they are in the order in which rows are locked, without duplicates.
    pub fn is_sorted(&self) -> bool {
        self.fingerprints.is_sorted_by(|a, b| a.value < b.value)
    }

    /// Adds them to a statement: fingerprints, sessions, codecs, bytes.
    pub fn with_all(self, query: Query) -> Query {
        let query = query.each_bytes(self.fingerprints).ints(self.sessions);
        query.with(self.codecs, Type::TEXT_ARRAY).each_bytes(self.bytes)
    }
}
