//! In the mount: finds the files that rules want, and makes the jobs that tail them.
//!
//! Rules are read from their records once a second, and when a client that has changed one says so.
//! When a file is made, its path is matched, and its job is made before the call that makes the
//! file is answered.

mod group;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use outrigger_fuse::live::{Input, StillWaits, TailRules, Wanted};
use outrigger_store::meta::jobs::{JobId, JobInput, JobState, Jobs, NewJob, NewSplit, OPEN_END};
use outrigger_store::meta::{Inode, SessionId};
use outrigger_store::ops::View;
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::content::made_file;
use crate::inputs::{Found, StoreGlob};
use crate::job::spec::Spec;
use crate::job::{AHEAD, Attach, Written};
use crate::pattern::Pattern;
use crate::plan::check_targets;
use crate::rules::{self, Rule, Trigger};
use group::Group;

/// Has files of a mount tailed as the store's rules say; see the module.
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

/// A rule with its parsed glob.
struct Ready {
    name: String,
    rule: Rule,
    glob: StoreGlob,
}

/// A file that a client waits for.
struct Awaited {
    ready: Arc<Ready>,
    /// Taken when the file is made.
    tell: Mutex<Option<Sender<JobId>>>,
    waits: StillWaits,
    /// Set if it is more than one file.
    group: Option<Group>,
}

impl Awaited {
    fn is_over(&self, jobs: Option<&dyn Jobs>) -> bool {
        match &self.group {
            // Once the job exists, it goes on without its client.
            Some(group) if group.job().is_some() => jobs.is_some_and(|jobs| group.is_over(jobs)),
            Some(_) => !(self.waits)(),
            None => !(self.waits)() || self.tell.lock().expect("no panic while held").is_none(),
        }
    }

    fn wants(&self, path: &StorePath) -> bool {
        match &self.group {
            Some(group) => group.awaits(path),
            None => self.ready.glob.matches(path),
        }
    }
}

impl Maker {
    /// For a mount of this store.
    pub fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), known: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Reads the rules again, and records if there are any.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().expect("no panic while held");
        change(&mut known);
        let jobs = Some(self.store.jobs());
        known.awaited.retain(|awaited| !awaited.is_over(jobs));
        self.any.store(!known.rules.is_empty() || !known.awaited.is_empty(), Ordering::Relaxed);
    }
}

impl Maker {
    fn awaited(&self) -> Vec<Arc<Awaited>> {
        self.known.lock().expect("no panic while held").awaited.clone()
    }
}

fn ready(name: &str, rule: Rule) -> Result<Arc<Ready>> {
    let glob = StoreGlob::parse(&rule.glob)?;
    Ok(Arc::new(Ready { name: name.to_string(), rule, glob }))
}

impl TailRules for Maker {
    fn refresh(&self) -> Result<()> {
        // Agents report a rule of another version that they cannot read.
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
        let awaited =
            known.awaited.iter().filter(|awaited| !awaited.is_over(None) && awaited.wants(&path)).map(
                |awaited| Want { ready: Arc::clone(&awaited.ready), awaited: Some(Arc::clone(awaited)) },
            );
        let mut wants: Vec<Want> =
            by_rules.map(|ready| Want { ready: Arc::clone(ready), awaited: None }).chain(awaited).collect();
        // If one rule hides the file, the other rules do not get it.
        if let Some(only) = wants.iter().position(Want::is_unpublished) {
            wants = vec![wants.swap_remove(only)];
        }
        if wants.is_empty() {
            return None;
        }
        Some(Box::new(Making { store: Arc::clone(&self.store), path, wants, made: None }))
    }

    fn expect(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        let rule: Rule = serde_json::from_str(rule).map_err(|error| {
            Error::new(ErrorKind::Newer, "the mount is of another version than this program").caused_by(error)
        })?;
        let (tell, job) = channel();
        let group = Group::of(&rule)?;
        let ready = ready("", rule)?;
        let awaited = Awaited { ready, tell: Mutex::new(Some(tell)), waits, group };
        self.change(|known| known.awaited.push(Arc::new(awaited)));
        Ok(job)
    }

    fn close(&self, jobs: &dyn Jobs, job: JobId, inode: u64, content: (&Root, bool)) -> Result<()> {
        for awaited in self.awaited() {
            if let Some(group) = &awaited.group
                && group.close(jobs, job, inode, content)?
            {
                return Ok(());
            }
        }
        jobs.close_input(job, content.0, content.1).map(drop)
    }

    fn input(&self, job: JobId, number: u32) -> Input {
        let all = self.awaited();
        let group =
            all.iter().filter_map(|awaited| awaited.group.as_ref()).find(|group| group.job() == Some(job));
        group.map_or(Input::Unknown, |group| group.input(number))
    }
}

/// A rule, or a waiting client, that wants a file.
struct Want {
    ready: Arc<Ready>,
    awaited: Option<Arc<Awaited>>,
}

impl Want {
    fn is_unpublished(&self) -> bool {
        self.ready.rule.spec.pattern == Pattern::WriteToFile
    }
}

/// A file that is about to be made, and the rules that want it.
struct Making {
    store: Arc<Store>,
    path: StorePath,
    wants: Vec<Want>,
    /// The file's attributes, and those of the directories above.
    made: Option<(Attributes, Vec<Attributes>)>,
}

impl Making {
    /// The reason why this rule's owner may not get the file.
    fn refuses(&self, want: &Want) -> Option<Error> {
        let owner = want.ready.rule.spec.submitter.as_ref()?;
        let (file, above) = self.made.as_ref()?;
        owner.require_readable_now(&self.path, file, above).err()
    }
}

impl Wanted for Making {
    fn is_unpublished(&self) -> bool {
        self.wants.iter().any(Want::is_unpublished)
    }

    fn ahead(&self) -> Option<u64> {
        self.wants.iter().any(|want| want.ready.rule.spec.attach == Attach::Path).then_some(AHEAD)
    }

    fn made(&mut self, file: &Attributes, above: &[Attributes]) {
        self.made = Some((file.clone(), above.to_vec()));
    }

    fn begin(mut self: Box<Self>, inode: u64, mount: SessionId, again: bool) -> Result<Vec<JobId>> {
        let wants = std::mem::take(&mut self.wants);
        let refused: Vec<Option<Error>> = wants.iter().map(|want| self.refuses(want)).collect();
        let Self { store, path, .. } = *self;
        let mut made = Vec::new();
        for (want, refused) in wants.into_iter().zip(refused) {
            if let Some(error) = refused {
                // The rule gets no such file, hidden or not: otherwise a rule's owner could keep
                // others from making files. A waiting client waits for another file.
                if want.awaited.is_none() {
                    rules::refuse_file(&store, &want.ready.rule, inode, &format!("not followed: {error}"))?;
                }
                continue;
            }
            if let Some(awaited) = &want.awaited
                && let Some(group) = &awaited.group
            {
                made.extend(begin_group(&store, &want.ready.rule, &path, (inode, mount), (awaited, group))?);
                continue;
            }
            let mut tell = None;
            if let Some(awaited) = &want.awaited {
                tell = awaited.tell.lock().expect("no panic while held").take();
                // Another file came first, or the client waits no more.
                if tell.is_none() || !(awaited.waits)() {
                    continue;
                }
            }
            let (name, rule) = (&want.ready.name, &want.ready.rule);
            match make(&store, rule, &path, Written { inode, mount: mount.0, overwrites: again }) {
                Ok(job) => {
                    made.push(job);
                    // The client may just have gone: then agents run the job.
                    if let Some(tell) = tell {
                        let _ = tell.send(job);
                    }
                }
                Err(error)
                    if !want.is_unpublished()
                        && matches!(
                            error.kind(),
                            ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied
                        ) =>
                {
                    rules::refuse_file(&store, rule, inode, &format!("{path}: {error}"))?;
                }
                Err(error) => {
                    let jobs = store.jobs();
                    for job in made {
                        jobs.end_job(job, JobState::Cancelled, "its file could not be made")?;
                    }
                    // An unpublished file must not be made like any other file, whatever the error is.
                    let kind = if want.is_unpublished() { ErrorKind::Io } else { error.kind() };
                    let why = format!("`{path}`, which rule `{name}` is for, cannot be made: {error}");
                    return Err(Error::new(kind, why));
                }
            }
        }
        if again && let Err(error) = end_earlier(&store, inode, &made) {
            let jobs = store.jobs();
            for job in made {
                jobs.end_job(job, JobState::Cancelled, "its file could not be overwritten")?;
            }
            return Err(error);
        }
        Ok(made)
    }
}

/// Adds a file to the group that a client waits for, and returns the group's job once it is made.
fn begin_group(
    store: &Arc<Store>,
    rule: &Rule,
    path: &StorePath,
    file: (u64, SessionId),
    (awaited, group): (&Awaited, &Group),
) -> Result<Option<JobId>> {
    let begun = match group.begin(store, rule, path, file) {
        // The client learns that there is no job; the file is one like any other.
        Err(error)
            if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied) =>
        {
            drop(awaited.tell.lock().expect("no panic while held").take());
            None
        }
        begun => begun?,
    };
    if let Some((job, is_new)) = begun {
        let tell = awaited.tell.lock().expect("no panic while held").take();
        // The client may just have gone: then agents run the job.
        if is_new && let Some(tell) = tell {
            let _ = tell.send(job);
        }
    }
    Ok(begun.map(|(job, _)| job))
}

/// Ends jobs whose output would replace the file that is about to be written: their input is gone,
/// and the output would appear in the middle of the new content. A job that is publishing makes the
/// mount stop changes, or is one transaction of the database, so the overwrite comes after it. A
/// younger job belongs to another mount, where the file was overwritten later.
fn end_earlier(store: &Store, inode: u64, new: &[JobId]) -> Result<()> {
    let jobs = store.jobs();
    for row in jobs.open_jobs()?.into_iter().filter(|row| new.iter().all(|new| row.id < *new)) {
        let spec = Spec::decode(&row.spec).ok();
        let replaces = |spec: &Spec| {
            spec.pattern == Pattern::WriteToFile && spec.written.is_some_and(|written| written.inode == inode)
        };
        if spec.as_ref().is_some_and(replaces) {
            jobs.end_job(row.id, JobState::Cancelled, "its file was overwritten before it was done")?;
        }
    }
    Ok(())
}

/// A job's inputs other than the files that it tails.
#[derive(Default)]
struct Besides {
    pub with: Vec<JobInput>,
    pub components: Vec<JobInput>,
}

/// The other inputs of a rule's job, which stay as long as the view lives; and the rule as it is
/// run.
fn besides(store: &Arc<Store>, rule: &Rule) -> Result<(Rule, Besides, Option<View>)> {
    let kept = rule.spec.programs().flat_map(<[String]>::first).any(|program| program.starts_with('@'));
    if !kept && rule.with.is_empty() {
        return Ok((rule.clone(), Besides::default(), None));
    }
    let view = View::open(store, "rules", None)?;
    let (rule, components) = rules::with_components(store, rule, &view)?;
    let mut besides = Besides { with: Vec::new(), components };
    for glob in &rule.with {
        let found = StoreGlob::parse(glob)?.files(&*store.meta, view.at)?.into_iter();
        besides
            .with
            .extend(found.map(|found| JobInput { path: found.path.to_bytes(), root: found.inode.root }));
    }
    Ok((rule, besides, Some(view)))
}

/// Makes the job of one file.
fn make(store: &Arc<Store>, rule: &Rule, path: &StorePath, written: Written) -> Result<JobId> {
    let (rule, besides, view) = besides(store, rule)?;
    let inode =
        Inode { number: written.inode, attributes: made_file(), root: Root::Empty, links: 1, stamp: 0 };
    let found = Found { path: path.clone(), inode };
    let split = NewSplit { input: Some(0), from: 0, to: OPEN_END };
    check_targets(&*store.meta, &rule.spec, std::slice::from_ref(&found), &[split])?;
    let mut inputs = vec![JobInput { path: path.to_bytes(), root: Root::Empty }];
    let mut spec = rule.spec;
    spec.with = u32::try_from(besides.with.len()).unwrap_or(u32::MAX);
    spec.written = Some(written);
    inputs.extend(besides.with.into_iter().chain(besides.components));
    let job =
        store.jobs().create_job(&NewJob { spec: spec.encode()?, inputs, splits: vec![split], seen: None })?;
    view.map_or(Ok(()), |view| view.check())?;
    Ok(job)
}
