//! Where packs lie: one small trait for production, tests in memory, fault injection and crash
//! recording alike.
//!
//! A pack is written once, front to back, by one [`PackWriter`], and is immutable and durable once
//! [`PackWriter::seal`] has returned. A writer that is dropped unsealed removes its unfinished pack
//! where it can. A writer that is killed leaves its pack behind; it is swept together with its
//! session's intent. Packs are read by ranges, by any number of threads.
//!
//! [`open`] makes the engine that a [`Location`] names. The layers above do not know which one it
//! is.

mod away;
mod cached;
mod local;
mod location;
mod memory;
mod names;
mod object;
mod rados;
mod texts;
mod tiered;

use std::io::IoSlice;
use std::sync::Arc;

use outrigger_format::{Domain, PackId};

use crate::cipher::DomainKey;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::CONFIG_FILE;

pub use away::AwayBackend;
pub use cached::{CacheCounts, CacheLimits, CachedBackend};
pub use local::{DAMAGED_DIR, LocalBackend};
pub use location::{Location, RadosLocation, S3Location};
pub use memory::MemoryBackend;
pub use object::{Keys, ObjectBackend, Patience};
pub use rados::RadosBackend;
pub use texts::{KEYS_DIR, TEXT_MAX, TextName};
pub use tiered::{Fill, Place, Tier, TieredBackend};

/// How packs are opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Makes the place where they lie, if it is not there.
    pub create: bool,
    /// Creating and removing packs is refused with `Denied`.
    pub read_only: bool,
    /// Gives up after seconds, not minutes, if there is no answer: for a caller that only reports
    /// the state.
    pub brief: bool,
}

/// Opens the packs at `location`.
///
/// # Errors
/// `NotFound` when there is no such place and `access.create` is not set, `Denied`; errors of the
/// engine.
pub fn open(location: &Location, access: Access) -> Result<Arc<dyn Backend>> {
    let patience = |secs| if access.brief { Patience::brief() } else { Patience::new(secs) };
    match location {
        Location::Directory(path) => Ok(Arc::new(LocalBackend::open_shared(path, access)?)),
        Location::S3(location) => {
            Ok(Arc::new(ObjectBackend::open(location, access, patience(location.patience))?))
        }
        Location::Rados(location) => {
            Ok(Arc::new(RadosBackend::open(location, access, patience(location.patience))?))
        }
        Location::Tiers(tiers) => open_tiers(tiers, &mut |location| open(location, access)),
    }
}

/// Opens the tiers with `open`.
pub(crate) fn open_tiers(
    tiers: &[Tier],
    open: &mut dyn FnMut(&Location) -> Result<Arc<dyn Backend>>,
) -> Result<Arc<dyn Backend>> {
    let places = tiers.iter().map(|tier| Ok(Place::new(tier.clone(), open(&tier.location)?)));
    Ok(Arc::new(TieredBackend::new(places.collect::<Result<_>>()?)))
}

/// An engine that keeps packs.
pub trait Backend: Send + Sync {
    /// Begins pack `id`.
    ///
    /// # Errors
    /// `Exists` when a pack of that id is there: ids are never used twice. If two writers use the
    /// same id at once, all but one of them get this error, here or when they seal.
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>>;

    /// Like [`Backend::create`], but no reader finds the pack before it is sealed, even if its
    /// writer dies. `None` if the engine cannot do that.
    ///
    /// # Errors
    /// `Exists` when it is sealed, or before.
    fn create_unseen(&self, _id: PackId) -> Result<Option<Box<dyn PackWriter>>> {
        Ok(None)
    }

    /// Removes what killed writers of [`Backend::create_unseen`] left. No such writer may be at
    /// work.
    ///
    /// # Errors
    /// When the engine fails.
    fn clear_unseen(&self) -> Result<()> {
        Ok(())
    }

    /// Fills `buf` from `offset` of pack `id`.
    ///
    /// # Errors
    /// `NotFound` when there is no such pack, `Damaged` when it is too short.
    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Length of pack `id`, bytes; `None` when there is no such pack.
    ///
    /// # Errors
    /// When the engine cannot be asked.
    fn len(&self, id: PackId) -> Result<Option<u64>>;

    /// Removes pack `id`; one that is not there is no error. Durable when it returns.
    ///
    /// # Errors
    /// When the engine fails.
    fn remove(&self, id: PackId) -> Result<()>;

    /// Ids of all packs there, sealed or not, in rising order.
    ///
    /// # Errors
    /// When the engine fails.
    fn list(&self) -> Result<Vec<PackId>>;

    /// The parity files there ([`PackId::of_parity`]), whole or not, in rising order. All other
    /// methods treat them as packs.
    ///
    /// # Errors
    /// When the engine fails.
    fn list_parity(&self) -> Result<Vec<PackId>>;

    /// The domain that a pack was written in.
    ///
    /// # Errors
    /// As [`Backend::read_at`].
    fn domain_of(&self, _id: PackId) -> Result<Domain> {
        Ok(Domain::COMMON)
    }

    /// The key of a domain.
    ///
    /// # Errors
    /// As [`Domains::key`](crate::keys::Domains::key); `Invalid` in a place that encrypts nothing.
    fn domain_key(&self, id: Domain) -> Result<Arc<DomainKey>> {
        Err(Error::new(ErrorKind::Invalid, format!("a store that is not encrypted has no domain {id}")))
    }

    /// The engine that has the packs as they are stored, if this one encrypts them.
    fn stored(&self) -> Option<&dyn Backend> {
        None
    }

    /// The last bytes of pack `id`, at most `max`, and its length; `None` when there is no such
    /// pack. Takes one request where requests are slow.
    ///
    /// # Errors
    /// When the engine fails.
    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        let Some(len) = self.len(id)? else { return Ok(None) };
        let wanted = len.min(max as u64);
        let mut bytes = vec![0; wanted as usize];
        self.read_at(id, len - wanted, &mut bytes)?;
        Ok(Some((bytes, len)))
    }

    /// Takes pack `id` out of the packs, durably, and keeps its bytes where a person finds them. A
    /// pack that is not there is no error.
    ///
    /// # Errors
    /// When the engine fails.
    fn set_aside(&self, id: PackId) -> Result<()>;

    /// Writes a small text beside the packs, under a name that [`TextName`] allows and that is free.
    /// It is whole when it appears, and durable when this returns.
    ///
    /// # Errors
    /// `Exists` when a text of that name is there, which stays as it is; `Invalid` for other names
    /// and for more than [`TEXT_MAX`] bytes; `Denied` when opened read-only.
    fn put_text(&self, name: &str, text: &str) -> Result<()>;

    /// The text of that name; `None` if there is none.
    ///
    /// # Errors
    /// `Damaged` when it has more than [`TEXT_MAX`] bytes or is no text; `Invalid` for other names.
    fn text(&self, name: &str) -> Result<Option<String>>;

    /// The names directly below `folder`, which is [`KEYS_DIR`], sorted and without the folder. A
    /// missing folder is empty. In a Ceph pool this looks at all objects of the store.
    ///
    /// # Errors
    /// `Invalid` for another folder; when the engine fails.
    fn texts(&self, folder: &str) -> Result<Vec<String>>;

    /// Removes a text; one that is not there is no error. Durable when it returns.
    ///
    /// # Errors
    /// `Invalid` for `store.toml` and for other names; `Denied` when opened read-only.
    fn remove_text(&self, name: &str) -> Result<()>;

    /// The place where the packs lie, for messages; `None` where it has no name.
    fn place(&self) -> Option<String> {
        None
    }

    /// Records beside the packs which store owns them: the text of the store's `store.toml`. The
    /// same text again is no error.
    ///
    /// # Errors
    /// `Exists` when they belong to another store.
    fn claim(&self, config: &str) -> Result<()> {
        match self.put_text(CONFIG_FILE, config) {
            Err(error) if error.kind() == ErrorKind::Exists => match self.claimed()? {
                Some(claimed) if claimed == config => Ok(()),
                _ => {
                    let whose = self.place().map_or_else(
                        || "these packs are another store's".to_owned(),
                        |place| format!("{place} is another store's"),
                    );
                    Err(Error::new(ErrorKind::Exists, whose))
                }
            },
            put => put,
        }
    }

    /// The text that [`Backend::claim`] recorded; `None` if there is none.
    ///
    /// # Errors
    /// When the engine fails.
    fn claimed(&self) -> Result<Option<String>> {
        self.text(CONFIG_FILE)
    }

    /// How many packs may be sealing at once: more than one if sealing waits for a network.
    fn uploads_max(&self) -> usize {
        1
    }

    /// True if listing all packs takes only milliseconds.
    fn lists_cheaply(&self) -> bool {
        false
    }

    /// For how many days packs are locked here (`lock=DAYS`): so long nobody can remove them.
    fn lock_days(&self) -> Option<u32> {
        None
    }

    /// Locks packs for so many days from now, where they are locked at all; returns how many. Packs
    /// that are not there are passed over.
    ///
    /// # Errors
    /// `Denied` without the right to lock; when the engine fails.
    fn lock(&self, _ids: &[PackId]) -> Result<u64> {
        Ok(0)
    }

    /// True if pack `id` is encrypted with a key of the newest epoch, or this engine does not
    /// encrypt.
    ///
    /// # Errors
    /// When the pack cannot be read.
    fn has_newest_key(&self, _id: PackId) -> Result<bool> {
        Ok(true)
    }

    /// Closes files of packs that another process has removed: an open file takes space on its
    /// disk. Called once a second while there is a session.
    fn tend(&self) {}

    /// Drops cached data of pack `id`. True if there was any: then a read that found damage is
    /// worth another try.
    fn forget(&self, _id: PackId) -> bool {
        false
    }

    /// How often reads were answered from a cache; `None` where nothing is cached.
    fn cache_counts(&self) -> Option<CacheCounts> {
        None
    }

    /// Says whether reads may be answered from data that was cached before; at first they may. If
    /// not, all data cached in memory is dropped.
    fn use_cache(&self, _on: bool) {}

    /// Explains in a clause what is wrong with the engine just now; `None` while its requests
    /// succeed.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The tiers, if packs lie in several.
    fn tiers(&self) -> Option<&TieredBackend> {
        None
    }

    /// The hosts that may hold packs, if a pack's id alone decides which of them do. Then
    /// [`Backend::locate`] also answers for packs that do not exist yet, and a writer can choose a
    /// host. Empty if the engine cannot do that.
    ///
    /// # Errors
    /// When the engine cannot be asked.
    fn hosts(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The hosts that hold pack `id`, the one to read from first; empty if the engine does not
    /// know.
    ///
    /// # Errors
    /// When the engine fails.
    fn locate(&self, _id: PackId) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The engine's name for the host `name`, on which packs are to lie first.
///
/// # Errors
/// `Invalid` if a host cannot be chosen, or there is no such host; the message lists the hosts.
pub fn place_on(backend: &dyn Backend, name: &str) -> Result<String> {
    let hosts = backend.hosts()?;
    if hosts.is_empty() {
        let why = format!(
            "packs cannot be placed on `{name}`: where they lie is not for their writer to choose; only in a Ceph pool (rados://) it is"
        );
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    hosts.iter().find(|host| is_same_host(host, name)).cloned().ok_or_else(|| {
        let why = format!("no host of the cluster is called `{name}`; there are {}", hosts.join(", "));
        Error::new(ErrorKind::Invalid, why)
    })
}

/// True if two names, each with or without its domain, are of one host.
pub fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    one == other || (short(one) == short(other) && !one.starts_with(|first: char| first.is_ascii_digit()))
}

/// Writes one pack.
pub trait PackWriter: Send {
    /// Appends all of `parts`, in order.
    ///
    /// # Errors
    /// `Full` or `Io`; the pack is then unusable and its writer should be dropped.
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()>;

    /// Encrypts the pack with the key of a domain. Called before anything is appended.
    ///
    /// # Errors
    /// `Invalid` in a place that encrypts nothing.
    fn use_domain(&mut self, domain: &DomainKey) -> Result<()> {
        Err(Error::new(
            ErrorKind::Invalid,
            format!("a store that is not encrypted has no domain {}", domain.id),
        ))
    }

    /// Says that the pack's footer and trailer follow. Engines that encrypt let hosts read them that
    /// may not read the frames before; to others it is the same.
    ///
    /// # Errors
    /// As `append`.
    fn begin_footer(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends the appending: slow work may begin now, and [`PackWriter::seal`] waits for it.
    ///
    /// # Errors
    /// As `append`.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes the pack and its name durable.
    ///
    /// # Errors
    /// When a sync failed: nothing may rely on the pack then.
    fn seal(self: Box<Self>) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::{MemoryBackend, is_same_host, place_on};
    use crate::error::ErrorKind;

    #[test]
    fn hosts_are_known_by_either_name() {
        assert!(is_same_host("osd1.example.org", "osd1") && is_same_host("a", "a"));
        assert!(!is_same_host("osd1", "osd2") && !is_same_host("10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn a_host_is_chosen_by_name_where_one_can() {
        let backend = MemoryBackend::on_hosts(&["h0.example.org", "h1"]);
        assert_eq!(place_on(&backend, "h0").unwrap(), "h0.example.org");
        let error = place_on(&backend, "h2").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("h0.example.org, h1"), "{error}");
        let error = place_on(&MemoryBackend::new(), "h0").unwrap_err();
        assert!(error.to_string().contains("rados://"), "{error}");
    }
}
