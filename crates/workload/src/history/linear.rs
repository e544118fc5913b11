//! Decides if a history of one object is linearizable: each operation takes effect at one instant
//! between its call and its return. The order of these instants explains all results.
//!
//! The search is that of Wing and Gong, with Lowe's memory of what was tried ("Testing for
//! linearizability", 2016), as in knossos and porcupine. An operation without a return may take
//! effect at any time after its call, or never.

use std::collections::HashSet;
use std::hash::Hash;

use super::{Op, Outcome};

/// When an operation was called, and when it returned, if that is known.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub called: u64,
    pub returned: Option<u64>,
}

/// The calls and returns that are not yet in the order, as a doubly linked list. Entry 0 is the
/// head.
struct Entries {
    next: Vec<usize>,
    previous: Vec<usize>,
    /// Each entry's operation, and true if the entry is its call.
    what: Vec<(usize, bool)>,
    /// Each operation's entries, its call and its return; 0 for no return.
    of: Vec<(usize, usize)>,
}

impl Entries {
    fn new(spans: &[Span]) -> Self {
        let mut events: Vec<_> =
            spans.iter().enumerate().map(|(op, span)| (span.called, false, op)).collect();
        // Calls come first: an operation that returned in the instant of a call was concurrent with
        // it.
        events.extend(spans.iter().enumerate().filter_map(|(op, span)| Some((span.returned?, true, op))));
        events.sort_unstable();
        let count = events.len() + 1;
        let mut what = vec![(usize::MAX, false)];
        let mut of = vec![(0, 0); spans.len()];
        for (at, (_, is_return, op)) in events.into_iter().enumerate() {
            what.push((op, !is_return));
            if is_return { of[op].1 = at + 1 } else { of[op].0 = at + 1 }
        }
        let next = (0..count).map(|at| (at + 1) % count).collect();
        let previous = (0..count).map(|at| (at + count - 1) % count).collect();
        Self { next, previous, what, of }
    }

    fn unlink(&mut self, entry: usize) {
        let (previous, next) = (self.previous[entry], self.next[entry]);
        self.next[previous] = next;
        self.previous[next] = previous;
    }

    fn link(&mut self, entry: usize) {
        let (previous, next) = (self.previous[entry], self.next[entry]);
        self.next[previous] = entry;
        self.previous[next] = entry;
    }

    /// Takes an operation out of the list.
    fn lift(&mut self, op: usize) {
        let (call, end) = self.of[op];
        self.unlink(call);
        if end != 0 {
            self.unlink(end);
        }
    }

    /// Puts it back, in the opposite order of [`Self::lift`].
    fn unlift(&mut self, op: usize) {
        let (call, end) = self.of[op];
        if end != 0 {
            self.link(end);
        }
        self.link(call);
    }
}

/// Returns true if in some order of the operations `step` accepts each that has returned. `step`
/// returns the state after an operation takes effect, or `None` if that contradicts the operation's
/// answer.
pub fn is_linearizable<S: Clone + Eq + Hash>(
    spans: &[Span],
    initial: S,
    step: impl Fn(&S, usize) -> Option<S>,
) -> bool {
    let mut entries = Entries::new(spans);
    let mut open = spans.iter().filter(|span| span.returned.is_some()).count();
    let mut taken = vec![0u64; spans.len().div_ceil(64)];
    let mut tried = HashSet::new();
    let mut stack: Vec<(usize, S)> = Vec::new();
    let mut state = initial;
    let mut entry = entries.next[0];
    while open > 0 {
        let (op, is_call) = entries.what[entry];
        if is_call {
            if let Some(after) = step(&state, op) {
                taken[op / 64] |= 1 << (op % 64);
                if tried.insert((taken.clone(), after.clone())) {
                    stack.push((op, std::mem::replace(&mut state, after)));
                    entries.lift(op);
                    open -= usize::from(spans[op].returned.is_some());
                    entry = entries.next[0];
                    continue;
                }
                taken[op / 64] &= !(1 << (op % 64));
            }
            entry = entries.next[entry];
        } else {
            // An operation returned that is not in the order, so the last one put into it was
            // wrong.
            let Some((op, before)) = stack.pop() else { return false };
            state = before;
            taken[op / 64] &= !(1 << (op % 64));
            entries.unlift(op);
            open += usize::from(spans[op].returned.is_some());
            entry = entries.next[entries.of[op].0];
        }
    }
    true
}

/// A history as it was known at an instant: operations that had not returned then may still happen.
fn until(ops: &[Op], instant: u64) -> Vec<Op> {
    let mut ops: Vec<_> = ops.iter().filter(|op| op.called <= instant).cloned().collect();
    for op in ops.iter_mut().filter(|op| op.returned > instant) {
        op.returned = u64::MAX;
        op.outcome = Outcome::Unknown("had not returned".into());
    }
    ops
}

/// A small part of a history that still fails: its shortest failing beginning, without the
/// operations that can go. `may_go` says whether a correct history stays correct without an
/// operation.
pub fn smallest(ops: &[Op], fails: impl Fn(&[Op]) -> bool, may_go: impl Fn(&[Op], usize) -> bool) -> Vec<Op> {
    let mut instants: Vec<_> = ops.iter().map(|op| op.returned).filter(|&at| at < u64::MAX).collect();
    instants.sort_unstable();
    let first = instants.partition_point(|&instant| !fails(&until(ops, instant)));
    let mut left = instants.get(first).map_or_else(|| ops.to_vec(), |&instant| until(ops, instant));
    let mut chunk = left.len().div_ceil(2).max(1);
    loop {
        let (mut at, before) = (0, left.len());
        while at < left.len() {
            let mut rest = left.clone();
            for op in (at..(at + chunk).min(left.len())).rev() {
                if may_go(&rest, op) {
                    rest.remove(op);
                }
            }
            if rest.len() < left.len() && fails(&rest) { left = rest } else { at += chunk }
        }
        if chunk > 1 {
            chunk /= 2;
        } else if left.len() == before {
            // With their final outcomes, also for operations that had not returned at the time.
            let ids: HashSet<_> = left.iter().map(Op::id).collect();
            return ops.iter().filter(|op| ids.contains(&op.id())).cloned().collect();
        }
    }
}
