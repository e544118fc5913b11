"""A store: files, snapshots, versions, policies, splits and jobs."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Union

from . import _native
from .files import READ_BUFFER, BufferedStoreWriter, StoreFile, StoreWriter
from .jobs import Job, run
from .splits import cut
from .values import Entry, Moved, Snapshot, Split, Version, time_of

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
When = Union[str, datetime]
Progress = Callable[[int, int], None]

#: A put of less than this goes in one call and not through a writer.
SMALL = 1 << 20
#: Stores of a parent process, which must not be closed in a child.
_of_parents: list[Any] = []
#: Stores that are open.
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """An open store.

    Parameters
    ----------
    location : path or str, optional
        A directory, or the URL of a PostgreSQL database. Default: ``OUTRIGGER_STORE``.
    read_only : bool
        Change nothing.
    threads : int, optional
        Threads of a call. Default: one per processor.
    key_file : path, optional
        The key of an encrypted store, if it is not where `outrigger init` puts it or in
        ``OUTRIGGER_KEY_FILE``. The first one that a process names counts for all its stores.
    undo : bool
        Take a snapshot before a call replaces or removes something; ``outrigger undo`` goes back.

    Notes
    -----
    A store may be used by all threads of a process. It is closed before `os.fork`, and opened again
    by its next call in the parent and in the child. If it has open files then, the child cannot use
    it. A pickled store is opened again where it is loaded.

    Examples
    --------
    >>> with Store("/srv/store") as store:
    ...     store.put("data", "data")
    ...     with store.open("data/table.csv", "rt") as file:
    ...         head = file.readline()
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        threads: int | None = None,
        key_file: str | os.PathLike[str] | None = None,
        undo: bool = True,
    ) -> None:
        named = os.fspath(location) if location is not None else os.environ.get("OUTRIGGER_STORE", "")
        if not named:
            raise ValueError("no store was named; give its directory or URL, or set OUTRIGGER_STORE")
        self.location = named if "://" in named else os.path.abspath(named)
        self.undo = undo
        self._options = (read_only, threads, os.path.abspath(key_file) if key_file is not None else None)
        self._opened: _native.Store | None = None
        self._process = os.getpid()
        self._is_closed = False
        self._opened = _native.Store(self.location, *self._options)
        _stores.add(self)

    @property
    def _native(self) -> _native.Store:
        if self._is_closed:
            raise ValueError("the store is closed")
        if self._process != os.getpid() and self._opened is not None:
            raise RuntimeError(
                "this process was forked while the store had open files or calls: close them before, "
                "or start processes by `multiprocessing.get_context('spawn')`"
            )
        if self._opened is None:
            self._opened, self._process = _native.Store(self.location, *self._options), os.getpid()
        return self._opened

    def close(self) -> None:
        """Close the store. Files that are open stay readable."""
        opened, self._opened, self._is_closed = self._opened, None, True
        if opened is not None:
            if self._process == os.getpid():
                opened.close()
            else:
                _of_parents.append(opened)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.location, *self._options, self.undo)

    # Looking

    def stat(self, path: Path, *, at: When | None = None) -> Entry:
        """Return the entry at `path`, now or in a snapshot.

        Parameters
        ----------
        path : path
            Path in the store.
        at : str or datetime, optional
            A snapshot by its name or tag, or the newest one not after a time.

        Raises
        ------
        FileNotFoundError
            If there is no such entry, or no such snapshot.
        """
        return Entry._of(self._native.stat(_path(path), _when(at)))

    def exists(self, path: Path, *, at: When | None = None) -> bool:
        """Return whether there is something at `path`."""
        return self._native.exists(_path(path), _when(at))

    def ls(self, path: Path = "", *, recursive: bool = False, at: When | None = None) -> list[Entry]:
        """Return the entries of a directory in the order of their names; of a file, itself."""
        return [Entry._of(raw) for raw in self._native.list(_path(path), recursive, _when(at))]

    def versions(self, path: Path) -> list[Version]:
        """Return the earlier contents of a file that are kept, the newest first.

        The policy ``versions`` of a directory says how many are kept.
        """
        return [Version(number, time_of(time), size) for number, time, size in self._native.versions(_path(path))]

    def info(self) -> dict[str, Any]:
        """Return the store's identity and the counts of its tree; costs no look at the data."""
        return self._native.info()

    def stats(self) -> dict[str, int]:
        """Return how much is stored: bytes of files, unique bytes, and bytes of packs."""
        return self._native.stats()

    # Reading and writing

    def open(
        self,
        path: Path,
        mode: str = "rb",
        *,
        at: When | None = None,
        version: int | None = None,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Open a file for reading ("r") or writing ("w", or "x" if it must be new).

        Parameters
        ----------
        path : path
            Path in the store. Missing directories above a file that is written are made.
        mode : str
            As of `open`; files of a store cannot be appended to or updated.
        at : str or datetime, optional
            Read the file as it was in a snapshot.
        version : int, optional
            Read an earlier content, see `versions`.
        buffering, encoding, errors, newline
            As of `open`.

        Returns
        -------
        file object
            A written file appears whole when it is closed, and not at all if an exception leaves
            its ``with`` block.
        """
        kind = mode.replace("t", "").replace("b", "")
        if kind not in ("r", "w", "x") or ("t" in mode and "b" in mode):
            raise ValueError(f"mode {mode!r} is none of a store: read ('r'), write ('w') or make new ('x')")
        raw: Any
        if kind == "r":
            raw = StoreFile(self._native.open(_path(path), _when(at), version), os.fsdecode(path))
            size = max(min(raw.size, READ_BUFFER), 1) if buffering < 0 else buffering
            binary = raw if size == 0 else io.BufferedReader(raw, size)
        else:
            if kind == "x" and self.exists(path):
                raise FileExistsError(17, f"{os.fsdecode(path)} exists already")
            raw = StoreWriter(self._native.writer(_path(path), self._undo()), os.fsdecode(path))
            binary = raw if buffering == 0 else BufferedStoreWriter(raw, SMALL if buffering < 2 else buffering)
        if "b" in mode:
            return binary
        if buffering == 0:
            raise ValueError("text cannot be unbuffered")
        return _Text(binary, encoding, errors, newline)

    def read_bytes(
        self, path: Path, offset: int = 0, length: int | None = None, *, at: When | None = None
    ) -> bytes:
        """Return a file's bytes, or `length` of them from `offset`."""
        with StoreFile(self._native.open(_path(path), _when(at), None), os.fsdecode(path)) as file:
            return file.read_at(offset, file.size if length is None else length)

    def write_bytes(self, path: Path, data: Any) -> Moved:
        """Make `data` the content of a file."""
        return self.write_files({path: data})

    def write_files(self, files: Mapping[Any, Any]) -> Moved:
        """Make or replace several files at once: much faster than one by one.

        Parameters
        ----------
        files : mapping of path to bytes
            Each file's content, as any buffer.
        """
        raw = self._native.put_bytes([(_path(path), data) for path, data in files.items()], self._undo())
        return Moved._of(raw)

    def put(
        self,
        source: Path,
        target: Path,
        *,
        tag: str | Sequence[str] = (),
        exclude: Iterable[str] = (),
        keep_missing: bool = False,
        rescan: bool = False,
        replace_source: bool = False,
        allow_empty: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Store a file or a directory of this machine.

        A directory is mirrored: `target` loses what the source no longer has. Unchanged files are
        not read again.

        Parameters
        ----------
        source : path
            A file or directory.
        target : path
            What becomes of it in the store.
        tag : str or list of str
            Take a snapshot with these tags afterwards.
        exclude : iterable of str
            Patterns of names to leave out, such as ``*.o`` or ``/target``.
        keep_missing : bool
            Remove nothing.
        rescan : bool
            Read files that seem unchanged, too.
        replace_source : bool
            Let `target` mirror another source than the one it had.
        allow_empty : bool
            Let an empty directory replace one that is not empty.
        progress : callable, optional
            Called with files and bytes so far, ten times a second.
        """
        tags = [tag] if isinstance(tag, str) else list(tag)
        options = (rescan, keep_missing, replace_source, allow_empty, self._undo(), progress)
        raw = self._native.put(os.fspath(source), _path(target), [os.fsencode(text) for text in exclude], *options)
        return Moved._of(raw, self.snapshot(tags=tags).name if tags else None)

    def get(
        self,
        path: Path,
        target: Path,
        *,
        at: When | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Restore a file as `target`, or the contents of a directory as those of `target`.

        Files that exist are skipped, and named in the result, unless `overwrite` is set.
        """
        where = os.path.abspath(os.fsdecode(target))
        return Moved._of(self._native.get(_path(path), where, _when(at), overwrite, progress))

    # Changing

    def mkdir(self, path: Path, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory, and those above it."""
        name = _path(path)
        above = name.rpartition(b"/")[0]
        if not parents and above and not self._native.exists(above, None):
            raise FileNotFoundError(2, f"{os.fsdecode(above)} is not in the store")
        if not self._native.make_directories(name) and not exist_ok:
            raise FileExistsError(17, f"{os.fsdecode(path)} exists already")

    def remove(self, *paths: Path, recursive: bool = False) -> None:
        """Remove entries, and directories with all in them if `recursive` is set."""
        if paths:
            self._native.remove([_path(path) for path in paths], recursive, self._undo())

    def rename(self, source: Path, target: Path) -> None:
        """Move an entry to `target`, or into it if it is a directory."""
        self._native.rename(_path(source), _path(target), self._undo())

    def copy(self, source: Path, target: Path, *, at: When | None = None, recursive: bool = True) -> None:
        """Copy an entry within the store, or out of a snapshot. No data is copied."""
        self._native.copy(_path(source), _path(target), _when(at), recursive, self._undo())

    # Snapshots and policies

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, the oldest first."""
        return [Snapshot._of(raw) for raw in self._native.snapshots()]

    def find_snapshot(self, at: When) -> Snapshot:
        """Return the snapshot of a name or tag, or the newest one not after a time.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        return Snapshot._of(self._native.find_snapshot(_when(at)))

    def snapshot(self, name: str | None = None, *, tags: Sequence[str] = ()) -> Snapshot:
        """Take a snapshot of the whole tree; without a name it is named by the time."""
        return Snapshot._of(self._native.take_snapshot(name, _name_now(), list(tags)))

    def delete_snapshot(self, *names: str) -> None:
        """Delete snapshots. What only they have is lost with the next ``outrigger gc``."""
        self._native.delete_snapshots(list(names))

    def policies(self, path: Path = "") -> dict[str, str]:
        """Return the policies that are set on a directory itself."""
        return self._native.policies(_path(path))

    def set_policy(self, path: Path, **policies: str | int | None) -> None:
        """Set policies of a directory, such as ``versions=5`` or ``codec="zstd:9"``; None unsets."""
        for key, value in policies.items():
            self._native.set_policy(_path(path), key, None if value is None else str(value))

    # Where data lies, and jobs

    def hosts(self, path: Path = "") -> dict[str, int]:
        """Return the hosts that have the data below `path`, with the bytes of each."""
        return dict(self._native.hosts(_path(path)))

    def splits(
        self,
        paths: Path | Iterable[Path],
        *,
        at: When | None = None,
        records: str = "whole",
        size: int = 64 << 20,
    ) -> list[Split]:
        """Divide files for work where their data lies.

        Parameters
        ----------
        paths : path or iterable of paths
            Files; of a directory, all files below it.
        at : str or datetime, optional
            Divide the files as they were in a snapshot.
        records : str
            "whole" keeps files whole; "lines", "fixed:BYTES" or "delimiter:TEXT" may divide them
            between records.
        size : int
            Bytes of a part at most, about.

        Returns
        -------
        list of Split
            In the order of `paths`. `hosts` is empty where the engine knows no hosts.
        """
        several = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
        name = None if at is None else self.find_snapshot(at).name
        found: list[Split] = []
        for path in several:
            entries = self.ls(path, recursive=True, at=name)
            found += [part for entry in entries if entry.is_file for part in cut(self, entry, name, records, size)]
        return found

    def run(self, program: Sequence[str], *, inputs: str | Sequence[str], **options: Any) -> Job:
        """Start a program over stored files, where they lie. See `outrigger.jobs.run`."""
        return run(self.location, program, inputs=inputs, **options)

    def job(self, number: int) -> Job:
        """Return the job of this number."""
        return Job(self.location, number)

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def _repr_html_(self) -> str:
        info = self.info()
        rows = [
            ("Store", escape(self.location)),
            ("Files", f"{info['files']:,} in {info['directories']:,} directories, {_size(info['bytes'])}"),
            ("Snapshots", f"{info['snapshots']:,}"),
            ("Encrypted", "yes" if info["encrypted"] else "no"),
        ]
        cells = "".join(f"<tr><th style='text-align:left'>{key}</th><td>{value}</td></tr>" for key, value in rows)
        return f"<table>{cells}</table>"

    def _undo(self) -> str | None:
        return _name_now() if self.undo else None


class _Text(io.TextIOWrapper):
    """Text over a file of a store; an exception in a ``with`` block discards what was written."""

    def discard(self) -> None:
        """Store nothing, and close the file."""
        self.buffer.discard()  # type: ignore[attr-defined]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and hasattr(self.buffer, "discard"):
            self.discard()
        else:
            self.close()


def opened(store: Store | str | os.PathLike[str]) -> Store:
    """Return `store`, or open the store at this location."""
    return store if isinstance(store, Store) else Store(store)


def _leave() -> None:
    """Close all stores before a fork: databases must not be open in two processes by one opening."""
    for store in list(_stores):
        opened = store._opened
        if opened is not None and store._process == os.getpid() and opened.leave():
            store._opened = None


os.register_at_fork(before=_leave)


def _open(location: str, read_only: bool, threads: int | None, key_file: str | None, undo: bool) -> Store:
    return Store(location, read_only=read_only, threads=threads, key_file=key_file, undo=undo)


def _path(path: Path) -> bytes:
    return os.fsencode(path)


def _when(at: When | None) -> str | int | None:
    if not isinstance(at, datetime):
        return at
    # Exactly: a float does not have nanoseconds.
    seconds = int(at.replace(microsecond=0).timestamp())
    return seconds * 10**9 + at.microsecond * 1000


def _name_now() -> str:
    return datetime.now().strftime("%Y%m%d-%H%M%S.%f")[:-3]


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.2f} {unit}"
