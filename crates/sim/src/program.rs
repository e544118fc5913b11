//! Operations of a program on one key, as clients of real clusters do them
//! (`workload/src/history/client.rs`).

use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_workload::history::{
    ABSENT, Action, EXISTS, FIRST, HERE, How, MOVED, REMOVED, TORN, WON, content, value_of,
};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::history::Failure;
use crate::host::{Done, Host, Open};
use crate::script::{DIRS, INPUTS, LENGTHS, MOVING, PART_LEN, PARTED, PARTS};
use crate::work;

/// The answer to an operation.
type Told = Result<String, Failure>;

use Failure::{After, Before};

/// The pause before a retry.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of tries, with ever longer pauses. A file that has rotted can never be stored.
const TRIES: u32 = 50;
/// The end of any file.
const ALL: usize = 1 << 30;

/// The file of a key, and the key's part of it.
pub(crate) fn place(key: &str) -> (String, u64, usize) {
    match key.strip_prefix('w').and_then(|rest| rest.split_once(':')) {
        Some((file, part)) => {
            let part: u64 = part.parse().unwrap_or(0);
            (file.to_owned(), part * PART_LEN as u64, PART_LEN)
        }
        None => (key.to_owned(), 0, ALL),
    }
}

/// Creates the files that programs share.
///
/// # Errors
/// The mount's.
pub fn prepare(host: &Host) -> Done<()> {
    let put = |name: &str, bytes: &[u8]| {
        let file = host.open(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        file.write(0, bytes)?;
        file.close(None)
    };
    host.mkdir("own")?;
    for number in 0..DIRS {
        host.mkdir(&format!("d{number}"))?;
    }
    for number in 0..MOVING {
        put(&format!("d0/m{number}"), &content(&format!("m{number}"), 300))?;
    }
    for (number, len) in LENGTHS.into_iter().enumerate() {
        put(&format!("w{number}"), &content(FIRST, len))?;
    }
    for number in 0..PARTED {
        put(&format!("p{number}"), &content(FIRST, PART_LEN).repeat(PARTS as usize))?;
    }
    host.mkdir(work::OUTPUTS)?;
    host.mkdir("in")?;
    for number in 0..INPUTS.len() {
        put(&format!("in/{number}"), &work::input(number))?;
    }
    put("flock0", b"0")?;
    put("fcntl0", b"0")
}

/// A program at work.
pub struct Program<'a> {
    /// The mount.
    pub host: &'a Host,
    /// The operation's name, which is also the value that it writes.
    pub id: String,
    /// Its process.
    pub process: u64,
}

impl<'a> Program<'a> {
    /// Does an operation.
    ///
    /// # Errors
    /// The mount's.
    pub fn act(&self, key: &str, action: Action, len: usize) -> Told {
        match action {
            Action::Write => self.write(key, len)?.close(None).map_err(After).map(|()| "ok".into()),
            Action::Replace => self.replace(key, len),
            Action::Read => self.read(key),
            Action::Count => self.count(key, len),
            Action::Append => self.append(key, len),
            Action::Lines => self.lines(key),
            Action::Claim(how) => self.claim(key, how, len),
            Action::Find => self.find(key),
            Action::Remove => {
                let removed = if key.starts_with('d') { self.host.rmdir(key) } else { self.host.unlink(key) };
                told(removed, REMOVED, Errno::NOENT, ABSENT)
            }
            Action::Move { from, to } => {
                let [from, to] = [from, to].map(|dir| format!("d{dir}/{key}"));
                told(self.host.rename(&from, &to, RenameFlags::empty()), MOVED, Errno::NOENT, ABSENT)
            }
            Action::Stat(dir) => match self.host.stat(&format!("d{dir}/{key}")) {
                Ok(_) => Ok(HERE.into()),
                Err(Errno::NOENT) => Ok(ABSENT.into()),
                Err(errno) => Err(Before(errno)),
            },
        }
    }

    /// Overwrites a register in place, and leaves it open.
    ///
    /// # Errors
    /// The mount's.
    pub fn write(&self, key: &str, len: usize) -> Result<Open<'a>, Failure> {
        let (name, offset, _) = place(key);
        let file = self.host.open(&name, OFlags::WRONLY).map_err(Before)?;
        match file.write(offset, &content(&self.id, len)) {
            Ok(()) => Ok(file),
            Err(errno) => {
                let _ = file.close(None);
                Err(After(errno))
            }
        }
    }

    /// Writes a whole file of its own, to be given another name.
    fn own(&self, len: usize) -> Result<String, Failure> {
        let name = format!("own/{}", self.id.replace('/', "-"));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = self.host.open(&name, flags).map_err(Before)?;
        let written = file.write(0, &content(&self.id, len));
        let closed = file.close(None);
        written.and(closed).map_err(Before)?;
        Ok(name)
    }

    fn replace(&self, key: &str, len: usize) -> Told {
        let own = self.own(len)?;
        self.host.rename(&own, key, RenameFlags::empty()).map_err(After)?;
        Ok("ok".into())
    }

    fn bytes(&self, name: &str, offset: u64, len: usize) -> Done<Vec<u8>> {
        let file = self.host.open(name, OFlags::RDONLY)?;
        let bytes = file.read(offset, len);
        let _ = file.close(None);
        bytes
    }

    fn read(&self, key: &str) -> Told {
        let (name, offset, len) = place(key);
        match self.bytes(&name, offset, len) {
            Ok(bytes) if key.starts_with('f') => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(bytes) => Ok(value_of(&bytes).unwrap_or_else(|| TORN.into())),
            Err(Errno::NOENT) => Ok(ABSENT.into()),
            Err(errno) => Err(Before(errno)),
        }
    }

    fn count(&self, key: &str, secs: usize) -> Told {
        let process = key.starts_with("fcntl").then_some(self.process);
        let file = self.host.open(key, OFlags::RDWR).map_err(Before)?;
        let counted = self.count_locked(key, &file, process, secs);
        match counted {
            Ok(number) => file.close(process).map_err(After).map(|()| number),
            Err(failure) => {
                let _ = file.close(process);
                Err(failure)
            }
        }
    }

    fn count_locked(&self, key: &str, file: &Open<'_>, process: Option<u64>, secs: usize) -> Told {
        file.lock(process).map_err(Before)?;
        let session = self.host.volume.session_id();
        let bytes = file.read(0, 20).map_err(Before)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        outrigger_clock::sleep(Duration::from_secs(secs as u64));
        let again = self.bytes(key, 0, 20).map_err(Before)?;
        if again != bytes && self.host.has(session) {
            return Ok(format!(
                "{text:?}, and then {:?} under the same lock",
                String::from_utf8_lossy(&again)
            ));
        }
        let Ok(number) = text.parse::<u64>() else { return Ok(format!("{text:?}")) };
        let written = file.write(0, (number + 1).to_string().as_bytes());
        // The lock is kept while the data cannot be stored.
        let mut unlocked = file.unlock(process);
        for pause in 1..TRIES {
            if !matches!(unlocked, Err(Errno::IO | Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::NOSPC)) {
                break;
            }
            outrigger_clock::sleep(PAUSE * pause);
            unlocked = file.unlock(process);
        }
        written.and(unlocked).map_err(After)?;
        Ok(number.to_string())
    }

    fn append(&self, key: &str, len: usize) -> Told {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = self.host.open(key, flags).map_err(Before)?;
        let line = format!("{} {}\n", self.id, "-".repeat(len));
        let written = file.write(0, line.as_bytes());
        let closed = file.close(None);
        written.and(closed).map_err(After).map(|()| "ok".into())
    }

    fn lines(&self, key: &str) -> Told {
        let bytes = match self.bytes(key, 0, ALL) {
            Err(Errno::NOENT) => Vec::new(),
            bytes => bytes.map_err(Before)?,
        };
        let id = |line: &str| match line.split_once(' ') {
            Some((id, rest)) if rest.bytes().all(|byte| byte == b'-') => id.to_owned(),
            _ => TORN.to_owned(),
        };
        Ok(String::from_utf8_lossy(&bytes).lines().map(id).collect::<Vec<_>>().join(","))
    }

    fn claim(&self, key: &str, how: How, len: usize) -> Told {
        let made = match how {
            How::Exclusive => match self.host.open(key, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL) {
                Ok(file) => {
                    let written = file.write(0, &content(&self.id, len));
                    let closed = file.close(None);
                    written.and(closed)
                }
                Err(errno) => Err(errno),
            },
            How::Directory => self.host.mkdir(key),
            How::Link => {
                let own = self.own(len)?;
                let made = self.host.link(&own, key);
                let _ = self.host.unlink(&own);
                made
            }
            How::Rename => {
                let own = self.own(len)?;
                self.host.rename(&own, key, RenameFlags::NOREPLACE)
            }
        };
        told(made, WON, Errno::EXIST, EXISTS)
    }

    fn find(&self, key: &str) -> Told {
        match self.host.stat(key) {
            Ok(attr) if attr.kind == FileKind::Directory => Ok("dir".into()),
            Ok(_) => {
                let bytes = self.bytes(key, 0, ALL).map_err(Before)?;
                let empty = if bytes.is_empty() { "empty" } else { TORN };
                Ok(value_of(&bytes).unwrap_or_else(|| empty.into()))
            }
            Err(Errno::NOENT) => Ok(ABSENT.into()),
            Err(errno) => Err(Before(errno)),
        }
    }
}

/// The answer of an operation that changes names.
fn told(done: Done<()>, word: &str, refused: Errno, refusal: &str) -> Told {
    match done {
        Ok(()) => Ok(word.into()),
        Err(errno) if errno == refused => Ok(refusal.into()),
        Err(errno) => Err(After(errno)),
    }
}
