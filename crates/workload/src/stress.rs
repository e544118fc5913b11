//! Several processes work in one directory, and their promises to each other are checked.
//!
//! | what they share | what must hold |
//! | --- | --- |
//! | files of their own, in directories of all | each holds what its owner wrote last, wherever it was renamed to |
//! | a log that all append to | every record is there, once, whole, and in its writer's order |
//! | a file that all replace by a rename | it is always there, and always one whole version |
//! | counters behind `flock` and `fcntl` locks | no increment is lost |
//! | names that all try to create first | each has exactly one winner |

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use crate::{Rng, about};

/// The options of [`stress_job`].
#[derive(Clone, Debug)]
pub struct StressOptions {
    /// The same for all jobs.
    pub seed: u64,
    /// The number of jobs.
    pub jobs: u64,
    /// Steps of each job.
    pub steps: u64,
}

const SHARED_DIRS: u64 = 3;
const OWN_FILES: u64 = 40;
const EXCLUSIVE: u64 = 500;
const RECORD_MAGIC: u64 = 0x5245_434f_5244_2e2e;
const RECORD_HEAD: usize = 40;

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// FNV-1a: enough against mix-ups and torn writes.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(about(path))
}

/// Creates what the jobs share; once, before they start.
///
/// # Errors
/// As of the operations.
pub fn stress_start(dir: &Path) -> io::Result<()> {
    for n in 0..SHARED_DIRS {
        fs::create_dir_all(dir.join(format!("shared{n}")))?;
    }
    fs::create_dir_all(dir.join("won"))?;
    fs::write(dir.join("log"), "")?;
    fs::write(dir.join("flock"), "0")?;
    fs::write(dir.join("fcntl"), "0")?;
    fs::write(dir.join("current"), record(u64::MAX, 0, 100))
}

/// A record of a job: a head with lengths and a checksum, then bytes that follow from the job and
/// its number.
fn record(job: u64, number: u64, len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    Rng::part(job, number).fill(&mut body);
    let words = [RECORD_MAGIC, job, number, len as u64, sum(&body)];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(body).collect()
}

/// The job and number of the whole record at the beginning of `bytes`, and its length.
fn parse(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let word = |n: usize| Some(u64::from_le_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
    let (job, number, len) = (word(1)?, word(2)?, usize::try_from(word(3)?).ok()?);
    let body = bytes.get(RECORD_HEAD..RECORD_HEAD.checked_add(len)?)?;
    (word(0)? == RECORD_MAGIC && word(4)? == sum(body)).then_some((job, number, RECORD_HEAD + len))
}

struct Job<'a> {
    dir: &'a Path,
    job: u64,
    rng: Rng,
    /// Own files with their content.
    own: BTreeMap<PathBuf, Vec<u8>>,
    made: u64,
    done: Done,
}

/// The work of a job, for [`stress_finish`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Records appended to the log.
    pub appended: u64,
    /// Increments of the counter behind `flock`.
    pub flock: u64,
    /// Increments of the counter behind `fcntl`.
    pub fcntl: u64,
    /// Names that it was the first to create.
    pub won: u64,
    /// Names that it found created.
    pub lost: u64,
}

/// Runs one job to its end and checks its own files.
///
/// # Errors
/// An operation failed, or a check did.
pub fn stress_job(dir: &Path, job: u64, options: &StressOptions) -> io::Result<Done> {
    let rng = Rng::part(options.seed, job);
    let mut this = Job { dir, job, rng, own: BTreeMap::new(), made: 0, done: Done::default() };
    for step in 0..options.steps {
        match this.rng.below(10) {
            0..5 => this.own_file()?,
            5 => this.append()?,
            6 => this.replace()?,
            7 => this.read_current()?,
            8 if step % 2 == 0 => this.count("flock")?,
            8 => this.count("fcntl")?,
            _ => this.race()?,
        }
    }
    for (path, bytes) in &this.own {
        if read(path)? != *bytes {
            return Err(wrong(format!("{}: not what its owner wrote", path.display())));
        }
    }
    Ok(this.done)
}

impl Job<'_> {
    fn new_path(&mut self) -> PathBuf {
        self.made += 1;
        let shared = self.rng.below(SHARED_DIRS);
        self.dir.join(format!("shared{shared}/job{}-{}", self.job, self.made))
    }

    fn pick(&mut self) -> Option<PathBuf> {
        let at = self.rng.below(self.own.len() as u64) as usize;
        self.own.keys().nth(at).cloned()
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.between(1, max) as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn own_file(&mut self) -> io::Result<()> {
        let (path, pick) = (self.pick(), self.rng.below(8));
        let Some(path) = path.filter(|_| pick > 1 || self.own.len() as u64 >= OWN_FILES) else {
            let (path, bytes) = (self.new_path(), self.bytes(60_000));
            let mut file =
                OpenOptions::new().write(true).create_new(true).open(&path).map_err(about(&path))?;
            for part in bytes.chunks(7000) {
                file.write_all(part).map_err(about(&path))?;
            }
            self.own.insert(path, bytes);
            return Ok(());
        };
        let mut bytes = self.own.remove(&path).unwrap_or_default();
        match pick {
            0..=2 => {
                fs::remove_file(&path).map_err(about(&path))?;
                if path.exists() {
                    return Err(wrong(format!("{}: still there after unlink", path.display())));
                }
                return Ok(());
            }
            3 | 4 => {
                // Sometimes over another file of its own.
                let onto = self.pick().filter(|_| pick == 4);
                let to = onto.unwrap_or_else(|| self.new_path());
                fs::rename(&path, &to).map_err(about(&path))?;
                self.own.insert(to, bytes);
                return Ok(());
            }
            5 => {
                let more = self.bytes(9000);
                let mut file = OpenOptions::new().append(true).open(&path).map_err(about(&path))?;
                file.write_all(&more).map_err(about(&path))?;
                bytes.extend(more);
            }
            6 => {
                let part = self.bytes(9000);
                let at = self.rng.below(bytes.len() as u64 + 1) as usize;
                let file = OpenOptions::new().write(true).open(&path).map_err(about(&path))?;
                file.write_all_at(&part, at as u64).map_err(about(&path))?;
                if self.rng.below(4) == 0 {
                    file.sync_data().map_err(about(&path))?;
                }
                bytes.resize(bytes.len().max(at + part.len()), 0);
                bytes[at..at + part.len()].copy_from_slice(&part);
            }
            _ => {
                if read(&path)? != bytes {
                    return Err(wrong(format!("{}: not what its owner wrote", path.display())));
                }
                let len = self.rng.below(bytes.len() as u64 * 5 / 4 + 2);
                let file = OpenOptions::new().write(true).open(&path).map_err(about(&path))?;
                file.set_len(len).map_err(about(&path))?;
                bytes.resize(len as usize, 0);
            }
        }
        self.own.insert(path, bytes);
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let path = self.dir.join("log");
        let record = record(self.job, self.done.appended, self.rng.below(5000) as usize);
        let mut log = OpenOptions::new().append(true).open(&path).map_err(about(&path))?;
        if log.write(&record).map_err(about(&path))? != record.len() {
            return Err(wrong("log: a record was written in part"));
        }
        self.done.appended += 1;
        Ok(())
    }

    fn replace(&mut self) -> io::Result<()> {
        let new = self.dir.join(format!("current.{}", self.job));
        fs::write(&new, record(self.job, self.done.appended, self.rng.below(100_000) as usize))
            .map_err(about(&new))?;
        fs::rename(&new, self.dir.join("current")).map_err(about(&new))
    }

    fn read_current(&mut self) -> io::Result<()> {
        let bytes = read(&self.dir.join("current"))?;
        match parse(&bytes) {
            Some((_, _, len)) if len == bytes.len() => Ok(()),
            _ => Err(wrong(format!("current: {} bytes that are no whole version", bytes.len()))),
        }
    }

    fn count(&mut self, kind: &str) -> io::Result<()> {
        let path = self.dir.join(kind);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(about(&path))?;
        if kind == "flock" {
            flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from).map_err(about(&path))?;
            self.done.flock += 1;
        } else {
            fcntl_lock(&file, FlockOperation::LockExclusive)
                .map_err(io::Error::from)
                .map_err(about(&path))?;
            self.done.fcntl += 1;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(about(&path))?;
        let count: u64 = text.parse().map_err(|_| wrong(format!("{kind}: {text:?} is no number")))?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all((count + 1).to_string().as_bytes()).map_err(about(&path))
        // The lock goes with the handle.
    }

    fn race(&mut self) -> io::Result<()> {
        let path = self.dir.join(format!("won/{}", self.rng.below(EXCLUSIVE)));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => self.done.won += 1,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.done.lost += 1,
            Err(error) => return Err(about(&path)(error)),
        }
        Ok(())
    }
}

/// Checks the jobs' shared files after their end.
///
/// # Errors
/// A violation, or a file that cannot be read.
pub fn stress_finish(dir: &Path, done: &[Done]) -> io::Result<()> {
    let log = read(&dir.join("log"))?;
    let (mut at, mut next) = (0, vec![0; done.len()]);
    while at < log.len() {
        let (job, number, len) = parse(&log[at..])
            .ok_or_else(|| wrong(format!("log: no whole record at {at} of {}", log.len())))?;
        let expected = next.get_mut(job as usize).ok_or_else(|| wrong(format!("log: job {job}")))?;
        if number != *expected {
            return Err(wrong(format!("log: record {number} of job {job} at {at}, expected {expected}")));
        }
        *expected += 1;
        at += len;
    }
    for (job, (found, done)) in next.iter().zip(done).enumerate() {
        if *found != done.appended {
            return Err(wrong(format!("log: {found} records of job {job}, it wrote {}", done.appended)));
        }
    }
    let counters =
        [("flock", done.iter().map(|d| d.flock).sum::<u64>()), ("fcntl", done.iter().map(|d| d.fcntl).sum())];
    for (kind, expected) in counters {
        let found = fs::read_to_string(dir.join(kind))?;
        if found != expected.to_string() {
            return Err(wrong(format!("{kind}: counted to {found}, expected {expected}")));
        }
    }
    let (won, names) = (done.iter().map(|d| d.won).sum::<u64>(), fs::read_dir(dir.join("won"))?.count());
    if won != names as u64 {
        return Err(wrong(format!("won: {won} creations won {names} names")));
    }
    let leftover = File::open(dir.join("current"))?.metadata()?.len();
    let current = read(&dir.join("current"))?;
    if parse(&current).is_none_or(|(_, _, len)| len as u64 != leftover) {
        return Err(wrong("current: no whole version"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(jobs: u64, steps: u64) -> (tempfile::TempDir, Vec<Done>) {
        let dir = tempfile::tempdir().unwrap();
        let options = StressOptions { seed: 1, jobs, steps };
        stress_start(dir.path()).unwrap();
        // `fcntl` locks belong to a process, and threads stand in for processes here. So the
        // counter behind them is left out; the binary starts processes.
        let done: Vec<Done> = std::thread::scope(|scope| {
            let start = |job| {
                scope.spawn({
                    let (path, options) = (dir.path(), &options);
                    move || stress_job(path, job, options).unwrap()
                })
            };
            let jobs: Vec<_> = (0..jobs).map(start).collect();
            jobs.into_iter().map(|job| job.join().unwrap()).collect()
        });
        let fcntl: u64 = done.iter().map(|done| done.fcntl).sum();
        fs::write(dir.path().join("fcntl"), fcntl.to_string()).unwrap();
        (dir, done)
    }

    #[test]
    fn jobs_get_along_and_everything_is_done() {
        let (dir, done) = run(1, 3000);
        stress_finish(dir.path(), &done).unwrap();
        let all = done[0];
        assert!([all.appended, all.flock, all.fcntl, all.won, all.lost].iter().all(|&n| n > 50), "{all:?}");
    }

    #[test]
    fn damage_is_found() {
        let (dir, done) = run(1, 600);
        let at = |name: &str| dir.path().join(name);
        stress_finish(dir.path(), &done).unwrap();
        let log = fs::read(at("log")).unwrap();
        let expect = |what: &str| {
            let error = stress_finish(dir.path(), &done).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        let mut torn = log.clone();
        torn[60] ^= 1;
        fs::write(at("log"), torn).unwrap();
        expect("no whole record at 0");
        let (_, _, first) = parse(&log).unwrap();
        fs::write(at("log"), &log[first..]).unwrap();
        expect("record 1 of job 0");
        fs::write(at("log"), "").unwrap();
        expect("0 records");
        fs::write(at("log"), log).unwrap();
        fs::write(at("flock"), "3").unwrap();
        expect("flock: counted to 3");
        fs::write(at("flock"), done[0].flock.to_string()).unwrap();
        fs::write(at("won/extra"), "").unwrap();
        expect("won");
    }
}
