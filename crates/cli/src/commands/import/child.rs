//! Processes of other programs: their output, and what they say when they fail.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::{Instant, sleep};

use crate::exit::{Failure, plain};

/// A process that writes its result to a pipe. It is killed when this is dropped.
pub struct Running {
    child: Child,
    what: String,
    complaint: Option<JoinHandle<String>>,
    said: String,
}

/// The most that is kept of what a process complains about, in bytes.
const COMPLAINT_MAX: usize = 16 << 10;
/// Starts a process; `what` names it in messages.
///
/// # Errors
/// When it cannot be started.
pub fn start(command: &mut Command, what: String) -> Result<(Running, ChildStdout), Failure> {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| {
        let program = command.get_program().display().to_string();
        let next = match error.kind() {
            io::ErrorKind::NotFound => format!("; install {program}, which reads its own repositories"),
            _ => String::new(),
        };
        Failure::failed(format!("cannot run {program}: {}{next}", plain(&error)))
    })?;
    let (stdout, stderr) = (child.stdout.take().expect("it is piped"), child.stderr.take());
    let complaint = stderr.map(|stderr| std::thread::spawn(|| last_words(stderr)));
    Ok((Running { child, what, complaint, said: String::new() }, stdout))
}

/// The whole output of a process.
///
/// # Errors
/// When it cannot be started, or fails.
pub fn output(command: &mut Command, what: &str) -> Result<Vec<u8>, Failure> {
    let (mut running, mut stdout) = start(command, what.to_string())?;
    let mut bytes = Vec::new();
    let read = stdout.read_to_end(&mut bytes);
    running.end().map_err(Failure::failed)?;
    read.map_err(|error| Failure::io(format!("cannot read from {what}"), &error))?;
    Ok(bytes)
}

/// The end of a stream, which is read to its end.
fn last_words(mut stream: impl Read) -> String {
    let (mut kept, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut part) {
        kept.extend_from_slice(&part[..read]);
        kept.drain(..kept.len().saturating_sub(COMPLAINT_MAX));
    }
    String::from_utf8_lossy(&kept).trim().to_string()
}

impl Running {
    /// Waits until the process has ended, which it does when all its output was read.
    ///
    /// # Errors
    /// What it complained about, if it failed.
    pub fn end(&mut self) -> Result<(), String> {
        let status =
            self.child.wait().map_err(|error| format!("cannot wait for {}: {}", self.what, plain(&error)))?;
        if status.success() { Ok(()) } else { Err(self.failure(status)) }
    }

    /// Why the process failed by itself, if it does so within `patience`. Nobody reads its output any
    /// more.
    pub fn own_failure(&mut self, patience: Duration) -> Option<String> {
        let started = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    // It may have written into the closed pipe.
                    let is_own = !status.success() && status.signal() != Some(libc::SIGPIPE);
                    return is_own.then(|| self.failure(status));
                }
                Ok(None) if started.elapsed() < patience => sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    fn failure(&mut self, status: ExitStatus) -> String {
        if let Some(said) = self.complaint.take().and_then(|thread| thread.join().ok()) {
            self.said = said;
        }
        let how = match status.code() {
            Some(code) => format!("exit code {code}"),
            None => "it was killed".to_string(),
        };
        let colon = if self.said.is_empty() { "" } else { ": " };
        format!("{} failed ({how}){colon}{}", self.what, self.said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
