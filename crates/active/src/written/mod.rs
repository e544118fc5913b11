//! 1W patterns on files that programs write in a mount.
//!
//! ```text
//!  the mount: a file is made ─▶ maker.rs: does a rule want it? ─▶ a job, whose input is open ─▶ the mount keeps its prefix (outrigger_fuse::live)
//!  a runner:  claims its split ─▶ feed.rs: asks the mount for the bytes as they come ─▶ standard input of the program
//!  the mount: the last writer has gone ─▶ stores the file, closes the job's input ─▶ feed.rs: what is left, and the end of file
//! ```
//!
//! An *open* job is rows like any other; its split has no end yet. When the mount closes the input it says in the same transaction whether what was read
//! of it is what the file became. If so, the attempt that read it goes on and ends as any does. If not, it is void, and the split, which has an end now, is claimed
//! again as one over a stored file. So whatever goes wrong with an open input ends in what there was before: a job over a root.
//!
//! **A mount that has gone** with its files open leaves jobs whose inputs are open. Whoever runs one finds that the mount's session is over, has what the mount's log held
//! stored (`before_publish` does that, or has the next mount do it), and closes the input with what the tree has: a file that nobody closed is a file like any
//! other after a crash. A hidden one (1W→1W) is not in the tree, and its job fails.

mod feed;
mod maker;

use std::any::Any;

use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::jobs::{JobId, JobState};
use outrigger_store::ops::View;
use outrigger_store::session::is_gone;
use outrigger_store::{Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::records::Records;
use crate::spec::Spec;

pub(crate) use feed::{GAVE_BACK, feed};
pub use maker::Maker;

/// How far a writer may be ahead of its program, if they are attached, bytes: what the program reads is still in memory.
pub const AHEAD: u64 = 64 << 20;

/// The file that a job reads while it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Written {
    /// Its inode.
    pub inode: u64,
    /// The session of the mount that it is written in.
    pub mount: u64,
}

/// Where a program reads a file that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Attach {
    /// Beside the path of the data: the writer never waits for it.
    #[default]
    Beside,
    /// In the path: the writer waits when it is more than [`AHEAD`] in front.
    Path,
}

impl Attach {
    /// Parses `path`, `beside`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "path" => Ok(Self::Path),
            "beside" => Ok(Self::Beside),
            _ => Err(Error::new(ErrorKind::Invalid, format!("`{text}`: use path or beside"))),
        }
    }
}

/// What makes everybody stand still who changes the tree; see [`RunOptions::before_publish`](crate::runner::RunOptions::before_publish).
pub type Quiet<'a> = &'a (dyn Fn() -> Result<Box<dyn Any>> + Sync);

/// Checks what a program is to do with files while they are written, and fills in what follows from the pattern.
///
/// # Errors
/// `Invalid`, saying what to give.
pub fn settle_spec(spec: &mut Spec) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let pattern = spec.pattern;
    if !pattern.needs_writer() && pattern != Pattern::FileToMany {
        return invalid(format!(
            "{pattern} is for stored files; while they are written there are 1W->2W, 1W->1W, 1W->0 and 1W->#W"
        ));
    }
    if spec.records != Records::Whole {
        return invalid("a file cannot be split while it is written: leave --records away".to_string());
    }
    if spec.wants_files() {
        return invalid(
            "a file that is being written is read on standard input: leave {in} away".to_string(),
        );
    }
    if pattern == Pattern::WriteToFile {
        if !spec.outputs.is_empty() {
            return invalid(format!(
                "{pattern} gives the file's own name to what the program makes of it: leave --out away"
            ));
        }
        *spec = spec.clone().output("{path}");
    }
    spec.check()
}

/// True when the mount that a file was written in is at work no more.
pub(crate) fn is_lost(store: &Store, written: Written) -> Result<bool> {
    let locks = store.locks_dir();
    let is_it = |row: &outrigger_store::meta::SessionRow| row.id.0 == written.mount;
    Ok(!store.meta.sessions()?.iter().any(|row| is_it(row) && !is_gone(row, Some(&locks))))
}

/// Closes the input of a job whose mount has gone, with what there is of the file.
pub(crate) fn settle_lost(store: &Store, job: JobId, written: Written, quiet: Quiet<'_>) -> Result<()> {
    // What was acknowledged is stored after this; nothing changes as long as it is kept.
    let _quiet = quiet()?;
    let view = View::open(store, "run", None)?;
    let jobs = store.jobs()?;
    let found = store.meta.inode(view.at, written.inode)?;
    match found.filter(|inode| inode.attributes.kind == FileKind::File) {
        Some(inode) => jobs.close_input(job, &inode.root, true).map(drop),
        None => {
            let why = "its writer was lost: the mount has ended, and nothing is left of the file";
            jobs.end_job(job, JobState::Failed, why).map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_while_a_file_is_written_is_refused_with_the_reason() {
        let spec = |pattern: Pattern, program: &[&str]| {
            Spec::new(pattern, program.iter().map(ToString::to_string).collect())
        };
        let mut whole = spec(Pattern::WriteToFile, &["cat"]);
        settle_spec(&mut whole).unwrap();
        assert_eq!(whole.outputs[0].template, "{path}");
        settle_spec(&mut spec(Pattern::WriteToTwo, &["cat"]).output("{stem}.out")).unwrap();
        settle_spec(&mut spec(Pattern::WriteToNothing, &["cat"])).unwrap();
        for (mut wrong, says) in [
            (spec(Pattern::ReadToFile, &["cat"]).output("x"), "stored files"),
            (spec(Pattern::WriteToFile, &["cat"]).output("x"), "own name"),
            (spec(Pattern::WriteToNothing, &["cat", "{in}"]), "standard input"),
            (
                Spec { records: Records::parse("lines").unwrap(), ..spec(Pattern::WriteToNothing, &["cat"]) },
                "split",
            ),
            (spec(Pattern::WriteToTwo, &["cat"]), "--out"),
            (spec(Pattern::WriteToNothing, &[]), "program"),
        ] {
            let error = settle_spec(&mut wrong).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(says), "{error}");
        }
        assert_eq!((Attach::parse("path").unwrap(), Attach::default()), (Attach::Path, Attach::Beside));
        assert!(Attach::parse("in").is_err());
    }
}
