//! Path prefetch: the directories of a path are asked for in one round trip.
//!
//! The kernel walks a path component by component and waits for each answer. As it may keep no
//! name, each answer is a round trip to the database. But a program that opens one file in a
//! directory mostly opens another one there next. So the mount remembers of each directory which
//! subdirectory was last gone *through*. When a thread takes the first step on such a way, the same
//! statement asks for the directories that probably follow. The mount answers the thread's next
//! steps from these at once.
//!
//! **No answer is older than the first step of its walk.** A prefetched answer is used only
//!
//! - for the thread that took the first step, for the very next steps, in their order, and not once
//!   it has opened a directory;
//! - for [`COUNTS_FOR`] after it was asked for, which was after the walk had begun;
//! - while this mount has changed nothing since;
//! - for directories that exist: for missing names and for everything else the database is asked in
//!   its turn.
//!
//! So a walk sees the directories of one instant after it began, as it might without prefetch.
//! There is one exception: a program that goes on from a directory by a handle, or by its working
//! directory, within that time and along the path it took last. It may see the directories below as
//! they were when it came to that directory.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_store::meta::Inode;

use super::names::is_directory;

/// How long a prefetched directory may be used.
const COUNTS_FOR: Duration = Duration::from_millis(2);
/// Prefetched directories of one path at most.
const AHEAD_MAX: usize = 16;
/// Threads at most whose ways are remembered.
const THREADS_MAX: usize = 1024;

/// A name in a directory.
pub(super) type Step = (u64, Vec<u8>);

/// A thread's way.
struct Way {
    /// The directory that it is in, after the step that led there.
    last: (Step, u64),
    /// When the steps ahead were asked for, and this mount's count of changes then.
    asked: (Instant, u64),
    /// The answers to these steps.
    ahead: VecDeque<(Step, Inode)>,
}

#[derive(Default)]
struct Remembered {
    /// For each directory, the subdirectory that was last gone through.
    through: HashMap<u64, (Vec<u8>, u64)>,
    /// By threads.
    ways: HashMap<u32, Way>,
}

/// How to answer a step.
pub(super) enum Taken {
    /// From this prefetched row.
    Known(Inode),
    /// By asking the database, together with the steps that probably follow.
    Ask(Vec<Step>),
}

/// See the module.
#[derive(Default)]
pub(super) struct PathPrefetch(Mutex<Remembered>);

impl PathPrefetch {
    /// A thread takes a step. `changes` counts this mount's changes.
    pub fn take(&self, thread: u32, parent: u64, name: &[u8], changes: u64) -> Taken {
        let mut remembered = self.0.lock().expect("no panic while held");
        let Remembered { through, ways } = &mut *remembered;
        if let Some(Way { last: ((from, by), into), asked, mut ahead }) = ways.remove(&thread) {
            if into == parent {
                through.insert(from, (by, into));
            }
            if asked.1 == changes
                && asked.0.elapsed() < COUNTS_FOR
                && let Some((step, row)) = ahead.pop_front()
                && (step.0, step.1.as_slice()) == (parent, name)
            {
                ways.insert(thread, Way { last: (step, row.number), asked, ahead });
                return Taken::Known(row);
            }
        }
        let mut ahead = Vec::new();
        let mut next = through.get(&parent).filter(|(through, _)| through == name).map(|(_, into)| *into);
        while let Some((parent, (name, into))) = next.and_then(|parent| Some((parent, through.get(&parent)?)))
            && ahead.len() < AHEAD_MAX
        {
            ahead.push((parent, name.clone()));
            next = Some(*into);
        }
        Taken::Ask(ahead)
    }

    /// Records where a step led, and the steps ahead as far as they were asked for, with the time
    /// and the count of changes at which they were asked for.
    pub fn took(
        &self,
        thread: u32,
        (parent, name): (u64, &[u8]),
        row: &Inode,
        ahead: impl Iterator<Item = (Step, Inode)>,
        asked: (Instant, u64),
    ) {
        if !is_directory(row) {
            return;
        }
        let mut remembered = self.0.lock().expect("no panic while held");
        if remembered.ways.len() >= THREADS_MAX {
            remembered.ways.clear();
        }
        let last = ((parent, name.to_vec()), row.number);
        remembered.ways.insert(thread, Way { last, asked, ahead: connected(row.number, ahead) });
    }

    /// The thread does something other than the next step.
    pub fn leave(&self, thread: u32) {
        self.0.lock().expect("no panic while held").ways.remove(&thread);
    }

    /// The kernel does not know a directory any more.
    pub fn forget(&self, number: u64) {
        self.0.lock().expect("no panic while held").through.remove(&number);
    }
}

/// The steps that lead on from one directory to the next.
fn connected(mut from: u64, ahead: impl Iterator<Item = (Step, Inode)>) -> VecDeque<(Step, Inode)> {
    let leads_on = |((parent, _), row): &(Step, Inode)| {
        let leads_on = *parent == from && is_directory(row);
        from = row.number;
        leads_on
    };
    ahead.take_while(leads_on).collect()
}

#[cfg(test)]
mod tests {
    use outrigger_format::catalogue::FileKind;

    use super::*;
    use crate::shared::new_row as row;

    fn step(parent: u64, name: &str) -> Step {
        (parent, name.as_bytes().to_vec())
    }

    /// A tree of directories 1/2/3/4, whose names are their numbers.
    fn found(step: &Step) -> Inode {
        row(std::str::from_utf8(&step.1).unwrap().parse().unwrap(), FileKind::Directory)
    }

    /// Takes steps 2, 3, 4; for each, how many others were asked for with it, or none where it was
    /// known.
    fn walk(paths: &PathPrefetch, thread: u32, changes: u64) -> Vec<Option<usize>> {
        let steps = [step(1, "2"), step(2, "3"), step(3, "4")];
        let take = |step: Step| match paths.take(thread, step.0, &step.1, changes) {
            Taken::Known(row) => {
                assert_eq!(row, found(&step));
                None
            }
            Taken::Ask(ahead) => {
                let count = ahead.len();
                let ahead = ahead.into_iter().map(|step| (step.clone(), found(&step)));
                paths.took(thread, (step.0, &step.1), &found(&step), ahead, (Instant::now(), changes));
                Some(count)
            }
        };
        steps.map(take).to_vec()
    }

    fn went_once() -> PathPrefetch {
        let paths = PathPrefetch::default();
        assert_eq!(walk(&paths, 7, 0), [Some(0), Some(0), Some(0)]);
        // A file there is not gone through.
        assert!(matches!(paths.take(7, 4, b"file", 0), Taken::Ask(ahead) if ahead.is_empty()));
        paths
    }

    #[test]
    fn what_was_gone_through_once_is_asked_for_with_the_first_step() {
        let paths = went_once();
        // Another thread finds it, too.
        assert_eq!(walk(&paths, 8, 0), [Some(2), None, None]);
        assert!(matches!(paths.take(8, 4, b"other", 0), Taken::Ask(ahead) if ahead.is_empty()));
        // After the kernel has forgotten a directory, its next step is unknown until a thread goes
        // through it again.
        paths.forget(2);
        assert_eq!(walk(&paths, 8, 0), [Some(0), Some(0), Some(0)]);
        assert_eq!(walk(&paths, 8, 0), [Some(2), None, None]);
    }

    #[test]
    fn who_goes_another_way_or_late_is_told_nothing_that_was_asked_for_ahead() {
        let paths = went_once();
        let begin = |asked, changes| {
            paths.leave(7);
            let Taken::Ask(ahead) = paths.take(7, 1, b"2", changes) else { panic!("known") };
            let ahead = ahead.into_iter().map(|step| (step.clone(), found(&step)));
            paths.took(7, (1, b"2"), &row(2, FileKind::Directory), ahead, (asked, changes));
        };
        let is_known =
            |thread, name: &[u8], changes| matches!(paths.take(thread, 2, name, changes), Taken::Known(_));
        let now = Instant::now;
        begin(now(), 0);
        assert!(!is_known(8, b"3", 0), "another thread");
        begin(now(), 0);
        assert!(!is_known(7, b"other", 0), "another name");
        assert!(!is_known(7, b"3", 0), "not the next step");
        begin(now(), 0);
        assert!(!is_known(7, b"3", 1), "this mount has changed something");
        begin(now().checked_sub(COUNTS_FOR).unwrap(), 0);
        assert!(!is_known(7, b"3", 0), "too late");
        begin(now(), 0);
        paths.leave(7);
        assert!(!is_known(7, b"3", 0), "it has opened a directory");
        begin(now(), 0);
        assert!(is_known(7, b"3", 0));
    }

    #[test]
    fn what_does_not_lead_on_is_left_out() {
        let directory = |parent, name, number| (step(parent, name), row(number, FileKind::Directory));
        let ahead = vec![directory(2, "3", 3), directory(3, "4", 9), directory(4, "5", 5)];
        assert_eq!(connected(2, ahead.into_iter()).len(), 2, "another directory is called 4 by now");
        let ahead = vec![(step(2, "3"), row(3, FileKind::File)), directory(3, "4", 4)];
        assert_eq!(connected(2, ahead.into_iter()).len(), 0);
    }
}
