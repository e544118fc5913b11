"""Safetensors files with NumPy."""

from __future__ import annotations

import os

import pytest
from conftest import require

np = require("numpy")
require("safetensors")

import safetensors.numpy

import outrigger
import outrigger.safetensors


def test_arrays_are_those_of_the_library(store: outrigger.Store) -> None:
    kinds = (np.float64, np.float32, np.int8, np.uint16, np.bool_, np.complex64)
    given = {np.dtype(kind).name: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    given |= {"scalar": np.float32(2), "none": np.zeros((0, 2))}
    outrigger.safetensors.save({**given, "turned": given["float32"].T}, store, "a", {"by": "me"})
    store.snapshot(tags=["first"])
    outrigger.safetensors.save({"swapped": np.arange(3, dtype=">i4")}, store, "a")
    assert outrigger.safetensors.load(store, "a")["swapped"].tolist() == [0, 1, 2]
    found = outrigger.safetensors.load(store, "a", at="first")
    library = safetensors.numpy.load(store.read_bytes("a", at="first"))
    assert found.keys() == library.keys() == {*given, "turned"}
    for name, array in {**given, "turned": given["float32"].T}.items():
        for other in (found[name], library[name]):
            assert other.dtype == array.dtype and np.array_equal(other, array)


def test_what_is_no_safetensors_file_is_refused(store: outrigger.Store) -> None:
    store.write_bytes("a", os.urandom(7) + b"\xff" * 100)
    with pytest.raises(ValueError, match="not a safetensors file"):
        outrigger.safetensors.load(store, "a")
    data = safetensors.numpy.save({"a": np.ones(100)})
    store.write_bytes("cut", data[:-1])
    with pytest.raises(ValueError, match="ends before"):
        outrigger.safetensors.load(store, "cut")
    store.write_bytes("longer", data.replace(b"[100]", b"[101]"))
    with pytest.raises(ValueError, match="has 800 bytes"):
        outrigger.safetensors.load(store, "longer")
    with pytest.raises(TypeError, match="complex128"):
        outrigger.safetensors.save({"a": np.zeros(1, np.complex128)}, store, "b")


def test_only_what_is_asked_for_is_read(store: outrigger.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {f"layer{number}": np.random.default_rng(number).random((1000, 1000)) for number in range(4)}
    outrigger.safetensors.save({**given, "bias": np.ones(10)}, store, "model")
    read = []
    readinto = outrigger.StoreFile.readinto

    def counted(self: outrigger.StoreFile, buffer: bytearray) -> int:
        read.append(readinto(self, buffer))
        return read[-1]

    monkeypatch.setattr(outrigger.StoreFile, "readinto", counted)
    found = outrigger.safetensors.load(store, "model", ["layer2", "bias"])
    assert found.keys() == {"layer2", "bias"}
    assert np.array_equal(found["layer2"], given["layer2"])
    assert sum(read) < 9 << 20
    with pytest.raises(KeyError, match="layer9"):
        outrigger.safetensors.load(store, "model", ["layer9"])
