//! The workers: fetch, verify and write the files from the walker.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use outrigger_format::{Entry, Fingerprint, Root};
use rustix::io::Errno;

use super::target::{OpenFile, write_at};
use super::{Job, Restorer};
use crate::error::{Error, ErrorKind, Result};
use crate::text::show;
use crate::write::Progress;

/// Takes batches until the walker has no more.
pub(super) fn work<'a>(context: &'a Restorer<'a>, jobs: &Mutex<Receiver<Vec<Job<'a>>>>) {
    let mut run = Vec::new();
    loop {
        let batch = jobs.lock().expect("no panic while held").recv();
        let Ok(batch) = batch else { return };
        for job in batch {
            context.run(job, &mut run);
        }
    }
}

impl<'a> Restorer<'a> {
    /// Nothing more is to be restored.
    pub(super) fn is_over(&self) -> bool {
        self.progress.is_cancelled() || self.over.get().is_some()
    }

    /// Explains why something could not be written. If other files cannot be written either, ends
    /// the restoration.
    pub(super) fn why(&self, display: &str, errno: Errno) -> String {
        let kind = match errno {
            Errno::NOSPC | Errno::DQUOT => ErrorKind::Full,
            Errno::ROFS => ErrorKind::Denied,
            _ => return errno.to_string(),
        };
        self.over.get_or_init(|| {
            let text = format!(
                "cannot write {display}: {errno}; files restored before it are whole; free some space, and run the same `outrigger get` for the rest"
            );
            Error::new(kind, text)
        });
        errno.to_string()
    }

    /// Reports something that cannot be restored.
    pub(super) fn fail(&self, display: impl Into<String>, error: &Error) {
        if error.kind() == ErrorKind::Damaged {
            self.progress.damaged.fetch_add(1, Ordering::Relaxed);
        }
        self.progress.skip(display, error.to_string());
    }

    fn run(&self, job: Job<'a>, run: &mut Vec<u8>) {
        if self.is_over() {
            if let Job::Made { file, .. } | Job::Part { file, .. } = job {
                file.failed.store(true, Ordering::Relaxed);
            }
            return;
        }
        let (file, root) = match job {
            Job::Part { file, at, entries } => return self.part(&file, at, &entries, run),
            Job::Made { file, root } => (file, root),
            Job::Whole { dir, name, attributes, root } => {
                // Content first: unreadable content makes no file.
                run.clear();
                let lost = match self.whole(&root, run) {
                    Ok(lost) => lost,
                    Err(error) => return self.fail(format!("{}/{}", dir.display, show(&name)), &error),
                };
                match self.create(&dir, &name, attributes, root.len()) {
                    Ok(file) => {
                        file.lose(lost);
                        return self.write_whole(&file, &root, run);
                    }
                    Err(why) => return self.progress.skip(format!("{}/{}", dir.display, show(&name)), why),
                }
            }
        };
        run.clear();
        match self.whole(&root, run) {
            Ok(lost) => {
                file.lose(lost);
                self.write_whole(&file, &root, run);
            }
            Err(error) => {
                file.failed.store(true, Ordering::Relaxed);
                self.fail(file.display(), &error);
            }
        }
    }

    /// The chunks of a small file, one after another (holes take no room), and which ranges of it
    /// are lost.
    fn whole(&self, root: &Root, run: &mut Vec<u8>) -> Result<Vec<Range<u64>>> {
        let mut lost = Vec::new();
        self.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
            if let Entry::Chunk { fingerprint, len } = entry
                && !self.chunk(&fingerprint, len, at, run)?
            {
                lost.push(at..at + u64::from(len));
            }
            Ok(true)
        })?;
        Ok(lost)
    }

    /// Appends a chunk of a file, which is at byte `at` of it. If it is damaged and the rest of the
    /// file is wanted all the same, appends zeros and returns false.
    fn chunk(&self, fingerprint: &Fingerprint, len: u32, at: u64, run: &mut Vec<u8>) -> Result<bool> {
        match self.reader.append_chunk(fingerprint, len, run) {
            Err(error) if error.kind() == ErrorKind::Damaged && self.options.salvage => {
                run.resize(run.len() + len as usize, 0);
                Ok(false)
            }
            appended => appended.map(|()| true).map_err(|error| error.context(format!("at byte {at}"))),
        }
    }

    fn write_whole(&self, file: &OpenFile<'a>, root: &Root, run: &[u8]) {
        let len = root.len();
        let written = if run.len() as u64 == len {
            write_at(&file.fd, run, 0)
        } else {
            self.write_sparse(file, root, run)
        };
        match written {
            Ok(()) => Progress::add(&self.progress.bytes_done, len),
            Err(errno) => self.fail_write(file, errno),
        }
    }

    fn write_sparse(&self, file: &OpenFile<'a>, root: &Root, run: &[u8]) -> Result<(), Errno> {
        rustix::fs::ftruncate(&file.fd, root.len())?;
        let mut taken = 0;
        let mut failed = Ok(());
        // The manifest has just been walked without error.
        let _ = self.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
            if let Entry::Chunk { len, .. } = entry {
                let end = taken + len as usize;
                failed = write_at(&file.fd, &run[taken..end], at);
                taken = end;
            }
            Ok(failed.is_ok())
        });
        failed
    }

    fn part(&self, file: &OpenFile<'a>, at: u64, entries: &[Entry], run: &mut Vec<u8>) {
        if file.failed.load(Ordering::Relaxed) {
            return;
        }
        run.clear();
        for entry in entries {
            let Entry::Chunk { fingerprint, len } = entry else { continue };
            let start = at + run.len() as u64;
            match self.chunk(fingerprint, *len, start, run) {
                Ok(true) => {}
                Ok(false) => file.lose(std::iter::once(start..start + u64::from(*len))),
                Err(error) => {
                    if !file.failed.swap(true, Ordering::Relaxed) {
                        self.fail(file.display(), &error);
                    }
                    return;
                }
            }
        }
        match write_at(&file.fd, run, at) {
            Ok(()) => Progress::add(&self.progress.bytes_done, run.len() as u64),
            Err(errno) => self.fail_write(file, errno),
        }
    }

    fn fail_write(&self, file: &OpenFile<'a>, errno: Errno) {
        if !file.failed.swap(true, Ordering::Relaxed) {
            self.progress.skip(file.display(), self.why(&file.display(), errno));
        }
    }
}
