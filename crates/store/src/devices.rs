//! The devices that work for a store beside the processor, from when they are open.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use outrigger_offload::Opening;

use crate::config::StoreConfig;
use crate::index::Index;
use crate::table_cache::{TableCache, TableCacheOptions};

/// What a store was given by [`crate::Store::use_devices`], and the table cache that goes with it.
pub(crate) struct StoreDevices {
    pub opening: Arc<Opening>,
    pub config: StoreConfig,
    /// How a table cache is kept, and its file; `None` where there is to be none.
    pub options: Option<(TableCacheOptions, PathBuf)>,
    pub index: Arc<Index>,
    pub table_cache: OnceLock<Option<Arc<TableCache>>>,
}

impl StoreDevices {
    /// The table cache, from now on, if any device that is open can look chunks up.
    pub fn start_table_cache(&self) -> Option<&Arc<TableCache>> {
        let runtime = self.opening.runtime()?;
        let start = || {
            let (options, path) = self.options.clone()?;
            crate::write::has_use_for_table_cache(runtime, &self.config).then(|| {
                let (index, runtime) = (Arc::clone(&self.index), Arc::clone(runtime));
                Arc::new(TableCache::start(Some(path), self.config.id, index, runtime, options))
            })
        };
        self.table_cache.get_or_init(start).as_ref()
    }
}
