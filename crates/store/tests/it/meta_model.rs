//! Random changes, snapshots, pins, policies and purges on an engine and on a plain model. Every
//! tree at every kept epoch, every list of versions, every report and every refusal must be equal.

use crate::meta_support;

use std::collections::{BTreeMap, BTreeSet};

use meta_support::model::{Model, Report};
use meta_support::{Engine, Fixture, attributes, commit, dump, postgres, root, sealed, sqlite};
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time};
use outrigger_store::meta::{At, Change, PinTarget, ROOT_INODE, SessionId};
use proptest::prelude::*;

/// A change whose numbers are picked from the existing ones when it is made.
#[derive(Clone, Debug)]
enum Sketch {
    Put { parent: usize, name: u8, kind: u8, mode: u8, content: u8, inode: Option<usize>, replace: bool },
    PutRoot { mode: u8 },
    Link { parent: usize, name: u8, inode: usize },
    Remove { entry: usize, recursive: bool },
    Rename { entry: usize, parent: usize, name: u8 },
}

/// The target state of some names and inodes.
#[derive(Clone, Debug)]
enum State {
    New { parent: usize, name: u8, kind: u8, mode: u8, content: u8 },
    Node { inode: usize, parent: usize, mode: u8, content: u8, keep: bool, other_kind: bool },
    Name { parent: usize, name: u8, inode: Option<usize> },
    Gone { entry: usize },
    Move { entry: usize, parent: usize, name: u8 },
    Exchange { one: usize, other: usize },
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Sketch>),
    /// These, their changes turned by a number of places and, perhaps, the other way round.
    States(Vec<State>, usize, bool),
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

fn state() -> impl Strategy<Value = State> {
    let (pick, name) = (any::<usize>(), 0u8..5);
    prop_oneof![
        6 => (any::<usize>(), name.clone(), 0u8..8, 0u8..3, 0u8..4)
            .prop_map(|(parent, name, kind, mode, content)| State::New { parent, name, kind, mode, content }),
        4 => (any::<usize>(), any::<usize>(), 0u8..3, 0u8..4, any::<bool>(), proptest::bool::weighted(0.1))
            .prop_map(|(inode, parent, mode, content, keep, other_kind)| State::Node { inode, parent, mode, content, keep, other_kind }),
        2 => (any::<usize>(), name.clone(), proptest::option::weighted(0.7, any::<usize>()))
            .prop_map(|(parent, name, inode)| State::Name { parent, name, inode }),
        2 => pick.prop_map(|entry| State::Gone { entry }),
        4 => (any::<usize>(), any::<usize>(), name).prop_map(|(entry, parent, name)| State::Move { entry, parent, name }),
        2 => any::<(usize, usize)>().prop_map(|(one, other)| State::Exchange { one, other }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop::sample::select(vec![None, Some("none"), Some("all"), Some("1"), Some("3")]);
    prop_oneof![
        12 => prop::collection::vec(sketch(), 1..4).prop_map(Step::Commit),
        12 => (prop::collection::vec(state(), 1..4), any::<usize>(), any::<bool>())
            .prop_map(|(states, turn, back)| Step::States(states, turn, back)),
        3 => Just(Step::Snapshot),
        1 => any::<usize>().prop_map(Step::DeleteSnapshot),
        2 => Just(Step::Pin),
        1 => Just(Step::Unpin),
        2 => Just(Step::Purge),
        1 => (any::<usize>(), value).prop_map(|(directory, value)| Step::Policy { directory, value }),
        1 => Just(Step::Tidy),
    ]
}

fn kind_of(kind: u8) -> FileKind {
    match kind {
        0..4 => FileKind::File,
        4..7 => FileKind::Directory,
        _ => FileKind::Symlink,
    }
}

fn what(kind: FileKind, mode: u8, content: u8) -> (Attributes, Root) {
    let mut attributes = attributes(kind, 0o600 + u32::from(mode));
    attributes.mtime = Time { secs: i64::from(mode), nanos: 0 };
    match mode {
        1 => {
            let atime = Time { secs: i64::from(content), nanos: 7 };
            attributes.times = Some(OtherTimes { atime, ctime: attributes.mtime });
        }
        2 => attributes.xattrs = vec![(b"user.x".to_vec(), vec![content])],
        _ => {}
    }
    if kind == FileKind::Symlink {
        attributes.target = vec![b't', content];
    }
    (attributes, if kind == FileKind::File { root(content) } else { root(0) })
}

/// The changes that lead to that state.
fn changes_of(model: &Model, states: &[State], fresh: &mut u64) -> Vec<Change> {
    let mut directories: Vec<u64> = model.names.keys().copied().collect();
    let nodes: Vec<u64> = model.nodes.keys().copied().collect();
    let entries: Vec<(u64, Vec<u8>, u64)> = model
        .names
        .iter()
        .flat_map(|(&parent, names)| names.iter().map(move |(name, &inode)| (parent, name.clone(), inode)))
        .collect();
    let entry = |pick: &usize| (!entries.is_empty()).then(|| entries[pick % entries.len()].clone());
    let named = |parent, name: Vec<u8>, inode| Change::Name { parent, name, inode };
    let letter = |letter: &u8| vec![b'a' + letter];
    let mut changes = Vec::new();
    for state in states {
        match state {
            State::New { parent, name, kind, mode, content } => {
                let (inode, parent) = (*fresh, directories[parent % directories.len()]);
                *fresh += 1;
                let kind = kind_of(*kind);
                if kind == FileKind::Directory {
                    directories.push(inode);
                }
                let (attributes, root) = what(kind, *mode, *content);
                changes.push(Change::Node { inode, parent, attributes, root, keep: false });
                changes.push(named(parent, letter(name), Some(inode)));
            }
            State::Node { inode, parent, mode, content, keep, other_kind } => {
                let (inode, parent) = (nodes[inode % nodes.len()], directories[parent % directories.len()]);
                let kind = match (model.nodes[&inode].attributes.kind, other_kind) {
                    (kind, false) => kind,
                    (FileKind::File, true) => FileKind::Symlink,
                    (FileKind::Symlink, true) => FileKind::File,
                    (_, true) if *keep => FileKind::File,
                    (_, true) => FileKind::Directory,
                };
                let (attributes, root) = what(kind, *mode, *content);
                changes.push(Change::Node { inode, parent, attributes, root, keep: *keep });
            }
            State::Name { parent, name, inode } => {
                let inode = inode.map(|pick| nodes[pick % nodes.len()]);
                changes.push(named(directories[parent % directories.len()], letter(name), inode));
            }
            State::Gone { entry: pick } => {
                changes.extend(entry(pick).map(|(parent, name, _)| named(parent, name, None)));
            }
            State::Move { entry: pick, parent, name } => {
                let Some((old_parent, old_name, inode)) = entry(pick) else { continue };
                changes.push(named(old_parent, old_name, None));
                changes.push(named(directories[parent % directories.len()], letter(name), Some(inode)));
            }
            State::Exchange { one, other } => {
                let (Some(one), Some(other)) = (entry(one), entry(other)) else { continue };
                changes.push(named(one.0, one.1, Some(other.2)));
                changes.push(named(other.0, other.1, Some(one.2)));
            }
        }
    }
    changes
}

/// True when no two set the same.
fn are_distinct(changes: &[Change]) -> bool {
    let key = |change: &Change| match change {
        Change::Name { parent, name, .. } => (*parent, name.clone()),
        Change::Node { inode, .. } => (*inode, Vec::new()),
        _ => unreachable!(),
    };
    let keys: BTreeSet<_> = changes.iter().map(key).collect();
    keys.len() == changes.len()
}

/// Turns a sketch into a change; `fresh` are the numbers reserved for new inodes, `made` the
/// directories of this commit.
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
            let kind = kind_of(*kind);
            let parent = directory(parent);
            if kind == FileKind::Directory {
                made.push(inode);
            }
            let (attributes, root) = what(kind, *mode, *content);
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
    fn new(engine: Engine) -> Option<Self> {
        let engine = engine()?;
        let (writer, pinner) = (engine.writer(), engine.writer());
        let (snapshots, pins) = (BTreeMap::new(), BTreeMap::new());
        Some(Self { engine, writer, pinner, model: Model::new(), time: 0, snapshots, pins })
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
                self.commit(&changes);
            }
            Step::States(states, turn, back) => {
                let reserved = meta.reserve_inodes(states.len() as u64).unwrap();
                self.model.next_inode = reserved.end;
                let mut changes = changes_of(&self.model, states, &mut { reserved.start });
                let places = turn % changes.len().max(1);
                changes.rotate_left(places);
                if *back {
                    changes.reverse();
                }
                let distinct = are_distinct(&changes);
                if self.commit(&changes) && distinct {
                    let before = self.model.clone();
                    self.commit(&changes);
                    assert_eq!(self.model, before, "twice is the same as once: {changes:#?}");
                }
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

    /// True when it was not refused.
    fn commit(&mut self, changes: &[Change]) -> bool {
        let wanted = self.model.commit(changes, self.time);
        let done = commit(&*self.engine.meta, self.writer, changes.to_vec(), self.time)
            .map(|done| Report {
                aliases: done.aliases,
                created: done.created,
                changed: done.changed,
                removed: done.removed,
            })
            .map_err(|error| error.kind());
        assert_eq!(done, wanted, "{changes:#?}");
        wanted.is_ok()
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
        for &directory in self.model.names.keys() {
            let hangs = meta.parent_of(directory).unwrap();
            assert!(
                hangs.is_some_and(|above| self.model.names.contains_key(&above)),
                "{directory}: {hangs:?}"
            );
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
    fn sqlite_equals_the_model_at_every_epoch(steps in prop::collection::vec(step(), 1..40)) {
        run(sqlite, &steps);
    }

}

// Fewer: each look at a row is a round trip.
proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn postgres_equals_the_model_at_every_epoch(steps in prop::collection::vec(step(), 1..40)) {
        run(postgres, &steps);
    }

    #[test]
    fn sealed_postgres_equals_the_model_at_every_epoch(steps in prop::collection::vec(step(), 1..40)) {
        run(sealed, &steps);
    }
}

fn run(engine: Engine, steps: &[Step]) {
    let Some(mut run) = Run::new(engine) else { return };
    for step in steps {
        run.step(step);
        run.compare();
    }
}
