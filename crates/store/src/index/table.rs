//! An open-addressing multimap from prefix to place: 16 bytes a cell, at most three quarters full.
//!
//! One prefix may have several places (a chunk in two packs, or two fingerprints that share 8
//! bytes). So a search walks from the prefix's home to the first free cell and yields every match.
//! Removal shifts the cells behind it back. There are no tombstones, so a table that is filled and
//! emptied for ever does not slow down. The capacity grows by 3/8, not by doubling, which keeps the
//! cost between 21 and 30 bytes an entry.

/// A place is never 0, as pack ids start at 1: a zero place marks a free cell.
const FREE: u64 = 0;

#[derive(Clone, Copy, Default)]
struct Cell {
    prefix: u64,
    place: u64,
}

/// The multimap; see the module's header.
#[derive(Default)]
pub(super) struct PlaceTable {
    cells: Vec<Cell>,
    len: usize,
}

impl PlaceTable {
    /// Entries in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>()
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.cells.iter().filter(|cell| cell.place != FREE).map(|cell| (cell.prefix, cell.place))
    }

    /// Makes room for `more` entries at once.
    pub fn reserve(&mut self, more: usize) {
        let need = (self.len + more) * 4 / 3 + 16;
        if need > self.cells.len() {
            self.rebuild(need.max(self.cells.len() * 11 / 8));
        }
    }

    /// Adds an entry; one that is there already is not added again.
    pub fn insert(&mut self, prefix: u64, place: u64) {
        debug_assert_ne!(place, FREE, "pack ids start at 1");
        self.reserve(1);
        let mut at = self.home(prefix);
        loop {
            let cell = &mut self.cells[at];
            if cell.place == FREE {
                *cell = Cell { prefix, place };
                self.len += 1;
                return;
            }
            if cell.prefix == prefix && cell.place == place {
                return;
            }
            at = self.after(at);
        }
    }

    /// Removes an entry if it is there.
    pub fn remove(&mut self, prefix: u64, place: u64) {
        if self.len == 0 {
            return;
        }
        let mut gap = self.home(prefix);
        while self.cells[gap].prefix != prefix || self.cells[gap].place != place {
            if self.cells[gap].place == FREE {
                return;
            }
            gap = self.after(gap);
        }
        self.len -= 1;
        let mut at = gap;
        loop {
            at = self.after(at);
            let cell = self.cells[at];
            if cell.place == FREE {
                self.cells[gap] = Cell::default();
                return;
            }
            // A cell may move back to the gap unless its home lies behind the gap.
            let home = self.home(cell.prefix);
            let home_is_behind = if gap < at { gap < home && home <= at } else { gap < home || home <= at };
            if !home_is_behind {
                self.cells[gap] = cell;
                gap = at;
            }
        }
    }

    /// Keeps the entries for which `keep` is true, and frees memory that is no longer needed.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let kept: Vec<(u64, u64)> = self.iter().filter(|&(_, place)| keep(place)).collect();
        *self = Self::default();
        self.reserve(kept.len());
        for (prefix, place) in kept {
            self.insert(prefix, place);
        }
    }

    /// Calls `found` with every place of `prefix`.
    #[inline]
    pub fn get(&self, prefix: u64, mut found: impl FnMut(u64)) {
        if self.len == 0 {
            return;
        }
        let mut at = self.home(prefix);
        loop {
            let cell = self.cells[at];
            if cell.place == FREE {
                return;
            }
            if cell.prefix == prefix {
                found(cell.place);
            }
            at = self.after(at);
        }
    }

    /// Starts loading the cell where a search for `prefix` begins.
    #[inline]
    pub fn prefetch(&self, prefix: u64) {
        if self.len != 0 {
            super::prefetch::prefetch(&self.cells[self.home(prefix)]);
        }
    }

    /// Multiplying by the capacity maps the mixed prefix to a cell for any capacity, not only
    /// powers of two.
    #[inline]
    fn home(&self, prefix: u64) -> usize {
        let mixed = (prefix ^ prefix >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * self.cells.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    fn rebuild(&mut self, capacity: usize) {
        let old = std::mem::replace(&mut self.cells, vec![Cell::default(); capacity]);
        for cell in old.into_iter().filter(|cell| cell.place != FREE) {
            let mut at = self.home(cell.prefix);
            while self.cells[at].place != FREE {
                at = self.after(at);
            }
            self.cells[at] = cell;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::index::tests::Rng;

    fn places(table: &PlaceTable, prefix: u64) -> BTreeSet<u64> {
        let mut all = BTreeSet::new();
        table.get(prefix, |place| assert!(all.insert(place)));
        all
    }

    #[test]
    fn it_behaves_as_a_set_of_pairs() {
        for seed in 0..20 {
            let mut rng = Rng(seed);
            let (mut table, mut model) = (PlaceTable::default(), BTreeSet::new());
            for _ in 0..4000 {
                // Few distinct prefixes, close together: long runs of occupied cells that wrap
                // around.
                let (prefix, place) = (u64::MAX - rng.below(300), 1 + rng.below(3));
                if rng.below(5) < 3 {
                    table.insert(prefix, place);
                    model.insert((prefix, place));
                } else {
                    table.remove(prefix, place);
                    model.remove(&(prefix, place));
                }
                assert_eq!(table.len(), model.len());
                let probe = u64::MAX - rng.below(300);
                let expect = model.range((probe, 0)..=(probe, u64::MAX)).map(|&(_, place)| place).collect();
                assert_eq!(places(&table, probe), expect, "seed {seed}");
            }
            table.retain(|place| place == 1);
            model.retain(|&(_, place)| place == 1);
            assert_eq!(table.iter().collect::<BTreeSet<_>>(), model);
        }
    }

    #[test]
    fn an_entry_takes_at_most_32_bytes() {
        let (mut table, mut rng) = (PlaceTable::default(), Rng(1));
        for n in 1..200_000 {
            table.insert(rng.next(), n as u64);
            assert!(n < 1000 || table.memory() <= n * 32, "{n} entries take {} bytes", table.memory());
        }
    }
}
