//! A reading session: load an index, pin a version, read a chunk of it; refresh the index when a
//! pack is gone.

use super::state::*;
use super::{Broken, Reclaim};

/// A step of the reader.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Load the index: the committed packs that are not dead at this moment.
    Load,
    /// Transaction: the session's row, and a pin on a version that is there.
    Pin(usize),
    /// Look a chunk up: it is in this pack.
    Locate(usize, usize),
    /// Look a chunk up: the index does not have it.
    Miss(usize),
    /// Open the pack and read.
    Read,
    /// Transaction: load the index again.
    Refresh,
}

impl Reclaim {
    /// The steps that the reader can take.
    pub fn reader_steps(&self, world: &World, mut step: impl FnMut(Step)) {
        match world.reader {
            Reader::Idle => {
                if world.sessions[READER] == Session::None {
                    step(Step::Load);
                }
            }
            Reader::Loaded(_) => {
                for v in (0..VERSIONS).filter(|&v| world.versions[v].current) {
                    step(Step::Pin(v));
                }
            }
            Reader::Pinned(index, version) => {
                for c in elements(self.chunks_of(version as usize)) {
                    let mut found = false;
                    for p in elements(index).filter(|&p| world.packs[p].held & bit(c) != 0) {
                        found = true;
                        step(Step::Locate(c, p));
                    }
                    if !found {
                        step(Step::Miss(c));
                    }
                }
            }
            Reader::Located(..) => step(Step::Read),
            Reader::Stale(..) => step(Step::Refresh),
            Reader::Failed | Reader::Done => {}
        }
    }

    /// Takes a step of the reader.
    pub fn reader_step(&self, world: &mut World, step: Step) {
        world.reader = match (step, world.reader) {
            (Step::Load, _) => Reader::Loaded(world.readable()),
            (Step::Pin(v), Reader::Loaded(index)) => {
                world.sessions[READER] = Session::Live;
                if !self.broken(Broken::ReadUnpinned) {
                    world.versions[v].pins |= bit(READER);
                }
                Reader::Pinned(index, v as u8)
            }
            (Step::Locate(c, p), Reader::Pinned(index, v)) => Reader::Located(index, v, c as u8, p as u8),
            (Step::Miss(c), Reader::Pinned(_, v)) => Reader::Stale(v, c as u8),
            (Step::Read, Reader::Located(_, v, c, p)) => {
                if world.packs[p as usize].object == Object::Sealed {
                    Reader::Done
                } else if self.broken(Broken::ReadOnce) {
                    Reader::Failed
                } else {
                    Reader::Stale(v, c)
                }
            }
            (Step::Refresh, Reader::Stale(v, c)) => {
                let index = world.readable();
                world.seen |= seen::REFRESHED;
                match world.lowest(index, c as usize) {
                    Some(_) => Reader::Pinned(index, v),
                    None => Reader::Failed,
                }
            }
            (step, reader) => unreachable!("{step:?} in {reader:?}"),
        };
        if world.reader == Reader::Done {
            world.end_session(READER);
        }
    }
}
