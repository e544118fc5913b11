"""Checkpoints and tensors of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import require

torch = require("torch")
require("safetensors")

import safetensors.torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import outrigger
import outrigger.safetensors
import outrigger.torch
from outrigger.torch import StoreReader, StoreWriter

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled",
    # A thread of PyTorch only prints why it failed.
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)

WIDTH = 64


def trained() -> tuple[Any, Any]:
    """A small model and its optimizer after a step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, WIDTH)).sum().backward()
    optimizer.step()
    return model, optimizer


def empty() -> tuple[Any, Any]:
    """The same model and optimizer, with other values."""
    model, optimizer = trained()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, optimizer


def state(model: Any, optimizer: Any) -> dict[str, Any]:
    """What a checkpoint has."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": 7}


def whole(nested: Any) -> Any:
    """A state with all tensors in one piece."""
    if isinstance(nested, dict):
        return {key: whole(value) for key, value in nested.items()}
    if isinstance(nested, torch.Tensor):
        return (nested.full_tensor() if hasattr(nested, "full_tensor") else nested).clone()
    return nested


def assert_same(one: Any, other: Any) -> None:
    """Fail unless two states are equal."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def names(store: outrigger.Store) -> set[str]:
    return {entry.path for entry in store.ls("", recursive=True) if entry.is_file}


def sharded(kept: tuple[Any, Any]) -> tuple[Any, Any]:
    """A model whose first layer is divided among all ranks, and its optimizer after a step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(kept[0], mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, WIDTH)).sum().backward()
    optimizer.step()
    return model, optimizer


def rank_main(rank: int, ranks: int, location: str, meeting: str, expected: str) -> None:
    """Save from one of several ranks, now and in the background, and load into fresh models."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    model, optimizer = sharded(trained())
    with outrigger.Store(location) as store:
        saved = state(model, optimizer)
        full = whole(saved)
        writer = StoreWriter(store, tag="nightly")
        dcp.save(saved, checkpoint_id="run/7", storage_writer=writer)
        future = dcp.async_save(saved, checkpoint_id="run/8", storage_writer=writer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        future.result()
        for path in ("run/7", "run/8"):
            fresh = state(*sharded(empty()))
            dcp.load(fresh, storage_reader=StoreReader(store, path))
            assert_same(whole(fresh), full)
    if rank == 0:
        torch.save(full, expected)
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_save_together_and_one_process_loads(location: str, tmp_path: Path) -> None:
    expected = str(tmp_path / "expected")
    mp.spawn(rank_main, args=(2, location, str(tmp_path / "meeting"), expected), nprocs=2)
    with outrigger.Store(location) as store:
        for path in ("run/7", "run/8"):
            model, optimizer = empty()
            loaded = state(model, optimizer)
            dcp.load(loaded, storage_reader=StoreReader(store, path, at="nightly"))
            assert_same(loaded, torch.load(expected, weights_only=False))
            of_model, of_optimizer = loaded["model"], loaded["optimizer"]
            set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
            assert torch.equal(model[0].weight, of_model["0.weight"])
            assert len([name for name in names(store) if name.startswith(path) and "distcp" in name]) == 2
        assert all(name.startswith("run/") for name in names(store))
        assert [snapshot.tags for snapshot in store.snapshots()] == [("nightly",)] * 2


def fill(value: float) -> dict[str, Any]:
    return {"weights": torch.full((1000,), value), "step": int(value)}


def loaded_from(store: outrigger.Store, path: str) -> Any:
    found = fill(0)
    dcp.load(found, storage_reader=StoreReader(store, path))
    return found


def test_files_are_those_of_the_file_system_writer(store: outrigger.Store, tmp_path: Path) -> None:
    dcp.save(fill(3), storage_writer=StoreWriter(store, "run/3"))
    store.get("run/3", tmp_path / "out")
    found = fill(0)
    dcp.load(found, checkpoint_id=tmp_path / "out")
    assert_same(found, fill(3))
    dcp.save(fill(4), checkpoint_id=tmp_path / "made")
    store.put(tmp_path / "made", "made")
    assert_same(loaded_from(store, "made"), fill(4))


def test_a_checkpoint_is_replaced_only_if_asked(store: outrigger.Store) -> None:
    dcp.save(fill(1), storage_writer=StoreWriter(store, "last"))
    with pytest.raises(dcp.CheckpointException, match="overwrite=True"):
        dcp.save(fill(2), storage_writer=StoreWriter(store, "last"))
    assert_same(loaded_from(store, "last"), fill(1))
    dcp.save(fill(2), storage_writer=StoreWriter(store, "last", overwrite=True))
    assert_same(loaded_from(store, "last"), fill(2))
    assert all(path.startswith("last/") for path in names(store))
    # A snapshot has the one that was replaced, as for every other call.
    [snapshot] = store.snapshots()
    found = fill(0)
    dcp.load(found, storage_reader=StoreReader(store, ".last.earlier", at=snapshot.name))
    assert_same(found, fill(1))


class Broken(dcp.DefaultSavePlanner):
    """Fails when the last tensor is to be written."""

    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "z":
            raise RuntimeError("the machine is lost")
        return super().resolve_data(write_item)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupted_save_leaves_the_earlier_checkpoint(store: outrigger.Store, threads: int) -> None:
    dcp.save(fill(1), storage_writer=StoreWriter(store, "last"))
    before = names(store)
    for path in ("last", "next"):
        with pytest.raises((dcp.CheckpointException, RuntimeError)):
            dcp.save(
                {**fill(2), "z": torch.zeros(9)},
                storage_writer=StoreWriter(store, path, overwrite=True, threads=threads),
                planner=Broken(),
            )
    assert_same(loaded_from(store, "last"), fill(1))
    assert not store.exists("next")
    # The next save succeeds, and removes what the failed ones left.
    dcp.save(fill(3), storage_writer=StoreWriter(store, "last", overwrite=True))
    dcp.save(fill(3), storage_writer=StoreWriter(store, "next"))
    assert_same(loaded_from(store, "last"), fill(3))
    assert {path for path in names(store) if path.startswith("last/")} == before
    assert not [path for path in names(store) if path.startswith(".")]


def test_a_save_that_stops_while_it_replaces_loses_nothing(
    store: outrigger.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save(fill(1), storage_writer=StoreWriter(store, "last"))
    rename = outrigger.Store.rename

    def stop(self: outrigger.Store, source: Any, target: Any) -> None:
        if target == "last":
            raise OSError("the machine is lost")
        rename(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(outrigger.Store, "rename", stop)
        with pytest.raises(dcp.CheckpointException):
            dcp.save(fill(2), storage_writer=StoreWriter(store, "last", overwrite=True))
    assert_same(loaded_from(store, "last"), fill(1))
    with pytest.raises(dcp.CheckpointException, match="overwrite=True"):
        dcp.save(fill(2), storage_writer=StoreWriter(store, "last"))
    assert_same(loaded_from(store, "last"), fill(1))


def test_what_cannot_be_whole_is_refused(store: outrigger.Store) -> None:
    with pytest.raises((dcp.CheckpointException, ValueError), match="name the checkpoint"):
        dcp.save(fill(1), storage_writer=StoreWriter(store))
    with pytest.raises((dcp.CheckpointException, ValueError), match="use_collectives"):
        dcp.save(fill(1), storage_writer=StoreWriter(store, "a"), use_collectives=False)
    with pytest.raises((dcp.CheckpointException, FileNotFoundError), match="not in the store"):
        loaded_from(store, "nothing")


def tensors() -> dict[str, Any]:
    """Tensors of many kinds."""
    torch.manual_seed(2)
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float8_e4m3fn)
    made = {str(kind): torch.randn(7, 3).mul(9).to(kind) for kind in kinds}
    return {**made, "flag": torch.tensor(True), "none": torch.empty(0, 5), "large": torch.randn(3, 500_000)}


def test_safetensors_are_those_of_the_library(store: outrigger.Store) -> None:
    moved = outrigger.torch.save(tensors(), store, "models/a.safetensors")
    assert store.read_bytes("models/a.safetensors") == safetensors.torch.save(tensors())
    assert (moved.files, moved.bytes) == (1, store.stat("models/a.safetensors").size)
    store.write_bytes("b", safetensors.torch.save(tensors(), {"format": "pt"}))
    assert_same(outrigger.torch.load(store.location, "b"), tensors())
    assert outrigger.safetensors.info(store, "b")[1] == {"format": "pt"}


def test_views_and_shared_tensors_are_saved(store: outrigger.Store) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    given = {"base": base, "turned": base.T, "part": base[:, 1:3], "tied": base}
    outrigger.torch.save(given, store, "a")
    assert_same(outrigger.torch.load(store, "a"), given)
    assert_same(safetensors.torch.load(store.read_bytes("a")), given)
    with pytest.raises(TypeError, match="dense"):
        outrigger.torch.save({"sparse": base.to_sparse()}, store, "b")
    assert not store.exists("b")


def test_a_load_reads_only_what_is_asked_for(store: outrigger.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {f"layer{number}": torch.randn(1000, 1000) for number in range(4)}
    outrigger.torch.save({**given, "bias": torch.ones(10)}, store, "model")
    read = []
    readinto = outrigger.StoreFile.readinto

    def counted(self: outrigger.StoreFile, buffer: Any) -> int:
        read.append(readinto(self, buffer))
        return read[-1]

    monkeypatch.setattr(outrigger.StoreFile, "readinto", counted)
    assert_same(outrigger.torch.load(store, "model", ["bias"]), {"bias": torch.ones(10)})
    assert sum(read) < 1 << 20
    read.clear()
    found = outrigger.torch.load(store, "model", ["layer2", "bias"])
    assert torch.equal(found["layer2"], given["layer2"])
    assert sum(read) < 5 << 20
    with pytest.raises(KeyError, match="layer9"):
        outrigger.torch.load(store, "model", ["layer9"])
