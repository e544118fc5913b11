//! Random changes, snapshots, pins, policies and purges on an engine and on a plain model: every tree at every epoch that
//! somebody keeps, every list of versions, every report and every refusal must be equal.

mod meta_support;

use std::collections::BTreeMap;

use meta_support::model::{Model, Report};
use meta_support::{Fixture, attributes, commit, dump, root, sqlite};
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::meta::{At, Change, PinTarget, ROOT_INODE, SessionId};
use proptest::prelude::*;

/// A change whose numbers are picked from what is there when it is made.
#[derive(Clone, Debug)]
enum Sketch {
    Put { parent: usize, name: u8, kind: u8, mode: u8, content: u8, inode: Option<usize>, replace: bool },
    PutRoot { mode: u8 },
    Link { parent: usize, name: u8, inode: usize },
    Remove { entry: usize, recursive: bool },
    Rename { entry: usize, parent: usize, name: u8 },
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Sketch>),
    Snapshot,
    DeleteSnapshot(usize),
    Pin,
    /// Ends the session that pins, and opens another.
    Unpin,
    Purge,
    Policy {
        directory: usize,
        value: Option<&'static str>,
    },
    Tidy,
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let name = 0u8..5;
    prop_oneof![
        14 => (any::<usize>(), name.clone(), 0u8..8, 0u8..3, 0u8..4, proptest::option::weighted(0.15, any::<usize>()), proptest::bool::weighted(0.1))
            .prop_map(|(parent, name, kind, mode, content, inode, replace)| Sketch::Put { parent, name, kind, mode, content, inode, replace }),
        1 => (0u8..3).prop_map(|mode| Sketch::PutRoot { mode }),
        1 => (any::<usize>(), name.clone(), any::<usize>()).prop_map(|(parent, name, inode)| Sketch::Link { parent, name, inode }),
        3 => (any::<usize>(), proptest::bool::weighted(0.7)).prop_map(|(entry, recursive)| Sketch::Remove { entry, recursive }),
        3 => (any::<usize>(), any::<usize>(), name).prop_map(|(entry, parent, name)| Sketch::Rename { entry, parent, name }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop::sample::select(vec![None, Some("none"), Some("all"), Some("1"), Some("3")]);
    prop_oneof![
        12 => prop::collection::vec(sketch(), 1..4).prop_map(Step::Commit),
        3 => Just(Step::Snapshot),
        1 => any::<usize>().prop_map(Step::DeleteSnapshot),
        2 => Just(Step::Pin),
        1 => Just(Step::Unpin),
        2 => Just(Step::Purge),
        1 => (any::<usize>(), value).prop_map(|(directory, value)| Step::Policy { directory, value }),
        1 => Just(Step::Tidy),
    ]
}

/// Turns a sketch into a change; `fresh` are the numbers reserved for new inodes, `made` the directories of this commit.
fn change(model: &Model, sketch: &Sketch, fresh: &mut u64, made: &mut Vec<u64>) -> Change {
    let directories: Vec<u64> = model.names.keys().chain(&*made).copied().collect();
    let nodes: Vec<u64> = model.nodes.keys().copied().collect();
    let entries: Vec<(u64, &Vec<u8>)> = model
        .names
        .iter()
        .flat_map(|(&parent, names)| names.keys().map(move |name| (parent, name)))
        .collect();
    let directory = |pick: &usize| directories[pick % directories.len()];
    let entry = |pick: &usize| match entries.len() {
        0 => (ROOT_INODE, b"missing".to_vec()),
        len => (entries[pick % len].0, entries[pick % len].1.clone()),
    };
    let name = |letter: &u8| vec![b'a' + letter];
    match sketch {
        Sketch::Put { parent, name: letter, kind, mode, content, inode, replace } => {
            let inode = inode.map_or_else(
                || {
                    *fresh += 1;
                    *fresh - 1
                },
                |pick| nodes[pick % nodes.len()],
            );
            let kind = match kind {
                0..4 => FileKind::File,
                4..7 => FileKind::Directory,
                _ => FileKind::Symlink,
            };
            let parent = directory(parent);
            if kind == FileKind::Directory {
                made.push(inode);
            }
            let mut attributes = attributes(kind, 0o600 + u32::from(*mode));
            attributes.mtime = Time { secs: i64::from(*mode), nanos: 0 };
            if *mode == 2 {
                attributes.xattrs = vec![(b"user.x".to_vec(), vec![*content])];
            }
            if kind == FileKind::Symlink {
                attributes.target = vec![b't', *content];
            }
            let root = if kind == FileKind::File { root(*content) } else { root(0) };
            Change::Put {
                parent,
                name: name(letter),
                inode,
                attributes,
                root,
                stamp: *fresh,
                replace: *replace,
            }
        }
        Sketch::PutRoot { mode } => {
            let attributes = attributes(FileKind::Directory, 0o700 + u32::from(*mode));
            let inode = ROOT_INODE;
            Change::Put {
                parent: inode,
                name: Vec::new(),
                inode,
                attributes,
                root: root(0),
                stamp: 0,
                replace: false,
            }
        }
        Sketch::Link { parent, name: letter, inode } => {
            Change::Link { parent: directory(parent), name: name(letter), inode: nodes[inode % nodes.len()] }
        }
        Sketch::Remove { entry: pick, recursive } => {
            let (parent, name) = entry(pick);
            Change::Remove { parent, name, recursive: *recursive }
        }
        Sketch::Rename { entry: pick, parent: new_parent, name: letter } => {
            let (parent, old) = entry(pick);
            Change::Rename { parent, name: old, new_parent: directory(new_parent), new_name: name(letter) }
        }
    }
}

struct Run {
    engine: Fixture,
    writer: SessionId,
    pinner: SessionId,
    model: Model,
    time: u64,
    /// Epoch → the tree as it was, for snapshots (with names) and pins.
    snapshots: BTreeMap<u64, (String, Model)>,
    pins: BTreeMap<u64, Model>,
}

impl Run {
    fn new() -> Self {
        let engine = sqlite();
        let (writer, pinner) = (engine.writer(), engine.writer());
        let (snapshots, pins) = (BTreeMap::new(), BTreeMap::new());
        Self { engine, writer, pinner, model: Model::new(), time: 0, snapshots, pins }
    }

    fn step(&mut self, step: &Step) {
        let meta = &*self.engine.meta;
        self.time += 1;
        match step {
            Step::Commit(sketches) => {
                let reserved = meta.reserve_inodes(sketches.len() as u64).unwrap();
                self.model.next_inode = reserved.end;
                let (mut fresh, mut made) = (reserved.start, Vec::new());
                let changes: Vec<Change> = sketches
                    .iter()
                    .map(|sketch| change(&self.model, sketch, &mut fresh, &mut made))
                    .collect();
                let wanted = self.model.commit(&changes, self.time);
                let done = commit(meta, self.writer, changes.clone(), self.time)
                    .map(|done| Report {
                        aliases: done.aliases,
                        created: done.created,
                        changed: done.changed,
                        removed: done.removed,
                    })
                    .map_err(|error| error.kind());
                assert_eq!(done, wanted, "{changes:#?}");
            }
            Step::Snapshot => {
                let name = format!("s{}", self.time);
                let row = meta.create_snapshot(&name, self.time, &[]).unwrap();
                self.snapshots.insert(row.epoch, (name, self.model.clone()));
            }
            Step::DeleteSnapshot(pick) => {
                if let Some(&epoch) = self.snapshots.keys().nth(pick % self.snapshots.len().max(1)) {
                    meta.delete_snapshot(&self.snapshots.remove(&epoch).unwrap().0).unwrap();
                }
            }
            Step::Pin => {
                let (epoch, _) = meta.pin(self.pinner, &PinTarget::Now).unwrap();
                self.pins.insert(epoch, self.model.clone());
                if let Some((&epoch, (name, model))) = self.snapshots.iter().next() {
                    let target = PinTarget::Snapshot(name.clone());
                    assert_eq!(meta.pin(self.pinner, &target).unwrap(), (epoch, None));
                    self.pins.insert(epoch, model.clone());
                }
            }
            Step::Unpin => {
                meta.close_session(self.pinner).unwrap();
                self.pinner = self.engine.writer();
                self.pins.clear();
            }
            Step::Purge => {
                meta.purge_history().unwrap();
                assert_eq!(meta.purge_history().unwrap(), 0, "a second purge has nothing to do");
            }
            Step::Policy { directory, value } => {
                let directories: Vec<u64> = self.model.names.keys().copied().collect();
                let inode = directories[directory % directories.len()];
                meta.set_policy(inode, "versions", *value).unwrap();
                match value {
                    Some(value) => self.model.policies.insert(inode, (*value).to_owned()),
                    None => self.model.policies.remove(&inode),
                };
            }
            Step::Tidy => meta.tidy().unwrap(),
        }
    }

    fn compare(&self) {
        let meta = &*self.engine.meta;
        assert_eq!(dump(meta, At::Now), self.model.dump());
        assert_eq!(meta.totals().unwrap(), self.model.totals());
        for (epoch, model) in
            self.snapshots.iter().map(|(epoch, (_, model))| (epoch, model)).chain(&self.pins)
        {
            assert_eq!(dump(meta, At::Epoch(*epoch)), model.dump(), "epoch {epoch}");
        }
        for (&inode, node) in &self.model.nodes {
            assert_eq!(meta.versions(inode).unwrap(), node.versions, "versions of {inode}");
        }
        assert_eq!(self.engine.findings(), [""; 0]);
        self.compare_roots();
    }

    /// Exactly the retained roots are visited.
    fn compare_roots(&self) {
        let mut wanted = Vec::new();
        for model in
            self.snapshots.values().map(|(_, model)| model).chain(self.pins.values()).chain([&self.model])
        {
            wanted.extend(model.nodes.values().map(|node| node.root.encode()));
        }
        let versions = self.model.nodes.values().flat_map(|node| &node.versions);
        wanted.extend(versions.map(|version| version.root.encode()));
        wanted.retain(|root| root.len() > 1);
        let mut visited = Vec::new();
        let packs = self.engine.meta.visit_roots(&mut |root| {
            visited.push(root.encode());
            Ok(())
        });
        assert_eq!(packs.unwrap(), []);
        for roots in [&mut wanted, &mut visited] {
            roots.sort();
            roots.dedup();
        }
        assert_eq!(visited, wanted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_equals_the_model_at_every_epoch(steps in prop::collection::vec(step(), 1..40)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.compare();
        }
    }
}
