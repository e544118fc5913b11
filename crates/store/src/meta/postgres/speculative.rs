//! Speculative commits: a small commit in one round trip. The client assumes what the database
//! holds and works out what to write; one statement compares, decides and commits
//! (`commit_speculatively` in `schema_speculative.sql`). A commit of one new name and nothing else
//! uses `make_speculatively` in `schema_make_speculatively.sql`, which has fewer steps.
//! docs/decisions/0021-one-round-trip.md has the reasons.
//!
//! **Assumptions**: a new name and a new number are free, inherited attributes are as the caller
//! says, and rows are as this process last read or wrote them ([`CachedRows`]). The statement
//! compares each of these with the database, behind the same locks as any commit. If one is wrong,
//! it changes nothing. The commit then takes the long way (`commit.rs`), which reads the rows and
//! finds the right error. So a wrong assumption costs one round trip, and nothing else.
//!
//! **Always the long way**: commits with packs, removals or moves, and those that keep an earlier
//! content or write history.
//!
//! **A lost answer.** The statement is its own transaction. So, unlike in `transaction.rs`, there
//! is no moment at which the lane is known to be locked and nothing is committed yet: the statement
//! may even reach the server after its connection was given up. A client that wants to know the
//! outcome therefore *closes* the lane first. A statement that comes later finds it closed, and
//! changes nothing.

use std::mem::take;
use std::sync::Mutex;

use hashlink::LruCache;
use tokio_postgres::types::Type;

use super::columns::{DirectoryColumns, InlineColumns, NameColumns};
use super::connection::Query;
use super::row::{self, InodeColumns, Stored, Traits};
use super::sealing::{Private, Seals, Subject};
use super::transaction::Ticket;
use super::working::{Slot, Working};
use crate::meta::change::row::{Content, Special, columns};
use crate::meta::change::totals::{Retained, TotalsDelta};
use crate::meta::change::{Editor, Start, apply_all};
use crate::meta::inline::InlineChange;
use crate::meta::{Change, Commit, Committed, SessionId};
use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;

/// Rows that are remembered.
const ROWS: usize = 4096;
/// Rows that one commit can teach. Small commits rarely follow larger ones on the same rows.
const OBSERVED_MAX: usize = 64;
/// Changes of a speculative commit, at most.
const CHANGES_MAX: usize = 512;

const COMMIT_AT_ONCE: &str = "SELECT @commit_speculatively($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, \
    $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60, $61, $62, $63, $64, $65, $66, $67, $68, $69, $70, $71, $72, $73, $74, \
    $75, $76, $77, $78)";

const MAKE_AT_ONCE: &str = "SELECT @make_speculatively($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, \
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)";

/// The rows that this process has seen in the database lately. They may be outdated.
pub(super) struct CachedRows {
    seen: Mutex<Seen>,
}

struct Seen {
    epoch: i64,
    next_inode: i64,
    rows: LruCache<i64, Stored>,
}

/// The rows that a commit has seen and written, to be cached once it has succeeded.
#[derive(Default)]
pub(super) struct ObservedRows {
    epoch: i64,
    next_inode: i64,
    rows: Vec<(i64, Option<Stored>)>,
}

impl ObservedRows {
    /// Collects the rows of a commit that went the long way.
    pub fn of(start: &Start, working: &Working<'_, '_>) -> Self {
        let mut rows = Vec::new();
        if working.inodes.len() <= OBSERVED_MAX {
            rows.extend(working.inodes.iter().map(|(&number, slot)| (number, slot.now.clone())));
        }
        Self { epoch: start.epoch, next_inode: start.next_inode, rows }
    }
}

impl Default for CachedRows {
    fn default() -> Self {
        Self { seen: Mutex::new(Seen { epoch: 0, next_inode: 0, rows: LruCache::new(ROWS) }) }
    }
}

impl CachedRows {
    /// Caches the rows of a commit.
    pub fn observe(&self, observed: ObservedRows) {
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.epoch = observed.epoch.max(seen.epoch);
        seen.next_inode = observed.next_inode.max(seen.next_inode);
        for (number, row) in observed.rows {
            match row {
                Some(row) => drop(seen.rows.insert(number, row)),
                None => drop(seen.rows.remove(&number)),
            }
        }
    }

    /// Numbers below this were given out.
    pub fn reserved(&self, end: u64) {
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.next_inode = seen.next_inode.max(end.cast_signed());
    }

    /// Works out what a commit would write if all assumptions hold. `None` if a row is not cached,
    /// or the commit is not simple enough.
    pub fn attempt(&self, seals: &Seals, session: SessionId, commit: &Commit) -> Option<Attempt> {
        if !commit.packs.is_empty() || !(1..=CHANGES_MAX).contains(&commit.changes.len()) {
            return None;
        }
        let mut attempt = Attempt::new(seals, session);
        let mut working = Working::guess();
        let start = {
            let mut seen = self.seen.lock().expect("no panic while held");
            for change in &commit.changes {
                attempt.assume(change, &mut seen, &mut working)?;
            }
            // `take` refuses changes that write history or need a policy, so these fields are not
            // used.
            Start {
                epoch: seen.epoch,
                next_inode: seen.next_inode,
                retained: Retained(Vec::new()),
                any_versions_policy: false,
                generation: 0,
                time: commit.time,
            }
        };
        attempt.epoch = start.epoch;
        let mut editor = Editor::new(working, start);
        // A refusal may come from a wrong assumption. The long way then reports the right error.
        apply_all(&mut editor, &commit.changes).ok()?;
        let (working, totals, done) = editor.finish();
        attempt.take(working)?;
        (attempt.totals, attempt.done) = (totals, done);
        Some(attempt)
    }
}

/// Inodes for which only the inherited attributes are assumed, column by column.
#[derive(Default)]
struct Likes {
    numbers: Vec<i64>,
    modes: Vec<i32>,
    uids: Vec<i32>,
    gids: Vec<i32>,
    xattrs: Vec<Option<Private<Vec<u8>>>>,
}

impl Likes {
    fn with_all(self, query: Query) -> Query {
        let mut query = query.ints(self.numbers);
        for values in [self.modes, self.uids, self.gids] {
            query = query.with(values, Type::INT4_ARRAY);
        }
        query.each_maybe_bytes(self.xattrs)
    }

    /// Passes the only inode: number, mode, uid, gid, extended attributes.
    fn with_only(mut self, query: Query) -> Query {
        let query = query.int(self.numbers[0]);
        let query = query.with(self.modes[0], Type::INT4).with(self.uids[0], Type::INT4);
        query.with(self.gids[0], Type::INT4).maybe_private(self.xattrs.pop().flatten())
    }
}

/// What the statement expects to find, and what it then writes.
pub(super) struct Attempt {
    session: SessionId,
    epoch: i64,
    parents: Vec<i64>,
    likes: Likes,
    names: NameColumns,
    directories: DirectoryColumns,
    was: InodeColumns,
    changed: InodeColumns,
    made: InodeColumns,
    totals: TotalsDelta,
    inline: InlineColumns,
    observed: Vec<(i64, Option<Stored>)>,
    done: Committed,
}

impl Attempt {
    fn new(seals: &Seals, session: SessionId) -> Self {
        Self {
            session,
            epoch: 0,
            parents: Vec::new(),
            likes: Likes::default(),
            names: NameColumns::new(seals),
            directories: DirectoryColumns::new(seals),
            was: InodeColumns::new(seals),
            changed: InodeColumns::new(seals),
            made: InodeColumns::new(seals),
            totals: TotalsDelta::default(),
            inline: InlineColumns::default(),
            observed: Vec::new(),
            done: Committed::default(),
        }
    }

    /// Assumes that a change applies: adds the rows that it would find.
    fn assume(&mut self, change: &Change, seen: &mut Seen, working: &mut Working<'_, '_>) -> Option<()> {
        match change {
            Change::IfName { parent, name, inode: None } => {
                working.assume_free(*parent as i64, name);
                working.assume_directory(*parent as i64);
            }
            // An empty name is the root's.
            Change::Put { parent, name, inode, replace: false, .. } if !name.is_empty() => {
                // Only one new inode: for another that lies in it, or has its number, nothing would
                // need assuming.
                if !self.parents.is_empty() {
                    return None;
                }
                self.parents.push(*parent as i64);
                working.assume_free(*parent as i64, name);
                working.assume_directory(*parent as i64);
                working.assume_inode(*inode as i64, None);
            }
            Change::IfAttributes { inode, attributes } => {
                let traits = self.like(*inode as i64, attributes)?;
                working.assume_like(*inode as i64, traits);
            }
            Change::Touch { inode, .. } | Change::CompareAndSwap { inode, keep: false, .. } => {
                let row = seen.rows.get(&(*inode as i64))?.clone();
                working.assume_inode(*inode as i64, Some(row));
            }
            Change::InlineChunks(InlineChange::Add { chunk, owner }) => {
                self.inline.push(chunk, *owner);
                // The long way handles unsorted ones.
                if !self.inline.is_sorted() {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// An inode of which only the inherited attributes are known.
    fn like(&mut self, number: i64, attributes: &Attributes) -> Option<Stored> {
        let (mode, _, xattrs) = columns(attributes, &Root::Empty).ok()?;
        let (uid, gid) = (attributes.uid, attributes.gid);
        self.likes.numbers.push(number);
        self.likes.modes.push(row::bits(mode));
        self.likes.uids.push(uid.cast_signed());
        self.likes.gids.push(gid.cast_signed());
        let subject = Subject::Xattrs { inode: number };
        self.likes.xattrs.push(xattrs.clone().map(|xattrs| Private::new(subject, xattrs)));
        let traits = Traits { mode, uid: uid.into(), gid: gid.into(), xattrs };
        let content =
            Content { traits, mtime: attributes.mtime, special: Special::None, root: None, times: None };
        Some(Stored { number, epoch: 0, links: 1, version: 1, time: 0, stamp: 0, mode, content })
    }

    /// Takes the changed rows; `None` if the statement cannot write all of them.
    fn take(&mut self, working: Working<'_, '_>) -> Option<()> {
        let is_simple = working.former_inodes.is_empty()
            && working.former_names.is_empty()
            && working.versions.is_empty()
            && working.trims.is_empty()
            && working.policies_gone.is_empty()
            && working.held.is_empty();
        if !is_simple {
            return None;
        }
        for (parent, names) in working.names {
            for (name, slot) in names {
                let Slot { before: None, now: Some(now) } = slot else { return None };
                self.names.push(parent, name, now);
            }
        }
        for (inode, slot) in working.directories {
            match slot {
                Slot { before: None, now: Some(parent) } => self.directories.push(inode, parent),
                Slot { before, now } if before == now => {}
                _ => return None,
            }
        }
        let mut inodes: Vec<(i64, Slot<Stored>)> = working.inodes.into_iter().collect();
        // The statement locks in this order.
        inodes.sort_unstable_by_key(|(number, _)| *number);
        for (number, slot) in inodes {
            match &slot {
                Slot { before: None, now: Some(now) } => self.made.push(now, None),
                Slot { before: Some(before), now: Some(now) } => {
                    self.was.push(before, None);
                    if before != now {
                        // A row of an earlier epoch may have to stay in the history.
                        if before.epoch != self.epoch {
                            return None;
                        }
                        self.changed.push(now, None);
                    }
                }
                _ => return None,
            }
            self.observed.push((number, slot.now));
        }
        Some(())
    }

    /// True if the commit makes one name, in the directory that it inherits from, and does nothing
    /// else. `assume` allows at most one name.
    fn only_makes(&self) -> bool {
        !self.made.is_empty()
            && self.likes.numbers == self.parents
            && self.was.is_empty()
            && self.inline.is_empty()
    }

    /// The statement.
    pub fn query(&mut self, ticket: &Ticket) -> Query {
        if self.only_makes() { self.make(ticket) } else { self.commit(ticket) }
    }

    fn make(&mut self, ticket: &Ticket) -> Query {
        let query = take(&mut self.likes).with_only(self.begin(MAKE_AT_ONCE, ticket));
        let query = self.names.drain().with_last(query);
        let query = self.directories.drain().with_last_sum(query);
        let query = self.made.drain().with_only(query);
        self.with_totals(query, ticket)
    }

    fn commit(&mut self, ticket: &Ticket) -> Query {
        let query = self.begin(COMMIT_AT_ONCE, ticket).ints(take(&mut self.parents));
        let query = take(&mut self.likes).with_all(query);
        let query = self.names.drain().with_all_but_epochs(query);
        let mut query = self.directories.drain().with_all(query);
        for columns in [&mut self.was, &mut self.changed, &mut self.made] {
            query = columns.drain().with_all(query);
        }
        take(&mut self.inline).with_all(self.with_totals(query, ticket))
    }

    fn begin(&self, sql: &'static str, ticket: &Ticket) -> Query {
        let query = Query::new(sql).int(ticket.gate).int(ticket.lane).int(ticket.token);
        query.int(self.session.0 as i64).int(self.epoch)
    }

    fn with_totals(&self, query: Query, ticket: &Ticket) -> Query {
        let TotalsDelta { files, directories, others, bytes } = self.totals;
        let query = query.with(ticket.slot(), Type::INT4);
        query.int(files).int(directories).int(others).int(bytes)
    }

    /// The outcome after the statement succeeded, in this generation.
    pub fn finish(self, generation: u64) -> (Committed, ObservedRows) {
        let observed = ObservedRows { epoch: self.epoch, next_inode: 0, rows: self.observed };
        (Committed { generation, ..self.done }, observed)
    }
}
