//! The native part of the Python package `outrigger`: a store in the caller's process.
//!
//! Python sees these classes through `outrigger/store.py` and `outrigger/file.py`, which have the
//! types and the documentation. Paths are bytes here, and results are plain tuples and
//! dictionaries.
//!
//! No method holds the interpreter's lock while it waits for the store (`call.rs`). `unsafe` is
//! confined to `buffer.rs`.
#![allow(missing_docs, reason = "the interface is documented where Python's users read it")]

mod buffer;
mod call;
mod edit;
mod file;
mod put;
mod store;
mod tree;
mod values;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DamagedError", module.py().get_type::<call::DamagedError>())?;
    module.add("ConflictError", module.py().get_type::<call::ConflictError>())?;
    module.add_class::<store::Store>()?;
    module.add_class::<file::File>()?;
    module.add_class::<put::Writer>()
}
