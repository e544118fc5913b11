//! The history of each name. Every change has an interval in which it took place. A reader must
//! find something that the name may have held at that moment.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::run::noise;

/// Names of files, in four directories; then names of trees.
pub const FILES: usize = 20;
pub const NAMES: usize = FILES + 4;
/// Files in a tree.
const TREE: u8 = 4;

/// The content of a name: files by their names, a lone one by the empty name.
pub type Found = Option<BTreeMap<String, Vec<u8>>>;

pub fn name(slot: usize) -> String {
    if slot < FILES { format!("d{}/f{slot}", slot % 4) } else { format!("trees/t{slot}") }
}

pub fn is_tree(slot: usize) -> bool {
    slot >= FILES
}

/// Names of the same kind: files or trees.
pub fn alike(slot: usize) -> std::ops::Range<usize> {
    if is_tree(slot) { FILES..NAMES } else { 0..FILES }
}

/// How a content is made: a line that no other content has, and blocks that many have, so that
/// hosts store the same chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    pub token: u64,
    pub blocks: Vec<u8>,
    is_tree: bool,
}

/// Blocks of all sizes, small ones and large ones.
pub struct Blocks(Vec<Vec<u8>>);

impl Blocks {
    pub const COUNT: u64 = 24;

    pub fn new(seed: u64) -> Self {
        let len = |at: u64| [700, 9_000, 40_000, 150_000][at as usize % 4] + at as usize * 37;
        Self((0..Self::COUNT).map(|at| noise(seed ^ at << 32, len(at))).collect())
    }

    pub fn get(&self, block: u8) -> &[u8] {
        &self.0[usize::from(block)]
    }

    pub fn bytes(&self, token: u64, blocks: &[u8]) -> Vec<u8> {
        let head = Recipe::head(token).into_bytes();
        blocks.iter().fold(head, |mut bytes, block| {
            bytes.extend_from_slice(self.get(*block));
            bytes
        })
    }

    /// The content that a recipe makes.
    pub fn made(&self, recipe: Option<&Recipe>) -> Found {
        let recipe = recipe?;
        let whole = self.bytes(recipe.token, &recipe.blocks);
        if !recipe.is_tree {
            return Some(BTreeMap::from([(String::new(), whole)]));
        }
        let other = |at: u8| self.bytes(recipe.token, &[(recipe.token as u8 ^ at) % Self::COUNT as u8]);
        Some(
            (0..TREE).map(|at| (format!("f{at}"), if at == 0 { whole.clone() } else { other(at) })).collect(),
        )
    }
}

impl Recipe {
    pub fn new(slot: usize, token: u64, blocks: Vec<u8>) -> Self {
        Self { token, blocks, is_tree: is_tree(slot) }
    }

    /// The first line of a content.
    pub fn head(token: u64) -> String {
        format!("{token:023}\n")
    }
}

/// How a change takes place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// At one moment.
    AtOnce,
    /// Piece by piece; readers can see the steps.
    InPieces,
}

/// A change of what a name holds.
#[derive(Clone, Debug)]
struct Change {
    begin: u64,
    /// `u64::MAX` while it is under way.
    end: u64,
    to: Option<Recipe>,
    way: Way,
    /// The change was cut short: some of its pieces stay until the next change, others are missing.
    is_torn: bool,
}

/// The history of one name. A thread that changes the name holds `turn`.
struct Slot {
    turn: Mutex<()>,
    changes: Mutex<Vec<Change>>,
}

pub struct Model {
    pub blocks: Blocks,
    slots: Vec<Slot>,
    clock: AtomicU64,
    tokens: AtomicU64,
    /// Tokens that may be at two names: those of copies, and of contents that were put again.
    doubled: Mutex<HashSet<u64>>,
}

/// The locks of the names that an operation changes or reads, which no other thread does meanwhile.
pub struct Turns<'a>(#[expect(dead_code, reason = "held")] Vec<MutexGuard<'a, ()>>);

impl Model {
    pub fn new(seed: u64) -> Self {
        let nothing = || Change { begin: 0, end: 0, to: None, way: Way::AtOnce, is_torn: false };
        let slot = || Slot { turn: Mutex::default(), changes: Mutex::new(vec![nothing()]) };
        Self {
            blocks: Blocks::new(seed),
            slots: (0..NAMES).map(|_| slot()).collect(),
            clock: AtomicU64::new(1),
            tokens: AtomicU64::new(1),
            doubled: Mutex::default(),
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::SeqCst)
    }

    pub fn doubles(&self, recipe: &Recipe) {
        self.doubled.lock().unwrap().insert(recipe.token);
    }

    pub fn turns(&self, slots: impl IntoIterator<Item = usize>) -> Turns<'_> {
        let mut slots: Vec<_> = slots.into_iter().collect();
        slots.sort_unstable();
        slots.dedup();
        Turns(slots.into_iter().map(|slot| self.slots[slot].turn.lock().unwrap()).collect())
    }

    /// The present content. The caller holds the name's turn.
    pub fn current(&self, slot: usize) -> Option<Recipe> {
        self.slots[slot].changes.lock().unwrap().last().unwrap().to.clone()
    }

    pub fn begin(&self, slot: usize, to: Option<Recipe>, way: Way) {
        let mut changes = self.slots[slot].changes.lock().unwrap();
        changes.push(Change { begin: self.now(), end: u64::MAX, to, way, is_torn: false });
    }

    pub fn done(&self, slot: usize) {
        self.slots[slot].changes.lock().unwrap().last_mut().unwrap().end = self.now();
    }

    /// Resolves a change that failed because its host was killed, by the content found afterwards.
    /// Returns whether the present content is known now.
    pub fn settle(&self, slot: usize, found: &Found) -> bool {
        let mut changes = self.slots[slot].changes.lock().unwrap();
        let [.., before, last] = &mut changes[..] else { unreachable!("the first is no change") };
        if *found == self.blocks.made(last.to.as_ref()) {
            last.end = self.now();
        } else if *found == self.blocks.made(before.to.as_ref()) && last.way == Way::AtOnce {
            changes.pop();
        } else {
            let name = name(slot);
            assert!(self.is_between(before, last, found), "{name}: {} after {last:?}", told(found));
            (last.is_torn, last.end) = (true, self.now());
            return false;
        }
        true
    }

    /// True for a content that may be found during `last`: each file is old, new, a part of both,
    /// or missing.
    fn is_between(&self, before: &Change, last: &Change, found: &Found) -> bool {
        if last.way == Way::AtOnce {
            return false;
        }
        let (before, after) = (self.blocks.made(before.to.as_ref()), self.blocks.made(last.to.as_ref()));
        let Some(found) = found else {
            return last.to.as_ref().is_none_or(|to| to.is_tree) || before.is_none();
        };
        found.iter().all(|(name, bytes)| {
            let of =
                |side: &Found| side.as_ref().and_then(|files| files.get(name)).cloned().unwrap_or_default();
            let (before, after) = (of(&before), of(&after));
            let byte = |at: usize| before.get(at) == Some(&bytes[at]) || after.get(at) == Some(&bytes[at]);
            (0..bytes.len()).all(byte)
        })
    }

    /// Checks that the name may have had this content between two moments.
    pub fn allows(&self, slot: usize, (from, to): (u64, u64), found: &Found) -> Result<(), String> {
        let changes = self.slots[slot].changes.lock().unwrap();
        for (at, change) in changes.iter().enumerate() {
            let ended = changes.get(at + 1).map_or(u64::MAX, |next| next.end);
            if change.begin > to || ended < from {
                continue;
            }
            let is_whole = !change.is_torn && *found == self.blocks.made(change.to.as_ref());
            let may_be_part = change.way == Way::InPieces && (change.is_torn || change.end >= from);
            if is_whole || may_be_part && self.is_between(&changes[at - 1], change, found) {
                return Ok(());
            }
        }
        let near: Vec<_> = changes.iter().filter(|change| change.end >= from.saturating_sub(40)).collect();
        Err(format!("{} between {from} and {to}: {}, changes: {near:#?}", name(slot), told(found)))
    }

    /// Tokens that were at some name from before `from` until after `to`. Each must be found once.
    pub fn lasting(&self, (from, to): (u64, u64)) -> HashSet<u64> {
        let mut of_all: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for slot in &self.slots {
            let changes = slot.changes.lock().unwrap();
            for (at, change) in changes.iter().enumerate() {
                let until = changes.get(at + 1).map_or(u64::MAX, |next| next.begin);
                let Some(recipe) = &change.to else { continue };
                of_all.entry(recipe.token).or_default().push((change.end, until));
            }
        }
        let doubled = self.doubled.lock().unwrap();
        let lasts = |spans: &Vec<(u64, u64)>| {
            // A rename begins at one name before it ends at the other, so between them the token is
            // at one of both.
            let mut spans = spans.clone();
            spans.sort_unstable();
            let (first, last) = (spans[0].0, spans.iter().map(|span| span.1).max().unwrap());
            first < from && last > to
        };
        of_all
            .into_iter()
            .filter(|(token, spans)| !doubled.contains(token) && lasts(spans))
            .map(|(token, _)| token)
            .collect()
    }
}

/// The token of a content.
pub fn token_of(found: &Found) -> Option<u64> {
    let files = found.as_ref()?;
    let bytes = files.get("").or_else(|| files.get("f0"))?;
    std::str::from_utf8(bytes.get(..23)?).ok()?.parse().ok()
}

/// A short text about a content.
pub fn told(found: &Found) -> String {
    let Some(files) = found else { return "nothing".to_owned() };
    let head = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(23)]).into_owned();
    let of = |(name, bytes): (&String, &Vec<u8>)| format!("{name:?}: {} bytes, {}", bytes.len(), head(bytes));
    files.iter().map(of).collect::<Vec<_>>().join("; ")
}
