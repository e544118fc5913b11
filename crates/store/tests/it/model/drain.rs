//! A property of every reachable state: if everything stops, one undisturbed run reclaims all
//! garbage.

use super::Reclaim;
use super::state::*;

impl Reclaim {
    /// Stops every process, lets one collector run to its end, and checks the result: each rooted
    /// chunk once, and nothing else.
    pub fn drains(&self, world: &World) -> bool {
        let mut world = *world;
        for session in 0..=WRITERS {
            world.end_session(session);
        }
        world.flights = Default::default();
        world.token += 1;
        for pack in &mut world.packs {
            match pack.row {
                Row::Candidate => pack.row = Row::Live,
                Row::Writing => pack.row = Row::Dead,
                Row::Free | Row::Live | Row::Dead => {}
            }
        }
        let mut me = Collector::default();
        self.mark(&world, &mut me, self.roots(&world));
        let victims = self.worth_reclaiming(&world, &me);
        let moved = (0..CHUNKS)
            .filter(|&c| me.mark[c] != 0 && victims & bit(me.mark[c] as usize) != 0)
            .fold(0, |set, c| set | bit(c));
        if moved != 0 {
            let id = world.next_id(PACKS - 1).expect("the last id is kept free");
            world.packs[id] = Pack { row: Row::Live, owner: 0, object: Object::Sealed, held: moved, lies: 0 };
        }
        for p in elements(victims) {
            world.packs[p].row = Row::Dead;
        }
        for pack in world.packs.iter_mut().filter(|p| p.row == Row::Dead) {
            pack.object = Object::Gone;
        }
        let roots = self.roots(&world);
        let left = world.packs.iter().filter(|p| matches!(p.object, Object::Partial | Object::Sealed));
        let (mut once, mut twice) = (0, 0);
        for pack in left {
            twice |= once & pack.held;
            once |= pack.held;
        }
        once == roots && twice == 0
    }
}
