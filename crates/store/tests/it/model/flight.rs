//! Connections that are lost with a transaction that was sent and not answered.
//!
//! Such a transaction may have happened, may happen yet, when its sender has long been fenced or killed, or never does. So its sender does nothing until it has asked; asking
//! keeps what has not happened from ever happening (in PostgreSQL: the connection's row of `lane` is closed, which waits for who has it locked). Each
//! transaction checks its session's row as it happens: the row is locked until it has.
//!
//! A client that cannot ask, as the database stays away, gives up after a while. It goes on after an acknowledgement, relying on nothing but what it has told and what it
//! writes, until another one has succeeded. The one that was given up may happen still, though not after others of its session, whose row it has
//! locked, nor after a condemnation, which waits for the gate. Of a commit that was given up the client says that it does not know, and ends.

use super::state::*;
use super::writer::Step;
use super::{Broken, Reclaim};

impl Reclaim {
    /// The steps of a writer that does not know what became of what it sent.
    pub fn unsure_steps(&self, world: &World, w: usize, step: &mut impl FnMut(Step)) {
        step(Step::Ask);
        if self.kill_writers {
            step(Step::Kill);
        }
        let me = &world.writers[w];
        match world.flights[w].sent {
            // Others of its threads go on, where the rule is broken.
            Sent::Commit(..) if self.broken(Broken::AckWhileUnsure) && world.generation > world.acked[w] => {
                step(Step::Ack);
            }
            Sent::Ack(_) => {
                step(Step::GiveUp);
                if self.broken(Broken::HitsWhileUnsure)
                    && let Some((_, chunk)) = self.next_chunk(me, w)
                {
                    self.hits(world, w, chunk).for_each(|p| step(Step::Hit(p)));
                }
            }
            _ => {}
        }
    }

    /// A transaction is sent, and the connection is lost.
    pub fn lose(&self, world: &mut World, w: usize, sent: Sent) {
        world.flights[w] = Flight { sent, said: None };
        world.writers[w].is_unsure = true;
    }

    /// Whether an acknowledgement is under way that holds the gate, and its session's row.
    pub fn acknowledges(&self, world: &World, w: usize) -> bool {
        let Flight { sent, said } = world.flights[w];
        matches!(sent, Sent::Ack(_)) && said.is_none()
    }

    /// The client cannot ask.
    pub fn give_up(&self, world: &mut World, w: usize) {
        let me = &mut world.writers[w];
        me.is_unsure = false;
        if !self.broken(Broken::GivenUpAndForgotten) {
            me.usable = 0;
        }
        me.refresh = None;
        if world.flights[w].said.is_some() {
            world.flights[w] = Flight::default();
        }
        world.seen |= seen::GIVEN_UP;
    }

    /// What was sent happens, whatever has become of its sender.
    pub fn arrive(&self, world: &mut World, w: usize) {
        if world.sessions[w] != Session::Live && !self.broken(Broken::CheckedWhenSent) {
            world.seen |= seen::FENCED_ON_THE_WAY;
            world.flights[w] = Flight::default();
            return;
        }
        if world.writers[w].process == Process::Down {
            world.seen |= seen::POSTHUMOUS;
        }
        let said = match world.flights[w].sent {
            Sent::Nothing => return,
            Sent::Commit(file, packs) => self.commit(world, w, file as usize, packs),
            Sent::Ack(relied) => self.acknowledge(world, w, relied),
        };
        // Nobody asks any more where the process is gone, or has gone on.
        let asks = world.writers[w].is_unsure;
        world.flights[w] =
            if asks { Flight { said: Some(said), ..world.flights[w] } } else { Flight::default() };
    }

    /// The client learns what became of what it sent.
    pub fn ask(&self, world: &mut World, w: usize) {
        let Flight { sent, said } = world.flights[w];
        world.writers[w].is_unsure = false;
        let goes_on = self.broken(Broken::AskedTooEarly) || self.broken(Broken::LostMadeAgain);
        if said.is_some() || !goes_on {
            world.flights[w] = Flight::default();
        }
        let said = if self.broken(Broken::LostMadeAgain) { None } else { said };
        match (sent, said) {
            (Sent::Commit(file, packs), Some(live)) => {
                world.seen |= seen::LOST_AND_DONE;
                self.committed(world, w, file as usize, packs, live);
            }
            (Sent::Commit(file, packs), None) if self.broken(Broken::LostTakenForDone) => {
                self.committed(world, w, file as usize, packs, packs);
            }
            (Sent::Commit(..), None) => world.seen |= seen::LOST_AND_VOID,
            (Sent::Ack(_), Some(live)) => self.acknowledged(world, w, live),
            // It is made again.
            (Sent::Ack(_), None) | (Sent::Nothing, _) => {}
        }
    }
}
