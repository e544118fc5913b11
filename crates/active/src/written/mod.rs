//! 1W patterns on files that programs write in a mount.
//!
//! ```text
//!  the mount: a file is made ─▶ maker/: does a rule want it? ─▶ a job, whose input is open ─▶ the mount keeps its prefix (outrigger_fuse::live)
//!  a runner:  claims its split ─▶ feed.rs: asks the mount for the bytes as they come ─▶ standard input of the program
//!  the mount: the last writer has gone ─▶ stores the file, closes the job's input ─▶ feed.rs: what is left, and the end of file
//! ```
//!
//! An *open* job has rows like any other; its split has no end yet. When the mount closes the
//! input, the same transaction records if the bytes that were read are the file's final content. If
//! so, the attempt that read them goes on and ends like any other. If not, it is void, and the
//! split, which has an end now, is claimed again as one over a stored file. So every failure of an
//! open input leads back to the usual case: a job over a root.
//!
//! **A mount that has gone** with open files leaves jobs with open inputs. A runner of such a job
//! finds that the mount's session is over. It has the content of the mount's log stored
//! (`before_publish` does that, or has the next mount do it), and closes the input with the tree's
//! content. An unclosed file is a file like any other after a crash. An unpublished file (1W→1W) is
//! not in the tree, so its job fails.
//!
//! **In a store in PostgreSQL** only the mount has the bytes that are not stored yet. So runners on
//! its host, which find its socket, claim such a job at once. Others claim it once a prefix of the
//! file is stored ([`increments`]) or it is closed, and read the stored bytes, as more comes. If
//! the program is attached in-line and the mount offers its open files
//! ([`outrigger_fuse::control::Remote`]), an agent on another host takes the job before these do,
//! and also stores the file (`carry.rs`, `line.rs`). If the mount dies, bytes that it had not
//! stored are lost although they were acknowledged: the file is as it was last synced. A program
//! that took that for the whole would be wrong, so the job fails and says so. The rest becomes its
//! input, for a retry.

mod carry;
mod feed;
mod line;

use std::any::Any;
use std::collections::BTreeSet;

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_fuse::control::{self, Offer};
use outrigger_fuse::shared;
use outrigger_store::meta::jobs::{JobId, JobState, Jobs, job_holder};
use outrigger_store::meta::{At, SessionId};
use outrigger_store::ops::View;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::{Error, ErrorKind, Result, Store, increments};

use crate::job::records::Records;
use crate::job::spec::Spec;
use crate::job::{Attach, Written};
use crate::pattern::Pattern;

pub(crate) use feed::{GAVE_BACK, Reading, feed};
pub use line::leave_to_others;
pub(crate) use line::waits_for;

/// Stops all changes of the tree; see
/// [`RunOptions::before_publish`](crate::runner::RunOptions::before_publish).
pub type Quiet<'a> = &'a (dyn Fn() -> Result<Box<dyn Any>> + Sync);

/// Checks the options of a job on files that are being written, and fills in those that follow from
/// the pattern.
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
        return invalid("a file cannot be split while it is written; remove --records".to_string());
    }
    if spec.wants_files() {
        return invalid("a file that is being written is read on standard input; remove {in}".to_string());
    }
    if pattern == Pattern::WriteToFile {
        if !spec.also.is_empty() {
            return invalid(format!(
                "{pattern} gives the file's own name to the output of one program; remove --and"
            ));
        }
        if !spec.outputs.is_empty() {
            return invalid(format!(
                "{pattern} gives the file's own name to the program's output; remove --out"
            ));
        }
        *spec = spec.clone().output("{path}");
    }
    spec.check()
}

/// Checks the options of a job on several files that are being written.
///
/// # Errors
/// `Invalid`, saying what to give.
pub fn settle_together(spec: &mut Spec, names: &[String]) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let mut paths = BTreeSet::new();
    for name in names {
        let path = StorePath::parse(name.as_bytes())?;
        if name.contains(['*', '?', '[', '{', '\\']) || path.components.is_empty() {
            return invalid(format!(
                "`{name}`: --follow with #W->1W awaits files by their names; give each with --in"
            ));
        }
        if !paths.insert(path) {
            return invalid(format!("`{name}` is given twice: each file is read once"));
        }
    }
    if spec.programs().any(<[String]>::is_empty) {
        return invalid(
            "files that are still written need a program to join them; give `-- cat`".to_string(),
        );
    }
    if spec.records != Records::Whole || spec.wants_files() {
        return invalid("files that are being written are read on standard input, and cannot be split; remove --records and {in}".to_string());
    }
    spec.together = true;
    spec.check()
}

/// True if the mount that a file was written in has ended.
pub(crate) fn is_lost(store: &Store, written: Written) -> Result<bool> {
    Ok(!store.is_live(SessionId(written.mount))?)
}

/// How to reach the mount that a file is written in from here: determined once per look at the
/// file.
pub(crate) struct Access {
    /// Its socket is there, or it is this store's only one.
    pub is_here: bool,
    /// Its offer to other hosts; looked up only for in-line programs.
    pub offer: Option<Offer>,
}

impl Access {
    /// As it is now.
    pub fn find(store: &Store, written: Written, spec: &Spec) -> Result<Self> {
        if !store.is_shared() {
            return Ok(Self { is_here: true, offer: None });
        }
        let mount = SessionId(written.mount);
        let offer = if is_in_path(spec) { control::offer_of(store, mount)? } else { None };
        Ok(Self { is_here: control::is_within_reach(store, mount), offer })
    }

    /// True if an in-line agent asks the mount over the network.
    pub fn is_far(&self) -> bool {
        !self.is_here && self.offer.is_some()
    }
}

/// True if a runner in this process can do something for a job whose file is still being written:
/// read it, or find that its mount has gone. Only the mount knows which of several files
/// (`together`) comes next.
pub(crate) fn may_begin(store: &Store, written: Written, spec: &Spec, access: &Access) -> Result<bool> {
    let mount = SessionId(written.mount);
    let is_stored = || {
        Ok::<_, Error>(!spec.together && increments::prefix(&*store.meta, written.inode, mount)?.is_some())
    };
    Ok(access.is_here || access.offer.is_some() || is_stored()? || is_lost(store, written)?)
}

/// True if the program is to be in-line: on another host than the writer's, if one can be.
fn is_in_path(spec: &Spec) -> bool {
    spec.attach == Attach::Path
}

/// The host of the mount that a file is written in.
///
/// # Errors
/// Those of the database.
pub fn host_of(store: &Store, written: Written) -> Result<Option<String>> {
    let row = store.meta.sessions()?.into_iter().find(|row| row.id.0 == written.mount);
    Ok(row.map(|row| row.owner.host))
}

/// Closes the input of a job whose mount has gone, with the content that is left.
pub(crate) fn settle_lost(
    store: &Store,
    job: JobId,
    written: Written,
    spec: &Spec,
    quiet: Quiet<'_>,
) -> Result<()> {
    if store.is_shared() {
        return settle_shared(store, job, written, spec);
    }
    // This stores what was acknowledged; nothing changes while the guard lives.
    let _quiet = quiet()?;
    let view = View::open(store, "run", None)?;
    let jobs = store.jobs();
    if spec.together {
        return settle_lost_together(store, &view, job, spec);
    }
    let found = store.meta.inode(view.at, written.inode)?;
    match found.filter(|inode| inode.attributes.kind == FileKind::File) {
        Some(inode) => jobs.close_input(job, &inode.root, true).map(drop),
        None => {
            let why = "its writer was lost: the mount has ended, and nothing is left of the file";
            jobs.end_job(job, JobState::Failed, why).map(drop)
        }
    }
}

/// As [`settle_lost`], of a job that reads several files.
fn settle_lost_together(store: &Store, view: &View, job: JobId, spec: &Spec) -> Result<()> {
    let jobs = store.jobs();
    match left_together(store, view.at, job, spec)? {
        Ok(roots) => close_together(jobs, job, &roots).map(drop),
        Err(path) => {
            let why = format!("its writer was lost: the mount has ended, and nothing is left of `{path}`");
            jobs.end_job(job, JobState::Failed, &why).map(drop)
        }
    }
}

/// The content of several files, or the path of one that is lost. Files that were closed before the
/// mount went have their content in the job; the others are looked up by name.
fn left_together(
    store: &Store,
    at: At,
    job: JobId,
    spec: &Spec,
) -> Result<std::result::Result<Vec<Root>, StorePath>> {
    let (mut roots, inputs) = (Vec::new(), store.jobs().inputs(job)?);
    let own = inputs.len().saturating_sub(spec.inputs_besides());
    for input in inputs.into_iter().take(own) {
        let path = StorePath::parse(&input.path)?;
        let found = find(&*store.meta, at, &path)?;
        let found = found.filter(|inode| inode.attributes.kind == FileKind::File);
        // An empty closed file is looked up, too: what it has become since is read then.
        match (input.root.is_empty(), found) {
            (false, _) => roots.push(input.root),
            (true, Some(inode)) => roots.push(inode.root),
            (true, None) => return Ok(Err(path)),
        }
    }
    Ok(Ok(roots))
}

/// Closes all inputs of a job as void; false if there is nothing left to close.
fn close_together(jobs: &dyn Jobs, job: JobId, roots: &[Root]) -> Result<bool> {
    let (all, last) = (roots.iter().map(Root::len).sum(), roots.len().saturating_sub(1));
    let mut closed = true;
    for (number, root) in roots.iter().enumerate() {
        let end = (number == last).then_some(all);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        closed &= jobs.close_one_input(job, number, root, true, end)?;
    }
    Ok(closed)
}

/// As [`settle_lost`], for a mount whose acknowledged bytes are lost.
fn settle_shared(store: &Store, job: JobId, written: Written, spec: &Spec) -> Result<()> {
    // If the mount's process still runs, it stores nothing from here on.
    store.meta.fence(SessionId(written.mount))?;
    let view = View::open(store, "run", None)?;
    let retries = format!("`outrigger job retry {job}` runs its program over");
    let (left, what) = if spec.together {
        match left_together(store, view.at, job, spec)? {
            Ok(roots) => {
                let bytes: u64 = roots.iter().map(Root::len).sum();
                let what = format!(
                    "before its files were closed; {bytes} bytes of them are there, of those that were overwritten maybe from before that; {retries} these"
                );
                (roots, what)
            }
            Err(path) => (Vec::new(), format!("before its files were closed; nothing is left of `{path}`")),
        }
    } else {
        match left_of(store, view.at, written)? {
            Some(root) if written.overwrites => {
                let what = format!(
                    "before the file was closed; {} bytes of it are there, maybe from before it was overwritten; {retries} these",
                    root.len()
                );
                (vec![root], what)
            }
            Some(root) => {
                let what = format!(
                    "before the file was closed; {} bytes of the file were stored; {retries} these",
                    root.len()
                );
                (vec![root], what)
            }
            None => (Vec::new(), "before the file was closed; nothing of the file was stored".to_string()),
        }
    };
    if !left.is_empty() {
        // Once the job has ended, others may release what was held of the files.
        store.meta.hold(&job_holder(job), &left)?;
        view.check()?;
    }
    // First this: if it went no further, the job would be run as if nothing had happened.
    let jobs = store.jobs();
    let why = format!("its writer was lost: the mount has ended {what}");
    jobs.end_job(job, JobState::Failed, &why)?;
    let closed = match &left[..] {
        [] => true,
        roots if spec.together => close_together(jobs, job, roots)?,
        roots => jobs.close_input(job, &roots[0], true)?,
    };
    if !closed && jobs.job(job)?.is_none() {
        // The job was deleted meanwhile.
        store.meta.release(&job_holder(job), None)?;
    }
    sweep(store)
}

/// The content that was stored of a file whose mount has gone.
fn left_of(store: &Store, at: At, written: Written) -> Result<Option<Root>> {
    let inode = store.meta.inode(at, written.inode)?;
    match inode.filter(|inode| inode.attributes.kind == FileKind::File) {
        Some(inode) => Ok(Some(inode.root)),
        None => shared::held_of(store, written.inode),
    }
}

/// Lets go of what mounts that have gone had held of files that no job waits for any more, and
/// removes their records.
///
/// # Errors
/// Those of the database.
pub fn sweep(store: &Store) -> Result<()> {
    if !store.is_shared() {
        return Ok(());
    }
    control::sweep_offers(store)?;
    shared::sweep_barriers(store)?;
    let left = shared::left_open(store)?;
    if left.is_empty() {
        return Ok(());
    }
    let jobs = store.jobs();
    let mut waiting = Vec::new();
    for row in jobs.open_jobs()? {
        let written = Spec::decode(&row.spec).ok().and_then(|spec| spec.written);
        if let Some(written) = written
            && jobs.split(row.id, 0)?.is_some_and(|split| split.range.is_open())
        {
            waiting.push(written.inode);
        }
    }
    left.iter()
        .filter(|left| !waiting.contains(&left.record.inode))
        .try_for_each(|left| shared::let_go(store, left))
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
            (spec(Pattern::WriteToFile, &["cat"]).and(vec!["cat".into()]), "one program"),
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
