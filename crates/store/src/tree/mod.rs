//! Paths in a store, and their entries; walking a stored tree ([`listing`]), and choosing from it
//! ([`selection`]).

pub mod listing;
pub mod selection;

use outrigger_format::Domain;
use outrigger_format::catalogue::FileKind;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, Inode, Meta, ROOT_INODE};
use crate::text::show;

/// A path within a store: its components. Absolute and relative paths mean the same.
#[derive(Clone, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct StorePath {
    /// Names from the root down.
    pub components: Vec<Vec<u8>>,
}

/// The longest name a directory may hold, bytes.
pub const NAME_MAX: usize = 255;

/// Checks that a name can stand in a directory.
///
/// # Errors
/// `Invalid`, saying why.
pub fn check_name(name: &[u8]) -> Result<()> {
    let why = match name {
        b"" => "is empty",
        b"." | b".." => "is not a name",
        _ if name.len() > NAME_MAX => "is longer than 255 bytes",
        _ if name.contains(&b'/') || name.contains(&0) => "holds a slash or a zero byte",
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("`{}` {why}", show(name))))
}

impl StorePath {
    /// Parses `a/b/c`; empty components and `.` are dropped.
    ///
    /// # Errors
    /// `Invalid` for `..` and names that no directory can hold.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let parts = bytes.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let components: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        for component in &components {
            check_name(component).context(|| format!("path `{}`", show(bytes)))?;
        }
        Ok(Self { components })
    }

    /// The last name; `None` for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.components.last().map(Vec::as_slice)
    }

    /// The directory that holds it; the root for the root.
    #[must_use]
    pub fn parent(&self) -> Self {
        let mut components = self.components.clone();
        components.pop();
        Self { components }
    }

    /// This path with one more name.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut components = self.components.clone();
        components.push(name.to_vec());
        Self { components }
    }

    /// The path's bytes, without a leading slash; `/` for the root.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.components.is_empty() { b"/".to_vec() } else { self.components.join(&b'/') }
    }
}

impl std::fmt::Display for StorePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&show(&self.to_bytes()))
    }
}

/// The inode at `path`, or `None`.
///
/// # Errors
/// When the database cannot be read.
pub fn find(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Option<Inode>> {
    let mut inode = meta.inode(at, ROOT_INODE)?;
    for component in &path.components {
        let Some(parent) = inode.filter(|inode| inode.attributes.kind == FileKind::Directory) else {
            return Ok(None);
        };
        inode = meta.lookup(at, parent.number, component)?;
    }
    Ok(inode)
}

/// The inode at `path`.
///
/// # Errors
/// `NotFound`.
pub fn require(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Inode> {
    find(meta, at, path)?
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("`{path}` is not in the store")))
}

/// The domain of what is made at `path`: that of the lowest directory on the way that exists.
///
/// # Errors
/// Those of the database.
pub fn domain_at(meta: &dyn Meta, path: &StorePath) -> Result<Domain> {
    let (mut number, mut domain) = (ROOT_INODE, Domain::COMMON);
    for name in path.parent().components {
        match meta.lookup(At::Now, number, &name)? {
            Some(found) if found.attributes.kind == FileKind::Directory => {
                (number, domain) = (found.number, found.attributes.domain());
            }
            _ => break,
        }
    }
    Ok(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_checked() {
        assert_eq!(StorePath::parse(b"/a//./b/").unwrap().to_bytes(), b"a/b");
        assert_eq!(StorePath::parse(b"").unwrap().to_bytes(), b"/");
        assert_eq!(StorePath::parse(b"a/../b").unwrap_err().kind(), ErrorKind::Invalid);
        assert!(StorePath::parse(&[b'x'; 256]).is_err());
    }
}
