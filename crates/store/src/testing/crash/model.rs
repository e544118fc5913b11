//! A directory in memory with the history of its changes.
//!
//! Files and directories are numbered ("inodes"), and names lead to them from the root directory 0.
//! A file keeps its number when it is renamed, and a change of its content is not a change of its
//! name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

/// A file or directory, whatever its name.
pub(super) type Inode = usize;

/// The directory that is recorded.
pub(super) const ROOT: Inode = 0;

/// The content of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Directory(BTreeMap<OsString, Inode>),
    File(Arc<Vec<u8>>),
}

/// One change, or one guarantee that changes are durable.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// A name for an inode, new or not.
    Link {
        dir: Inode,
        name: OsString,
        inode: Inode,
    },
    Unlink {
        dir: Inode,
        name: OsString,
        inode: Inode,
    },
    /// Replaces the inode that has the new name.
    Rename {
        from: (Inode, OsString),
        to: (Inode, OsString),
        inode: Inode,
    },
    Write {
        inode: Inode,
        offset: u64,
        data: Arc<[u8]>,
    },
    Resize {
        inode: Inode,
        len: u64,
    },
    /// Content of a file, or names in a directory: all changes before step `covers` are durable.
    Sync {
        inode: Inode,
        data_only: bool,
        covers: usize,
    },
    /// The same for everything.
    SyncAll {
        covers: usize,
    },
}

impl Effect {
    /// True for a guarantee, which changes nothing.
    pub(super) fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. } | Self::SyncAll { .. })
    }

    /// The file whose content it changes.
    pub(super) fn content_of(&self) -> Option<Inode> {
        match self {
            Self::Write { inode, .. } | Self::Resize { inode, .. } => Some(*inode),
            _ => None,
        }
    }

    /// The file or directory whose name it changes, and the directories in which it does.
    pub(super) fn name_of(&self) -> Option<(Inode, [Inode; 2])> {
        match self {
            Self::Link { dir, inode, .. } | Self::Unlink { dir, inode, .. } => Some((*inode, [*dir; 2])),
            Self::Rename { from, to, inode } => Some((*inode, [from.0, to.0])),
            _ => None,
        }
    }
}

/// One step of the recorded run.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) effect: Effect,
    pub(super) label: String,
}

/// Something the workload printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acknowledgement {
    /// How many steps had been done before it could be seen.
    pub after: usize,
    /// Bytes written to standard output.
    pub text: Vec<u8>,
}

/// The changes that a run made to a directory, step by step.
pub struct Trace {
    /// Inodes at the beginning.
    pub(super) base: Vec<Node>,
    /// Inodes that were made later: `true` for a directory.
    pub(super) made: Vec<bool>,
    pub(super) steps: Vec<Step>,
    /// The lines that it printed, in order.
    pub acknowledgements: Vec<Acknowledgement>,
    /// How the command ended; `None` for a trace that was made by hand.
    pub status: Option<ExitStatus>,
    /// Bytes written to standard error.
    pub stderr: Vec<u8>,
}

impl Trace {
    /// Number of steps: there is a crash point before and after each.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Each step, in words.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.label.as_str())
    }
}

/// True if a file of this name is left out: SQLite's shared memory.
pub(super) fn ignored(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b"-shm"))
}

/// Reads a directory's content into `nodes`, from inode `dir` on.
pub(super) fn load(path: &Path, dir: Inode, nodes: &mut Vec<Node>) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let (path, name, kind) =
            entry.and_then(|entry| Ok((entry.path(), entry.file_name(), entry.file_type()?)))?;
        if ignored(&path) {
            continue;
        }
        let inode = nodes.len();
        if kind.is_dir() {
            nodes.push(Node::Directory(BTreeMap::new()));
            load(&path, inode, nodes)?;
        } else if kind.is_file() {
            nodes.push(Node::File(Arc::new(fs::read(&path)?)));
        } else {
            return Err(io::Error::other(format!("{} is neither file nor directory", path.display())));
        }
        if let Node::Directory(names) = &mut nodes[dir] {
            names.insert(name, inode);
        }
    }
    Ok(())
}

/// Everything that can be reached from the root, by path: a file's content, `None` for a directory.
pub(super) fn flatten(nodes: &[Node]) -> BTreeMap<PathBuf, Option<Arc<Vec<u8>>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(PathBuf::new(), ROOT)];
    while let Some((path, inode)) = todo.pop() {
        match &nodes[inode] {
            Node::File(content) => drop(found.insert(path, Some(Arc::clone(content)))),
            Node::Directory(names) => {
                todo.extend(names.iter().map(|(name, inode)| (path.join(name), *inode)));
                found.insert(path, None);
            }
        }
    }
    found
}

/// Applies a change of content.
pub(super) fn change(content: &mut Vec<u8>, effect: &Effect) {
    match effect {
        Effect::Write { offset, data, .. } => overwrite(content, *offset, data),
        Effect::Resize { len, .. } => content.resize(*len as usize, 0),
        _ => {}
    }
}

/// Puts `data` at `offset`, with zeros before it if the file is shorter. Empty data changes
/// nothing.
pub(super) fn overwrite(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    if !data.is_empty() {
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(data);
    }
}

/// Applies a change of names.
pub(super) fn rename(nodes: &mut [Node], effect: &Effect) {
    let mut edit = |dir: Inode, edit: &dyn Fn(&mut BTreeMap<OsString, Inode>)| {
        if let Node::Directory(names) = &mut nodes[dir] {
            edit(names);
        }
    };
    let unlink = |name: &OsString, inode: Inode| {
        let name = name.clone();
        move |names: &mut BTreeMap<OsString, Inode>| {
            if names.get(&name) == Some(&inode) {
                names.remove(&name);
            }
        }
    };
    match effect {
        Effect::Link { dir, name, inode } => edit(*dir, &|names| {
            names.insert(name.clone(), *inode);
        }),
        Effect::Unlink { dir, name, inode } => edit(*dir, &unlink(name, *inode)),
        Effect::Rename { from, to, inode } => {
            edit(from.0, &unlink(&from.1, *inode));
            edit(to.0, &|names| {
                names.insert(to.1.clone(), *inode);
            });
        }
        _ => {}
    }
}
