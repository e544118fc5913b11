//! In tiny runs: checks after the clock has stopped that written data can be read again. The speed
//! of a write that loses data would mean nothing.

use std::path::Path;

use outrigger_store::Store;
use outrigger_store::local::get;
use outrigger_store::meta::At;
use outrigger_store::tree::{StorePath, require};
use outrigger_store::write::Progress;
use outrigger_workload::{CompareOptions, compare_trees_with};

use crate::lab::{Failed, Lab, Scale, check};

/// In tiny runs, restores what was put under `name`, and compares it with its `source`. In others
/// does nothing.
///
/// # Errors
/// [`Failed::Wrong`] with the first path that differs; those of the store.
pub fn restored(lab: &Lab, store: &Store, source: &Path, name: &str) -> Result<(), Failed> {
    if lab.scale != Scale::Tiny {
        return Ok(());
    }
    let room = lab.room()?;
    let found = room.path().join("restored");
    restore(lab, store, name, &found)?;
    same(source, &found)
}

/// Restores the directory of that name into `dest`.
///
/// # Errors
/// Those of the store; [`Failed::Wrong`] when something is left out.
pub fn restore(lab: &Lab, store: &Store, name: &str, dest: &Path) -> Result<(), Failed> {
    let (at, path) = (At::Now, StorePath::parse(name.as_bytes())?);
    let (inode, progress) = (require(&*store.meta, at, &path)?, Progress::default());
    let options = get::GetOptions { threads: lab.threads, ..get::GetOptions::default() };
    get::restore(store, at, &inode, dest, None, options, &progress)?;
    let skipped = progress.skipped.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len();
    check(skipped == 0, format!("{skipped} files were not restored"))
}

/// Fails unless both have the same names, and files of the same bytes.
fn same(source: &Path, found: &Path) -> Result<(), Failed> {
    // Other tests check attributes.
    let options = CompareOptions {
        modes: false,
        owners: false,
        mtimes: false,
        hard_links: false,
        xattrs: false,
        sparseness: false,
        roots: false,
    };
    let differences = compare_trees_with(source, found, &options)?;
    let first = differences.first().map_or_else(String::new, ToString::to_string);
    check(differences.is_empty(), format!("{} is not restored as it was: {first}", source.display()))
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn a_byte_a_name_or_a_kind_that_differs_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for root in [&one, &two] {
            std::fs::create_dir_all(root.join("deep")).unwrap();
            std::fs::write(root.join("deep/file"), [7; 100]).unwrap();
        }
        same(&one, &two).unwrap();
        std::fs::write(two.join("deep/file"), [[7; 50], [8; 50]].concat()).unwrap();
        assert!(same(&one, &two).unwrap_err().to_string().contains("deep/file"));
        std::fs::write(two.join("deep/file"), [7; 100]).unwrap();
        std::fs::write(two.join("more"), []).unwrap();
        same(&one, &two).unwrap_err();
        std::fs::create_dir(one.join("more")).unwrap();
        same(&one, &two).unwrap_err();
    }
}
