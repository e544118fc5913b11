"""Reads files of a store with Ray Data, on the nodes that have the data.

>>> from outrigger.ray import read
>>> read(store, "logs", records="lines").filter(lambda row: "ERROR" in row["text"]).count()
>>> read(store, "tables", parse=lambda data: pyarrow.parquet.read_table(io.BytesIO(data)))

Every node must reach the store. A node has the data of a host if its own host has that name; where
they differ, as in containers, name the host in a label: ``ray start --labels outrigger-host=HOST``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow
import ray
import ray.data
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import _parts

if TYPE_CHECKING:
    import os

    from .store import Path, Store, When

__all__ = ["StoreDatasource", "read"]

#: The label of a node that names the host whose data it has.
LABEL = "outrigger-host"


class StoreDatasource(Datasource):
    """Files of a store as a source of `ray.data.read_datasource`.

    Ray Data chooses the nodes that read, whoever has the data: all tasks of a source are placed
    alike. `read` makes one source for each node.

    Parameters
    ----------
    location : Store or path
        An open store, or where it is.
    paths : path or iterable of paths
        Files; of a directory, all files below it.
    parse : callable, optional
        Called where a part is read, with its bytes. It returns a table of pyarrow, a data frame,
        a dict of columns, or a list of rows. Default: lines are rows with ``text``; other records
        are rows with ``path`` and ``bytes``.
    at : str or datetime, optional
        Read the files as they were in a snapshot, of this name or tag or the newest one not after
        this time.
    records : str
        "whole" keeps files whole; "lines", "fixed:BYTES" or "delimiter:TEXT" divide them between
        records.
    size : int
        Bytes of a part at most, about. Each part becomes a block.
    """

    def __init__(
        self,
        location: Store | str | os.PathLike[str],
        paths: Path | Iterable[Path],
        parse: Callable[[bytes], Any] | None = None,
        *,
        at: When | None = None,
        records: str = "whole",
        size: int = 64 << 20,
    ) -> None:
        super().__init__()
        self._parts, self._parse = _parts.parts(location, paths, at, records, size), parse

    @classmethod
    def _of(cls, parts: list[_parts.Part], parse: Callable[[bytes], Any] | None) -> StoreDatasource:
        made = cls.__new__(cls)
        Datasource.__init__(made)
        made._parts, made._parse = parts, parse
        return made

    def get_name(self) -> str:
        return "Outrigger"

    def estimate_inmemory_data_size(self) -> int:
        return sum(part.split.length for part in self._parts)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        tasks = []
        count = min(parallelism, len(self._parts))
        bounds = [number * len(self._parts) // count for number in range(count + 1)] if count else []
        for first, end in zip(bounds, bounds[1:]):
            group = self._parts[first:end]
            metadata = BlockMetadata(
                num_rows=None,
                size_bytes=sum(part.split.length for part in group),
                input_files=tuple(part.split.path for part in group),
                exec_stats=None,
            )
            limit = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
            tasks.append(ReadTask(partial(_blocks, group, self._parse), metadata, **limit))
        return tasks


def read(
    location: Store | str | os.PathLike[str],
    paths: Path | Iterable[Path],
    parse: Callable[[bytes], Any] | None = None,
    *,
    at: When | None = None,
    records: str = "whole",
    size: int = 64 << 20,
) -> ray.data.Dataset:
    """Read files in parts, each on the node that has its data.

    The arguments are those of `StoreDatasource`.

    Returns
    -------
    ray.data.Dataset
        The rows, in no particular order. Nothing is read before they are needed. Work that shall run
        beside the data belongs in `parse`: Ray places the later steps of the dataset.

    Notes
    -----
    The node is a preference. Another one reads a part if the node is lost, or has no processor free.
    """
    nodes = _nodes()
    groups: dict[str, tuple[dict[str, Any] | None, list[_parts.Part]]] = {}
    for part in _parts.parts(location, paths, at, records, size):
        node = _parts.place(part, nodes)
        groups.setdefault(node["NodeID"] if node else "", (node, []))[1].append(part)
    sets = [
        ray.data.read_datasource(StoreDatasource._of(group, parse), **_preferring(node, len(group)))
        for node, group in groups.values()
    ]
    if not sets:
        raise FileNotFoundError(2, f"there are no files at {paths!r}")
    return sets[0].union(*sets[1:]) if len(sets) > 1 else sets[0]


def _preferring(node: dict[str, Any] | None, parts: int) -> dict[str, Any]:
    """Return the options of a read that prefers a node, or of any other."""
    if node is None:
        return {}
    # No more tasks at a time than the node can run: others would go elsewhere.
    options: dict[str, Any] = {"concurrency": max(min(int(node["Resources"].get("CPU", 1)), parts), 1)}
    if "label_selector" in inspect.signature(ray.data.read_datasource).parameters:
        options["label_selector"] = {"ray.io/node-id": node["NodeID"]}
        options["fallback_strategy"] = [{"label_selector": {}}]
    else:
        preferred = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
        options["ray_remote_args"] = {"scheduling_strategy": preferred}
    return options


def _nodes() -> dict[str, dict[str, Any]]:
    """Return the nodes that are alive, by the names of the hosts whose data they have."""
    if not ray.is_initialized():
        ray.init()
    alive = [node for node in ray.nodes() if node["Alive"]]
    names = [(node.get("Labels", {}).get(LABEL), node) for node in alive]
    names += [(node[key], node) for key in ("NodeManagerHostname", "NodeManagerAddress") for node in alive]
    return _parts.by_name(names)


def _blocks(parts: list[_parts.Part], parse: Callable[[bytes], Any] | None) -> Iterator[Any]:
    for part in parts:
        yield _block(part) if parse is None else _table(parse(part.data()))


def _block(part: _parts.Part) -> pyarrow.Table:
    items = part.items()
    if part.records == "lines":
        return pyarrow.table({"text": pyarrow.array(items, pyarrow.large_string())})
    paths = pyarrow.array([part.split.path] * len(items), pyarrow.string())
    return pyarrow.table({"path": paths, "bytes": pyarrow.array(items, pyarrow.large_binary())})


def _table(made: Any) -> Any:
    if isinstance(made, dict):
        return pyarrow.table(made)
    return pyarrow.Table.from_pylist(list(made)) if isinstance(made, (list, tuple)) else made
