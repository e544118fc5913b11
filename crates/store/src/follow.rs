//! An open store's view of the packs: reads all rows once, when it is opened, and then only
//! changes.
//!
//! Rows are read a page at a time, and no more of them is kept than is needed. Each page is of a
//! later state of the database. Changes made meanwhile are read afterwards, from the mark that was
//! taken before the first page, or with the next reading of all rows. A pack that is removed from
//! an index never comes back. So no pack may count as gone while it is only being committed: its
//! row exists before the index knows the pack, and stays.

use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::PackId;

use crate::error::Result;
use crate::index::{Followed, Index};
use crate::meta::{Meta, PackRow, PackState};

/// Rows read at once.
const PAGE: usize = 20_000;

/// How long changes alone are followed, until all rows are looked at again.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(600);

/// The contents of all rows. The default has read none.
#[derive(Default)]
pub(crate) struct Census {
    kept: Kept,
    committed: Vec<(PackId, u32)>,
    followed: Option<Followed>,
}

/// Ids of all packs that are not dead, rising; and the newest id that there was.
#[derive(Default)]
struct Kept {
    ids: Vec<PackId>,
    newest: Option<PackId>,
}

impl Census {
    /// Reads all rows.
    ///
    /// # Errors
    /// Those of the database.
    pub fn of(meta: &dyn Meta) -> Result<Self> {
        let (mark, looked) = (meta.pack_mark()?, Instant::now());
        let followed = mark.map(|mark| Followed { mark, looked });
        let mut census = Self { followed, ..Self::default() };
        let mut after = PackId(0);
        loop {
            let page = meta.packs_after(after, PAGE)?;
            for row in &page {
                census.add(row);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = last.id,
                _ => return Ok(census),
            }
        }
    }

    fn add(&mut self, row: &PackRow) {
        self.kept.newest = Some(row.id);
        if row.state != PackState::Dead {
            self.kept.ids.push(row.id);
        }
        if row.is_committed() {
            self.committed.push((row.id, row.chunks));
        }
    }

    /// Says false only of packs that are dead for good; may be asked once. To be asked of packs
    /// that an index's runs cover, which were announced once: without a row they are long gone,
    /// unless they are newer than these rows.
    pub fn take_kept(&mut self) -> impl Fn(PackId) -> bool + Send + Sync + use<> {
        let Kept { ids, newest } = std::mem::take(&mut self.kept);
        move |pack| ids.binary_search(&pack).is_ok() || Some(pack) > newest
    }

    /// Tells an index, which was opened after this looked, of every committed pack that it does not
    /// know.
    ///
    /// # Errors
    /// When a footer cannot be read.
    pub fn cover(self, index: &Index) -> Result<()> {
        let mut followed = index.followed();
        index.cover_counted(&self.committed)?;
        *followed = self.followed;
        Ok(())
    }
}

/// See [`Store::follow_packs`](crate::store::Store::follow_packs).
pub(crate) fn follow_packs(meta: &dyn Meta, index: &Index) -> Result<()> {
    let mut followed = index.followed();
    if let Some(Followed { mark, looked }) = *followed
        && looked.elapsed() < LOOK_AT_ALL_EVERY
        && let Some(changes) = meta.changed_packs(mark)?
    {
        let dead = changes.rows.iter().filter(|row| row.state == PackState::Dead);
        index.remove_packs(&dead.map(|row| row.id).collect::<Vec<_>>());
        let committed = changes.rows.iter().filter(|row| row.is_committed());
        let mut committed: Vec<(PackId, u32)> = committed.map(|row| (row.id, row.chunks)).collect();
        committed.sort_unstable();
        index.cover_counted(&committed)?;
        *followed = Some(Followed { mark: changes.mark, looked });
        return Ok(());
    }
    look_at_all(meta, index, &mut followed)
}

/// See [`Store::refresh_index`](crate::store::Store::refresh_index).
pub(crate) fn refresh_index(meta: &dyn Meta, index: &Index) -> Result<()> {
    look_at_all(meta, index, &mut index.followed())
}

fn look_at_all(meta: &dyn Meta, index: &Index, followed: &mut Option<Followed>) -> Result<()> {
    // Before the rows, see the module.
    let mut gone = index.covered_packs();
    let census = Census::of(meta)?;
    gone.retain(|pack| census.kept.ids.binary_search(pack).is_err());
    index.remove_packs(&gone);
    index.cover_counted(&census.committed)?;
    *followed = census.followed;
    Ok(())
}
