//! What happens in a run, drawn up front from the seed, so that parts of it can be left out to find the shortest run that fails.

use std::time::Duration;

/// What one host's program does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a file of its own and renames it over the name.
    Publish(u8, u32),
    /// Reads the name.
    Read(u8),
    /// Removes the name.
    Unlink(u8),
    /// Makes the name, which must not be there, and writes to it.
    Claim(u8, u32),
    /// Reads what another has claimed.
    ReadClaim(u8),
    /// Lists the root.
    List,
    /// Takes a snapshot.
    Snapshot(u32),
    /// Reclaims what nothing refers to.
    Collect,
}

/// What goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The host's link is so slow, and refuses so many of a thousand calls.
    Link {
        /// Most that a call is on its way.
        delay_micros: u64,
        /// Of a thousand calls of the database.
        refused: u64,
        /// Of a thousand calls of the pack store.
        packs_fail: u64,
    },
    /// The database is away for so many seconds.
    Away(u64),
    /// The host stands still for so many seconds.
    Pause(u64),
    /// The host is killed, and starts again.
    Kill,
    /// Its clock is wrong by so many seconds.
    Skew(i64),
}

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A program does something, and this long after what it did before.
    Op(Op),
    /// Something goes wrong, this long after what went wrong before.
    Trouble(Trouble),
}

/// One thing that happens on a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The host, from 0.
    pub host: usize,
    /// How long after the one before.
    pub after: Duration,
    /// What.
    pub what: What,
}

/// Names that all hosts publish to.
pub const NAMES: u8 = 4;

/// Draws numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// The script of a seed: so many hosts for about so long.
pub fn draw(seed: u64, hosts: usize, time: Duration) -> Vec<Step> {
    let mut draw = Draw(seed ^ 0x5c12_11b7);
    let mut steps = Vec::new();
    let mut id = 0;
    // A quarter of a minute between what a host does, on average.
    let each = time.as_secs() / 15;
    for host in 0..hosts {
        for _ in 0..each {
            id += 1;
            let name = draw.below(NAMES.into()) as u8;
            let op = match draw.below(100) {
                0..35 => Op::Publish(name, id),
                35..65 => Op::Read(name),
                65..73 => Op::Unlink(name),
                73..83 => Op::Claim(draw.below(each / 2) as u8, id),
                83..93 => Op::ReadClaim(draw.below(each / 2) as u8),
                93..96 => Op::List,
                96..98 => Op::Snapshot(id),
                _ => Op::Collect,
            };
            // Often at nearly the same moment as another host.
            let after = match draw.below(3) {
                0 => Duration::from_secs(draw.below(45)),
                _ => Duration::from_secs(15),
            };
            steps.push(Step { host, after, what: What::Op(op) });
        }
    }
    for _ in 0..time.as_secs() / 300 {
        let host = draw.below(hosts as u64) as usize;
        let trouble = match draw.below(10) {
            0..4 => Trouble::Link {
                delay_micros: 1 << draw.below(22),
                refused: draw.below(40),
                packs_fail: draw.below(3) * draw.below(30),
            },
            4 | 5 => Trouble::Away([3, 30, 200][draw.below(3) as usize]),
            6 | 7 => Trouble::Pause([5, 60, 400][draw.below(3) as usize]),
            8 => Trouble::Kill,
            _ => Trouble::Skew(draw.below(7200) as i64 - 3600),
        };
        steps.push(Step {
            host,
            after: Duration::from_secs(60 + draw.below(480)),
            what: What::Trouble(trouble),
        });
    }
    steps
}
