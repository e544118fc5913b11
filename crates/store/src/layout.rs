//! Names of the files and directories of a store's directory, and functions that make them.

use std::path::Path;

use crate::error::{Context, Result};
use crate::owner;

/// The configuration's name in a store directory.
pub const CONFIG_FILE: &str = "store.toml";

/// The database's name in a store directory.
pub const DATABASE_FILE: &str = "meta.db";

/// A host's directories for a store: runs of the index, lock files of its sessions.
pub(crate) const OWN_DIRS: [&str; 2] = ["index", "sessions"];

/// Makes the directory of a new store, and its contents except packs, database and configuration.
pub(crate) fn create_store_dirs(dir: &Path) -> Result<()> {
    let at = || format!("cannot create {}", dir.display());
    create_private_dir(dir).context(at)?;
    OWN_DIRS.iter().try_for_each(|name| create_private_dir(&dir.join(name)).context(at))
}

/// Writes a small file so that either the old or the whole new content is there after a crash.
pub(crate) fn write_durably(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.new")));
    let at = || format!("cannot write {}", path.display());
    owner::write(&temporary, bytes).context(at)?;
    owner::give_path(&temporary);
    std::fs::File::open(&temporary).and_then(|file| file.sync_all()).context(at)?;
    std::fs::rename(&temporary, &path).context(at)?;
    sync_dir(dir).context(at)
}

pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

pub(crate) fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}
