//! Every legal state of a directory after a power loss, from one recorded run of a real program.
//!
//! [`record`] runs a command under `strace`. It records, in order, each change that the command and
//! its children make below a directory: files created, written, resized, renamed, removed and
//! synced, with all their data. That needs no instrumentation and misses nothing: SQLite's files,
//! the packs and the index are recorded alike, by the calls that the kernel really got. The
//! replayed result is compared with the real directory, so a change of any other kind fails the
//! recording. The command's output is recorded as well: a workload prints a line on its standard
//! output to say "this is acknowledged".
//!
//! [`Trace::crash_states`] then enumerates what a disk may hold if power fails between any two
//! steps. Synced data is there. Anything else may be there or not:
//!
//! | pending change | [`Mode::Strict`] | [`Mode::Ordered`] |
//! | --- | --- | --- |
//! | write | kept, lost, or torn at 512 or 4096 bytes; its length kept and its data zero | the same, but a length never comes without data |
//! | change of length | kept or lost | in order with the names |
//! | name created, renamed, removed | each kept or lost, a rename as a whole; names of one file in order | in order over all directories, as by a journal |
//! | what makes a name durable | a sync of its directory | that, or fsync (not fdatasync) of anything later |
//!
//! `Strict` promises what POSIX promises; a program that passes it depends on no file system's
//! kindness. Neither mode knows ext4's special care for files replaced by renaming. A rename that
//! was synced in either of its directories is durable in both.
//!
//! If all possibilities fit the budget, all are tried. Otherwise a seeded sample is. It has, in
//! this order: nothing and everything; some single changes kept or lost alone, and some prefixes;
//! then random picks. States with the same content and the same acknowledgements are tried once.
//!
//! Not recorded: SQLite's `-shm` files, which are mapped, not written, and made anew after a crash.
//! Refused: writable shared mappings of other files, `io_uring`, in-kernel copies, symbolic links
//! and `O_TMPFILE`.

mod calls;
mod choices;
mod model;
mod recorder;
mod recording;
mod states;
mod strace;

use std::path::Path;

pub use choices::Mode;
pub use model::{Acknowledgement, Trace};
pub use recorder::{record, unavailable};
pub use recording::Recording;
pub use states::{CrashState, CrashStates};

/// Which crash states to try.
#[derive(Clone, Copy, Debug)]
pub struct Exploration {
    /// The rules for what a crash may do.
    pub mode: Mode,
    /// States to try at most.
    pub budget: usize,
    /// Seed of the sample, if the budget does not suffice for all states.
    pub seed: u64,
}

impl Trace {
    /// Makes each state in a new directory, in shared memory where there is some, and hands it to
    /// `check` with the directory. Returns how many there were.
    ///
    /// # Panics
    /// When `check` finds something wrong: with its message, the state and the seed. When the
    /// directory cannot be made.
    pub fn for_each_crash(
        &self,
        exploration: Exploration,
        mut check: impl FnMut(&Path, &CrashState) -> Result<(), String>,
    ) -> usize {
        let shared_memory = Path::new("/dev/shm");
        let parent = if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
        let mut count = 0;
        for state in self.crash_states(exploration) {
            let dir = tempfile::tempdir_in(&parent).expect("a temporary directory can be made");
            state.materialise(dir.path()).expect("a crash state can be written to a temporary directory");
            if let Err(wrong) = check(dir.path(), &state) {
                panic!("{wrong}\n  in state {count}: {}\n  explored with {exploration:?}", state.label());
            }
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests;
