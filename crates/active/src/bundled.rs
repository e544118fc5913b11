//! Bundled programs (`./prog`): stored with the job that runs them.
//!
//! When a job or a rule is made, such a program is read once, with the rights of its maker, and
//! hashed. It is stored like a component's content, as one more input of the job without a name. So
//! every attempt, retry and host runs the same bytes, even if the file changes. Until the job holds
//! the content, the writer's session does (as in an incremental flush, [`increments`]): if this
//! process dies, the collector's next run releases it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_store::host;
use outrigger_store::increments;
use outrigger_store::local::put::made_now;
use outrigger_store::meta::SessionKind;
use outrigger_store::meta::jobs::JobInput;
use outrigger_store::ops::View;
use outrigger_store::policy::Policies;
use outrigger_store::session::Session;
use outrigger_store::write::{CommitWhen, Content, FileItem, Item, Progress, Target, WriteOptions, Writer};
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use crate::component::{self, kept_path};
use crate::job::spec::Spec;
use crate::job::{Component, is_bundled};

/// Longest program: it is kept with each job and copied to each host that runs it, and should be a
/// program and no data.
const BYTES_MAX: u64 = 512 << 20;

/// Programs whose contents are held until this is dropped; by then the job must hold them.
pub(crate) struct Programs<'a> {
    store: &'a Store,
    session: Option<Arc<Session>>,
    holders: Vec<String>,
}

impl<'a> Programs<'a> {
    /// Holds nothing yet.
    pub fn new(store: &'a Store) -> Self {
        Self { store, session: None, holders: Vec::new() }
    }

    /// If `program` is a file of this host, stores its content, and puts it into `component`.
    ///
    /// # Errors
    /// When it cannot be read, or is too long.
    pub fn settle(
        &mut self,
        program: &[String],
        component: &mut Option<Component>,
    ) -> Result<Option<JobInput>> {
        if component.is_some() || !is_bundled(program) {
            return Ok(None);
        }
        let path = Path::new(&program[0]);
        let at = || format!("the program {}", program[0]);
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Error::new(ErrorKind::Invalid, at()))?.to_string();
        let file = File::open(path).context(at)?;
        let metadata = file.metadata().context(at)?;
        if !metadata.is_file() || metadata.len() > BYTES_MAX {
            let why = if metadata.is_file() {
                "is longer than 512 MiB, and is kept with the job"
            } else {
                "is not a file"
            };
            return Err(Error::new(ErrorKind::Invalid, format!("{} {why}", at())));
        }
        let (root, hash) = self.keep(file)?;
        let kept = JobInput { path: kept_path(&name).to_bytes(), root };
        *component = Some(Component { name, hash });
        Ok(Some(kept))
    }

    /// Stores a content, and returns its BLAKE3 hash.
    fn keep(&mut self, file: File) -> Result<(Root, String)> {
        let session = match &self.session {
            Some(session) => Arc::clone(session),
            None => {
                Arc::clone(self.session.insert(self.store.session(SessionKind::Writer, "run, its program")?))
            }
        };
        let (policies, hasher) = (Policies::load(self.store)?, Arc::new(Mutex::new(blake3::Hasher::new())));
        let options =
            WriteOptions { threads: 2, chunk_max: policies.chunk_max()?, commit: CommitWhen::AtTheEnd };
        let mut writer = Writer::start(self.store, &session, &options, &Arc::new(Progress::default()));
        // There is no inode; the number tells the contents of one session apart.
        let number = self.holders.len() as u64 + 1;
        let holder = increments::holder(number, session.id());
        let policy = policies.store_default();
        let hashed = Hashed { file: file.take(BYTES_MAX), hasher: Arc::clone(&hasher) };
        self.holders.push(holder.clone());
        writer.submit(Item::File(FileItem::under(
            Target::Orphan { inode: number, holder },
            made_now(FileKind::File, 0o700),
            Content::Stream(Box::new(hashed)),
            policy,
        )))?;
        let (_, root) = writer.finish()?.nodes.pop().ok_or_else(|| {
            Error::new(ErrorKind::Io, "a program was stored, and nobody says where: please report this")
        })?;
        let hash = hasher.lock().expect("no panic while held").finalize().to_hex().to_string();
        Ok((root, hash))
    }
}

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        for holder in &self.holders {
            // A hold that stays ends with the session.
            let _ = self.store.meta.release(holder, None);
        }
    }
}

/// As [`component::settle`], also for bundled programs, whose contents `held` holds: for making a
/// job, or a rule, with its submitter's rights.
///
/// # Errors
/// As there, and those of reading the programs.
pub(crate) fn settle_all(
    store: &Store,
    view: &View,
    spec: &mut Spec,
    held: &mut Programs<'_>,
) -> Result<Vec<JobInput>> {
    let own = rustix::process::geteuid().as_raw();
    // A program on another host, or one that another user must read, is looked for when it is run.
    let is_here = spec.host.as_ref().is_none_or(|host| *host == host::name())
        && spec.submitter.as_ref().is_none_or(|submitter| submitter.uid == own);
    let mut inputs = Vec::new();
    let mut left = false;
    for (program, component) in spec.programs_mut() {
        let kept = match component::settle_one(store, view, program, component)? {
            None if is_here => held.settle(program, component)?,
            kept => kept,
        };
        left |= kept.is_none() && is_bundled(program);
        inputs.extend(kept);
    }
    if !left {
        spec.host = None;
    }
    Ok(inputs)
}

/// Where all processes of this host find the host's programs in `spec`.
///
/// # Errors
/// `NotFound` if one does not exist.
pub(crate) fn find_all(spec: &mut Spec) -> Result<()> {
    for (program, _) in spec.programs_mut().filter(|(program, kept)| kept.is_none() && is_bundled(program)) {
        let path = std::fs::canonicalize(&program[0]).context(|| format!("the program {}", program[0]))?;
        program[0] = path.into_os_string().into_string().map_err(|path| {
            Error::new(ErrorKind::Invalid, format!("{} is not UTF-8", path.to_string_lossy()))
        })?;
    }
    Ok(())
}

struct Hashed {
    file: std::io::Take<File>,
    hasher: Arc<Mutex<blake3::Hasher>>,
}

impl Read for Hashed {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let len = self.file.read(room)?;
        self.hasher.lock().expect("no panic while held").update(&room[..len]);
        Ok(len)
    }
}
