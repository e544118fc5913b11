//! Stored prefixes: the parts of files that are stored before the files are closed.
//!
//! A mount of a shared store stores a large file while it is still written. It begins with the
//! *prefix*: the bytes from the file's beginning that were written without a gap. A stored prefix
//! is a content like any other, without a name: [`holder`] holds it, in place of the shorter prefix
//! before it. When the file is closed only the rest has to be stored, and programs on other hosts
//! can read the prefix meanwhile.
//!
//! An agent on another host may store a prefix for the mount while its program reads the file
//! ([`delegated_to`]). The mount takes over what the agent holds.
//!
//! A hold is named by file and mount, as several mounts may write one file. The mount releases it
//! when the file has its content. The next run of the collector releases the holds of killed mounts
//! and agents.
//!
//! ```
//! use outrigger_store::increments;
//! use outrigger_store::meta::SessionId;
//!
//! assert_eq!(increments::holder(7, SessionId(3)), "early:3:7");
//! ```

use outrigger_format::Root;

use crate::error::Result;
use crate::meta::{Meta, SessionId};
use crate::store::Store;

const EARLY: &str = "early:";

/// The name under which a mount holds the stored prefix of a file that it writes.
pub fn holder(inode: u64, mount: SessionId) -> String {
    format!("{EARLY}{}:{inode}", mount.0)
}

/// The stored prefix of a file that a mount is writing, if there is one.
///
/// # Errors
/// Those of the database.
pub fn prefix(meta: &dyn Meta, inode: u64, mount: SessionId) -> Result<Option<Root>> {
    Ok(meta.held(&holder(inode, mount))?.pop())
}

/// The name under which an agent, with session `delegate`, holds the prefix that it stored for a
/// mount.
pub fn delegated_to(inode: u64, mount: SessionId, delegate: SessionId) -> String {
    format!("{}:{}", holder(inode, mount), delegate.0)
}

/// The sessions that a hold depends on: the mount and, if there is one, the agent.
fn sessions_of(holder: &str) -> Option<Vec<SessionId>> {
    let mut numbers = holder.strip_prefix(EARLY)?.split(':');
    let (mount, _, delegate) = (numbers.next()?, numbers.next()?, numbers.next());
    let sessions = std::iter::once(mount).chain(delegate);
    sessions.map(|number| number.parse().ok().map(SessionId)).collect()
}

/// Releases the holds of mounts and agents that are gone.
pub(crate) fn sweep(store: &Store) -> Result<()> {
    // Holds are read first: a mount's session exists before its holds do.
    let mut held = store.meta.holders()?;
    held.retain(|holder| sessions_of(holder).is_some());
    if held.is_empty() {
        return Ok(());
    }
    let held = held.into_iter().map(|holder| (sessions_of(&holder).unwrap_or_default(), holder));
    let held: Vec<(Vec<SessionId>, String)> = held.collect();
    let sessions = store.live_sessions(|row| held.iter().any(|(of_it, _)| of_it.contains(&row.id)))?;
    for (of_it, holder) in held {
        if !of_it.iter().all(|id| sessions.iter().any(|row| row.id == *id)) {
            store.meta.release(&holder, None)?;
        }
    }
    Ok(())
}
