//! Finding the key of a store that is opened.
//!
//! It looks in this order:
//!
//! 1. keyrings that this process has already;
//! 2. the kernel's keyring (`outrigger key unlock`);
//! 3. the file of `--key-file` or `OUTRIGGER_KEY_FILE`;
//! 4. a credential of systemd;
//! 5. the file that `init` made, then the host's;
//! 6. a passphrase from a file or a command that the environment names;
//! 7. the user, if this process can ask.
//!
//! A named file that cannot be read is an error; one that was merely looked for is not.
//!
//! Slots lie beside the packs. If these are elsewhere, a copy in this host's directory for the
//! store saves asking there.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use outrigger_format::StoreId;
use zeroize::Zeroizing;

use super::{Keyring, Secret, Slot, kernel, text};
use crate::backend::{Backend, KEYS_DIR};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::{create_private_dir, write_durably};

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
static UNLOCKED: Mutex<Option<HashMap<StoreId, Arc<Keyring>>>> = Mutex::new(None);

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

/// Keeps a keyring for the stores that this process opens.
pub fn keep(ring: Arc<Keyring>) {
    let mut rings = UNLOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    rings.get_or_insert_default().insert(ring.store(), ring);
}

/// The keyring that this process has of a store.
pub fn kept(store: StoreId) -> Option<Arc<Keyring>> {
    UNLOCKED.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&store).cloned()
}

/// The file in which `init` puts the key of a store: `~/.config/outrigger/keys/ID.key`.
///
/// # Errors
/// `Invalid` without a home directory.
pub fn default_key_file(store: StoreId) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| {
        let why = format!(
            "there is no home directory to put the store's key in: set HOME, or name a file in {KEY_FILE}"
        );
        Error::new(ErrorKind::Invalid, why)
    })?;
    Ok(config.join("outrigger/keys").join(format!("{store}.key")))
}

/// Writes a key file that only its owner can read. It never replaces one.
///
/// # Errors
/// `Exists` when there is one; those of the file system.
pub fn write_key_file(path: &Path, key: &super::Key, store: StoreId) -> Result<()> {
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

/// Opens the place of a store's packs.
pub type Packs<'a> = dyn Fn() -> Result<Arc<dyn Backend>> + 'a;

/// A secret, and where it is from: for messages.
type Found = (Secret, String);

/// The secrets that do not need a user; `named` tells that their absence would be an error.
fn secrets(store: StoreId) -> Result<Vec<Found>> {
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
    if let Ok(path) = default_key_file(store) {
        file(path, false)?;
    }
    file(Path::new(HOST_KEYS).join(format!("{store}.key")), false)?;
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

/// The slots beside the packs; those of the last epoch first, then the oldest.
///
/// # Errors
/// When their place cannot be read; `Damaged` when one cannot be parsed.
pub fn slots(packs: &dyn Backend) -> Result<Vec<Slot>> {
    let read = |name: String| -> Result<Option<Slot>> {
        packs.text(&format!("{KEYS_DIR}/{name}"))?.map(|text| Slot::from_text(&text)).transpose()
    };
    let mut slots: Vec<Slot> = packs
        .texts(KEYS_DIR)?
        .into_iter()
        .filter_map(|name| read(name).transpose())
        .collect::<Result<_>>()?;
    slots.sort_by(|one, other| {
        other.epochs.cmp(&one.epochs).then((one.created, &one.id).cmp(&(other.created, &other.id)))
    });
    Ok(slots)
}

/// The copies of slots in a host's directory for the store. They may be old, or gone.
fn copied_slots(own: &Path) -> Vec<Slot> {
    let entries = fs::read_dir(own.join(KEYS_DIR)).into_iter().flatten().flatten();
    let slot = |path: PathBuf| Slot::from_text(&fs::read_to_string(path).ok()?).ok();
    let mut slots: Vec<Slot> = entries.filter_map(|entry| slot(entry.path())).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.epochs));
    slots
}

/// Drops the copies of slots that are none any more.
pub(super) fn forget_copies(own: &Path, slots: &[Slot]) {
    for copy in copied_slots(own).iter().filter(|copy| slots.iter().all(|slot| slot.id != copy.id)) {
        let _ = fs::remove_file(own.join(KEYS_DIR).join(&copy.id));
    }
}

/// Removes the slots that an interrupted `init` left in `dir`, and their directory.
///
/// # Errors
/// `Exists` when there is anything else in it, which stays.
pub(crate) fn remove_slots(dir: &Path) -> Result<()> {
    let keys = dir.join(KEYS_DIR);
    let entries = match fs::read_dir(&keys) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context(|| format!("cannot list {}", keys.display()))?,
    };
    for entry in entries.flatten() {
        let is_slot = fs::read_to_string(entry.path()).is_ok_and(|text| Slot::from_text(&text).is_ok());
        if !is_slot {
            let why = format!(
                "{} is not empty (it has {:?}); give a new directory",
                keys.display(),
                entry.file_name()
            );
            return Err(Error::new(ErrorKind::Exists, why));
        }
        fs::remove_file(entry.path()).context(|| format!("cannot remove {}", entry.path().display()))?;
    }
    fs::remove_dir(&keys).context(|| format!("cannot remove {}", keys.display()))
}

/// The id of the store whose slots lie in `dir`.
pub fn slots_store(dir: &Path) -> Option<StoreId> {
    copied_slots(dir).iter().find_map(Slot::store)
}

/// Copies slots to a host's directory for the store, so that the next opening need not ask for
/// them. A failure costs time, later, and nothing else.
pub(super) fn copy_slots(own: &Path, slots: &[Slot]) {
    let dir = own.join(KEYS_DIR);
    if create_private_dir(&dir).is_err() {
        return;
    }
    for slot in slots {
        let _ = write_durably(&dir, &slot.id, slot.to_text().as_bytes());
    }
}

/// The first keyring that a secret opens.
fn open(slots: &[Slot], secret: &Secret, store: StoreId) -> Result<Option<Keyring>> {
    for slot in slots {
        if let Some(ring) = slot.open(secret, store)? {
            return Ok(Some(ring));
        }
    }
    Ok(None)
}

/// Finds the keyring of the store with id `store`. `own` is the host's directory for it, which has
/// the slots or copies of them; `packs` opens the place that has them.
///
/// # Errors
/// `Denied` when no key is found, or a named one does not open the store: the message lists what
/// would. `Damaged` when a slot was changed.
pub fn unlock(store: StoreId, own: &Path, packs: &Packs<'_>) -> Result<Arc<Keyring>> {
    if let Some(ring) = kept(store) {
        return Ok(ring);
    }
    if let Some(ring) = kernel::find(store) {
        let ring = Arc::new(ring);
        keep(Arc::clone(&ring));
        return Ok(ring);
    }
    let found = secrets(store)?;
    let ring = match try_copies(store, own, &found) {
        Some(ring) => ring,
        None => by_slots(store, own, packs, &found)?,
    };
    let ring = Arc::new(ring);
    keep(Arc::clone(&ring));
    Ok(ring)
}

/// Takes over epochs that another process has begun since `ring` was opened. True if there are any.
pub fn refresh(ring: &Keyring, packs: &dyn Backend) -> bool {
    let (Ok(found), Ok(slots)) = (secrets(ring.store()), slots(packs)) else { return false };
    let newer = found.iter().find_map(|(secret, _)| open(&slots, secret, ring.store()).ok().flatten());
    newer.is_some_and(|newer| ring.adopt(&newer))
}

/// The slots that secrets which are at hand open, with these; a passphrase is asked for if a slot
/// needs one that is not.
///
/// # Errors
/// As [`unlock`].
pub fn at_hand(store: StoreId, packs: &dyn Backend) -> Result<Vec<(Slot, Secret)>> {
    let (mut secrets, slots) = (secrets(store)?, slots(packs)?);
    if let Some(ask) = ASK.get().filter(|_| slots.iter().any(|slot| slot.kind == super::SlotKind::Passphrase))
    {
        secrets.extend(
            ask("Passphrase of the store: ")?.map(|words| (Secret::Passphrase(words), String::new())),
        );
    }
    let mut opened = Vec::new();
    for slot in slots {
        for (secret, _) in &secrets {
            if slot.open(secret, store)?.is_some() {
                opened.push((slot.clone(), secret.clone()));
                break;
            }
        }
    }
    Ok(opened)
}

fn try_copies(store: StoreId, own: &Path, found: &[Found]) -> Option<Keyring> {
    let slots = copied_slots(own);
    found.iter().find_map(|(secret, _)| open(&slots, secret, store).ok().flatten())
}

fn by_slots(store: StoreId, own: &Path, packs: &Packs<'_>, found: &[Found]) -> Result<Keyring> {
    let slots = match packs().and_then(|packs| slots(&*packs)) {
        Ok(slots) => slots,
        // Their place cannot be reached; the copies say what would open the store.
        Err(error) => Some(copied_slots(own)).filter(|slots| !slots.is_empty()).ok_or(error)?,
    };
    if slots.is_empty() {
        let why = "the store is encrypted, and its key slots are missing: put back the directory `keys` beside its packs from a copy";
        return Err(Error::damaged(why));
    }
    copy_slots(own, &slots);
    for (secret, from) in found {
        match open(&slots, secret, store).context(|| from.clone())? {
            Some(ring) => return Ok(ring),
            None => continue,
        }
    }
    let takes_passphrase = slots.iter().any(|slot| slot.kind == super::SlotKind::Passphrase);
    if let Some(ask) = ASK.get().filter(|_| takes_passphrase) {
        for again in ["", "That passphrase does not open the store. "] {
            let Some(words) = ask(&format!("{again}Passphrase of the store: "))? else { break };
            if let Some(ring) = open(&slots, &Secret::Passphrase(words), store)? {
                return Ok(ring);
            }
        }
    }
    Err(locked(store, &slots, found))
}

/// The error when no secret opens a store: it says what would.
fn locked(store: StoreId, slots: &[Slot], found: &[Found]) -> Error {
    let mut why = match found {
        [] => "the store is encrypted, and its key was not found".to_string(),
        found => {
            let from: Vec<&str> = found.iter().map(|(_, from)| from.as_str()).collect();
            format!("the store is encrypted, and {} does not open it", from.join(", or "))
        }
    };
    let names: Vec<String> = slots.iter().map(Slot::describe).collect();
    why += &format!(". These open it: {}", names.join("; "));
    if let Ok(path) = default_key_file(store) {
        why += &format!(
            ". Put the key file back as {}, or name it with --key-file or {KEY_FILE}, or name a passphrase with {PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}",
            path.display()
        );
    }
    Error::new(ErrorKind::Denied, why)
}
