//! The blocks of the catalogue that the next block names as those before it.
//!
//! A process names the blocks that it has committed last. Its first block names those that other
//! processes have left in the database, as a record, when they ended. Each names only blocks that it
//! finds in packs. So a wrong record, or the lack of one, costs a link, and no commit waits for
//! another process. A process that is killed leaves no record.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outrigger_format::Fingerprint;
use outrigger_format::catalogue::Record;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::index::Index;
use crate::meta::Meta;
use crate::meta::records::{Record as Registers, Registry};

/// A block: its sequence and its fingerprint.
pub(crate) type Link = (u64, Fingerprint);

/// Blocks that are left in the database at most.
const LEFT_MAX: usize = 100;
/// How often a record that another process changes is written.
const TRIES: usize = 3;

/// The blocks that no other block names, as far as processes that have ended know.
#[derive(Serialize, Deserialize)]
struct Left {
    /// Each one's sequence and fingerprint.
    blocks: Vec<(u64, String)>,
}

impl Registers for Left {
    const KIND: &'static str = "catalogue-last";

    fn name(&self) -> String {
        String::new()
    }
}

impl Left {
    fn links(&self) -> Vec<Link> {
        let parsed =
            self.blocks.iter().map(|(sequence, text)| Some((*sequence, Fingerprint::parse(text).ok()?)));
        parsed.flatten().collect()
    }
}

/// The blocks that this process names next.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The record was read.
    is_recalled: bool,
    /// Blocks of the record that are this process's to replace.
    recorded: Vec<Link>,
    last: Vec<Link>,
    has_changed: bool,
}

impl Links {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that the next one names.
    ///
    /// # Errors
    /// Those of the database and the index.
    pub fn named(&self, meta: &dyn Meta, index: &Index) -> Result<Vec<Link>> {
        let mut state = self.state();
        if !state.is_recalled {
            let left = Registry::of(meta).find(|_: &Left| true)?;
            let left = left.map_or_else(Vec::new, |left| left.record.links());
            for link in left {
                if index.resolve(&link.1, |_| true)?.is_some() {
                    state.last.push(link);
                }
            }
            state.recorded = state.last.clone();
            state.is_recalled = true;
        }
        Ok(state.last.clone())
    }

    /// Records that the blocks of `sequence`, which name `named`, are committed.
    pub fn committed(&self, named: &[Link], sequence: u64, blocks: &[Fingerprint]) {
        if blocks.is_empty() {
            return;
        }
        let mut state = self.state();
        state.last.retain(|block| !named.contains(block));
        state.last.extend(blocks.iter().map(|&block| (sequence, block)));
        state.has_changed = true;
    }

    /// Leaves the last blocks in the database, for other processes.
    ///
    /// # Errors
    /// Those of the database.
    pub fn leave(&self, meta: &dyn Meta) -> Result<()> {
        let mut state = self.state();
        if !state.has_changed {
            return Ok(());
        }
        let registry = Registry::of(meta);
        for _ in 0..TRIES {
            let was = registry.find(|_: &Left| true)?;
            let mut links = was.as_ref().map_or_else(Vec::new, |was| was.record.links());
            links.retain(|link| !state.recorded.contains(link) && !state.last.contains(link));
            links.extend(&state.last);
            links.sort_unstable();
            let from = links.len().saturating_sub(LEFT_MAX);
            let blocks =
                links[from..].iter().map(|(sequence, block)| (*sequence, block.to_string())).collect();
            let left = Left { blocks };
            let is_written = match &was {
                Some(was) => registry.replace(was, &left)?,
                None => registry.add(&left)?,
            };
            if is_written {
                state.recorded = state.last.clone();
                state.has_changed = false;
                break;
            }
        }
        Ok(())
    }
}

/// The record that names these blocks; `None` if there are none.
pub(crate) fn after(blocks: &[Link]) -> Option<Record> {
    (!blocks.is_empty()).then(|| Record::After { blocks: blocks.to_vec() })
}
