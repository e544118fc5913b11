//! A command's end of the conversation with a mount.

use std::io::{self, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use super::line::{Line, read_line};
use super::remote::{self, DEADLINE};
use super::through;
use crate::live::Input;
use crate::tail::{BLOCK, Tailed};

/// The connection.
pub struct Client {
    stream: BufReader<Line>,
}

impl Client {
    /// Connects to the mount that listens in this directory, the store's own or that of
    /// [`super::listens_at`]; `None` when there is none.
    ///
    /// # Errors
    /// When there is one that does not let us in.
    pub fn connect(dir: &Path) -> Result<Option<Self>> {
        match through(dir, |path| UnixStream::connect(path)) {
            Ok(stream) => Ok(Some(Self { stream: BufReader::new(Line::Here(stream)) })),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).context(|| "cannot talk to the mount of this store".to_string()),
        }
    }

    /// Connects to a mount on another host that offers its open files ([`super::Remote`]), as the
    /// client with this session; `None` when it offers none, or cannot be reached.
    ///
    /// # Errors
    /// When it does not let us in, and those of the database.
    pub fn reach(store: &Store, mount: SessionId, session: SessionId) -> Result<Option<Self>> {
        let Some(offer) = remote::offer_of(store, mount)? else { return Ok(None) };
        // Anybody else who answers there: this mount has gone, and another one listens where it
        // did.
        let Ok(stream) = offer.talk(DEADLINE) else { return Ok(None) };
        let mut client = Self { stream: BufReader::new(Line::There(stream)) };
        let Ok(greeting) = client.hear() else { return Ok(None) };
        let challenge = greeting.strip_prefix(remote::GREETING).ok_or_else(|| not_understood(&greeting))?;
        let knock = remote::knock(store, challenge, session)?;
        let let_in = client.ask(&format!("session {}", session.0));
        drop(knock);
        match let_in {
            Ok(_) => client.answers_within(remote::ANSWERS_WITHIN).map(|()| Some(client)),
            Err(error) if error.kind() == ErrorKind::Io => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a line, waits for the answer.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{line}").context(gone)?;
        self.hear()
    }

    /// Waits for a line of the mount.
    fn hear(&mut self) -> Result<String> {
        let answer = read_line(&mut self.stream).context(gone)?;
        if answer.is_empty() {
            return Err(Error::new(ErrorKind::Io, gone()));
        }
        match answer.strip_prefix("error ") {
            None => Ok(answer),
            Some(error) => {
                let (kind, text) = error.split_once(' ').unwrap_or(("Io", error));
                Err(Error::new(kind_named(kind), format!("the mount of this store: {text}")))
            }
        }
    }

    /// Waits at most this long for an answer from now on: a later one is `Io`, and the conversation
    /// is over.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn answers_within(&self, most: Duration) -> Result<()> {
        let set = self.stream.get_ref().set_read_timeout(Some(most));
        set.context(|| "cannot talk to the mount".to_string())
    }

    /// Ends the conversation, also while another thread waits for an answer.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn hang_up(&self) -> Result<impl FnOnce() + Send + 'static> {
        let end = self.stream.get_ref().end().context(|| "cannot talk to the mount".to_string())?;
        Ok(move || drop(end.shutdown()))
    }

    /// The next bytes of a file that is being written.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn tail(&mut self, inode: u64, from: u64) -> Result<Tailed> {
        let answer = self.ask(&format!("follow {inode} {from}"))?;
        let mut words = answer.split(' ');
        let first = words.next().unwrap_or_default();
        match (first, words.next().map(str::parse::<usize>)) {
            ("nothing", None) => Ok(Tailed::Nothing),
            ("asked", None) => Ok(Tailed::Asked),
            ("closed", None) => Ok(Tailed::Closed),
            ("data", Some(Ok(len))) if len as u64 <= BLOCK => {
                let mut bytes = vec![0; len];
                self.stream.read_exact(&mut bytes).context(gone)?;
                Ok(Tailed::Data(bytes))
            }
            _ => Err(not_understood(&answer)),
        }
    }

    /// Stores a file of this mount, on another host, from now on; false if that is not wanted.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn carry(&mut self, inode: u64) -> Result<bool> {
        self.yes(&format!("carry {inode}"))
    }

    /// Reports that the first `len` bytes of a file are stored and held
    /// ([`outrigger_store::increments::delegated_to`]); false if the mount does not want them.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn stored(&mut self, inode: u64, len: u64) -> Result<bool> {
        self.yes(&format!("stored {inode} {len}"))
    }

    fn yes(&mut self, line: &str) -> Result<bool> {
        let answer = self.ask(line)?;
        match answer.as_str() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(not_understood(&answer)),
        }
    }

    /// Waits for a file that matches a rule (JSON in a line), and returns the job that reads it.
    /// `awaits` is called when new files will be noticed.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn next(&mut self, rule: &str, awaits: impl FnOnce()) -> Result<JobId> {
        let answer = self.ask(&format!("next {rule}"))?;
        if answer != "awaits" {
            return Err(not_understood(&answer));
        }
        awaits();
        let answer = self.hear()?;
        let job = answer.strip_prefix("job ").and_then(|number| number.parse().ok());
        job.map(JobId).ok_or_else(|| not_understood(&answer))
    }

    /// Where one of several inputs of a job is.
    ///
    /// # Errors
    /// What the mount says, and `Io` when it has gone.
    pub fn input(&mut self, job: JobId, number: u32) -> Result<Input> {
        let answer = self.ask(&format!("input {job} {number}"))?;
        match (answer.as_str(), answer.strip_prefix("inode ").map(str::parse)) {
            ("nothing", _) => Ok(Input::NotYet),
            ("closed", _) => Ok(Input::Closed),
            ("unknown", _) => Ok(Input::Unknown),
            (_, Some(Ok(inode))) => Ok(Input::Inode(inode)),
            _ => Err(not_understood(&answer)),
        }
    }

    /// Waits until the mount has ended: it has stored everything by then.
    pub fn wait_for_end(mut self) {
        while read_line(&mut self.stream).is_ok_and(|line| !line.is_empty()) {}
    }
}

fn gone() -> String {
    "the mount of this store has ended".to_string()
}

fn not_understood(answer: &str) -> Error {
    let why = format!(
        "the mount's answer `{answer}` is not understood: is it of another version than this program?"
    );
    Error::new(ErrorKind::Invalid, why)
}

fn kind_named(name: &str) -> ErrorKind {
    use ErrorKind::{Busy, Damaged, Denied, Exists, Fenced, Full, Invalid, NotFound};
    let kinds = [Busy, Damaged, Denied, Exists, Fenced, Full, Invalid, NotFound];
    kinds.into_iter().find(|kind| format!("{kind:?}") == name).unwrap_or(ErrorKind::Io)
}
