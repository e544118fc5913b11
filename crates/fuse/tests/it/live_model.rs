//! The writable volume beside a plain model, without a kernel: random operations, batches that are
//! destaged in between, crashes, remounts.
//!
//! A crash is a volume that is dropped without being closed: what it had appended to its log is all
//! that is left. After each, and at the end, the whole tree is compared: names, kinds, links,
//! modes, extended attributes, bytes; and the store is checked.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{
    Caller, Entry, FileSystem, Found, Handle, NewNode, OpenFlags, Part, ROOT, Seek, SetAttr,
};
use outrigger_fuse::live::{LiveOptions, LiveVolume};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_workload::Rng;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use support::{Place, ROOT_USER};

#[derive(Clone, Debug, Default)]
struct ModelNode {
    is_directory: bool,
    target: Option<Vec<u8>>,
    data: Vec<u8>,
    children: BTreeMap<Vec<u8>, u64>,
    links: u32,
    /// It was made without a name and had none so far.
    may_be_named: bool,
    mode: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Run {
    place: Place,
    volume: Option<LiveVolume>,
    nodes: BTreeMap<u64, ModelNode>,
    /// Open files: handle and node, which may have no name any more.
    open: Vec<(Handle, u64)>,
    rng: Rng,
    /// Destage while operations go on; then a run is not repeatable.
    beside: bool,
}

const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"d", b"e", b"f", b"long-name-in-the-middle", b"z\xff", b"zz"];

impl Run {
    fn new(seed: u64, beside: bool) -> Self {
        let root = ModelNode { is_directory: true, links: 1, mode: 0o755, ..ModelNode::default() };
        let mut run = Self {
            place: Place::with_tiny_chunks(),
            volume: None,
            nodes: BTreeMap::from([(ROOT, root)]),
            open: Vec::new(),
            rng: Rng::new(seed),
            beside,
        };
        run.mount();
        run
    }

    fn mount(&mut self) {
        let options = LiveOptions {
            staging_bytes: 8 << 20,
            batch_bytes: 1 << 20,
            // Batches are destaged when the test says so, or when room is needed; or all the time,
            // beside the operations.
            idle: if self.beside { Duration::ZERO } else { Duration::from_secs(3600) },
            ..LiveOptions::new(2)
        };
        self.volume = Some(support::volume::mount(&self.place, options));
    }

    fn volume(&self) -> &LiveVolume {
        self.volume.as_ref().unwrap()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }

    fn pick(&mut self, wanted: impl Fn(&ModelNode) -> bool) -> Option<u64> {
        let all: Vec<u64> =
            self.nodes.iter().filter(|(_, node)| node.links > 0 && wanted(node)).map(|(n, _)| *n).collect();
        if all.is_empty() { None } else { Some(all[self.below(all.len() as u64) as usize]) }
    }

    fn directory(&mut self) -> u64 {
        self.pick(|node| node.is_directory).unwrap()
    }

    fn is_within(&self, inner: u64, outer: u64) -> bool {
        inner == outer
            || self.nodes[&outer]
                .children
                .values()
                .any(|&child| self.nodes[&child].is_directory && self.is_within(inner, child))
    }

    fn forget_if_gone(&mut self, number: u64) {
        if self.nodes[&number].links == 0 && !self.open.iter().any(|(_, open)| *open == number) {
            self.nodes.remove(&number);
            self.volume().forget(number, 1);
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..=17 => self.make(),
            18..=41 => self.write(),
            42..=46 => self.truncate(),
            47..=51 => self.punch(),
            52..=58 => self.unlink(),
            59..=67 => self.rename(),
            68..=71 => self.link(),
            72..=75 => self.attributes(),
            76..=80 => self.copy(),
            81..=88 => self.read_one(),
            89..=90 => self.open_one(),
            91 => self.make_anonymous(),
            92..=94 => self.close_one(),
            95..=97 => {
                println!("destage");
                self.volume().destage_all().unwrap();
            }
            98 => self.crash(),
            _ => self.remount(),
        }
    }

    fn make(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let kind = [FileKind::File, FileKind::File, FileKind::File, FileKind::Directory, FileKind::Symlink]
            [self.below(5) as usize];
        let new = NewNode { kind, mode: 0o640, umask: 0o027, rdev: 0 };
        let made = if kind == FileKind::Symlink {
            self.volume().symlink(ROOT_USER, parent, name, b"over/there")
        } else {
            self.volume().make(ROOT_USER, parent, name, new)
        };
        if self.nodes[&parent].children.contains_key(name) {
            assert_eq!(made, Err(Errno::EXIST));
            return;
        }
        let number = made.unwrap().attr.number;
        let node = ModelNode {
            is_directory: kind == FileKind::Directory,
            target: (kind == FileKind::Symlink).then(|| b"over/there".to_vec()),
            links: 1,
            mode: if kind == FileKind::Symlink { 0o777 } else { 0o640 },
            ..ModelNode::default()
        };
        assert!(self.nodes.insert(number, node).is_none(), "numbers are used once");
        self.nodes.get_mut(&parent).unwrap().children.insert(name.to_vec(), number);
    }

    fn is_file(node: &ModelNode) -> bool {
        !node.is_directory && node.target.is_none()
    }

    /// A file to change: an open one, perhaps without a name, or one that is opened for this.
    fn with_file(&mut self, work: impl FnOnce(&mut Self, u64, Handle)) {
        if !self.open.is_empty() && self.below(3) == 0 {
            let at = self.below(self.open.len() as u64) as usize;
            let (handle, number) = self.open[at];
            return work(self, number, handle);
        }
        let Some(number) = self.pick(Self::is_file) else { return };
        let handle = self.volume().open(ROOT_USER, number, OpenFlags::RDWR).unwrap().handle;
        work(self, number, handle);
        self.volume().flush(ROOT_USER, number, handle).unwrap();
        self.volume().release(number, handle);
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(3) {
            // The same again and again: deduplicated.
            0 => (0..len).map(|at| (at / 7 % 251) as u8).collect(),
            1 => vec![b'x'; len],
            _ => {
                let mut bytes = vec![0; len];
                self.rng.fill(&mut bytes);
                bytes
            }
        }
    }

    fn write(&mut self) {
        self.with_file(|run, number, handle| {
            let len = run.nodes[&number].data.len() as u64;
            let offset = match run.below(4) {
                0 | 1 => len,
                2 => run.below(len + 1),
                _ => run.below(len + 9000),
            };
            let size = 1 + match run.below(8) {
                0 => run.below(60_000),
                1..=4 => run.below(3000),
                _ => run.below(100),
            };
            let bytes = run.bytes(size as usize);
            println!("write {number} {offset}+{}", bytes.len());
            run.volume().write(ROOT_USER, number, handle, offset, &bytes, false).unwrap();
            let data = &mut run.nodes.get_mut(&number).unwrap().data;
            let end = offset as usize + bytes.len();
            if data.len() < end {
                data.resize(end, 0);
            }
            data[offset as usize..end].copy_from_slice(&bytes);
        });
    }

    fn truncate(&mut self) {
        let Some(number) = self.pick(Self::is_file) else { return };
        let len = self.nodes[&number].data.len() as u64;
        let to = if self.below(3) == 0 { self.below(len + 20_000) } else { self.below(len + 1) };
        let set = SetAttr { size: Some(to), ..SetAttr::default() };
        let entry = self.volume().set_attributes(ROOT_USER, number, &set).unwrap();
        assert_eq!(entry.attr.size, to);
        println!("truncate {number} {len} to {to}");
        self.nodes.get_mut(&number).unwrap().data.resize(to as usize, 0);
    }

    fn punch(&mut self) {
        self.with_file(|run, number, handle| {
            let data_len = run.nodes[&number].data.len() as u64;
            let offset = run.below(data_len + 1);
            let len = 1 + run.below(20_000);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let part = Part { number, handle, offset };
            println!("punch {number} {offset}+{len} of {data_len}");
            run.volume().allocate(ROOT_USER, part, len, mode).unwrap();
            let data = &mut run.nodes.get_mut(&number).unwrap().data;
            let end = (offset + len).min(data_len) as usize;
            data[offset as usize..end].fill(0);
        });
    }

    fn unlink(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let child = self.nodes[&parent].children.get(name).copied();
        let is_directory = child.is_some_and(|child| self.nodes[&child].is_directory);
        let done = if is_directory {
            self.volume().remove_dir(ROOT_USER, parent, name)
        } else {
            self.volume().unlink(ROOT_USER, parent, name)
        };
        let Some(child) = child else {
            assert_eq!(done, Err(Errno::NOENT));
            return;
        };
        if !self.nodes[&child].children.is_empty() {
            assert_eq!(done, Err(Errno::NOTEMPTY));
            return;
        }
        done.unwrap();
        self.nodes.get_mut(&parent).unwrap().children.remove(name);
        self.nodes.get_mut(&child).unwrap().links -= 1;
        self.forget_if_gone(child);
    }

    fn rename(&mut self) {
        let (from, name) = (self.directory(), self.name());
        let (to, new_name) = (self.directory(), self.name());
        let flags =
            [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]
                [self.below(4) as usize];
        let done = self.volume().rename(ROOT_USER, (from, name), (to, new_name), flags);
        let moved = self.nodes[&from].children.get(name).copied();
        let target = self.nodes[&to].children.get(new_name).copied();
        let Some(moved) = moved else {
            assert_eq!(done, Err(Errno::NOENT));
            return;
        };
        let moves_into_itself = self.nodes[&moved].is_directory && self.is_within(to, moved);
        if flags == RenameFlags::EXCHANGE {
            let Some(target) = target else {
                assert!(matches!(done, Err(Errno::NOENT | Errno::INVAL)), "{done:?}");
                return;
            };
            let target_too = self.nodes[&target].is_directory && self.is_within(from, target);
            if from != to && (moves_into_itself || target_too) {
                assert_eq!(done, Err(Errno::INVAL));
                return;
            }
            done.unwrap();
            self.nodes.get_mut(&from).unwrap().children.insert(name.to_vec(), target);
            self.nodes.get_mut(&to).unwrap().children.insert(new_name.to_vec(), moved);
            return;
        }
        if moves_into_itself && from != to {
            assert_eq!(done, Err(Errno::INVAL));
            return;
        }
        if let Some(target) = target {
            if flags == RenameFlags::NOREPLACE {
                assert_eq!(done, Err(Errno::EXIST));
                return;
            }
            if target == moved {
                done.unwrap();
                return;
            }
            let expected = match (self.nodes[&moved].is_directory, self.nodes[&target].is_directory) {
                (true, false) => Some(Errno::NOTDIR),
                (false, true) => Some(Errno::ISDIR),
                (true, true) if !self.nodes[&target].children.is_empty() => Some(Errno::NOTEMPTY),
                _ => None,
            };
            if let Some(expected) = expected {
                assert_eq!(done, Err(expected));
                return;
            }
            self.nodes.get_mut(&target).unwrap().links -= 1;
        }
        done.unwrap();
        self.nodes.get_mut(&from).unwrap().children.remove(name);
        self.nodes.get_mut(&to).unwrap().children.insert(new_name.to_vec(), moved);
        if let Some(target) = target {
            self.forget_if_gone(target);
        }
    }

    fn make_anonymous(&mut self) {
        if self.open.len() >= 4 {
            return;
        }
        let parent = self.directory();
        let new = NewNode { kind: FileKind::File, mode: 0o640, umask: 0o027, rdev: 0 };
        let (entry, opened) =
            self.volume().create_anonymous(ROOT_USER, parent, new, OpenFlags::RDWR).unwrap();
        let number = entry.attr.number;
        println!("anonymous {number}");
        assert_eq!((entry.attr.links, entry.attr.mode), (0, 0o640));
        let node = ModelNode { may_be_named: true, mode: 0o640, ..ModelNode::default() };
        assert!(self.nodes.insert(number, node).is_none(), "numbers are used once");
        self.open.push((opened.handle, number));
    }

    /// Gives a file without a name one; one that has had a name gets none.
    fn link_anonymous(&mut self, number: u64) {
        let (parent, name) = (self.directory(), self.name());
        let mode = 0o600 + self.below(0o200) as u32;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.volume().set_attributes(ROOT_USER, number, &set).unwrap();
        self.nodes.get_mut(&number).unwrap().mode = mode;
        let done = self.volume().link(ROOT_USER, number, parent, name);
        println!("link anonymous {number}: {done:?}");
        let is_free = !self.nodes[&parent].children.contains_key(name);
        let node = self.nodes.get_mut(&number).unwrap();
        match (node.may_be_named, is_free) {
            (true, true) => {
                assert_eq!(done.unwrap().attr.links, 1);
                (node.links, node.may_be_named) = (1, false);
                self.nodes.get_mut(&parent).unwrap().children.insert(name.to_vec(), number);
            }
            (true, false) => assert_eq!(done.unwrap_err(), Errno::EXIST),
            (false, _) => assert_eq!(done.unwrap_err(), Errno::NOENT),
        }
    }

    fn link(&mut self) {
        let anonymous: Vec<u64> = self
            .open
            .iter()
            .map(|(_, number)| *number)
            .filter(|number| self.nodes[number].links == 0)
            .collect();
        if !anonymous.is_empty() && self.below(2) == 0 {
            let number = anonymous[self.below(anonymous.len() as u64) as usize];
            return self.link_anonymous(number);
        }
        let Some(number) = self.pick(|node| !node.is_directory) else { return };
        let (parent, name) = (self.directory(), self.name());
        let done = self.volume().link(ROOT_USER, number, parent, name);
        if self.nodes[&parent].children.contains_key(name) {
            assert_eq!(done.unwrap_err(), Errno::EXIST);
            return;
        }
        let node = self.nodes.get_mut(&number).unwrap();
        node.links += 1;
        assert_eq!(done.unwrap().attr.links, node.links);
        self.nodes.get_mut(&parent).unwrap().children.insert(name.to_vec(), number);
    }

    fn attributes(&mut self) {
        let number = self.pick(|node| node.target.is_none()).unwrap();
        if self.below(2) == 0 {
            let mode = 0o600 + self.below(0o200) as u32;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.volume().set_attributes(ROOT_USER, number, &set).unwrap();
            self.nodes.get_mut(&number).unwrap().mode = mode;
            return;
        }
        let name = [b"user.one".to_vec(), b"user.two".to_vec()][self.below(2) as usize].clone();
        if self.below(3) == 0 {
            let removed = self.volume().remove_xattr(ROOT_USER, number, &name);
            let known = self.nodes.get_mut(&number).unwrap().xattrs.remove(&name);
            assert_eq!(removed.is_ok(), known.is_some());
        } else {
            let len = self.below(300) as usize;
            let value = self.bytes(len);
            self.volume().set_xattr(ROOT_USER, number, &name, &value, XattrFlags::empty()).unwrap();
            self.nodes.get_mut(&number).unwrap().xattrs.insert(name, value);
        }
    }

    fn copy(&mut self) {
        let Some(from) = self.pick(|node| Self::is_file(node) && !node.data.is_empty()) else { return };
        let source = self.volume().open(ROOT_USER, from, OpenFlags::RDONLY).unwrap().handle;
        self.with_file(|run, to, target| {
            if from == to {
                return;
            }
            let data = run.nodes[&from].data.clone();
            let from_offset = run.below(data.len() as u64);
            let offset = run.below(run.nodes[&to].data.len() as u64 + 1);
            let len = 1 + run.below(data.len() as u64);
            let (a, b) = (
                Part { number: from, handle: source, offset: from_offset },
                Part { number: to, handle: target, offset },
            );
            let copied = run.volume().copy_range(ROOT_USER, a, b, len).unwrap();
            let expected = len.min(data.len() as u64 - from_offset);
            assert_eq!(copied, expected);
            println!("copy {from} {from_offset} to {to} {offset}+{copied}");
            let bytes = &data[from_offset as usize..(from_offset + expected) as usize];
            let into = &mut run.nodes.get_mut(&to).unwrap().data;
            let end = offset as usize + bytes.len();
            if into.len() < end {
                into.resize(end, 0);
            }
            into[offset as usize..end].copy_from_slice(bytes);
        });
        self.volume().release(from, source);
    }

    fn read_one(&mut self) {
        self.with_file(|run, number, handle| {
            let data = run.nodes[&number].data.clone();
            let offset = run.below(data.len() as u64 + 10);
            let len = run.below(70_000) as usize;
            let mut read = Vec::new();
            run.volume().read(number, handle, offset, len, &mut read).unwrap();
            let from = (offset as usize).min(data.len());
            assert!(read == data[from..(from + len).min(data.len())], "bytes at {offset} of inode {number}");
            run.seek(number, handle, &data, offset);
        });
    }

    /// A reported hole is zeros; data is found where there is any.
    fn seek(&self, number: u64, handle: Handle, data: &[u8], offset: u64) {
        if offset >= data.len() as u64 {
            assert_eq!(self.volume().seek(number, handle, offset, Seek::Data), Err(Errno::NXIO));
            return;
        }
        let next = match self.volume().seek(number, handle, offset, Seek::Data) {
            Ok(next) => next,
            Err(Errno::NXIO) => data.len() as u64,
            Err(error) => panic!("{error}"),
        };
        assert!(data[offset as usize..next as usize].iter().all(|byte| *byte == 0), "a hole with data in it");
        let hole = self.volume().seek(number, handle, offset, Seek::Hole).unwrap();
        assert!(hole <= data.len() as u64 && hole >= offset);
    }

    fn open_one(&mut self) {
        let Some(number) = self.pick(Self::is_file) else { return };
        if self.open.len() < 4 {
            let handle = self.volume().open(ROOT_USER, number, OpenFlags::RDWR).unwrap().handle;
            self.open.push((handle, number));
        }
    }

    fn close_one(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.below(self.open.len() as u64) as usize;
        let (handle, number) = self.open.swap_remove(at);
        self.volume().flush(ROOT_USER, number, handle).unwrap();
        self.volume().release(number, handle);
        self.forget_if_gone(number);
    }

    /// Everything that was not in the log is lost, and nothing was.
    fn crash(&mut self) {
        println!("crash");
        self.volume = None;
        self.open.clear();
        self.nodes.retain(|_, node| node.links > 0);
        self.mount();
        self.compare();
    }

    fn remount(&mut self) {
        println!("remount");
        while !self.open.is_empty() {
            self.close_one();
        }
        self.compare();
        self.volume().close().unwrap();
        self.compare();
        self.volume = None;
        let store = self.place.open();
        let options = CheckOptions { read_data: true, repair: false, threads: 1 };
        let report = check(&store, &options, &CheckProgress::default()).unwrap();
        assert_eq!(report.damaged, 0, "{:?}", report.findings);
        drop(store);
        self.mount();
        self.compare();
    }

    fn compare(&self) {
        let mut seen = BTreeSet::new();
        let root = self.volume().attributes(ROOT_USER, ROOT, None).unwrap();
        self.compare_node(&root, &mut seen);
        assert_eq!(seen.len(), self.nodes.values().filter(|node| node.links > 0).count());
        assert_eq!(*self.place.said.lock().unwrap(), Vec::<String>::new(), "nothing was wrong");
    }

    fn compare_node(&self, entry: &Entry, seen: &mut BTreeSet<u64>) {
        let number = entry.attr.number;
        let node = &self.nodes[&number];
        seen.insert(number);
        assert_eq!(entry.attr.kind == FileKind::Directory, node.is_directory);
        assert_eq!((entry.attr.links, entry.attr.mode), (node.links, node.mode), "inode {number}");
        let mut xattrs = self.volume().xattrs(ROOT_USER, number).unwrap();
        xattrs.sort();
        assert!(xattrs.iter().eq(node.xattrs.keys()));
        for (name, value) in &node.xattrs {
            assert_eq!(self.volume().xattr(ROOT_USER, number, name).as_ref(), Ok(value));
        }
        if let Some(target) = &node.target {
            assert_eq!(self.volume().read_link(ROOT_USER, number).as_ref(), Ok(target));
        } else if node.is_directory {
            self.compare_directory(number, node, seen);
        } else {
            assert_eq!(entry.attr.size, node.data.len() as u64, "inode {number}");
            let handle = self.volume().open(ROOT_USER, number, OpenFlags::RDONLY).unwrap().handle;
            let mut read = Vec::new();
            self.volume().read(number, handle, 0, node.data.len() + 1, &mut read).unwrap();
            self.volume().release(number, handle);
            let differs = read.iter().zip(&node.data).position(|(one, other)| one != other);
            assert!(
                read == node.data,
                "inode {number} has {} bytes instead of {}, another one at {differs:?}",
                read.len(),
                node.data.len()
            );
        }
    }

    fn compare_directory(&self, number: u64, node: &ModelNode, seen: &mut BTreeSet<u64>) {
        let handle = self.volume().open_dir(ROOT_USER, number).unwrap().handle;
        let mut listed = BTreeMap::new();
        self.volume()
            .read_dir(number, handle, 2, true, &mut |entry| {
                listed.insert(entry.name.to_vec(), entry.number);
                assert_eq!(entry.entry.as_ref().unwrap().attr.number, entry.number);
                true
            })
            .unwrap();
        self.volume().release_dir(number, handle);
        assert_eq!(listed, node.children, "names in inode {number}");
        for (name, child) in &node.children {
            match self.volume().lookup(ROOT_USER, number, name).unwrap() {
                Found::Entry(entry) => {
                    assert_eq!(entry.attr.number, *child);
                    self.compare_node(&entry, seen);
                }
                Found::Missing { .. } => panic!("`{}` is listed and not found", name.escape_ascii()),
            }
        }
    }
}

/// Prints what it does, for when it fails.
fn run(seed: u64, steps: usize, beside: bool) {
    println!("seed {seed}");
    let mut run = Run::new(seed, beside);
    for step in 0..steps {
        run.step();
        if step % 500 == 499 {
            run.compare();
        }
    }
    run.remount();
}

#[test]
fn random_operations_crashes_and_remounts_agree_with_a_model() {
    let seeds = std::env::var("OUTRIGGER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let first = std::env::var("OUTRIGGER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in first..first + seeds {
        run(seed, 1500, false);
        run(seed, 1500, true);
    }
}

#[test]
fn nobody_but_root_may_leave_set_id_bits_behind() {
    let run = Run::new(7, false);
    let user = Caller { uid: 1000, gid: 1000, pid: 3 };
    let new = NewNode { kind: FileKind::File, mode: 0o6755, umask: 0, rdev: 0 };
    let file = run.volume().make(ROOT_USER, ROOT, b"file", new).unwrap().attr.number;
    let mode = || run.volume().attributes(ROOT_USER, file, None).unwrap().attr.mode;
    assert_eq!(mode(), 0o6755);
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    run.volume().set_attributes(user, file, &set).unwrap();
    assert_eq!(mode(), 0o755);
}
