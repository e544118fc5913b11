//! Where directories hang, told by each commit for those that it puts names into.
//!
//! In a store that hosts share, mounts make directories in the database alone, and tell the catalogue some seconds later (decision 0022): it may not have them yet, so a name that a command, or
//! a job, puts below one would stand for nothing when the database is lost. Hence a writer there tells each directory that it puts a name into, and those
//! above it, as they are just now, once. Replayed, that makes what is missing and changes nothing of the rest. It is read before the commit's transaction: a directory
//! that is moved in between comes back where it was.

use std::collections::{HashMap, HashSet};

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Record};

use crate::error::Result;
use crate::meta::{Change, Hanging, Meta, ROOT_INODE};

/// What a writer has told.
#[derive(Default)]
pub(super) struct Places {
    told: HashSet<u64>,
}

impl Places {
    /// Records for the directories that `changes` need and that nobody has told yet, those above first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn records(&mut self, meta: &dyn Meta, changes: &[Change]) -> Result<Vec<Record>> {
        // What says what names *are* never shares a sequence with other records.
        if changes
            .iter()
            .any(|change| matches!(change, Change::Name { .. } | Change::Node { .. } | Change::Swap { .. }))
        {
            return Ok(Vec::new());
        }
        let mut wanted = Vec::new();
        for change in changes {
            let (Change::Put { parent, .. }
            | Change::Link { parent, .. }
            | Change::Rename { new_parent: parent, .. }) = change
            else {
                continue;
            };
            if *parent != ROOT_INODE && self.told.insert(*parent) {
                wanted.push(*parent);
            }
            if let Change::Put { inode, attributes, .. } = change
                && attributes.kind == FileKind::Directory
            {
                self.told.insert(*inode);
            }
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut found: HashMap<u64, Hanging> =
            meta.hanging(&wanted)?.into_iter().map(|place| (place.entry.inode.number, place)).collect();
        let mut records = Vec::new();
        for directory in wanted {
            let (mut at, mut above) = (directory, Vec::new());
            while let Some(place) = found.remove(&at) {
                at = place.parent;
                above.push(place);
            }
            for Hanging { parent, entry } in above.into_iter().rev() {
                self.told.insert(entry.inode.number);
                let (inode, attributes) = (entry.inode.number, entry.inode.attributes);
                let name = entry.name;
                records.push(Record::Upsert {
                    inode,
                    parent,
                    name,
                    attributes,
                    root: Root::Empty,
                    replace: false,
                });
            }
        }
        Ok(records)
    }
}
