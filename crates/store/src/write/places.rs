//! The places of directories: each commit publishes those of the directories in which it makes
//! names.
//!
//! In a shared store, mounts make directories in the database alone, and publish them to the
//! catalogue some seconds later (decision 0022). Until then the catalogue may lack them. If the
//! database were lost, a name that a command or a job puts below such a directory would have no
//! place. So a writer publishes each directory in which it makes a name, and those above it, once,
//! as they are just now. A recovery then makes missing directories and changes no others. The
//! places are read before the commit's transaction: a directory that is moved in between comes back
//! to its old place.

use std::collections::{HashMap, HashSet};

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Record};

use crate::error::Result;
use crate::meta::{Change, Hanging, Meta, ROOT_INODE};

/// The directories that a writer has published.
#[derive(Default)]
pub(super) struct Places {
    told: HashSet<u64>,
}

impl Places {
    /// Records for the directories that `changes` need and that this writer has not published yet,
    /// those above first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn records(&mut self, meta: &dyn Meta, changes: &[Change]) -> Result<Vec<Record>> {
        // Records of what names *are* never share a sequence with others.
        if changes.iter().any(|change| {
            matches!(change, Change::Name { .. } | Change::Node { .. } | Change::CompareAndSwap { .. })
        }) {
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
