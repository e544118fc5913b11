//! The threads that wait for networks: one small runtime for the whole process, started when it is
//! first needed.
//!
//! The engine itself blocks; only the edges towards object stores are asynchronous, so that many
//! requests are in flight on few threads.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Context, Result};

/// Requests spend their time waiting; two threads move more than a network gives.
const THREADS: usize = 2;

/// The runtime's handle.
///
/// # Errors
/// `Io` when its threads cannot be started.
pub(crate) fn handle() -> Result<&'static Handle> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle());
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name("network").enable_all();
    let runtime = builder.build().context(|| "cannot start the threads for network requests".into())?;
    Ok(RUNTIME.get_or_init(|| runtime).handle())
}
