//! Processes beside a mount: a process must see what the mount has staged, and the mount must
//! notice what the process changes.
//!
//! A mount that can be written to owns its store. A process that reads first asks the mount to
//! store what it has acknowledged. A process that changes the store stops the mount meanwhile. If
//! the mount was killed, its log is still there, and the next process stores what is in it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::home::Home;
use outrigger_store::session::Beside;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store, shared};

use crate::control::Client;
use crate::live::{self, LiveOptions, LiveVolume, Recovered};
use crate::report::Reports;

/// The longest wait for a mount that has its log but does not listen yet, or that has closed its
/// socket but still has its log.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a process deals with a mount.
#[derive(Clone, Copy)]
pub struct Neighbour {
    /// Worker threads, to store what a killed mount left.
    pub threads: usize,
    /// Takes sentences about what a mount left.
    pub tell: fn(&str),
}

impl Neighbour {
    /// Asks the mount to store all that it has acknowledged. Returns the connection, if there is a
    /// mount.
    ///
    /// # Errors
    /// `NotFound` and `Denied` where `dir` is no directory or cannot be read; `Busy` when a mount
    /// does not answer; those of storing what a killed mount left.
    pub fn stored(self, dir: &Path) -> Result<Option<Client>> {
        self.ask(dir, "stored")
    }

    /// As [`Self::stored`]. The mount stores nothing more until the answer is dropped.
    ///
    /// # Errors
    /// As there.
    pub fn pause(self, dir: &Path) -> Result<Option<Standing>> {
        self.stop(dir, "pause")
    }

    /// As [`Self::stored`]. The mount changes nothing until the answer is dropped.
    ///
    /// # Errors
    /// As there.
    pub fn hold(self, dir: &Path) -> Result<Option<Standing>> {
        self.stop(dir, "hold")
    }

    /// Stops the mount during each commit of a store's sessions. So it waits for no longer than a
    /// commit takes, even if the process runs long or is stopped.
    pub fn each_commit(self, home: &Arc<Home>) -> Arc<Beside> {
        let home = Arc::clone(home);
        Arc::new(move |session| {
            let held = self
                .stop(home.path(), &format!("hold {}", session.0))
                .context(|| "the mount could not be paused".to_string())?;
            Ok(held.map(|standing| Box::new(standing) as Box<dyn Send>))
        })
    }

    fn stop(self, dir: &Path, what: &str) -> Result<Option<Standing>> {
        let client = self.ask(dir, what)?;
        Ok(client.map(|client| Standing { client, tell: self.tell }))
    }

    fn ask(self, dir: &Path, what: &str) -> Result<Option<Client>> {
        // No mount owns a store that hosts share.
        if shared::url(dir).is_some() {
            return Ok(None);
        }
        require_directory(dir)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(mut client) = Client::connect(dir)? {
                match client.ask(what) {
                    Ok(_) => return Ok(Some(client)),
                    // The mount has ended just now.
                    Err(error) if error.kind() == ErrorKind::Io && Instant::now() < deadline => {}
                    Err(error) => return Err(error),
                }
            } else if !live::staging_dir(dir).exists() {
                return Ok(None);
            } else {
                match self.recover(dir) {
                    Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {}
                    // A store that cannot be written cannot be recovered either. The process reads
                    // it as it is.
                    Err(error) if error.kind() == ErrorKind::Denied => {
                        (self.tell)(
                            "a mount was not unmounted cleanly; its staged data is not visible, because the store is not writable",
                        );
                        return Ok(None);
                    }
                    // There may be no room to store it, and the collector makes some. So a reader
                    // does not wait.
                    Err(error) if error.kind() != ErrorKind::Busy && what == "stored" => {
                        (self.tell)(&format!(
                            "a mount was not unmounted cleanly; its staged data in {} is not visible, because it could not be stored: {error}",
                            live::staging_dir(dir).display()
                        ));
                        return Ok(None);
                    }
                    recovered => return recovered.map(|()| None),
                }
            }
            outrigger_clock::sleep(Duration::from_millis(100));
        }
    }

    /// Stores what a mount that was killed had acknowledged.
    fn recover(self, dir: &Path) -> Result<()> {
        let store = Arc::new(Store::open(dir, false)?);
        store.require_writable()?;
        let options = LiveOptions { snapshots: false, ..LiveOptions::new(self.threads) };
        let reports = Reports::new(move |report| (self.tell)(&report.message));
        let volume = LiveVolume::open(store, options, reports)?;
        if volume.recovered().records > 0 {
            (self.tell)(&format!("a mount was not unmounted cleanly: {}", describe(volume.recovered())));
        }
        volume.close()
    }
}

/// A mount that waits until this is dropped. Then it drops its caches and shows what the process
/// changed.
pub struct Standing {
    client: Client,
    tell: fn(&str),
}

impl Drop for Standing {
    fn drop(&mut self) {
        if let Err(error) = self.client.ask("release") {
            (self.tell)(&format!("the mount may show old content: {error}"));
        }
    }
}

/// Without this check the socket below the path would be asked for, and the error would speak of a
/// mount.
fn require_directory(dir: &Path) -> Result<()> {
    match std::fs::File::open(dir).and_then(|dir| dir.metadata()) {
        Ok(found) if !found.is_dir() => {
            let dir = dir.display();
            let why = format!("{dir} is no store: it is not a directory; `outrigger init` makes one");
            Err(Error::new(ErrorKind::NotFound, why))
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(error).context(|| format!("cannot open the store {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Says what was recovered from an earlier mount's log.
pub fn describe(recovered: &Recovered) -> String {
    let operations = match recovered.records {
        1 => "1 operation".to_string(),
        records => format!("{records} operations"),
    };
    let torn = match &recovered.torn {
        None => String::new(),
        Some(torn) => {
            format!("; {} incomplete, unacknowledged bytes at the end of its log were dropped", torn.bytes)
        }
    };
    format!("{operations} that it had acknowledged were recovered from its log{torn}")
}
