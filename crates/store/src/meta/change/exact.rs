//! Changes that say what names and inodes *are*, whatever they were, from clients that own the tree
//! and know its state.
//!
//! Only the state at the end of the commit counts, so the changes are applied in this order,
//! whatever their own:
//!
//! 1. Missing inodes are made, as if each had one name.
//! 2. Names are set. Each inode's gains and losses of names are counted in memory.
//! 3. Rows of inodes with other counts are corrected, and so are the parents of directories. Inodes
//!    without a name are removed.
//! 4. Every moved directory must be below the root, and everything with entries must be a
//!    directory.
//! 5. Existing inodes get their attributes and contents. Their policies are now found through
//!    directories in their final places.
//!
//! A new file with its name costs two insertions, as a put does.

use std::collections::{HashMap, HashSet};

use outrigger_format::Domain;

use super::commit::{check_name, told};
use super::edit::{Arrival, Editor};
use super::row::is_directory;
use super::rows::Rows;
use crate::error::ErrorKind;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::{Change, ROOT_INODE};

const ROOT: i64 = ROOT_INODE as i64;

/// The error for mixed changes: those of one kind depend on their order, the others must not.
pub(super) fn mixed() -> Fault {
    refuse(ErrorKind::Invalid, "a commit that says what names and inodes are cannot have other changes, too")
}

/// True for a change that says what something is.
pub(super) fn is_exact(change: &Change) -> bool {
    matches!(change, Change::Name { .. } | Change::Node { .. } | Change::Orphan { .. })
}

/// Applies the changes of a commit.
pub(super) fn apply<R: Rows>(editor: &mut Editor<R>, changes: &[Change]) -> Outcome<()> {
    let mut exact = Exact { editor, touched: HashMap::new(), parents: HashMap::new(), there: Vec::new() };
    for change in changes {
        match change {
            Change::Node { .. } => exact.make(change)?,
            Change::Orphan { holder, root, .. } => exact.editor.rows.hold_only(holder, root)?,
            Change::Name { .. } => {}
            _ => return Err(mixed()),
        }
    }
    for change in changes {
        if let Change::Name { parent, name, inode } = change {
            exact.name(*parent, name, *inode)?;
        }
    }
    let hung = exact.settle()?;
    exact.check_parents()?;
    exact.check_reachable(hung)?;
    exact.rewrite()
}

/// An inode whose names may change.
#[derive(Default)]
struct Touched {
    /// This commit made it: its row counts one name, whatever it has gained and lost.
    is_new: bool,
    is_directory: bool,
    /// Names gained, less those lost.
    names: i64,
    /// For a directory: the parents in which it has gained a name and not lost it again.
    parents: Vec<i64>,
}

/// An existing inode, and its new state.
struct There<T> {
    number: i64,
    /// The directory whose policy says which earlier contents are kept, if any.
    keeper: Option<i64>,
    new: Arrival<T>,
}

struct Exact<'e, R: Rows> {
    editor: &'e mut Editor<R>,
    touched: HashMap<i64, Touched>,
    /// Directories that got entries, and the inodes that these stand for.
    parents: HashMap<i64, Vec<i64>>,
    there: Vec<There<R::Traits>>,
}

impl<R: Rows> Exact<'_, R> {
    /// Makes an inode if it is missing. An existing one waits until all directories are in place.
    fn make(&mut self, change: &Change) -> Outcome<()> {
        let Change::Node { inode, parent, attributes, root, keep } = change else { return Err(mixed()) };
        let (number, parent) = (self.editor.resolve(*inode)?, *parent as i64);
        let new = self.editor.arrival(attributes, root, 0).map_err(|fault| match fault {
            Fault::Store(error) => error.context(format!("inode {inode}")).into(),
            fault => fault,
        })?;
        if self.editor.make(number, parent, &new)? {
            let is_directory = is_directory(new.mode);
            self.touched.insert(number, Touched { is_new: true, is_directory, ..Touched::default() });
        } else {
            self.there.push(There { number, keeper: keep.then_some(parent), new });
        }
        Ok(())
    }

    fn name(&mut self, parent: u64, name: &[u8], inode: Option<u64>) -> Outcome<()> {
        check_name(name)?;
        let parent = self.editor.resolve(parent)?;
        let inode = inode.map(|inode| self.editor.resolve(inode)).transpose()?;
        if let Some(number) = inode {
            // First as if the name were new, which saves a statement if it is.
            if self.editor.enter(parent, name, number)? {
                self.editor.done.created += 1;
                return self.win(parent, name, number);
            }
        }
        let Some((old, since)) = self.editor.rows.name(parent, name)? else { return Ok(()) };
        if inode == Some(old) {
            return Ok(());
        }
        self.editor.drop_name(parent, name, since)?;
        self.lose(parent, old)?;
        let Some(number) = inode else {
            self.editor.done.removed += 1;
            return Ok(());
        };
        self.editor.enter(parent, name, number)?;
        self.editor.done.changed += 1;
        self.win(parent, name, number)
    }

    fn win(&mut self, parent: i64, name: &[u8], number: i64) -> Outcome<()> {
        if number == ROOT {
            return Err(told(
                self.editor,
                ErrorKind::Invalid,
                parent,
                name,
                "the root directory has no name",
            ));
        }
        self.parents.entry(parent).or_default().push(number);
        let touched = self.touched(number)?;
        touched.names += 1;
        if touched.is_directory {
            touched.parents.push(parent);
        }
        Ok(())
    }

    fn lose(&mut self, parent: i64, number: i64) -> Outcome<()> {
        let touched = self.touched(number)?;
        touched.names -= 1;
        // A name from before the commit is not in the list, but its loss counts all the same.
        if let Some(at) = touched.parents.iter().position(|&won| won == parent) {
            touched.parents.swap_remove(at);
        }
        Ok(())
    }

    fn touched(&mut self, number: i64) -> Outcome<&mut Touched> {
        if !self.touched.contains_key(&number) {
            let is_directory = self.editor.parent_of(number)?.is_some();
            self.touched.insert(number, Touched { is_directory, ..Touched::default() });
        }
        Ok(self.touched.entry(number).or_default())
    }

    /// Corrects the name counts in inodes' rows. Returns the directories that have moved.
    fn settle(&mut self) -> Outcome<Vec<i64>> {
        let is_right = |touched: &Touched| touched.is_new && !touched.is_directory && touched.names == 1;
        let mut touched: Vec<(i64, Touched)> =
            std::mem::take(&mut self.touched).into_iter().filter(|(_, touched)| !is_right(touched)).collect();
        // The order of the rows is quicker, and it makes the same inode fail every time.
        touched.sort_unstable_by_key(|&(number, _)| number);
        let (mut anonymous, mut hung) = (Vec::new(), Vec::new());
        for (number, touched) in touched {
            let Some(old) = self.editor.stored(number)? else {
                if touched.names > 0 {
                    let what = format!("a name stands for inode {number}, which does not exist");
                    return Err(refuse(ErrorKind::Invalid, what));
                }
                continue;
            };
            let before = if touched.is_new { 0 } else { old.links };
            let names = before + touched.names;
            if names <= 0 {
                anonymous.push(old);
                continue;
            }
            if names != old.links {
                if touched.is_directory {
                    let what = format!("directory {number} has {names} names");
                    return Err(refuse(ErrorKind::Invalid, what));
                }
                self.editor.relink(&old, names - old.links)?;
            }
            if let Some(&parent) = touched.parents.first() {
                if self.editor.parent_of(number)? != Some(parent) {
                    self.editor.rows.move_directory(number, parent)?;
                    self.editor.forget_policies();
                }
                hung.push(number);
            }
        }
        for old in anonymous {
            if old.is_directory() && self.editor.rows.has_names(old.number)? {
                let what = format!("directory {} has entries, and no name", old.number);
                return Err(refuse(ErrorKind::Invalid, what));
            }
            self.editor.drop_inode(&old)?;
        }
        Ok(hung)
    }

    /// Fails unless everything that got entries, and still has some, is a directory, and may have them.
    fn check_parents(&mut self) -> Outcome<()> {
        let mut parents: Vec<(i64, Vec<i64>)> = std::mem::take(&mut self.parents).into_iter().collect();
        parents.sort_unstable();
        for (parent, inodes) in parents {
            if self.editor.domain_of(parent)? != Domain::COMMON {
                for number in inodes {
                    let Some(inode) = self.editor.rows.glance(number)? else { continue };
                    self.editor.require_domain(parent, b"...", &inode.content.traits)?;
                }
            }
            if self.editor.parent_of(parent)?.is_none() && self.editor.rows.has_names(parent)? {
                return Err(refuse(ErrorKind::NotFound, format!("directory {parent} does not exist")));
            }
        }
        Ok(())
    }

    /// Fails unless the root is reached from each of these directories. A cycle would have one of
    /// them in it.
    fn check_reachable(&mut self, hung: Vec<i64>) -> Outcome<()> {
        let mut reached = HashSet::from([ROOT]);
        for directory in hung {
            let (mut path, mut at) = (HashSet::new(), directory);
            while !reached.contains(&at) {
                if !path.insert(at) {
                    let what = format!("directory {directory} would lie in itself");
                    return Err(refuse(ErrorKind::Invalid, what));
                }
                let parent = self.editor.parent_of(at)?;
                at = parent
                    .ok_or_else(|| refuse(ErrorKind::Damaged, format!("directory {at} hangs nowhere")))?;
            }
            reached.extend(path);
        }
        Ok(())
    }

    /// Sets attributes and contents of the inodes that existed before and still do.
    fn rewrite(self) -> Outcome<()> {
        for There { number, keeper, new } in self.there {
            let Some(old) = self.editor.stored(number)? else { continue };
            if old.is_directory() != is_directory(new.mode) {
                let what = format!("inode {number} cannot become a directory, nor cease to be one");
                return Err(refuse(ErrorKind::Invalid, what));
            }
            self.editor.done.changed += u64::from(self.editor.rewrite(&old, &new, 0, keeper)?);
        }
        Ok(())
    }
}
