//! Signed jobs.
//!
//! A client that may write to the database can make a job's row in another user's name. An agent
//! that believes the database's roles (`trust.rs`) is safe from that; one that is started with
//! `--signed-by` believes only keys. Signatures are OpenSSH's (`ssh-keygen -Y`, PROTOCOL.sshsig),
//! so keys may lie in an SSH agent or in hardware, and `ssh-keygen` has its options for
//! certificates and revoked keys.
//!
//! The signed text has the store, the time, the job as its row has it, and each input's path and
//! content. A program that is kept in the store is an input, and its hash is in the job: neither
//! can be exchanged. A client that writes to the database can still have a signed job run again
//! until [`VALID`] is over.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_store::meta::jobs::JobInput;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

/// Keeps a signature for something else from counting for a job.
const NAMESPACE: &str = "outrigger-job";
/// How long after it was signed a job may begin.
pub const VALID: Duration = Duration::from_secs(24 * 3600);

/// A job's text with its signature: what its row holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// The job, as [`crate::job::spec::Spec`] is written down.
    pub spec: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// In OpenSSH's armour.
    pub signature: String,
}

fn text(store: &Store, spec: &str, at: u64, inputs: &[JobInput]) -> String {
    let hex = |text: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
    };
    let mut text = "outrigger job 1\nstore ".to_string();
    hex(&mut text, &store.config.id.0);
    write!(text, "\nat {at}\nspec {spec}\n").expect("a string takes all");
    for input in inputs {
        text += "input ";
        hex(&mut text, &input.path);
        text.push(' ');
        hex(&mut text, &input.root.encode());
        text.push('\n');
    }
    text
}

fn now() -> u64 {
    clock::now_nanos() / 1_000_000_000
}

/// Signs a job. `ssh-keygen` may ask for the key's passphrase on the terminal.
///
/// # Errors
/// When there is no `ssh-keygen`, or it refuses; it says why.
pub fn sign(store: &Store, key: &Path, spec: String, inputs: &[JobInput]) -> Result<Signed> {
    let at = now();
    let mut command = keygen("sign");
    command.arg("-f").arg(key).stderr(Stdio::inherit());
    let what = || format!("signing the job with {}", key.display());
    let output = feed(command, &text(store, &spec, at, inputs)).context(what)?;
    if !output.status.success() {
        return Err(Error::new(ErrorKind::Denied, format!("{}: ssh-keygen refused", what())));
    }
    let signature = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Signed { spec, at, signature })
}

/// Checks that `user` has signed a job with a key that the file of allowed signers (ssh-keygen(1))
/// gives to that name.
///
/// # Errors
/// `Denied` if not, or too long ago; if `ssh-keygen` cannot be run.
pub fn verify(store: &Store, signers: &Path, user: &str, signed: &Signed, inputs: &[JobInput]) -> Result<()> {
    let denied = |why: String| Err(Error::new(ErrorKind::Denied, why));
    if now().abs_diff(signed.at) > VALID.as_secs() {
        let why = "it was signed more than a day ago, or the clocks of its host and this one differ by as much: submit it again";
        return denied(why.into());
    }
    let at = || "checking the job's signature".to_string();
    let mut signature = tempfile::NamedTempFile::new().context(at)?;
    signature.write_all(signed.signature.as_bytes()).context(at)?;
    let mut command = keygen("verify");
    command.arg("-f").arg(signers).args(["-I", user, "-s"]).arg(signature.path()).stderr(Stdio::piped());
    let output = feed(command, &text(store, &signed.spec, signed.at, inputs)).context(at)?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
    let signers = signers.display();
    denied(format!("no key of `{user}` in {signers} has signed it as it is now: {said}"))
}

fn keygen(what: &str) -> Command {
    let mut command = Command::new("ssh-keygen");
    command.args(["-Y", what, "-n", NAMESPACE]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs a command that reads `text` before it says much.
fn feed(mut command: Command, text: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    // A command that ends without reading all says why.
    let _ = child.stdin.take().expect("it is piped").write_all(text.as_bytes());
    child.wait_with_output()
}
