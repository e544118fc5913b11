//! The registry record of a mount: its mount point and its user.

use std::sync::{Arc, Mutex, PoisonError};

use outrigger_fuse::kernel::uring;
use outrigger_store::Store;
use outrigger_store::meta::is_postgres_url;
use outrigger_store::ops::errors::Noting;
use outrigger_store::ops::mounts::{self, MountRecord, Process};
use outrigger_store::text::show;
use rustix::process::getuid;

use super::Plan;

/// What others are told.
pub fn record(plan: &Plan) -> MountRecord {
    MountRecord {
        process: Process::own(),
        point: show(plan.point.as_os_str().as_encoded_bytes()),
        user: user(),
        read_only: plan.flags.read_only,
        snapshot: plan.flags.at.clone(),
    }
}

/// What its user is told: where the snapshots are, and that no command takes back a change.
pub fn advice(plan: &Plan) -> String {
    let point = plan.point.display();
    let changes = if plan.flags.read_only { "" } else { "; `outrigger undo` takes back no changes there" };
    let snapshots = match plan.flags.at {
        Some(_) => String::new(),
        None => format!("; snapshots are in {point}/.snapshots"),
    };
    let mut text = format!("mounted on {point}{changes}{snapshots}\n");
    // Requests for locks, which a shared mount has, take the device in any case.
    let takes_rings = plan.flags.read_only || !plan.store.to_str().is_some_and(is_postgres_url);
    if takes_rings && uring::is_switched_off() {
        text += &format!("small operations are slower than they could be: {}\n", uring::SWITCH_ON);
    }
    text
}

/// A mount that `status` knows of.
pub struct Told(Arc<Store>, MountRecord, Mutex<Option<Noting>>);

impl Told {
    /// Registers the mount. A mount that may not write to the store goes without a record.
    pub fn of(store: &Arc<Store>, plan: &Plan) -> Self {
        let record = record(plan);
        let noting = store.require_writable().is_ok().then(|| {
            let _ = mounts::register(store, &record);
            Noting::begin(store)
        });
        Self(Arc::clone(store), record, Mutex::new(noting))
    }

    /// Removes the record.
    pub fn end(&self) {
        drop(self.2.lock().unwrap_or_else(PoisonError::into_inner).take());
        if self.0.require_writable().is_ok() {
            let _ = self.0.registry().remove(&self.1);
        }
    }
}

/// The name of this process's user in `/etc/passwd`, or the number if it has none.
fn user() -> String {
    let number = getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    name.unwrap_or(number)
}
