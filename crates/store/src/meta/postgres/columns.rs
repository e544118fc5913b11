//! Rows as statements take them: an array for each column.

use tokio_postgres::types::Type;

use super::connection::Query;
use super::row;
use super::working::Name;
use crate::meta::SessionId;
use crate::meta::inline::InlineChunk;

/// Rows of `dentry`.
#[derive(Default)]
pub(super) struct NameColumns {
    parents: Vec<i64>,
    inodes: Vec<i64>,
    epochs: Vec<i64>,
    sums: Vec<i32>,
    names: Vec<Vec<u8>>,
}

impl NameColumns {
    /// One more.
    pub fn push(&mut self, parent: i64, name: Vec<u8>, Name { inode, epoch }: Name) {
        self.sums.push(row::name_sum(parent, &name, inode, epoch));
        self.parents.push(parent);
        self.inodes.push(inode);
        self.epochs.push(epoch);
        self.names.push(name);
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds the last one to a statement: name, sum.
    pub fn with_last(mut self, query: Query) -> Query {
        query.bytes(self.names.pop().unwrap_or_default()).with(self.sums.pop(), Type::INT4)
    }

    /// Adds them to a statement: parents, inodes, epochs, sums, names.
    pub fn with_all(self, query: Query) -> Query {
        let query = query.ints(self.parents).ints(self.inodes).ints(self.epochs);
        query.with(self.sums, Type::INT4_ARRAY).with(self.names, Type::BYTEA_ARRAY)
    }

    /// The same for a statement that gives them all its own epoch.
    pub fn with_all_but_epochs(self, query: Query) -> Query {
        let query = query.ints(self.parents).ints(self.inodes);
        query.with(self.sums, Type::INT4_ARRAY).with(self.names, Type::BYTEA_ARRAY)
    }
}

/// Rows of `directory`.
#[derive(Default)]
pub(super) struct DirectoryColumns {
    inodes: Vec<i64>,
    parents: Vec<i64>,
    sums: Vec<i32>,
}

impl DirectoryColumns {
    /// One more.
    pub fn push(&mut self, inode: i64, parent: i64) {
        self.sums.push(row::directory_sum(inode, parent));
        self.inodes.push(inode);
        self.parents.push(parent);
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
    fingerprints: Vec<Vec<u8>>,
    sessions: Vec<i64>,
    codecs: Vec<String>,
    bytes: Vec<Vec<u8>>,
}

impl InlineColumns {
    /// One more.
    pub fn push(&mut self, chunk: &InlineChunk, owner: SessionId) {
        self.fingerprints.push(chunk.fingerprint.0.to_vec());
        self.sessions.push(owner.0 as i64);
        self.codecs.push(chunk.codec.to_string());
        self.bytes.push(chunk.bytes.clone());
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True if they are in the order in which rows are locked, without duplicates.
    pub fn is_sorted(&self) -> bool {
        self.fingerprints.is_sorted_by(|a, b| a < b)
    }

    /// Adds them to a statement: fingerprints, sessions, codecs, bytes.
    pub fn with_all(self, query: Query) -> Query {
        let query = query.with(self.fingerprints, Type::BYTEA_ARRAY).ints(self.sessions);
        query.with(self.codecs, Type::TEXT_ARRAY).with(self.bytes, Type::BYTEA_ARRAY)
    }
}
