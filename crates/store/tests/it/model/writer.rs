//! A writing session: open, look chunks up, write what is new, seal, commit; acknowledge
//! generations meanwhile.

use super::state::*;
use super::{AckStyle, Broken, Reclaim};

/// A step of a writer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Transaction: the session's row, with the generation acknowledged, and the packs it may rely
    /// on.
    Open,
    /// Transaction: pin a version that is there, and read its manifest.
    Pin(usize),
    /// The next chunk is taken over with a manifest subtree of a pinned version.
    Inherit,
    /// The next chunk was found in this pack: a hit that may be relied on, or a pack of one's own.
    Hit(usize),
    /// Reads another client's pack, and compares it with its footer.
    Compare(usize),
    /// Transaction: the next chunk is new, and there is no open pack: announce one.
    Announce,
    /// The next chunk is new: it goes into the open pack.
    Write,
    /// The open pack is complete and durable.
    Seal,
    /// Transaction: a file, with the packs it needs.
    Commit(usize),
    /// A commit is sent, and the connection is lost.
    LoseCommit(usize),
    /// Transaction: asks for the outcome of the lost one. If that has not happened, it never will.
    Ask,
    /// Gives up asking about an acknowledgement.
    GiveUp,
    /// Transaction: acknowledge the generation; candidates that the session relies on live on.
    Ack,
    /// An acknowledgement is sent, and the connection is lost.
    LoseAck,
    /// The same, but decisions that rely on candidates are given up and made again.
    AckResolvingAgain,
    /// Transaction: read the generation and the live packs, to refresh the index.
    RefreshRead,
    /// Install the packs that were read.
    RefreshInstall,
    /// Transaction: rows of ended sessions become this one's.
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
        if me.is_unsure {
            self.unsure_steps(world, w, &mut step);
            return;
        }
        let packs = self.packers & bit(w) != 0;
        if packs && world.rows.iter().any(|&owner| self.is_left(world, owner)) {
            step(Step::Adopt);
        }
        let next = self.next_chunk(me, w);
        // A packer takes chunks that it has read from its own rows.
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
            let mut found = false;
            for p in self.hits(world, w, chunk) {
                found = true;
                step(Step::Hit(p));
            }
            if self.verification && self.liars & bit(w) == 0 {
                let doubted = elements(me.usable & !me.verified).filter(|&p| !self.is_own(world, w, p));
                doubted
                    .filter(|&p| world.packs[p].held & bit(chunk) != 0 && self.is_what_it_says(world, p))
                    .for_each(|p| step(Step::Compare(p)));
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
                if self.lossy & bit(w) != 0 && world.flights[w].sent == Sent::Nothing {
                    step(Step::LoseCommit(file));
                }
            }
        }
        // An acknowledgement that was given up may have happened, and the client does not know: it
        // makes another one.
        let may_ack = !self.acknowledges(world, w);
        if may_ack && (world.generation > world.acked[w] || self.lossy & bit(w) != 0 && me.usable == 0) {
            let bound = self.relied(world, w) & world.marked() != 0;
            match self.ack {
                AckStyle::Wait if bound && !self.broken(Broken::AckWithoutReprieve) => {
                    step(Step::AckResolvingAgain);
                }
                _ => {
                    step(Step::Ack);
                    if self.lossy & bit(w) != 0 && world.flights[w].sent == Sent::Nothing {
                        step(Step::LoseAck);
                    }
                }
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
                | Step::Compare(_)
                | Step::Ask
                | Step::GiveUp
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
            Step::Hit(p) => {
                if me.verified & bit(p) != 0 {
                    world.seen |= seen::VOUCHED;
                }
                self.place_next(world, w, next, p as u8);
            }
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
                if self.liars & bit(w) != 0 {
                    world.packs[id].lies |= bit(chunk);
                }
                world.writers[w].place[file][chunk] = id as u8;
            }
            Step::Seal => {
                let id = self.open_pack(world, &me).expect("the step was offered");
                if world.packs[id].object == Object::Partial {
                    world.packs[id].object = Object::Sealed;
                }
            }
            Step::Adopt => {
                for c in 0..CHUNKS {
                    if self.is_left(world, world.rows[c]) {
                        world.rows[c] = w as u8 + 1;
                    }
                }
            }
            Step::Compare(p) => world.writers[w].verified |= bit(p),
            Step::Commit(file) => {
                let packs = self.sealed(world, w);
                let live = self.commit(world, w, file, packs);
                self.committed(world, w, file, packs, live);
            }
            Step::LoseCommit(file) => {
                let packs = self.sealed(world, w);
                self.lose(world, w, Sent::Commit(file as u8, packs));
            }
            Step::LoseAck => {
                let relied = self.relied(world, w);
                self.lose(world, w, Sent::Ack(relied));
            }
            Step::Ask => self.ask(world, w),
            Step::GiveUp => self.give_up(world, w),
            Step::Ack | Step::AckResolvingAgain => {
                let mut bound = self.relied(world, w);
                if step == Step::AckResolvingAgain {
                    bound &= world.marked();
                    for place in world.writers[w].place.iter_mut().flatten() {
                        if *place != INHERITED && bound & bit(*place as usize) != 0 {
                            *place = UNRESOLVED;
                        }
                    }
                    bound = 0;
                }
                let live = self.acknowledge(world, w, bound);
                self.acknowledged(world, w, live);
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

    /// Packs of one's own that a commit makes live.
    fn sealed(&self, world: &World, w: usize) -> u8 {
        world.packs_where(|p| p.row == Row::Writing && p.object == Object::Sealed) & world.writers[w].mine
    }

    /// Applies a commit to the database; returns the packs that it made live. Its packs have their
    /// objects.
    pub fn commit(&self, world: &mut World, w: usize, file: usize, packs: u8) -> u8 {
        if self.packers & bit(w) != 0 {
            // Refused, unless all packed chunks are still in its own rows.
            if !elements(self.plans[w][file]).all(|c| world.rows[c] == w as u8 + 1) {
                return 0;
            }
            elements(self.plans[w][file]).for_each(|c| world.rows[c] = 0);
        } else {
            let slot = OLD + w * FILES + file;
            if world.versions[slot].existed {
                world.twice |= bit(w * FILES + file);
            }
            world.versions[slot].current = true;
            world.versions[slot].existed = true;
        }
        for p in elements(packs) {
            if world.packs[p].row == Row::Writing {
                world.packs[p].row = Row::Live;
            }
        }
        packs
    }

    /// Applies a commit to the client's memory. Refused or not, a packer begins again with the rows
    /// that it then finds.
    pub fn committed(&self, world: &mut World, w: usize, file: usize, packs: u8, live: u8) {
        let generation = world.generation;
        let me = &mut world.writers[w];
        me.mine &= !live;
        if self.broken(Broken::OwnPacksInstalledLate) {
            me.refresh = Some((generation, packs));
        } else {
            me.usable |= live;
        }
        me.done |= bit(file);
        me.place[file] = [UNRESOLVED; CHUNKS];
    }

    /// Applies an acknowledgement to the database; returns the packs that are live then.
    pub fn acknowledge(&self, world: &mut World, w: usize, relied: u8) -> u8 {
        if !self.broken(Broken::AckWithoutReprieve) {
            for p in elements(relied & world.marked()) {
                world.packs[p].row = Row::Live;
                world.seen |= seen::REPRIEVED;
            }
        }
        world.acked[w] = world.generation;
        if self.broken(Broken::DenyList) { world.ever_live & !world.marked() } else { world.live() }
    }

    /// Applies an acknowledgement to the client's memory.
    pub fn acknowledged(&self, world: &mut World, w: usize, live: u8) {
        let me = &mut world.writers[w];
        match self.broken {
            Some(Broken::CandidateHitsCount) => {}
            Some(Broken::ComparedForEver) => me.usable = live | me.verified,
            _ => me.usable = live,
        }
    }

    /// True if writer `w` made a pack.
    fn is_own(&self, world: &World, w: usize, pack: usize) -> bool {
        world.packs[pack].owner == w as u8 && pack > self.packs.len()
    }

    /// True if a pack matches its footer, as far as it can be read.
    fn is_what_it_says(&self, world: &World, pack: usize) -> bool {
        world.packs[pack].object == Object::Sealed && world.packs[pack].lies == 0
    }

    /// The packs in which a chunk of writer `w` counts as found.
    pub fn hits(&self, world: &World, w: usize, chunk: usize) -> impl Iterator<Item = usize> {
        let me = world.writers[w];
        let believes = !self.verification || self.liars & bit(w) != 0 || self.broken(Broken::FootersBelieved);
        let counts = move |p: usize, own: bool| believes || own || me.verified & bit(p) != 0;
        let found: u8 = elements(me.usable | me.mine)
            .filter(|&p| world.packs[p].held & bit(chunk) != 0 && counts(p, self.is_own(world, w, p)))
            .fold(0, |set, p| set | bit(p));
        elements(found)
    }

    /// True if a row belongs to an ended session.
    fn is_left(&self, world: &World, owner: u8) -> bool {
        owner != 0 && world.sessions[owner as usize - 1] == Session::Over
    }

    /// The packs that uncommitted files of writer `w` rely on: hits, and its own packs once they
    /// are committed.
    pub fn relied(&self, world: &World, w: usize) -> u8 {
        let me = &world.writers[w];
        let mut set = 0;
        for &p in me.place.iter().flatten().filter(|&&p| p != UNRESOLVED && p != INHERITED) {
            let own = self.is_own(world, w, p as usize);
            if me.mine & bit(p as usize) == 0 && !(own && self.broken(Broken::OwnPacksForgotten)) {
                set |= bit(p as usize);
            }
        }
        set
    }

    /// The first chunk of an uncommitted file that has no place yet; chunks are resolved in order.
    pub fn next_chunk(&self, me: &Writer, w: usize) -> Option<(usize, usize)> {
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
