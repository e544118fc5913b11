//! The reclaim protocol as a state machine: see `docs/decisions/0003-reclaim-protocol.md` for the
//! rules it follows.
//!
//! One action is one atomic step: a database transaction (the embedded store has one writer lock,
//! so transactions are serializable), one durable change of a pack object, or one decision in a
//! process's memory. Any step of another process may fall between two steps of a process. Each
//! process may be killed or, what is worse, stopped, fenced, and continued.

pub mod collector;
pub mod drain;
pub mod flight;
pub mod reader;
pub mod state;
pub mod writer;

use state::*;
use stateright::{Model, Property};

/// The rules that can be broken one at a time, to show that each is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The collector does not wait for acknowledgements.
    NoAckWait,
    /// The collector does not mark again after the acknowledgements.
    NoRemark,
    /// A commit does not check that its session's row is live.
    CommitUnchecked,
    /// A session's hits in candidates still count after it acknowledged.
    CandidateHitsCount,
    /// A session acknowledges without having committed, re-resolved or reprieved what it relies on.
    AckWithoutReprieve,
    /// A session does not count its own committed packs among those it relies on.
    OwnPacksForgotten,
    /// A session that opens takes candidates for live packs.
    OpenBlind,
    /// An index refresh is installed although it was read under another generation than the
    /// acknowledged one.
    RefreshUnchecked,
    /// A commit's own packs become usable after it, even if there was an acknowledgement in
    /// between.
    OwnPacksInstalledLate,
    /// A session excludes candidates only, not all packs that are not live.
    DenyList,
    /// The collector sweeps the intents of sessions that are live.
    SweepLive,
    /// The collector marks packs as candidates that are sealed but not committed.
    MarkUncommitted,
    /// A writer inherits from a version that it did not pin.
    InheritUnpinned,
    /// A pin is written without checking, in the same transaction, that the version is still there.
    PinUnchecked,
    /// Pins are no roots.
    PinsIgnored,
    /// The collector's changes do not check the token.
    TokenUnchecked,
    /// A chunk that has another copy need not be copied.
    AnyCopyCounts,
    /// The lowest pack id counts, committed or not.
    UncommittedCopyCounts,
    /// The lowest pack id counts, dead or not (marking by a stale index).
    DeadCopyCounts,
    /// Old packs are set dead before the copies are committed.
    DeadBeforeCopies,
    /// Candidates are unlinked before they are set dead.
    UnlinkBeforeDead,
    /// A reader does not pin.
    ReadUnpinned,
    /// A reader takes a pack that is gone for damage.
    ReadOnce,
    /// A close adds no row for a chunk that had one at an earlier look.
    RowSeenBefore,
    /// A client takes a commit in doubt for done.
    LostTakenForDone,
    /// A client repeats a commit in doubt without asking.
    LostMadeAgain,
    /// Asking does not prevent the transaction from happening later.
    AskedTooEarly,
    /// A transaction checks the session's row when it is sent, and not when it happens.
    CheckedWhenSent,
    /// Other acknowledgements run while a commit is in doubt.
    AckWhileUnsure,
    /// Lookups go on while an acknowledgement is in doubt.
    HitsWhileUnsure,
    /// A client gives up asking about an acknowledgement, and goes on as if nothing had been sent.
    GivenUpAndForgotten,
    /// Another client's pack is relied on by its footer alone.
    FootersBelieved,
    /// A pack that was compared once counts, even after later acknowledgements.
    ComparedForEver,
    /// A collector gives up a copy for another one that it has not compared.
    CopiesBelieved,
}

/// How a session may acknowledge while it relies on candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckStyle {
    /// It sets them live again, in the transaction of the acknowledgement.
    Reprieve,
    /// It waits until they are committed, or gives the decisions up and resolves those chunks again
    /// (design, 8.3).
    Wait,
}

/// A small world to explore.
#[derive(Clone, Debug)]
pub struct Reclaim {
    /// Chunks in packs 1, 2, …, committed from the beginning.
    pub packs: Vec<u8>,
    /// Chunks of the old versions (0: no such version).
    pub old: [u8; OLD],
    /// Chunks of each writer's files (0: no such file).
    pub plans: [[u8; FILES]; WRITERS],
    /// Old versions that do not exist at first. A shared mount may close them at any time while
    /// they do not exist, with rows for their chunks.
    pub closed: u8,
    /// Writers that pack rows. A file of theirs stands for its chunks, and its commit removes their
    /// rows.
    pub packers: u8,
    /// Old and new versions that may be removed.
    pub removable: u8,
    /// There is a reader.
    pub reader: bool,
    /// Writers may inherit from old versions.
    pub inherit: bool,
    /// A lookup may miss stored chunks (sampled index).
    pub false_miss: bool,
    /// Writers refresh their index between acknowledgements.
    pub refresh: bool,
    /// Writers can be killed.
    pub kill_writers: bool,
    /// Collectors can be killed.
    pub kill_collectors: bool,
    /// Sessions of running processes can be fenced.
    pub fence_running: bool,
    /// Collector processes.
    pub collectors: usize,
    /// How often the generation may be raised.
    pub generations: u8,
    /// How often the lease may be taken.
    pub leases: u8,
    /// The highest pack id given out.
    pub last_pack: usize,
    /// How sessions acknowledge.
    pub ack: AckStyle,
    /// Writers whose connection may be lost with a transaction in flight.
    pub lossy: u8,
    /// Clients do not trust each other's footers.
    pub verification: bool,
    /// Writers of corrupt packs, which do not match their footers.
    pub liars: u8,
    /// Chunks that packs 1, 2, … lack, though their footers name them.
    pub lies: Vec<u8>,
    /// Record interesting events, and look for them, too.
    pub witness: bool,
    /// Further bits of [`seen`] to look for.
    pub looked_for: u16,
    /// Check in each state that one undisturbed run reclaims all garbage.
    pub drain: bool,
    /// The rule that is broken.
    pub broken: Option<Broken>,
}

impl Default for Reclaim {
    /// One pack with a used and an unused chunk, one writer that stores the unused one, one
    /// collector.
    fn default() -> Self {
        Reclaim {
            packs: vec![0b11],
            old: [0b01, 0],
            plans: [[0b10, 0], [0, 0]],
            closed: 0,
            packers: 0,
            removable: 0,
            reader: false,
            inherit: false,
            false_miss: false,
            refresh: false,
            kill_writers: false,
            kill_collectors: false,
            fence_running: false,
            collectors: 1,
            generations: 1,
            leases: 1,
            last_pack: PACKS - 2,
            ack: AckStyle::Reprieve,
            lossy: 0,
            verification: false,
            liars: 0,
            lies: vec![],
            witness: false,
            looked_for: 0,
            drain: false,
            broken: None,
        }
    }
}

/// One step of one process, or of the world around them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// A step of a writer.
    Writer(usize, writer::Step),
    /// A step of the reader.
    Reader(reader::Step),
    /// A step of a collector.
    Collector(usize, collector::Step),
    /// A session's row is fenced: its lease ran out, or its process is dead.
    Fence(usize),
    /// Transaction: a small file is closed; chunks without a row get one, for this writer to pack.
    CloseFile(usize, usize),
    /// A transaction happens that a writer had sent when its connection was lost.
    Arrive(usize),
    /// It never happens: its writer does not ask any more, and the database ends it.
    Void(usize),
    /// A version is removed from the name space.
    Remove(usize),
    /// The object of a dead pack is unlinked, by anyone.
    Unlink(usize),
}

impl Reclaim {
    /// True if `rule` is the broken one.
    pub fn broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// The chunks of a version.
    pub fn chunks_of(&self, version: usize) -> u8 {
        if version < OLD {
            self.old[version]
        } else {
            self.plans[(version - OLD) / FILES][(version - OLD) % FILES]
        }
    }

    /// The chunks that must survive: those of current and of pinned versions.
    pub fn roots(&self, world: &World) -> u8 {
        (0..VERSIONS)
            .filter(|&v| world.versions[v].current || world.versions[v].pins != 0)
            .fold(0, |set, v| set | self.chunks_of(v))
    }

    /// The chunks that must survive, of files of honest writers.
    pub fn honest_roots(&self, world: &World) -> u8 {
        let lies = |v: usize| v >= OLD && self.liars & bit((v - OLD) / FILES) != 0;
        (0..VERSIONS)
            .filter(|&v| !lies(v) && (world.versions[v].current || world.versions[v].pins != 0))
            .fold(0, |set, v| set | self.chunks_of(v))
    }

    /// The chunks that can be read: in a sealed object of a pack that is committed and not dead.
    pub fn present(&self, world: &World) -> u8 {
        let committed = world.packs.iter().filter(|p| matches!(p.row, Row::Live | Row::Candidate));
        committed.fold(0, |set, p| set | p.has())
    }
}

impl Model for Reclaim {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::default();
        for (i, &held) in self.packs.iter().enumerate() {
            let lies = self.lies.get(i).copied().unwrap_or(0);
            world.packs[i + 1] = Pack { row: Row::Live, owner: 0, object: Object::Sealed, held, lies };
            world.ever_live |= bit(i + 1);
        }
        for (number, (version, &chunks)) in world.versions.iter_mut().zip(&self.old).enumerate() {
            version.current = chunks != 0 && self.closed & bit(number) == 0;
            version.existed = version.current;
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for w in 0..WRITERS {
            if self.plans[w][0] != 0 {
                self.writer_steps(world, w, |step| steps.push(Step::Writer(w, step)));
            }
        }
        if self.reader {
            self.reader_steps(world, |step| steps.push(Step::Reader(step)));
        }
        for k in 0..self.collectors {
            self.collector_steps(world, k, |step| steps.push(Step::Collector(k, step)));
        }
        for (s, session) in world.sessions.iter().enumerate() {
            let running = s == READER || world.writers[s].process == Process::Up;
            if *session == Session::Live && (self.fence_running || !running) {
                steps.push(Step::Fence(s));
            }
        }
        for (w, flight) in world.flights.iter().enumerate() {
            if flight.sent != Sent::Nothing && flight.said.is_none() {
                steps.push(Step::Arrive(w));
                if !world.writers[w].is_unsure {
                    steps.push(Step::Void(w));
                }
            }
        }
        for v in elements(self.removable) {
            if world.versions[v].current {
                steps.push(Step::Remove(v));
            }
        }
        for v in elements(self.closed).filter(|&v| !world.versions[v].current) {
            for w in elements(self.packers).filter(|&w| world.sessions[w] != Session::None) {
                steps.push(Step::CloseFile(v, w));
            }
        }
        for (p, pack) in world.packs.iter().enumerate() {
            let may_go = pack.row == Row::Dead
                || (self.broken(Broken::UnlinkBeforeDead)
                    && world.collectors.iter().any(|k| k.phase == Phase::Moved && k.victims & bit(p) != 0));
            if may_go && matches!(pack.object, Object::Partial | Object::Sealed) {
                steps.push(Step::Unlink(p));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = *world;
        match step {
            Step::Writer(w, step) => self.writer_step(&mut next, w, step),
            Step::Reader(step) => self.reader_step(&mut next, step),
            Step::Collector(k, step) => self.collector_step(&mut next, k, step),
            Step::Fence(s) => {
                next.end_session(s);
                if s == READER {
                    next.reader = Reader::Idle;
                }
            }
            Step::CloseFile(v, w) => {
                for c in elements(self.chunks_of(v)) {
                    let seen = self.broken(Broken::RowSeenBefore) && next.ever_row & bit(c) != 0;
                    if next.rows[c] == 0 && !seen {
                        next.rows[c] = w as u8 + 1;
                    }
                    if self.broken(Broken::RowSeenBefore) {
                        next.ever_row |= bit(c);
                    }
                }
                next.versions[v].current = true;
                next.versions[v].existed = true;
            }
            Step::Arrive(w) => self.arrive(&mut next, w),
            Step::Void(w) => next.flights[w] = Flight::default(),
            Step::Remove(v) => next.versions[v].current = false,
            Step::Unlink(p) => next.packs[p].object = Object::Gone,
        }
        if !self.witness {
            next.seen = 0;
        }
        next.ever_live |= next.live();
        next.ever_dead |= next.packs_where(|p| p.row == Row::Dead);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("no committed data is lost", |m: &Self, w: &World| {
                m.honest_roots(w) & !m.present(w) & !w.inline() == 0
            }),
            Property::always("a pinned reader can read", |_, w: &World| w.reader != Reader::Failed),
            Property::always("dead is for ever", |_, w: &World| {
                elements(w.ever_dead).all(|p| w.packs[p].row == Row::Dead)
            }),
            Property::always("a live pack has its object", |_, w: &World| {
                w.packs
                    .iter()
                    .all(|p| !matches!(p.row, Row::Live | Row::Candidate) || p.object == Object::Sealed)
            }),
            Property::always("what is taken for committed is", |m: &Self, w: &World| {
                (0..WRITERS).filter(|&me| m.packers & bit(me) == 0).all(|me| {
                    elements(w.writers[me].done).all(|file| w.versions[OLD + me * FILES + file].existed)
                })
            }),
            Property::always("a commit happens once", |_, w: &World| w.twice == 0),
            Property::always("no pack of a live session is swept", |_, w: &World| {
                elements(w.ever_dead & !w.ever_live).all(|p| !w.owner_is_live(&w.packs[p]))
            }),
        ];
        if self.witness && self.looked_for == 0 {
            all.extend([
                Property::sometimes("a fenced process is refused", |_, w: &World| {
                    w.seen & seen::REFUSED != 0
                }),
                Property::sometimes("a candidate is unmarked", |_, w: &World| w.seen & seen::REPRIEVED != 0),
                Property::sometimes("a stale collector is refused", |_, w: &World| {
                    w.seen & seen::STALE_TOKEN != 0
                }),
                Property::sometimes("a run is taken over", |_, w: &World| w.seen & seen::TAKEN_OVER != 0),
                Property::sometimes("an intent is swept", |_, w: &World| w.seen & seen::SWEPT != 0),
                Property::sometimes("a chunk of a candidate is written again", |_, w: &World| {
                    w.seen & seen::REWRITTEN != 0
                }),
                Property::sometimes("a reader falls back and reads", |_, w: &World| {
                    w.reader == Reader::Done && w.seen & seen::REFRESHED != 0
                }),
                Property::sometimes("garbage leaves the disk", |_, w: &World| {
                    w.packs[1].object == Object::Gone
                        && elements(w.packs[1].held).any(|c| {
                            w.packs.iter().all(|p| p.object != Object::Sealed || p.held & bit(c) == 0)
                        })
                }),
                Property::sometimes("a chunk in use moves", |m: &Self, w: &World| {
                    w.packs[1].object == Object::Gone && m.roots(w) & w.packs[1].held != 0
                }),
                Property::sometimes(
                    "a fenced writer leaves an object behind its dead row",
                    |_, w: &World| w.packs.iter().any(|p| p.row == Row::Dead && p.object == Object::Partial),
                ),
            ]);
        }
        if self.looked_for != 0 {
            all.push(Property::sometimes("what is looked for is seen", |m: &Self, w: &World| {
                w.seen & m.looked_for != 0
            }));
        }
        if self.drain {
            all.push(Property::always("one undisturbed run reclaims all garbage", |m: &Self, w: &World| {
                m.drains(w)
            }));
        }
        all
    }
}
