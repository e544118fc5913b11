//! One file per command: its arguments, and what it does with them.

pub mod advise;
mod advise_text;
pub mod before;
pub mod bench;
pub mod calibrate;
pub mod cat;
pub mod check;
pub mod component;
pub mod copy;
pub mod devices;
pub mod diff;
pub mod edit;
pub mod export;
mod filter;
pub mod find;
pub mod gc;
pub mod get;
pub mod import;
pub mod init;
pub mod job;
pub mod keep;
pub mod key;
pub mod live;
mod live_text;
pub mod localize;
pub mod ls;
pub mod mount;
mod nearby;
pub mod node;
pub mod offload;
pub mod policy;
pub mod profile;
pub mod put;
mod rates;
pub mod rebalance;
pub mod recompress;
pub mod recover;
pub mod rule;
pub mod run;
pub mod similarity;
pub mod snapshot;
pub mod stats;
pub mod status;
mod status_text;
mod trust;
pub mod unmount;
pub mod versions;
pub mod whereabouts;

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_format::PackId;
use outrigger_fuse::beside::{Neighbour, Standing};
use outrigger_store::Store;
use outrigger_store::keys::secrets;
use outrigger_store::meta::Role;
use outrigger_store::ops::View;
use outrigger_store::text::show;
use outrigger_store::write::{Progress, Skipped, Step};

use crate::args::{self, Globals};
use crate::exit::{Exit, Failure, without_numbers};
use crate::json::Object;
use crate::operation::LogFlags;
use crate::output::complain;
use crate::{interrupt, when};

/// The global options, which every command gets.
pub struct Context {
    store: Option<PathBuf>,
    is_store_given: bool,
    /// Print JSON.
    pub json: bool,
    /// Worker threads.
    pub threads: usize,
    /// Say nothing but errors.
    pub quiet: bool,
    /// Print a line for each file.
    pub verbose: bool,
    /// The options of the log.
    pub log: LogFlags,
    /// The mount that waits while this command changes its store.
    held: RefCell<Option<Standing>>,
}

impl Context {
    /// From the global options.
    pub fn new(globals: Globals) -> Self {
        let Globals { store, is_store_given, key_file, json, threads, quiet, verbose, log } = globals;
        if let Some(path) = key_file.filter(|path| !path.as_os_str().is_empty()) {
            // Absolute, as a mount leaves its directory.
            secrets::name_key_file(std::path::absolute(&path).unwrap_or(path));
        }
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
        Self { store, is_store_given, json, threads, quiet, verbose, log, held: RefCell::default() }
    }

    /// How a command deals with a mount of its store.
    pub fn neighbour(&self) -> Neighbour {
        Neighbour { threads: self.threads, tell: complain }
    }

    /// Ends the command's hold on a mount that waited for it.
    pub fn let_go(&self) {
        drop(self.held.take());
    }

    /// The store's directory or URL.
    ///
    /// # Errors
    /// A usage failure when none was named.
    pub fn store_dir(&self) -> Result<&Path, Failure> {
        let none = "no store was named; give one with --store DIR, or set OUTRIGGER_STORE";
        let dir = self.store_named().ok_or_else(|| Failure::usage(none))?;
        args::check_store(dir)?;
        Ok(dir)
    }

    /// The store that was named, if one was.
    pub fn store_named(&self) -> Option<&Path> {
        self.store.as_deref().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// The store that the command line named, and not the environment.
    pub fn store_given(&self) -> Option<&Path> {
        self.store_named().filter(|_| self.is_store_given)
    }

    /// The global options as arguments for another process, without the store.
    pub fn flags(&self) -> Vec<OsString> {
        let mut words = vec![OsString::from(format!("--threads={}", self.threads))];
        for (given, flag) in [(self.json, "--json"), (self.quiet, "--quiet"), (self.verbose, "--verbose")] {
            words.extend(given.then(|| OsString::from(flag)));
        }
        if let Some(path) = secrets::named_key_file() {
            words.extend([OsString::from("--key-file"), path.into()]);
        }
        if let Some(log) = &self.log.log {
            words.extend([OsString::from("--log"), log.into()]);
            words.push(format!("--log-level={}", self.log.log_level.word()).into());
        }
        words
    }

    /// Opens the store for reading, after a mount has stored what it has staged. The command
    /// registers as a reader if the store can be written.
    pub fn open(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        self.neighbour().stored(dir)?;
        Ok(Store::open(dir, false)?)
    }

    /// Opens the store for upkeep that changes no names. A mount goes on meanwhile.
    pub fn open_for_upkeep(&self) -> Result<Store, Failure> {
        let store = self.open()?;
        store.require_writable()?;
        store.require_all_rights()?;
        Ok(store)
    }

    /// Opens the store for changes by writers. A mount first stores what it has staged, and waits
    /// during each commit.
    pub fn open_for_commits(&self) -> Result<Store, Failure> {
        let store = self.open_to_store()?;
        store.require_all_rights()?;
        Ok(store)
    }

    /// As [`Self::open_for_commits`], also with a key that only stores.
    pub fn open_to_store(&self) -> Result<Store, Failure> {
        let store = self.open()?;
        store.require_writable()?;
        if !store.is_shared() {
            store.set_beside(self.neighbour().each_commit(store.home()));
        }
        Ok(store)
    }

    /// Opens the store for changes. A mount of it waits until the command is through.
    pub fn open_for_changes(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        self.held.replace(self.neighbour().hold(dir)?);
        let store = Store::open(dir, false)?;
        store.require_writable()?;
        store.require_all_rights()?;
        Ok(store)
    }

    /// Opens the store for a snapshot. A mount stores what it has staged, and then stores nothing
    /// until the command is through.
    pub fn open_for_snapshot(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        self.held.replace(self.neighbour().pause(dir)?);
        let store = Store::open(dir, false)?;
        store.require_writable()?;
        Ok(store)
    }

    /// Pins the snapshot that `--at` names, or the present tree.
    pub fn view(&self, store: &Store, role: impl Into<Role>, at: Option<&str>) -> Result<View, Failure> {
        let snapshot = at.map(|at| when::resolve(store, at)).transpose()?;
        Ok(View::open(store, role, snapshot.as_ref().map(|snapshot| snapshot.name.as_str()))?)
    }

    /// Upkeep after changes. The changes are committed without it, so its failures do not fail the
    /// command.
    pub fn settle(&self, store: &Store) {
        let _ = store.index.flush_if_full();
        let _ = store.meta.tidy();
    }

    /// True when no progress bar is to be drawn.
    pub fn has_no_bar(&self) -> bool {
        self.quiet || self.verbose
    }

    /// A set of counters, with a bar on a terminal and with `advice` for Ctrl-C.
    pub fn progress(&self, store: &Store, advice: &'static str) -> Arc<Progress> {
        self.progress_beside(store, advice, self.json)
    }

    /// As [`Self::progress`], for a command that may write data to standard output.
    pub fn progress_beside(&self, store: &Store, advice: &'static str, to_stderr: bool) -> Arc<Progress> {
        let progress: Arc<Progress> = Arc::default();
        if self.verbose {
            progress.on_entry(move |step, path| say_entry(to_stderr, step, path));
        }
        let stopped = Arc::clone(&progress);
        interrupt::arm_with(store, advice, move || stopped.cancel(Duration::from_secs(1)));
        progress
    }
}

/// Prints one entry's outcome, with the same letters as `diff`.
pub fn say_entry(to_stderr: bool, step: Step, path: &[u8]) {
    let letter = match step {
        Step::Added => 'A',
        Step::Changed => 'C',
        Step::Removed => 'R',
    };
    let line = format!("{letter} {}\n", show(path));
    // A failure to print cannot be reported.
    let _ = match to_stderr {
        true => std::io::stderr().write_all(line.as_bytes()),
        false => std::io::stdout().write_all(line.as_bytes()),
    };
}

/// Results of the verification of other clients' packs; `None` where there is none.
pub fn verified_json(store: &Store) -> Option<serde_json::Value> {
    let counts = store.verified()?.counts();
    let corrupt: Vec<String> = counts.corrupt.iter().map(|pack| PackId(*pack).to_string()).collect();
    Some(serde_json::json!({ "frames": counts.frames, "bytes": counts.bytes, "packs_corrupt": corrupt }))
}

/// Names the packs that do not have what their footers say.
pub fn complain_of_packs(store: &Store) {
    let Some(verified) = store.verified() else { return };
    for pack in verified.counts().corrupt {
        complain(&format!(
            "pack {} from another client lacks chunks that its footer lists, so it is not used; `outrigger check --read-data` lists the files that need it",
            PackId(pack)
        ));
    }
}

/// Names each skipped input on standard error, and returns the exit code.
pub fn report_skipped(progress: &Progress) -> Exit {
    let skipped = skipped(progress);
    for skipped in &skipped {
        complain(&format!("skipped {}: {}", skipped.what, skipped.why));
    }
    if progress.damaged.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        complain(
            "stored data is damaged; run `outrigger check --repair` to find and repair damage, or `outrigger get --salvage` to restore the undamaged parts of a file",
        );
        Exit::Damaged
    } else if skipped.is_empty() {
        Exit::Done
    } else {
        Exit::Partial
    }
}

/// The skipped inputs, for JSON.
pub fn skipped_json(progress: &Progress) -> Vec<serde_json::Value> {
    skipped(progress)
        .into_iter()
        .map(|one| Object::new().with("what", one.what).with("why", one.why).into())
        .collect()
}

fn skipped(progress: &Progress) -> Vec<Skipped> {
    let skipped = progress.skipped.lock().map(|skipped| skipped.clone()).unwrap_or_default();
    skipped.into_iter().map(|Skipped { what, why }| Skipped { what, why: without_numbers(&why) }).collect()
}
