//! Directories whose contents have a key of their own ([`crate::keys::domains`]).
//!
//! A directory is made so, and stays so. New entries inherit its domain, as an extended attribute that no
//! user sees ([`DOMAIN_XATTR`](outrigger_format::catalogue::DOMAIN_XATTR)). Nothing of another domain
//! comes in. So each inode says with which key its contents are encrypted, however
//! it is reached: by name, by number, in a snapshot, or when a log is replayed.

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Domain, Root};
use serde::{Deserialize, Serialize};

use super::edit::{commit, not_the_root, require_directory};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::domains::{self, DomainText};
use crate::local::put::made_now;
use crate::meta::records::Record;
use crate::meta::{At, Change, ROOT_INODE};
use crate::store::Store;
use crate::tree::StorePath;

/// The directory that a domain was made for, to show it. A database that was recovered from packs has
/// no such records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct DomainRecord {
    domain: String,
    inode: u64,
}

impl Record for DomainRecord {
    const KIND: &'static str = "domain";

    fn name(&self) -> String {
        self.domain.clone()
    }
}

/// The state of a directory's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyState {
    /// The key that opened the store reads it.
    Open,
    /// That key has no right to it.
    Closed,
    /// It was destroyed.
    Destroyed,
    /// Its text is missing, or was changed.
    Missing,
}

impl KeyState {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Destroyed => "destroyed",
            Self::Missing => "missing",
        }
    }
}

/// A directory with a key of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnKey {
    /// Its domain, and when its key was made or destroyed.
    pub text: DomainText,
    /// The state of its key.
    pub state: KeyState,
    /// Where it is now; `None` if it was removed, or is not known.
    pub path: Option<StorePath>,
}

/// Makes the directory `path`, whose contents get a key of their own; the directory above exists.
///
/// # Errors
/// `Exists` if it is there; `Invalid` within another such directory, and in a store that is not
/// encrypted; `Denied` without all rights; those of the store.
pub fn make_sealed_directory(store: &Store, path: &StorePath) -> Result<Domain> {
    let (above, name) = not_the_root(path)?;
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let Some(keys) = store.keys() else {
        return invalid(
            "the store is not encrypted: `outrigger copy STORE TO --encrypt` makes an encrypted copy".into(),
        );
    };
    if !store.config.fingerprint.is_trusted() {
        return invalid(format!(
            "a store with {} fingerprints has no such directories",
            store.config.fingerprint.name()
        ));
    }
    let above = require_directory(&*store.meta, At::Now, &above)?;
    if above.attributes.domain() != Domain::COMMON {
        return invalid(format!("`{path}` lies in a directory that has a key of its own already"));
    }
    if store.meta.lookup(At::Now, above.number, &name)?.is_some() {
        let why = format!(
            "`{path}` is there already: make a new directory, copy the contents there by `outrigger put` or in a mount, and remove this one"
        );
        return Err(Error::new(ErrorKind::Exists, why));
    }
    // The key is durable before anything can need it.
    let domain = domains::create(&*store.backend, keys)?;
    let (parent, inode) = (above.number, store.meta.reserve_inodes(1)?.start);
    let attributes = made_now(FileKind::Directory, 0o700).in_domain(domain);
    let made = Change::Put { parent, name, inode, attributes, root: Root::Empty, stamp: 0, replace: false };
    let expected = Change::IfName { parent, name: path.name().unwrap_or_default().to_vec(), inode: None };
    commit(store, "key own", vec![expected, made], None)?;
    store.registry().put(&DomainRecord { domain: domain.to_string(), inode })?;
    Ok(domain)
}

/// All directories with keys of their own, by their domains.
///
/// # Errors
/// Those of the store.
pub fn own_keys(store: &Store) -> Result<Vec<OwnKey>> {
    let records = store.registry().all::<DomainRecord>()?;
    let path = |domain: Domain| -> Result<Option<StorePath>> {
        let record = records.iter().find(|found| found.record.domain == domain.to_string());
        record.map_or(Ok(None), |found| path_of(store, found.record.inode))
    };
    let texts = domains::list(&*store.backend)?;
    let state = |domain: Domain| match store.packs.domain_key(domain) {
        Ok(_) => Ok(KeyState::Open),
        Err(error) => match error.kind() {
            ErrorKind::Denied => Ok(KeyState::Closed),
            ErrorKind::Destroyed => Ok(KeyState::Destroyed),
            ErrorKind::Damaged => Ok(KeyState::Missing),
            _ => Err(error),
        },
    };
    let own = |text: DomainText| Ok(OwnKey { path: path(text.domain)?, state: state(text.domain)?, text });
    texts.into_iter().map(own).collect()
}

/// The path of a directory now; `None` if it was removed.
fn path_of(store: &Store, inode: u64) -> Result<Option<StorePath>> {
    let (mut at, mut components) = (inode, Vec::new());
    while at != ROOT_INODE {
        let Some(parent) = store.meta.parent_of(at)? else { return Ok(None) };
        let Some(name) = name_in(store, parent, at)? else { return Ok(None) };
        components.push(name);
        at = parent;
    }
    components.reverse();
    Ok(Some(StorePath { components }))
}

fn name_in(store: &Store, directory: u64, inode: u64) -> Result<Option<Vec<u8>>> {
    const PAGE: usize = 4096;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = store.meta.read_dir(At::Now, directory, after.as_deref(), PAGE)?;
        after = page.last().filter(|_| page.len() == PAGE).map(|entry| entry.name.clone());
        let found = page.into_iter().find(|entry| entry.inode.number == inode);
        if found.is_some() || after.is_none() {
            return Ok(found.map(|entry| entry.name));
        }
    }
}

/// The domain that `name` names: the path of a directory with a key of its own, or of anything in it,
/// or a domain's number.
///
/// # Errors
/// `NotFound`; `Invalid` for what has no key of its own.
pub fn find_domain(store: &Store, name: &[u8]) -> Result<Domain> {
    let number = std::str::from_utf8(name).ok().filter(|name| name.len() == 16);
    let number = number.and_then(|name| u64::from_str_radix(name, 16).ok()).map(Domain);
    if let Some(number) = number
        && domains::list(&*store.backend)?.iter().any(|text| text.domain == number)
    {
        return Ok(number);
    }
    let path = StorePath::parse(name)?;
    let found = crate::tree::require(&*store.meta, At::Now, &path)?;
    match found.attributes.domain() {
        Domain::COMMON => Err(Error::new(ErrorKind::Invalid, format!("`{path}` has no key of its own"))),
        domain => Ok(domain),
    }
}
