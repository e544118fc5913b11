//! Connections that are lost with a transaction that was sent and not answered.
//!
//! Such a transaction is in doubt: it may have happened, may happen later, when its sender has long
//! been fenced or killed, or never does. So its sender does nothing until it has asked. Asking also
//! prevents a transaction that has not happened yet. (In PostgreSQL: it closes the connection's row
//! of `lane`, and waits for a transaction that has the row locked.) Each transaction checks its
//! session's row when it happens, and keeps the row locked until then.
//!
//! A client that cannot ask, as the database stays away, gives up after a while. After an
//! acknowledgement in doubt it goes on, but relies only on what it has reported and what it writes,
//! until another acknowledgement has succeeded. The earlier one may still happen. But it cannot
//! happen after later transactions of its session, as it has the session's row locked, nor after
//! new candidates are marked, which waits for the gate. After a commit in doubt, the client reports
//! that it does not know the outcome, and ends.

use super::state::*;
use super::writer::Step;
use super::{Broken, Reclaim};

impl Reclaim {
    /// The steps of a writer with a transaction in doubt.
    pub fn unsure_steps(&self, world: &World, w: usize, step: &mut impl FnMut(Step)) {
        step(Step::Ask);
        if self.kill_writers {
            step(Step::Kill);
        }
        let me = &world.writers[w];
        match world.flights[w].sent {
            // If the rule is broken, its other threads go on.
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

    /// Sends a transaction and loses the connection.
    pub fn lose(&self, world: &mut World, w: usize, sent: Sent) {
        world.flights[w] = Flight { sent, said: None };
        world.writers[w].is_unsure = true;
    }

    /// True if an acknowledgement is under way, which holds the gate and its session's row.
    pub fn acknowledges(&self, world: &World, w: usize) -> bool {
        let Flight { sent, said } = world.flights[w];
        matches!(sent, Sent::Ack(_)) && said.is_none()
    }

    /// Makes the client give up asking.
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

    /// Lets the transaction happen, whatever its sender does meanwhile.
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
        // If the process is gone or has gone on, it does not ask any more.
        let asks = world.writers[w].is_unsure;
        world.flights[w] =
            if asks { Flight { said: Some(said), ..world.flights[w] } } else { Flight::default() };
    }

    /// Tells the client the outcome.
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
            // It is repeated.
            (Sent::Ack(_), None) | (Sent::Nothing, _) => {}
        }
    }
}
