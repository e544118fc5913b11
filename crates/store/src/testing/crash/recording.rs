//! Records the changes of a directory, step by step, and keeps the expected contents.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path};
use std::sync::Arc;

use super::model::{Acknowledgement, Effect, Inode, Node, ROOT, Step, Trace, change, flatten, load, rename};
use crate::error::{Context, Error, ErrorKind, Result};

/// A trace being made. Paths are relative to the recorded directory.
pub struct Recording {
    base: Vec<Node>,
    nodes: Vec<Node>,
    steps: Vec<Step>,
    acknowledgements: Vec<Acknowledgement>,
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

impl Recording {
    /// Begins with the present contents of `dir`, as durable.
    ///
    /// # Errors
    /// When `dir` cannot be read, or holds anything but files and directories.
    pub fn begin(dir: &Path) -> Result<Self> {
        let mut base = vec![Node::Directory(BTreeMap::new())];
        load(dir, ROOT, &mut base).context(|| format!("cannot read {}", dir.display()))?;
        Ok(Self { nodes: base.clone(), base, steps: Vec::new(), acknowledgements: Vec::new() })
    }

    /// Begins with an empty directory.
    pub fn empty() -> Self {
        let base = vec![Node::Directory(BTreeMap::new())];
        Self { nodes: base.clone(), base, steps: Vec::new(), acknowledgements: Vec::new() }
    }

    /// Ends the recording.
    pub fn finish(self) -> Trace {
        let made =
            self.nodes[self.base.len()..].iter().map(|node| matches!(node, Node::Directory(_))).collect();
        let Self { base, steps, acknowledgements, .. } = self;
        Trace { base, made, steps, acknowledgements, status: None, stderr: Vec::new() }
    }

    /// How many steps there are so far.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn find(&self, path: &Path) -> Option<Inode> {
        path.components().try_fold(ROOT, |dir, component| match (component, &self.nodes[dir]) {
            (Component::Normal(name), Node::Directory(names)) => names.get(name).copied(),
            (Component::CurDir, _) => Some(dir),
            _ => None,
        })
    }

    fn known(&self, path: &Path) -> Result<Inode> {
        self.find(path).ok_or_else(|| invalid(format!("{} was never seen to be created", path.display())))
    }

    pub(super) fn is_directory(&self, inode: Inode) -> bool {
        matches!(self.nodes[inode], Node::Directory(_))
    }

    /// Length of a file; 0 of a directory.
    pub(super) fn len(&self, inode: Inode) -> u64 {
        match &self.nodes[inode] {
            Node::File(content) => content.len() as u64,
            Node::Directory(_) => 0,
        }
    }

    fn parent<'a>(&self, path: &'a Path) -> Result<(Inode, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| invalid(format!("`{}` is no name", path.display())))?;
        Ok((self.known(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn step(&mut self, label: String, effect: Effect) {
        match &effect {
            Effect::Write { inode, .. } | Effect::Resize { inode, .. } => {
                if let Node::File(content) = &mut self.nodes[*inode] {
                    change(Arc::make_mut(content), &effect);
                }
            }
            _ => rename(&mut self.nodes, &effect),
        }
        self.steps.push(Step { effect, label });
    }

    fn make(&mut self, path: &Path, node: Node, what: &str) -> Result<Inode> {
        let (dir, name) = self.parent(path)?;
        let (name, inode) = (name.to_owned(), self.nodes.len());
        self.nodes.push(node);
        self.step(format!("{what} {}", path.display()), Effect::Link { dir, name, inode });
        Ok(inode)
    }

    /// A new, empty file.
    ///
    /// # Errors
    /// When its directory is not known.
    pub fn create(&mut self, path: &Path) -> Result<()> {
        self.make(path, Node::File(Arc::default()), "create").map(drop)
    }

    /// A new directory.
    ///
    /// # Errors
    /// When its parent is not known.
    pub fn make_directory(&mut self, path: &Path) -> Result<()> {
        self.make(path, Node::Directory(BTreeMap::new()), "mkdir").map(drop)
    }

    /// Another name for a file.
    ///
    /// # Errors
    /// When the file or the new name's directory is not known.
    pub fn link(&mut self, from: &Path, to: &Path) -> Result<()> {
        let inode = self.known(from)?;
        let (dir, name) = self.parent(to)?;
        let name = name.to_owned();
        self.step(format!("link {} {}", from.display(), to.display()), Effect::Link { dir, name, inode });
        Ok(())
    }

    /// A file, directory or further name that goes away.
    ///
    /// # Errors
    /// When it is not known.
    pub fn remove(&mut self, path: &Path) -> Result<()> {
        let inode = self.known(path)?;
        let (dir, name) = self.parent(path)?;
        let name = name.to_owned();
        self.step(format!("remove {}", path.display()), Effect::Unlink { dir, name, inode });
        Ok(())
    }

    /// A new name, which replaces what has it.
    ///
    /// # Errors
    /// When the old name or the new one's directory is not known.
    pub fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let inode = self.known(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.parent(from)?, self.parent(to)?);
        let effect = Effect::Rename {
            from: (from_dir, from_name.to_owned()),
            to: (to_dir, to_name.to_owned()),
            inode,
        };
        self.step(format!("rename {} {}", from.display(), to.display()), effect);
        Ok(())
    }

    /// Bytes written at `offset`.
    ///
    /// # Errors
    /// When the file is not known.
    pub fn write(&mut self, path: &Path, offset: u64, data: &[u8]) -> Result<()> {
        self.write_to(self.known(path)?, path, offset, data);
        Ok(())
    }

    pub(super) fn write_to(&mut self, inode: Inode, path: &Path, offset: u64, data: &[u8]) {
        let label = format!("write {} {offset}+{}", path.display(), data.len());
        self.step(label, Effect::Write { inode, offset, data: data.into() });
    }

    /// A file cut or lengthened with zeros.
    ///
    /// # Errors
    /// When the file is not known.
    pub fn resize(&mut self, path: &Path, len: u64) -> Result<()> {
        self.resize_to(self.known(path)?, path, len);
        Ok(())
    }

    pub(super) fn resize_to(&mut self, inode: Inode, path: &Path, len: u64) {
        self.step(format!("resize {} {len}", path.display()), Effect::Resize { inode, len });
    }

    /// fsync, or fdatasync when `data_only`, of a file or directory.
    ///
    /// # Errors
    /// When it is not known.
    pub fn sync(&mut self, path: &Path, data_only: bool) -> Result<()> {
        self.sync_since(self.known(path)?, path, data_only, self.steps.len());
        Ok(())
    }

    /// A sync that began when there were `covers` steps: it guarantees nothing about later ones.
    pub(super) fn sync_since(&mut self, inode: Inode, path: &Path, data_only: bool, covers: usize) {
        let what = if data_only { "fdatasync" } else { "fsync" };
        let name = if inode == ROOT { ".".into() } else { path.display().to_string() };
        // A directory has only names to sync.
        let data_only = data_only && !self.is_directory(inode);
        self.step(format!("{what} {name}"), Effect::Sync { inode, data_only, covers });
    }

    pub(super) fn sync_all_since(&mut self, covers: usize) {
        self.step("sync".into(), Effect::SyncAll { covers });
    }

    /// Something printed now.
    pub fn acknowledge(&mut self, text: &[u8]) {
        self.acknowledge_since(text, self.steps.len());
    }

    /// Something printed by a call that began when there were `after` steps.
    pub(super) fn acknowledge_since(&mut self, text: &[u8], after: usize) {
        self.acknowledgements.push(Acknowledgement { after, text: text.to_vec() });
    }

    /// Fails unless `dir` has the contents that follow from the steps.
    ///
    /// # Errors
    /// `Invalid` that names the first difference.
    pub(super) fn compare(&self, dir: &Path) -> Result<()> {
        let mut real = vec![Node::Directory(BTreeMap::new())];
        load(dir, ROOT, &mut real).context(|| format!("cannot read {}", dir.display()))?;
        let (ours, theirs) = (flatten(&self.nodes), flatten(&real));
        let paths = ours.keys().chain(theirs.keys());
        match paths.filter(|path| ours.get(*path) != theirs.get(*path)).min() {
            None => Ok(()),
            Some(path) => Err(invalid(format!(
                "the recorded steps do not explain {}: something changed it that was not recorded",
                dir.join(path).display()
            ))),
        }
    }
}
