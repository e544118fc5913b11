//! A slot: claims splits, runs an attempt at each, and has their outputs stored, one split after
//! the other.
//!
//! Outputs of up to [`SMALL`] bytes are kept in memory until the program has ended well, and go
//! into the pipeline in batches with others. Larger ones stream: the pipeline reads the program's
//! output while it runs, and if the program fails the stream ends with an error, so that nothing of
//! it is recorded. Either way the split's `Finish` follows its outputs in the same writer, whose
//! changes are committed in order.

use std::fs::File;
use std::io::Read as _;
use std::process::ChildStdout;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Domain;
use outrigger_format::catalogue::FileKind;
use outrigger_store::local::put::made_now;
use outrigger_store::meta::jobs::{Claimed, JobChange, Jobs};
use outrigger_store::meta::{Change, Role, SessionKind};
use outrigger_store::policy::{Policies, WritePolicy};
use outrigger_store::session::Session;
use outrigger_store::tree::domain_at;
use outrigger_store::write::{CommitWhen, Content, FileItem, Item, Progress, Target, WriteOptions, Writer};
use outrigger_store::{Error, ErrorKind, Result};

use super::delay_scheduling::Turn;
use super::launch::{self, Begun};
use super::left::Left;
use super::others::Speculative;
use super::stragglers::{self, OVERTAKEN};
use super::{Measured, Shared, publish};
use crate::attempt::{Attempt, Ended, OutputStream, read_up_to};
use crate::cgroup::Usage;
use crate::content::joined;
use crate::job::spec::Output;
use crate::progress::Counters;
use crate::template;
use crate::written::{self, GAVE_BACK, Quiet};

/// Outputs up to this many bytes do not stream.
pub(super) const SMALL: usize = 1 << 20;
/// How long finished splits may wait to be recorded.
const RECORD_EVERY: Duration = Duration::from_secs(1);
/// The same limit when a long output begins, behind which they would wait.
const RECORD_SOON: Duration = Duration::from_millis(200);
/// Splits claimed at once at most.
const CLAIM_MAX: usize = 32;
/// A claim shall last about this long.
const CLAIM_FOR: Duration = Duration::from_millis(500);

struct Slot<'a> {
    shared: &'a Shared,
    /// Stops changes, when the input of a mount that has gone is closed.
    quiet: Quiet<'a>,
    jobs: &'a dyn Jobs,
    session: Arc<Session>,
    threads: usize,
    policies: Policies,
    writer: Option<(Writer, Instant)>,
    /// Splits in the writer.
    unrecorded: u64,
}

/// Runs until there is nothing left to claim.
///
/// # Errors
/// Failures of the store; failed attempts are not errors.
pub(super) fn run(shared: &Shared, threads: usize, quiet: Quiet<'_>) -> Result<()> {
    let session = shared.store.session(SessionKind::Writer, Role::Job(shared.job))?;
    let (jobs, policies) = (shared.store.jobs(), Policies::load(&shared.store)?);
    let mut slot = Slot { shared, quiet, jobs, session, threads, policies, writer: None, unrecorded: 0 };
    let beside = shared.beside.lock().expect("no panic while held").take();
    if let Some(stragglers::Speculative { split, attempt }) = beside {
        // The other runner may just have finished it.
        if let Some(claimed) = jobs.claim_speculative(slot.session.id(), shared.job, split, attempt)? {
            slot.split(&claimed)?;
        }
        return slot.record();
    }
    let (mut at_once, mut turn) = (1, Turn::first(&shared.placed));
    loop {
        if shared.is_draining() {
            return slot.record();
        }
        shared.make_way();
        // First the splits on this host, then others.
        let only = turn.only(&shared.placed, &shared.store, shared.job)?;
        let (tries, of) = (shared.spec.tries, only.as_deref());
        let claims = jobs.claim_splits(slot.session.id(), shared.job, at_once, tries, of)?;
        if claims.claimed.is_empty() {
            let next = if claims.open { turn.after(of, &shared.store, shared.job)? } else { None };
            let Some(next) = next.filter(|_| !shared.watch.is_stopped()) else { return slot.record() };
            turn = next;
            slot.record_if_due()?;
            continue;
        }
        let (begun, count) = (Instant::now(), claims.claimed.len());
        let mut claimed = claims.claimed.into_iter();
        while let Some(split) = claimed.next() {
            if shared.watch.is_stopped() || shared.is_draining() {
                let rest: Vec<Claimed> = std::iter::once(split).chain(claimed).collect();
                jobs.give_back_splits(shared.job, &rest)?;
                return slot.record();
            }
            slot.split(&split)?;
            slot.record_if_due()?;
            shared.make_way();
        }
        // Few enough that other slots have work too, many enough that a claim costs little beside
        // running.
        let each = begun.elapsed() / count as u32;
        let fit = (CLAIM_FOR.as_micros() / each.as_micros().max(1)) as usize;
        let left = shared.counters.view();
        let fair = (left.splits.saturating_sub(left.splits_done) / 8).max(1) as usize;
        at_once = fit.clamp(1, CLAIM_MAX).min(fair);
    }
}

impl Slot<'_> {
    fn writer(&mut self) -> Result<&mut Writer> {
        if self.writer.is_none() {
            let chunk_max = self.policies.chunk_max()?;
            let options = WriteOptions { threads: self.threads, chunk_max, commit: CommitWhen::AsItComes };
            let progress = Arc::new(Progress::default());
            let place = self.shared.place.as_ref();
            let writer = Writer::start_on(&self.shared.store, &self.session, &options, place, &progress);
            self.writer = Some((writer, Instant::now()));
        }
        Ok(&mut self.writer.as_mut().expect("just made").0)
    }

    fn record_if_due(&mut self) -> Result<()> {
        match &self.writer {
            Some((_, since)) if since.elapsed() >= RECORD_EVERY => self.record(),
            _ => Ok(()),
        }
    }

    /// Makes the writer's splits durable, and counts them as finished.
    fn record(&mut self) -> Result<()> {
        if let Some((writer, _)) = self.writer.take() {
            writer.finish()?;
            let recorded = std::mem::take(&mut self.unrecorded);
            Counters::add(&self.shared.counters.splits_done, recorded);
            Counters::add(&self.shared.counters.splits_here, recorded);
        }
        Ok(())
    }

    /// One attempt at a split.
    fn split(&mut self, claimed: &Claimed) -> Result<()> {
        let shared = self.shared;
        if shared.spec.program.is_empty() {
            return self.joined(claimed);
        }
        if self.settled_lost(claimed)? {
            return Ok(());
        }
        let Begun { attempt, mut stdout, work, others, seen } = match launch::begin(shared, claimed) {
            Ok(begun) => begun,
            Err(error) => return self.failed(claimed, &error.to_string(), &[]),
        };
        let began = Instant::now();
        let _looked = shared.overtaken.look_after(self.session.id(), *claimed, others.stopper());
        let limit = shared.spec.limits.output.unwrap_or(u64::MAX);
        let in_files = |out: &Output| !out.name.is_empty() || template::is_directory(&out.template);
        let wanted_of = |program: usize| {
            let found = shared.outputs().find(|(_, out)| out.program == program && !in_files(out));
            found.map(|(number, _)| number.to_string().into_bytes())
        };
        let wanted = wanted_of(0);
        let mut head = self.head(&attempt, &mut stdout)?;
        let first = head.len();
        let mut large = false;
        let mut ended = if first <= SMALL {
            Counters::add(&shared.counters.bytes_written, first as u64);
            if first as u64 > limit {
                attempt.kill(&crate::attempt::too_much());
            }
            attempt.end()
        } else {
            large = true;
            self.stream(claimed, std::mem::take(&mut head), stdout, attempt, limit, wanted.as_deref())?
        };
        let besides = others.end(&shared.spec, &mut ended);
        if let Err(why) = &ended.result {
            return self.ended_early(claimed, why, &ended.log);
        }
        if let Some(name) = wanted.filter(|_| !large) {
            self.submit(claimed, &name, Content::Bytes(head))?;
        }
        let any_in_files = shared.outputs().any(|(_, out)| in_files(out));
        let mut works = vec![(0, work)];
        for Speculative { number, work, written } in besides {
            if let Some(name) = wanted_of(number) {
                self.submit(claimed, &name, written)?;
            }
            works.push((number, work));
        }
        for (number, work) in works.iter().filter(|_| any_in_files) {
            if let Err(why) = self.files(claimed, *number, work.path(), limit)? {
                return self.failed(claimed, &why, &ended.log);
            }
        }
        let took = began.elapsed();
        if let Some((here, elsewhere)) = seen.bytes().filter(|(here, elsewhere)| elsewhere > here) {
            shared.placed.note_far(here + elsewhere, took);
        }
        self.finished(claimed, ended.log, Some(Measured::here(took, ended.usage, seen.bytes())))?;
        let mut longest = shared.longest.lock().expect("no panic while held");
        *longest = (*longest).max(Some(took));
        drop(longest);
        self.spare(works.into_iter().map(|(_, work)| work).filter(|_| !any_in_files));
        Ok(())
    }

    /// An attempt has ended without success: another one was faster, it gave its split back, or it
    /// failed.
    fn ended_early(&mut self, claimed: &Claimed, why: &str, log: &[u8]) -> Result<()> {
        if why == OVERTAKEN {
            return Ok(());
        }
        if why == GAVE_BACK {
            return self.jobs.give_back_splits(self.shared.job, std::slice::from_ref(claimed));
        }
        if self.settled_lost(claimed)? {
            return Ok(());
        }
        self.failed(claimed, why, log)
    }

    /// Stores an output that is longer than `head`, which has its beginning, until the program
    /// ends.
    fn stream(
        &mut self,
        claimed: &Claimed,
        head: Vec<u8>,
        stdout: ChildStdout,
        attempt: Attempt,
        limit: u64,
        wanted: Option<&[u8]>,
    ) -> Result<Ended> {
        // Finished splits must not wait for the end of a long output.
        if self.writer.as_ref().is_some_and(|(_, since)| since.elapsed() >= RECORD_SOON) {
            self.record()?;
        }
        let (done, finished) = channel();
        let mut stream = OutputStream::new(head, stdout, attempt, limit, done, &self.shared.counters);
        if let Some(name) = wanted {
            self.submit(claimed, name, Content::Stream(Box::new(stream)))?;
        } else {
            // Nobody wants the output, but a program that cannot write would never end.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
        Ok(finished.recv().unwrap_or_else(|_| Ended {
            result: Err("stopped".into()),
            was_killed: true,
            log: Vec::new(),
            usage: Usage::default(),
        }))
    }

    /// Leaves directories that are still empty to later attempts.
    fn spare(&self, works: impl Iterator<Item = tempfile::TempDir>) {
        let is_empty = |work: &tempfile::TempDir| {
            std::fs::read_dir(work.path()).is_ok_and(|mut entries| entries.next().is_none())
        };
        self.shared.spare.lock().expect("no panic while held").extend(works.filter(is_empty));
    }

    /// Reads the first bytes of a program's output, up to one more than [`SMALL`]. Meanwhile it
    /// records finished splits when they are due: a slow program must not delay them, as other
    /// runners would take them for stragglers, and they would be lost with this process.
    fn head(&mut self, attempt: &Attempt, stdout: &mut ChildStdout) -> Result<Vec<u8>> {
        let (mut head, mut len) = (vec![0; SMALL + 1], 0);
        while len < head.len() {
            while let Some((_, since)) = &self.writer {
                let left = RECORD_EVERY.saturating_sub(since.elapsed());
                if attempt.is_readable(stdout, Some(left)) {
                    break;
                }
                self.record_if_due()?;
            }
            attempt.is_readable(stdout, None);
            match stdout.read(&mut head[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        head.truncate(len);
        Ok(head)
    }

    /// If the mount that wrote the split's input has gone, closes the input with the content it
    /// left and returns true: the split is to be claimed again.
    fn settled_lost(&self, claimed: &Claimed) -> Result<bool> {
        let (store, job) = (&self.shared.store, self.shared.job);
        let Some(written) = self.shared.spec.written.filter(|_| claimed.range.is_open()) else {
            return Ok(false);
        };
        if !written::is_lost(store, written)? {
            return Ok(false);
        }
        // Not if the mount closed it before it went: then this attempt has failed like any other.
        let is_open = self.jobs.split(job, claimed.number)?.is_some_and(|split| split.range.is_open());
        if is_open {
            written::settle_lost(store, job, written, &self.shared.spec, self.quiet)?;
        }
        Ok(is_open)
    }

    /// Stores the files in a program's directory as its named outputs.
    fn files(
        &mut self,
        claimed: &Claimed,
        program: usize,
        work: &std::path::Path,
        limit: u64,
    ) -> Result<std::result::Result<(), String>> {
        let shared = self.shared;
        let found = Left::below(work, shared.sandbox.runs_as())?;
        let all: u64 = found.files.iter().map(|(_, len)| len).sum();
        if all > limit {
            return Ok(Err(crate::attempt::too_much()));
        }
        Counters::add(&self.shared.counters.bytes_written, all);
        for (number, output) in shared.outputs().filter(|(_, output)| output.program == program) {
            if !template::is_directory(&output.template) {
                if output.name.is_empty() {
                    continue;
                }
                let own = output.name.as_bytes();
                if !found.files.iter().any(|(name, _)| name == own) {
                    return Ok(Err(format!(
                        "it ended well and did not write its output `{}` ($AS_OUTPUT_{})",
                        output.name, output.name
                    )));
                }
                let name = number.to_string().into_bytes();
                self.submit_file(claimed, &name, found.open(own)?)?;
                continue;
            }
            let named = |name: &[u8]| {
                shared.outputs().any(|(_, out)| out.program == program && out.name.as_bytes() == name)
            };
            for (own, _) in found.files.iter().filter(|(name, _)| !named(name)) {
                let name = [number.to_string().as_bytes(), b"/", own].concat();
                self.submit_file(claimed, &name, found.open(own)?)?;
            }
        }
        Ok(Ok(()))
    }

    fn submit_file(&mut self, claimed: &Claimed, name: &[u8], mut file: File) -> Result<()> {
        let lost = |error| Error::new(ErrorKind::Io, "reading an output").caused_by(error);
        let len = file.metadata().map_err(lost)?.len();
        if len > SMALL as u64 {
            return self.submit(claimed, name, Content::Stream(Box::new(file)));
        }
        let mut bytes = vec![0; len as usize];
        let read = read_up_to(&mut file, &mut bytes).map_err(lost)?;
        bytes.truncate(read);
        self.submit(claimed, name, Content::Bytes(bytes))
    }

    /// Without a program, the inputs' manifests are joined, and no byte is read.
    fn joined(&mut self, claimed: &Claimed) -> Result<()> {
        let parts = joined(self.shared.inputs.roots.iter().map(|root| (**root).clone()));
        self.submit(claimed, b"0", parts)?;
        self.finished(claimed, Vec::new(), None)
    }

    fn submit(&mut self, claimed: &Claimed, name: &[u8], content: Content) -> Result<()> {
        let Claimed { number: split, attempt, .. } = *claimed;
        let policy = self.policy(claimed, name)?;
        let to = Target::Output { job: self.shared.job, split, attempt, name: name.to_vec() };
        let attributes = made_now(FileKind::File, 0o600).in_domain(self.domain(claimed, name)?);
        let item = FileItem::under(to, attributes, content, policy);
        self.writer()?.submit(Item::File(item))
    }

    /// The domain of the output's place.
    fn domain(&self, claimed: &Claimed, name: &[u8]) -> Result<Domain> {
        let store = &self.shared.store;
        if store.keys().is_none() {
            return Ok(Domain::COMMON);
        }
        domain_at(&*store.meta, &publish::target(self.shared, claimed.number, &claimed.range, name)?)
    }

    /// The policy at the output's place.
    fn policy(&self, claimed: &Claimed, name: &[u8]) -> Result<WritePolicy> {
        if self.policies.is_empty() {
            return Ok(self.policies.store_default());
        }
        let target = publish::target(self.shared, claimed.number, &claimed.range, name)?;
        self.policies.at(&*self.shared.store.meta, &target.parent())
    }

    fn finished(&mut self, claimed: &Claimed, log: Vec<u8>, measured: Option<Measured>) -> Result<()> {
        let Claimed { number: split, attempt, .. } = *claimed;
        let change = JobChange::Finish {
            job: self.shared.job,
            split,
            attempt,
            log,
            measured: measured.map(|measured| measured.encode()),
        };
        self.writer()?.submit(Item::Change(Change::Job(change)))?;
        self.unrecorded += 1;
        Ok(())
    }

    fn failed(&self, claimed: &Claimed, why: &str, log: &[u8]) -> Result<()> {
        if self.shared.watch.is_stopped() {
            return Ok(());
        }
        Counters::add(&self.shared.counters.failures, 1);
        self.jobs.fail_split(self.shared.job, claimed, self.shared.spec.tries, why, log)?;
        Ok(())
    }
}
