//! The plan of a put, found out by the same walk, without a writer.

use std::sync::Arc;

use outrigger_format::catalogue::FileKind;

use super::{PutOptions, PutReport, Putter, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, Change, Inode, Meta};
use crate::policy::Policies;
use crate::store::Store;
use crate::tree::{StorePath, listing};
use crate::write::{Content, Item, Progress};

/// The changes that a put would make.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Entries that would be new, directories among them.
    pub created: u64,
    /// Files and other entries that would be read again, or replaced.
    pub changed: u64,
    /// Bytes of the files among both.
    pub bytes: u64,
    /// Entries that would be removed; a directory stands for all below it.
    pub removed: Vec<StorePath>,
    /// Entries that are these and lie below them.
    pub entries_removed: u64,
}

impl Plan {
    pub(super) fn count(&mut self, item: &Item, over: bool) {
        match item {
            Item::Change(Change::Remove { .. }) => return,
            Item::File(file) => {
                if let Content::File(source) = &file.content {
                    self.bytes += source.stat.size;
                }
            }
            // The attributes of a directory that is there.
            Item::Change(Change::Put { inode, .. }) if !over && *inode != super::NO_INODE => return,
            Item::Change(_) => {}
        }
        *(if over { &mut self.changed } else { &mut self.created }) += 1;
    }

    pub(super) fn remove(
        &mut self,
        meta: &dyn Meta,
        top: &StorePath,
        relative: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let below = relative.split(|&byte| byte == b'/').map(<[u8]>::to_vec);
        self.removed.push(StorePath { components: top.components.iter().cloned().chain(below).collect() });
        self.entries_removed += 1;
        if inode.attributes.kind == FileKind::Directory {
            listing::walk::<Error>(meta, At::Now, inode.number, true, &mut |_, _| {
                self.entries_removed += 1;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Walks as a put does.
pub(super) fn plan(
    store: &Store,
    policies: Policies,
    sources: Vec<(Source, StorePath)>,
    options: &PutOptions,
    progress: &Arc<Progress>,
) -> Result<PutReport> {
    let mut putter = Putter::new(store, policies, None, progress, options, None);
    for (source, target) in sources {
        if matches!(source, Source::Stream(_)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "--dry-run cannot look at standard input without storing it; give files or directories",
            ));
        }
        putter.put(source, &target)?;
    }
    let mut report = PutReport { walk: putter.summary, plan: Some(putter.plan), ..PutReport::default() };
    report.write.progress = progress.view();
    Ok(report)
}
