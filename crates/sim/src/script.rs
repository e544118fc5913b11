//! The events of a run. They are drawn from the seed before it starts, so that parts can be left
//! out to find the shortest run that fails.
//!
//! Time passes in cycles. In the first part of each the programs do one operation after the other,
//! often at the same moment as another host. In the rest they do nothing, which costs little.

use std::time::Duration;

use outrigger_workload::Rng;
use outrigger_workload::history::{Action, How};

/// A job in the script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its number in the script, which is in its outputs' names.
    pub id: u64,
    /// The index of its input in [`INPUTS`].
    pub input: usize,
    /// The number of splits of the input.
    pub splits: u64,
    /// True if each split has its own output.
    pub apart: bool,
    /// The factor by which outputs are longer than inputs.
    pub times: usize,
}

/// An operation of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// An operation on a key, as in histories; the length of what it writes, or the seconds for
    /// which it holds a lock.
    Do(String, Action, usize),
    /// Overwrites the key in place, syncs it, and keeps it open for so many more seconds.
    Sync(String, usize, u64),
    /// Opens the key, replaces it, runs the collector, and reads the open file.
    Hold(String, usize),
    /// Lists the root.
    List,
    /// Takes a snapshot.
    Snapshot(u64),
    /// Runs the collector.
    Collect,
    /// Submits a job.
    Ask(Asked),
    /// Cancels the job of this number.
    Cancel(u64),
    /// Asks the agent of this host to stop after its present work.
    Drain(usize),
    /// Runs the host's agent for at most so many seconds, with so many slots; if true, until it has
    /// nothing to do.
    Agent(u64, usize, bool),
}

/// A trouble.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The host's links are as bad as this for a while.
    Link {
        /// Seconds.
        secs: u64,
        /// The longest travel of a message.
        delay_micros: u64,
        /// Refused calls of the database, per thousand.
        refused: u64,
        /// Lost answers of the database, per thousand.
        lost: u64,
        /// Failed calls of the pack store, per thousand.
        packs_fail: u64,
    },
    /// The host does not reach the database for so many seconds.
    Away(u64),
    /// No host reaches the database for so many seconds.
    AllAway(u64),
    /// The host does not reach the pack store for so many seconds.
    PacksAway(u64),
    /// The host stops for so many seconds.
    Pause(u64),
    /// When the host next commits something while it holds a lock, it stops, and the commit arrives
    /// so many seconds later.
    Stall(u64),
    /// The host is killed, and starts again.
    Kill,
    /// The host's clock is wrong by so many seconds.
    Skew(i64),
    /// The host's disk is full for so many seconds.
    DiskFull(u64),
    /// For so many seconds answers of the pack store arrive with a bit flipped.
    Flips(u64),
    /// So many bits of a stored pack are flipped for good.
    Rot(u64),
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A program of the host does an operation.
    Op(usize, Op),
    /// A trouble begins.
    Trouble(Trouble),
}

/// An event on a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The host, from 0.
    pub host: usize,
    /// Its time, or when the event before it has ended, if that is later.
    pub at: Duration,
    /// The event.
    pub what: What,
}

/// The number of a host's programs that use the mount …
pub const PROGRAMS: usize = 2;
/// … and the number of its agent, which is the next one.
pub const AGENT: usize = PROGRAMS;
/// Directories that files are moved between.
pub const DIRS: u8 = 3;
/// Files that are moved.
pub const MOVING: u64 = 24;
/// Lengths of registers that are written in place.
pub const LENGTHS: [usize; 4] = [100, 1700, 4096, 40_000];
/// Files in which each part is a register; then the parts of each, and their length.
pub const PARTED: u64 = 2;
/// See [`PARTED`].
pub const PARTS: u64 = 4;
/// See [`PARTED`].
pub const PART_LEN: usize = 3000;

/// The number of lines in each file that jobs read.
pub const INPUTS: [u64; 3] = [150, 800, 2500];

const CYCLE: u64 = 300;
/// Seconds of a cycle in which programs work.
const BUSY: u64 = 60;
/// Operations of a program in a cycle.
const OPS: u64 = 10;
/// Cycles in which programs use the same names.
const EPOCH: u64 = 2;

/// One cycle of so many has jobs.
const JOBS_EVERY: u64 = 3;

/// The script of a seed, for so many hosts and about this time.
pub fn draw(seed: u64, hosts: usize, time: Duration) -> Vec<Step> {
    let mut rng = Rng::part(seed, 1);
    let mut steps = Vec::new();
    for cycle in 0..time.as_secs().div_ceil(CYCLE) {
        let begins = cycle * CYCLE;
        for host in 0..hosts {
            for program in 0..PROGRAMS {
                for number in 0..OPS {
                    let op = draw_op(&mut rng, cycle / EPOCH, steps.len() as u64);
                    // Often at the same moment as another host.
                    let spread = if rng.below(3) == 0 { rng.below(5000) } else { rng.below(4) };
                    let at = Duration::from_millis((begins * 1000) + number * BUSY * 1000 / OPS + spread);
                    steps.push(Step { host, at, what: What::Op(program, op) });
                }
            }
        }
        if rng.below(JOBS_EVERY) == 0 {
            draw_jobs(&mut rng, hosts, begins, &mut steps);
        }
        for _ in 0..rng.below(4) {
            let host = rng.index(hosts);
            let at = Duration::from_millis(begins * 1000 + rng.below(BUSY * 1000));
            steps.push(Step { host, at, what: What::Trouble(draw_trouble(&mut rng)) });
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// Some jobs in a cycle, and agents for them.
fn draw_jobs(rng: &mut Rng, hosts: usize, begins: u64, steps: &mut Vec<Step>) {
    let step = |rng: &mut Rng, secs: u64, program, op| {
        let at = Duration::from_millis(begins * 1000 + rng.below(secs * 1000));
        Step { host: rng.index(hosts), at, what: What::Op(program, op) }
    };
    let first = steps.len() as u64;
    for id in first..=first + rng.below(2) {
        let input = rng.index(INPUTS.len());
        let times = if rng.below(8) == 0 { 12 } else { 1 };
        let asked = Asked { id, input, splits: 1 + rng.below(9), apart: rng.below(3) == 0, times };
        steps.push(step(rng, 30, 0, Op::Ask(asked)));
        if rng.below(5) == 0 {
            steps.push(step(rng, 90, 1, Op::Cancel(id)));
        }
    }
    for host in 0..hosts {
        let op = Op::Agent([20, 60, 150][rng.index(3)], 1 + rng.index(3), rng.below(4) == 0);
        steps.push(Step { host, ..step(rng, 20, AGENT, op) });
    }
    if rng.below(4) == 0 {
        let host = rng.index(hosts);
        steps.push(step(rng, 90, 1, Op::Drain(host)));
    }
    for _ in 0..1 + rng.below(3) {
        let trouble = match rng.below(6) {
            0 | 1 => Trouble::Kill,
            2 => Trouble::Pause([5, 70, 400][rng.index(3)]),
            3 => Trouble::Away([3, 30, 200][rng.index(3)]),
            _ => draw_trouble(rng),
        };
        let Step { host, at, .. } = step(rng, 60, AGENT, Op::List);
        steps.push(Step { host, at, what: What::Trouble(trouble) });
    }
}

fn draw_op(rng: &mut Rng, epoch: u64, id: u64) -> Op {
    let register = |rng: &mut Rng| format!("r{}-{epoch}", rng.below(2));
    let len = |rng: &mut Rng| [100, 100, 9000, 40_000, 150_000, 300_000][rng.index(6)];
    let written = |rng: &mut Rng| {
        let number = rng.index(LENGTHS.len());
        (format!("w{number}"), LENGTHS[number])
    };
    let part = |rng: &mut Rng| (format!("wp{}:{}", rng.below(PARTED), rng.below(PARTS)), PART_LEN);
    let act = |key: String, action, len| Op::Do(key, action, len);
    match rng.below(100) {
        0..5 => {
            let (key, len) = written(rng);
            act(key, Action::Write, len)
        }
        5..11 => {
            let (key, len) = part(rng);
            act(key, Action::Write, len)
        }
        11..15 => {
            let (key, len) = written(rng);
            Op::Sync(key, len, rng.below(20))
        }
        15..21 => act(written(rng).0, Action::Read, 0),
        21..26 => act(part(rng).0, Action::Read, 0),
        26..35 => act(register(rng), Action::Replace, len(rng)),
        35..38 => act(register(rng), Action::Remove, 0),
        38..46 => act(register(rng), Action::Read, 0),
        46..48 => Op::Hold(register(rng), len(rng)),
        48 => Op::Collect,
        49..54 => act("flock0".into(), Action::Count, rng.index(20)),
        54..59 => act("fcntl0".into(), Action::Count, rng.index(20)),
        59..66 => act(format!("log{epoch}"), Action::Append, rng.index(200)),
        66..70 => act(format!("log{epoch}"), Action::Lines, 0),
        70..75 => {
            let ways = [How::Exclusive, How::Directory, How::Link, How::Rename];
            act(format!("n{}-{epoch}", rng.below(8)), Action::Claim(ways[rng.index(4)]), 200)
        }
        75..78 => act(format!("n{}-{epoch}", rng.below(8)), Action::Find, 0),
        78..81 => act(format!("d-{epoch}"), Action::Claim(How::Directory), 0),
        81..84 => act(format!("d-{epoch}"), Action::Remove, 0),
        84 => act(format!("d-{epoch}"), Action::Find, 0),
        85..96 => {
            let key = format!("m{}", (epoch * 2 + rng.below(2)) % MOVING);
            let from = rng.below(DIRS.into()) as u8;
            let to = (from + 1 + rng.below(u64::from(DIRS) - 1) as u8) % DIRS;
            act(key, if rng.below(3) > 0 { Action::Move { from, to } } else { Action::Stat(from) }, 0)
        }
        96 => Op::List,
        97 => Op::Snapshot(id),
        _ => act(format!("log{epoch}"), Action::Append, 30),
    }
}

fn draw_trouble(rng: &mut Rng) -> Trouble {
    match rng.below(32) {
        0..8 => Trouble::Link {
            secs: 10 + rng.below(120),
            delay_micros: 1 << rng.below(22),
            refused: rng.below(40),
            lost: rng.below(3) * rng.below(80),
            packs_fail: rng.below(3) * rng.below(100),
        },
        8 | 9 => Trouble::Away([3, 30, 200][rng.index(3)]),
        10 => Trouble::AllAway([3, 30, 200][rng.index(3)]),
        11 => Trouble::PacksAway([3, 30, 200][rng.index(3)]),
        12..15 => Trouble::Pause([5, 70, 400][rng.index(3)]),
        15..18 => Trouble::Kill,
        18..21 => Trouble::Stall(55 + rng.below(30)),
        21 | 22 => Trouble::Skew(rng.below(7200) as i64 - 3600),
        23..27 => Trouble::Flips([2, 20, 60][rng.index(3)]),
        27..31 => Trouble::DiskFull([2, 20, 200][rng.index(3)]),
        _ => Trouble::Rot([1, 1, 3][rng.index(3)]),
    }
}
