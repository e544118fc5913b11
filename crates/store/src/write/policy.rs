//! Setting policies so that they survive a lost database: in the catalogue first, then in the
//! database.

use outrigger_format::catalogue::{FileKind, Record};

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, ROOT_INODE};
use crate::policy::{PARITY, check_policy};
use crate::publish::{self, Touched};
use crate::session::Session;
use crate::store::Store;
use crate::write::{append_records, publish_catalogue};

/// Sets (or with `None` unsets) a policy of the directory `inode`.
///
/// # Errors
/// `Invalid` for a policy that is none or not for this directory, `NotFound` when there is no such directory; those of the
/// store.
pub fn set_policy(
    store: &Store,
    session: &Session,
    inode: u64,
    key: &str,
    value: Option<&str>,
) -> Result<()> {
    if let Some(value) = value {
        check_policy(key, value)?;
    }
    if key == PARITY && inode != ROOT_INODE {
        let why = "parity is set for the whole store: `outrigger policy set / parity=10+2`";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let found = store.meta.inode(At::Now, inode)?;
    if found.is_none_or(|inode| inode.attributes.kind != FileKind::Directory) {
        return Err(Error::new(ErrorKind::NotFound, format!("inode {inode} is not a directory")));
    }
    let (name, text) = (key.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()));
    // The mount that made the directory may not have published it yet.
    publish_catalogue(store, session, &Touched::inodes([inode]), || Ok(()))?;
    let record = Record::Policy { inode, key: name, value: text };
    let sequence = append_records(store, session, std::iter::once(Ok(record)))?;
    store.meta.set_policy(inode, key, value)?;
    publish::settle(&*store.meta, sequence, "policy")
}
