//! The collector: lease, sweep, mark, mark candidates, wait, mark again, copy, delete.

use super::state::*;
use super::{Broken, Reclaim};

/// A step of a collector.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Transaction: take the lease (from any holder) with a new token; candidates become live
    /// again.
    Take,
    /// Transaction: intents whose owner is over become dead.
    Sweep,
    /// One database snapshot: mark, and find the packs worth reclaiming.
    Mark,
    /// Transaction: mark these packs as candidates and raise the generation.
    MarkCandidates(u8),
    /// Every live session has acknowledged the generation.
    SeeAcks,
    /// One database snapshot: mark what is rooted now and was not; see which packs are still
    /// candidates.
    MarkAgain,
    /// Transaction: announce the pack for the copies.
    Announce,
    /// Copy and seal.
    Copy,
    /// Transaction: the copies count.
    CommitCopies,
    /// Transaction: the old packs are dead; the run ends.
    Delete,
    /// The process is killed.
    Kill,
}

impl Reclaim {
    /// The steps that collector `k` can take.
    pub fn collector_steps(&self, world: &World, k: usize, mut step: impl FnMut(Step)) {
        let me = &world.collectors[k];
        if self.kill_collectors && me.phase != Phase::Off {
            step(Step::Kill);
        }
        match me.phase {
            Phase::Off => {
                // The collectors are alike: the second starts only beside the first.
                let useful = world.generation < self.generations && world.token < self.leases;
                if useful && (k == 0 || world.collectors[0].phase != Phase::Off) {
                    step(Step::Take);
                }
            }
            Phase::Leased => {
                if self.sweepable(world, me) != 0 {
                    step(Step::Sweep);
                }
                step(Step::Mark);
            }
            Phase::Marked => {
                // Which packs are below the live ratio depends on sizes that are not modelled: any
                // may be.
                let is_free = (0..WRITERS).all(|w| !self.acknowledges(world, w));
                for set in (1..=me.victims).filter(|_| is_free) {
                    if set & !me.victims == 0 {
                        step(Step::MarkCandidates(set));
                    }
                }
            }
            Phase::Waiting => {
                let waiting = (0..WRITERS)
                    .any(|w| world.sessions[w] == Session::Live && world.acked[w] < me.generation);
                if !waiting || self.broken(Broken::NoAckWait) {
                    step(Step::SeeAcks);
                }
            }
            Phase::Acked => step(Step::MarkAgain),
            Phase::Remarked => {
                if self.broken(Broken::DeadBeforeCopies) {
                    step(Step::Delete);
                } else if world.next_id(self.last_pack).is_some() {
                    step(Step::Announce);
                }
            }
            Phase::Announced => step(Step::Copy),
            Phase::Copied => step(Step::CommitCopies),
            Phase::Moved => step(Step::Delete),
        }
    }

    /// Takes a step of collector `k`.
    pub fn collector_step(&self, world: &mut World, k: usize, step: Step) {
        let mut me = world.collectors[k];
        let transaction = !matches!(step, Step::Take | Step::Mark | Step::Copy | Step::Kill);
        if transaction && world.token != me.token && !self.broken(Broken::TokenUnchecked) {
            world.collectors[k] = Collector::default();
            world.seen |= seen::STALE_TOKEN;
            return;
        }
        match step {
            Step::Take => {
                world.token += 1;
                me = Collector { phase: Phase::Leased, token: world.token, ..Collector::default() };
                for p in elements(world.marked()) {
                    world.packs[p].row = Row::Live;
                    world.seen |= seen::TAKEN_OVER;
                }
            }
            Step::Sweep => {
                for p in elements(self.sweepable(world, &me)) {
                    world.packs[p].row = Row::Dead;
                    world.seen |= seen::SWEPT;
                }
            }
            Step::Mark => {
                let roots = self.collector_roots(world);
                self.mark(world, &mut me, roots);
                me.inline = elements(roots).filter(|&c| me.mark[c] == 0).fold(0, |set, c| set | bit(c));
                me.victims = self.worth_reclaiming(world, &me);
                me.phase = Phase::Marked;
                if me.victims == 0 {
                    me = Collector::default();
                }
            }
            Step::MarkCandidates(set) => {
                for p in elements(set) {
                    world.packs[p].row = Row::Candidate;
                }
                world.generation += 1;
                me.generation = world.generation;
                me.victims = 0;
                me.phase = Phase::Waiting;
            }
            Step::SeeAcks => me.phase = Phase::Acked,
            Step::MarkAgain => {
                if !self.broken(Broken::NoRemark) {
                    let roots = self.collector_roots(world) & !me.inline;
                    self.mark(world, &mut me, roots);
                }
                me.inline = 0;
                me.victims = world.marked();
                if self.verification && !self.broken(Broken::CopiesBelieved) {
                    self.keep_unproven(world, &mut me);
                }
                me.phase = if me.mark.iter().any(|&p| me.victims & bit(p as usize) & !1 != 0) {
                    Phase::Remarked
                } else {
                    me.mark = [0; CHUNKS];
                    Phase::Moved
                };
                if me.victims == 0 {
                    me = Collector::default();
                }
            }
            Step::Announce => {
                let id = world.next_id(self.last_pack).expect("the step was offered");
                world.packs[id] =
                    Pack { row: Row::Writing, owner: BY_COLLECTOR | me.token, ..Pack::default() };
                me.copy = id as u8;
                me.phase = Phase::Announced;
            }
            Step::Copy => {
                let marked = |victims: u8, c: usize| victims & bit(me.mark[c] as usize) & !1 != 0;
                // An unreadable victim stays where it is.
                for c in 0..CHUNKS {
                    let pack = me.mark[c] as usize;
                    if marked(me.victims, c) && world.packs[pack].lies & bit(c) != 0 {
                        me.victims &= !bit(pack);
                        if world.packs[pack].row == Row::Candidate && world.token == me.token {
                            world.packs[pack].row = Row::Live;
                        }
                    }
                }
                let chunks = (0..CHUNKS).filter(|&c| marked(me.victims, c));
                let chunks = chunks.fold(0, |set, c| set | bit(c));
                // Only a stale collector can have a victim whose object is gone; it finds nothing
                // to copy.
                let there = (0..CHUNKS)
                    .filter(|&c| chunks & bit(c) != 0)
                    .all(|c| world.packs[me.mark[c] as usize].object == Object::Sealed);
                if there {
                    let copy = &mut world.packs[me.copy as usize];
                    copy.held = chunks;
                    copy.object = Object::Sealed;
                    me.mark = [0; CHUNKS];
                    me.phase = Phase::Copied;
                } else {
                    me = Collector::default();
                }
            }
            Step::CommitCopies => {
                let copy = &mut world.packs[me.copy as usize];
                if copy.row == Row::Writing {
                    copy.row = Row::Live;
                }
                me.copy = 0;
                me.phase = Phase::Moved;
                if self.broken(Broken::DeadBeforeCopies) {
                    me = Collector::default();
                }
            }
            Step::Delete => {
                for p in elements(me.victims) {
                    if world.packs[p].row == Row::Candidate {
                        world.packs[p].row = Row::Dead;
                    }
                }
                if self.broken(Broken::DeadBeforeCopies) && me.phase == Phase::Remarked {
                    let id = world.next_id(self.last_pack);
                    if let Some(id) = id {
                        world.packs[id] =
                            Pack { row: Row::Writing, owner: BY_COLLECTOR | me.token, ..Pack::default() };
                        me.copy = id as u8;
                        me.phase = Phase::Announced;
                    }
                } else {
                    me = Collector::default();
                }
            }
            Step::Kill => me = Collector::default(),
        }
        world.collectors[k] = me;
    }

    /// The intents that a collector may sweep.
    fn sweepable(&self, world: &World, me: &Collector) -> u8 {
        let own = BY_COLLECTOR | me.token;
        world.packs_where(|p| {
            p.row == Row::Writing
                && p.owner != own
                && (!world.owner_is_live(p) || self.broken(Broken::SweepLive))
        })
    }

    /// The roots, as a collector sees them.
    fn collector_roots(&self, world: &World) -> u8 {
        if self.broken(Broken::PinsIgnored) {
            (0..VERSIONS).filter(|&v| world.versions[v].current).fold(0, |set, v| set | self.chunks_of(v))
        } else {
            self.roots(world)
        }
    }

    /// Marks the chunks of `roots` that are not marked yet: of several copies, the one in the
    /// lowest committed pack.
    pub fn mark(&self, world: &World, me: &mut Collector, roots: u8) {
        let counted = match self.broken {
            Some(Broken::UncommittedCopyCounts) => {
                world.packs_where(|p| matches!(p.row, Row::Writing | Row::Live | Row::Candidate))
            }
            Some(Broken::DeadCopyCounts) => world.ever_live,
            _ => world.readable(),
        };
        let new = elements(roots).filter(|&c| me.mark[c] == 0).fold(0, |set, c| set | bit(c));
        for c in elements(new) {
            let copies = elements(counted).filter(|&p| world.packs[p].held & bit(c) != 0).count();
            if self.broken(Broken::AnyCopyCounts) && copies > 1 {
                continue;
            }
            me.mark[c] = world.lowest(counted, c).unwrap_or(0);
        }
    }

    /// If the copy that counts does not match its footer, a victim's copy stays. The collector
    /// reads the copy for that, as it trusts no other client.
    fn keep_unproven(&self, world: &mut World, me: &mut Collector) {
        for c in 0..CHUNKS {
            let counts = me.mark[c] as usize;
            let other = elements(me.victims)
                .find(|&p| p != counts && (world.packs[p].held & !world.packs[p].lies) & bit(c) != 0);
            if let Some(other) = other
                && counts != 0
                && world.packs[counts].has() & bit(c) == 0
            {
                me.mark[c] = other as u8;
                world.seen |= seen::DOUBTED;
            }
        }
    }

    /// Live packs that hold a copy which does not count.
    pub fn worth_reclaiming(&self, world: &World, me: &Collector) -> u8 {
        let candidates = world.packs_where(|p| {
            p.row == Row::Live
                || (self.broken(Broken::MarkUncommitted)
                    && p.row == Row::Writing
                    && p.object == Object::Sealed)
        });
        elements(candidates)
            .filter(|&p| elements(world.packs[p].held).any(|c| me.mark[c] as usize != p))
            .fold(0, |set, p| set | bit(p))
    }
}
