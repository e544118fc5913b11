//! Chooses the in-line agent of a file, if its mount offers its open files: one on another host
//! than the writer's, and for each file another one.
//!
//! No process decides. All candidates know the same agents from the same rows, in the order of
//! their names. They begin with another one for each inode, so that consecutive files spread over
//! all agents. Agents that find the mount's socket come last. Each waits for its turn, a moment
//! longer the further behind it is. The first to come claims the split, as ever; so an agent that
//! is gone, or cannot reach the mount, is passed over.

use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_fuse::control::place;
use outrigger_store::meta::jobs::{JobId, SplitState};
use outrigger_store::{Result, Store};

use super::Access;
use crate::job::Written;
use crate::job::spec::Spec;
use crate::node::{self, Node};

/// How long to wait for each agent in line.
const EACH: Duration = Duration::from_millis(1500);
/// How many agents to wait for at most.
const WAITS_FOR_MAX: usize = 4;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the agent `me` leaves a file to other candidates; a process without a name comes after
/// all.
pub(crate) fn waits_for(
    store: &Store,
    written: Written,
    spec: &Spec,
    access: &Access,
    me: Option<&str>,
) -> Result<Duration> {
    let Some(offer) = &access.offer else { return Ok(Duration::ZERO) };
    let mut nodes = node::nodes(store)?;
    nodes.retain(|node| node.would_take(spec) && !node.yields);
    let me = me.map(|name| (name, place(store)));
    let before =
        before(&nodes, me.as_ref().map(|(name, place)| (*name, &**place)), written.inode, &offer.place);
    Ok(EACH * u32::try_from(before.min(WAITS_FOR_MAX)).unwrap_or(0))
}

/// How many of these agents come before `me`, which is its name and place.
fn before(nodes: &[Node], me: Option<(&str, &str)>, inode: u64, mount: &str) -> usize {
    let elsewhere = nodes.iter().map(|node| &node.role).filter(|role| role.place != mount);
    let mut elsewhere: Vec<&str> = elsewhere.map(|role| role.name.as_str()).collect();
    elsewhere.sort_unstable();
    let count = elsewhere.len();
    match me {
        Some((me, place)) if place != mount && count > 0 => {
            let mine = elsewhere.partition_point(|other| *other < me);
            let first = (inode % count as u64) as usize;
            (mine + count - first) % count
        }
        _ => count,
    }
}

/// Leaves a job whose file is being written to in-line agents, until one has it or none will come,
/// and while `goes_on` returns true.
///
/// # Errors
/// Those of the database.
pub fn leave_to_others(store: &Store, job: JobId, goes_on: &dyn Fn() -> bool) -> Result<()> {
    let jobs = store.jobs();
    let Some(row) = jobs.job(job)? else { return Ok(()) };
    let spec = Spec::decode(&row.spec)?;
    let Some(written) = spec.written else { return Ok(()) };
    let access = Access::find(store, written, &spec)?;
    let until = Instant::now() + waits_for(store, written, &spec, &access, None)?;
    while Instant::now() < until && goes_on() {
        let split = jobs.split(job, 0)?;
        if split.is_none_or(|split| split.state != SplitState::Waiting || !split.range.is_open()) {
            return Ok(());
        }
        outrigger_clock::sleep(LOOK_EVERY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_store::meta::AgentRole;

    use super::*;

    fn node(name: &str, place: &str) -> Node {
        let role = AgentRole { name: name.into(), slots: 1, uid: 0, place: place.into() };
        let (host, jobs) = (String::new(), Vec::new());
        Node { role, host, process: 1, jobs, drains: false, yields: false }
    }

    #[test]
    fn files_spread_over_agents_elsewhere_and_those_at_the_mount_come_last() {
        let nodes = [node("a", "1"), node("b", "2"), node("c", "3"), node("d", "3")];
        let line = |name, place, inode| before(&nodes, Some((name, place)), inode, "1");
        let mut first = std::collections::BTreeMap::new();
        for inode in 0..300 {
            let order = [("b", "2"), ("c", "3"), ("d", "3")].map(|(name, place)| line(name, place, inode));
            let mut sorted = order;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2], "each has a place of its own");
            *first.entry(order.iter().position(|at| *at == 0)).or_insert(0) += 1;
            assert_eq!((line("a", "1", inode), before(&nodes, None, inode, "1")), (3, 3));
        }
        assert!(first.len() == 3 && first.values().all(|count| *count > 60), "{first:?}");
        let alone = [node("a", "1")];
        assert_eq!(before(&alone, Some(("a", "1")), 7, "1"), 0);
    }
}
