"""What a store says of its entries, snapshots, versions and splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory, link or other entry.

    Attributes
    ----------
    path : str
        Path in the store, without a leading slash.
    kind : str
        "file", "directory", "symlink", "fifo", "socket", "char_device" or "block_device".
    size : int
        Length in bytes.
    mode, uid, gid, links : int
        As of `os.stat`; `mode` has the permission bits only.
    mtime : float
        Modification time, seconds since 1970; `mtime_ns` is exact.
    target : str
        Where a symbolic link leads.
    """

    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    links: int
    mtime_ns: int
    inode: int
    target: str

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> Entry:
        return cls(**{**raw, "path": os.fsdecode(raw["path"]), "target": os.fsdecode(raw["target"])})

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def mtime(self) -> float:
        return self.mtime_ns / 1e9

    @property
    def is_dir(self) -> bool:
        return self.kind == "directory"

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A named state of the whole tree."""

    name: str
    time: datetime
    tags: tuple[str, ...]
    kind: str
    held: bool

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> Snapshot:
        return cls(raw["name"], time_of(raw["time_ns"]), tuple(raw["tags"]), raw["kind"], raw["held"])


@dataclass(frozen=True, slots=True)
class Version:
    """An earlier content of a file that is kept."""

    number: int
    time: datetime
    size: int


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a file, and the hosts that have its data, the best one first."""

    path: str
    offset: int
    length: int
    hosts: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.path, self.offset, self.length, self.hosts))


@dataclass(frozen=True, slots=True)
class Moved:
    """Counts of a put or get: what it handled, and what of it had to be stored.

    Attributes
    ----------
    files, bytes : int
        Files handled and their lengths, unchanged ones included.
    bytes_read, bytes_new, bytes_stored : int
        Read; not stored before; written, after compression.
    entries_removed : int
        Entries that the source no longer had.
    skipped : tuple of (str, str)
        What could not be read or written, and why.
    snapshot_before : str or None
        The snapshot that has what was replaced or removed.
    """

    files: int
    bytes: int
    bytes_read: int
    bytes_new: int
    bytes_stored: int
    entries_removed: int
    skipped: tuple[tuple[str, str], ...]
    snapshot_before: str | None
    snapshot: str | None = None

    @classmethod
    def _of(cls, raw: Mapping[str, Any], snapshot: str | None = None) -> Moved:
        return cls(**{**raw, "skipped": tuple(raw["skipped"])}, snapshot=snapshot)


def time_of(nanos: int) -> datetime:
    return datetime.fromtimestamp(nanos // 10**9, timezone.utc).replace(microsecond=nanos % 10**9 // 1000)
