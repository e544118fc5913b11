//! Replays the catalogue into an empty database.
//!
//! Blocks are sorted by sequence, pack and frame; equal ones count once. Changes are committed with
//! the time of their block, so that versions get their original times. A commit may have replaced
//! the numbers of inodes (aliases): these are carried from block to block within a sequence.
//!
//! Blocks of names and inodes (`exact.rs`) are committed together with the others of their
//! sequence: between two of them an inode may be without a name. If several mounts published them,
//! one may contradict another that comes later (`limbo.rs`). Entries of a directory that no record
//! makes are put where a user finds them (`strays.rs`). Two writers may have committed in another
//! order than they took their sequences in. A change that cannot be applied is reported and left
//! out, and the rest goes on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::catalogue::{Block, FileKind, Record};
use outrigger_format::{Entry, Fingerprint, Root};

use super::blocks::FoundBlock;
use super::chain::Standing;
use super::exact;
use super::limbo::Limbo;
use super::strays::Strays;
use crate::counters::INODE_GAP;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{Change, Commit, ROOT_INODE, VersionRow};
use crate::read::Reader;
use crate::session::Session;
use crate::store::Store;

/// Problems that are listed; more are only counted.
const LISTED: usize = 100;

/// The outcome of a replay.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Blocks replayed.
    pub blocks: u64,
    /// Changes replayed.
    pub changes: u64,
    /// Sentences about changes that could not be replayed.
    pub problems: Vec<String>,
}

/// Live counters of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayProgress<'a> {
    /// Blocks that will be replayed.
    pub expected: &'a AtomicU64,
    /// Blocks replayed.
    pub done: &'a AtomicU64,
}

/// Replays `blocks`, which are [in order](super::blocks::in_order), into the empty database of `store`. `is_shared` says that
/// several hosts wrote them, of which each published its own.
pub(crate) fn replay(
    store: &Store,
    session: &Session,
    mut blocks: Vec<FoundBlock>,
    is_shared: bool,
    progress: ReplayProgress<'_>,
    report: &mut Replayed,
) -> Result<()> {
    keep_complete(store, &mut blocks, report)?;
    let inodes = blocks.iter().map(|found| found.highest_inode).max().unwrap_or(0);
    let exact: HashSet<u64> =
        blocks.iter().filter(|found| found.is_exact).map(|found| found.sequence).collect();
    let sequence = blocks.last().map_or(0, |found| found.sequence);
    // A staging log may name inodes that the lost database gave out and no pack knows yet.
    store.meta.raise_counters(0, inodes.max(ROOT_INODE) + INODE_GAP, sequence + 1)?;
    progress.expected.store(blocks.len() as u64, Ordering::Relaxed);
    let mut replay = Replay {
        store,
        session,
        changes: Vec::new(),
        aliases: BTreeMap::new(),
        strays: Strays::default(),
        limbo: Limbo::default(),
        sequence: 0,
        is_exact: false,
        time: 0,
        left_out: 0,
        is_shared,
        report,
    };
    for found in blocks {
        if found.sequence != replay.sequence {
            replay.flush()?;
            replay.aliases.clear();
        }
        replay.sequence = found.sequence;
        replay.is_exact = exact.contains(&found.sequence);
        match found.load(store) {
            Ok(block) => replay.block(block)?,
            Err(error) if error.kind() == ErrorKind::Damaged => {
                replay.report.problems.push(format!("a catalogue block is lost: {error}"));
            }
            Err(error) => return Err(error),
        }
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    replay.flush()?;
    replay.limbo.end(store, session)?;
    replay.strays.end(store, session, replay.report)?;
    let left_out = replay.left_out;
    if left_out > LISTED {
        report.problems.push(format!("… and {} more like these", left_out - LISTED));
    }
    Ok(())
}

/// Drops blocks that the last complete reset supersedes, interrupted resets, and blocks of torn
/// packs whose content is missing.
fn keep_complete(store: &Store, blocks: &mut Vec<FoundBlock>, report: &mut Replayed) -> Result<()> {
    let standing = Standing::of(blocks);
    for sequence in &standing.unsealed {
        report.problems.push(format!(
            "the catalogue of sequence {sequence} would supersede all before it, and nobody who may do that has sealed it: left out"
        ));
    }
    blocks.retain(|found| standing.counts(found.sequence));
    let mut index = 0;
    let mut known = HashMap::new();
    let mut undone = HashSet::new();
    while index < blocks.len() {
        let found = &blocks[index];
        let is_there = match &found.torn {
            None => true,
            Some(block) => is_resolvable(store, &block.records, &mut known)?,
        };
        if is_there {
            index += 1;
            continue;
        }
        report.problems.push(format!(
            "the commit of sequence {} was found in pack {}, which is torn, and what it refers to is not there: left out",
            found.sequence, found.pack
        ));
        let found = blocks.remove(index);
        if found.is_exact {
            undone.insert(found.sequence);
        }
    }
    // Half a move would be a removal: if a part of such a commit does not count, none of it does.
    blocks.retain(|found| !undone.contains(&found.sequence));
    Ok(())
}

fn is_resolvable(store: &Store, records: &[Record], known: &mut HashMap<Fingerprint, bool>) -> Result<bool> {
    for record in records {
        let (Record::Upsert { root, .. } | Record::Version { root, .. } | Record::Node { root, .. }) = record
        else {
            continue;
        };
        let key = match root {
            Root::Tree { fingerprint, .. } => Some(*fingerprint),
            _ => None,
        };
        if let Some(&answer) = key.and_then(|key| known.get(&key)) {
            if !answer {
                return Ok(false);
            }
            continue;
        }
        let mut all = true;
        let walked = Reader::new(store).entries(root, 0, u64::MAX, &mut |_, entry| {
            if let Entry::Chunk { fingerprint, .. } = entry {
                all &= store.index.resolve(&fingerprint, |_| true)?.is_some();
            }
            Ok(all)
        });
        match walked {
            Err(error) if error.kind() == ErrorKind::Damaged => all = false,
            // Nobody can read it: it resolves to that.
            Err(error) if error.kind() == ErrorKind::Destroyed => {}
            other => other?,
        }
        known.extend(key.map(|key| (key, all)));
        if !all {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Replay<'a> {
    store: &'a Store,
    session: &'a Session,
    changes: Vec<Change>,
    /// The aliases of the commit that is being replayed.
    aliases: BTreeMap<u64, u64>,
    strays: Strays,
    limbo: Limbo,
    sequence: u64,
    /// Its blocks are committed together.
    is_exact: bool,
    time: u64,
    left_out: usize,
    is_shared: bool,
    report: &'a mut Replayed,
}

impl Replay<'_> {
    fn block(&mut self, block: Block) -> Result<()> {
        self.time = block.time;
        for record in block.records {
            self.record(record)?;
        }
        if !self.is_exact {
            self.flush()?;
        }
        self.report.blocks += 1;
        Ok(())
    }

    fn record(&mut self, record: Record) -> Result<()> {
        let alias = |inode: u64| self.aliases.get(&inode).copied().unwrap_or(inode);
        let change = match record {
            Record::Upsert { inode, parent, name, attributes, root, replace } => Change::Put {
                parent: alias(parent),
                name,
                inode: alias(inode),
                root: if attributes.kind == FileKind::File { root } else { Root::Empty },
                attributes,
                stamp: 0,
                replace,
            },
            Record::Link { parent, name, inode } => {
                Change::Link { parent: alias(parent), name, inode: alias(inode) }
            }
            Record::Unlink { parent, name } => {
                Change::Remove { parent: alias(parent), name, recursive: true }
            }
            Record::Rename { parent, name, new_parent, new_name } => {
                Change::Rename { parent: alias(parent), name, new_parent: alias(new_parent), new_name }
            }
            // They are no changes, and part no commit.
            Record::After { .. } | Record::Heads { .. } | Record::Seal { .. } => return Ok(()),
            // The writer of these knew the numbers: there are no aliases.
            Record::Name { parent, name, inode } => Change::Name { parent, name, inode },
            Record::Node { inode, parent, attributes, root, keep } => {
                let root = if attributes.kind == FileKind::File { root } else { Root::Empty };
                Change::Node { inode, parent, attributes, root, keep }
            }
            other => return self.other(other),
        };
        self.changes.push(change);
        Ok(())
    }

    fn other(&mut self, record: Record) -> Result<()> {
        self.flush()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let texts = |tags: &[Vec<u8>]| tags.iter().map(|tag| text(tag)).collect::<Vec<_>>();
        let meta = &self.store.meta;
        let done = match &record {
            Record::Snapshot { name, time, tags } => {
                meta.create_snapshot(&text(name), *time, &texts(tags)).map(drop)
            }
            Record::Tags { name, tags } => meta.set_snapshot_tags(&text(name), &texts(tags)),
            Record::Forget { name } => meta.delete_snapshot(&text(name)),
            Record::Version { inode, number, time, mtime, root } => {
                let row = VersionRow { number: *number, time: *time, mtime: *mtime, root: root.clone() };
                let inode = self.aliases.get(inode).copied().unwrap_or(*inode);
                meta.restore_versions(inode, std::slice::from_ref(&row))
            }
            Record::Policy { inode, key, value } => {
                let inode = self.aliases.get(inode).copied().unwrap_or(*inode);
                meta.set_policy(inode, &text(key), value.as_ref().map(|value| text(value)).as_deref())
            }
            _ => Ok(()),
        };
        let is_gone = matches!(record, Record::Forget { .. } | Record::Tags { .. }) && is_missing(&done);
        if is_gone && self.is_shared {
            // A catalogue that was rewritten while it was being deleted.
            return Ok(());
        }
        self.tolerate(done, || format!("{record:?}"))
    }

    /// True if this failure is expected in a shared store: a command used a name that a mount had
    /// not published yet, and the result is published later.
    fn is_told_behind(&self, change: &Change, done: &Result<()>) -> bool {
        let goes_out_from =
            matches!(change, Change::Remove { .. } | Change::Rename { .. } | Change::Link { .. });
        goes_out_from && is_missing(done) && self.is_shared
    }

    /// Commits the gathered changes: all at once or, if some cannot be applied, in the smallest
    /// possible parts.
    fn flush(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return Ok(());
        }
        self.session.check()?;
        match self.commit(&changes) {
            Err(error) if is_about_the_change(&error) && self.is_exact => {
                let more = self.limbo.make_way(self.store, self.session, &changes, self.time)?;
                match self.commit(&[changes.as_slice(), more.as_slice()].concat()) {
                    Err(error) if is_about_the_change(&error) => self.in_parts(changes),
                    done => done,
                }
            }
            Err(error) if is_about_the_change(&error) => {
                for change in changes {
                    let mut done = self.commit(std::slice::from_ref(&change));
                    if done.is_err() && self.strays.make_way(self.store, self.session, &change, self.time)? {
                        done = self.commit(std::slice::from_ref(&change));
                    }
                    if !self.is_told_behind(&change, &done) {
                        self.tolerate(done, || describe(&change))?;
                    }
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Commits names and inodes in separate parts, each after those that it needs. So a damaged
    /// block costs only what depends on it.
    fn in_parts(&mut self, changes: Vec<Change>) -> Result<()> {
        let mut parts = exact::parts(&*self.store.meta, changes)?;
        loop {
            let (mut refused, before) = (Vec::new(), parts.len());
            for part in parts {
                match self.commit(&part) {
                    Err(error) if is_about_the_change(&error) => refused.push((part, error)),
                    done => done?,
                }
            }
            if refused.len() == before {
                for (part, error) in refused {
                    let what = || part.iter().map(describe).collect::<Vec<_>>().join(", ");
                    self.tolerate(Err(error), what)?;
                }
                return Ok(());
            }
            parts = refused.into_iter().map(|(part, _)| part).collect();
        }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<()> {
        let commit = Commit { packs: Vec::new(), changes: changes.to_vec(), time: self.time };
        let committed = self.store.meta.commit(self.session.id(), &commit)?;
        self.aliases.extend(committed.aliases);
        self.report.changes += changes.len() as u64;
        Ok(())
    }

    fn tolerate(&mut self, done: Result<()>, what: impl FnOnce() -> String) -> Result<()> {
        match done {
            Err(error) if is_about_the_change(&error) => {
                self.left_out += 1;
                if self.left_out <= LISTED {
                    let problem = format!("sequence {}: {} was left out: {error}", self.sequence, what());
                    self.report.problems.push(problem);
                }
                Ok(())
            }
            done => done,
        }
    }
}

fn is_missing(done: &Result<()>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn is_about_the_change(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Exists)
}

fn describe(change: &Change) -> String {
    let (what, name) = match change {
        Change::Put { name, .. } => ("putting", name),
        Change::Link { name, .. } => ("linking", name),
        Change::Remove { name, .. } => ("removing", name),
        Change::Rename { name, .. } => ("moving", name),
        Change::Name { name, .. } => ("setting", name),
        Change::IfName { name, .. } => ("expecting", name),
        Change::Node { inode, .. }
        | Change::CompareAndSwap { inode, .. }
        | Change::IfAttributes { inode, .. }
        | Change::Touch { inode, .. }
        | Change::PinContent { inode, .. }
        | Change::Orphan { inode, .. } => return format!("setting inode {inode}"),
        Change::Job(_) => return "a job".to_string(),
        Change::InlineChunks(_) => return "a inline chunk".to_string(),
    };
    format!("{what} `{}`", crate::text::show(name))
}
