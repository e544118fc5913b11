//! Compares an archive with the list of what should be in it, while it is read.
//!
//! Both come from a process each. They have the same order, as a rule; entries of the list that are
//! read ahead of the archive wait by their paths.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{BufRead as _, BufReader};
use std::process::ChildStdout;
use std::time::Duration;

use outrigger_store::text::show;
use outrigger_store::write::Progress;

use super::child::Running;
use super::tool::{Node, NodeKind, Tool};
use crate::tar::{Check, Entry, Kind, TarError};

/// The check of one archive.
pub struct Checked<'a> {
    tool: &'a dyn Tool,
    dump: Running,
    list: Running,
    lines: BufReader<ChildStdout>,
    ahead: HashMap<String, VecDeque<Node>>,
    progress: &'a Progress,
    /// Entries that were named as skipped already, in this snapshot or another.
    named: &'a mut HashSet<String>,
    /// The archive did not fit the list, or a program failed.
    is_refused: bool,
    /// Files of the archive, their other names included.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How long the program of an archive that breaks off may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

fn refuse<T>(why: String) -> Result<T, TarError> {
    Err(TarError::Format(why))
}

impl<'a> Checked<'a> {
    /// Checks the output of `dump` against that of `list`.
    pub fn new(
        tool: &'a dyn Tool,
        dump: Running,
        list: (Running, ChildStdout),
        progress: &'a Progress,
        named: &'a mut HashSet<String>,
    ) -> Self {
        let (list, lines) = (list.0, BufReader::with_capacity(1 << 18, list.1));
        Self {
            tool,
            dump,
            list,
            lines,
            ahead: HashMap::new(),
            progress,
            named,
            is_refused: false,
            files: 0,
            bytes: 0,
        }
    }

    /// The programs' own reason for an archive that breaks off; `None` if it did not fit the list.
    pub fn own_failure(&mut self) -> Option<String> {
        if self.is_refused {
            return None;
        }
        self.dump.own_failure(PATIENCE).or_else(|| self.list.own_failure(Duration::ZERO))
    }

    fn next(&mut self) -> Result<Option<Node>, TarError> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match self.tool.node(&line) {
                Ok(None) => {}
                Ok(node) => return Ok(node),
                Err(error) => {
                    return refuse(format!(
                        "cannot understand a line of its list, `{}`: {error}",
                        line.trim_end()
                    ));
                }
            }
        }
    }

    /// Takes the entry at `path` off the list.
    fn take(&mut self, path: &str) -> Result<Node, TarError> {
        if let Some(nodes) = self.ahead.get_mut(path) {
            let node = nodes.pop_front();
            if nodes.is_empty() {
                self.ahead.remove(path);
            }
            if let Some(node) = node {
                return Ok(node);
            }
        }
        loop {
            match self.next()? {
                Some(node) if node.path == path => return Ok(node),
                Some(node) => self.ahead.entry(node.path.clone()).or_default().push_back(node),
                None => {
                    self.list.end().or_else(refuse)?;
                    return refuse(format!(
                        "the archive has `{}`, which its list lacks",
                        show(path.as_bytes())
                    ));
                }
            }
        }
    }

    /// Names an entry that is not stored as it was, once.
    fn skip(&mut self, path: &str, why: &str) {
        if self.named.insert(path.to_string()) {
            self.progress.skip(show(path.as_bytes()), why);
        }
    }
}

impl Check for Checked<'_> {
    fn entry(&mut self, entry: &mut Entry) -> Result<(), TarError> {
        let checked = self.compare(entry);
        self.is_refused |= checked.is_err();
        checked
    }

    fn end(&mut self) -> Result<(), TarError> {
        let checked = self.complete();
        self.is_refused |= checked.is_err();
        checked
    }
}

impl Checked<'_> {
    fn compare(&mut self, entry: &mut Entry) -> Result<(), TarError> {
        let path = as_listed(&entry.path, self.tool.replacement());
        let Node { kind, mtime, is_broken, .. } = self.take(&path)?;
        let is_same = match (entry.kind, kind) {
            (Kind::File, NodeKind::File { size }) if size != entry.size => {
                return refuse(format!(
                    "`{}` has {} bytes in the archive and {size} in its list",
                    show(&entry.path),
                    entry.size
                ));
            }
            (Kind::File | Kind::HardLink, NodeKind::File { .. } | NodeKind::HardLink) => true,
            (Kind::Directory, kind) => kind == NodeKind::Directory,
            (Kind::Symlink, kind) => kind == NodeKind::Symlink,
            (_, kind) => kind == NodeKind::Special,
        };
        if !is_same {
            return refuse(format!("`{}` is of another kind in its list", show(&entry.path)));
        }
        if is_broken {
            self.skip(&path, "the repository has lost parts of it, which are zeros now");
        }
        // The time may be rounded, so it is only taken where the archive has whole seconds.
        if entry.mtime.nanos == 0 {
            entry.mtime = mtime;
        }
        if matches!(entry.kind, Kind::File | Kind::HardLink) {
            self.files += 1;
            self.bytes += entry.size;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), TarError> {
        self.dump.end().or_else(refuse)?;
        let waiting: Vec<Node> = self.ahead.drain().flat_map(|(_, nodes)| nodes).collect();
        let mut left: VecDeque<Node> = waiting.into();
        while let Some(node) = left.pop_front().map_or_else(|| self.next(), |node| Ok(Some(node)))? {
            if node.kind != NodeKind::Special {
                return refuse(format!(
                    "the archive lacks `{}`, which its list has",
                    show(node.path.as_bytes())
                ));
            }
            let why = format!("archives of {} have no devices, pipes and sockets", self.tool.name());
            self.skip(&node.path, &why);
        }
        self.list.end().or_else(refuse)
    }
}

/// A path of an archive as lists print it: without slashes at its ends, and with `replacement` for
/// each byte that is not UTF-8.
fn as_listed(path: &[u8], replacement: char) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(replacement, chunk.invalid().len()));
    }
    text.trim_matches('/').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_as_lists_print_them() {
        assert_eq!(as_listed(b"tmp/d/", '?'), "tmp/d");
        assert_eq!(as_listed(b"bad\xff\xe2\x82/\xc3\xa9", '?'), "bad???/\u{e9}");
    }
}
