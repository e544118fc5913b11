//! 1W patterns: a program on a file while it is being written.
//!
//! ```text
//!  writer ──▶ tee ──▶ program's standard input ▶ PROGRAM ▶ its outputs     (split 0 of the job)
//!              └────▶ write pipeline: the raw file                          (split 1, if it is kept)
//! ```
//!
//! The tee hands every block first to the pipeline, then to the program (or the programs, one after
//! the other), in the order of the file. It waits for both: a slow program slows the writer down.
//! The program reads while the writer writes, and sees the end of its input only when the writer
//! has ended well. If the writer is lost, the program is killed, because an end of input would tell
//! it that it has seen everything, and nothing becomes visible.
//!
//! It is a job like others, except that it cannot be run again: the stream is gone when the process
//! ends. If the *program* fails and the raw file is kept (1W→2W, 1W→0), the raw file is stored all
//! the same, and the job is partly done. The program's work can be repeated on the stored file.

use std::io::{ErrorKind as Io, Read};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use outrigger_store::meta::jobs::{JobChange, JobId, JobState, NewJob, NewSplit};
use outrigger_store::meta::{At, Change, Role, SessionKind};
use outrigger_store::ops::View;
use outrigger_store::policy::Policies;
use outrigger_store::tree::domain_at;
use outrigger_store::write::{CommitWhen, Content, FileItem, Item, Progress, Target, WriteOptions, Writer};
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::attempt::{Feed, Pipes};
use crate::bundled;
use crate::content::{Block, Raw, made_file};
use crate::identity::Permissions;
use crate::job::spec::{Output, RAW, Spec};
use crate::pattern::Pattern;
use crate::progress::Counters;
use crate::runner::{self, Report, RunOptions};
use crate::template::{Subject, expand};

/// Bytes handed on at once.
const BLOCK: usize = 1 << 20;
/// Adds the raw file to the outputs of a job that keeps it.
#[must_use]
pub fn keep_raw(mut spec: Spec, path: &str) -> Spec {
    spec.outputs.push(Output { name: RAW.to_string(), template: path.to_string(), program: 0 });
    spec
}

/// Runs `spec` over `stream` while it comes, and publishes outputs and raw file together. `begun`
/// gets the job's number as soon as it exists.
///
/// # Errors
/// `Invalid` if the pattern is not for files that are being written, and as [`runner::run`].
pub fn run(
    store: &Arc<Store>,
    mut spec: Spec,
    stream: Box<dyn Read + Send>,
    options: &RunOptions<'_>,
    counters: &Arc<Counters>,
    begun: &dyn Fn(JobId),
) -> Result<Report> {
    store.require_writable()?;
    store.require_all_rights()?;
    let (raw, keeps) = check_pattern(&spec)?;
    spec.check_programs()?;
    for output in &spec.outputs {
        let target = expand(&output.template, &Subject { path: None, input: 0, split: Some(0) })?;
        Permissions::new(&*store.meta, At::Now, spec.submitter.as_ref()).require_writable(&target)?;
    }
    // The stream can be read only once, and the raw file is kept even if the program fails.
    (spec.tries, spec.skip) = (1, keeps);
    let split = NewSplit { input: None, from: 0, to: 0 };
    let splits = vec![split; if raw.is_some() { 2 } else { 1 }];
    // Pinned until the job has it.
    let view = View::open(store, "run", None)?;
    let mut programs = bundled::Programs::new(store);
    let inputs = bundled::settle_all(store, &view, &mut spec, &mut programs)?;
    let job = store.jobs().create_job(&NewJob { spec: spec.encode()?, inputs, splits, seen: None })?;
    view.check()?;
    drop((view, programs));
    begun(job);
    let (sender, keeper) = match raw {
        None => (None, None),
        Some(number) => {
            let (sender, keeper) = start_keeper(store, job, number, &spec.outputs[number], options.threads);
            (Some(sender), Some(keeper))
        }
    };
    let tee = Tee { stream, raw: sender, counters: Arc::clone(counters) };
    let lost = Arc::new(Mutex::new(None));
    let lost_too = Arc::clone(&lost);
    let feed = Feed::Stream(Box::new(move |pipes| {
        tee.run(pipes).inspect_err(|why| *lost_too.lock().expect("no panic while held") = Some(why.clone()))
    }));
    let mut keeper = keeper;
    runner::run_fed(store, job, options, counters, feed, &mut || {
        let kept = keeper.take().map(|keeper| {
            keeper.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the raw file's thread panicked")))
        });
        if let Some(why) = lost.lock().expect("no panic while held").clone() {
            let why = format!("the writer was lost: {why}");
            store.jobs().end_job(job, JobState::Failed, &why)?;
        }
        match kept {
            Some(Err(error)) if error.kind() != ErrorKind::Fenced => {
                store.jobs().end_job(job, JobState::Failed, &format!("the raw file: {error}"))?;
            }
            _ => {}
        }
        Ok(())
    })
}

/// Checks that the pattern is for a stream. Returns which output the raw file is, if it is kept,
/// and whether it is kept even if the program fails.
fn check_pattern(spec: &Spec) -> Result<(Option<usize>, bool)> {
    let raw = spec.outputs.iter().position(|output| output.name == RAW);
    let keeps = matches!(spec.pattern, Pattern::WriteToTwo | Pattern::WriteToNothing);
    let fits = match spec.pattern {
        Pattern::WriteToTwo | Pattern::WriteToNothing => raw.is_some(),
        Pattern::WriteToFile => raw.is_none(),
        Pattern::FileToMany => true,
        _ => false,
    };
    if !fits {
        let why = match (spec.pattern, keeps) {
            (pattern, true) => format!("{pattern} keeps what is written: say where with --to PATH"),
            (Pattern::WriteToFile, _) => {
                "1W->1W stores the processed data only: --to means nothing".to_string()
            }
            (pattern, _) => format!("{pattern} is for stored files: name them with --in"),
        };
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    Ok((raw, keeps))
}

/// Starts the thread that stores the raw file, and waits until it has claimed its split or failed.
fn start_keeper(
    store: &Arc<Store>,
    job: JobId,
    number: usize,
    output: &Output,
    threads: usize,
) -> (SyncSender<Block>, JoinHandle<Result<()>>) {
    let (sender, raw) = Raw::channel();
    let store = Arc::clone(store);
    let output = output.clone();
    let ready = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let keeper_ready = Arc::clone(&ready);
    let keeper = std::thread::spawn(move || {
        let kept = keep(&store, job, number, &output, raw, threads, &keeper_ready);
        // Also when it failed before its claim.
        *keeper_ready.0.lock().expect("no panic while held") = true;
        keeper_ready.1.notify_all();
        kept
    });
    let mut is_ready = ready.0.lock().expect("no panic while held");
    while !*is_ready {
        is_ready = ready.1.wait(is_ready).expect("no panic while held");
    }
    drop(is_ready);
    (sender, keeper)
}

/// Copies a stream to a program, and to the pipeline.
struct Tee {
    stream: Box<dyn Read + Send>,
    raw: Option<SyncSender<Block>>,
    counters: Arc<Counters>,
}

impl Tee {
    fn run(mut self, pipes: &mut Pipes) -> std::result::Result<(), String> {
        let mut buffer = vec![0; BLOCK];
        loop {
            // Blocks are passed on as they come: a program sees each line of a slow writer at once.
            self.counters.wait_for_writer(true);
            let read = self.stream.read(&mut buffer);
            self.counters.wait_for_writer(false);
            let len = match read {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == Io::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            Counters::add(&self.counters.bytes_read, len as u64);
            if let Some(raw) = &self.raw
                && raw.send(Block::Data(buffer[..len].to_vec())).is_err()
            {
                return Err("the raw file cannot be stored".to_string());
            }
            pipes.give(&buffer[..len]).map_err(|error| error.to_string())?;
            // The programs have read enough, or have failed: the raw file goes on without them.
            if !pipes.are_any() && self.raw.is_none() {
                return Ok(());
            }
        }
        if let Some(raw) = &self.raw {
            let _ = raw.send(Block::End);
        }
        Ok(())
    }
}

/// Stores the raw file as split 1 of the job. Signals `ready` once that is claimed: the program's
/// slot, which takes any split, comes after it.
fn keep(
    store: &Arc<Store>,
    job: JobId,
    number: usize,
    output: &Output,
    raw: Raw,
    threads: usize,
    ready: &(Mutex<bool>, std::sync::Condvar),
) -> Result<()> {
    let session = store.session(SessionKind::Writer, Role::Job(job))?;
    let policies = Policies::load(store)?;
    let jobs = store.jobs();
    let mut claims = jobs.claim_splits(session.id(), job, 1, 1, Some(&[1]))?.claimed.into_iter();
    let cancelled = || Error::new(ErrorKind::Fenced, format!("job {job} was cancelled"));
    let own = claims.next().ok_or_else(cancelled)?;
    *ready.0.lock().expect("no panic while held") = true;
    ready.1.notify_all();
    let target = expand(&output.template, &Subject { path: None, input: 0, split: None })?;
    let policy = policies.at(&*store.meta, &target.parent())?;
    let options = WriteOptions {
        threads: threads.max(2),
        chunk_max: policies.chunk_max()?,
        commit: CommitWhen::AtTheEnd,
    };
    let mut writer = Writer::start(store, &session, &options, &Arc::new(Progress::default()));
    let (split, attempt) = (own.number, own.attempt);
    let failed = Arc::new(Mutex::new(true));
    writer.submit(Item::File(FileItem::under(
        Target::Output { job, split, attempt, name: number.to_string().into_bytes() },
        made_file().in_domain(domain_at(&*store.meta, &target)?),
        Content::Stream(Box::new(Noting { raw, failed: Arc::clone(&failed) })),
        policy,
    )))?;
    writer.finish()?;
    if *failed.lock().expect("no panic while held") {
        let why = "the writer was lost";
        jobs.fail_split(job, &own, 1, why, &[])?;
        return Err(Error::new(ErrorKind::Io, why));
    }
    // Its output is recorded; only now does it count.
    let mut writer = Writer::start(store, &session, &options, &Arc::new(Progress::default()));
    writer.submit(Item::Change(Change::Job(JobChange::Finish {
        job,
        split,
        attempt,
        log: Vec::new(),
        measured: None,
    })))?;
    writer.finish().map(drop)
}

/// Notes whether a stream came to its end.
struct Noting {
    raw: Raw,
    failed: Arc<Mutex<bool>>,
}

impl Read for Noting {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let len = self.raw.read(room)?;
        if len == 0 && !room.is_empty() {
            *self.failed.lock().expect("no panic while held") = false;
        }
        Ok(len)
    }
}
