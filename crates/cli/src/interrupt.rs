//! Ctrl-C: what was committed stays, the session is closed, and the user is told how to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_store::Store;
use outrigger_store::meta::Meta;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::INTERRUPTED;
use crate::output::complain;

/// From now on a signal ends the process at once. That is safe at any moment, because uncommitted
/// changes are not there. `advice` is the second half of the message.
pub fn arm(store: &Store, advice: &'static str) {
    arm_with(store, advice, || ());
}

/// As [`arm`]; `tidy` is called before the process ends, and has about a second.
pub fn arm_with(store: &Store, advice: &'static str, tidy: impl FnOnce() + Send + 'static) {
    arm_saying(store, move || advice.to_string(), tidy);
}

/// As [`arm_with`]. `advice` is called when the signal comes, and has about a second.
pub fn arm_saying(
    store: &Store,
    advice: impl FnOnce() -> String + Send + 'static,
    tidy: impl FnOnce() + Send + 'static,
) {
    let meta: Arc<dyn Meta> = Arc::clone(&store.meta);
    let locks = (!store.is_read_only()).then(|| store.locks_dir());
    // Without a handler the signal kills the process, which is as safe, but says nothing.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    std::thread::spawn(move || {
        if signals.forever().next().is_none() {
            return;
        }
        crate::progress::clear();
        // Another thread may hold the database. Then this thread ends the process, and the next
        // `gc` closes the session.
        let said = Arc::new(AtomicBool::new(false));
        let is_said = Arc::clone(&said);
        std::thread::spawn(move || {
            outrigger_clock::sleep(std::time::Duration::from_secs(2));
            if !is_said.load(Ordering::SeqCst) {
                complain("stopped");
            }
            outrigger_offload::end_process(INTERRUPTED);
        });
        let advice = advice();
        said.store(true, Ordering::SeqCst);
        complain(&format!("stopped; {advice}"));
        tidy();
        if let Some(locks) = locks {
            close_own_sessions(&*meta, &locks);
        }
        outrigger_offload::end_process(INTERRUPTED);
    });
}

/// Waits after the work was stopped: the thread that stopped it ends the process and prints the
/// reason.
pub fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Closes this process's sessions in `store` before it exits, while they are still in use.
pub fn close_sessions(store: &Store) {
    if !store.is_read_only() {
        close_own_sessions(&*store.meta, &store.locks_dir());
    }
}

fn close_own_sessions(meta: &dyn Meta, locks: &std::path::Path) {
    for session in meta.sessions().unwrap_or_default() {
        let Some(lock) = session.owner.lock_file(locks) else { continue };
        // Hosts of the same name may share a store, so the lock file must also be on this host.
        if session.owner.is_this_process() && lock.exists() {
            let _ = meta.close_session(session.id);
            let _ = std::fs::remove_file(lock);
        }
    }
}
