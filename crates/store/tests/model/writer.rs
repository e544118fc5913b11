//! A writing session: open, look chunks up, write what is new, seal, commit; acknowledge generations meanwhile.

use super::state::*;
use super::{AckStyle, Broken, Reclaim};

/// A step of a writer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Transaction: the session's row, with the generation acknowledged, and the packs it may rely on.
    Open,
    /// Transaction: pin a version that is there, and read its manifest.
    Pin(usize),
    /// The next chunk is taken over with a manifest subtree of a pinned version.
    Inherit,
    /// The next chunk was found in this pack: a hit that may be relied on, or a pack of one's own.
    Hit(usize),
    /// Transaction: the next chunk is new, and there is no open pack: announce one.
    Announce,
    /// The next chunk is new: it goes into the open pack.
    Write,
    /// The open pack is complete and durable.
    Seal,
    /// Transaction: a file, with the packs it needs.
    Commit(usize),
    /// Transaction: acknowledge the generation; condemned packs relied upon live on.
    Ack,
    /// The same, but decisions that rely on condemned packs are given up and made again.
    AckResolvingAgain,
    /// Transaction: read the generation and the live packs, to refresh the index.
    RefreshRead,
    /// Install what was read.
    RefreshInstall,
    /// Transaction: rows of sessions that are over become this one's.
    Adopt,
    /// Transaction: the session ends.
    Close,
    /// The process is killed.
    Kill,
}

impl Reclaim {
    /// The steps that writer `w` can take.
    pub fn writer_steps(&self, world: &World, w: usize, mut step: impl FnMut(Step)) {
        let me = &world.writers[w];
        match me.process {
            Process::Idle => return step(Step::Open),
            Process::Down => return,
            Process::Up => {}
        }
        let packs = self.packers & bit(w) != 0;
        if packs && world.rows.iter().any(|&owner| self.is_left(world, owner)) {
            step(Step::Adopt);
        }
        let next = self.next_chunk(me, w);
        // A packer takes what it has read in a row of its own.
        if let Some((file, chunk)) = next.filter(|&(_, chunk)| !packs || world.rows[chunk] == w as u8 + 1) {
            if self.inherit && me.place[file].iter().all(|&p| matches!(p, UNRESOLVED | INHERITED)) {
                for v in (0..OLD).filter(|&v| self.old[v] & bit(chunk) != 0) {
                    let there = world.versions[v].current
                        || (self.broken(Broken::PinUnchecked) && world.versions[v].existed);
                    if there && me.knows & bit(v) == 0 {
                        step(Step::Pin(v));
                    }
                }
                if elements(me.knows).any(|v| self.chunks_of(v) & bit(chunk) != 0) {
                    step(Step::Inherit);
                }
            }
            let hits = elements(me.usable | me.mine).filter(|&p| world.packs[p].held & bit(chunk) != 0);
            let mut found = false;
            for p in hits {
                found = true;
                step(Step::Hit(p));
            }
            if !found || self.false_miss {
                match self.open_pack(world, me) {
                    Some(_) => step(Step::Write),
                    None if world.next_id(self.last_pack).is_some() => step(Step::Announce),
                    None => {}
                }
            }
        }
        if self.open_pack(world, me).is_some_and(|p| world.packs[p].held != 0) {
            step(Step::Seal);
        }
        for file in (0..FILES).filter(|&f| self.plans[w][f] != 0 && me.done & bit(f) == 0) {
            let ready = elements(self.plans[w][file]).all(|c| match me.place[file][c] {
                UNRESOLVED => false,
                INHERITED => true,
                p => me.mine & bit(p as usize) == 0 || world.packs[p as usize].object != Object::Partial,
            });
            if ready {
                step(Step::Commit(file));
            }
        }
        if world.generation > world.acked[w] {
            let bound = self.relied(world, w) & world.condemned() != 0;
            match self.ack {
                AckStyle::Wait if bound && !self.broken(Broken::AckWithoutReprieve) => {
                    step(Step::AckResolvingAgain);
                }
                _ => step(Step::Ack),
            }
        }
        if self.refresh || me.refresh.is_some() {
            match me.refresh {
                None if world.live() & !me.usable & !me.mine != 0 => step(Step::RefreshRead),
                Some(_) => step(Step::RefreshInstall),
                None => {}
            }
        }
        if self.next_chunk(me, w).is_none() && me.done == self.all_files(w) {
            step(Step::Close);
        }
        if self.kill_writers {
            step(Step::Kill);
        }
    }

    /// Takes a step of writer `w`.
    pub fn writer_step(&self, world: &mut World, w: usize, step: Step) {
        // Every transaction of a session checks that its own row is live; nothing else is checked.
        let transaction = !matches!(
            step,
            Step::Open
                | Step::Inherit
                | Step::Hit(_)
                | Step::Write
                | Step::Seal
                | Step::RefreshInstall
                | Step::Kill
        );
        let unchecked = self.broken(Broken::CommitUnchecked) && matches!(step, Step::Commit(_));
        if transaction && world.sessions[w] != Session::Live && !unchecked {
            world.stop_writer(w);
            world.seen |= seen::REFUSED;
            return;
        }
        let me = world.writers[w];
        let next = self.next_chunk(&me, w);
        match step {
            Step::Open => {
                world.sessions[w] = Session::Live;
                world.acked[w] = world.generation;
                world.writers[w].process = Process::Up;
                world.writers[w].usable =
                    if self.broken(Broken::OpenBlind) { world.readable() } else { world.live() };
            }
            Step::Pin(v) => {
                world.writers[w].knows |= bit(v);
                if !self.broken(Broken::InheritUnpinned) {
                    world.versions[v].pins |= bit(w);
                }
            }
            Step::Inherit => self.place_next(world, w, next, INHERITED),
            Step::Hit(p) => self.place_next(world, w, next, p as u8),
            Step::Announce => {
                let id = world.next_id(self.last_pack).expect("the step was offered");
                world.packs[id] = Pack { row: Row::Writing, owner: w as u8, ..Pack::default() };
                world.writers[w].mine |= bit(id);
            }
            Step::Write => {
                let (file, chunk) = next.expect("the step was offered");
                let id = self.open_pack(world, &me).expect("the step was offered");
                if elements(world.readable()).any(|p| world.packs[p].held & bit(chunk) != 0) {
                    world.seen |= seen::REWRITTEN;
                }
                if world.packs[id].object == Object::Absent {
                    world.packs[id].object = Object::Partial;
                }
                world.packs[id].held |= bit(chunk);
                world.writers[w].place[file][chunk] = id as u8;
            }
            Step::Seal => {
                let id = self.open_pack(world, &me).expect("the step was offered");
                if world.packs[id].object == Object::Partial {
                    world.packs[id].object = Object::Sealed;
                }
            }
            Step::Commit(file) if self.packers & bit(w) != 0 => {
                let mut packed = elements(self.plans[w][file]);
                if packed.all(|c| world.rows[c] == w as u8 + 1) {
                    self.commit_packs(world, w);
                    elements(self.plans[w][file]).for_each(|c| world.rows[c] = 0);
                }
                // Refused or not: it begins anew with what it finds in rows then.
                let me = &mut world.writers[w];
                me.done |= bit(file);
                me.place[file] = [UNRESOLVED; CHUNKS];
            }
            Step::Adopt => {
                for c in 0..CHUNKS {
                    if self.is_left(world, world.rows[c]) {
                        world.rows[c] = w as u8 + 1;
                    }
                }
            }
            Step::Commit(file) => {
                let sealed =
                    world.packs_where(|p| p.row == Row::Writing && p.object == Object::Sealed) & me.mine;
                for p in elements(sealed) {
                    world.packs[p].row = Row::Live;
                }
                let slot = OLD + w * FILES + file;
                world.versions[slot].current = true;
                world.versions[slot].existed = true;
                let generation = world.generation;
                let me = &mut world.writers[w];
                me.mine &= !sealed;
                if self.broken(Broken::OwnPacksInstalledLate) {
                    me.refresh = Some((generation, sealed));
                } else {
                    me.usable |= sealed;
                }
                me.done |= bit(file);
                me.place[file] = [UNRESOLVED; CHUNKS];
            }
            Step::Ack | Step::AckResolvingAgain => {
                let bound = self.relied(world, w) & world.condemned();
                if step == Step::AckResolvingAgain {
                    for place in world.writers[w].place.iter_mut().flatten() {
                        if *place != INHERITED && bound & bit(*place as usize) != 0 {
                            *place = UNRESOLVED;
                        }
                    }
                } else if !self.broken(Broken::AckWithoutReprieve) {
                    for p in elements(bound) {
                        world.packs[p].row = Row::Live;
                        world.seen |= seen::REPRIEVED;
                    }
                }
                world.acked[w] = world.generation;
                world.writers[w].usable = if self.broken(Broken::CondemnedHitsCount) {
                    me.usable
                } else if self.broken(Broken::DenyList) {
                    world.ever_live & !world.condemned()
                } else {
                    world.live()
                };
            }
            Step::RefreshRead => world.writers[w].refresh = Some((world.generation, world.live())),
            Step::RefreshInstall => {
                let (generation, live) = world.writers[w].refresh.take().expect("the step was offered");
                let unchecked =
                    self.broken(Broken::RefreshUnchecked) || self.broken(Broken::OwnPacksInstalledLate);
                if generation == world.acked[w] || unchecked {
                    world.writers[w].usable |= live;
                }
            }
            Step::Close => {
                world.end_session(w);
                world.stop_writer(w);
            }
            Step::Kill => world.stop_writer(w),
        }
    }

    /// Own packs that are sealed become live, and usable.
    fn commit_packs(&self, world: &mut World, w: usize) {
        let mine = world.writers[w].mine;
        let sealed = world.packs_where(|p| p.row == Row::Writing && p.object == Object::Sealed) & mine;
        for p in elements(sealed) {
            world.packs[p].row = Row::Live;
        }
        world.writers[w].mine &= !sealed;
        world.writers[w].usable |= sealed;
    }

    /// Whether a row is of a session that is over.
    fn is_left(&self, world: &World, owner: u8) -> bool {
        owner != 0 && world.sessions[owner as usize - 1] == Session::Over
    }

    /// The packs that uncommitted files of writer `w` rely on: hits, and its own packs once they are committed.
    pub fn relied(&self, world: &World, w: usize) -> u8 {
        let me = &world.writers[w];
        let mut set = 0;
        for &p in me.place.iter().flatten().filter(|&&p| p != UNRESOLVED && p != INHERITED) {
            let own = world.packs[p as usize].owner == w as u8 && p as usize > self.packs.len();
            if me.mine & bit(p as usize) == 0 && !(own && self.broken(Broken::OwnPacksForgotten)) {
                set |= bit(p as usize);
            }
        }
        set
    }

    /// The first chunk of an uncommitted file that has no place yet; chunks are resolved in order.
    fn next_chunk(&self, me: &Writer, w: usize) -> Option<(usize, usize)> {
        (0..FILES)
            .filter(|&f| me.done & bit(f) == 0)
            .find_map(|f| elements(self.plans[w][f]).find(|&c| me.place[f][c] == UNRESOLVED).map(|c| (f, c)))
    }

    fn place_next(&self, world: &mut World, w: usize, next: Option<(usize, usize)>, place: u8) {
        let (file, chunk) = next.expect("the step was offered");
        world.writers[w].place[file][chunk] = place;
    }

    /// The pack that writer is filling: announced and not sealed, as far as it knows.
    fn open_pack(&self, world: &World, me: &Writer) -> Option<usize> {
        elements(me.mine).find(|&p| matches!(world.packs[p].object, Object::Absent | Object::Partial))
    }

    fn all_files(&self, w: usize) -> u8 {
        (0..FILES).filter(|&f| self.plans[w][f] != 0).fold(0, |set, f| set | bit(f))
    }
}
