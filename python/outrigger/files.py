"""Open files of a store."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from . import _native

#: Bytes that a buffered reader takes at once: enough for several threads.
READ_BUFFER = 8 << 20
#: Writes of so many bytes pass the buffer.
DIRECT = 256 << 10


class StoreFile(io.RawIOBase):
    """A file of a store, open for reading.

    Its content is the one that the file had when it was opened, whatever happens to the file or
    the snapshot later. Every byte is verified before it is returned. Methods release the
    interpreter's lock while they read.

    Get one from `Store.open`, which adds a buffer.

    Attributes
    ----------
    size : int
        Length in bytes.
    """

    def __init__(self, native: _native.File, name: str) -> None:
        self._native = native
        self._at = 0
        self.name = name
        self.mode = "rb"
        self.size: int = native.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._require_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._require_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}.get(whence)
        if start is None:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if start + offset < 0:
            raise ValueError(f"negative seek value {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        self._require_open()
        count = self._native.read_into(self._at, buffer)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._require_open()
        data = self._native.read_at(self._at, max(self.size - self._at, 0))
        self._at += len(data)
        return data

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, and leave the position as it is."""
        self._require_open()
        if offset < 0 or length < 0:
            raise ValueError("offset and length are not negative")
        return self._native.read_at(offset, length)

    def close(self) -> None:
        if not self.closed:
            self._native.close()
        super().close()

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class StoreWriter(io.RawIOBase):
    """A file of a store that is being written.

    It appears, whole and durable, when it is closed, and not at all after `discard` or if an
    exception leaves its ``with`` block. Until then its readers see the earlier content.

    Get one from `Store.open`, which adds a buffer.

    Attributes
    ----------
    moved : dict or None
        After `close`: counts of what was stored, as in `Moved`.
    """

    def __init__(self, native: _native.Writer, name: str) -> None:
        self._native = native
        self._at = 0
        self.name = name
        self.mode = "wb"
        self.moved: dict[str, Any] | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Buffer) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        count = self._native.write(data)
        self._at += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.moved = self._native.finish()
        finally:
            super().close()

    def discard(self) -> None:
        """Store nothing, and close the file."""
        self._native.abort()
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # A file that was never closed is not stored: its writer may have failed half-way.
        if not self.closed:
            self.discard()


class BufferedStoreWriter(io.BufferedWriter):
    """Gathers small writes of a `StoreWriter`; an exception in a ``with`` block discards the file."""

    raw: StoreWriter

    def write(self, data: Buffer) -> int:
        if isinstance(data, bytes) and len(data) >= DIRECT:
            # They are taken as they are, and the buffer would copy them.
            self.flush()
            return self.raw.write(data)
        return super().write(data)

    def discard(self) -> None:
        """Store nothing, and close the file."""
        self.raw.discard()

    @property
    def moved(self) -> dict[str, Any] | None:
        """Counts of what was stored, once it is closed."""
        return self.raw.moved

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        self.raw.discard()
