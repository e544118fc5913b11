//! What shares all of the network with its host, and is to share no more: Landlock's scopes.
//!
//! A network name space has the abstract Unix sockets in it, too: names without a file, which no mount name space hides and which have no permissions. With all of the network a program has those of its
//! host: session buses, X servers, whatever a service listens on so. Landlock can forbid to connect to what was made outside (Linux 6.12), and to send signals there. A ruleset of scopes alone, without rules for files, does
//! not forbid mounts; so this program can put it on, as a process of its own between the change of users and bubblewrap, and become bubblewrap. The stage of single destinations (`net/`) does not need it: there the name space
//! is the program's.

use std::ffi::OsString;
use std::io::Error;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use landlock::{
    ABI, Access as _, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetStatus, Scope,
};

/// What this program is called with to put scopes on.
pub(super) const MARK: &str = "sandbox-scope";

/// Puts scopes on and becomes the program that these words say; it comes back only with an error.
pub(super) fn enter(words: &[OsString]) -> Error {
    match (restrict(), words.split_first()) {
        (Err(why), _) => Error::other(why),
        (Ok(()), None) => Error::other("there is nothing to run"),
        (Ok(()), Some((program, arguments))) => Command::new(program).args(arguments).exec(),
    }
}

/// Neither this thread nor what comes of it connects to abstract sockets, or sends signals, outside of it.
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
