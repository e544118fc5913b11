//! Handles that the functions of several modules take.

use outrigger_offload::runtime::Runtime;

use crate::status::{Error, Result};

/// Threads, devices, queues and buffers that execute tasks. All threads may use it at once.
pub struct outrigger_runtime(pub Runtime);

/// Checks that the pool has buffers of so many bytes.
pub fn poolable(bytes: usize) -> Result {
    if bytes > 2 << 30 {
        return Err(Error::invalid(format!("a buffer of {bytes} bytes: 2 GiB at most")));
    }
    Ok(())
}
