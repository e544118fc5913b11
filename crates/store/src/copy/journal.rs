//! The packs of a copy that are known to be whole: `copy.journal` in its directory, a line for
//! each, written after its pack was acknowledged.
//!
//! A pack that exists and is not in the journal is read again before it counts: its writer may have
//! been interrupted. The first line names the source, so that the journal of another copy is not
//! used. A torn last line is ignored.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use outrigger_format::{PackId, checksum};

use crate::config::StoreConfig;
use crate::error::{Context, Result};
use crate::layout::write_durably;

/// The file's name.
pub(super) const FILE: &str = "copy.journal";

/// See the module.
pub(super) struct Journal {
    dir: PathBuf,
    head: String,
    done: HashSet<PackId>,
    is_claimed: bool,
    file: Option<File>,
}

impl Journal {
    pub(super) fn open(dir: &Path, config: &StoreConfig) -> Result<Self> {
        let head = format!("copy of {:016x}", checksum(&[config.to_text().as_bytes()]));
        let text = std::fs::read_to_string(dir.join(FILE)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole.lines();
        let ours = lines.next() == Some(&head);
        let (mut done, mut is_claimed) = (HashSet::new(), false);
        for line in lines.filter(|_| ours) {
            is_claimed |= line == "claimed";
            done.extend(u64::from_str_radix(line, 16).ok().map(PackId));
        }
        Ok(Self { dir: dir.to_path_buf(), head, done, is_claimed, file: None })
    }

    /// The place for packs has not been taken for this copy.
    pub(super) fn is_new(&self) -> bool {
        !self.is_claimed
    }

    /// It has.
    pub(super) fn claimed(&mut self) -> Result<()> {
        self.is_claimed = true;
        self.rewrite()
    }

    pub(super) fn has(&self, id: PackId) -> bool {
        self.done.contains(&id)
    }

    /// Records a whole pack. Not synced: packs of lost lines are only read again.
    pub(super) fn add(&mut self, id: PackId) -> Result<()> {
        if !self.done.insert(id) {
            return Ok(());
        }
        if self.file.is_none() {
            self.rewrite()?;
            let file = OpenOptions::new().append(true).open(self.dir.join(FILE));
            self.file = Some(file.context(|| format!("cannot open {FILE}"))?);
            return Ok(());
        }
        let line = format!("{id}\n");
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(line.as_bytes()));
        written.context(|| format!("cannot write {FILE}"))
    }

    /// Forgets packs that are missing, and adds those that are known otherwise. Not written: it is
    /// found out again.
    pub(super) fn reconcile(&mut self, there: &HashSet<PackId>, also: impl Iterator<Item = PackId>) {
        self.done.retain(|id| there.contains(id));
        self.done.extend(also);
    }

    /// Forgets all packs but these.
    pub(super) fn retain(&mut self, known: &HashSet<PackId>) -> Result<()> {
        self.done.retain(|id| known.contains(id));
        self.file = None;
        self.rewrite()
    }

    fn rewrite(&self) -> Result<()> {
        let mut text = format!("{}\n", self.head);
        if self.is_claimed {
            text += "claimed\n";
        }
        for id in &self.done {
            text += &format!("{id}\n");
        }
        write_durably(&self.dir, FILE, text.as_bytes())
    }
}
