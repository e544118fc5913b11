//! The states a disk may be in after a crash, made from a [`Trace`].
//!
//! There is a crash point after each number of steps. There, changes that no sync has made durable
//! are *pending*. A state is one fate for each: lost, kept, or, for a write, torn. [`Pending`]
//! tracks the pending changes, [`Choices`] counts and picks fates, and [`CrashStates`] builds the
//! disk's contents.
//!
//! The budget is shared out evenly. Every crash point may have as many states as fit, and those
//! with few possibilities leave theirs to the others. States share contents (`Arc`), and only
//! pending ones are copied.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::checksum;
use outrigger_workload::Rng;

use super::choices::{Choices, Fate, Pending, Tear, share};
use super::model::{Effect, Node, Step, Trace, change, flatten, overwrite, rename};
use super::{Exploration, Mode};

/// Random draws for each wanted state, as many draws find a state that is known already.
const DRAWS: u64 = 4;

/// The possible contents of a disk after a crash.
pub struct CrashState {
    files: BTreeMap<PathBuf, Option<Arc<Vec<u8>>>>,
    at: usize,
    label: String,
    acknowledged: Vec<u8>,
}

impl CrashState {
    /// How many steps had been done when power failed.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Its crash point, and the fate of the changes that were not durable.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// All that may have been seen on the command's standard output before.
    pub fn acknowledged(&self) -> &[u8] {
        &self.acknowledged
    }

    /// The same, whole lines only.
    pub fn acknowledged_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.acknowledged);
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Content of the file at `path`, relative to the recorded directory.
    pub fn content(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        self.files.get(path.as_ref())?.as_ref().map(|content| content.as_slice())
    }

    /// Writes it below the directory `into`, which must be empty.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn materialise(&self, into: &Path) -> io::Result<()> {
        // Parents sort before their entries.
        self.files.iter().filter(|(path, _)| !path.as_os_str().is_empty()).try_for_each(|(path, content)| {
            match content {
                None => fs::create_dir(into.join(path)),
                Some(content) => fs::write(into.join(path), content.as_slice()),
            }
        })
    }
}

impl Trace {
    /// How many possibilities there are after each number of steps (`u64::MAX`: too many to count);
    /// of a write that is torn, those that are tried one by one.
    pub fn possibilities(&self, mode: Mode) -> Vec<u64> {
        let mut pending = Pending { mode, steps: Vec::new() };
        let mut counts = vec![1];
        for at in 0..self.steps.len() {
            pending.advance(&self.steps, at);
            counts.push(Choices::new(&pending, &self.steps).count());
        }
        counts
    }

    /// States after a crash, at most `exploration.budget`, all different.
    pub fn crash_states(&self, exploration: Exploration) -> CrashStates<'_> {
        let mode = exploration.mode;
        let counts = self.possibilities(mode);
        let mut rng = Rng::new(exploration.seed);
        let limits = share(&counts, exploration.budget as u64, &mut rng);
        let made = self.made.iter().map(|directory| match directory {
            true => Node::Directory(BTreeMap::new()),
            false => Node::File(Arc::default()),
        });
        CrashStates {
            trace: self,
            wanted: limits[0],
            limits,
            rng,
            at: 0,
            pending: Pending { mode, steps: Vec::new() },
            durable: self.base.iter().cloned().chain(made).collect(),
            named: Vec::new(),
            queue: VecDeque::from([Vec::new()]),
            draws: 0,
            seen: HashSet::new(),
        }
    }
}

/// Iterates over crash states, in the order of their crash points.
pub struct CrashStates<'a> {
    trace: &'a Trace,
    limits: Vec<u64>,
    rng: Rng,
    at: usize,
    pending: Pending,
    /// Files with their durable content; directories as at the beginning.
    durable: Vec<Node>,
    /// Changes of names so far.
    named: Vec<usize>,
    /// Fates to be tried at this crash point.
    queue: VecDeque<Vec<Fate>>,
    /// New states that may still be found at this crash point, and draws by chance that are left to
    /// find them.
    wanted: u64,
    draws: u64,
    seen: HashSet<u64>,
}

impl CrashStates<'_> {
    fn advance(&mut self) {
        let steps = &self.trace.steps;
        for done in self.pending.advance(steps, self.at) {
            if let Some(inode) = steps[done].effect.content_of()
                && let Node::File(content) = &mut self.durable[inode]
            {
                change(Arc::make_mut(content), &steps[done].effect);
            }
        }
        if steps[self.at].effect.name_of().is_some() {
            self.named.push(self.at);
        }
        self.at += 1;
        let choices = Choices::new(&self.pending, steps);
        let limit = self.limits[self.at];
        (self.wanted, self.draws) = (limit, 0);
        self.queue = if choices.count() <= limit {
            (0..choices.count()).map(|index| choices.all(index)).collect()
        } else {
            self.draws = limit * DRAWS;
            choices.sample(limit as usize, &mut self.rng).into()
        };
    }

    fn draw(&mut self) -> Option<Vec<Fate>> {
        self.draws = self.draws.checked_sub(1)?;
        Some(Choices::new(&self.pending, &self.trace.steps).random(&mut self.rng))
    }

    fn state(&self, fates: &[Fate]) -> CrashState {
        let steps = &self.trace.steps;
        let pending = || self.pending.steps.iter().map(|&step| (step, &steps[step])).zip(fates);
        let mut nodes = self.durable.clone();
        let mut lost: HashSet<usize> = HashSet::new();
        for ((at, step), fate) in pending() {
            match (step.effect.content_of(), fate) {
                (_, Fate::Lost) => drop(lost.insert(at)),
                (Some(inode), fate) => {
                    if let Node::File(content) = &mut nodes[inode] {
                        survive(Arc::make_mut(content), &step.effect, fate);
                    }
                }
                (None, _) => {}
            }
        }
        for at in self.named.iter().filter(|at| !lost.contains(at)) {
            rename(&mut nodes, &steps[*at].effect);
        }
        let seen = self.trace.acknowledgements.iter().filter(|ack| ack.after <= self.at);
        let acknowledged = seen.flat_map(|ack| ack.text.iter().copied()).collect();
        let label = label(self.at, steps, pending().map(|((_, step), fate)| (step, fate)));
        CrashState { files: flatten(&nodes), at: self.at, label, acknowledged }
    }
}

impl Iterator for CrashStates<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            while self.wanted > 0
                && let Some(fates) = self.queue.pop_front().or_else(|| self.draw())
            {
                let state = self.state(&fates);
                if self.seen.insert(identity(&state)) {
                    self.wanted -= 1;
                    return Some(state);
                }
            }
            if self.at == self.trace.steps.len() {
                return None;
            }
            self.advance();
        }
    }
}

/// Applies the surviving part of a change of content.
fn survive(content: &mut Vec<u8>, effect: &Effect, fate: &Fate) {
    match (effect, fate) {
        (Effect::Write { offset, data, .. }, Fate::Torn(tear)) => {
            for &(start, end) in &tear.kept {
                overwrite(content, offset + start as u64, &data[start..end]);
            }
            let end = *offset as usize + data.len();
            if tear.extends && content.len() < end {
                content.resize(end, 0);
            }
        }
        _ => change(content, effect),
    }
}

/// Equal for states with the same contents and the same acknowledgements.
fn identity(state: &CrashState) -> u64 {
    let number = |number: usize| (number as u64).to_le_bytes();
    state.files.iter().fold(state.acknowledged.len() as u64, |hash, (path, content)| {
        let path = path.as_os_str().as_encoded_bytes();
        let (kind, content) = match content {
            None => (0, &[][..]),
            Some(content) => (1, content.as_slice()),
        };
        checksum(&[&hash.to_le_bytes(), &number(path.len()), path, &number(kind), content])
    })
}

fn label<'a>(at: usize, steps: &[Step], pending: impl Iterator<Item = (&'a Step, &'a Fate)>) -> String {
    let mut text = match at.checked_sub(1) {
        None => "before the first step".to_owned(),
        Some(last) => format!("after step {at} of {} ({})", steps.len(), steps[last].label),
    };
    let mut separator = "; not durable: ";
    for (shown, (step, fate)) in pending.enumerate() {
        if shown == 24 {
            text.push_str(", …");
            break;
        }
        text.push_str(separator);
        separator = ", ";
        text.push_str(&step.label);
        match fate {
            Fate::Lost => text.push_str(" lost"),
            Fate::Kept => text.push_str(" kept"),
            Fate::Torn(tear) => text.push_str(&format!(" torn, with bytes {:?}", tear.kept)),
        }
        if matches!(fate, Fate::Torn(Tear { extends: true, .. })) {
            text.push_str(" and its length");
        }
    }
    text
}
