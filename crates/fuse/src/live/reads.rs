//! Reports which files programs open to read ([`crate::reads`]), in a mount that owns its store.

use std::sync::Arc;

use outrigger_store::{Error, Result};

use super::LiveVolume;
use super::core::Core;
use super::flusher::Select;
use super::node::Node;
use crate::fs::Caller;
use crate::reads::{Reads, Source};

impl LiveVolume {
    /// Tells `reads` from now on which files are opened to be read; once.
    ///
    /// # Errors
    /// When there are too many threads, or it cannot be found out whether somebody wants to know.
    pub fn set_reads(&self, reads: Arc<dyn Reads>) -> Result<()> {
        self.core.opens.start(reads, Box::new(Stored(Arc::clone(&self.core))))
    }
}

impl Core {
    /// A file was opened to be read.
    pub fn note_read(&self, caller: Caller, node: &Node) {
        self.opens.opened(caller, node.number, || node.read().attributes.mtime);
    }
}

/// Stores the files that are about to be reported.
struct Stored(Arc<Core>);

impl Source for Stored {
    fn store(&self, files: &[u64]) -> Result<()> {
        for number in files {
            let known = self.0.tree().nodes.get(number).cloned();
            let Some(node) = known else { continue };
            let is_stored = {
                let state = node.read();
                // A tailed file is stored when it is closed.
                state.open.is_some() || (state.file.map.is_clean() && !state.changed && state.in_database)
            };
            if !is_stored {
                let _turn = self.0.control.turn();
                self.0.batch(Select::One(*number), None)?;
            }
        }
        Ok(())
    }

    fn report(&self, error: &Error) {
        self.0.world.reports.errno_of_our_own(error);
    }
}
