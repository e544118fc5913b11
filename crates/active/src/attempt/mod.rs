//! One attempt: a program over one split, from its start to its end.
//!
//! ```text
//!  store ──feeder──▶ standard input ▶ PROGRAM ▶ standard output ──▶ whoever reads it: the write pipeline
//!   (verified data)                       │ └──▶ files in its work directory (named outputs)
//!                                         └────▶ standard error: the attempt's log
//! ```
//!
//! Threads: one feeds, one keeps the log, the caller reads the output. A [`Watch`] that all
//! attempts share ends those that use more than they may. Only [`Attempt::end`], which waits for
//! the program, tells the end of the output from success: until it has returned success, no output
//! counts.

mod disk;
mod feed;
#[cfg(feature = "testing")]
pub(crate) mod instead;
mod log;
mod paced;
mod pipes;
mod stream;
mod tree;
mod watch;

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_store::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

pub(crate) use disk::bounded;
pub(crate) use feed::give_all;
pub use feed::{Feed, Range};
pub(crate) use paced::PacedOutput;
pub use pipes::Pipes;
pub(crate) use pipes::{Fed, share};
pub(crate) use stream::too_much;
pub use stream::{Finished, OutputStream};
pub use watch::Watch;

use crate::cgroup::{Group, Usage};
use crate::job::limits::Limits;
use crate::progress::Counters;
use crate::sandbox::Kept;
use crate::sandbox::net::Forward;
use paced::PacedInput;
use watch::Live;

/// How an attempt ended.
#[derive(Debug)]
pub struct Ended {
    /// The reason why it does not count, if it does not.
    pub result: std::result::Result<(), String>,
    /// It did not end by itself: it was stopped, or ran into a limit.
    pub was_killed: bool,
    /// Its standard error, shortened in the middle.
    pub log: Vec<u8>,
    /// Its use of resources, as far as it was counted.
    pub usage: Usage,
}

/// A running program. Dropped without [`Attempt::end`], it is killed.
pub struct Attempt {
    child: Option<Child>,
    feeder: Option<JoinHandle<std::result::Result<(), String>>>,
    log: Option<JoinHandle<Vec<u8>>>,
    forward: Option<Forward>,
    live: Arc<Live>,
    watch: Arc<Watch>,
    /// Removed with it.
    group: Option<Arc<Group>>,
    /// The function that runs in a program's place.
    #[cfg(feature = "testing")]
    called: Option<Arc<instead::Called>>,
}

impl Attempt {
    /// Starts `command` with `feed` on its standard input, in `group` if there is one, with its
    /// files in `work`; its permitted connections are forwarded. Returns its standard output, too.
    ///
    /// # Errors
    /// When the program cannot be started, or does not exist.
    pub fn start(
        mut command: std::process::Command,
        feed: Feed,
        (limits, group, work): (&Limits, Option<Group>, &Path),
        mut kept: Kept,
        watch: &Arc<Watch>,
        counters: &Arc<Counters>,
    ) -> Result<(Self, ChildStdout)> {
        use std::process::Stdio;
        command.stdin(if feed.is_nothing() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let group = group.map(Arc::new);
        let mut child = kept
            .spawn(&mut command)
            .context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        paced::enlarge(&stdout);
        let live = watch.add(&child, *limits, group.clone(), Some(work.to_path_buf()));
        let log = std::thread::spawn(move || log::keep(stderr));
        let stdin = child.stdin.take();
        let (live_too, watch) = (Arc::clone(&live), Arc::clone(watch));
        // Dropped, it is killed.
        let mut attempt = Self {
            child: Some(child),
            feeder: None,
            log: Some(log),
            forward: None,
            live,
            watch,
            group,
            #[cfg(feature = "testing")]
            called: None,
        };
        // This also closes this process's copies of the child's descriptors, so that a reader sees
        // the child's end.
        let reach = kept.reach.take();
        drop(kept);
        let forward = reach.map(Forward::start).transpose();
        attempt.forward = forward.context(|| "forwarding what it may reach".to_string())?;
        attempt.feeder = stdin.map(|stdin| {
            let (live, counters) = (live_too, Arc::clone(counters));
            std::thread::spawn(move || {
                let mut pipes = Pipes::one(PacedInput::new(stdin));
                let fed = feed.into(&mut pipes, &counters).inspect_err(|why| live.kill(why));
                // Not before it is killed: it would take this for the end of its input.
                drop(pipes);
                fed
            })
        });
        Ok((attempt, stdout))
    }

    /// A handle that ends it before its time, from anywhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(vec![Arc::clone(&self.live)])
    }

    /// True once it has written something, or will write no more; false after `most`. Then a read
    /// would block.
    pub(crate) fn is_readable(&self, stdout: &ChildStdout, most: Option<Duration>) -> bool {
        #[cfg(feature = "testing")]
        if let Some(called) = &self.called {
            return called.has_ended(most);
        }
        let Some(most) = most else { return true };
        let mut looked = [PollFd::new(stdout, PollFlags::IN)];
        // A little longer, so that work that becomes due then is found.
        let most = Timespec::try_from(most + Duration::from_millis(1)).ok();
        // If polling fails, read at once.
        poll(&mut looked, most.as_ref()).map_or(true, |ready| ready > 0)
    }

    /// Ends it before its time.
    pub fn kill(&self, why: &str) {
        self.live.kill(why);
    }

    /// Waits for the program, and returns if its output counts. The output must have been read to
    /// the end, or no thread reads it any more.
    pub fn end(mut self) -> Ended {
        self.wait()
    }

    fn wait(&mut self) -> Ended {
        #[cfg(feature = "testing")]
        if let Some(called) = self.called.take() {
            return called.end(self.watch.remove(&self.live));
        }
        let Some(mut child) = self.child.take() else {
            return Ended {
                result: Err("it has ended before".into()),
                was_killed: false,
                log: Vec::new(),
                usage: Usage::default(),
            };
        };
        // The process stays a zombie until `wait`, so that its number is not reused while it may
        // still be killed.
        let pid = Pid::from_child(&child);
        let ended =
            || rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        while matches!(ended(), Err(rustix::io::Errno::INTR)) {}
        let killed = self.watch.remove(&self.live);
        let exceeded = self.live.exceeded();
        // Background processes that it left would keep its pipes open, and belong to nobody.
        let usage = self.group.as_ref().map(|group| group.end()).unwrap_or_default();
        let status = child.wait();
        let is_good = status.as_ref().is_ok_and(|status| status.success());
        let killed = killed.or_else(|| exceeded.filter(|_| !is_good).map(str::to_string));
        let fed = self.feeder.take().map_or(Ok(()), |feeder| {
            feeder.join().unwrap_or_else(|_| Err("the thread that fed it panicked".into()))
        });
        let log = self.log.take().and_then(|log| log.join().ok()).unwrap_or_default();
        let was_killed = killed.is_some() || status.as_ref().is_ok_and(|status| is_too_long(*status));
        let cut = killed.is_some() || !is_good;
        let sent = self.forward.take().map_or(Ok(()), |forward| forward.end(cut, || self.watch.is_stopped()));
        let fed = fed.and(sent);
        let result = match (killed, fed, status) {
            (Some(why), ..) | (None, Err(why), _) => Err(why),
            (None, Ok(()), Err(error)) => Err(format!("nobody knows how it ended: {error}")),
            (None, Ok(()), Ok(status)) if status.success() => Ok(()),
            (None, Ok(()), Ok(status)) if is_too_long(status) => Err(disk::TOO_MUCH_ON_DISK.to_string()),
            (None, Ok(()), Ok(status)) => Err(describe_end(status, &log)),
        };
        Ended { result, was_killed, log, usage }
    }
}

/// Ends an attempt from elsewhere: one program of it, or several.
pub struct Stopper(Vec<Arc<Live>>);

impl Stopper {
    /// One for all of these.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        Self(all.flat_map(|one| one.0.iter().map(Arc::clone)).collect())
    }

    /// Kills its processes, unless it has ended.
    pub fn stop(&self, why: &str) {
        self.0.iter().for_each(|live| live.kill(why));
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        #[cfg(feature = "testing")]
        self.called.take().inspect(|_| self.kill("stopped"));
        if self.child.is_some() {
            self.kill("stopped");
            self.wait();
        }
    }
}

/// True if it, or a child that it waited for, was killed for a file that is too long (`SIGXFSZ`).
fn is_too_long(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    let signal = Signal::XFSZ.as_raw();
    // Shells, and the sandbox, report a child's signal this way.
    status.signal() == Some(signal) || status.code() == Some(128 + signal)
}

/// How a program ended, with the last line of its log.
fn describe_end(status: std::process::ExitStatus, log: &[u8]) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    let mut text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it ended without saying how".to_string(),
    };
    let last = log.split(|&byte| byte == b'\n').rev().find(|line| !line.is_empty());
    if let Some(line) = last {
        let line = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
        text += &format!(": {}", line.trim());
    }
    text
}

/// Reads until `room` is full or the stream ends; returns how much was read.
pub(crate) fn read_up_to(stream: &mut impl Read, room: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < room.len() {
        match stream.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
