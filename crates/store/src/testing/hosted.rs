//! Packs that lie on hosts which their ids choose, as in a Ceph pool: of any engine, by what it says of them.

use std::sync::Arc;

use outrigger_format::PackId;

use crate::backend::{Backend, PackWriter};
use crate::error::Result;
use crate::store::Store;

/// An engine that says of each pack that it lies on two of its hosts.
pub struct Hosted {
    inner: Arc<dyn Backend>,
    hosts: Vec<String>,
    /// No pack lies there.
    without: Option<String>,
}

impl Hosted {
    /// `inner`, with its packs on `hosts`.
    pub fn over(inner: impl Backend + 'static, hosts: &[&str]) -> Self {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Self { inner: Arc::new(inner), hosts, without: None }
    }

    /// Has the packs of `store` lie on `hosts`.
    pub fn spread(store: &mut Store, hosts: &[&str]) {
        Self::spread_but(store, hosts, None);
    }

    /// Has them lie on all of these but one, of which the engine says that it is there.
    pub fn spread_without(store: &mut Store, hosts: &[&str], without: &str) {
        Self::spread_but(store, hosts, Some(without.to_owned()));
    }

    fn spread_but(store: &mut Store, hosts: &[&str], without: Option<String>) {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        store.backend = Arc::new(Self { inner: Arc::clone(&store.backend), hosts, without });
    }
}

impl Backend for Hosted {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.inner.create(id)
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
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

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.inner.set_aside(id)
    }

    fn claim(&self, config: &str) -> Result<()> {
        self.inner.claim(config)
    }

    fn claimed(&self) -> Result<Option<String>> {
        self.inner.claimed()
    }

    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        Ok(self.hosts.clone())
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        let hosts: Vec<&String> =
            self.hosts.iter().filter(|host| Some(*host) != self.without.as_ref()).collect();
        let at = (id.0 % hosts.len() as u64) as usize;
        Ok((0..2.min(hosts.len())).map(|next| hosts[(at + next) % hosts.len()].clone()).collect())
    }
}
