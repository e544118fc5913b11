//! Secrets that open slots: key files and passphrases, and where they are looked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use outrigger_format::StoreId;
use zeroize::Zeroizing;

use super::{Key, RingId, Secret, text};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::create_private_dir;

/// The environment's variable with a key file.
pub const KEY_FILE: &str = "OUTRIGGER_KEY_FILE";
/// The environment's variable with a file whose first line is a passphrase.
pub const PASSPHRASE_FILE: &str = "OUTRIGGER_PASSPHRASE_FILE";
/// The environment's variable with a command that prints a passphrase.
pub const PASSPHRASE_COMMAND: &str = "OUTRIGGER_PASSPHRASE_COMMAND";
/// The name of a credential that systemd passes on.
pub const CREDENTIAL: &str = "outrigger-key";
/// Where a host keeps key files for its services.
const HOST_KEYS: &str = "/etc/outrigger/keys";

/// Asks the user for a passphrase; `None` if there is nobody to ask.
pub type Ask = fn(question: &str) -> Result<Option<Zeroizing<String>>>;

static ASK: OnceLock<Ask> = OnceLock::new();
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Passphrases may be asked for by `ask` from now on. Only the first call counts.
pub fn ask_by(ask: Ask) {
    let _ = ASK.set(ask);
}

/// Names the key file, in place of the environment. Only the first call counts.
pub fn name_key_file(path: PathBuf) {
    let _ = NAMED.set(path);
}

/// The key file that was named.
pub fn named_key_file() -> Option<PathBuf> {
    let environment = || std::env::var_os(KEY_FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
    NAMED.get().cloned().or_else(environment)
}

/// True if the environment names a passphrase.
pub fn names_passphrase() -> bool {
    [PASSPHRASE_FILE, PASSPHRASE_COMMAND]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// A new passphrase: that which the environment names, or one that `ask` gets twice from the user.
///
/// # Errors
/// `Invalid` when there is none, it is too short, or the two differ.
pub fn new_passphrase() -> Result<Secret> {
    if let Some((Secret::Passphrase(words), _)) = passphrase()? {
        super::require_passphrase(&words)?;
        return Ok(Secret::Passphrase(words));
    }
    let none = || {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "there is no terminal to ask for a passphrase; name one with {PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}"
            ),
        )
    };
    let ask = ASK.get().ok_or_else(none)?;
    let words = ask("New passphrase of the store: ")?.ok_or_else(none)?;
    super::require_passphrase(&words)?;
    if ask("The same again: ")?.is_none_or(|again| *again != *words) {
        return Err(Error::new(ErrorKind::Invalid, "the two passphrases differ"));
    }
    Ok(Secret::Passphrase(words))
}

/// This user's configuration: `~/.config/outrigger`; `None` without a home directory.
pub fn config_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    Some(config?.join("outrigger"))
}

/// The file in which `init` puts the key of a store: `~/.config/outrigger/keys/ID.key`, ID
/// being the keyring's.
///
/// # Errors
/// `Invalid` without a home directory.
pub fn default_key_file(id: RingId) -> Result<PathBuf> {
    let config = config_dir().ok_or_else(|| {
        let why = format!(
            "there is no home directory to put the store's key in: set HOME, or name a file in {KEY_FILE}"
        );
        Error::new(ErrorKind::Invalid, why)
    })?;
    Ok(config.join("keys").join(format!("{id}.key")))
}

/// Writes a key file that only its owner can read. It never replaces one.
///
/// # Errors
/// `Exists` when there is one; those of the file system.
pub fn write_key_file(path: &Path, key: &Key, store: StoreId) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let at = || format!("cannot write the key file {}", path.display());
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_private_dir(above).context(at)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).context(at)?;
    let head = format!(
        "# Key of the Outrigger store {store}. Who has this file can read the store;\n# without it, or another key of the store, nobody can.\n"
    );
    file.write_all(head.as_bytes()).context(at)?;
    file.write_all(text::encode(key).as_bytes()).context(at)?;
    file.write_all(b"\n").context(at)?;
    file.sync_all().context(at)?;
    fs::File::open(above).and_then(|dir| dir.sync_all()).context(at)
}

/// Reads a key file.
///
/// # Errors
/// `NotFound`; `Invalid` when it holds no key.
pub fn read_key_file(path: &Path) -> Result<Secret> {
    let at = || format!("the key file {}", path.display());
    let file = Zeroizing::new(fs::read_to_string(path).context(at)?);
    text::decode(&file).map(Secret::Key).context(at)
}

/// A secret, and where it is from: for messages.
pub(super) type Found = (Secret, String);

/// Asks the user, if there is one.
pub(super) fn ask(question: &str) -> Result<Option<Secret>> {
    let Some(ask) = ASK.get() else { return Ok(None) };
    Ok(ask(question)?.map(Secret::Passphrase))
}

/// The secrets that do not need a user.
pub(super) fn secrets(id: RingId) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut file = |path: PathBuf, is_named: bool| -> Result<()> {
        match read_key_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => Ok(()),
            Err(error) if error.kind() == ErrorKind::Denied && !is_named => Ok(()),
            Err(error) => Err(error),
            Ok(secret) => {
                found.push((secret, format!("the key in {}", path.display())));
                Ok(())
            }
        }
    };
    if let Some(path) = named_key_file() {
        file(path, true)?;
    }
    if let Some(dir) = std::env::var_os("CREDENTIALS_DIRECTORY") {
        file(Path::new(&dir).join(CREDENTIAL), false)?;
    }
    if let Ok(path) = default_key_file(id) {
        file(path, false)?;
    }
    file(Path::new(HOST_KEYS).join(format!("{id}.key")), false)?;
    found.extend(passphrase()?);
    Ok(found)
}

/// The passphrase that the environment names.
fn passphrase() -> Result<Option<Found>> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let (output, from) = if let Some(path) = named(PASSPHRASE_FILE) {
        let path = PathBuf::from(path);
        let at = || format!("the passphrase file {}", path.display());
        (fs::read_to_string(&path).context(at)?, at())
    } else if let Some(command) = named(PASSPHRASE_COMMAND) {
        let at = || format!("the command in {PASSPHRASE_COMMAND}");
        let output = Command::new("/bin/sh").arg("-c").arg(command).output().context(at)?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(Error::new(ErrorKind::Invalid, format!("{} failed: {why}", at())));
        }
        let words = String::from_utf8(output.stdout);
        (words.map_err(|_| Error::new(ErrorKind::Invalid, format!("{} printed no text", at())))?, at())
    } else {
        return Ok(None);
    };
    let output = Zeroizing::new(output);
    let words = Zeroizing::new(output.lines().next().unwrap_or_default().to_string());
    Ok(Some((Secret::Passphrase(words), format!("the passphrase of {from}"))))
}
