//! Progress of a job that is being made.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::attempt::Watch;
use crate::progress::Counters;

/// A handle on a job that is being made: the progress of its records' plug-in (bytes read, of bytes
/// expected), and how to stop it.
#[derive(Default)]
pub struct Making {
    /// The plug-in's counters.
    pub counters: Arc<Counters>,
    pub(crate) sign_with: Option<PathBuf>,
    watch: OnceLock<Arc<Watch>>,
}

impl Making {
    /// A job that this key signs, if there is one ([`crate::signing::sign`]).
    pub fn signed_with(key: Option<PathBuf>) -> Self {
        Self { sign_with: key, ..Self::default() }
    }

    /// Ends its programs, and lets no others begin.
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
