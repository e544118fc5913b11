"""Outrigger: a shared, versioned, deduplicating file system, from Python.

>>> import outrigger
>>> store = outrigger.Store("/srv/store")
>>> store.put("results", "experiments/1", tag="nightly")
>>> store.read_bytes("experiments/1/loss.csv")

`Store` is the way in. `outrigger.fsspec` makes stores known to pandas, pyarrow, zarr, xarray and
DuckDB as ``outrigger://``; `outrigger.torch` stores checkpoints and tensors; `outrigger.ray` and
`outrigger.dask` read where the data lies.
"""

from ._native import ConflictError, DamagedError, __version__
from .files import StoreFile, StoreWriter
from .jobs import Job, JobError
from .store import Store
from .values import Entry, Moved, Snapshot, Split, Version

__all__ = [
    "ConflictError",
    "DamagedError",
    "Entry",
    "Job",
    "JobError",
    "Moved",
    "Snapshot",
    "Split",
    "Store",
    "StoreFile",
    "StoreWriter",
    "Version",
    "__version__",
]
