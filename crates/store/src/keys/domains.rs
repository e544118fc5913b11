//! The keys of domains: of directories whose contents have a key of their own.
//!
//! A domain's *secret* is drawn when its directory is made. It names the domain's chunks and encrypts
//! its packs, so nothing is shared with what lies elsewhere. It is kept in one text beside the packs,
//! encrypted under a *lock* that comes from the epoch's secret. A slot that reads one directory holds
//! this lock alone.
//!
//! ```text
//! keys/domain-ID         the secret, encrypted
//! keys/domain-ID.gone    it was destroyed: written first, then the text above is removed
//! ```
//!
//! The second text says something only if the first one is not there. It is sealed with a key that comes
//! from an epoch's secret, too. So nobody makes the collector drop what a domain holds by adding a text.
//!
//! A process that opened the secret before may still have it. This program reads the text again each
//! minute, so mounts and agents forget it, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Domain, StoreId};
use serde::{Deserialize, Serialize};

use super::slot::{hex, unhex};
use super::{DomainKey, Key, Keyring, Rights, Slot, slots, unlock};
use crate::backend::{Backend, KEYS_DIR};
use crate::error::{Error, ErrorKind, Result};

/// Begins the name of each text of a domain.
const PREFIX: &str = "domain-";
/// Ends the name of the text that says that a secret was destroyed.
const GONE: &str = ".gone";
/// The sealed word of that text.
const DESTROYED: &[u8] = b"destroyed";
/// How long a secret is used without looking whether it was destroyed.
const TRUSTED: Duration = Duration::from_secs(60);

fn text_name(id: Domain) -> String {
    format!("{KEYS_DIR}/{PREFIX}{id}")
}

fn gone_name(id: Domain) -> String {
    format!("{}{GONE}", text_name(id))
}

/// True for a text of `keys/` that is a domain's and no slot.
pub(crate) fn is_domain(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// True for a text of `keys/` that has a domain's key.
pub(crate) fn is_key(name: &str) -> bool {
    is_domain(name) && !name.ends_with(GONE)
}

/// The name of the text with the key whose end text `name` tells.
pub(crate) fn key_of(name: &str) -> &str {
    name.strip_suffix(GONE).unwrap_or(name)
}

/// The domain whose key a text of this name has.
pub(crate) fn of_key(name: &str) -> Option<Domain> {
    u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok().map(Domain)
}

/// The text of a domain.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    store: String,
    domain: String,
    /// The epoch whose secret locks it.
    epoch: u32,
    /// When it was made, seconds since 1970.
    created: u64,
    /// Encrypted, in hexadecimal digits.
    secret: String,
}

impl Text {
    /// The associated data of the encryption.
    fn about(store: StoreId, id: Domain, epoch: u32) -> Vec<u8> {
        [&store.0[..], &id.0.to_le_bytes(), &epoch.to_le_bytes()].concat()
    }

    fn parse(id: Domain, text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::damaged(format!("{}: {why}", text_name(id)));
        let parsed: Self = toml::from_str(text).map_err(|error| wrong(error.message()))?;
        if parsed.domain != id.to_string() {
            return Err(wrong("it is another domain's"));
        }
        Ok(parsed)
    }
}

/// When a text was read, and its key; `None` if that was destroyed.
type Known = (Instant, Option<Arc<DomainKey>>);

/// The domains of a store whose keys are beside `packs`.
pub struct Domains {
    keys: Arc<Keyring>,
    packs: Arc<dyn Backend>,
    known: Mutex<HashMap<Domain, Known>>,
}

impl Domains {
    /// The domains that `keys` opens.
    pub fn new(packs: Arc<dyn Backend>, keys: Arc<Keyring>) -> Self {
        Self { keys, packs, known: Mutex::default() }
    }

    /// The key of a domain.
    ///
    /// # Errors
    /// `Destroyed` once it was destroyed. `Denied` if the keyring does not open it. `Damaged` when its
    /// text is missing or was changed. Those of the place of packs, unless the key was read before.
    pub fn key(&self, id: Domain) -> Result<Arc<DomainKey>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().get(&id).cloned();
        let key = match before {
            Some((at, key)) if at.elapsed() < TRUSTED => key,
            before => {
                let key = match (self.read(id), before) {
                    (Ok(key), _) => key.map(Arc::new),
                    // The place of packs may be away for a while.
                    (Err(error), Some((_, key)))
                        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Busy) =>
                    {
                        key
                    }
                    (Err(error), _) => {
                        known().remove(&id);
                        return Err(error);
                    }
                };
                known().insert(id, (Instant::now(), key.clone()));
                key
            }
        };
        key.ok_or_else(|| {
            let why = format!("the key of its directory was destroyed (domain {id}): nobody can read it");
            Error::new(ErrorKind::Destroyed, why)
        })
    }

    /// True if the secret was destroyed by somebody who had the right to. A host without all secrets
    /// cannot tell, and believes it.
    fn is_gone(&self, id: Domain) -> Result<bool> {
        let Some(text) = self.packs.text(&gone_name(id))? else { return Ok(false) };
        let Ok(text) = Text::parse(id, &text) else { return Ok(false) };
        if self.keys.rights().require_all_contents().is_err() {
            return Ok(true);
        }
        self.refresh(text.epoch)?;
        // One of an epoch that nobody knows must not be believed: the collector would drop what the
        // domain holds.
        let unknown = || Error::damaged(format!("{} was changed since it was made", gone_name(id)));
        let seal = self.keys.domain_seal(text.epoch, id).ok_or_else(unknown)?;
        let about = Text::about(self.keys.store(), id, text.epoch);
        Ok(unhex(&text.secret)
            .and_then(|sealed| seal.open(&about, &sealed))
            .is_some_and(|plain| plain == DESTROYED))
    }

    /// Looks for newer keys if there are some since `epoch`.
    fn refresh(&self, epoch: u32) -> Result<()> {
        if epoch > self.keys.epochs() {
            unlock::refresh(&self.keys, &*self.packs)?;
        }
        Ok(())
    }

    /// The key; `None` once it was destroyed.
    fn read(&self, id: Domain) -> Result<Option<DomainKey>> {
        let Some(text) = self.packs.text(&text_name(id))? else {
            if self.is_gone(id)? {
                return Ok(None);
            }
            let why = "the key of its directory is missing: put this text back from a copy of the store";
            return Err(Error::damaged(format!("{}: {why}", text_name(id))));
        };
        let text = Text::parse(id, &text)?;
        self.refresh(text.epoch)?;
        let changed = || Error::damaged(format!("{} was changed since it was made", text_name(id)));
        let denied = || match self.keys.rights().require_all_contents() {
            Ok(()) => changed(),
            Err(_) => {
                let why = format!("the key that opened the store does not read this directory (domain {id})");
                Error::new(ErrorKind::Denied, why)
            }
        };
        let store = self.keys.store();
        let lock = self.keys.domain_lock(text.epoch, id).ok_or_else(denied)?;
        let secret =
            unhex(&text.secret).and_then(|sealed| lock.open(&Text::about(store, id, text.epoch), &sealed));
        let secret = secret.map(zeroize::Zeroizing::new).and_then(|secret| secret.as_slice().try_into().ok());
        let secret = secret.map(Key::new);
        Ok(Some(DomainKey::new(store, id, secret.ok_or_else(changed)?)))
    }
}

/// What a domain's texts say in the open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainText {
    /// The domain.
    pub domain: Domain,
    /// When its key was made, or destroyed; seconds since 1970.
    pub time: u64,
}

/// The domains whose texts lie beside `packs`, by their numbers.
///
/// # Errors
/// Those of the place.
pub fn list(packs: &dyn Backend) -> Result<Vec<DomainText>> {
    let names = packs.texts(KEYS_DIR)?;
    let mut found: Vec<DomainText> = Vec::new();
    for name in names.iter().filter(|name| is_domain(name)) {
        let number = name.strip_prefix(PREFIX).unwrap_or_default();
        let number = number.strip_suffix(GONE).unwrap_or(number);
        let Ok(domain) = u64::from_str_radix(number, 16).map(Domain) else { continue };
        // One that cannot be read is told all the same.
        let text = packs.text(&format!("{KEYS_DIR}/{name}")).ok().flatten();
        let time = text.and_then(|text| Text::parse(domain, &text).ok()).map_or(0, |text| text.created);
        if found.iter().all(|other| other.domain != domain) {
            found.push(DomainText { domain, time });
        }
    }
    Ok(found)
}

/// Makes a domain, and its key, durable beside the packs.
///
/// # Errors
/// `Denied` unless `ring` has all rights; when the text cannot be written.
pub fn create(packs: &dyn Backend, ring: &Keyring) -> Result<Domain> {
    ring.rights().require_all()?;
    let id = Domain(u64::from_le_bytes(outrigger_clock::random()?).clamp(1, u64::MAX - 1));
    let lock = ring.domain_lock(ring.epochs(), id).expect("it has all secrets");
    let head =
        "# The key of a directory of an Outrigger store, encrypted. Without it nobody reads the directory.";
    packs.put_text(&text_name(id), &sealed_text(ring, id, &lock, head, Key::random()?.bytes())?)?;
    Ok(id)
}

/// The text that keeps `plain` of a domain, under a key of the last epoch.
fn sealed_text(ring: &Keyring, id: Domain, key: &Key, head: &str, plain: &[u8]) -> Result<String> {
    let (epoch, store) = (ring.epochs(), ring.store());
    let sealed = key.seal(&Text::about(store, id, epoch), plain)?;
    let created = outrigger_clock::now_nanos() / 1_000_000_000;
    let text =
        Text { store: store.to_string(), domain: id.to_string(), epoch, created, secret: hex(&sealed) };
    Ok(format!("{head}\n{}", toml::to_string(&text).expect("strings and numbers serialise")))
}

/// Destroys the key of a domain, and the slots that read it alone: nobody can read its contents any
/// more. It may be interrupted and called again.
///
/// # Errors
/// `Denied` unless `ring` has all rights; when texts cannot be written or removed.
pub fn destroy(packs: &dyn Backend, ring: &Keyring, id: Domain) -> Result<()> {
    ring.rights().require_all()?;
    let seal = ring.domain_seal(ring.epochs(), id).expect("it has all secrets");
    let head = "# The key of this directory was destroyed. Nobody can read what was stored in it.";
    // One that is there already may be another's.
    packs.remove_text(&gone_name(id))?;
    packs.put_text(&gone_name(id), &sealed_text(ring, id, &seal, head, DESTROYED)?)?;
    packs.remove_text(&text_name(id))?;
    let own = |slot: &Slot| slot.rights == Rights::Subtree && slot.domain() == Some(id);
    let slots = slots::slots(packs)?;
    slots.iter().filter(|slot| own(slot)).try_for_each(|slot| packs.remove_text(&slot.file_name()))
}

/// The lock of a domain, for a slot that reads it alone.
///
/// # Errors
/// `Damaged` when its text is missing or was changed.
pub(super) fn lock_of(packs: &dyn Backend, ring: &Keyring, id: Domain) -> Result<Key> {
    let missing = || Error::damaged(format!("{} is missing, or its key was destroyed", text_name(id)));
    let text = Text::parse(id, &packs.text(&text_name(id))?.ok_or_else(missing)?)?;
    let lock = ring.domain_lock(text.epoch, id);
    lock.ok_or_else(|| Error::new(ErrorKind::Denied, format!("this key does not open {}", text_name(id))))
}

/// Puts the texts of domains of `from` beside the packs of `to`, which has none.
///
/// # Errors
/// Those of both places.
pub(crate) fn copy_texts(from: &dyn Backend, to: &dyn Backend) -> Result<()> {
    for name in from.texts(KEYS_DIR)?.into_iter().filter(|name| is_domain(name)) {
        let name = format!("{KEYS_DIR}/{name}");
        if let Some(text) = from.text(&name)? {
            to.put_text(&name, &text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_format::Fingerprint;

    use super::*;
    use crate::backend::MemoryBackend;

    const STORE: StoreId = StoreId([1; 16]);

    fn domains(packs: &MemoryBackend, ring: &Keyring) -> Domains {
        Domains::new(Arc::new(packs.clone()), Arc::new(ring.limited(ring.rights()).unwrap()))
    }

    #[test]
    fn names_say_nothing_without_the_secret() {
        let (packs, ring) = (MemoryBackend::new(), Keyring::new(STORE).unwrap());
        let made = [create(&packs, &ring).unwrap(), create(&packs, &ring).unwrap()];
        let keys = made.map(|id| domains(&packs, &ring).key(id).unwrap());
        let chunk = Fingerprint([3; 32]);
        assert!(keys[0].name(&chunk) != keys[1].name(&chunk) && keys[0].name(&chunk) != chunk);
        let again = domains(&packs, &ring).key(made[0]).unwrap();
        assert_eq!(again.name(&chunk), keys[0].name(&chunk));
    }

    #[test]
    fn a_key_from_before_a_rotation_opens_no_later_domain() {
        let (packs, ring) = (MemoryBackend::new(), Keyring::new(STORE).unwrap());
        let old = create(&packs, &ring).unwrap();
        let rotated = ring.rotated().unwrap();
        let new = create(&packs, &rotated).unwrap();
        assert!(domains(&packs, &rotated).key(old).is_ok() && domains(&packs, &rotated).key(new).is_ok());
        assert_eq!(domains(&packs, &ring).key(new).unwrap_err().kind(), ErrorKind::Damaged);
        let other = Keyring::new(STORE).unwrap();
        assert_eq!(domains(&packs, &other).key(old).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn rights_to_one_domain_are_none_to_others() {
        let (packs, ring) = (MemoryBackend::new(), Keyring::new(STORE).unwrap());
        let [own, other] = [create(&packs, &ring).unwrap(), create(&packs, &ring).unwrap()];
        let only = ring.limited_to(own, lock_of(&packs, &ring, own).unwrap()).unwrap();
        assert!(domains(&packs, &only).key(own).is_ok());
        for (ring, id) in [(&only, other), (&ring.limited(Rights::PutOnly).unwrap(), own)] {
            assert_eq!(domains(&packs, ring).key(id).unwrap_err().kind(), ErrorKind::Denied);
        }
        for ring in [&only, &ring.limited(Rights::ReadOnly).unwrap()] {
            assert_eq!(create(&packs, ring).unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(destroy(&packs, ring, own).unwrap_err().kind(), ErrorKind::Denied);
        }
        assert!(domains(&packs, &ring).key(own).is_ok());
    }

    #[test]
    fn an_interrupted_end_goes_on() {
        let (packs, ring) = (MemoryBackend::new(), Keyring::new(STORE).unwrap());
        let id = create(&packs, &ring).unwrap();
        let text = packs.text(&text_name(id)).unwrap().unwrap();
        destroy(&packs, &ring, id).unwrap();
        assert_eq!(domains(&packs, &ring).key(id).unwrap_err().kind(), ErrorKind::Destroyed);
        // It was interrupted between its two steps: it has not happened yet.
        packs.put_text(&text_name(id), &text).unwrap();
        assert!(domains(&packs, &ring).key(id).is_ok());
        destroy(&packs, &ring, id).unwrap();
        assert_eq!(packs.text(&text_name(id)).unwrap(), None);
        assert_eq!(list(&packs).unwrap().iter().map(|text| text.domain).collect::<Vec<_>>(), [id]);
        // A secret that is missing, and was not destroyed, is damage.
        let lost = create(&packs, &ring).unwrap();
        packs.remove_text(&text_name(lost)).unwrap();
        assert_eq!(domains(&packs, &ring).key(lost).unwrap_err().kind(), ErrorKind::Damaged);
    }
}
