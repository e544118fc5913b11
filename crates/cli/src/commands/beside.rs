//! Commands beside a mount: what it has staged must be seen, and what it knows must stay true.
//!
//! A mount that can be written to owns its store. A command that reads asks it first to store what it has acknowledged; one that changes the
//! store has it stand still meanwhile. If the mount was killed, its log is still there: the first command that comes stores what is in
//! it.

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

/// How long a mount may take from taking its log to listening, or from hanging up to letting go of its log.
const PATIENCE: Duration = Duration::from_secs(30);

/// Has everything that was acknowledged stored. Returns the connection to the mount, if there is one.
pub fn stored(dir: &Path, threads: usize) -> Result<Option<Client>, Failure> {
    ask(dir, threads, "stored")
}

/// As [`stored`]; and until the answer is dropped, nothing more is stored.
pub fn pause(dir: &Path, threads: usize) -> Result<Option<Standing>, Failure> {
    Ok(ask(dir, threads, "pause")?.map(Standing))
}

/// As [`stored`]; and until the answer is dropped, the mount changes nothing.
pub fn hold(dir: &Path, threads: usize) -> Result<Option<Standing>, Failure> {
    Ok(ask(dir, threads, "hold")?.map(Standing))
}

/// For each commit of a store's sessions: a mount stands still meanwhile. It is there for no longer than that, however long the command takes, and even if it is stopped.
pub fn each_commit(home: &Arc<Home>, threads: usize) -> Arc<Beside> {
    let home = Arc::clone(home);
    Arc::new(move |session| {
        let held = ask(home.path(), threads, &format!("hold {}", session.0)).map_err(|failure| {
            Error::new(ErrorKind::Io, format!("a mount does not stand still: {}", failure.message))
        })?;
        Ok(held.map(|mount| Box::new(Standing(mount)) as Box<dyn Send>))
    })
}

/// A mount that stands still until this is dropped: then it has forgotten what it knew, and shows what the command has done.
pub struct Standing(Client);

impl Drop for Standing {
    fn drop(&mut self) {
        if let Err(error) = self.0.ask("release") {
            complain(&format!("the mount may show what was before: {error}"));
        }
    }
}

fn ask(dir: &Path, threads: usize, what: &str) -> Result<Option<Client>, Failure> {
    // No mount owns a store that hosts share.
    if shared::url(dir).is_some() {
        return Ok(None);
    }
    // Else the mount's socket in it is asked for, and what is told is about a mount that nobody thought of.
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
                // It ended just now.
                Err(error) if error.kind() == ErrorKind::Io && Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
        } else if !live::staging_dir(dir).exists() {
            return Ok(None);
        } else {
            match recover(dir, threads) {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {}
                // What cannot be written cannot be recovered either: it is read as it is.
                Err(error) if error.kind() == ErrorKind::Denied => {
                    complain(
                        "a mount has ended without unmounting; what it had staged is not seen, because the store cannot be written to",
                    );
                    return Ok(None);
                }
                // Whoever reads need not wait until it can be stored, for which there may be no room; the collector makes some.
                Err(error) if error.kind() != ErrorKind::Busy && what == "stored" => {
                    complain(&format!(
                        "a mount has ended without unmounting; what it had staged is kept in {} and is not seen, because it cannot be stored: {error}",
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
        complain(&format!("a mount has ended without unmounting: {}", told(volume.recovered())));
    }
    volume.close()
}

/// What was found of an earlier mount.
pub fn told(recovered: &Recovered) -> String {
    let operations = counted(recovered.records, "operation", "operations");
    let torn = match &recovered.torn {
        None => String::new(),
        Some(torn) => {
            format!("; {} bytes at the end of its log were not whole, and never promised", torn.bytes)
        }
    };
    format!("{operations} that it had acknowledged were taken over from its log{torn}")
}
