//! Stores whose metadata lies in PostgreSQL: many hosts share one, and none owns it.
//!
//! The database has the configuration, too. Each host has a *cache directory* for runs of its index
//! and lock files of its sessions. It may be lost at any time when nothing runs, and is filled
//! again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Access;
use crate::config::StoreConfig;
use crate::error::{Context as _, Error, ErrorKind, Result};
use crate::keys::{Keyring, NewKeys, known};
use crate::layout::{OWN_DIRS, create_private_dir};
use crate::meta::{Location, PostgresMeta, Sealer, is_postgres_url};

/// The URL, if a store is named by one.
pub fn url(store: &Path) -> Option<&str> {
    store.to_str().filter(|text| is_postgres_url(text))
}

/// The parts on this host of a store with a database elsewhere.
pub(crate) struct Shared {
    /// The database.
    pub meta: Arc<PostgresMeta>,
    /// The store's configuration, from the database.
    pub config: StoreConfig,
    /// This host's cache directory.
    pub dir: PathBuf,
    /// The keys, if it is encrypted.
    pub keys: Option<Arc<Keyring>>,
}

/// Fails for a configuration that hosts cannot share.
pub(crate) fn require_shareable(config: &StoreConfig) -> Result<()> {
    if !config.fingerprint.is_trusted() {
        let why = "a store that hosts share needs fingerprints that do not collide: use blake3 or sha256";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    if config.packs.is_none() {
        let why = "say where packs lie, so that all hosts reach them: `--packs URL` (`init --packs URL`), with file:/DIR, s3://… or rados://…";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    Ok(())
}

/// Makes a store at `url`.
pub(crate) fn init(url: &str, config: &StoreConfig, keys: Option<&NewKeys>) -> Result<Shared> {
    let location = Location::parse(url)?;
    require_shareable(config)?;
    // Checked before anything is made, as a refusal must leave nothing behind.
    if PostgresMeta::is_at(location.clone())? {
        return Err(Error::new(ErrorKind::Exists, format!("there is a store already in {location}")));
    }
    let dir = make_cache_dir(config)?;
    config.claim_packs(&dir)?;
    known::forget(&location.to_string())?;
    keys.map(|keys| config.write_keys(keys, &dir)).transpose()?;
    let keys = keys.map(|keys| Arc::clone(&keys.ring));
    let meta = PostgresMeta::create_with(location, &config.to_text(), sealer(keys.as_ref()))?;
    Ok(Shared { meta: Arc::new(meta), config: config.clone(), dir, keys })
}

/// Opens the store at `url`.
pub(crate) fn open(url: &str, read_only: bool) -> Result<Shared> {
    let location = Location::parse(url)?;
    let name = location.to_string();
    let mut meta = PostgresMeta::open(location, read_only)?;
    let config = StoreConfig::from_text(meta.config())?;
    let dir = make_cache_dir(&config)?;
    known::check(&name, config.ring_id())?;
    let keys = config.unlock(&dir, Access { read_only, ..Access::default() })?;
    if let Some(keys) = &keys {
        meta.seal_with(sealer_of(keys));
        if keys.rights().require_changes().is_err() {
            meta.refuse_changes();
        }
    }
    Ok(Shared { meta: Arc::new(meta), config, dir, keys })
}

/// Seals the database of a store with these keys.
pub(crate) fn sealer(keys: Option<&Arc<Keyring>>) -> Option<Sealer> {
    keys.map(|keys| sealer_of(keys))
}

fn sealer_of(keys: &Keyring) -> Sealer {
    Sealer::with(&keys.columns_key(), keys.content_keys().map(|keys| &keys.inline))
}

/// The name of a host's directory for a store, made of its id and the place of its packs. A copy of
/// a store has the same id, and once both are written to, a pack's number means another pack in
/// each.
fn cache_name(config: &StoreConfig) -> String {
    let packs = config.packs.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{}-{:08x}", config.id, outrigger_format::checksum(&[packs.as_bytes()]) as u32)
}

/// `$OUTRIGGER_CACHE/NAME`, else `$XDG_CACHE_HOME/outrigger/NAME`, else `~/.cache/outrigger/NAME`.
fn cache_dir(name: &str, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let above = variable("OUTRIGGER_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("outrigger")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/outrigger")))?;
    Some(above.join(name))
}

/// Makes the directory for what this host keeps of a store.
pub(crate) fn make_cache_dir(config: &StoreConfig) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = cache_dir(&cache_name(config), variable).ok_or_else(|| {
        let why = "there is no place for this host's index and lock files: set OUTRIGGER_CACHE to a local directory";
        Error::new(ErrorKind::Invalid, why)
    })?;
    for name in OWN_DIRS {
        let path = dir.join(name);
        create_private_dir(&path).context(|| {
            format!(
                "cannot make the cache directory {} (OUTRIGGER_CACHE names another place for it)",
                path.display()
            )
        })?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_own_files_lie_where_the_environment_says() {
        let dir = |names: &[&str]| {
            let dir =
                cache_dir("NAME", |name| names.contains(&name).then(|| PathBuf::from(format!("/{name}"))));
            dir.map(|dir| dir.display().to_string())
        };
        assert_eq!(dir(&["OUTRIGGER_CACHE", "HOME"]).unwrap(), "/OUTRIGGER_CACHE/NAME");
        assert_eq!(dir(&["XDG_CACHE_HOME", "HOME"]).unwrap(), "/XDG_CACHE_HOME/outrigger/NAME");
        assert_eq!(dir(&["HOME"]).unwrap(), "/HOME/.cache/outrigger/NAME");
        assert_eq!(dir(&[]), None);
    }

    #[test]
    fn a_copy_has_a_directory_of_its_own() {
        let at = |packs: &str| {
            let packs = Some(crate::backend::Location::parse(packs).unwrap());
            StoreConfig { packs, ..crate::config::Profile::Default.config().unwrap() }
        };
        let one = at("file:/mnt/one");
        let other = StoreConfig { packs: at("file:/mnt/other").packs, ..one.clone() };
        assert!(cache_name(&one).starts_with(&one.id.to_string()));
        assert_ne!(cache_name(&one), cache_name(&other));
        assert_eq!(cache_name(&one), cache_name(&one.clone()));
    }

    #[test]
    fn directories_are_not_urls() {
        assert_eq!(url(Path::new("postgres://u@h/d")), Some("postgres://u@h/d"));
        assert_eq!(url(Path::new("./postgres:/u")), None);
    }
}
