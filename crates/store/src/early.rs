//! What is stored of files before they are closed.
//!
//! A mount that shares its store begins to store a large file while it is still written: its *prefix*, the bytes from its beginning that were written without a gap. That is a content like any other, without a
//! name: held by [`holder`], in place of the prefix before it, which it begins with. When the file is closed only the rest has to be stored; and programs on other hosts can read it meanwhile.
//!
//! An agent on another host may do the same for the mount while its program reads the file ([`carried_by`]): the mount takes over what it holds, and whoever of the two is gone, what it still held goes with the next run of the collector.
//!
//! The holder is named by file and mount, as several mounts may write one file. The mount lets go of it when the file has its content; what one that was killed still held goes with
//! the next run of the collector.
//!
//! ```
//! use outrigger_store::early;
//! use outrigger_store::meta::SessionId;
//!
//! assert_eq!(early::holder(7, SessionId(3)), "early:3:7");
//! ```

use outrigger_format::Root;

use crate::error::Result;
use crate::meta::{Meta, SessionId};
use crate::store::Store;

const EARLY: &str = "early:";

/// Who holds what is stored of a file while it is written in a mount.
pub fn holder(inode: u64, mount: SessionId) -> String {
    format!("{EARLY}{}:{inode}", mount.0)
}

/// What is stored of a file that is being written in a mount, if anything is.
///
/// # Errors
/// Those of the database.
pub fn prefix(meta: &dyn Meta, inode: u64, mount: SessionId) -> Result<Option<Root>> {
    Ok(meta.held(&holder(inode, mount))?.pop())
}

/// Who holds what an agent, whose session `carrier` is, has stored of a file while it is written in a mount.
pub fn carried_by(inode: u64, mount: SessionId, carrier: SessionId) -> String {
    format!("{}:{}", holder(inode, mount), carrier.0)
}

/// Without whom a holder is of no use: the mount and, if there is one, the agent.
fn sessions_of(holder: &str) -> Option<Vec<SessionId>> {
    let mut numbers = holder.strip_prefix(EARLY)?.split(':');
    let (mount, _, carrier) = (numbers.next()?, numbers.next()?, numbers.next());
    let sessions = std::iter::once(mount).chain(carrier);
    sessions.map(|number| number.parse().ok().map(SessionId)).collect()
}

/// Lets go of what mounts and agents held that are gone.
pub(crate) fn sweep(store: &Store) -> Result<()> {
    // First the holders: a mount's session is there before they are.
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
