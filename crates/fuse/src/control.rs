//! How commands that run beside a mount find it, and what they ask of it.
//!
//! A mount listens on a socket in the store's directory. A client sends a line and gets a line:
//!
//! | line | answer |
//! | --- | --- |
//! | `stored` | `ok` once everything that was acknowledged before is in the store, where the client will read it |
//! | `pause` | `ok` once that is so, and nothing more will be stored until `release` or the end of the connection: for a client that takes a snapshot. Changes go on |
//! | `hold` | `ok` once that is so and nothing changes any more, until `release` or the end of the connection: for a client that changes the store |
//! | `release` | `ok` once the mount has forgotten what it knew, and changes go on |
//! | `follow INODE FROM` | of a file that is being written, the bytes from FROM on as far as they are there: `data LENGTH` and so many bytes; `nothing` when there was none for a while; `closed` when nobody writes it (any more) |
//! | `rules` | `ok` once the mount knows which files are to be followed as the store says now |
//! | `next RULE` | `job NUMBER` once a file was made that the rule (JSON in a line) wants, and that job reads; the rule is forgotten with that, or with the connection |
//! | `status` | how the mount fares ([`measures`]), as JSON |
//!
//! or `error`, a kind and a sentence. Only who may write to the store's directory can connect.

use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use outrigger_store::meta::jobs::JobId;
use outrigger_store::{Context as _, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fs::Counted;
use crate::live::{BLOCK, Followed, LiveVolume};
use crate::measures;

const SOCKET: &str = "mount.sock";
/// How long a follower waits for bytes before it is asked whether it still wants them.
const FOLLOW_WAIT: Duration = Duration::from_millis(500);
/// How often it is looked whether who waits for a file is still there.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the kernel should forget after another process has changed the store.
pub type Forget = dyn Fn(&crate::live::Stale) + Send + Sync;

/// Socket paths are short; a directory's descriptor makes any path short.
fn through<T>(dir: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let open = std::fs::File::open(dir)?;
    work(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd())))
}

/// A mount's end. Dropping it removes the socket.
pub struct Server {
    path: PathBuf,
}

impl Server {
    /// Listens in the store's directory; `forget` tells the kernel. It serves until nobody else has the volume.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(volume: &Arc<Counted<LiveVolume>>, store: &Path, forget: Arc<Forget>) -> Result<Self> {
        let path = store.join(SOCKET);
        let what = || format!("cannot listen on {}", path.display());
        // Of a mount that was killed: the staging log's lock says that no other one is alive.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(what),
            _ => {}
        }
        let listener = through(store, |path| UnixListener::bind(path)).context(what)?;
        let volume = Arc::downgrade(volume);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), Some(volume)) = (stream, volume.upgrade()) else { return };
                let forget = Arc::clone(&forget);
                // Ends with its client, who may vanish at any moment.
                std::thread::spawn(move || drop(serve(&volume, stream, &*forget)));
            }
        });
        Ok(Self { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(counted: &Counted<LiveVolume>, stream: UnixStream, forget: &Forget) -> io::Result<()> {
    let volume = counted.inner();
    let mut answers = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next().transpose()? {
        match line.as_str() {
            "stored" => answer(&mut answers, volume.destage_all().map(|()| "ok".to_string()))?,
            "status" => answer(&mut answers, Ok(measures::json(&counted.status())))?,
            "pause" => match volume.pause() {
                Err(error) => answer(&mut answers, Err(error))?,
                Ok(paused) => {
                    answer(&mut answers, Ok("ok".to_string()))?;
                    let released = lines.next().transpose()?;
                    drop(paused);
                    if released.is_some() {
                        answer(&mut answers, Ok("ok".to_string()))?;
                    }
                }
            },
            "hold" => {
                let held = match volume.hold() {
                    Ok(held) => held,
                    Err(error) => {
                        answer(&mut answers, Err(error))?;
                        continue;
                    }
                };
                let told = answer(&mut answers, Ok("ok".to_string()));
                // Until it is done, says anything, or is gone.
                let released = told.is_ok() && matches!(lines.next(), Some(Ok(_)));
                let stale = held.release();
                if let Ok(stale) = &stale {
                    forget(stale);
                }
                if released {
                    answer(&mut answers, stale.map(|_| "ok".to_string()))?;
                }
            }
            "rules" => answer(&mut answers, volume.refresh_follows().map(|()| "ok".to_string()))?,
            line if line.starts_with("follow ") => follow(volume, line, &mut answers)?,
            line if line.starts_with("next ") => {
                let Some(job) = next(volume, line, &answers) else { return Ok(()) };
                answer(&mut answers, job.map(|job| format!("job {job}")))?;
            }
            _ => {
                let error =
                    Error::new(ErrorKind::Invalid, "the mount does not understand this; is it an older one?");
                answer(&mut answers, Err(error))?;
            }
        }
    }
    Ok(())
}

/// Answers a follower.
fn follow(volume: &LiveVolume, line: &str, answers: &mut UnixStream) -> io::Result<()> {
    let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(inode)), Some(Ok(from)), None) = (words.next(), words.next(), words.next()) else {
        let error = Error::new(ErrorKind::Invalid, "it is `follow INODE FROM`");
        return answer(answers, Err(error));
    };
    match volume.follow(inode, from, FOLLOW_WAIT) {
        Ok(Followed::Data(bytes)) => {
            writeln!(answers, "data {}", bytes.len())?;
            answers.write_all(&bytes)
        }
        Ok(Followed::Nothing) => answer(answers, Ok("nothing".to_string())),
        Ok(Followed::Closed) => answer(answers, Ok("closed".to_string())),
        Err(error) => answer(answers, Err(error)),
    }
}

/// Waits for a file that a rule wants; `None` when nobody waits for it any more.
fn next(volume: &LiveVolume, line: &str, client: &UnixStream) -> Option<Result<JobId>> {
    let expected = match volume.expect_file(line.strip_prefix("next ").unwrap_or_default()) {
        Ok(expected) => expected,
        Err(error) => return Some(Err(error)),
    };
    loop {
        match expected.job.recv_timeout(LOOK_EVERY) {
            Ok(job) => return Some(Ok(job)),
            Err(RecvTimeoutError::Timeout) if has_hung_up(client) => return None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(Error::new(ErrorKind::Cancelled, "the file's job could not be made")));
            }
        }
    }
}

fn has_hung_up(client: &UnixStream) -> bool {
    let hung = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    let mut looked = [PollFd::new(client, hung)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looked, Some(&at_once)).is_ok() && looked[0].revents().intersects(hung)
}

fn answer(stream: &mut UnixStream, what: Result<String>) -> io::Result<()> {
    let line = what
        .unwrap_or_else(|error| format!("error {:?} {}", error.kind(), error.to_string().replace('\n', " ")));
    writeln!(stream, "{line}")
}

/// A command's end.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the mount of the store in this directory; `None` when there is none.
    ///
    /// # Errors
    /// When there is one that does not let us in.
    pub fn connect(store: &Path) -> Result<Option<Self>> {
        match through(store, |path| UnixStream::connect(path)) {
            Ok(stream) => Ok(Some(Self { stream: BufReader::new(stream) })),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).context(|| "cannot talk to the mount of this store".to_string()),
        }
    }

    /// Sends a line, waits for the answer.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        let gone = || "the mount of this store has ended".to_string();
        writeln!(self.stream.get_mut(), "{line}").context(gone)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).context(gone)?;
        let answer = answer.trim_end();
        if answer.is_empty() {
            return Err(Error::new(ErrorKind::Io, gone()));
        }
        match answer.strip_prefix("error ") {
            None => Ok(answer.to_string()),
            Some(error) => {
                let (kind, text) = error.split_once(' ').unwrap_or(("Io", error));
                Err(Error::new(kind_named(kind), format!("the mount of this store: {text}")))
            }
        }
    }

    /// The next bytes of a file that is being written.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn follow(&mut self, inode: u64, from: u64) -> Result<Followed> {
        let answer = self.ask(&format!("follow {inode} {from}"))?;
        match (answer.as_str(), answer.strip_prefix("data ").map(str::parse::<usize>)) {
            ("nothing", _) => Ok(Followed::Nothing),
            ("closed", _) => Ok(Followed::Closed),
            (_, Some(Ok(len))) if len as u64 <= BLOCK => {
                let mut bytes = vec![0; len];
                self.stream
                    .read_exact(&mut bytes)
                    .context(|| "the mount of this store has ended".to_string())?;
                Ok(Followed::Data(bytes))
            }
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("the mount's answer `{answer}` is not understood"),
            )),
        }
    }

    /// Waits until the mount has ended: it has stored everything by then.
    pub fn wait_for_end(mut self) {
        let mut nothing = String::new();
        while matches!(self.stream.read_line(&mut nothing), Ok(1..)) {}
    }
}

fn kind_named(name: &str) -> ErrorKind {
    use ErrorKind::{Busy, Damaged, Denied, Exists, Fenced, Full, Invalid, NotFound};
    let kinds = [Busy, Damaged, Denied, Exists, Fenced, Full, Invalid, NotFound];
    kinds.into_iter().find(|kind| format!("{kind:?}") == name).unwrap_or(ErrorKind::Io)
}
