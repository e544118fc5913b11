//! Finds names in the present tree and in snapshots.
//!
//! Snapshots share most of their tree. So each directory is read once with its whole history, and
//! not once for each snapshot: the work grows with the changes, not with the number of snapshots.

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{Era, Inode, Meta};
use crate::tree::listing::Ancestors;

/// The present, among the epochs of snapshots.
pub const NOW: u64 = u64::MAX - 1;

/// Told of each state of each entry: its path, the state, and in which of the moments it is so.
pub type Visit<'v, E> = dyn FnMut(&[u8], &Inode, &[usize]) -> Result<(), E> + 'v;

/// A name in a directory: its states at the moments, and the directories that it stood for.
struct Name {
    name: Vec<u8>,
    states: Vec<(Inode, Vec<usize>)>,
    directories: Vec<(u64, Vec<usize>)>,
}

/// A directory that is being gone through.
struct Level {
    directory: u64,
    prefix: usize,
    names: std::vec::IntoIter<Name>,
    /// Directories of the last name that are not gone through yet.
    below: Vec<(u64, Vec<usize>)>,
}

/// Calls `visit` with each state of each entry below `directory` at the `moments`, which are epochs
/// in rising order. Entries come in bytewise order of names, the states of one in the order of
/// time.
///
/// # Errors
/// Those of `visit` and of the database; `Damaged` for a directory that lies below itself.
pub fn find<E: From<Error>>(
    meta: &dyn Meta,
    directory: u64,
    moments: &[u64],
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let open = |directory: u64, alive: &[usize], prefix: usize| -> Result<Level, Error> {
        let names = names(meta.history(directory)?, moments, alive).into_iter();
        Ok(Level { directory, prefix, names, below: Vec::new() })
    };
    let mut path = Vec::new();
    let mut above = Ancestors::new(directory);
    let mut levels = vec![open(directory, &(0..moments.len()).collect::<Vec<_>>(), 0)?];
    while let Some(level) = levels.last_mut() {
        if let Some((directory, alive)) = level.below.pop() {
            above.enter(directory)?;
            let prefix = path.len() + 1;
            path.push(b'/');
            levels.push(open(directory, &alive, prefix)?);
            continue;
        }
        path.truncate(level.prefix);
        let Some(Name { name, states, mut directories }) = level.names.next() else {
            above.leave(level.directory);
            levels.pop();
            // Back to the name of the directory itself: another one may have had it.
            path.truncate(path.len().saturating_sub(1));
            continue;
        };
        path.extend_from_slice(&name);
        for (inode, alive) in &states {
            visit(&path, inode, alive)?;
        }
        directories.reverse();
        level.below = directories;
    }
    Ok(())
}

/// The names of a history that some of the moments `alive` have.
fn names(history: Vec<Era>, moments: &[u64], alive: &[usize]) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for Era { entry, from, until } in history {
        let at: Vec<usize> =
            alive.iter().copied().filter(|&at| (from..until).contains(&moments[at])).collect();
        if at.is_empty() {
            continue;
        }
        if names.last().is_none_or(|last| last.name != entry.name) {
            names.push(Name { name: entry.name, states: Vec::new(), directories: Vec::new() });
        }
        let last = names.last_mut().expect("just pushed");
        let inode = entry.inode;
        if inode.attributes.kind == FileKind::Directory {
            match last.directories.iter_mut().find(|(number, _)| *number == inode.number) {
                Some((_, all)) => all.extend(&at),
                None => last.directories.push((inode.number, at.clone())),
            }
        }
        match last.states.last_mut().filter(|(before, _)| is_same(before, &inode)) {
            Some((_, all)) => all.extend(at),
            None => last.states.push((inode, at)),
        }
    }
    names
}

/// Equal as far as a user's search goes: a directory's times change with its entries.
fn is_same(a: &Inode, b: &Inode) -> bool {
    let is_directory = a.attributes.kind == FileKind::Directory;
    a.number == b.number && (is_directory || (a.attributes == b.attributes && a.root == b.root))
}
