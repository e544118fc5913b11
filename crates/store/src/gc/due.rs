//! Reasons to write the catalogue anew: mounts and commands note them. A store without the note that the catalogue is
//! whole has one, too.

use std::collections::HashSet;

use crate::error::Result;
use crate::meta::Meta;
use crate::meta::jobs::Jobs;
use crate::meta::telling::NOTES;
use crate::store::Store;
use crate::tell::{DUE, UNTOLD, WHOLE, note_whole};

/// Why the catalogue has to be written anew.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Notes, and what they said.
    notes: Vec<(String, String)>,
    is_whole: bool,
}

impl Due {
    /// What is noted now.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read(store: &Store) -> Result<Self> {
        let meta = &*store.meta;
        let Some(jobs) = meta.telling().and(meta.jobs()) else {
            return Ok(Self { notes: Vec::new(), is_whole: true });
        };
        store.fence_gone()?;
        let found = jobs.notes(NOTES)?;
        let live: HashSet<String> =
            meta.sessions()?.iter().map(|session| format!("{UNTOLD}{}", session.id.0)).collect();
        // One that has ended since, and told everything, has taken its note back.
        let still = jobs.notes(NOTES)?;
        let counts = |name: &str| name.starts_with(DUE) || (name.starts_with(UNTOLD) && !live.contains(name));
        let notes = found.iter().filter(|note| counts(&note.name) && still.contains(note));
        let notes = notes.map(|note| (note.name.clone(), note.value.clone())).collect();
        Ok(Self { notes, is_whole: still.iter().any(|note| note.name == WHOLE) })
    }

    /// Nothing is due.
    pub fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.is_whole
    }

    /// The catalogue has been written anew, from an instant after this was read. Notes that were made again since stay.
    ///
    /// # Errors
    /// Those of the database.
    pub fn settle(self, meta: &dyn Meta) -> Result<()> {
        let Some(jobs) = meta.telling().and(meta.jobs()) else { return Ok(()) };
        for (name, value) in &self.notes {
            Jobs::change_note(jobs, NOTES, name, value, None)?;
        }
        note_whole(meta)
    }
}
