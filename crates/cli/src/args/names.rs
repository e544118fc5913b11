//! Names in the store, and patterns of them.

use std::ffi::{OsStr, OsString};

use outrigger_active::inputs::{Found, StoreGlob};
use outrigger_store::Store;
use outrigger_store::meta::{At, Inode};
use outrigger_store::text::show;
use outrigger_store::tree::{StorePath, find};

use super::store_path;
use crate::exit::Failure;

/// The entries that an argument names.
pub enum Named {
    /// The path itself.
    Path(StorePath, Inode),
    /// The matches of its pattern, in order of their paths.
    Matches(Vec<(StorePath, Inode)>),
}

/// The entry with this very name, else the matches of `text` as a pattern.
///
/// # Errors
/// When nothing has the name, or matches.
pub fn expand_one(store: &Store, at: At, text: &OsStr) -> Result<Named, Failure> {
    let path = store_path(text)?;
    if let Some(inode) = find(&*store.meta, at, &path)? {
        return Ok(Named::Path(path, inode));
    }
    let pattern = text.to_str().filter(|text| text.contains(['*', '?', '[', '{']));
    let Some(pattern) = pattern else { return Err(missing(store, at, &path)?) };
    let found = StoreGlob::parse(pattern)?.entries(&*store.meta, at)?;
    if found.is_empty() {
        let place = place(store, at)?;
        return Err(Failure::failed(format!("`{path}` is not in {place}, and matches nothing there")));
    }
    Ok(Named::Matches(found.into_iter().map(|Found { path, inode }| (path, inode)).collect()))
}

/// The entry at `path`.
///
/// # Errors
/// If there is none: the error names the snapshot, and says how to look for the name elsewhere.
pub fn entry(store: &Store, at: At, path: &StorePath) -> Result<Inode, Failure> {
    match find(&*store.meta, at, path)? {
        Some(inode) => Ok(inode),
        None => Err(missing(store, at, path)?),
    }
}

/// The failure for a path that does not exist at `at`.
fn missing(store: &Store, at: At, path: &StorePath) -> Result<Failure, Failure> {
    let place = place(store, at)?;
    let name = show(path.name().unwrap_or_default());
    Ok(Failure::failed(format!(
        "`{path}` is not in {place}; `outrigger find '{name}'` looks for it in all snapshots"
    )))
}

/// `the snapshot NAME`, or `the store` for the present tree.
fn place(store: &Store, at: At) -> Result<String, Failure> {
    // The epoch of a pin of the present tree belongs to no snapshot.
    let snapshot = match at {
        At::Now => None,
        At::Epoch(epoch) => store.meta.snapshots()?.into_iter().find(|snapshot| snapshot.epoch == epoch),
    };
    Ok(snapshot.map_or("the store".to_string(), |snapshot| format!("the snapshot `{}`", snapshot.name)))
}

/// The entries that several arguments name, in their order. A match below another match is left
/// out, because it comes with that one.
///
/// # Errors
/// As [`expand_one`].
pub fn expand(store: &Store, at: At, texts: &[OsString]) -> Result<Vec<(StorePath, Inode)>, Failure> {
    let mut all: Vec<(StorePath, Inode)> = Vec::new();
    for text in texts {
        match expand_one(store, at, text)? {
            Named::Path(path, inode) => all.push((path, inode)),
            Named::Matches(found) => {
                let mut above: Option<StorePath> = None;
                for (path, inode) in found {
                    if above.as_ref().is_some_and(|above| path.components.starts_with(&above.components)) {
                        continue;
                    }
                    above = Some(path.clone());
                    all.push((path, inode));
                }
            }
        }
    }
    Ok(all)
}

/// The paths of [`expand`].
///
/// # Errors
/// As [`expand_one`].
pub fn expand_paths(store: &Store, at: At, texts: &[OsString]) -> Result<Vec<StorePath>, Failure> {
    Ok(expand(store, at, texts)?.into_iter().map(|(path, _)| path).collect())
}
