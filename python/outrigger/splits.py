"""Cuts files into parts between records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .values import Split

if TYPE_CHECKING:
    from .store import Store
    from .values import Entry

#: Bytes read at once to find the end of a record.
LOOK = 1 << 16


def cut(store: Store, entry: Entry, at: str | None, records: str, size: int) -> list[Split]:
    """Cut one file; `Store.splits` has the arguments."""
    if size < 1:
        raise ValueError("a part has at least one byte")
    kind, _, value = records.partition(":")
    if kind == "whole":
        size = max(entry.size, 1)
    path = entry.path.encode("utf-8", "surrogateescape")
    parts = store._native.parts(path, at, size, size if kind != "whole" else max(entry.size, 1))
    ends = [offset + length for offset, length, _ in parts]
    if kind in ("lines", "delimiter"):
        mark = b"\n" if kind == "lines" else value.encode()
        if not mark:
            raise ValueError("an empty delimiter divides nothing")
        ends = [_after(store, entry, at, end, mark) for end in ends[:-1]] + ends[-1:]
    elif kind == "fixed":
        each = int(value)
        if each < 1:
            raise ValueError("a record has at least one byte")
        ends = [end - end % each for end in ends[:-1]] + ends[-1:]
    elif kind != "whole":
        raise ValueError(f"records {records!r} are not known: whole, lines, fixed:BYTES or delimiter:TEXT")
    found, start = [], 0
    for end, (_, _, host) in zip(ends, parts):
        if end > start or entry.size == 0:
            found.append(Split(entry.path, start, end - start, (host,) if host else ()))
            start = max(end, start)
    return found


def _after(store: Store, entry: Entry, at: str | None, start: int, mark: bytes) -> int:
    """Return the first byte behind the record that has the byte before `start`."""
    offset, kept = max(start - len(mark), 0), b""
    while offset < entry.size:
        block = store.read_bytes(entry.path, offset, LOOK, at=at)
        if not block:
            break
        text = kept + block
        found = text.find(mark)
        while found >= 0:
            end = offset - len(kept) + found + len(mark)
            if end >= start:
                return end
            found = text.find(mark, found + 1)
        kept = text[-(len(mark) - 1) :] if len(mark) > 1 else b""
        offset += len(block)
    return entry.size
