//! Makes random operations, and logs each when it has returned.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::model::{Model, Node, bytes};
use super::{HEADER, Op, Promise};
use crate::{Rng, about};

/// The number and the kinds of operations that [`ack_write`] makes.
#[derive(Clone, Debug)]
pub struct AckOptions {
    /// The same seed makes the same operations.
    pub seed: u64,
    /// The number of operations.
    pub ops: u64,
    /// The time after which it ends, if given.
    pub time: Option<Duration>,
    /// True to make hard links.
    pub links: bool,
}

/// The progress of [`ack_write`].
#[derive(Debug)]
pub struct AckReport {
    /// Operations that returned and are in the log.
    pub acked: u64,
    /// The operation that failed, after which it stopped, and why.
    pub failed: Option<(String, io::Error)>,
}

const DIRS: u64 = 4;
const FILES: u64 = 24;
const LEN_MAX: u64 = 1 << 20;
/// The most open files; older ones are closed first.
const OPEN_MAX: usize = 12;

/// Makes random operations in `dir`, which must be empty or missing, and logs each to `log`, which
/// must not exist yet and lie on another file system. Ends at the first one that fails.
///
/// # Errors
/// The directory is not empty, or the log cannot be written. An operation that fails is reported,
/// and is no error.
pub fn ack_write(dir: &Path, log: &Path, options: &AckOptions) -> io::Result<AckReport> {
    fs::create_dir_all(dir).map_err(about(dir))?;
    if fs::read_dir(dir).map_err(about(dir))?.next().is_some() {
        return Err(io::Error::other(format!("{} is not empty", dir.display())));
    }
    let mut log_file = OpenOptions::new().write(true).create_new(true).open(log).map_err(about(log))?;
    writeln!(log_file, "{HEADER}{}", options.seed)?;
    let mut writer = Writer {
        dir,
        model: Model::new(Promise::Acked, options.seed),
        rng: Rng::new(options.seed ^ 0xACED),
        open: BTreeMap::new(),
        seed: options.seed,
        links: options.links,
    };
    let begin = Instant::now();
    // Permanent directories come first and are synced, so that their content can be judged by
    // itself.
    let mut planned: Vec<Op> = (0..DIRS).map(|n| Op::Mkdir(format!("d{n}"))).collect();
    planned.push(Op::FsyncDir(".".to_owned()));
    planned.reverse();
    for number in 0..options.ops {
        if options.time.is_some_and(|time| begin.elapsed() >= time) {
            return Ok(AckReport { acked: number, failed: None });
        }
        let op = planned.pop().unwrap_or_else(|| writer.choose());
        log_file.write_all(format!("> {number} {op}\n").as_bytes())?;
        if let Err(error) = writer.perform(number, &op) {
            log_file.write_all(format!("! {number} {error}\n").as_bytes())?;
            return Ok(AckReport { acked: number, failed: Some((op.to_string(), error)) });
        }
        log_file.write_all(format!("< {number}\n").as_bytes())?;
        writer.model.apply(number, &op);
        writer.model.acked(&op);
        writer.forget_unlinked();
    }
    Ok(AckReport { acked: options.ops, failed: None })
}

struct Writer<'a> {
    dir: &'a Path,
    /// A model in which every operation has happened exactly.
    model: Model,
    rng: Rng,
    /// By number in the model.
    open: BTreeMap<usize, File>,
    seed: u64,
    links: bool,
}

impl Writer<'_> {
    fn choose(&mut self) -> Op {
        if self.open.len() >= OPEN_MAX {
            return Op::Close(self.open_name());
        }
        loop {
            let pick = self.rng.below(100);
            if let Some(op) = self.try_choose(pick) {
                return op;
            }
        }
    }

    /// An operation of the kind `pick`, if there is one now.
    fn try_choose(&mut self, pick: u64) -> Option<Op> {
        let a = self.name();
        let file = self.model.file(&a);
        let there = self.model.get(&a).is_some();
        let len = file.map_or(0, |id| self.model.files[id].len);
        Some(match pick {
            0..12 if !there => Op::Create(a),
            12..45 => {
                file?;
                let mut at = self.rng.below(len + 1);
                match self.rng.below(8) {
                    0..3 => at &= !4095,
                    3 => at = len + self.rng.below(16 << 10),
                    _ => {}
                }
                Op::Write {
                    path: a,
                    at: at.min(LEN_MAX - 1),
                    len: self.write_len(LEN_MAX - at.min(LEN_MAX - 1)),
                }
            }
            45..56 => {
                file?;
                (len < LEN_MAX).then_some(())?;
                Op::Append { path: a, len: self.write_len(LEN_MAX - len) }
            }
            56..61 => {
                file?;
                Op::Truncate { path: a, len: self.rng.below((len * 5 / 4 + 4096).min(LEN_MAX)) }
            }
            61..70 => {
                matches!(self.model.get(&a)?, Node::File(_) | Node::Symlink(_)).then_some(())?;
                Op::Rename { from: a, to: self.name() }
            }
            70..73 if self.links => {
                file?;
                let to = self.name();
                self.model.get(&to).is_none().then_some(())?;
                Op::Link { from: a, to }
            }
            73..75 if !there => Op::Symlink { path: a, target: format!("target{}", self.rng.below(1000)) },
            75..81 if there => Op::Unlink(a),
            81..86 => {
                let (e, to) = (self.dir_name(), self.dir_name());
                match (self.model.get(&e).is_some(), self.rng.below(3)) {
                    (false, _) => Op::Mkdir(e),
                    (true, 0) => Op::Rmdir(e),
                    (true, _) => {
                        (e != to).then_some(())?;
                        Op::Rename { from: e, to }
                    }
                }
            }
            86..92 => {
                file?;
                Op::Fsync(a)
            }
            92..94 => Op::FsyncDir(match self.rng.below(DIRS + 1) {
                DIRS => ".".to_owned(),
                n => format!("d{n}"),
            }),
            94.. => {
                (!self.open.is_empty()).then_some(())?;
                Op::Close(self.open_name())
            }
            _ => return None,
        })
    }

    fn name(&mut self) -> String {
        format!("d{}/f{}", self.rng.below(DIRS), self.rng.below(FILES))
    }

    /// The name of an empty directory, which comes and goes.
    fn dir_name(&mut self) -> String {
        format!("e{}", self.rng.below(6))
    }

    fn open_name(&mut self) -> String {
        let at = self.rng.index(self.open.len());
        let id = *self.open.keys().nth(at).expect("one of them");
        self.model.files[id].names.first().expect("files without a name are closed").clone()
    }

    /// Mostly small, some large.
    fn write_len(&mut self, max: u64) -> u64 {
        let len = match self.rng.below(20) {
            0..13 => self.rng.between(1, 4096),
            13..19 => self.rng.between(1, 32 << 10),
            _ => self.rng.between(1, 256 << 10),
        };
        len.min(max)
    }

    fn file(&mut self, path: &str) -> io::Result<&File> {
        let id = self.model.file(path).ok_or(io::ErrorKind::NotFound)?;
        if !self.open.contains_key(&id) {
            let file = OpenOptions::new().read(true).write(true).open(self.dir.join(path))?;
            self.open.insert(id, file);
        }
        Ok(&self.open[&id])
    }

    fn perform(&mut self, number: u64, op: &Op) -> io::Result<()> {
        let (dir, seed) = (self.dir, self.seed);
        let at = |path: &str| dir.join(path);
        match op {
            Op::Create(path) => {
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(at(path))?;
                self.open.insert(self.model.files.len(), file);
                Ok(())
            }
            Op::Write { path, at, len } => {
                let data = bytes(seed, number, *len);
                self.file(path)?.write_all_at(&data, *at)
            }
            // Through another handle, so that the kernel or the file system must find the end.
            Op::Append { path, len } => {
                let mut file = OpenOptions::new().append(true).open(at(path))?;
                file.write_all(&bytes(seed, number, *len))
            }
            Op::Truncate { path, len } if number.is_multiple_of(2) => self.file(path)?.set_len(*len),
            Op::Truncate { path, len } => OpenOptions::new().write(true).open(at(path))?.set_len(*len),
            Op::Rename { from, to } => fs::rename(at(from), at(to)),
            Op::Link { from, to } => fs::hard_link(at(from), at(to)),
            Op::Symlink { path, target } => std::os::unix::fs::symlink(target, at(path)),
            Op::Unlink(path) => fs::remove_file(at(path)),
            Op::Mkdir(path) => fs::create_dir(at(path)),
            Op::Rmdir(path) => fs::remove_dir(at(path)),
            Op::Fsync(path) if number.is_multiple_of(2) => self.file(path)?.sync_all(),
            Op::Fsync(path) => self.file(path)?.sync_data(),
            Op::FsyncDir(path) => File::open(at(path))?.sync_all(),
            Op::Close(path) => {
                if let Some(id) = self.model.file(path) {
                    self.open.remove(&id);
                }
                Ok(())
            }
        }
    }

    fn forget_unlinked(&mut self) {
        let files = &self.model.files;
        self.open.retain(|&id, _| !files[id].names.is_empty());
    }
}
