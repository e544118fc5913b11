//! The control socket: commands that run beside a mount find it there, and ask it for things.
//!
//! The mount of a store in a directory listens there. A store in PostgreSQL may be mounted several
//! times on a host, so its mounts listen where they have their logs. A client sends a line and gets
//! a line:
//!
//! | line | answer |
//! | --- | --- |
//! | `stored` | `ok` once everything acknowledged before is in the store where the client reads, and the kernel has dropped what clients have changed before |
//! | `closed` | `ok` once all files that were closed before are stored as they were at the close |
//! | `pause` (this and the next two: only to a mount that owns its store) | as `stored`, and nothing more is stored until `release` or the end of the connection. For a client that takes a snapshot; changes go on |
//! | `hold`, `hold SESSION` | as `stored`, and nothing changes any more until `release` or the end of the connection. For a client that changes the store. With the client's session, the hold and that session also end after a minute |
//! | `release` | `ok` once the mount has dropped what it knew, and changes go on |
//! | `follow INODE FROM` | for a file that is being written: `data LENGTH` and that many bytes from FROM on; `nothing` if none came for a while; `closed` if it is not being written (any more) |
//! | `input JOB NUMBER` | for an input of a job that tails several files: `inode INODE`; `nothing` if it was not made yet; `closed` once the job has its content; `unknown` |
//! | `rules` | `ok` once the mount has read the store's present rules |
//! | `next RULE` | `awaits` once the mount waits for a file that matches the rule (JSON in a line), then `job NUMBER` of the job that reads it. The rule ends with that or with the connection |
//! | `status` | the mount's numbers ([`measures`]), as JSON |
//!
//! or `error`, a kind and a sentence. Only users who may write to that directory can connect. A
//! mount offers less to agents on other hosts: see `remote.rs`.

mod client;
mod line;
mod remote;
mod sealed;

use std::io::{self, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_store::home::Home;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::ops::errors;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use client::Client;
use line::read_line_of;
pub use remote::{Offer, Remote, offer_of, place, sweep_offers};
pub use sealed::{PublicKey, Sealed};

use crate::fs::Counted;
use crate::live::{Input, LiveVolume, Stale};
use crate::measures::{self, Watched};
use crate::shared::{SharedVolume, dir_of_mount, dirs_of_mounts};
use crate::tail::{StillWaits, Tailed};

const SOCKET: &str = "mount.sock";
/// How long a reader waits for bytes before it is asked whether it still wants them.
const TAIL_WAIT: Duration = Duration::from_millis(500);
/// Pause in hearing clients after one could not be served.
const REFUSED_FOR: Duration = Duration::from_millis(100);
/// Bytes of a line at most, from a client on this host: a rule with its program's arguments is one
/// line.
const ASKED_MAX: u64 = 4 << 20;
/// How long a hold lasts at most for a client whose session can be ended.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// How often to check if a client that waits for a file is still there.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Makes the kernel forget, after another process has changed the store.
pub type Forget = dyn Fn(&Stale) + Send + Sync;

/// Operations of a writable mount that its control socket offers.
pub trait Controlled: Watched + Send + Sync + 'static {
    /// Stores everything that was acknowledged.
    ///
    /// # Errors
    /// Those of the store.
    fn stored(&self) -> Result<()>;
    /// Stores everything that was closed.
    ///
    /// # Errors
    /// Those of the store.
    fn closed(&self) -> Result<()>;
    /// Looks again which files are to be tailed.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn refresh_tail_rules(&self) -> Result<()>;
    /// Wants one file; see [`TailRules::expect`](crate::live::TailRules::expect).
    ///
    /// # Errors
    /// `Invalid` when this mount has no rules.
    fn expect_file(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>>;
    /// The next bytes of a file that is being written, from byte `from` on; waits for them as long
    /// as `wait`.
    ///
    /// # Errors
    /// When they cannot be read.
    fn tail(&self, inode: u64, from: u64, wait: Duration) -> Result<Tailed>;
    /// State of one of a job's inputs; see [`TailRules::input`](crate::live::TailRules::input).
    fn input_of(&self, job: JobId, number: u32) -> Input;
    /// Names that the kernel has to look up again when other files are to be tailed than before.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn known_names(&self) -> Result<Stale>;
    /// The mount itself, if it owns its store.
    fn owner(self: &Arc<Self>) -> Option<&Arc<LiveVolume>>;
}

impl Controlled for LiveVolume {
    fn stored(&self) -> Result<()> {
        self.destage_all()
    }

    fn closed(&self) -> Result<()> {
        self.destage_all()
    }

    fn refresh_tail_rules(&self) -> Result<()> {
        self.refresh_tail_rules()
    }

    fn expect_file(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        self.expect_file(rule, waits)
    }

    fn tail(&self, inode: u64, from: u64, wait: Duration) -> Result<Tailed> {
        self.tail(inode, from, wait)
    }

    fn input_of(&self, job: JobId, number: u32) -> Input {
        self.input_of(job, number)
    }

    fn known_names(&self) -> Result<Stale> {
        self.known_names()
    }

    fn owner(self: &Arc<Self>) -> Option<&Arc<LiveVolume>> {
        Some(self)
    }
}

impl Controlled for SharedVolume {
    fn stored(&self) -> Result<()> {
        self.store_all()
    }

    fn closed(&self) -> Result<()> {
        self.store_closed()
    }

    fn refresh_tail_rules(&self) -> Result<()> {
        self.refresh_tail_rules()
    }

    fn expect_file(&self, rule: &str, waits: StillWaits) -> Result<Receiver<JobId>> {
        self.expect_file(rule, waits)
    }

    fn tail(&self, inode: u64, from: u64, wait: Duration) -> Result<Tailed> {
        self.tail(inode, from, wait)
    }

    fn input_of(&self, job: JobId, number: u32) -> Input {
        self.input_of(job, number)
    }

    fn known_names(&self) -> Result<Stale> {
        // None: the kernel asks for each name anyway, or (`SharedOptions::names_for`) soon. The
        // place of a file that it opens without asking is searched for in its directory.
        Ok(Stale::default())
    }

    fn owner(self: &Arc<Self>) -> Option<&Arc<LiveVolume>> {
        None
    }
}

/// Where the mount that has this session listens, if it is on this host; a path for as long as
/// `store` is open.
pub fn listens_at(store: &Store, mount: SessionId) -> PathBuf {
    if store.is_shared() { dir_of_mount(store, mount) } else { store.home().path().to_path_buf() }
}

/// True if the mount that has this session can be asked from here, or could be until it was killed.
pub fn is_within_reach(store: &Store, mount: SessionId) -> bool {
    listens_at(store, mount).join(SOCKET).exists()
}

/// Where writable mounts of this store on this host may listen.
pub fn dirs_of(store: &Store) -> Vec<PathBuf> {
    if store.is_shared() { dirs_of_mounts(store) } else { vec![store.home().path().to_path_buf()] }
}

/// Connects to the writable mounts of this store on this host.
///
/// # Errors
/// When one does not let us in.
pub fn mounts_of(store: &Store) -> Result<Vec<Client>> {
    dirs_of(store).iter().filter_map(|dir| Client::connect(dir).transpose()).collect()
}

/// Socket paths are short; a directory's descriptor makes any path short.
fn through<T>(dir: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let open = std::fs::File::open(dir)?;
    work(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd())))
}

/// The mount's end of the control socket. Dropping it removes the socket.
pub struct Server {
    home: Home,
}

impl Server {
    /// Listens in `dir` ([`listens_at`]); `forget` tells the kernel. It serves until nobody else
    /// has the volume.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start<V: Controlled>(volume: &Arc<Counted<V>>, dir: &Path, forget: Arc<Forget>) -> Result<Self> {
        let home = Home::of(dir);
        let path = home.path().join(SOCKET);
        let what = || format!("cannot listen on {}", home.lies_at().join(SOCKET).display());
        // Left by a mount that was killed: the staging log's lock shows that no other one is alive.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(what),
            _ => {}
        }
        let listener = through(dir, |path| UnixListener::bind(path)).context(what)?;
        let volume = Arc::downgrade(volume);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(volume) = volume.upgrade() else { return };
                let forget = Arc::clone(&forget);
                // The thread ends with its client, which may vanish at any moment.
                let thread = std::thread::Builder::new().name("control".to_string());
                let talks = stream.and_then(|stream| {
                    thread.spawn(move || drop(serve(&volume, stream, &*forget))).map(drop)
                });
                if talks.is_err() {
                    // Too many open files or threads just now. The next client is heard all the
                    // same.
                    outrigger_clock::sleep(REFUSED_FOR);
                }
            }
        });
        Ok(Self { home })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.home.path().join(SOCKET));
    }
}

/// A client's lines; `None` when it has gone.
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn next(&mut self) -> io::Result<Option<String>> {
        Ok(Some(read_line_of(&mut self.0, ASKED_MAX)?).filter(|line| !line.is_empty()))
    }
}

fn serve<V: Controlled>(counted: &Counted<V>, stream: UnixStream, forget: &Forget) -> io::Result<()> {
    let volume = counted.inner();
    let mut answers = stream.try_clone()?;
    let mut lines = Lines(BufReader::new(stream));
    while let Some(line) = lines.next()? {
        match line.as_str() {
            "stored" => {
                let stored = volume.stored();
                drop(forgetting());
                answer(&mut answers, stored.map(|()| "ok".to_string()))?;
            }
            "closed" => answer(&mut answers, volume.closed().map(|()| "ok".to_string()))?,
            "status" => answer(&mut answers, Ok(measures::json(&counted.status(), &errors::recent())))?,
            "pause" => match owner(volume).and_then(|volume| volume.pause()) {
                Err(error) => answer(&mut answers, Err(error))?,
                Ok(paused) => {
                    answer(&mut answers, Ok("ok".to_string()))?;
                    let released = lines.next()?;
                    drop(paused);
                    if released.is_some() {
                        answer(&mut answers, Ok("ok".to_string()))?;
                    }
                }
            },
            line if line == "hold" || line.starts_with("hold ") => {
                let session =
                    line.strip_prefix("hold ").and_then(|number| number.parse().ok()).map(SessionId);
                let held = match owner(volume).and_then(|volume| volume.hold()) {
                    Ok(held) => held,
                    Err(error) => {
                        answer(&mut answers, Err(error))?;
                        continue;
                    }
                };
                let answered = answer(&mut answers, Ok("ok".to_string()));
                // Until the client is done, says anything, or is gone; or its time is over, after
                // which it can commit nothing.
                let released = answered.is_ok() && is_released(volume, &mut lines, session);
                let forgetting = forgetting();
                let stale = held.release();
                if let Ok(stale) = &stale {
                    forget(stale);
                }
                drop(forgetting);
                if released {
                    answer(&mut answers, stale.map(|_| "ok".to_string()))?;
                }
            }
            "rules" => {
                let refreshed = volume.refresh_tail_rules().and_then(|()| ask_again(&**volume, forget));
                answer(&mut answers, refreshed.map(|()| "ok".to_string()))?;
            }
            line if line.starts_with("follow ") => tail(&**volume, line, &mut answers)?,
            line if line.starts_with("input ") => answer(&mut answers, input_at(&**volume, line))?,
            line if line.starts_with("next ") => {
                let Some(job) = next(&**volume, line, &mut answers, forget)? else { return Ok(()) };
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

/// Kept from the moment at which changes go on until the kernel has forgotten what it knew. A
/// client that has seen the change in the database may wait for it.
fn forgetting() -> MutexGuard<'static, ()> {
    static FORGETTING: Mutex<()> = Mutex::new(());
    FORGETTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the word of a client that holds changes; false when it has gone, or its time and its
/// session are over.
fn is_released<V: Controlled>(volume: &Arc<V>, lines: &mut Lines, session: Option<SessionId>) -> bool {
    let limit = session.map(|_| HOLD_MAX);
    loop {
        let _ = lines.0.get_ref().set_read_timeout(limit);
        let said = lines.next();
        let _ = lines.0.get_ref().set_read_timeout(None);
        let is_late = matches!(&said, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        match (session, is_late) {
            // In the middle of a transaction the database refuses to end the session: then try
            // again.
            (Some(session), true) => {
                if owner(volume).and_then(|volume| volume.end_session(session)).is_ok() {
                    return false;
                }
            }
            _ => return matches!(said, Ok(Some(_))),
        }
    }
}

fn owner<V: Controlled>(volume: &Arc<V>) -> Result<&Arc<LiveVolume>> {
    let why = "this mount does not own its store: nothing has to wait for it";
    volume.owner().ok_or_else(|| Error::new(ErrorKind::Invalid, why))
}

/// Answers a reader.
fn tail<V: Controlled>(volume: &V, line: &str, answers: &mut UnixStream) -> io::Result<()> {
    let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(inode)), Some(Ok(from)), None) = (words.next(), words.next(), words.next()) else {
        let error = Error::new(ErrorKind::Invalid, "it is `follow INODE FROM`");
        return answer(answers, Err(error));
    };
    hand_out(answers, volume.tail(inode, from, TAIL_WAIT))
}

/// Answers a reader with the next bytes, or their state.
fn hand_out(answers: &mut impl io::Write, tailed: Result<Tailed>) -> io::Result<()> {
    match tailed {
        Ok(Tailed::Data(bytes)) => {
            writeln!(answers, "data {}", bytes.len())?;
            answers.write_all(&bytes)
        }
        Ok(Tailed::Nothing) => answer(answers, Ok("nothing".to_string())),
        // Only an agent that stores the file is asked, and none is on the mount's own host.
        Ok(Tailed::Asked) => answer(answers, Ok("asked".to_string())),
        Ok(Tailed::Closed) => answer(answers, Ok("closed".to_string())),
        Err(error) => answer(answers, Err(error)),
    }
}

/// Answers with the state of one of several inputs.
fn input_at<V: Controlled>(volume: &V, line: &str) -> Result<String> {
    let mut words = line.split(' ').skip(1);
    let job = words.next().and_then(|word| word.parse().ok());
    let number = words.next().and_then(|word| word.parse().ok());
    let (Some(job), Some(number)) = (job, number) else {
        return Err(Error::new(ErrorKind::Invalid, "it is `input JOB NUMBER`"));
    };
    Ok(input(volume.input_of(JobId(job), number)))
}

fn input(input: Input) -> String {
    match input {
        Input::NotYet => "nothing".to_string(),
        Input::Inode(inode) => format!("inode {inode}"),
        Input::Closed => "closed".to_string(),
        Input::Unknown => "unknown".to_string(),
    }
}

/// Makes the kernel look up names again: the mount must know the place of a file that it is to
/// tail, also if the kernel opens it by its number.
fn ask_again<V: Controlled>(volume: &V, forget: &Forget) -> Result<()> {
    forget(&volume.known_names()?);
    Ok(())
}

/// Waits for a file that matches a rule; `None` when its client waits no more.
fn next<V: Controlled>(
    volume: &V,
    line: &str,
    client: &mut UnixStream,
    forget: &Forget,
) -> io::Result<Option<Result<JobId>>> {
    let connection = client.try_clone()?;
    let waits = Box::new(move || !has_hung_up(&connection));
    let expected = volume.expect_file(line.strip_prefix("next ").unwrap_or_default(), waits);
    let expected = match expected.and_then(|expected| ask_again(volume, forget).map(|()| expected)) {
        Ok(expected) => expected,
        Err(error) => return Ok(Some(Err(error))),
    };
    answer(client, Ok("awaits".to_string()))?;
    loop {
        match expected.recv_timeout(LOOK_EVERY) {
            Ok(job) => return Ok(Some(Ok(job))),
            Err(RecvTimeoutError::Timeout) if has_hung_up(client) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let why = "the file's job could not be made";
                return Ok(Some(Err(Error::new(ErrorKind::Cancelled, why))));
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

fn answer(stream: &mut impl io::Write, what: Result<String>) -> io::Result<()> {
    let line = what
        .unwrap_or_else(|error| format!("error {:?} {}", error.kind(), error.to_string().replace('\n', " ")));
    writeln!(stream, "{line}")
}
