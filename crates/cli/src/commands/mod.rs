//! One file per command: its arguments, and what it does with them.

pub mod advise;
mod advise_text;
pub mod before;
pub mod bench;
pub mod beside;
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
mod job_hosts;
pub mod keep;
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
pub mod rebalance;
pub mod recompress;
pub mod recover;
pub mod rule;
pub mod run;
mod run_begin;
mod run_end;
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
use outrigger_store::Store;
use outrigger_store::meta::Role;
use outrigger_store::ops::View;
use outrigger_store::text::show;
use outrigger_store::write::{Progress, Skipped, Step};

use self::beside::Standing;
use crate::args::{self, Globals};
use crate::exit::{Exit, Failure, without_numbers};
use crate::json::Object;
use crate::operation::LogFlags;
use crate::output::complain;
use crate::{interrupt, when};

/// What every command is given.
pub struct Context {
    store: Option<PathBuf>,
    /// Print JSON.
    pub json: bool,
    /// Worker threads.
    pub threads: usize,
    /// Say nothing but errors.
    pub quiet: bool,
    /// Say a line for each file.
    pub verbose: bool,
    /// The log that is asked for.
    pub log: LogFlags,
    /// The mount that stands still while this command changes its store.
    held: RefCell<Option<Standing>>,
}

impl Context {
    /// By the options of every command.
    pub fn new(globals: Globals) -> Self {
        let Globals { store, json, threads, quiet, verbose, log } = globals;
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
        Self { store, json, threads, quiet, verbose, log, held: RefCell::default() }
    }

    /// The command is through: a mount that stood still for it goes on.
    pub fn let_go(&self) {
        drop(self.held.take());
    }

    /// The store's directory.
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

    /// The options of every command, for another process; but for the store.
    pub fn flags(&self) -> Vec<OsString> {
        let mut words = vec![OsString::from(format!("--threads={}", self.threads))];
        for (given, flag) in [(self.json, "--json"), (self.quiet, "--quiet"), (self.verbose, "--verbose")] {
            words.extend(given.then(|| OsString::from(flag)));
        }
        if let Some(log) = &self.log.log {
            words.extend([OsString::from("--log"), log.into()]);
            words.push(format!("--log-level={}", self.log.log_level.word()).into());
        }
        words
    }

    /// Opens the store for reading; it is still registered as a reader where the store can be written. What a mount has staged is stored first.
    pub fn open(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        beside::stored(dir, self.threads)?;
        Ok(Store::open(dir, false)?)
    }

    /// Opens the store for upkeep that changes no names: a mount goes on meanwhile.
    pub fn open_for_upkeep(&self) -> Result<Store, Failure> {
        let store = self.open()?;
        store.require_writable()?;
        Ok(store)
    }

    /// Opens the store for changes by writers. What a mount has staged is stored first, and it stands still for each commit.
    pub fn open_for_commits(&self) -> Result<Store, Failure> {
        let store = self.open_for_upkeep()?;
        if !store.is_shared() {
            store.set_beside(beside::each_commit(store.home(), self.threads));
        }
        Ok(store)
    }

    /// Opens the store for changes. A mount of it stands still until the command is through.
    pub fn open_for_changes(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        self.held.replace(beside::hold(dir, self.threads)?);
        let store = Store::open(dir, false)?;
        store.require_writable()?;
        Ok(store)
    }

    /// Opens the store for a snapshot. A mount of it stores what it has, and then nothing more until the command is through.
    pub fn open_for_snapshot(&self) -> Result<Store, Failure> {
        let dir = self.store_dir()?;
        self.held.replace(beside::pause(dir, self.threads)?);
        let store = Store::open(dir, false)?;
        store.require_writable()?;
        Ok(store)
    }

    /// Pins what `--at` names, or the tree as it is now.
    pub fn view(&self, store: &Store, role: impl Into<Role>, at: Option<&str>) -> Result<View, Failure> {
        let snapshot = at.map(|at| when::resolve(store, at)).transpose()?;
        Ok(View::open(store, role, snapshot.as_ref().map(|snapshot| snapshot.name.as_str()))?)
    }

    /// Upkeep after changes: none of it is needed for what was done to stay done, so failures are not the command's.
    pub fn settle(&self, store: &Store) {
        let _ = store.index.flush_if_full();
        let _ = store.meta.tidy();
    }

    /// True when no bar is to be drawn.
    pub fn has_no_bar(&self) -> bool {
        self.quiet || self.verbose
    }

    /// A counter set, its bar on a terminal, and what to say on Ctrl-C.
    pub fn progress(&self, store: &Store, advice: &'static str) -> Arc<Progress> {
        self.progress_beside(store, advice, self.json)
    }

    /// The same, of a command that may have data on standard output.
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

/// Says what became of an entry: a line with a letter as `diff` has it.
pub fn say_entry(to_stderr: bool, step: Step, path: &[u8]) {
    let letter = match step {
        Step::Added => 'A',
        Step::Changed => 'C',
        Step::Removed => 'R',
    };
    let line = format!("{letter} {}\n", show(path));
    // Nobody is left to be told when this fails.
    let _ = match to_stderr {
        true => std::io::stderr().write_all(line.as_bytes()),
        false => std::io::stdout().write_all(line.as_bytes()),
    };
}

/// What was compared of other clients' packs; `None` where that is not done.
pub fn verified_json(store: &Store) -> Option<serde_json::Value> {
    let counts = store.verified()?.counts();
    let lying: Vec<String> = counts.lying.iter().map(|pack| PackId(*pack).to_string()).collect();
    Some(serde_json::json!({ "frames": counts.frames, "bytes": counts.bytes, "packs_lying": lying }))
}

/// Says of which packs it was found out that they do not have what their footers say.
pub fn complain_of_packs(store: &Store) {
    let Some(verified) = store.verified() else { return };
    for pack in verified.counts().lying {
        complain(&format!(
            "pack {} of another client does not have all chunks that its footer names, and is not relied on; `outrigger check --read-data` says which files need it",
            PackId(pack)
        ));
    }
}

/// Names each skipped input on standard error and says how the command ends.
pub fn report_skipped(progress: &Progress) -> Exit {
    let skipped = skipped(progress);
    for skipped in &skipped {
        complain(&format!("skipped {}: {}", skipped.what, skipped.why));
    }
    if progress.damaged.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        complain(
            "stored data is damaged; `outrigger check --repair` finds all damage and mends what can be mended, and `get --salvage` restores what is left of a file",
        );
        Exit::Damaged
    } else if skipped.is_empty() {
        Exit::Done
    } else {
        Exit::Partial
    }
}

/// What was skipped, for JSON.
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
