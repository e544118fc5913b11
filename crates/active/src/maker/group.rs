//! Several files that one job tails (`#W->1W`): which of them were made, and which are closed.
//!
//! The job is made with the first of them. From then on it is a job like any other, and the mount
//! awaits the other files as long as the job is open. All of them are written in one mount, whose
//! memory this is: if the mount ends, the job's runner takes the content that is left
//! ([`crate::written`]).

use std::sync::{Arc, Mutex};

use outrigger_format::Root;
use outrigger_fuse::live::Input;
use outrigger_store::meta::jobs::{JobId, JobInput, JobState, Jobs, NewJob, NewSplit, OPEN_END};
use outrigger_store::meta::{Inode, SessionId};
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::content::made_file;
use crate::inputs::Found;
use crate::job::Written;
use crate::plan::check_targets;
use crate::rules::Rule;

/// See the module.
pub(super) struct Group {
    paths: Vec<StorePath>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    job: Option<JobId>,
    inputs: Vec<One>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum One {
    Awaited,
    Open(u64),
    Closed(u64),
}

impl Group {
    /// For the names of a rule, if its job reads several files.
    pub fn of(rule: &Rule) -> Result<Option<Self>> {
        if !rule.spec.together {
            return Ok(None);
        }
        let names = std::iter::once(&rule.glob).chain(&rule.more);
        let paths = names.map(|name| StorePath::parse(name.as_bytes())).collect::<Result<Vec<_>>>()?;
        let inputs = vec![One::Awaited; paths.len()];
        Ok(Some(Self { paths, state: Mutex::new(State { job: None, inputs }) }))
    }

    /// True if this file was not made yet.
    pub fn awaits(&self, path: &StorePath) -> bool {
        let state = self.state.lock().expect("no panic while held");
        self.paths.iter().zip(&state.inputs).any(|(of, one)| of == path && *one == One::Awaited)
    }

    /// Its job, once the first file was made.
    pub fn job(&self) -> Option<JobId> {
        self.state.lock().expect("no panic while held").job
    }

    /// True if nothing is left to do here: all files are closed, or the job has ended.
    pub fn is_over(&self, jobs: &dyn Jobs) -> bool {
        let state = self.state.lock().expect("no panic while held");
        let Some(job) = state.job else { return false };
        let ended = |job| {
            // A database that cannot be reached does not tell.
            let row = jobs.job(job).ok();
            row.is_some_and(|row| {
                row.is_none_or(|row| !matches!(row.state, JobState::Waiting | JobState::Running))
            })
        };
        state.inputs.iter().all(|one| matches!(one, One::Closed(_))) || ended(job)
    }

    /// A file is made. Returns `None` if it is not awaited any more; otherwise its job, and if the
    /// job was made just now.
    pub fn begin(
        &self,
        store: &Arc<Store>,
        rule: &Rule,
        path: &StorePath,
        (inode, mount): (u64, SessionId),
    ) -> Result<Option<(JobId, bool)>> {
        let mut state = self.state.lock().expect("no panic while held");
        let found =
            self.paths.iter().zip(&state.inputs).position(|(of, one)| of == path && *one == One::Awaited);
        let Some(number) = found else { return Ok(None) };
        let (job, is_new) = match state.job {
            Some(job) => (job, false),
            None => (self.make(store, rule, mount)?, true),
        };
        state.job = Some(job);
        state.inputs[number] = One::Open(inode);
        Ok(Some((job, is_new)))
    }

    fn make(&self, store: &Arc<Store>, rule: &Rule, mount: SessionId) -> Result<JobId> {
        let empty = |path: &StorePath| {
            let attributes = made_file();
            let inode = Inode { number: 0, attributes, root: Root::Empty, links: 1, stamp: 0 };
            Found { path: path.clone(), inode }
        };
        let found: Vec<Found> = self.paths.iter().map(empty).collect();
        let split = NewSplit { input: None, from: 0, to: OPEN_END };
        check_targets(&*store.meta, &rule.spec, &found, &[split])?;
        let (rule, besides, view) = super::besides(store, rule)?;
        let own = self.paths.iter().map(|path| JobInput { path: path.to_bytes(), root: Root::Empty });
        let mut spec = rule.spec;
        spec.written = Some(Written { inode: 0, mount: mount.0, overwrites: false });
        spec.with = u32::try_from(besides.with.len()).unwrap_or(u32::MAX);
        let inputs = own.chain(besides.with).chain(besides.components).collect();
        let job = NewJob { spec: spec.encode()?, inputs, splits: vec![split], seen: None };
        let job = store.jobs().create_job(&job)?;
        view.map_or(Ok(()), |view| view.check())?;
        Ok(job)
    }

    /// One of them was closed; false if it is none of them.
    pub fn close(
        &self,
        jobs: &dyn Jobs,
        job: JobId,
        inode: u64,
        (root, invalidated): (&Root, bool),
    ) -> Result<bool> {
        let mut state = self.state.lock().expect("no panic while held");
        let found = state.inputs.iter().position(|one| *one == One::Open(inode));
        let Some(number) = found.filter(|_| state.job == Some(job)) else { return Ok(false) };
        let others = state.inputs.iter().enumerate().filter(|(other, _)| *other != number);
        let others = others.map(|(_, one)| if let One::Closed(len) = one { Some(*len) } else { None });
        let end = others.sum::<Option<u64>>().map(|others| others + root.len());
        let at = u32::try_from(number).map_err(|_| Error::new(ErrorKind::Invalid, "too many inputs"))?;
        jobs.close_one_input(job, at, root, invalidated, end)?;
        state.inputs[number] = One::Closed(root.len());
        Ok(true)
    }

    /// State of an input.
    pub fn input(&self, number: u32) -> Input {
        let state = self.state.lock().expect("no panic while held");
        match state.inputs.get(number as usize) {
            None => Input::Unknown,
            Some(One::Awaited) => Input::NotYet,
            Some(One::Open(inode)) => Input::Inode(*inode),
            Some(One::Closed(_)) => Input::Closed,
        }
    }
}
