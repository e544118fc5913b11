//! Turns system calls into steps of a [`Recording`].
//!
//! Each call comes with its descriptor's path. So only state that strace does not show is tracked
//! here: the file offset of each descriptor (for `write`), whether it appends or syncs with each
//! write, and each process's current directory. Threads share a descriptor table. Forked processes
//! get a copy of it, and copies share offsets, as in the kernel.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::model::{Inode, ignored};
use super::recording::Recording;
use super::strace::{Call, Described, Event, Parser, buffers, descriptor, number, path, string};
use crate::error::{Error, ErrorKind, Result};

/// The calls to trace. Some only move an offset or a descriptor, and are needed to follow the
/// others.
pub(super) const TRACED: &str = "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,\
    fallocate,fsync,fdatasync,sync,syncfs,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,\
    symlink,symlinkat,copy_file_range,sendfile,splice,mmap,lseek,read,readv,dup,dup2,dup3,fcntl,close,\
    chdir,fchdir,clone,clone3,fork,vfork,io_uring_setup";

/// An open file: the state that duplicated or inherited descriptors share.
struct Open {
    inode: Inode,
    path: PathBuf,
    offset: u64,
    append: bool,
    /// Each write is also a sync: `Some(true)` for the data only.
    sync: Option<bool>,
}

/// A thread's view: its directory, and its descriptor table.
#[derive(Clone)]
struct Thread {
    directory: PathBuf,
    table: usize,
}

/// The actions of one traced run so far.
pub(super) struct Calls {
    /// The recorded directory, without symbolic links.
    watch: PathBuf,
    /// The path of descriptor 1 of the command.
    stdout: PathBuf,
    start: Thread,
    pub(super) recording: Recording,
    parser: Parser,
    threads: HashMap<u32, Thread>,
    /// Forks that have begun and not returned: their children may already run.
    forking: Vec<(u32, bool)>,
    tables: Vec<HashMap<i32, usize>>,
    /// The path with which each descriptor was opened, for paths through `/proc/self/fd`.
    paths: HashMap<(usize, i32), PathBuf>,
    opens: Vec<Open>,
}

/// The error says why a call cannot be recorded or understood.
type Outcome = std::result::Result<(), String>;

impl Calls {
    pub(super) fn new(watch: PathBuf, directory: PathBuf, stdout: PathBuf, recording: Recording) -> Self {
        Self {
            watch,
            stdout,
            start: Thread { directory, table: 0 },
            recording,
            parser: Parser::default(),
            threads: HashMap::new(),
            forking: Vec::new(),
            tables: vec![HashMap::new()],
            paths: HashMap::new(),
            opens: Vec::new(),
        }
    }

    /// Takes the next line of strace's output.
    ///
    /// # Errors
    /// `Invalid` for a call that cannot be recorded, or is not understood.
    pub(super) fn line(&mut self, line: &str) -> Result<()> {
        let failed = |why: &str| {
            let short: String = line.chars().take(200).collect();
            Error::new(ErrorKind::Invalid, format!("{why}, in strace's line: {short}"))
        };
        let event = self.parser.line(line, self.recording.steps()).ok_or_else(|| failed("not understood"))?;
        match event {
            Event::Nothing => Ok(()),
            Event::Ended { tid } => {
                self.threads.remove(&tid);
                Ok(())
            }
            Event::Begun { tid, name, args } => {
                self.thread(tid);
                if matches!(name.as_str(), "clone" | "clone3" | "fork" | "vfork") {
                    self.forking.push((tid, args.contains("CLONE_FILES")));
                }
                Ok(())
            }
            Event::Call(call) => self.call(&call).map_err(|why| failed(&why)),
        }
    }

    /// The state of thread `tid`: a new one is the child of the latest fork that has not returned.
    fn thread(&mut self, tid: u32) -> Thread {
        if let Some(thread) = self.threads.get(&tid) {
            return thread.clone();
        }
        match self.forking.last().copied() {
            Some((parent, shared)) => self.fork(parent, tid, shared),
            None => drop(self.threads.insert(tid, self.start.clone())),
        }
        self.threads[&tid].clone()
    }

    fn fork(&mut self, parent: u32, child: u32, shared: bool) {
        let mut thread = self.thread(parent);
        if !shared {
            let (from, to) = (thread.table, self.tables.len());
            self.tables.push(self.tables[from].clone());
            let paths = self.paths.iter().filter(|((table, _), _)| *table == from);
            let paths: Vec<_> = paths.map(|((_, fd), path)| ((to, *fd), path.clone())).collect();
            self.paths.extend(paths);
            thread.table = to;
        }
        self.threads.insert(child, thread);
    }

    /// The path below the recorded directory of `at` (an argument that names a directory, or none)
    /// with `name`.
    fn below(
        &self,
        thread: &Thread,
        at: Option<&str>,
        name: &str,
    ) -> std::result::Result<Option<PathBuf>, String> {
        let name = path(name).ok_or("a path was not understood")?;
        let directory = match at.and_then(descriptor) {
            Some((_, Some(described))) => described.path,
            _ => thread.directory.clone(),
        };
        let mut clean = PathBuf::new();
        for component in self.followed(thread, directory.join(name)).components() {
            match component {
                Component::ParentDir => drop(clean.pop()),
                Component::CurDir => {}
                other => clean.push(other),
            }
        }
        Ok(self.inside(&clean))
    }

    /// Resolves a path that begins with a descriptor's link.
    fn followed(&self, thread: &Thread, path: PathBuf) -> PathBuf {
        let Ok(rest) = path.strip_prefix("/proc/self/fd") else { return path };
        let mut rest = rest.components();
        let fd = rest.next().and_then(|fd| fd.as_os_str().to_str()?.parse().ok());
        match fd.and_then(|fd| self.paths.get(&(thread.table, fd))) {
            Some(opened) => opened.join(rest.as_path()),
            None => path,
        }
    }

    /// The path relative to the recorded directory; `None` for a path outside it or one that is not
    /// recorded.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.watch).ok().filter(|path| !ignored(path)).map(Path::to_owned)
    }

    /// The file behind a descriptor argument: its inode, a name for messages, and its open file if
    /// that is known.
    fn file(&self, thread: &Thread, arg: &str) -> Option<(Inode, PathBuf, Option<usize>)> {
        let (fd, described) = descriptor(arg)?;
        let Described { path, deleted } = described?;
        let path = self.inside(&path)?;
        let open = self.tables[thread.table].get(&fd?).copied();
        if deleted {
            let open = open?;
            return Some((self.opens[open].inode, path, Some(open)));
        }
        let inode = self.recording.find(&path)?;
        Some((inode, path, open.filter(|open| self.opens[*open].inode == inode)))
    }

    fn call(&mut self, call: &Call) -> Outcome {
        if let Some(at) = self.forking.iter().rposition(|(tid, _)| *tid == call.tid) {
            self.forking.remove(at);
        }
        let thread = self.thread(call.tid);
        let args: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let unreadable = || format!("the arguments of {} were not understood", call.name);
        let steps = &mut self.recording;
        let known = |result: Result<()>| result.map_err(|error| error.to_string());
        match (call.name.as_str(), &args[..]) {
            ("open", [name, flags, ..]) => self.open(call, &thread, None, name, flags),
            ("creat", [name, ..]) => self.open(call, &thread, None, name, "O_CREAT|O_TRUNC"),
            ("openat" | "openat2", [at, name, flags, ..]) => self.open(call, &thread, Some(at), name, flags),
            ("write", [fd, data, ..]) => self.write(call, &thread, fd, string(data), None),
            ("writev", [fd, data, ..]) => self.write(call, &thread, fd, buffers(data), None),
            ("pwrite64", [fd, data, _, at]) => self.write(call, &thread, fd, string(data), number(at)),
            ("pwritev" | "pwritev2", [fd, data, _, at, ..]) => {
                self.write(call, &thread, fd, buffers(data), number(at).filter(|at| *at >= 0))
            }
            ("read" | "readv", [fd, ..]) => {
                if let Some((_, _, Some(open))) = self.file(&thread, fd) {
                    self.opens[open].offset += call.result;
                }
                Ok(())
            }
            ("lseek", [fd, ..]) => {
                if let Some((_, _, Some(open))) = self.file(&thread, fd) {
                    self.opens[open].offset = call.result;
                }
                Ok(())
            }
            ("ftruncate", [fd, len]) => {
                let len = number(len).ok_or_else(unreadable)?;
                if let Some((inode, path, _)) = self.file(&thread, fd) {
                    self.recording.resize_to(inode, &path, len as u64);
                }
                Ok(())
            }
            ("truncate", [name, len]) => match self.below(&thread, None, name)? {
                Some(path) => known(self.recording.resize(&path, number(len).ok_or_else(unreadable)? as u64)),
                None => Ok(()),
            },
            ("fallocate", [fd, mode, at, len]) => {
                let (at, len) = number(at).zip(number(len)).ok_or_else(unreadable)?;
                self.allocate(&thread, fd, mode, at as u64, len as u64)
            }
            ("fsync" | "fdatasync", [fd]) => {
                if let Some((inode, path, _)) = self.file(&thread, fd) {
                    self.recording.sync_since(inode, &path, call.name == "fdatasync", call.began);
                }
                Ok(())
            }
            ("sync", []) | ("syncfs", [_]) => {
                steps.sync_all_since(call.began);
                Ok(())
            }
            ("rename", [from, to]) => self.rename(&thread, None, from, None, to),
            ("renameat", [a, from, b, to]) => self.rename(&thread, Some(a), from, Some(b), to),
            ("renameat2", [a, from, b, to, flags])
                if !flags.contains("EXCHANGE") && !flags.contains("WHITEOUT") =>
            {
                self.rename(&thread, Some(a), from, Some(b), to)
            }
            ("unlink" | "rmdir", [name]) | ("unlinkat", [_, name, ..]) => {
                let at = (args.len() > 1).then(|| args[0]);
                match self.below(&thread, at, name)? {
                    Some(path) => known(self.recording.remove(&path)),
                    None => Ok(()),
                }
            }
            ("mkdir", [name, _]) | ("mkdirat", [_, name, _]) => {
                let at = (args.len() > 2).then(|| args[0]);
                match self.below(&thread, at, name)? {
                    Some(path) => known(self.recording.make_directory(&path)),
                    None => Ok(()),
                }
            }
            ("link", [from, to]) => self.link(&thread, None, from, None, to),
            ("linkat", [a, from, b, to, ..]) => self.link(&thread, Some(a), from, Some(b), to),
            ("dup" | "dup2" | "dup3", [fd, ..]) => self.duplicate(&thread, fd, call.result),
            ("fcntl", [fd, command, ..]) if command.starts_with("F_DUPFD") => {
                self.duplicate(&thread, fd, call.result)
            }
            ("fcntl", [fd, "F_SETFL", flags]) => {
                if let Some((_, _, Some(open))) = self.file(&thread, fd) {
                    self.opens[open].append = flags.contains("O_APPEND");
                }
                Ok(())
            }
            ("fcntl", _) => Ok(()),
            ("close", [fd]) => {
                let (fd, _) = descriptor(fd).ok_or_else(unreadable)?;
                fd.map(|fd| self.tables[thread.table].remove(&fd));
                Ok(())
            }
            ("chdir", [name]) => {
                let directory = thread.directory.join(path(name).ok_or_else(unreadable)?);
                self.threads.insert(call.tid, Thread { directory, ..thread });
                Ok(())
            }
            ("fchdir", [fd]) => {
                let directory =
                    descriptor(fd).and_then(|(_, described)| described).ok_or_else(unreadable)?.path;
                self.threads.insert(call.tid, Thread { directory, ..thread });
                Ok(())
            }
            ("clone" | "clone3" | "fork" | "vfork", _) => {
                let (child, shared) =
                    (call.result as u32, args.iter().any(|arg| arg.contains("CLONE_FILES")));
                if !self.threads.contains_key(&child) {
                    self.fork(call.tid, child, shared);
                }
                Ok(())
            }
            ("mmap", [_, _, access, flags, fd, ..]) => {
                let writes = access.contains("PROT_WRITE") && flags.contains("MAP_SHARED");
                match self.file(&thread, fd) {
                    Some((_, path, _)) if writes => {
                        Err(format!("{} is written through a mapping", path.display()))
                    }
                    _ => Ok(()),
                }
            }
            ("copy_file_range", [_, _, fd, ..]) | ("sendfile", [fd, ..]) | ("splice", [_, _, fd, ..]) => {
                match self.file(&thread, fd) {
                    Some((_, path, _)) => {
                        Err(format!("{} is written by a copy in the kernel", path.display()))
                    }
                    None => Ok(()),
                }
            }
            ("symlink", [_, name]) | ("symlinkat", [_, _, name]) => {
                let at = (args.len() > 2).then(|| args[1]);
                match self.below(&thread, at, name)? {
                    Some(path) => Err(format!("{} is a symbolic link", path.display())),
                    None => Ok(()),
                }
            }
            ("io_uring_setup", _) => Err("io_uring cannot be recorded".into()),
            _ => Err(unreadable()),
        }
    }

    fn open(&mut self, call: &Call, thread: &Thread, at: Option<&str>, name: &str, flags: &str) -> Outcome {
        let fd = call.result as i32;
        self.tables[thread.table].remove(&fd);
        if let Some(described) = &call.result_path {
            self.paths.insert((thread.table, fd), described.path.clone());
        }
        // The descriptor's own path has no symbolic links in it; the argument's may.
        let described = match &call.result_path {
            Some(described) => self.inside(&described.path),
            None => self.below(thread, at, name)?,
        };
        let Some(path) = described else { return Ok(()) };
        if flags.contains("O_TMPFILE") {
            return Err("files without a name cannot be recorded".into());
        }
        let error = |error: Error| error.to_string();
        let inode = match self.recording.find(&path) {
            Some(inode) => inode,
            None if flags.contains("O_CREAT") => {
                self.recording.create(&path).map_err(error)?;
                self.recording.find(&path).ok_or("a file was created and is not there")?
            }
            None => return Err(format!("{} was opened and never created", path.display())),
        };
        if flags.contains("O_TRUNC") && self.recording.len(inode) > 0 {
            self.recording.resize_to(inode, &path, 0);
        }
        let sync = (flags.contains("O_SYNC") || flags.contains("O_DSYNC")).then(|| flags.contains("O_DSYNC"));
        if !self.recording.is_directory(inode) {
            self.tables[thread.table].insert(fd, self.opens.len());
            let append = flags.contains("O_APPEND");
            self.opens.push(Open { inode, path, offset: 0, append, sync });
        }
        Ok(())
    }

    fn write(
        &mut self,
        call: &Call,
        thread: &Thread,
        fd: &str,
        data: Option<Vec<u8>>,
        at: Option<i64>,
    ) -> Outcome {
        let done = call.result as usize;
        let data =
            || data.as_ref().and_then(|data| data.get(..done)).ok_or("strace did not show all the data");
        let (number, described) = descriptor(fd).ok_or("a descriptor was not understood")?;
        if number == Some(1) && described.is_some_and(|described| described.path == self.stdout) {
            self.recording.acknowledge_since(data()?, call.began);
            return Ok(());
        }
        let Some((inode, path, open)) = self.file(thread, fd) else { return Ok(()) };
        let len = self.recording.len(inode);
        let offset = match (at, open.map(|open| &mut self.opens[open])) {
            (Some(at), _) => at as u64,
            (None, Some(open)) => {
                let offset = if open.append { len } else { open.offset };
                open.offset = offset + done as u64;
                offset
            }
            (None, None) => return Err(format!("the offset in {} is not known", path.display())),
        };
        self.recording.write_to(inode, &path, offset, data()?);
        if let Some(open) = open.map(|open| &self.opens[open])
            && let Some(data_only) = open.sync
        {
            self.recording.sync_since(inode, &open.path.clone(), data_only, self.recording.steps());
        }
        Ok(())
    }

    fn allocate(&mut self, thread: &Thread, fd: &str, mode: &str, at: u64, len: u64) -> Outcome {
        let Some((inode, path, _)) = self.file(thread, fd) else { return Ok(()) };
        let before = self.recording.len(inode);
        match mode {
            "0" if at + len > before => self.recording.resize_to(inode, &path, at + len),
            "0" | "FALLOC_FL_KEEP_SIZE" => {}
            mode if mode.contains("FALLOC_FL_PUNCH_HOLE") => {
                let zeros = (at + len).min(before).saturating_sub(at);
                self.recording.write_to(inode, &path, at, &vec![0; zeros as usize]);
            }
            mode => return Err(format!("fallocate with {mode} cannot be recorded")),
        }
        Ok(())
    }

    fn rename(&mut self, thread: &Thread, a: Option<&str>, from: &str, b: Option<&str>, to: &str) -> Outcome {
        match (self.below(thread, a, from)?, self.below(thread, b, to)?) {
            (Some(from), Some(to)) => self.recording.rename(&from, &to).map_err(|error| error.to_string()),
            (None, None) => Ok(()),
            _ => Err("a file is moved into or out of the recorded directory".into()),
        }
    }

    fn link(&mut self, thread: &Thread, a: Option<&str>, from: &str, b: Option<&str>, to: &str) -> Outcome {
        match (self.below(thread, a, from)?, self.below(thread, b, to)?) {
            (Some(from), Some(to)) => self.recording.link(&from, &to).map_err(|error| error.to_string()),
            (_, None) => Ok(()),
            (None, Some(to)) => Err(format!("{} is linked from outside", to.display())),
        }
    }

    fn duplicate(&mut self, thread: &Thread, fd: &str, to: u64) -> Outcome {
        let (fd, _) = descriptor(fd).ok_or("a descriptor was not understood")?;
        let table = &mut self.tables[thread.table];
        match fd.and_then(|fd| table.get(&fd).copied()) {
            Some(open) => drop(table.insert(to as i32, open)),
            None => drop(table.remove(&(to as i32))),
        }
        Ok(())
    }
}
