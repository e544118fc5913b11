//! Possible outcomes for the changes that are pending at a crash point: counts them, and picks some
//! or all.

use std::collections::{HashMap, HashSet};

use outrigger_workload::Rng;

use super::model::{Effect, Inode, Step};

/// What a power failure may do; see the table in the module `crash`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything that POSIX allows.
    Strict,
    /// As on a journalling file system such as ext4: names change in order.
    Ordered,
}

/// The outcome of one pending change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Lost,
    Kept,
    Torn(Tear),
}

/// The part of a write that remains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tear {
    /// Ranges of its data that were written.
    pub(super) kept: Vec<(usize, usize)>,
    /// The file is as long as if all had been written.
    pub(super) extends: bool,
}

/// The steps that were done and are not durable, in order.
pub(super) struct Pending {
    pub(super) mode: Mode,
    pub(super) steps: Vec<usize>,
}

impl Pending {
    /// Does step `at`. Returns the changes of content that it made durable, in order.
    pub(super) fn advance(&mut self, steps: &[Step], at: usize) -> Vec<usize> {
        let sync = &steps[at].effect;
        if !sync.is_sync() {
            self.steps.push(at);
            return Vec::new();
        }
        let mode = self.mode;
        let mut done: Vec<usize> = self.steps.clone();
        done.retain(|&step| makes_durable(mode, sync, &steps[step].effect, step));
        // The names of one file change in order: a durable one implies those before it.
        let mut named: HashMap<Inode, usize> = HashMap::new();
        named.extend(done.iter().filter_map(|&step| Some((steps[step].effect.name_of()?.0, step))));
        self.steps.retain(|step| {
            let name = steps[*step].effect.name_of();
            done.binary_search(step).is_err() && name.is_none_or(|(inode, _)| named.get(&inode) < Some(step))
        });
        done.retain(|step| steps[*step].effect.content_of().is_some());
        done
    }

    /// True if the change survives only together with those before it in the common order.
    fn in_order(&self, effect: &Effect) -> bool {
        self.mode == Mode::Ordered && !matches!(effect, Effect::Write { .. })
    }
}

fn makes_durable(mode: Mode, sync: &Effect, change: &Effect, at: usize) -> bool {
    match sync {
        Effect::SyncAll { covers } => at < *covers,
        Effect::Sync { inode, data_only, covers } => {
            let named = change
                .name_of()
                .is_some_and(|(_, dirs)| dirs.contains(inode) || (mode == Mode::Ordered && !data_only));
            at < *covers && (change.content_of() == Some(*inode) || named)
        }
        _ => false,
    }
}

/// The ways to tear a write of `len` bytes at `offset` that are tried one by one.
fn tears(mode: Mode, offset: u64, len: usize) -> Vec<Tear> {
    let mut found: Vec<Tear> = Vec::new();
    for sector in [4096, 512] {
        let first = sector - (offset % sector as u64) as usize;
        if first >= len {
            continue;
        }
        let last = len
            - match (offset as usize + len) % sector {
                0 => sector,
                rest => rest,
            };
        for kept in [(0, first), (0, last), (first, len), (last, len)] {
            let tear = Tear { kept: vec![kept], extends: false };
            if !found.contains(&tear) {
                found.push(tear);
            }
        }
    }
    if mode == Mode::Strict {
        found.push(Tear { kept: Vec::new(), extends: true });
    }
    found
}

/// Any subset of the sectors of a write.
fn random_tear(rng: &mut Rng, mode: Mode, offset: u64, len: usize) -> Tear {
    let sector = if rng.below(2) == 0 { 512 } else { 4096 };
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < len {
        let end = len.min(at + sector - (offset as usize + at) % sector);
        if rng.below(2) == 0 {
            kept.push((at, end));
        }
        at = end;
    }
    Tear { kept, extends: mode == Mode::Strict && rng.below(4) == 0 }
}

/// The possible outcomes at one crash point.
pub(super) struct Choices<'a> {
    mode: Mode,
    steps: &'a [Step],
    pending: &'a [usize],
    /// Positions in `pending` of changes that survive in order; then of those that survive
    /// independently.
    ordered: Vec<usize>,
    free: Vec<usize>,
    /// Position of the last write, and how it may be torn.
    last_write: Option<(usize, Vec<Tear>)>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(pending: &'a Pending, steps: &'a [Step]) -> Self {
        let effect = |at: usize| &steps[pending.steps[at]].effect;
        let (ordered, mut free): (Vec<_>, Vec<_>) =
            (0..pending.steps.len()).partition(|&at| pending.in_order(effect(at)));
        let last_write =
            free.iter().rposition(|&at| matches!(effect(at), Effect::Write { .. })).map(|place| {
                let at = free.remove(place);
                let Effect::Write { offset, data, .. } = effect(at) else {
                    unreachable!("it was found as a write")
                };
                (at, tears(pending.mode, *offset, data.len()))
            });
        Self { mode: pending.mode, steps, pending: &pending.steps, ordered, free, last_write }
    }

    /// The number of outcomes; `u64::MAX` for too many to count.
    pub(super) fn count(&self) -> u64 {
        let last = self.last_write.as_ref().map_or(1, |(_, tears)| tears.len() as u64 + 2);
        let free = 1_u64.checked_shl(self.free.len() as u32).unwrap_or(u64::MAX);
        free.saturating_mul(last).saturating_mul(self.ordered.len() as u64 + 1)
    }

    /// The outcome with number `index`.
    pub(super) fn all(&self, mut index: u64) -> Vec<Fate> {
        let mut fates = vec![Fate::Lost; self.pending.len()];
        let mut digit = |base: usize| {
            let digit = index % base as u64;
            index /= base as u64;
            digit as usize
        };
        let prefix = digit(self.ordered.len() + 1);
        self.ordered[..prefix].iter().for_each(|&at| fates[at] = Fate::Kept);
        if let Some((at, tears)) = &self.last_write {
            fates[*at] = match digit(tears.len() + 2) {
                0 => Fate::Lost,
                1 => Fate::Kept,
                torn => Fate::Torn(tears[torn - 2].clone()),
            };
        }
        for &at in &self.free {
            if digit(2) == 1 {
                fates[at] = Fate::Kept;
            }
        }
        self.legal(fates)
    }

    /// The most revealing outcomes, at most `limit`; at most half as many besides "nothing" and
    /// "everything".
    pub(super) fn sample(&self, limit: usize, rng: &mut Rng) -> Vec<Vec<Fate>> {
        let n = self.pending.len();
        let pick = |kept: &dyn Fn(usize) -> bool| -> Vec<Fate> {
            (0..n).map(|at| if kept(at) { Fate::Kept } else { Fate::Lost }).collect()
        };
        let mut special: Vec<Vec<Fate>> = Vec::new();
        for other in 0..n {
            special.push(pick(&|at| at == other));
            special.push(pick(&|at| at != other));
            special.push(pick(&|at| at < other));
        }
        if let Some((last, tears)) = &self.last_write {
            for tear in tears {
                let mut fates = pick(&|_| true);
                fates[*last] = Fate::Torn(tear.clone());
                special.push(fates);
            }
        }
        shuffle(&mut special, rng);
        special.truncate(limit / 2);
        let mut picked = vec![pick(&|_| true), pick(&|_| false)];
        shuffle(&mut picked, rng);
        picked.append(&mut special);
        picked.truncate(limit);
        picked.into_iter().map(|fates| self.legal(fates)).collect()
    }

    /// One outcome at random.
    pub(super) fn random(&self, rng: &mut Rng) -> Vec<Fate> {
        let newest = self.pending.last().copied();
        let chance = [100, 500, 900][rng.index(3)];
        let mut fate = |step: usize| match &self.steps[step].effect {
            Effect::Write { offset, data, .. } if rng.permille(125) => {
                Fate::Torn(random_tear(rng, self.mode, *offset, data.len()))
            }
            // Without the newest change it would be a state of an earlier crash point.
            _ if Some(step) == newest || rng.permille(chance) => Fate::Kept,
            _ => Fate::Lost,
        };
        self.legal(self.pending.iter().map(|&step| fate(step)).collect())
    }

    /// Corrects impossible combinations: see the module `crash`.
    fn legal(&self, mut fates: Vec<Fate>) -> Vec<Fate> {
        match self.mode {
            Mode::Ordered => {
                let mut lost = false;
                let mut cut: HashSet<Inode> = HashSet::new();
                for (at, &step) in self.pending.iter().enumerate() {
                    let effect = &self.steps[step].effect;
                    match effect {
                        // Data beyond a change of length needs that change.
                        Effect::Write { inode, .. } if cut.contains(inode) => fates[at] = Fate::Lost,
                        Effect::Write { .. } => {}
                        _ if lost || fates[at] == Fate::Lost => {
                            (lost, fates[at]) = (true, Fate::Lost);
                            cut.extend(effect.content_of());
                        }
                        _ => {}
                    }
                }
            }
            Mode::Strict => {
                let mut named: HashSet<Inode> = HashSet::new();
                for (at, &step) in self.pending.iter().enumerate().rev() {
                    if let Some((inode, _)) = self.steps[step].effect.name_of() {
                        if named.contains(&inode) {
                            fates[at] = Fate::Kept;
                        } else if fates[at] == Fate::Kept {
                            named.insert(inode);
                        }
                    }
                }
            }
        }
        fates
    }
}

pub(super) fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.index(at + 1));
    }
}

/// How many states each crash point gets, so that the sum is within `budget`.
pub(super) fn share(counts: &[u64], budget: u64, rng: &mut Rng) -> Vec<u64> {
    let points = counts.len() as u64;
    if budget < points {
        let mut limits = vec![0; counts.len()];
        limits[..budget as usize].fill(1);
        shuffle(&mut limits, rng);
        return limits;
    }
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let (mut left, mut level) = (budget, u64::MAX);
    for (at, count) in sorted.into_iter().enumerate() {
        let each = left / (points - at as u64);
        if count > each {
            level = each;
            break;
        }
        left -= count;
    }
    counts.iter().map(|count| *count.min(&level)).collect()
}
