"""Reads files of a store with Dask, on the workers that have the data.

>>> from outrigger.dask import bag, read
>>> bag(store, "logs", records="lines").filter(lambda line: "ERROR" in line).count().compute()
>>> tables = read(store, "tables", parse=lambda data: pandas.read_parquet(io.BytesIO(data)))
>>> dask.dataframe.from_delayed(tables)

Every worker must reach the store. A worker has the data of a host if its own host has that name;
where they differ, name the worker after the host: ``dask worker --name HOST``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import dask
from dask.bag import Bag, Item, from_delayed
from dask.core import flatten
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph

from . import _parts

if TYPE_CHECKING:
    import os

    from distributed import Client

    from .store import Path, Store, When

__all__ = ["bag", "read"]


def read(
    location: Store | str | os.PathLike[str],
    paths: Path | Iterable[Path],
    parse: Callable[[bytes], Any] | None = None,
    *,
    at: When | None = None,
    records: str = "whole",
    size: int = 64 << 20,
    client: Client | None = None,
) -> list[Delayed]:
    """Read files in parts, each on a worker that has its data.

    Parameters
    ----------
    location : Store or path
        An open store, or where it is.
    paths : path or iterable of paths
        Files; of a directory, all files below it.
    parse : callable, optional
        Called where the part is read, with its bytes. Default: a list of its records; lines are
        text, and all others bytes.
    at : str or datetime, optional
        Read the files as they were in a snapshot, of this name or tag or the newest one not after
        this time.
    records : str
        "whole" keeps files whole; "lines", "fixed:BYTES" or "delimiter:TEXT" divide them between
        records.
    size : int
        Bytes of a part at most, about.
    client : distributed.Client, optional
        Whose workers read. Default: the current one.

    Returns
    -------
    list of Delayed
        In the order of the files and their parts. Another worker may read a part if those that
        have it are lost, or if it is idle and they are not.
    """
    workers = _workers(client)
    return [_delayed(part, parse, workers) for part in _parts.parts(location, paths, at, records, size)]


def bag(
    location: Store | str | os.PathLike[str],
    paths: Path | Iterable[Path],
    parse: Callable[[bytes], Iterable[Any]] | None = None,
    *,
    at: When | None = None,
    records: str = "whole",
    size: int = 64 << 20,
    client: Client | None = None,
) -> Bag:
    """Return the records of files as a bag. It has a partition for each part of a file.

    The arguments are those of `read`. `parse` returns the items that a part has.

    Notes
    -----
    Dask forgets where tasks should run when it fuses those of a bag. This bag and those made of it
    are not fused, so that every partition is read where its data lies, and the tasks that
    follow run there, too.
    """
    found = read(location, paths, parse, at=at, records=records, size=size, client=client)
    if not found:
        raise FileNotFoundError(2, f"there are no files at {paths!r}")
    made = from_delayed(found)
    return _Bag(made.dask, made.name, made.npartitions)


def _delayed(part: _parts.Part, parse: Any, workers: Mapping[str, list[str]]) -> Delayed:
    places = _parts.place(part, workers)
    chosen = dask.annotate(workers=places, allow_other_workers=True) if places else nullcontext()
    with chosen:
        return delayed(_parts.parsed, pure=False)(part, parse)


def _workers(client: Client | None) -> dict[str, list[str]]:
    """Return the addresses of workers by the names of the workers and of their hosts."""
    if client is None:
        try:
            from distributed import get_client

            client = get_client()
        except (ImportError, ValueError):
            return {}
    named: dict[str, list[str]] = {}
    for address, name in _names(client):
        named.setdefault(name, []).append(address)
    return _parts.by_name(named.items())


def _names(client: Client) -> Iterable[tuple[str, str]]:
    for address, name in client.run(_name_of_worker, on_error="ignore").items():
        yield address, name
    for address, host in client.run(socket.gethostname, on_error="ignore").items():
        yield address, host


def _name_of_worker(dask_worker: Any) -> str:
    return str(dask_worker.name)


def _only_cull(graph: Any, keys: Any, **_: Any) -> Any:
    """Drop tasks that are not needed, and keep what is said of all others."""
    if isinstance(graph, HighLevelGraph):
        return graph.cull(set(flatten(keys)))
    return graph


class _Item(Item):
    """A result of a bag whose reads keep their places."""

    __dask_optimize__ = staticmethod(_only_cull)


class _Bag(Bag):
    """A bag whose reads keep their places. `Bag` makes most others of its own class."""

    __dask_optimize__ = staticmethod(_only_cull)

    def reduction(self, *arguments: Any, **options: Any) -> Any:
        made = super().reduction(*arguments, **options)
        if isinstance(made, Item):
            return _Item(made.dask, made.key)
        return _Bag(made.dask, made.name, made.npartitions)
