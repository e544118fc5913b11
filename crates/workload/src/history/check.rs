//! Judges histories. Each key is judged by itself; the order of operations on several keys is not
//! judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::linear::{Span, is_linearizable, smallest};
use super::sequences::{appends, counters, names};
use super::{ABSENT, Action, EXISTS, FIRST, MOVED, Op, Outcome, REMOVED, TORN, WON};

/// Faults are shown if they happened within so many nanoseconds of a violation.
const AROUND: u64 = 10_000_000_000;

/// A violation.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key whose history is wrong.
    pub key: String,
    /// In words.
    pub why: String,
    /// The operations that show it; only those, if that is known.
    pub ops: Vec<Op>,
}

/// The number of operations of each kind, and the violations.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By checker: operations, those done, failed and unknown, and its violations.
    pub checkers: BTreeMap<&'static str, ([u64; 4], Vec<Violation>)>,
}

/// The checker of a key, and its description.
type Checker = (&'static str, &'static str, fn(&[Op]) -> Vec<Violation>);

/// By prefixes of keys; the longest come first.
const CHECKERS: [Checker; 8] = [
    ("flock", "counters behind flock", counters),
    ("fcntl", "counters behind fcntl", counters),
    ("log", "appended lines", appends),
    ("w", "registers written in place", written),
    ("r", "registers replaced by rename", replaced),
    ("n", "exclusive names", names),
    ("d", "directories made and removed", directories),
    ("m", "moved files", moved),
];

/// Judges a history, whose operations are in the order of their calls.
pub fn check(ops: &[Op]) -> Report {
    let mut keys: BTreeMap<&str, Vec<Op>> = BTreeMap::new();
    for op in ops {
        keys.entry(&op.key).or_default().push(op.clone());
    }
    let mut report = Report::default();
    for (key, ops) in keys {
        let Some((_, name, checker)) = CHECKERS.iter().find(|(begin, ..)| key.starts_with(begin)) else {
            continue;
        };
        let (counts, violations) = report.checkers.entry(name).or_default();
        for op in &ops {
            counts[0] += 1;
            let outcome = match op.outcome {
                Outcome::Done(_) => 1,
                Outcome::Failed(_) => 2,
                Outcome::Unknown(_) => 3,
            };
            counts[outcome] += 1;
        }
        violations.extend(checker(&ops));
    }
    report
}

impl Report {
    /// All violations.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.checkers.values().flat_map(|(_, violations)| violations)
    }

    /// A table of operations, and for each key with a violation the reason, the operations that
    /// show it, and the faults (instants and texts) around them.
    pub fn told(&self, faults: &[(u64, String)]) -> String {
        let mut text = format!(
            "{:<30} {:>8} {:>8} {:>8} {:>8}  verdict\n",
            "checker", "ops", "done", "failed", "unknown"
        );
        for (name, ([all, done, failed, unknown], violations)) in &self.checkers {
            let verdict = match violations.len() {
                0 => "nothing wrong".to_owned(),
                count => format!("{count} VIOLATIONS"),
            };
            let _ = writeln!(text, "{name:<30} {all:>8} {done:>8} {failed:>8} {unknown:>8}  {verdict}");
        }
        let mut shown = BTreeSet::new();
        for violation in self.violations().filter(|violation| shown.insert(&violation.key)) {
            let _ = writeln!(text, "\n{}: {}", violation.key, violation.why);
            let first = violation.ops.iter().map(|op| op.called).min().unwrap_or(0);
            let last = violation.ops.iter().map(|op| op.called).max().unwrap_or(0);
            let mut lines: Vec<_> = violation.ops.iter().map(|op| (op.called, op.to_string())).collect();
            let about = first.saturating_sub(AROUND)..last.saturating_add(AROUND);
            let faults = faults.iter().filter(|(at, _)| about.contains(at));
            lines.extend(faults.map(|(at, what)| (*at, format!("{}  {what}", super::millis(*at)))));
            lines.sort();
            for (_, line) in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

/// Operations that tell something: those that failed changed nothing, and reads that did not return
/// tell nothing.
fn publishing(ops: &[Op]) -> Vec<Op> {
    let is_look = |op: &Op| matches!(op.action, Action::Read | Action::Find | Action::Stat(_));
    let tells = |op: &&Op| match op.outcome {
        Outcome::Done(_) => true,
        Outcome::Failed(_) => false,
        Outcome::Unknown(_) => !is_look(op),
    };
    ops.iter().filter(tells).cloned().collect()
}

fn spans(ops: &[Op]) -> Vec<Span> {
    let span = |op: &Op| Span { called: op.called, returned: op.done().map(|_| op.returned) };
    ops.iter().map(span).collect()
}

/// A register's value after an operation that was carried out.
fn value(op: &Op) -> String {
    if op.action == Action::Remove { ABSENT.into() } else { op.id() }
}

/// Judges a register: no read is torn, and the operations are linearizable.
fn register(ops: Vec<Op>, initial: &str) -> Vec<Violation> {
    let torn = |op: &&Op| op.action == Action::Read && op.done() == Some(TORN);
    if let Some(op) = ops.iter().find(torn) {
        let why = "a read returned what nobody has written as a whole".into();
        return vec![Violation { key: op.key.clone(), why, ops: vec![op.clone()] }];
    }
    // A write whose outcome is unknown matters only if a read has found it.
    let looks = ops.iter().filter(|op| matches!(op.action, Action::Read | Action::Remove));
    let read: BTreeSet<_> = looks.filter_map(Op::done).collect();
    // Or if an operation may have removed it.
    let matters = |op: &Op| !op.is_unknown() || read.contains(value(op).as_str()) || read.contains(REMOVED);
    let ops: Vec<_> = ops.iter().filter(|op| matters(op)).cloned().collect();
    let fails = |ops: &[Op]| !is_register(ops, initial);
    if !fails(&ops) {
        return Vec::new();
    }
    let ops = smallest(&ops, fails, |rest, at| {
        let op = &rest[at];
        // An operation that shows that the value, or some value, was there.
        let shows = |other: &Op| match other.action {
            Action::Read => other.done() == Some(&value(op)),
            Action::Remove => matches!(other.done(), Some(found) if found == value(op) || found == REMOVED),
            _ => false,
        };
        let is_look = op.action == Action::Read || op.done() == Some(ABSENT);
        is_look || !rest.iter().enumerate().any(|(number, other)| number != at && shows(other))
    });
    let why = "no order of these operations explains what was read".into();
    vec![Violation { key: ops[0].key.clone(), why, ops }]
}

fn is_register(ops: &[Op], initial: &str) -> bool {
    let ids: Vec<_> = ops.iter().map(Op::id).collect();
    let by_id: BTreeMap<_, _> = ids.iter().enumerate().map(|(at, id)| (id.as_str(), at)).collect();
    let first = ops.len();
    // No operation leads to the state of a value that nobody wrote.
    let state_of = |value: &str| {
        if value == initial { first } else { by_id.get(value).copied().unwrap_or(usize::MAX) }
    };
    let reads: Vec<_> = ops.iter().map(|op| op.done().map(state_of)).collect();
    is_linearizable(&spans(ops), first, |&state, at| match (ops[at].action, reads[at]) {
        (Action::Read, Some(read)) => (read == state).then_some(state),
        // A read that had not returned.
        (Action::Read, None) => Some(state),
        // Nothing was there to be removed.
        (Action::Remove, _) if ops[at].done() == Some(ABSENT) => (state == first).then_some(state),
        (Action::Remove, _) => (ops[at].is_unknown() || state != first).then_some(first),
        _ => Some(at),
    })
}

/// Names are linearizable, and a name leads to all data that was closed before the name was given.
fn replaced(ops: &[Op]) -> Vec<Violation> {
    register(publishing(ops), ABSENT)
}

/// Contents are linearizable from the write's sync or close on. On its own host a write may be read
/// earlier, and one whose outcome is unknown at any time.
fn written(ops: &[Op]) -> Vec<Violation> {
    let ops = publishing(ops);
    let writes: BTreeMap<_, _> =
        ops.iter().filter(|op| op.action == Action::Write).map(|op| (op.id(), op)).collect();
    let is_early = |read: &Op| {
        let write = read.done().and_then(|value| writes.get(value));
        read.action == Action::Read
            && write.is_some_and(|write| {
                let is_stored = write.done().is_some() && write.returned <= read.called;
                write.host() == read.host() && write.called <= read.returned && !is_stored
            })
    };
    register(ops.iter().filter(|op| !is_early(op)).cloned().collect(), FIRST)
}

/// True if another client may have moved the file to the same place meanwhile. The kernel looks up
/// both names, one after the other, and finds the same file under both. Then `rename` succeeds and
/// does nothing.
fn may_do_nothing(ops: &[Op], at: usize) -> bool {
    let op = &ops[at];
    let goes = |op: &Op| match op.action {
        Action::Move { to, .. } if op.done() != Some(ABSENT) => Some(to),
        _ => None,
    };
    let meets =
        |other: &Op| other.called < op.returned && op.called < other.returned && goes(other) == goes(op);
    ops.iter().enumerate().any(|(number, other)| number != at && meets(other))
}

/// A directory exists or not. A client that makes it is refused if it exists, and one that removes
/// it if it does not.
fn directories(ops: &[Op]) -> Vec<Violation> {
    let ops = publishing(ops);
    let fails = |ops: &[Op]| {
        !is_linearizable(&spans(ops), false, |&is_there, at| match (ops[at].action, ops[at].done()) {
            (Action::Claim(_), None) => Some(true),
            (Action::Remove, None) => Some(false),
            (Action::Claim(_), Some(WON)) => (!is_there).then_some(true),
            (Action::Remove, Some(REMOVED)) => is_there.then_some(false),
            (_, Some(ABSENT)) => (!is_there).then_some(false),
            (_, Some(EXISTS | "dir")) => is_there.then_some(true),
            (_, Some(_)) => None,
            (_, None) => Some(is_there),
        })
    };
    if !fails(&ops) {
        return Vec::new();
    }
    let ops = smallest(&ops, fails, |rest, at| {
        rest[at].action == Action::Find || matches!(rest[at].done(), Some(ABSENT | EXISTS))
    });
    let why = "no order of these operations explains when the directory was there".into();
    vec![Violation { key: ops[0].key.clone(), why, ops }]
}

/// A moved file is in one directory at any time, and begins in the first.
fn moved(ops: &[Op]) -> Vec<Violation> {
    let ops = publishing(ops);
    let fails = |ops: &[Op]| {
        !is_linearizable(&spans(ops), 0u8, |&state, at| match (ops[at].action, ops[at].done()) {
            (Action::Move { from, to }, Some(MOVED) | None) if state == from => Some(to),
            (Action::Move { to, .. }, Some(MOVED)) => {
                (state == to && may_do_nothing(ops, at)).then_some(state)
            }
            (Action::Move { .. }, None) => None,
            (Action::Move { from, .. }, Some(_)) => (state != from).then_some(state),
            (Action::Stat(dir), Some(found)) => ((found == ABSENT) == (state != dir)).then_some(state),
            _ => Some(state),
        })
    };
    if !fails(&ops) {
        return Vec::new();
    }
    let ops = smallest(&ops, fails, |rest, at| {
        let op = &rest[at];
        matches!(op.action, Action::Stat(_)) || op.done() == Some(ABSENT)
    });
    let why = "no order of these operations explains where the file was found".into();
    vec![Violation { key: ops[0].key.clone(), why, ops }]
}
