"""Tensors in safetensors files of a store, as arrays of NumPy.

A load reads only the tensors that are asked for, straight into the memory of the arrays. A save
writes one tensor after the other, so that it needs no second copy of them all. `outrigger.torch`
has the same for PyTorch. No other package is needed, and every program that knows the format
reads the files.

>>> from outrigger.safetensors import load, save
>>> save({"weight": weight, "bias": bias}, store, "model.safetensors")
>>> load(store, "model.safetensors", ["bias"])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .store import When, opened
from .values import Moved

if TYPE_CHECKING:
    import os

    import numpy as np

    from .store import Store

#: Names of the element types, by their code in a file. The order is that of the format.
TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_CODES = {name: code for code, name in TYPES.items()}
_ORDER = list(TYPES)
#: A longer header is damage.
_LONGEST_HEADER = 100 << 20
#: Bytes written at once, so that few of them are copied at a time.
_PIECE = 8 << 20
#: Bytes read at once for tensors that are smaller. A larger tensor is read directly.
_READ = 1 << 18


class Tensor(NamedTuple):
    """What a file says of a tensor: `type` as "float32", `shape`, and `offset` and `size` in bytes."""

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


def save(
    tensors: Mapping[str, np.ndarray],
    store: Store | str | os.PathLike[str],
    path: str,
    metadata: Mapping[str, str] | None = None,
) -> Moved:
    """Save arrays as one file, which appears once it is complete.

    Parameters
    ----------
    tensors : mapping of str to array
        The arrays, by name. They may be any views.
    store : Store or path
        An open store, or where it is.
    path : str
        Path in the store.
    metadata : mapping of str to str, optional
        Text to keep with them.
    """
    import numpy as np

    def content(name: str) -> Any:
        array = np.asarray(tensors[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(little).reshape(-1).view(np.uint8)

    kinds = {name: (np.asarray(array).dtype.name, np.shape(array)) for name, array in tensors.items()}
    sizes = {name: np.asarray(array).nbytes for name, array in tensors.items()}
    return write(opened(store), path, kinds, sizes, content, metadata)


def load(
    store: Store | str | os.PathLike[str],
    path: str,
    names: Iterable[str] | None = None,
    *,
    at: When | None = None,
) -> dict[str, np.ndarray]:
    """Load arrays of a file.

    Parameters
    ----------
    store : Store or path
        An open store, or where it is.
    path : str
        Path in the store.
    names : iterable of str, optional
        The tensors to load. Default: all.
    at : str or datetime, optional
        Load them from a snapshot, as `Store.stat` has it.

    Raises
    ------
    KeyError
        If the file has no tensor of such a name.
    TypeError
        If NumPy knows no such elements; ``bfloat16`` and the 8-bit floats need ``ml_dtypes``.
    """
    import numpy as np

    def empty(tensor: Tensor) -> tuple[np.ndarray, Any]:
        array = np.empty(tensor.shape, _numpy_type(tensor.type))
        return array, array.reshape(-1).view(np.uint8)

    return dict(read(opened(store), path, names, at, empty))


def info(
    store: Store | str | os.PathLike[str], path: str, *, at: When | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors that a file has, by name, and the text that was saved with them."""
    with opened(store).open(path, "rb", at=at, buffering=_READ) as file:
        return _header(file, path)


def write(
    store: Store,
    path: str,
    kinds: Mapping[str, tuple[str, tuple[int, ...]]],
    sizes: Mapping[str, int],
    content: Callable[[str], Any],
    metadata: Mapping[str, str] | None,
) -> Moved:
    """Write a file. `kinds` has types and shapes, and `content` returns the bytes of one tensor."""
    for name, (kind, _) in kinds.items():
        if kind not in _CODES:
            raise TypeError(f"tensor {name!r} has elements of {kind}, which safetensors does not know")
    # The widest elements come first, so that all are aligned.
    names = sorted(kinds, key=lambda name: (-_ORDER.index(_CODES[kinds[name][0]]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + sizes[name]
        kind, shape = kinds[name]
        header[name] = {"dtype": _CODES[kind], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with store.open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            data = memoryview(content(name))
            for start in range(0, len(data), _PIECE):
                file.write(data[start : start + _PIECE])
    return Moved._of(file.moved)


def read(
    store: Store,
    path: str,
    names: Iterable[str] | None,
    at: When | None,
    empty: Callable[[Tensor], tuple[Any, Any]],
) -> Iterable[tuple[str, Any]]:
    """Read tensors in the order of the file. `empty` makes one, and a buffer over its bytes."""
    with store.open(path, "rb", at=at, buffering=_READ) as file:
        tensors, _ = _header(file, path)
        wanted = tensors if names is None else list(names)
        for name in wanted:
            if name not in tensors:
                raise KeyError(f"`{path}` has no tensor {name!r}")
        for name in sorted(wanted, key=lambda name: tensors[name].offset):
            tensor = tensors[name]
            if tensor.type not in _CODES:
                raise TypeError(f"tensor {name!r} has elements of {tensor.type}, which are not known here")
            made, memory = empty(tensor)
            if len(memory) != tensor.size:
                raise ValueError(f"`{path}` has {tensor.size} bytes for tensor {name!r} of {len(memory)}")
            if tensor.size:
                file.seek(tensor.offset)
                file.readinto(memory)
            yield name, made


def _header(file: Any, path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    length = int.from_bytes(file.read(8), "little")
    start, total = 8 + length, file.raw.size
    if length > min(_LONGEST_HEADER, total):
        raise ValueError(f"`{path}` is not a safetensors file")
    header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        kind, shape = TYPES.get(told["dtype"], told["dtype"]), tuple(told["shape"])
        if not 0 <= begin <= end <= total - start:
            raise ValueError(f"`{path}` ends before its tensor {name!r}")
        tensors[name] = Tensor(kind, shape, start + begin, end - begin)
    return tensors, metadata


def _numpy_type(name: str) -> np.dtype:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy does not know {name}; install ml_dtypes, or use outrigger.torch") from None
        return np.dtype(getattr(ml_dtypes, name))
