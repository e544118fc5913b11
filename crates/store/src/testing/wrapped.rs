//! An engine with hooks for tests: on its reads, and on the hosts that it reports.

use std::sync::Arc;

use outrigger_format::PackId;

use crate::backend::{Backend, PackWriter};
use crate::error::Result;
use crate::store::Store;

type BeforeRead = Box<dyn Fn(PackId, usize) + Send + Sync>;
type Locate = Box<dyn Fn(PackId) -> Vec<String> + Send + Sync>;

/// Passes everything on to another engine. Default methods keep their defaults: nothing is cached,
/// and there are no tiers.
pub struct Wrapped {
    inner: Arc<dyn Backend>,
    before_read: BeforeRead,
    hosts: Vec<String>,
    locate: Locate,
    uploads_max: usize,
}

impl Wrapped {
    /// Wraps `inner`, with unknown places of packs.
    pub fn over(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            before_read: Box::new(|_, _| ()),
            hosts: Vec::new(),
            locate: Box::new(|_| Vec::new()),
            uploads_max: 1,
        }
    }

    /// As where requests take their time.
    #[must_use]
    pub fn far(mut self) -> Self {
        self.uploads_max = 8;
        self
    }

    /// Calls `before` with the pack and the number of bytes of each read; it may wait, or panic.
    #[must_use]
    pub fn before_reads(mut self, before: impl Fn(PackId, usize) + Send + Sync + 'static) -> Self {
        self.before_read = Box::new(before);
        self
    }

    /// Lets `locate` report the hosts of a pack; they cannot be chosen.
    #[must_use]
    pub fn located(mut self, locate: impl Fn(PackId) -> Vec<String> + Send + Sync + 'static) -> Self {
        self.locate = Box::new(locate);
        self
    }

    /// Packs lie on two of `hosts`, which their ids choose, as in a Ceph pool; none on `without`,
    /// which is there.
    #[must_use]
    pub fn spread_over(mut self, hosts: &[&str], without: Option<&str>) -> Self {
        self.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut used = self.hosts.clone();
        used.retain(|host| Some(host.as_str()) != without);
        self.located(move |id| {
            let at = (id.0 % used.len() as u64) as usize;
            (0..2.min(used.len())).map(|next| used[(at + next) % used.len()].clone()).collect()
        })
    }
}

/// Makes the packs of `store` lie on `hosts`.
pub fn spread(store: &mut Store, hosts: &[&str]) {
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).spread_over(hosts, None));
}

impl Backend for Wrapped {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.inner.create(id)
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        (self.before_read)(id, buf.len());
        self.inner.read_at(id, offset, buf)
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        self.inner.len(id)
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.inner.remove(id)
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.inner.list()
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.inner.list_parity()
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.inner.set_aside(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.inner.put_text(name, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.inner.text(name)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        self.inner.texts(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.inner.remove_text(name)
    }

    fn place(&self) -> Option<String> {
        self.inner.place()
    }

    fn uploads_max(&self) -> usize {
        self.uploads_max
    }

    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        Ok(self.hosts.clone())
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        Ok((self.locate)(id))
    }
}
