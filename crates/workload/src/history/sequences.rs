//! Checkers that need no search: counters, appended lines, and names that are made once.

use std::collections::{BTreeMap, BTreeSet};

use super::check::Violation;
use super::{ABSENT, Action, EXISTS, How, Op, TORN, WON};

/// Violations of one key.
struct Found<'a> {
    key: &'a str,
    violations: Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, why: impl Into<String>, ops: &[&Op]) {
        let ops = ops.iter().map(|&op| op.clone()).collect();
        self.violations.push(Violation { key: self.key.to_owned(), why: why.into(), ops });
    }
}

fn found(ops: &[Op]) -> Found<'_> {
    Found { key: ops.first().map_or("", |op| &op.key), violations: Vec::new() }
}

fn number(op: &Op) -> Option<u64> {
    op.done()?.parse().ok()
}

/// Judges a counter:
///
/// - No two acknowledged increments read the same number.
/// - A number that was read is larger than those of all increments acknowledged before.
/// - In the end, at least the acknowledged increments were counted, and at most those that were
///   tried.
pub fn counters(ops: &[Op]) -> Vec<Violation> {
    let mut found = found(ops);
    let mut counts: Vec<_> =
        ops.iter().filter(|op| op.action == Action::Count && op.done().is_some()).collect();
    let mut by_number: BTreeMap<_, &Op> = BTreeMap::new();
    for op in &counts {
        match number(op) {
            None => found.add("what it held is no number", &[op]),
            Some(number) => {
                if let Some(other) = by_number.insert(number, op) {
                    found.add("two increments read the same number: one of them is lost", &[other, op]);
                }
            }
        }
    }
    // The largest number that was acknowledged before an operation's call is below its own.
    counts.sort_by_key(|op| op.returned);
    let mut looks: Vec<_> = ops.iter().filter(|op| number(op).is_some()).collect();
    looks.sort_by_key(|op| op.called);
    let (mut next, mut largest): (_, Option<&Op>) = (0, None);
    for look in looks {
        while let Some(count) = counts.get(next).filter(|count| count.returned < look.called) {
            largest = largest.max_by_number(count);
            next += 1;
        }
        if let Some(largest) = largest.filter(|largest| number(largest) >= number(look)) {
            found.add("it counted backwards: an acknowledged increment is lost", &[largest, look]);
        }
    }
    let tried = ops.iter().filter(|op| op.action == Action::Count);
    let [mut done, mut most] = [0, 0];
    for op in tried {
        done += u64::from(op.done().is_some());
        most += u64::from(op.done().is_some() || op.is_unknown());
    }
    let last =
        ops.iter().filter(|op| op.action == Action::Read && number(op).is_some()).max_by_key(|op| op.called);
    if let Some(last) =
        last.filter(|last| ops.iter().all(|op| op.action == Action::Read || op.returned < last.called))
    {
        let count = number(last).unwrap_or(0);
        if !(done..=most).contains(&count) {
            found.add(format!("{done} increments were acknowledged, {most} tried, {count} counted"), &[last]);
        }
    }
    found.violations
}

/// Keeps the operation with the larger number.
trait Largest<'a> {
    fn max_by_number(self, other: &'a Op) -> Self;
}

impl<'a> Largest<'a> for Option<&'a Op> {
    fn max_by_number(self, other: &'a Op) -> Self {
        self.filter(|op| number(op) >= number(other)).or(Some(other))
    }
}

/// Judges each look at a log:
///
/// - Lines are whole, unless one is being appended on the look's host. No line is there twice, and
///   none that was not called.
/// - All lines are there that were acknowledged before the look, in the order of time.
/// - Each client's lines are in its order.
pub fn appends(ops: &[Op]) -> Vec<Violation> {
    let mut found = found(ops);
    let appended: BTreeMap<_, _> =
        ops.iter().filter(|op| op.action == Action::Append).map(|op| (op.id(), op)).collect();
    for look in ops.iter().filter(|op| op.action == Action::Lines) {
        let Some(lines) = look.done() else { continue };
        let mut at = BTreeMap::new();
        let mut last_of: BTreeMap<&str, &Op> = BTreeMap::new();
        // A line that is being appended on the reader's host moves when it is stored, and others'
        // lines come before it.
        let is_moving = |op: &&Op| {
            let is_over = !op.is_unknown() && op.returned < look.called;
            op.host() == look.host() && op.called < look.returned && !is_over
        };
        let moves = appended.values().copied().find(is_moving).is_some();
        for (place, line) in lines.split(',').filter(|line| !line.is_empty()).enumerate() {
            if line == TORN && moves {
                continue;
            }
            let append = appended.get(line).filter(|append| append.called < look.returned);
            let Some(append) = append.filter(|append| append.done().is_some() || append.is_unknown()) else {
                let what =
                    if line == TORN { "a line is torn" } else { "a line that nobody can have appended" };
                found.add(format!("{what}: line {place}, {line}"), &[look]);
                continue;
            };
            if at.insert(line, place).is_some() {
                found.add("a line is there twice", &[append, look]);
            }
            let last = last_of.insert(&append.client, append);
            if let Some(last) = last.filter(|last| last.number > append.number) {
                found.add("lines of a client are not in its order", &[append, last, look]);
            }
        }
        let mut acknowledged: Vec<_> =
            appended.values().filter(|op| op.done().is_some() && op.returned < look.called).collect();
        acknowledged.sort_by_key(|op| op.called);
        let mut furthest: Vec<(u64, usize, &Op)> = Vec::new();
        for op in acknowledged {
            let Some(&place) = at.get(op.id().as_str()) else {
                found.add("an acknowledged line is not there", &[op, look]);
                continue;
            };
            if let Some((.., other)) =
                furthest.iter().find(|(returned, other, _)| *returned < op.called && *other > place)
            {
                found.add("a line comes before one that had been acknowledged before", &[other, op, look]);
            }
            furthest.push((op.returned, place, op));
        }
    }
    found.violations
}

/// Judges a name: it has at most one winner, who stays, and nobody is refused before another client
/// can have made it.
pub fn names(ops: &[Op]) -> Vec<Violation> {
    let mut found = found(ops);
    let is_claim = |op: &&Op| matches!(op.action, Action::Claim(_));
    let winners: Vec<_> = ops.iter().filter(is_claim).filter(|op| op.done() == Some(WON)).collect();
    let possible: Vec<_> =
        ops.iter().filter(is_claim).filter(|op| op.done() == Some(WON) || op.is_unknown()).collect();
    if let [first, second, ..] = winners[..] {
        found.add("two have made the same name", &[first, second]);
    }
    let can_be_there = |by: u64| possible.iter().any(|op| op.called < by);
    for op in ops.iter().filter(is_claim).filter(|op| op.done() == Some(EXISTS)) {
        if !can_be_there(op.returned) {
            found.add("refused, although nobody can have made the name", &[op]);
        }
    }
    for look in ops.iter().filter(|op| op.action == Action::Find) {
        let Some(value) = look.done() else { continue };
        let before: Vec<_> = winners.iter().filter(|op| op.returned < look.called).copied().collect();
        if value == ABSENT {
            if let Some(winner) = before.first() {
                found.add("a name that was made is not there", &[winner, look]);
            }
            continue;
        }
        let is_it = |op: &Op| match (value, op.action) {
            ("dir", Action::Claim(how)) => how == How::Directory,
            // `O_EXCL` makes the name first, and the content comes later.
            ("empty", Action::Claim(how)) => {
                how == How::Exclusive && (op.done().is_none() || op.returned >= look.called)
            }
            _ => op.id() == value && op.action != Action::Claim(How::Directory),
        };
        let candidates: BTreeSet<_> =
            possible.iter().filter(|op| op.called < look.returned).map(|op| op.id()).collect();
        let is_candidate = |op: &&&Op| candidates.contains(&op.id()) && is_it(op);
        if !possible.iter().any(|op| is_candidate(&op)) {
            found.add(format!("{value} has the name, which cannot have made it"), &[look]);
        } else if let Some(winner) = before.first().filter(|winner| !is_it(winner)) {
            found.add(format!("{value} has the name that another one had made"), &[winner, look]);
        }
    }
    found.violations
}
