//! Open files and directories by their handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use rustix::io::Errno;

use crate::fs::{Handle, Result};

/// Open files or directories; handles are never reused.
pub struct Handles<T> {
    next: AtomicU64,
    open: RwLock<HashMap<Handle, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    /// Adds an open file or directory.
    pub fn insert(&self, value: T) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().expect("no panic while held").insert(handle, Arc::new(value));
        handle
    }

    /// The file or directory of `handle`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, handle: Handle) -> Result<Arc<T>> {
        self.open.read().expect("no panic while held").get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Forgets `handle`.
    pub fn remove(&self, handle: Handle) {
        self.take(handle);
    }

    /// Forgets `handle`, and returns its file or directory.
    pub fn take(&self, handle: Handle) -> Option<Arc<T>> {
        self.open.write().expect("no panic while held").remove(&handle)
    }

    /// All that are open.
    pub fn all(&self) -> Vec<(Handle, Arc<T>)> {
        let open = self.open.read().expect("no panic while held");
        open.iter().map(|(handle, value)| (*handle, Arc::clone(value))).collect()
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.read().expect("no panic while held").len()
    }
}
