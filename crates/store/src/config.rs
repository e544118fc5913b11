//! `store.toml`: what a store is, written once by `init` and then never.

use std::path::Path;
use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::{
    ChunkerSpec, CodecChoice, CodecSpec, FingerprintKind, StoreId, checksum, parse_size, print_size,
};
use serde::{Deserialize, Serialize};

use crate::backend::{self, Access, Backend, CacheLimits, CachedBackend, LocalBackend, Location};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::keys::slots::copy_slots;
use crate::keys::{Key, Keyring, NewKeys, RingId, unlock};
use crate::layout::CONFIG_FILE;
use crate::sealed::sealed;

/// The format's version that this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The directory in which a store with distant packs caches blocks of them. It may be removed at
/// any time when nothing runs.
pub const CACHE_DIR: &str = "cache";

/// A store's fixed properties and its defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Random, per store.
    pub id: StoreId,
    /// Names chunks.
    pub fingerprint: FingerprintKind,
    /// Default chunker; directories may have another.
    pub chunker: ChunkerSpec,
    /// Default codec; directories may have another.
    pub codec: CodecChoice,
    /// Raw bytes in a frame at most.
    pub frame_size: u32,
    /// Bytes in a pack, about.
    pub pack_size: u32,
    /// Made for experiments: some fingerprints may have been believed without being computed.
    pub experiment: bool,
    /// Where packs lie; `None`: in `packs/` of the store's directory.
    pub packs: Option<Location>,
    /// The number of the keyring that everything is encrypted with that lies on disks and servers;
    /// `None` if nothing is.
    pub keyring: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    id: String,
    fingerprint: String,
    chunker: String,
    codec: String,
    frame_size: String,
    pack_size: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    experiment: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<String>,
    checksum: String,
}

/// The keys that this program knows. Any other stands for something that a store must not be used
/// without.
const KEYS: [&str; 11] = [
    "format",
    "id",
    "fingerprint",
    "chunker",
    "codec",
    "frame_size",
    "pack_size",
    "experiment",
    "packs",
    "encryption",
    "checksum",
];

/// How packs, metadata and everything else are encrypted: docs/decisions/0029-encryption.md. The
/// keyring's number follows.
const ENCRYPTION: &str = "v1 ";

/// The line that ends the file begins with this; the checksum is that of everything before it.
const CHECKSUM_LINE: &str = "checksum = ";

/// A named set of defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Chunks of 16 KiB, frames of 512 KiB, zstd:1: fastest of those that compress well.
    Default,
    /// Chunks of 8 KiB, zstd:2: finds more, at a larger index.
    Dense,
    /// Chunks of 64 KiB, zstd:2: a smaller index, for large files.
    Large,
    /// Chunks of 8 KiB, frames of 1 MiB, a higher level: smallest, slower to write and to read at
    /// random.
    Archive,
}

impl Profile {
    /// From its name.
    ///
    /// # Errors
    /// `Invalid` for an unknown name.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "default" => Ok(Self::Default),
            "dense" => Ok(Self::Dense),
            "large" => Ok(Self::Large),
            "archive" => Ok(Self::Archive),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("`{text}` is not a profile; use default, dense, large or archive"),
            )),
        }
    }

    /// The configuration it stands for, with a new id.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn config(self) -> Result<StoreConfig> {
        let gear = |min: u32, avg: u32, max: u32| ChunkerSpec::Gear32 {
            min: min << 10,
            avg: avg << 10,
            max: max << 10,
        };
        let (chunker, level, frame_size) = match self {
            Self::Default => (ChunkerSpec::DEFAULT, 1, 512 << 10),
            Self::Dense => (gear(2, 8, 32), 2, 512 << 10),
            Self::Large => (gear(32, 64, 256), 2, 512 << 10),
            Self::Archive => (gear(2, 8, 32), 9, 1 << 20),
        };
        Ok(StoreConfig {
            id: StoreId(clock::random()?),
            fingerprint: FingerprintKind::Blake3,
            chunker,
            codec: CodecSpec { codec: outrigger_format::Codec::Zstd, level }.into(),
            frame_size,
            pack_size: 64 << 20,
            experiment: false,
            packs: None,
            keyring: None,
        })
    }
}

impl StoreConfig {
    /// Checks options against each other: the frame size against its bounds.
    ///
    /// # Errors
    /// `Invalid`, saying which bound.
    pub fn validate(&self) -> Result<()> {
        if !(4 << 10..=16 << 20).contains(&self.frame_size) {
            return Err(Error::new(ErrorKind::Invalid, "the frame size must be from 4K to 16M"));
        }
        if !(1 << 20..=1 << 30).contains(&self.pack_size) {
            return Err(Error::new(ErrorKind::Invalid, "the pack size must be from 1M to 1G"));
        }
        Ok(())
    }

    /// True if everything is encrypted that lies on disks and servers.
    pub fn is_encrypted(&self) -> bool {
        self.keyring.is_some()
    }

    /// The name of its keyring.
    pub fn ring_id(&self) -> Option<RingId> {
        self.keyring.map(|number| RingId { store: self.id, number })
    }

    /// Finds the keys of the store whose directory on this host is `dir`; `None` if it is not
    /// encrypted.
    ///
    /// # Errors
    /// As [`unlock`].
    pub fn unlock(&self, dir: &Path, access: Access) -> Result<Option<Arc<Keyring>>> {
        let packs = || self.open_uncached(dir, Access { create: false, read_only: true, ..access });
        self.ring_id().map(|id| unlock::unlock(id, dir, &packs)).transpose()
    }

    /// As [`StoreConfig::unlock`], for a caller that makes or replaces a database.
    ///
    /// # Errors
    /// As there; `Denied` for a key without all rights.
    pub(crate) fn unlock_to_change(&self, dir: &Path, access: Access) -> Result<Option<Arc<Keyring>>> {
        let keys = self.unlock(dir, access)?;
        keys.iter().try_for_each(|keys| keys.rights().require_all())?;
        Ok(keys)
    }

    /// Writes the slots of a new store, whose place for packs is claimed, beside its packs, durably;
    /// copies them to `dir`; and keeps the keyring for this process. Returns the database's key.
    ///
    /// # Errors
    /// When they cannot be written; `Invalid` without a slot, as nobody could open the store.
    pub(crate) fn write_keys(&self, keys: &NewKeys, dir: &Path) -> Result<Key> {
        if keys.slots().is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "an encrypted store needs a key"));
        }
        let packs = self.open_uncached(dir, Access::default())?;
        for slot in keys.slots() {
            let (name, text) = (slot.file_name(), slot.to_text());
            // There already after an earlier round of the same copy.
            if packs.text(&name)?.as_ref() != Some(&text) {
                packs.put_text(&name, &text)?;
            }
        }
        if self.packs.is_some() {
            copy_slots(dir, keys.slots());
        }
        unlock::keep(Arc::clone(&keys.ring));
        Ok(keys.ring.database_key())
    }

    /// Opens the packs of the store whose directory is `dir`: at the configured place, or in `dir`
    /// itself. With `keys` they are encrypted.
    ///
    /// # Errors
    /// As [`backend::open`]; `Damaged` when the packs there are another store's.
    pub fn open_packs(
        &self,
        dir: &Path,
        access: Access,
        keys: Option<&Arc<Keyring>>,
    ) -> Result<Arc<dyn Backend>> {
        Ok(sealed(self.open_stored_packs(dir, access)?, keys))
    }

    fn open_stored_packs(&self, dir: &Path, access: Access) -> Result<Arc<dyn Backend>> {
        let cache = (!access.read_only).then(|| dir.join(CACHE_DIR));
        let cached = |backend| -> Arc<dyn Backend> {
            Arc::new(CachedBackend::new(backend, cache.as_deref(), CacheLimits::default()))
        };
        match &self.packs {
            // Blocks of a distant tier are cached on disk.
            Some(Location::Tiers(tiers)) => {
                let tiered = backend::open_tiers(tiers, &mut |location| {
                    let backend = backend::open(location, access)?;
                    Ok(if location.is_remote() { cached(backend) } else { backend })
                })?;
                self.require_claim(&*tiered, access)?;
                Ok(tiered)
            }
            Some(location) if location.is_remote() => Ok(cached(self.open_uncached(dir, access)?)),
            _ => self.open_uncached(dir, access),
        }
    }

    /// Fails unless the packs there are this store's.
    fn require_claim(&self, backend: &dyn Backend, access: Access) -> Result<()> {
        if access.create || backend.claimed()?.is_some_and(|claim| claim == self.to_text()) {
            return Ok(());
        }
        let location = self.packs.as_ref().map(ToString::to_string).unwrap_or_default();
        let why = format!(
            "{location} does not hold the packs of this store: is it the right place, and is the right file system mounted there?"
        );
        Err(Error::new(ErrorKind::NotFound, why))
    }

    /// As [`StoreConfig::open_packs`], but nothing that is read is kept nearby, and packs are as
    /// they are stored: encrypted if the store is.
    ///
    /// # Errors
    /// As there.
    pub fn open_uncached(&self, dir: &Path, access: Access) -> Result<Arc<dyn Backend>> {
        let Some(location) = &self.packs else {
            return Ok(Arc::new(LocalBackend::open(dir, access.create, access.read_only)?));
        };
        let backend = backend::open(location, access)?;
        self.require_claim(&*backend, access)?;
        Ok(backend)
    }

    /// Makes the place for a new store's packs, and notes there that it is this store's.
    ///
    /// # Errors
    /// `Exists` when it is another store's, or has packs.
    pub fn claim_packs(&self, dir: &Path) -> Result<()> {
        let backend = self.open_uncached(dir, Access { create: true, ..Access::default() })?;
        let Some(location) = &self.packs else { return Ok(()) };
        if backend.claimed()?.is_none() && !backend.list()?.is_empty() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{location} holds packs already; name an empty place"),
            ));
        }
        // All places are checked before one is claimed.
        for place in backend.tiers().map_or(&[][..], |tiered| tiered.places()) {
            if place.backend.claimed()?.is_some_and(|claim| claim != self.to_text()) {
                return Err(Error::new(ErrorKind::Exists, format!("{} is another store's", place.tier)));
            }
        }
        backend.claim(&self.to_text())
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let file = File {
            format: FORMAT_VERSION,
            id: self.id.to_string(),
            fingerprint: self.fingerprint.name().to_string(),
            chunker: self.chunker.to_string(),
            codec: self.codec.to_string(),
            frame_size: print_size(self.frame_size.into()),
            pack_size: print_size(self.pack_size.into()),
            experiment: self.experiment,
            packs: self.packs.as_ref().map(Location::to_string),
            encryption: self.keyring.map(|number| format!("{ENCRYPTION}{number:016x}")),
            checksum: String::new(),
        };
        let body = toml::to_string(&file).expect("strings and numbers serialise");
        let body = body.split(CHECKSUM_LINE).next().unwrap_or_default();
        let text =
            format!("# An Outrigger store. Do not edit: `outrigger init` wrote this file for good.\n{body}");
        let sum = checksum(&[text.as_bytes()]);
        format!("{text}{CHECKSUM_LINE}\"{sum:016x}\"\n")
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// `Newer` for a later format, `Damaged` for anything unreadable.
    pub fn from_text(text: &str) -> Result<Self> {
        let damaged = |why: String| Error::damaged(format!("{CONFIG_FILE}: {why}"));
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| damaged(error.message().to_string()))?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(format) if format > i64::from(FORMAT_VERSION) => {
                return Err(Error::new(
                    ErrorKind::Newer,
                    format!(
                        "the store has format {format}, this program reads up to {FORMAT_VERSION}; use a newer outrigger"
                    ),
                ));
            }
            Some(1..) => {}
            _ => return Err(damaged("no format number".to_string())),
        }
        let (covered, sum) = text.rsplit_once(CHECKSUM_LINE).unwrap_or((text, ""));
        if sum != format!("\"{:016x}\"\n", checksum(&[covered.as_bytes()])) {
            return Err(damaged(
                "its checksum does not match; restore the file that `init` wrote, or rebuild it with `outrigger recover`"
                    .to_string(),
            ));
        }
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let why =
                format!("the store has `{key}`, which this program does not know; use a newer outrigger");
            return Err(Error::new(ErrorKind::Newer, why));
        }
        let file: File =
            table.try_into().map_err(|error: toml::de::Error| damaged(error.message().to_string()))?;
        let mut id = [0; 16];
        if file.id.len() != 32 || !file.id.is_ascii() {
            return Err(damaged("the id is not 32 hex digits".to_string()));
        }
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&file.id[2 * at..2 * at + 2], 16)
                .map_err(|_| damaged("the id is not 32 hex digits".to_string()))?;
        }
        let size = |text: &str| {
            let size = parse_size(text).context(|| CONFIG_FILE.to_string())?;
            u32::try_from(size).map_err(|_| damaged(format!("`{text}` is too large")))
        };
        let keyring = file.encryption.as_deref().map(|text| {
            let number = text.strip_prefix(ENCRYPTION).and_then(|number| u64::from_str_radix(number, 16).ok());
            number.ok_or_else(|| {
                let why = format!(
                    "the store is encrypted by `{text}`, which this program does not know; use a newer outrigger"
                );
                Error::new(ErrorKind::Newer, why)
            })
        });
        let keyring = keyring.transpose()?;
        let config = Self {
            id: StoreId(id),
            fingerprint: FingerprintKind::parse(&file.fingerprint).context(|| CONFIG_FILE.to_string())?,
            chunker: ChunkerSpec::parse(&file.chunker).context(|| CONFIG_FILE.to_string())?,
            codec: CodecChoice::parse(&file.codec).context(|| CONFIG_FILE.to_string())?,
            frame_size: size(&file.frame_size)?,
            pack_size: size(&file.pack_size)?,
            experiment: file.experiment,
            packs: file
                .packs
                .as_deref()
                .map(Location::parse)
                .transpose()
                .context(|| CONFIG_FILE.to_string())?,
            keyring,
        };
        config.validate()?;
        Ok(config)
    }

    /// Reads the file of the store at `dir`; `None` when there is no such file.
    ///
    /// # Errors
    /// When it cannot be read, or as [`StoreConfig::from_text`].
    pub fn find(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(CONFIG_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::from_text(&text).map(Some).context(|| dir.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(Error::damaged(format!("{} is not text", path.display())))
            }
            Err(error) => Err(error).context(|| format!("cannot read {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_back() {
        for profile in [Profile::Default, Profile::Dense, Profile::Large, Profile::Archive] {
            let config = profile.config().unwrap();
            assert!(!config.to_text().contains("experiment"), "a store that is none says nothing of it");
            assert_eq!(StoreConfig::from_text(&config.to_text()).unwrap(), config);
            assert!(!config.to_text().contains("packs ="), "nor one whose packs lie beside it");
            let config = StoreConfig { experiment: true, ..config };
            assert_eq!(StoreConfig::from_text(&config.to_text()).unwrap(), config);
            let packs = Location::parse("s3://bucket/a?endpoint=http://host:9000&region=here").unwrap();
            let config = StoreConfig { packs: Some(packs), ..config };
            assert_eq!(StoreConfig::from_text(&config.to_text()).unwrap(), config);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let config = Profile::Default.config().unwrap();
        let mut bytes = config.to_text().into_bytes();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = std::str::from_utf8(&bytes).map(StoreConfig::from_text);
            assert!(!matches!(read, Ok(Ok(_))), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_advice() {
        let text = Profile::Default.config().unwrap().to_text().replace("format = 1", "format = 2\nwhat = 3");
        let error = StoreConfig::from_text(&text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Newer);
        assert!(error.to_string().contains("newer outrigger"), "{error}");
    }

    #[test]
    fn a_key_of_a_newer_program_is_refused_with_advice() {
        let text = Profile::Default.config().unwrap().to_text();
        let body = text.split(CHECKSUM_LINE).next().unwrap().to_string() + "domain = 1\n";
        let sum = checksum(&[body.as_bytes()]);
        let error = StoreConfig::from_text(&format!("{body}{CHECKSUM_LINE}\"{sum:016x}\"\n")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Newer);
        assert!(error.to_string().contains("`domain`"), "{error}");
    }

    #[test]
    fn nonsense_is_damage() {
        for text in ["", "format = 1", "\0\0", "format = 0", "format = \"x\""] {
            assert_eq!(StoreConfig::from_text(text).unwrap_err().kind(), ErrorKind::Damaged, "{text:?}");
        }
    }
}
