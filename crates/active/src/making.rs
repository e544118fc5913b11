//! A job that is being made, as who waits for it sees it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::attempt::Watch;
use crate::progress::Counters;

/// A job that is being made, for who waits for it: how far a plug-in that looks for its records is (bytes read, of bytes expected), and how to stop that.
#[derive(Default)]
pub struct Making {
    /// What the plug-in was given.
    pub counters: Arc<Counters>,
    pub(crate) sign_with: Option<PathBuf>,
    watch: OnceLock<Arc<Watch>>,
}

impl Making {
    /// A job that this key signs, if there is one ([`crate::signing::sign`]).
    pub fn signed_with(key: Option<PathBuf>) -> Self {
        Self { sign_with: key, ..Self::default() }
    }

    /// Ends what runs for it, and has nothing begin any more.
    pub fn stop(&self) {
        self.watch().stop();
    }

    /// True once it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.watch.get().is_some_and(|watch| watch.is_stopped())
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        self.watch.get_or_init(Watch::start)
    }
}
