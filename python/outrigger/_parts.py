"""Parts of stored files as work for other machines: shared by `outrigger.ray` and `outrigger.dask`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from .store import Path, Store, When, _open, opened
from .values import Split

if TYPE_CHECKING:
    import os

Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file that any process can read.

    Attributes
    ----------
    arguments : tuple
        What opens the store where the part is read.
    split : Split
        Which bytes, and which hosts have them.
    at : str or None
        The snapshot to read, or the present tree.
    records : str
        How it may be divided, as `Store.splits` has it.
    """

    arguments: tuple[Any, ...]
    split: Split
    at: str | None
    records: str

    def data(self) -> bytes:
        """Read its bytes."""
        split = self.split
        return _reopened(self.arguments).read_bytes(split.path, split.offset, split.length, at=self.at)

    def items(self) -> list[Any]:
        """Read its records: lines as text without their ends, and all others as bytes."""
        data = self.data()
        kind, _, value = self.records.partition(":")
        if kind == "lines":
            return [line.rstrip("\n") for line in io.TextIOWrapper(io.BytesIO(data), "utf-8")]
        if kind == "fixed":
            each = int(value)
            return [data[start : start + each] for start in range(0, len(data), each)]
        if kind == "delimiter":
            found = data.split(value.encode())
            return found if found[-1] else found[:-1]
        return [data]


def parts(
    store: Store | str | os.PathLike[str], paths: Path | Iterable[Path], at: When | None, records: str, size: int
) -> list[Part]:
    """Divide files into parts. What `at` means is found once, so that all parts are of one snapshot."""
    store = opened(store)
    arguments = store.__reduce__()[1]
    name = None if at is None else store.find_snapshot(at).name
    splits = store.splits(paths, at=name, records=records, size=size)
    return [Part(arguments, split, name, records) for split in splits]


def place(part: Part, targets: Mapping[str, Target]) -> Target | None:
    """Return the target of the best host of a part. `targets` has them by the hosts' names."""
    for host in part.split.hosts:
        for name in (host, host.partition(".")[0]):
            if name in targets:
                return targets[name]
    return None


def by_name(names: Iterable[tuple[str | None, Target]]) -> dict[str, Target]:
    """Return targets by their hosts' names, and by the short ones. The first of a name counts."""
    found: dict[str, Target] = {}
    for name, target in names:
        if name:
            found.setdefault(name, target)
            if not name.replace(".", "").isdigit():
                found.setdefault(name.partition(".")[0], target)
    return found


def parsed(part: Part, parse: Callable[[bytes], Any] | None) -> Any:
    """Read a part, and return its records, or what `parse` makes of its bytes."""
    return part.items() if parse is None else parse(part.data())


@lru_cache(maxsize=8)
def _reopened(arguments: tuple[Any, ...]) -> Store:
    """Open a store once for all parts that this process reads."""
    return _open(*arguments)
