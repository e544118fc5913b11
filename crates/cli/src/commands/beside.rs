//! Commands beside a mount: a command must see what the mount has staged, and the mount must notice
//! what the command changes.
//!
//! A mount that can be written to owns its store. A command that reads first asks the mount to
//! store what it has acknowledged. A command that changes the store stops the mount meanwhile. If
//! the mount was killed, its log is still there, and the next command stores what is in it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_fuse::control::Client;
use outrigger_fuse::live::{self, LiveOptions, LiveVolume, Recovered};
use outrigger_fuse::report::Reports;
use outrigger_store::home::Home;
use outrigger_store::session::Beside;
use outrigger_store::{Error, ErrorKind, Store, shared};

use crate::exit::Failure;
use crate::output::{complain, counted};

/// The longest wait for a mount that has its log but does not listen yet, or that has closed its
/// socket but still has its log.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the mount to store all that it has acknowledged. Returns the connection, if there is a
/// mount.
pub fn stored(dir: &Path, threads: usize) -> Result<Option<Client>, Failure> {
    ask(dir, threads, "stored")
}

/// As [`stored`]. The mount stores nothing more until the answer is dropped.
pub fn pause(dir: &Path, threads: usize) -> Result<Option<Standing>, Failure> {
    Ok(ask(dir, threads, "pause")?.map(Standing))
}

/// As [`stored`]. The mount changes nothing until the answer is dropped.
pub fn hold(dir: &Path, threads: usize) -> Result<Option<Standing>, Failure> {
    Ok(ask(dir, threads, "hold")?.map(Standing))
}

/// Stops the mount during each commit of a store's sessions. So it waits for no longer than a
/// commit takes, even if the command runs long or is stopped.
pub fn each_commit(home: &Arc<Home>, threads: usize) -> Arc<Beside> {
    let home = Arc::clone(home);
    Arc::new(move |session| {
        let held = ask(home.path(), threads, &format!("hold {}", session.0)).map_err(|failure| {
            Error::new(ErrorKind::Io, format!("the mount could not be paused: {}", failure.message))
        })?;
        Ok(held.map(|mount| Box::new(Standing(mount)) as Box<dyn Send>))
    })
}

/// A mount that waits until this is dropped. Then it drops its caches and shows what the command
/// changed.
pub struct Standing(Client);

impl Drop for Standing {
    fn drop(&mut self) {
        if let Err(error) = self.0.ask("release") {
            complain(&format!("the mount may show old content: {error}"));
        }
    }
}

fn ask(dir: &Path, threads: usize, what: &str) -> Result<Option<Client>, Failure> {
    // No mount owns a store that hosts share.
    if shared::url(dir).is_some() {
        return Ok(None);
    }
    // Without this check the socket below the path would be asked for, and the error would speak of
    // a mount.
    match std::fs::File::open(dir).and_then(|dir| dir.metadata()) {
        Ok(found) if !found.is_dir() => {
            let dir = dir.display();
            return Err(Failure::failed(format!(
                "{dir} is no store: it is not a directory; `outrigger init` makes one"
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Failure::io(format!("cannot open the store {}", dir.display()), &error));
        }
        _ => {}
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(mut client) = Client::connect(dir)? {
            match client.ask(what) {
                Ok(_) => return Ok(Some(client)),
                // The mount has ended just now.
                Err(error) if error.kind() == ErrorKind::Io && Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
        } else if !live::staging_dir(dir).exists() {
            return Ok(None);
        } else {
            match recover(dir, threads) {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {}
                // A store that cannot be written cannot be recovered either. The command reads it
                // as it is.
                Err(error) if error.kind() == ErrorKind::Denied => {
                    complain(
                        "a mount was not unmounted cleanly; its staged data is not visible, because the store is not writable",
                    );
                    return Ok(None);
                }
                // There may be no room to store it, and the collector makes some. So a reader does
                // not wait.
                Err(error) if error.kind() != ErrorKind::Busy && what == "stored" => {
                    complain(&format!(
                        "a mount was not unmounted cleanly; its staged data in {} is not visible, because it could not be stored: {error}",
                        live::staging_dir(dir).display()
                    ));
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
                Ok(()) => return Ok(None),
            }
        }
        outrigger_clock::sleep(Duration::from_millis(100));
    }
}

/// Stores what a mount that was killed had acknowledged.
fn recover(dir: &Path, threads: usize) -> outrigger_store::Result<()> {
    let store = Arc::new(Store::open(dir, false)?);
    store.require_writable()?;
    let options = LiveOptions { snapshots: false, ..LiveOptions::new(threads) };
    let volume = LiveVolume::open(store, options, Reports::new(|report| complain(&report.message)))?;
    if volume.recovered().records > 0 {
        complain(&format!("a mount was not unmounted cleanly: {}", told(volume.recovered())));
    }
    volume.close()
}

/// Says what was recovered from an earlier mount's log.
pub fn told(recovered: &Recovered) -> String {
    let operations = counted(recovered.records, "operation", "operations");
    let torn = match &recovered.torn {
        None => String::new(),
        Some(torn) => {
            format!("; {} incomplete, unacknowledged bytes at the end of its log were dropped", torn.bytes)
        }
    };
    format!("{operations} that it had acknowledged were recovered from its log{torn}")
}
