"""Stores as ``outrigger://`` for fsspec, and so for pandas, pyarrow, zarr, xarray and DuckDB.

>>> import pandas as pd
>>> frame = pd.read_parquet("outrigger://tables/a.parquet", storage_options={"store": "/srv/store"})

Paths are those in the store. The store is named by the option ``store``, or by
``OUTRIGGER_STORE``. The option ``at`` reads a snapshot.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from .files import BufferedStoreWriter, StoreWriter
from .store import SMALL, Store, When
from .values import Entry, Moved

#: Bytes copied at once where a file is appended to.
PIECE = 8 << 20


class _Environment:
    """The store that the environment names, asked for of a class."""

    def __get__(self, instance: Any, owner: Any = None) -> str | None:
        return os.environ.get("OUTRIGGER_STORE")


class OutriggerFileSystem(AbstractFileSystem):
    """A store as a file system of fsspec.

    Parameters
    ----------
    store : path, str or Store, optional
        The store. Default: ``OUTRIGGER_STORE``.
    at : str or datetime, optional
        Read a snapshot: by its name or tag, or the newest one not after a time.
    **options
        Those of `Store`, and of fsspec.

    Notes
    -----
    A file that is written appears when it is closed, or when the transaction ends. Nothing is
    cached: what others change is seen at once.
    """

    protocol = "outrigger"
    root_marker = ""
    # Instances are reused for equal arguments, one of which may come from the environment.
    _named = _Environment()
    _extra_tokenize_attributes = ("_named",)

    def __init__(
        self, store: str | os.PathLike[str] | Store | None = None, *, at: When | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        own = {key: options[key] for key in ("read_only", "threads", "key_file", "undo") if key in options}
        self.store = store if isinstance(store, Store) else Store(store, **own)
        self.at = at

    @property
    def fsid(self) -> str:
        return f"outrigger-{self.store.info()['id']}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = super()._strip_protocol(path)
        return [part.strip("/") for part in path] if isinstance(path, list) else path.strip("/")

    # Looking

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return _info(self.store.stat(self._strip_protocol(path), at=self.at))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = [_info(entry) for entry in self.store.ls(self._strip_protocol(path), at=self.at)]
        return found if detail else [entry["name"] for entry in found]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        path = self._strip_protocol(path)
        if maxdepth is not None or not self.exists(path):
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        entries = [_info(entry) for entry in self.store.ls(path, recursive=True, at=self.at)]
        if withdirs and path and self.isdir(path):
            entries.insert(0, self.info(path))
        found = {entry["name"]: entry for entry in entries if withdirs or entry["type"] != "directory"}
        return found if detail else sorted(found)

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.store.exists(self._strip_protocol(path), at=self.at)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def created(self, path: str) -> datetime:
        return self.modified(path)

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

    def ukey(self, path: str) -> str:
        info = self.info(path)
        return tokenize(info["ino"], info["mtime"], info["size"])

    # Reading and writing

    def _require_now(self) -> None:
        if self.at is not None:
            raise OSError(30, f"a snapshot ({self.at}) is read-only")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        with self.store.open(path, "rb", at=self.at, buffering=0) as file:
            first = 0 if start is None else start if start >= 0 else max(file.size + start, 0)
            last = file.size if end is None else end if end >= 0 else file.size + end
            return file.read_at(first, max(last - first, 0))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        self._require_now()
        path = self._strip_protocol(path)
        if mode == "create" and self.exists(path):
            raise FileExistsError(17, f"{path} exists already")
        if self._intrans:
            with self.open(path, "wb") as file:
                file.write(value)
        else:
            self.store.write_bytes(path, value)

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        self._require_now()
        if not isinstance(path, Mapping) or self._intrans:
            super().pipe(path, value, **kwargs)
        else:
            # All in one commit.
            self.store.write_files({self._strip_protocol(name): data for name, data in path.items()})

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **kwargs: Any) -> Any:
        if mode == "rb":
            return self.store.open(path, "rb", at=self.at)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r} is none of a store: it reads, writes, makes new and appends")
        self._require_now()
        there = mode != "wb" and self.exists(path)
        if there and mode == "xb":
            raise FileExistsError(17, f"{path} exists already")
        raw: StoreWriter = self.store.open(path, "wb", buffering=0)
        file = BufferedStoreWriter(raw, SMALL) if autocommit else _Deferred(raw, SMALL)
        if there:
            with self.store.open(path, "rb") as earlier:
                while piece := earlier.read(PIECE):
                    file.write(piece)
        return file

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        if outfile is not None or hasattr(lpath, "write") or self.isdir(rpath):
            super().get_file(rpath, lpath, outfile=outfile, **({"callback": callback} if callback else {}))
        else:
            _whole(self.store.get(self._strip_protocol(rpath), lpath, at=self.at, overwrite=True))

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        self._require_now()
        rpath = self._strip_protocol(rpath)
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(17, f"{rpath} exists already")
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
        elif self._intrans:
            super().put_file(lpath, rpath, **({"callback": callback} if callback else {}))
        else:
            _whole(self.store.put(lpath, rpath))

    # Changing

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self._require_now()
        self.store.mkdir(self._strip_protocol(path), parents=create_parents, exist_ok=False)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._require_now()
        self.store.mkdir(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not self.isdir(path):
            raise NotADirectoryError(20, f"{path} is not a directory")
        if self.ls(path, detail=False):
            raise OSError(39, f"{path} is not empty")
        self.store.remove(path, recursive=True)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._require_now()
        paths = [path] if isinstance(path, str) else list(path)
        names = [self._strip_protocol(name) for name in paths]
        if maxdepth is not None or any("*" in name or "?" in name or "[" in name for name in names):
            names = self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)
        self.store.remove(*names, recursive=recursive)

    def rm_file(self, path: str) -> None:
        self._require_now()
        self.store.remove(self._strip_protocol(path))

    _rm = rm_file

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        self.makedirs(self._parent(target), exist_ok=True)
        self.store.copy(source, target, at=self.at, recursive=False)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._require_now()
        self.store.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        names = (path1, path2)
        is_plain = all(isinstance(name, str) and not any(mark in name for mark in "*?[") for name in names)
        if is_plain and maxdepth is None and not self.exists(path2) and not path2.endswith("/"):
            if self.isdir(path1) and not recursive:
                raise IsADirectoryError(21, f"{path1} is a directory")
            self.mv_file(path1, path2)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self.store.write_bytes(path, b"")
        else:
            raise NotImplementedError("a store's files get new times with new contents only")


class _Deferred(BufferedStoreWriter):
    """A file of a transaction: closing it stores nothing yet."""

    def close(self) -> None:
        if not self.raw.closed and self.writable():
            self.flush()

    def commit(self) -> None:
        """Make the file durable and visible."""
        io.BufferedWriter.close(self)


def _info(entry: Entry) -> dict[str, Any]:
    kind = {"directory": "directory", "file": "file", "symlink": "link"}.get(entry.kind, "other")
    info = {
        "name": entry.path if entry.path != "/" else "",
        "type": kind,
        "size": entry.size if kind != "directory" else 0,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "nlink": entry.links,
        "ino": entry.inode,
        "mtime": entry.mtime,
        "islink": kind == "link",
    }
    return info | {"destination": entry.target} if kind == "link" else info


def _whole(moved: Moved) -> None:
    """Fail if a file was left out."""
    for what, why in moved.skipped:
        raise OSError(5, f"{what}: {why}")
