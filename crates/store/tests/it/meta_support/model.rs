//! The tree as the documentation of `Change` describes it, with plain maps and copies: slow, and
//! easy to believe.

use std::collections::BTreeMap;

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{Change, Inode, ROOT_INODE, TreeTotals, VersionRow};

use super::Dump;

#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub attributes: Attributes,
    pub root: Root,
    pub links: u32,
    /// Number and time of the present content.
    pub version: u64,
    pub time: u64,
    pub versions: Vec<VersionRow>,
}

/// A whole state of the tree.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    pub names: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    pub policies: BTreeMap<u64, String>,
    pub next_inode: u64,
}

/// The expected report of a commit.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Report {
    pub aliases: BTreeMap<u64, u64>,
    pub created: u64,
    pub changed: u64,
    pub removed: u64,
}

type Step<T = ()> = Result<T, ErrorKind>;

impl Model {
    pub fn new() -> Self {
        let attributes = Attributes {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            rdev: 0,
            target: Vec::new(),
            xattrs: Vec::new(),
            times: None,
        };
        let root =
            Node { attributes, root: Root::Empty, links: 1, version: 1, time: 0, versions: Vec::new() };
        Self {
            nodes: BTreeMap::from([(ROOT_INODE, root)]),
            names: BTreeMap::from([(ROOT_INODE, BTreeMap::new())]),
            policies: BTreeMap::new(),
            next_inode: 2,
        }
    }

    /// All changes, or none.
    pub fn commit(&mut self, changes: &[Change], time: u64) -> Step<Report> {
        let (mut next, mut report) = (self.clone(), Report::default());
        if changes.iter().any(is_exact) {
            next.exact(changes, time, &mut report)?;
        } else {
            for change in changes {
                next.apply(change, time, &mut report)?;
            }
        }
        *self = next;
        Ok(report)
    }

    pub fn dump(&self) -> Dump {
        let inode = |number: u64| {
            let node = &self.nodes[&number];
            let (attributes, root) = (node.attributes.clone(), node.root.clone());
            Inode { number, attributes, root, links: node.links, stamp: 0 }
        };
        let mut dump = Dump::from([(Vec::new(), inode(ROOT_INODE))]);
        let mut queue = vec![(Vec::new(), ROOT_INODE)];
        while let Some((path, directory)) = queue.pop() {
            for (name, &number) in &self.names[&directory] {
                let path = [&path[..], b"/", name].concat();
                if self.names.contains_key(&number) {
                    queue.push((path.clone(), number));
                }
                dump.insert(path, inode(number));
            }
        }
        dump
    }

    pub fn totals(&self) -> TreeTotals {
        let mut totals = TreeTotals::default();
        for node in self.nodes.values() {
            match node.attributes.kind {
                FileKind::File => totals.files += 1,
                FileKind::Directory => totals.directories += 1,
                _ => totals.others += 1,
            }
            totals.bytes += node.root.len();
        }
        totals
    }

    fn is_directory(&self, number: u64) -> bool {
        self.names.contains_key(&number)
    }

    fn resolve(&self, inode: u64, report: &Report) -> Step<u64> {
        let number = report.aliases.get(&inode).copied().unwrap_or(inode);
        if (1..self.next_inode).contains(&number) { Ok(number) } else { Err(ErrorKind::Invalid) }
    }

    fn directory(&self, inode: u64, report: &Report) -> Step<u64> {
        let number = self.resolve(inode, report)?;
        if self.is_directory(number) { Ok(number) } else { Err(ErrorKind::NotFound) }
    }

    fn entry(&self, parent: u64, name: &[u8]) -> Step<u64> {
        self.names[&parent].get(name).copied().ok_or(ErrorKind::NotFound)
    }

    fn apply(&mut self, change: &Change, time: u64, report: &mut Report) -> Step {
        match change {
            Change::Put { parent, name, inode, attributes, root, replace, .. } => {
                if name.is_empty() && *parent == ROOT_INODE && *inode == ROOT_INODE {
                    let changed = self.rewrite(ROOT_INODE, attributes, root, 0, ROOT_INODE, time);
                    report.changed += u64::from(changed);
                    return Ok(());
                }
                check_name(name)?;
                let parent = self.directory(*parent, report)?;
                let number = self.resolve(*inode, report)?;
                self.put(parent, name, (*inode, number), (attributes, root), *replace, time, report)
            }
            Change::Link { parent, name, inode } => {
                check_name(name)?;
                let parent = self.directory(*parent, report)?;
                let number = self.resolve(*inode, report)?;
                let node = self.nodes.get(&number).ok_or(ErrorKind::NotFound)?;
                if node.attributes.kind == FileKind::Directory {
                    return Err(ErrorKind::Invalid);
                }
                if self.names[&parent].contains_key(name) {
                    return Err(ErrorKind::Exists);
                }
                self.name(parent, name, number);
                self.nodes.get_mut(&number).unwrap().links += 1;
                report.created += 1;
                Ok(())
            }
            Change::Remove { parent, name, recursive } => {
                check_name(name)?;
                let found = self.directory(*parent, report);
                let found = found.and_then(|parent| Ok((parent, self.entry(parent, name)?)));
                let (parent, number) = match found {
                    Err(ErrorKind::NotFound) if *recursive => return Ok(()),
                    found => found?,
                };
                if !recursive && self.names.get(&number).is_some_and(|names| !names.is_empty()) {
                    return Err(ErrorKind::Exists);
                }
                self.remove(parent, name, report);
                Ok(())
            }
            Change::Rename { parent, name, new_parent, new_name } => {
                check_name(name)?;
                check_name(new_name)?;
                let parent = self.directory(*parent, report)?;
                let new_parent = self.directory(*new_parent, report)?;
                self.rename((parent, name), (new_parent, new_name), report)
            }
            // These have cases of their own: `guarded_cases.rs`.
            Change::IfName { .. }
            | Change::IfAttributes { .. }
            | Change::CompareAndSwap { .. }
            | Change::Touch { .. }
            | Change::PinContent { .. }
            | Change::Name { .. }
            | Change::Node { .. }
            | Change::Orphan { .. }
            | Change::Job(_)
            | Change::InlineChunks(_) => Err(ErrorKind::Invalid),
        }
    }

    /// Names and inodes are set, with all names in one flat map; then the tree is made of them
    /// again.
    fn exact(&mut self, changes: &[Change], time: u64, report: &mut Report) -> Step {
        if !changes.iter().all(is_exact) {
            return Err(ErrorKind::Invalid);
        }
        let mut there = Vec::new();
        for change in changes {
            let Change::Node { inode, parent, attributes, root, keep } = change else { continue };
            self.resolve(*inode, report)?;
            if self.nodes.contains_key(inode) {
                there.push((*inode, *parent, attributes, root, *keep));
                continue;
            }
            let (attributes, root) = (attributes.clone(), root.clone());
            let node = Node { attributes, root, links: 0, version: 1, time, versions: Vec::new() };
            self.nodes.insert(*inode, node);
        }
        let mut flat: BTreeMap<(u64, Vec<u8>), u64> = BTreeMap::new();
        for (&parent, names) in &self.names {
            flat.extend(names.iter().map(|(name, &number)| ((parent, name.clone()), number)));
        }
        for change in changes {
            let Change::Name { parent, name, inode } = change else { continue };
            check_name(name)?;
            let key = (self.resolve(*parent, report)?, name.clone());
            if let Some(inode) = inode {
                self.resolve(*inode, report)?;
            }
            match (flat.get(&key), inode) {
                (None, Some(_)) => report.created += 1,
                (Some(old), Some(new)) if old != new => report.changed += 1,
                (Some(_), None) => report.removed += 1,
                _ => {}
            }
            match inode {
                Some(ROOT_INODE) => return Err(ErrorKind::Invalid),
                Some(inode) => drop(flat.insert(key, *inode)),
                None => drop(flat.remove(&key)),
            }
        }
        self.count_links(&flat)?;
        let kinds: BTreeMap<u64, bool> = self
            .nodes
            .iter()
            .map(|(&number, node)| (number, node.attributes.kind == FileKind::Directory))
            .collect();
        if flat.keys().any(|(parent, _)| kinds.get(parent) != Some(&true)) {
            return Err(ErrorKind::NotFound);
        }
        self.names =
            kinds.iter().filter(|(_, dir)| **dir).map(|(&number, _)| (number, BTreeMap::new())).collect();
        for ((parent, name), number) in flat {
            self.names.get_mut(&parent).unwrap().insert(name, number);
        }
        for &directory in self.names.keys() {
            let mut at = directory;
            for _ in 0..=self.names.len() {
                at = if at == ROOT_INODE { at } else { self.parent(at) };
            }
            if at != ROOT_INODE {
                return Err(ErrorKind::Invalid);
            }
        }
        for (inode, parent, attributes, root, keep) in there {
            let Some(node) = self.nodes.get_mut(&inode) else { continue };
            if (attributes.kind == FileKind::Directory) != kinds[&inode] {
                return Err(ErrorKind::Invalid);
            }
            if !keep && node.root != *root {
                report.changed += 1;
                (node.attributes, node.root, node.time) = (attributes.clone(), root.clone(), time);
                continue;
            }
            report.changed += u64::from(self.rewrite(inode, attributes, root, 0, parent, time));
        }
        Ok(())
    }

    /// Inodes get the names they have, or go.
    fn count_links(&mut self, flat: &BTreeMap<(u64, Vec<u8>), u64>) -> Step {
        let mut links: BTreeMap<u64, u32> = BTreeMap::from([(ROOT_INODE, 1)]);
        flat.values().for_each(|&number| *links.entry(number).or_default() += 1);
        if links.keys().any(|number| !self.nodes.contains_key(number)) {
            return Err(ErrorKind::Invalid);
        }
        for (number, mut node) in std::mem::take(&mut self.nodes) {
            let is_directory = node.attributes.kind == FileKind::Directory;
            let has_entries = flat.keys().any(|(parent, _)| *parent == number);
            match links.get(&number) {
                Some(2..) if is_directory => return Err(ErrorKind::Invalid),
                Some(&links) => {
                    node.links = links;
                    self.nodes.insert(number, node);
                }
                None if is_directory && has_entries => return Err(ErrorKind::Invalid),
                None => drop(self.policies.remove(&number)),
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn put(
        &mut self,
        parent: u64,
        name: &[u8],
        (inode, number): (u64, u64),
        (attributes, root): (&Attributes, &Root),
        replace: bool,
        time: u64,
        report: &mut Report,
    ) -> Step {
        let directory = attributes.kind == FileKind::Directory;
        let in_use = self.nodes.contains_key(&number);
        match self.names[&parent].get(name).copied() {
            None => report.created += 1,
            Some(old) if self.is_directory(old) != directory => {
                self.remove(parent, name, report);
                report.changed += 1;
            }
            Some(old) if old != number && directory && in_use => return Err(ErrorKind::Invalid),
            Some(old) if old != number && !directory && (replace || in_use) => {
                self.remove(parent, name, report);
                report.changed += 1;
                debug_assert_ne!(old, number);
            }
            Some(old) => {
                if old != number {
                    report.aliases.insert(inode, old);
                }
                report.changed += u64::from(self.rewrite(old, attributes, root, 0, parent, time));
                return Ok(());
            }
        }
        self.name(parent, name, number);
        if let Some(node) = self.nodes.get(&number) {
            if directory || node.attributes.kind == FileKind::Directory {
                return Err(ErrorKind::Invalid);
            }
            self.rewrite(number, attributes, root, 1, parent, time);
            return Ok(());
        }
        let (attributes, root) = (attributes.clone(), root.clone());
        self.nodes
            .insert(number, Node { attributes, root, links: 1, version: 1, time, versions: Vec::new() });
        if directory {
            self.names.insert(number, BTreeMap::new());
        }
        Ok(())
    }

    fn rewrite(
        &mut self,
        number: u64,
        attributes: &Attributes,
        root: &Root,
        links: u32,
        parent: u64,
        time: u64,
    ) -> bool {
        let keep = self.versions_kept(parent);
        let node = self.nodes.get_mut(&number).unwrap();
        let changed = (&node.attributes, &node.root) != (attributes, root) || links > 0;
        if node.root != *root {
            if node.attributes.kind == FileKind::File {
                let (mtime, root) = (node.attributes.mtime, node.root.clone());
                node.versions.insert(0, VersionRow { number: node.version, time: node.time, mtime, root });
            }
            node.version += 1;
            node.time = time;
            let newest = node.version;
            node.versions.retain(|version| keep.is_none_or(|keep| version.number + keep >= newest));
        }
        node.attributes = attributes.clone();
        node.root = root.clone();
        node.links += links;
        changed
    }

    /// `None`: all.
    fn versions_kept(&self, directory: u64) -> Option<u64> {
        let mut at = directory;
        loop {
            match self.policies.get(&at).map(String::as_str) {
                Some("all") => return None,
                Some("none") => return Some(0),
                Some(number) => return Some(number.parse().unwrap()),
                None if at == ROOT_INODE || !self.is_directory(at) => return Some(10),
                None => at = self.parent(at),
            }
        }
    }

    fn parent(&self, directory: u64) -> u64 {
        let holds = |names: &BTreeMap<Vec<u8>, u64>| names.values().any(|&number| number == directory);
        *self.names.iter().find(|(_, names)| holds(names)).expect("every directory has a parent").0
    }

    fn name(&mut self, parent: u64, name: &[u8], number: u64) {
        self.names.get_mut(&parent).unwrap().insert(name.to_vec(), number);
    }

    fn remove(&mut self, parent: u64, name: &[u8], report: &mut Report) {
        let number = self.names.get_mut(&parent).unwrap().remove(name).unwrap();
        report.removed += 1;
        for name in
            self.names.get(&number).map(|names| names.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
        {
            self.remove(number, &name, report);
        }
        let node = self.nodes.get_mut(&number).unwrap();
        node.links -= 1;
        if node.links == 0 {
            self.nodes.remove(&number);
            self.names.remove(&number);
            self.policies.remove(&number);
        }
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), report: &mut Report) -> Step {
        let moved = self.entry(from.0, from.1)?;
        if from == to {
            return Ok(());
        }
        let mut above = to.0;
        while self.is_directory(moved) && from.0 != to.0 {
            if above == moved {
                return Err(ErrorKind::Invalid);
            }
            if above == ROOT_INODE {
                break;
            }
            above = self.parent(above);
        }
        if let Some(&target) = self.names[&to.0].get(to.1) {
            if target == moved {
                return Ok(());
            }
            if self.is_directory(target) != self.is_directory(moved) {
                return Err(ErrorKind::Invalid);
            }
            if self.names.get(&target).is_some_and(|names| !names.is_empty()) {
                return Err(ErrorKind::Exists);
            }
            self.remove(to.0, to.1, report);
        }
        self.names.get_mut(&from.0).unwrap().remove(from.1);
        self.name(to.0, to.1, moved);
        report.changed += 1;
        Ok(())
    }
}

fn is_exact(change: &Change) -> bool {
    matches!(change, Change::Name { .. } | Change::Node { .. })
}

fn check_name(name: &[u8]) -> Step {
    let bad = name.is_empty() || name == b"." || name == b".." || name.len() > 255 || name.contains(&b'/');
    if bad || name.contains(&0) { Err(ErrorKind::Invalid) } else { Ok(()) }
}
