//! How an index comes to know packs that others wrote: by their footers, which lie where the packs
//! do.
//!
//! Where that is far away each takes a request or two, so several are asked for at once, and no
//! more of a pack's end than its footer can take. A host that comes to a store for the first time
//! reads all of them: 36 bytes a chunk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use outrigger_format::{Footer, PackId};

use super::Index;
use crate::error::Result;

impl Index {
    /// Adds those of `packs` that the index does not know, by their footers, and returns how many
    /// were added. Packs with a missing or damaged footer are skipped. Flushes as often as the
    /// recent table is full.
    ///
    /// # Errors
    /// When a footer cannot be read for now; those before it are added.
    pub fn cover(&self, packs: &[PackId]) -> Result<usize> {
        self.add_all(&self.missing(packs))
    }

    /// Like [`cover`](Self::cover), with the number of chunks of each pack, which gives the length
    /// of its footer.
    ///
    /// # Errors
    /// As there.
    pub fn cover_counted(&self, packs: &[(PackId, u32)]) -> Result<usize> {
        let ids: Vec<PackId> = packs.iter().map(|(pack, _)| *pack).collect();
        let missing = self.missing(&ids);
        let is_missing = |pack: &PackId| missing.binary_search(pack).is_ok();
        let counted: Vec<(PackId, u32)> =
            packs.iter().filter(|(pack, _)| is_missing(pack)).copied().collect();
        self.footers().expect(&counted);
        self.add_all(&missing)
    }

    fn add_all(&self, packs: &[PackId]) -> Result<usize> {
        let readers = self.footers().at_once().min(packs.len());
        let (next, mut added) = (AtomicUsize::new(0), 0);
        let mut add = |pack: PackId, footer: Result<Option<Arc<Footer>>>| -> Result<()> {
            if let Some(footer) = footer? {
                self.add_pack(pack, &footer);
                added += 1;
                self.flush_if_full()?;
            }
            Ok(())
        };
        // One at a time needs no thread besides this one.
        if readers <= 1 {
            packs.iter().try_for_each(|pack| add(*pack, self.footers().get(*pack)))?;
            return Ok(added);
        }
        std::thread::scope(|scope| {
            // Dropped at the first failure, it has the readers end.
            let (send, loaded) = sync_channel(readers);
            let (footers, next) = (self.footers(), &next);
            for _ in 0..readers {
                let send = send.clone();
                scope.spawn(move || {
                    while let Some(&pack) = packs.get(next.fetch_add(1, Ordering::Relaxed))
                        && send.send((pack, footers.get(pack))).is_ok()
                    {}
                });
            }
            drop(send);
            loaded.into_iter().try_for_each(|(pack, footer)| add(pack, footer))
        })?;
        Ok(added)
    }
}
