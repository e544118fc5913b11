//! The configuration file: profiles, by name.
//!
//! If `OUTRIGGER_CONFIG` is set, it names the only file. Otherwise two files are read: the user's
//! own and `/etc/outrigger/config.toml`. A profile of the user's replaces one of the same name.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::Failure;

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

/// A profile: the steps of `outrigger backup NAME`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Profile {
    /// The store, as in `--store`.
    pub store: Option<String>,
    /// The files and directories to put.
    pub sources: Vec<PathBuf>,
    /// The target, as in `put --to`.
    pub to: Option<String>,
    /// As in `put --exclude`. The fields up to `one_file_system` are options of `put`, too.
    pub exclude: Vec<String>,
    /// Files of patterns.
    pub exclude_from: Vec<PathBuf>,
    /// Names that mark directories.
    pub exclude_if_present: Vec<String>,
    /// Leaves caches out.
    pub exclude_caches: bool,
    /// Names of ignore files.
    pub ignore_file: Vec<String>,
    /// Leaves other file systems out.
    pub one_file_system: bool,
    /// Tags of the snapshots; the profile's name, if there are none.
    pub tags: Vec<String>,
    /// Which snapshots with the first tag stay.
    pub keep: Option<Keep>,
    /// Runs before the put; the first that fails ends the run.
    pub before: Vec<Hook>,
    /// Runs after the put, whether or not the put failed.
    pub after: Vec<Hook>,
    /// Runs at the end if something failed.
    pub on_failure: Vec<Hook>,
    /// Runs at the end.
    pub always: Vec<Hook>,
}

/// As the options of `keep`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Keep {
    pub last: u32,
    pub hourly: u32,
    pub daily: u32,
    pub weekly: u32,
    pub monthly: u32,
    pub yearly: u32,
}

/// A command.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Hook {
    /// A text for `sh -c`.
    Shell(String),
    /// A program and its arguments, run without a shell.
    Words(Vec<String>),
}

/// The failure for a profile that is not there.
pub fn no_profile(name: &str, profiles: &BTreeMap<String, Profile>) -> Failure {
    let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
    let there = if names.is_empty() { "none at all".to_string() } else { names.join(", ") };
    Failure::failed(format!("no profile `{name}`; there are: {there}"))
}

/// All profiles.
///
/// # Errors
/// When a file exists but cannot be read or parsed, or when everybody may write to it.
pub fn profiles() -> Result<BTreeMap<String, Profile>, Failure> {
    if let Some(path) = std::env::var_os("OUTRIGGER_CONFIG").filter(|path| !path.is_empty()) {
        return read(Path::new(&path))?.ok_or_else(|| {
            Failure::failed(format!("OUTRIGGER_CONFIG names {}, which does not exist", path.display()))
        });
    }
    let mut profiles = read(Path::new("/etc/outrigger/config.toml"))?.unwrap_or_default();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let own = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| Path::new(dir).is_absolute());
    let own = own.map(PathBuf::from).or_else(|| home.map(|home| Path::new(&home).join(".config")));
    if let Some(dir) = own {
        profiles.extend(read(&dir.join("outrigger/config.toml"))?.unwrap_or_default());
    }
    Ok(profiles)
}

/// The profiles of one file; none if it is not there.
fn read(path: &Path) -> Result<Option<BTreeMap<String, Profile>>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::io(format!("cannot read {}", path.display()), &error)),
    };
    // A user who may write to the file could run any command as its reader.
    if std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o002 != 0) {
        return Err(Failure::failed(format!(
            "{0} is writable by everybody and names commands to run; run `chmod o-w {0}`",
            path.display()
        )));
    }
    let file: File = toml::from_str(&text)
        .map_err(|error| Failure::usage(format!("{}: {}", path.display(), error.to_string().trim_end())))?;
    for (name, profile) in &file.profiles {
        let why = if name.is_empty() || name.contains('/') || name.starts_with(['-', '.']) {
            "its name is empty, has a slash, or begins with a dash or a dot"
        } else if profile.sources.is_empty() {
            "it has no `sources`"
        } else {
            continue;
        };
        return Err(Failure::usage(format!("{}: profile `{name}`: {why}", path.display())));
    }
    Ok(Some(file.profiles))
}
