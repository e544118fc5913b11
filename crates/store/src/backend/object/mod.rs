//! Packs in an S3-compatible object store: `PREFIX/packs/XX/ID.pack`, the names of a local store,
//! so that any tool can move one.
//!
//! A pack is one object. Usual packs are put whole, by one request that succeeds only if the name
//! is free (`If-None-Match: *`): an id is never overwritten, whatever two clients believe. Larger
//! ones are uploaded in parts (`writer.rs`). A failed request is repeated (`retry.rs`). If it had
//! succeeded in fact, the second one finds our own bytes under the name, which is no failure.
//!
//! The object store must return written data to later reads and listings: S3 itself, Ceph's gateway
//! and MinIO do.

mod bounded;
mod client;
mod lock;
mod retry;
mod texts;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use outrigger_format::PackId;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::location::S3Location;
use super::texts::{TextName, require_folder};
use super::{Access, Backend, PackWriter, names};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Health;
use crate::runtime;

use bounded::Refused;
use client::Client;
pub use client::{Keys, Patience};
use lock::Lock;
use retry::attempt;
use texts::Texts;
use writer::{Uploading, Writer};

/// Packs that may be going up at once: each has its bytes in memory until the object store has
/// acknowledged them.
const UPLOADS_MAX: usize = 4;
/// Requests with data that are under way at once.
const REQUESTS_MAX: usize = 16;

/// Bytes that are reserved for an answer before any of it has come.
const RESERVED_MAX: u64 = 1 << 20;

/// State that [`ObjectBackend`] shares with its writers.
struct Shared {
    client: Client,
    handle: &'static Handle,
    patience: Patience,
    health: Health,
    requests: Semaphore,
    uploading: Uploading,
    /// The beginning of all keys: empty, or `PREFIX/`.
    prefix: String,
    /// For messages.
    place: String,
}

/// See the module.
pub struct ObjectBackend {
    shared: Arc<Shared>,
    /// If packs are locked.
    lock: Option<Lock>,
    read_only: bool,
}

impl ObjectBackend {
    /// Opens the packs at `location`. Never makes a bucket: credentials for objects often do not
    /// allow that.
    ///
    /// # Errors
    /// `NotFound` when there is no such bucket, `Denied`, `Invalid`.
    pub fn open(location: &S3Location, access: Access, patience: Patience) -> Result<Self> {
        Self::open_with(location, access, patience, None)
    }

    /// As [`ObjectBackend::open`], with these keys and not those that the environment names.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        location: &S3Location,
        access: Access,
        patience: Patience,
        keys: Option<Keys>,
    ) -> Result<Self> {
        let client = Arc::new(client::build(location, &patience, keys)?);
        let prefix = if location.prefix.is_empty() { String::new() } else { format!("{}/", location.prefix) };
        let shared = Shared {
            client,
            handle: runtime::handle()?,
            patience,
            health: Health::new(patience.give_up),
            requests: Semaphore::new(REQUESTS_MAX),
            uploading: Uploading::default(),
            place: format!("s3://{}/{prefix}", location.bucket),
            prefix,
        };
        let lock = location.lock.map(|days| Lock::new(days, &patience)).transpose()?;
        Ok(Self { shared: Arc::new(shared), lock, read_only: access.read_only })
    }

    /// Requests that failed and were made again, since the packs were opened.
    pub fn retries(&self) -> u64 {
        self.shared.health.retries.load(Ordering::Relaxed)
    }

    fn texts_here(&self) -> Texts<'_> {
        Texts { shared: &self.shared, read_only: self.read_only }
    }

    fn refuse_read_only(&self, id: PackId, what: &str) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!("cannot {what} {}: opened read-only", self.shared.name(id)),
        ))
    }
}

impl Shared {
    /// Where pack `id` lies.
    fn key(&self, id: PackId) -> Path {
        Path::from(format!("{}packs/{}/{}", self.prefix, names::folder(id), names::file(id)))
    }

    /// Pack `id`, for messages.
    fn name(&self, id: PackId) -> String {
        format!("pack {}packs/{}/{}", self.place, names::folder(id), names::file(id))
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }

    /// The length of the object at `key`; `None` when there is none.
    async fn head(&self, key: &Path, what: &(dyn Fn() -> String + Sync)) -> Result<Option<u64>> {
        let head = attempt(&self.health, &self.patience, what, |_| self.client.head(key)).await;
        match head {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bytes of `range` as far as they are there, and the object's length.
    async fn get(
        &self,
        key: &Path,
        range: GetRange,
        what: &(dyn Fn() -> String + Sync),
    ) -> Result<(Vec<u8>, u64)> {
        attempt(&self.health, &self.patience, what, |_| async {
            let _permit = self.requests.acquire().await;
            let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
            let result = self.client.get_opts(key, options).await?;
            let size = result.meta.size;
            let expected = result.range.end - result.range.start;
            // The length is a claim until the bytes have come.
            let mut bytes = Vec::with_capacity(expected.min(RESERVED_MAX) as usize);
            let mut stream = result.into_stream();
            while let Some(part) = stream.try_next().await? {
                bytes.extend_from_slice(&part);
            }
            if bytes.len() as u64 == expected {
                return Ok((bytes, size));
            }
            let why = format!("the answer ended after {} of {expected} bytes", bytes.len());
            Err(object_store::Error::Generic { store: "S3", source: why.into() })
        })
        .await
    }

    /// What `pick` makes of the keys below `root`. Keys must rise, as S3 lists them: pages that
    /// repeat themselves would have no end.
    async fn list<T>(
        &self,
        root: &Path,
        pick: &(dyn Fn(&Path) -> Option<T> + Sync),
    ) -> object_store::Result<Vec<T>> {
        let (mut objects, mut picked, mut last) = (self.client.list(Some(root)), Vec::new(), Path::default());
        while let Some(object) = objects.try_next().await? {
            if object.location <= last {
                let why = format!("the listing goes back from `{last}`");
                return Err(object_store::Error::Generic { store: "S3", source: Refused(why).into() });
            }
            picked.extend(pick(&object.location));
            last = object.location;
        }
        Ok(picked)
    }

    /// The ids that `parse` finds in the names below `folder`, rising.
    fn list_ids(&self, folder: &str, parse: fn(&str) -> Option<PackId>) -> Result<Vec<PackId>> {
        let root = Path::from(format!("{}{folder}", self.prefix));
        let what = || format!("cannot list the packs in {}", self.place);
        let pick = |location: &Path| {
            let id = location.filename().and_then(parse);
            id.filter(|id| *location == self.key(*id))
        };
        let mut ids =
            self.block_on(attempt(&self.health, &self.patience, &what, |_| self.list(&root, &pick)))?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Removes an object; one that is not there is no error.
    fn delete(&self, key: &Path, what: &(dyn Fn() -> String + Sync)) -> Result<()> {
        let delete = attempt(&self.health, &self.patience, what, |_| self.client.delete(key));
        match self.block_on(delete) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// Puts an object where none is; `Exists` where there is one, which an earlier one of these
    /// `tries` may have put.
    async fn put_new(
        &self,
        key: &Path,
        payload: PutPayload,
        tries: &AtomicU32,
        what: &(dyn Fn() -> String + Sync),
    ) -> Result<()> {
        let put = attempt(&self.health, &self.patience, what, |_| async {
            tries.fetch_add(1, Ordering::Relaxed);
            let _permit = self.requests.acquire().await;
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            self.client.put_opts(key, payload.clone(), options).await
        });
        put.await.map(drop)
    }
}

impl Backend for ObjectBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.refuse_read_only(id, "create")?;
        // An early error where possible; the put itself decides.
        if self.len(id)?.is_some() {
            let why = format!("cannot create {}: it exists", self.shared.name(id));
            return Err(Error::new(ErrorKind::Exists, why));
        }
        Ok(Box::new(Writer::new(id, Arc::clone(&self.shared))))
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let wanted = buf.len();
        let what = || format!("cannot read {wanted} bytes at offset {offset} of {}", self.shared.name(id));
        let range = GetRange::Bounded(offset..offset + wanted as u64);
        let short = |end: String| {
            let name = self.shared.name(id);
            Error::damaged(format!(
                "{name} is too short: {wanted} bytes wanted at offset {offset}, it ends {end}"
            ))
        };
        let key = self.shared.key(id);
        let (bytes, size) = match self.shared.block_on(self.shared.get(&key, range, &what)) {
            Err(error) if error.kind() == ErrorKind::Damaged => return Err(short("before that".into())),
            got => got?,
        };
        if bytes.len() != wanted {
            return Err(short(format!("before {size}")));
        }
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        let what = || format!("cannot look at {}", self.shared.name(id));
        self.shared.block_on(self.shared.head(&self.shared.key(id), &what))
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "remove")?;
        let what = || format!("cannot remove {}", self.shared.name(id));
        self.shared.delete(&self.shared.key(id), &what)
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.shared.list_ids("packs", names::parse)
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.shared.list_ids(&format!("packs/{}", names::PARITY_DIR), names::parse_parity)
    }

    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        let what = || format!("cannot read the end of {}", self.shared.name(id));
        let range = GetRange::Suffix(max as u64);
        match self.shared.block_on(self.shared.get(&self.shared.key(id), range, &what)) {
            Ok(got) => Ok(Some(got)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // An object without bytes has no last ones.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                Ok(self.len(id)?.map(|len| (Vec::new(), len)))
            }
            Err(error) => Err(error),
        }
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "move")?;
        let shared = &self.shared;
        let (from, to) = (
            shared.key(id),
            Path::from(format!("{}{}/{}", shared.prefix, super::DAMAGED_DIR, names::file(id))),
        );
        let what = || format!("cannot copy {} to {to}", shared.name(id));
        let copy = attempt(&shared.health, &shared.patience, &what, |_| shared.client.copy(&from, &to));
        match shared.block_on(copy) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            copied => copied.and_then(|()| self.remove(id)),
        }
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.texts_here().put(TextName::to_put(name, text)?, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.texts_here().get(TextName::parse(name)?)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        require_folder(folder)?;
        self.texts_here().list(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.texts_here().remove(TextName::to_remove(name)?)
    }

    fn place(&self) -> Option<String> {
        Some(self.shared.place.clone())
    }

    fn lock_days(&self) -> Option<u32> {
        self.lock.as_ref().map(|lock| lock.days)
    }

    fn lock(&self, ids: &[PackId]) -> Result<u64> {
        let Some(lock) = &self.lock else { return Ok(0) };
        let seconds = outrigger_clock::now_nanos() / 1_000_000_000;
        self.shared.lock_until(lock, ids, seconds + u64::from(lock.days) * 24 * 60 * 60)
    }

    fn uploads_max(&self) -> usize {
        UPLOADS_MAX
    }

    fn trouble(&self) -> Option<String> {
        self.shared.health.trouble()
    }
}

#[cfg(test)]
mod tests;
