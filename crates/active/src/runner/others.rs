//! The programs of a split beside the first one. All are given the same input in the same pass
//! ([`share`](crate::attempt::share)), and all must succeed.
//!
//! The first program's standard output may stream into the write pipeline, which takes files in
//! order. The other programs' outputs must not wait for that, or the pass would stand still. So a
//! thread for each reads its output, into memory up to a mebibyte, and into a local file beyond. It
//! is stored when all have ended well.
//!
//! The first program that fails ends all the others: they would be run again anyway.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::process::ChildStdout;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use outrigger_store::write::Content;
use tempfile::TempDir;

use super::Shared;
use super::slot::SMALL;
use super::stragglers::OVERTAKEN;
use crate::attempt::{Attempt, Ended, Fed, PacedOutput, Stopper, read_up_to, too_much};
use crate::cgroup::Usage;
use crate::job::spec::Spec;
use crate::progress::Counters;
use crate::template;
use crate::written::GAVE_BACK;

/// See the module.
#[derive(Default)]
pub(super) struct Others {
    running: Vec<Other>,
    pass: Option<JoinHandle<Fed>>,
    together: Arc<Together>,
}

struct Other {
    number: usize,
    work: TempDir,
    thread: JoinHandle<(Ended, Content)>,
}

/// One of them that has ended well, with all others.
pub(super) struct Speculative {
    pub number: usize,
    pub work: TempDir,
    /// Its standard output.
    pub written: Content,
}

/// They end together when one fails.
#[derive(Default)]
struct Together(Mutex<State>);

#[derive(Default)]
struct State {
    stoppers: Vec<Stopper>,
    /// The number of the first that failed, and why.
    failed: Option<(usize, String)>,
}

impl Together {
    fn add(&self, stopper: Stopper) {
        let mut state = self.0.lock().expect("no panic while held");
        if let Some((_, why)) = &state.failed {
            stopper.stop(why);
        }
        state.stoppers.push(stopper);
    }

    fn fail(&self, number: usize, why: &str) {
        let mut state = self.0.lock().expect("no panic while held");
        if state.failed.is_none() {
            state.failed = Some((number, why.to_string()));
            state.stoppers.iter().for_each(|stopper| stopper.stop(why));
        }
    }
}

impl Others {
    /// Their input is read by this thread.
    pub fn read_by(&mut self, pass: JoinHandle<Fed>) {
        self.pass = Some(pass);
    }

    /// Another program of the attempt, that runs.
    pub fn add(
        &mut self,
        shared: &Shared,
        number: usize,
        attempt: Attempt,
        stdout: ChildStdout,
        work: TempDir,
    ) {
        self.together.add(attempt.stopper());
        let keeps = shared.outputs().any(|(_, output)| {
            output.program == number && output.name.is_empty() && !template::is_directory(&output.template)
        });
        let spool = Spool {
            dir: shared.scratch.path().to_path_buf(),
            keeps,
            limit: shared.spec.limits.output.unwrap_or(u64::MAX),
            counters: Arc::clone(&shared.counters),
        };
        let together = Arc::clone(&self.together);
        let thread = std::thread::spawn(move || {
            let spooled = spool.read(stdout);
            if let Err(why) = &spooled {
                attempt.kill(why);
            }
            let mut ended = attempt.end();
            let written = spooled.unwrap_or_else(|why| {
                ended.result = Err(why);
                Content::Bytes(Vec::new())
            });
            if let Err(why) = &ended.result {
                together.fail(number, why);
            }
            (ended, written)
        });
        self.running.push(Other { number, work, thread });
    }

    /// Adds the first program, which ends with the others.
    pub fn beside(&self, first: &Attempt) {
        self.together.add(first.stopper());
    }

    /// Ends all of them, including the first.
    pub fn stop(&self) {
        self.together.fail(0, "stopped");
    }

    /// A stopper that ends all of them, including the first.
    pub fn stopper(&self) -> Stopper {
        let state = self.together.0.lock().expect("no panic while held");
        Stopper::of(state.stoppers.iter())
    }

    /// When the first has ended, waits for the others. Its result then stands for all of them.
    pub fn end(mut self, spec: &Spec, first: &mut Ended) -> Vec<Speculative> {
        if self.running.is_empty() {
            return Vec::new();
        }
        if let Err(why) = &first.result {
            self.together.fail(0, why);
        }
        let first_word = |number: usize| spec.programs().nth(number).and_then(<[String]>::first).cloned();
        let name = |number: usize| first_word(number).unwrap_or_default();
        let headed = |number: usize, log: &[u8]| [format!("--- {}\n", name(number)).as_bytes(), log].concat();
        let mut log = headed(0, &first.log);
        let mut ended_well = Vec::new();
        for Other { number, work, thread } in self.running.drain(..) {
            let Ok((ended, written)) = thread.join() else {
                first.usage = Usage::default();
                self.together.fail(number, "the thread that waited for it panicked: please report this");
                continue;
            };
            log.extend(headed(number, &ended.log));
            first.usage = first.usage.and(ended.usage);
            ended_well.push(Speculative { number, work, written });
        }
        first.log = log;
        // A fault of the input is no program's fault, and some may have ended before it was found.
        let read =
            self.pass.take().map_or(Ok(()), |pass| pass.join().unwrap_or_else(|_| Err(PANICKED.into())));
        let failed = self.together.0.lock().expect("no panic while held").failed.take();
        first.result = match (read, failed) {
            (_, Some((_, why))) if why == OVERTAKEN => Err(why),
            (Err(why), _) => Err(why),
            (Ok(()), Some((_, why))) if why == GAVE_BACK => Err(why),
            (Ok(()), Some((number, why))) => Err(format!("`{}`: {why}", name(number))),
            (Ok(()), None) => Ok(()),
        };
        ended_well
    }
}

const PANICKED: &str = "the thread that read the input panicked: please report this";

impl Drop for Others {
    fn drop(&mut self) {
        if !self.running.is_empty() {
            self.stop();
        }
        for other in self.running.drain(..) {
            let _ = other.thread.join();
        }
    }
}

/// Where what a program writes waits for the others.
struct Spool {
    /// On a file system with room.
    dir: PathBuf,
    /// False: nobody wants it, but a program that cannot write would never end.
    keeps: bool,
    limit: u64,
    counters: Arc<Counters>,
}

impl Spool {
    fn read(&self, stdout: ChildStdout) -> Result<Content, String> {
        let lost = |error: std::io::Error| {
            format!("what it writes cannot be kept until the others have ended: {error}")
        };
        let (mut head, mut file, mut all) = (Vec::new(), None::<File>, 0u64);
        let (mut room, mut stdout) = (vec![0; SMALL], PacedOutput::new(stdout));
        loop {
            let len = read_up_to(&mut stdout, &mut room).map_err(lost)?;
            Counters::add(&self.counters.bytes_written, len as u64);
            all += len as u64;
            if all > self.limit {
                return Err(too_much());
            }
            if len == 0 {
                break;
            }
            if !self.keeps {
                continue;
            }
            if file.is_none() && head.is_empty() {
                head.extend_from_slice(&room[..len]);
                continue;
            }
            if file.is_none() {
                let mut made = tempfile::tempfile_in(&self.dir).map_err(lost)?;
                made.write_all(&head).map_err(lost)?;
                file = Some(made);
            }
            if let Some(file) = &mut file {
                file.write_all(&room[..len]).map_err(lost)?;
            }
        }
        Ok(match file {
            None => Content::Bytes(head),
            Some(mut file) => {
                file.rewind().map_err(lost)?;
                Content::Stream(Box::new(file))
            }
        })
    }
}
