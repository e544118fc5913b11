//! The state of the model: the database, the pack files, and the memory of each process.
//!
//! Everything is a small integer or a bit set, so a state is about a hundred bytes and hashes
//! quickly. Chunk sets and pack sets are `u8` bit masks; pack 0 is never a pack, as on disk. The
//! structs that occur often hash as one or two packed integers, as exploring spends most of its
//! time on hashing.

use std::hash::{Hash, Hasher};

/// Chunks are `0..CHUNKS`; a set of them is a bit mask.
pub const CHUNKS: usize = 2;
/// Writers are `0..WRITERS`.
pub const WRITERS: usize = 2;
/// Files that one writer stores, at most.
pub const FILES: usize = 2;
/// Versions that exist in the initial state, at most.
pub const OLD: usize = 2;
/// Version slots: the old ones, then each writer's files.
pub const VERSIONS: usize = OLD + WRITERS * FILES;
/// Pack ids are `1..PACKS`; the last one is kept free for the undisturbed run of [`super::drain`].
pub const PACKS: usize = 8;
/// The session slot of the reader, after the writers'.
pub const READER: usize = WRITERS;
/// Collector processes.
pub const COLLECTORS: usize = 2;

/// A chunk of a writer's file that has no place yet.
pub const UNRESOLVED: u8 = 0;
/// A chunk that was inherited with a manifest subtree of an older version: no lookup was made.
pub const INHERITED: u8 = 0xff;
/// Set in a pack's owner when a collector owns it; the other bits are its token.
pub const BY_COLLECTOR: u8 = 0x80;

/// `pack.state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Row {
    /// The id was not given out yet.
    #[default]
    Free,
    /// Announced by an intent row; its owner may be writing it, or it is sealed and not committed
    /// yet.
    Writing,
    /// Committed: others may rely on it.
    Live,
    /// A collector wants to remove it: a candidate.
    Candidate,
    /// For ever.
    Dead,
}

/// The object that holds the pack's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Object {
    /// Never created.
    #[default]
    Absent,
    /// Being written.
    Partial,
    /// Complete and durable.
    Sealed,
    /// Unlinked.
    Gone,
}

/// One pack: its row and its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pack {
    /// `pack.state`.
    pub row: Row,
    /// `pack.owner`: a writer, or [`BY_COLLECTOR`] and the token.
    pub owner: u8,
    /// The object's state.
    pub object: Object,
    /// The chunks that its footer names.
    pub held: u8,
    /// Those of them that it lacks.
    pub lies: u8,
}

impl Pack {
    /// The chunks that can be read from it.
    pub fn has(&self) -> u8 {
        if self.object == Object::Sealed { self.held & !self.lies } else { 0 }
    }
}

impl Hash for Pack {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let states = self.row as u8 | (self.object as u8) << 4;
        hasher.write_u32(u32::from_le_bytes([states, self.owner, self.held, self.lies]));
    }
}

/// A transaction that was sent and is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sent {
    /// There is none.
    #[default]
    Nothing,
    /// A commit: the file, and the packs that it makes live.
    Commit(u8, u8),
    /// An acknowledgement: the packs that are relied on.
    Ack(u8),
}

/// The fate of a transaction whose connection is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flight {
    /// The transaction.
    pub sent: Sent,
    /// It has happened, with this result: the packs made live, or the live packs.
    pub said: Option<u8>,
}

impl Hash for Flight {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let [kind, a, b] = match self.sent {
            Sent::Nothing => [0, 0, 0],
            Sent::Commit(file, packs) => [1, file, packs],
            Sent::Ack(relied) => [2, relied, 0],
        };
        let said = self.said.map_or([0, 0], |said| [1, said]);
        hasher.write_u64(u64::from_le_bytes([kind, a, b, said[0], said[1], 0, 0, 0]));
    }
}

/// `session.state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Session {
    /// Not opened yet.
    #[default]
    None,
    /// Its row is live.
    Live,
    /// Closed or fenced: for the protocol the same.
    Over,
}

/// A version row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// The name space shows it now.
    pub current: bool,
    /// It was committed at some time (a stale name lookup may still remember a removed one).
    pub existed: bool,
    /// Which live sessions have pinned it.
    pub pins: u8,
}

impl Hash for Version {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u8(self.pins << 2 | u8::from(self.current) << 1 | u8::from(self.existed));
    }
}

/// A process, as the operating system sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Process {
    /// Not started.
    #[default]
    Idle,
    /// Running (or stopped, and continuing later: a stopped process is one that takes no steps for
    /// a while).
    Up,
    /// Exited or killed; its memory is gone.
    Down,
}

/// The memory of a writing session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Writer {
    /// The state of its process.
    pub process: Process,
    /// The packs a hit may rely on (committed by anyone, as of the last acknowledgement or later).
    pub usable: u8,
    /// Packs this session announced and has not committed yet.
    pub mine: u8,
    /// Where each chunk of each file was found: a pack id, [`UNRESOLVED`] or [`INHERITED`].
    pub place: [[u8; CHUNKS]; FILES],
    /// The files that are committed.
    pub done: u8,
    /// The versions whose manifest it knows (and, where the rules hold, has pinned).
    pub knows: u8,
    /// An index refresh under way: the generation and the live packs that one transaction read.
    pub refresh: Option<(u8, u8)>,
    /// The packs of other clients that it has compared with their footers.
    pub verified: u8,
    /// The connection was lost with a transaction in flight, and the writer has not asked for the
    /// outcome yet.
    pub is_unsure: bool,
}

impl Hash for Writer {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (generation, live) = self.refresh.map_or((0, 0), |(generation, live)| (generation + 1, live));
        let [[a, b], [c, d]] = self.place;
        hasher.write_u64(u64::from_le_bytes([self.usable, self.mine, a, b, c, d, generation, live]));
        let states = self.process as u8 | u8::from(self.is_unsure) << 4;
        hasher.write_u32(u32::from_le_bytes([states, self.done, self.knows, self.verified]));
    }
}

/// The memory of the reading session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reader {
    /// Not started; or ended.
    #[default]
    Idle,
    /// It has loaded its index (the set of packs it knows), and holds no pin yet.
    Loaded(u8),
    /// It has pinned a version: index, version.
    Pinned(u8, u8),
    /// It found a place for a chunk: index, version, chunk, pack.
    Located(u8, u8, u8, u8),
    /// Its index has no place that can be read: version, chunk.
    Stale(u8, u8),
    /// A refreshed index had no place either: what a user would call lost data.
    Failed,
    /// It has read a chunk.
    Done,
}

/// The state of a collector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Not running.
    #[default]
    Off,
    /// Has the lease; may sweep intents; marks next.
    Leased,
    /// Has marked; marks candidates next.
    Marked,
    /// Has marked candidates and raised the generation; waits.
    Waiting,
    /// Has seen every acknowledgement; marks what is new next.
    Acked,
    /// Knows what must be copied; announces the new pack next.
    Remarked,
    /// Has announced the new pack; writes it next.
    Announced,
    /// Has sealed the new pack; commits it next.
    Copied,
    /// The copies are committed; deletes the old packs next.
    Moved,
}

/// The memory of a collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collector {
    /// Its state.
    pub phase: Phase,
    /// The token it got with the lease.
    pub token: u8,
    /// The generation it raised.
    pub generation: u8,
    /// Packs worth reclaiming; from `Remarked` on, those this run will delete.
    pub victims: u8,
    /// The place that counts for each marked chunk (0: not marked).
    pub mark: [u8; CHUNKS],
    /// Chunks that were needed at the first mark and in no pack: they are not looked for again, as
    /// their roots were marked.
    pub inline: u8,
    /// The pack it copies into (0: none).
    pub copy: u8,
}

impl Hash for Collector {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let [a, b] = self.mark;
        let bytes =
            [self.phase as u8, self.token, self.generation, self.victims, a, b, self.copy, self.inline];
        hasher.write_u64(u64::from_le_bytes(bytes));
    }
}

/// One state of the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct World {
    /// Pack table and pack objects, by id.
    pub packs: [Pack; PACKS],
    /// Version table.
    pub versions: [Version; VERSIONS],
    /// Inline chunks: the writer that is to pack each, + 1 (0: no row).
    pub rows: [u8; CHUNKS],
    /// For a broken rule only: chunks that ever had a row.
    pub ever_row: u8,
    /// Session table: the writers, then the reader.
    pub sessions: [Session; WRITERS + 1],
    /// `session.acked` of the writers.
    pub acked: [u8; WRITERS],
    /// The transactions in flight; one may happen when its writer is long gone.
    pub flights: [Flight; WRITERS],
    /// For the properties only: files whose commit happened more than once.
    pub twice: u8,
    /// `state.generation`.
    pub generation: u8,
    /// `state.gc_token`.
    pub token: u8,
    /// The writers' memory.
    pub writers: [Writer; WRITERS],
    /// The reader's memory.
    pub reader: Reader,
    /// The collectors' memory.
    pub collectors: [Collector; COLLECTORS],
    /// For the properties only: packs that were ever committed.
    pub ever_live: u8,
    /// For the properties only: packs that were ever dead.
    pub ever_dead: u8,
    /// For the properties only: bits of [`seen`], where the model keeps them.
    pub seen: u16,
}

/// Interesting events, which show that the model is not vacuous.
pub mod seen {
    /// A fenced process was refused by the database.
    pub const REFUSED: u16 = 1;
    /// A session kept a candidate alive when it acknowledged.
    pub const REPRIEVED: u16 = 2;
    /// A collector whose lease was taken over was refused.
    pub const STALE_TOKEN: u16 = 4;
    /// A collector that took over found a candidate.
    pub const TAKEN_OVER: u16 = 8;
    /// An intent of a session that is over was swept.
    pub const SWEPT: u16 = 16;
    /// A session wrote a chunk that a committed pack has, because it may not rely on that pack.
    pub const REWRITTEN: u16 = 32;
    /// The reader had to refresh its index.
    pub const REFRESHED: u16 = 64;
    /// A commit in doubt was found to have happened.
    pub const LOST_AND_DONE: u16 = 128;
    /// A commit in doubt was found not to have happened.
    pub const LOST_AND_VOID: u16 = 256;
    /// A writer's transaction happened after its process was gone.
    pub const POSTHUMOUS: u16 = 512;
    /// A writer's transaction was refused, as its session had been fenced meanwhile.
    pub const FENCED_ON_THE_WAY: u16 = 1024;
    /// A hit in another client's pack that had been compared.
    pub const VOUCHED: u16 = 2048;
    /// The collector kept a copy, because the one that counts is corrupt.
    pub const DOUBTED: u16 = 4096;
    /// A client could not find out the outcome of an acknowledgement.
    pub const GIVEN_UP: u16 = 8192;
}

impl World {
    /// The packs whose row satisfies `wanted`.
    pub fn packs_where(&self, wanted: impl Fn(&Pack) -> bool) -> u8 {
        (1..PACKS).filter(|&p| wanted(&self.packs[p])).fold(0, |set, p| set | bit(p))
    }

    /// Packs that others may rely on.
    pub fn live(&self) -> u8 {
        self.packs_where(|p| p.row == Row::Live)
    }

    /// Packs that can be read from: committed, and not dead.
    pub fn readable(&self) -> u8 {
        self.packs_where(|p| matches!(p.row, Row::Live | Row::Candidate))
    }

    /// Candidates.
    pub fn marked(&self) -> u8 {
        self.packs_where(|p| p.row == Row::Candidate)
    }

    /// The lowest pack of `set` that holds `chunk`.
    pub fn lowest(&self, set: u8, chunk: usize) -> Option<u8> {
        (1..PACKS).find(|&p| set & bit(p) != 0 && self.packs[p].held & bit(chunk) != 0).map(|p| p as u8)
    }

    /// The next pack id, if the model has one left. Ids are never used twice: a row never becomes
    /// free again.
    pub fn next_id(&self, limit: usize) -> Option<usize> {
        (1..=limit).find(|&p| self.packs[p].row == Row::Free)
    }

    /// True if the owner of an announced pack may still commit it.
    pub fn owner_is_live(&self, pack: &Pack) -> bool {
        if pack.owner & BY_COLLECTOR != 0 {
            pack.owner & !BY_COLLECTOR == self.token
        } else {
            self.sessions[pack.owner as usize] == Session::Live
        }
    }

    /// Inline chunks.
    pub fn inline(&self) -> u8 {
        (0..CHUNKS).filter(|&c| self.rows[c] != 0).fold(0, |set, c| set | bit(c))
    }

    /// A session ends or is fenced: its pins count no more.
    pub fn end_session(&mut self, session: usize) {
        self.sessions[session] = Session::Over;
        for version in &mut self.versions {
            version.pins &= !bit(session);
        }
    }

    /// A writing process is gone, with its memory.
    pub fn stop_writer(&mut self, writer: usize) {
        self.writers[writer] = Writer { process: Process::Down, ..Writer::default() };
        if self.flights[writer].said.is_some() {
            self.flights[writer] = Flight::default();
        }
    }
}

/// The bit of an element.
pub const fn bit(element: usize) -> u8 {
    1 << element
}

/// The elements of a bit set.
pub fn elements(set: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |&e| set & bit(e) != 0)
}
