//! In the mount: which files are wanted by rules, and the jobs that read them.
//!
//! Rules are read from their notes once a second, and when somebody who has changed one says so. A file is asked for by its path when it is made; its job is made before its maker
//! is answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use outrigger_format::Root;
use outrigger_fuse::live::{Expected, Follows, Wanted};
use outrigger_store::meta::jobs::{JobId, JobInput, JobState, NewJob, NewSplit, OPEN_END};
use outrigger_store::meta::{At, Inode, SessionId};
use outrigger_store::ops::View;
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::{AHEAD, Attach, Written};
use crate::inputs::{Found, StoreGlob};
use crate::pattern::Pattern;
use crate::plan::check_targets;
use crate::rules::{self, Rule, Trigger};

/// Has files of a mount followed as the store's rules say; see the module.
pub struct Maker {
    store: Arc<Store>,
    known: Mutex<Known>,
    any: AtomicBool,
}

#[derive(Default)]
struct Known {
    rules: Vec<Arc<Ready>>,
    awaited: Vec<Arc<Awaited>>,
}

/// A rule, and what its glob says.
struct Ready {
    name: String,
    rule: Rule,
    glob: StoreGlob,
}

/// A file that somebody waits for.
struct Awaited {
    ready: Arc<Ready>,
    /// Until it is made.
    tell: Mutex<Option<Sender<JobId>>>,
    waiter: Weak<()>,
}

impl Awaited {
    fn is_over(&self) -> bool {
        self.waiter.strong_count() == 0 || self.tell.lock().expect("no panic while held").is_none()
    }
}

impl Maker {
    /// For a mount of this store.
    pub fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), known: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Puts what is known right, and notes whether there is anything.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().expect("no panic while held");
        change(&mut known);
        known.awaited.retain(|awaited| !awaited.is_over());
        self.any.store(!known.rules.is_empty() || !known.awaited.is_empty(), Ordering::Relaxed);
    }
}

fn ready(name: &str, rule: Rule) -> Result<Arc<Ready>> {
    let glob = StoreGlob::parse(&rule.glob)?;
    Ok(Arc::new(Ready { name: name.to_string(), rule, glob }))
}

impl Follows for Maker {
    fn refresh(&self) -> Result<()> {
        // One of another version of this program is in trouble with agents, who say so.
        let all = rules::list_known(&self.store)?.into_iter();
        let wanted = all.filter(|(_, rule)| rule.on == Trigger::Write && !rule.paused);
        let rules = wanted.filter_map(|(name, rule)| ready(&name, rule).ok()).collect();
        self.change(|known| known.rules = rules);
        Ok(())
    }

    fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>> {
        let path = StorePath { components: path.to_vec() };
        let known = self.known.lock().expect("no panic while held");
        let by_rules = known.rules.iter().filter(|ready| ready.glob.matches(&path));
        let awaited = known
            .awaited
            .iter()
            .filter(|awaited| !awaited.is_over() && awaited.ready.glob.matches(&path))
            .map(|awaited| Want { ready: Arc::clone(&awaited.ready), awaited: Some(Arc::clone(awaited)) });
        let mut wants: Vec<Want> =
            by_rules.map(|ready| Want { ready: Arc::clone(ready), awaited: None }).chain(awaited).collect();
        // What nobody is to see the others are not given either.
        if let Some(hides) = wants.iter().position(Want::hides) {
            wants = vec![wants.swap_remove(hides)];
        }
        if wants.is_empty() {
            return None;
        }
        Some(Box::new(Making { store: Arc::clone(&self.store), path, wants }))
    }

    fn expect(&self, rule: &str) -> Result<Expected> {
        let rule: Rule = serde_json::from_str(rule).map_err(|error| {
            Error::new(ErrorKind::Newer, "the mount is of another version than this program").caused_by(error)
        })?;
        let (tell, job) = channel();
        let waiter = Arc::new(());
        let ready = ready("", rule)?;
        let awaited = Awaited { ready, tell: Mutex::new(Some(tell)), waiter: Arc::downgrade(&waiter) };
        self.change(|known| known.awaited.push(Arc::new(awaited)));
        Ok(Expected { job, waiter })
    }
}

/// One who wants a file.
struct Want {
    ready: Arc<Ready>,
    awaited: Option<Arc<Awaited>>,
}

impl Want {
    fn hides(&self) -> bool {
        self.ready.rule.spec.pattern == Pattern::WriteToFile
    }
}

/// A file that is about to be made, and who wants it.
struct Making {
    store: Arc<Store>,
    path: StorePath,
    wants: Vec<Want>,
}

impl Wanted for Making {
    fn hides(&self) -> bool {
        self.wants.iter().any(Want::hides)
    }

    fn ahead(&self) -> Option<u64> {
        self.wants.iter().any(|want| want.ready.rule.spec.attach == Attach::Path).then_some(AHEAD)
    }

    fn begin(self: Box<Self>, inode: u64, mount: SessionId) -> Result<Vec<JobId>> {
        let Self { store, path, wants } = *self;
        let mut made = Vec::new();
        for want in wants {
            let mut tell = None;
            if let Some(awaited) = &want.awaited {
                tell = awaited.tell.lock().expect("no panic while held").take();
                // Another file came first, or nobody waits any more.
                if tell.is_none() || awaited.waiter.strong_count() == 0 {
                    continue;
                }
            }
            let (name, rule) = (&want.ready.name, &want.ready.rule);
            match make(&store, rule, &path, Written { inode, mount: mount.0 }) {
                Ok(job) => {
                    made.push(job);
                    // Whoever waited may have gone just now: then agents do it.
                    if let Some(tell) = tell {
                        let _ = tell.send(job);
                    }
                }
                Err(error)
                    if !want.hides()
                        && matches!(
                            error.kind(),
                            ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied
                        ) =>
                {
                    rules::refuse_file(&store, rule, inode, &format!("{path}: {error}"))?;
                }
                Err(error) => {
                    let jobs = store.jobs()?;
                    for job in made {
                        jobs.end_job(job, JobState::Cancelled, "its file could not be made")?;
                    }
                    // What nobody is to see must not be made like any other file, whatever is wrong.
                    let kind = if want.hides() { ErrorKind::Io } else { error.kind() };
                    let why = format!("`{path}`, which rule `{name}` is for, cannot be made: {error}");
                    return Err(Error::new(kind, why));
                }
            }
        }
        Ok(made)
    }
}

/// Makes the job of one file.
fn make(store: &Arc<Store>, rule: &Rule, path: &StorePath, written: Written) -> Result<JobId> {
    let kept = rule.spec.program.first().is_some_and(|program| program.starts_with('@'));
    // What it needs beside the file stays until the job holds it.
    let view = (kept || !rule.with.is_empty()).then(|| View::open(store, "rules", None)).transpose()?;
    let (rule, component) = match &view {
        Some(view) => rules::with_component(store, rule, view)?,
        None => (rule.clone(), None),
    };
    let inode = Inode {
        number: written.inode,
        attributes: crate::runner::made_file(),
        root: Root::Empty,
        links: 1,
        stamp: 0,
    };
    let found = Found { path: path.clone(), inode };
    let split = NewSplit { input: Some(0), from: 0, to: OPEN_END };
    check_targets(&*store.meta, &rule.spec, std::slice::from_ref(&found), &[split])?;
    let mut inputs = vec![JobInput { path: path.to_bytes(), root: Root::Empty }];
    for glob in &rule.with {
        let at = view.as_ref().map_or(At::Now, |view| view.at);
        let with = StoreGlob::parse(glob)?.files(&*store.meta, at)?.into_iter();
        inputs.extend(with.map(|found| JobInput { path: found.path.to_bytes(), root: found.inode.root }));
    }
    let mut spec = rule.spec;
    spec.with = u32::try_from(inputs.len() - 1).unwrap_or(u32::MAX);
    spec.written = Some(written);
    inputs.extend(component);
    let job = store.jobs()?.create_job(&NewJob {
        spec: spec.encode()?,
        inputs,
        splits: vec![split],
        seen: None,
    })?;
    view.map_or(Ok(()), |view| view.check())?;
    Ok(job)
}
