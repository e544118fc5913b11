//! The devices that work for a store besides the processor, once they are open.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::Opening;
use outrigger_offload::op::Stream;
use outrigger_offload::runtime::Runtime;
use outrigger_offload::table::HotView;
use outrigger_offload::work::Request;

use crate::config::StoreConfig;
use crate::index::Index;
use crate::keys::Key;
use crate::table_cache::{TableCache, TableCacheOptions};

/// The devices that [`crate::Store::use_devices`] gave a store, and their table cache.
pub(crate) struct StoreDevices {
    pub opening: Arc<Opening>,
    pub config: StoreConfig,
    /// How a table cache is kept, and its file; `None` where there is to be none.
    pub options: Option<(TableCacheOptions, PathBuf)>,
    /// Encrypts that file.
    pub key: Option<Key>,
    pub index: Arc<Index>,
    pub table_cache: OnceLock<Option<Arc<TableCache>>>,
}

impl StoreDevices {
    /// The table cache, from now on, if any device that is open can look chunks up.
    pub fn start_table_cache(&self) -> Option<&Arc<TableCache>> {
        let runtime = self.opening.runtime()?;
        let start = || {
            let (options, path) = self.options.clone()?;
            has_use_for_table_cache(runtime, &self.config).then(|| {
                let (index, runtime) = (Arc::clone(&self.index), Arc::clone(runtime));
                Arc::new(TableCache::start(
                    Some(path),
                    self.config.id,
                    self.key.clone(),
                    index,
                    runtime,
                    options,
                ))
            })
        };
        self.table_cache.get_or_init(start).as_ref()
    }
}

/// A request to cut, hash and (with `view`) look up.
pub(crate) fn ingest(
    streams: Vec<Stream>,
    chunker: ChunkerSpec,
    kind: FingerprintKind,
    view: Option<&HotView>,
) -> Request {
    Request::Ingest { streams, chunker, kind, table: view.map(|view| Arc::clone(view.table())) }
}

/// True if a device besides the processor can do this.
pub(crate) fn can(runtime: &Runtime, request: Request) -> bool {
    let mut draft = runtime.draft(0);
    draft.set_request(request);
    (1..runtime.device_count()).any(|device| runtime.supports(device, draft.work()))
}

/// True if a device can cut, hash and look up chunks with this store's settings.
fn has_use_for_table_cache(runtime: &Runtime, config: &StoreConfig) -> bool {
    can(runtime, ingest(Vec::new(), config.chunker, config.fingerprint, None))
}
