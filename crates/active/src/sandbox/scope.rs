//! Landlock's scopes: they keep a program that shares its host's network from everything else that
//! comes with it.
//!
//! A network name space also contains the abstract Unix sockets: names without a file, which no
//! mount name space hides and which have no permissions. With all of the network, a program reaches
//! its host's: session buses, X servers, and any service that listens this way. Landlock can forbid
//! it to connect to sockets that were made outside (Linux 6.12), and to send signals there. A
//! ruleset of scopes alone, without rules for files, does not forbid mounts. So this program can
//! apply it, as a process of its own between the change of users and bubblewrap, and become
//! bubblewrap. The stage of single destinations (`net/`) does not need it: there the name space is
//! the program's own.

use std::ffi::OsString;
use std::io::Error;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use landlock::{
    ABI, Access as _, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetStatus, Scope,
};

/// This program's first argument when it is started to apply scopes.
pub(super) const MARK: &str = "sandbox-scope";

/// Applies scopes and becomes the program of these words; returns only with an error.
pub(super) fn enter(words: &[OsString]) -> Error {
    match (restrict(), words.split_first()) {
        (Err(why), _) => Error::other(why),
        (Ok(()), None) => Error::other("there is nothing to run"),
        (Ok(()), Some((program, arguments))) => Command::new(program).args(arguments).exec(),
    }
}

/// Neither this thread nor its children can connect to abstract sockets, or send signals, outside
/// of this scope.
fn restrict() -> Result<(), String> {
    let put_on = || {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        ruleset.scope(Scope::from_all(ABI::V6))?.create()?.restrict_self()
    };
    match put_on() {
        Ok(status) if status.ruleset == RulesetStatus::FullyEnforced => Ok(()),
        Ok(_) => Err("Landlock is not whole on this kernel".into()),
        Err(error) => Err(format!("Landlock's scopes (Linux 6.12): {error}")),
    }
}
