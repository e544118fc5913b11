//! Signals that end a mount.

use std::path::Path;
use std::time::Duration;

use outrigger_fuse::mounts;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long open files may delay the end after a signal.
const LINGER: Duration = Duration::from_secs(2);

/// Unmounts on a signal, and the serving threads then end. If files are open, the mount vanishes
/// from the tree, and the files get `LINGER` to be closed. Then this calls `last` and ends the
/// process.
pub fn unmount_on_signal(point: &Path, last: impl FnOnce() + Send + 'static) {
    let point = point.to_path_buf();
    // Without a handler a signal kills the process, and the mount point must be unmounted by hand.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    std::thread::spawn(move || {
        if signals.forever().next().is_none() {
            return;
        }
        if mounts::unmount(&point, false).is_ok() {
            // The serving threads end by themselves, and store what is left.
            return;
        }
        let _ = mounts::unmount(&point, true);
        outrigger_clock::sleep(LINGER);
        last();
        outrigger_offload::end_process(0);
    });
}
