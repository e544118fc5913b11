//! Programs kept in the store: files below [`DIRECTORY`], named by their BLAKE3 hash as well as by
//! name.
//!
//! They are files like others: they have versions, are in snapshots, are copied by `copy` and
//! `recover`, and can be changed by any user that may write to the store. A job holds the content
//! that it was made with, as one more of its inputs, so that exactly this content runs, even if the
//! name changes.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::JobInput;
use outrigger_store::ops::View;
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use crate::job::Component;
use crate::job::spec::Spec;
use crate::sandbox::Sandbox;

/// Where they are kept.
pub const DIRECTORY: &str = ".components";
/// A program is at most this long.
const BYTES_MAX: u64 = 1 << 30;
/// Digits of a hash that are shown, and needed at least.
pub const SHORT: usize = 12;

/// Programs that come with this one; `component add --library` stores them.
pub const LIBRARY: [(&str, &str); 4] = [
    ("archive", include_str!("../components/archive")),
    ("index", include_str!("../components/index")),
    ("scale", include_str!("../components/scale")),
    ("statistics", include_str!("../components/statistics")),
];

/// A program that is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Name and hash.
    pub component: Component,
    /// Its length.
    pub bytes: u64,
    /// When it was changed last.
    pub mtime: outrigger_format::catalogue::Time,
}

/// Where the component `name` is kept.
///
/// # Errors
/// `Invalid` for what cannot be a name.
pub fn path(name: &str) -> Result<StorePath> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._+".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
        let why = format!("`{name}` cannot be a component's name: use letters, digits and -._+");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    StorePath::parse(format!("{DIRECTORY}/{name}").as_bytes())
}

/// All of them, by name.
///
/// # Errors
/// Those of reading.
pub fn list(store: &Store) -> Result<Vec<Kept>> {
    let meta = &*store.meta;
    let Some(directory) = find(meta, At::Now, &StorePath::parse(DIRECTORY.as_bytes())?)? else {
        return Ok(Vec::new());
    };
    let mut kept = Vec::new();
    // Programs are few.
    for entry in meta.read_dir(At::Now, directory.number, None, 10_000)? {
        if entry.inode.attributes.kind != FileKind::File || entry.inode.root.len() > BYTES_MAX {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let hash = hash_of(store, &entry.inode.root)?;
        let (bytes, mtime) = (entry.inode.root.len(), entry.inode.attributes.mtime);
        kept.push(Kept { component: Component { name, hash }, bytes, mtime });
    }
    Ok(kept)
}

fn hash_of(store: &Store, root: &Root) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    Reader::new(store).read(root, 0, u64::MAX, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// The path under which a job has the content of a program that is not kept under a name.
pub(crate) fn kept_path(name: &str) -> StorePath {
    StorePath { components: vec![DIRECTORY.as_bytes().to_vec(), name.as_bytes().to_vec()] }
}

/// If `spec` runs components (`@NAME`, `@NAME:HASH`), records them, and returns their contents,
/// which the job must have as its last inputs. They stay as long as `view` lives; by then another
/// owner must hold them.
///
/// # Errors
/// `NotFound` if it is not kept, or not with this hash.
pub fn settle(store: &Store, view: &View, spec: &mut Spec) -> Result<Vec<JobInput>> {
    let mut inputs = Vec::new();
    for (program, component) in spec.programs_mut() {
        inputs.extend(settle_one(store, view, program, component)?);
    }
    Ok(inputs)
}

/// As [`settle`], for one program.
pub(crate) fn settle_one(
    store: &Store,
    view: &View,
    program: &mut [String],
    component: &mut Option<Component>,
) -> Result<Option<JobInput>> {
    let Some(asked) = program.first().and_then(|word| word.strip_prefix('@')).map(str::to_string) else {
        return Ok(None);
    };
    let (name, wanted) = asked.split_once(':').unwrap_or((&asked, ""));
    if !wanted.is_empty() && (wanted.len() < SHORT || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        let why = format!(
            "`@{asked}`: give {SHORT} digits of the hash at least, as `outrigger component list` shows them"
        );
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let path = path(name)?;
    let missing = |what: &str| {
        let why = format!(
            "there is no component `{name}`{what}; `outrigger component list` shows those that are kept"
        );
        Error::new(ErrorKind::NotFound, why)
    };
    let inode = find(&*store.meta, view.at, &path)?.filter(|inode| inode.attributes.kind == FileKind::File);
    let inode = inode.ok_or_else(|| missing(""))?;
    let mut hash = hash_of(store, &inode.root)?;
    let mut root = inode.root;
    if !hash.starts_with(&wanted.to_ascii_lowercase()) {
        let earlier = earlier(store, view, inode.number, &wanted.to_ascii_lowercase())?;
        (hash, root) =
            earlier.ok_or_else(|| missing(&format!(" with hash {wanted}, nor an earlier version of it")))?;
    }
    program[0] = format!("@{name}:{hash}");
    *component = Some(Component { name: name.to_string(), hash });
    Ok(Some(JobInput { path: path.to_bytes(), root }))
}

fn earlier(store: &Store, view: &View, inode: u64, wanted: &str) -> Result<Option<(String, Root)>> {
    for version in store.meta.versions(inode)? {
        // Earlier versions are not part of the tree that the view pins, and reading one takes a
        // while. Without a pin, a newer version could trim it meanwhile, and a collector reclaim
        // the returned content.
        let root = match view.version(store, inode, version.number) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            pinned => pinned?,
        };
        let hash = hash_of(store, &root)?;
        if hash.starts_with(wanted) {
            return Ok(Some((hash, root)));
        }
    }
    Ok(None)
}

/// Puts a component into `dir`, which is made, for a sandboxed program.
///
/// # Errors
/// As [`bring`].
pub(crate) fn bring_kept(
    store: &Store,
    sandbox: &Sandbox,
    kept: &Component,
    root: &Root,
    dir: &Path,
) -> Result<()> {
    std::fs::create_dir(dir).context(|| format!("the component {}", kept.name))?;
    let copy = dir.join(&kept.name);
    bring(store, kept, root, &copy)?;
    sandbox.hand_over(&copy)?;
    sandbox.hand_over(dir)
}

/// Puts a program of this host into `dir`, which is made, for a sandboxed program. Returns its name
/// there.
///
/// # Errors
/// When it does not exist, or the submitter may not read it.
pub(crate) fn bundle(sandbox: &Sandbox, program: &str, dir: &Path) -> Result<OsString> {
    let path = Path::new(program);
    let at = || format!("the program {program}");
    let name = path.file_name().ok_or_else(|| Error::new(ErrorKind::Invalid, at()))?;
    std::fs::create_dir(dir).context(at)?;
    let copy = dir.join(name);
    sandbox.copy_as_submitter(path, &copy).context(at)?;
    sandbox.hand_over(&copy)?;
    sandbox.hand_over(dir)?;
    Ok(name.to_os_string())
}

/// Writes a component's content to `to`, to be run, and checks its hash.
///
/// # Errors
/// `Damaged` if it is another content.
pub fn bring(store: &Store, component: &Component, root: &Root, to: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let at = || format!("the component {}", component.name);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o755).open(to).context(at)?;
    let mut hasher = blake3::Hasher::new();
    Reader::new(store).read(root, 0, u64::MAX, &mut |bytes| {
        hasher.update(bytes);
        file.write_all(bytes).context(at)
    })?;
    let hash = hasher.finalize().to_hex();
    if hash.as_str() != component.hash {
        let why = format!("{} has hash {hash}, and was to have {}", at(), component.hash);
        return Err(Error::damaged(why));
    }
    Ok(())
}
