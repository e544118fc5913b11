"""Reading with Dask: everything is read, no record is cut, and workers read what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import require

dask = require("dask")
require("distributed")

from dask.distributed import Client, Scheduler, SpecCluster, Worker, get_worker

import outrigger
import outrigger.dask

TEXT = "".join(f"line {number} of {'x' * (number % 50)}\n" for number in range(5000)).encode()
LINES = TEXT.decode().splitlines()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers, which are called like hosts. Neither takes work from the other."""
    dask.config.set({"distributed.scheduler.work-stealing": False})
    scratch = str(tmp_path_factory.mktemp("scratch"))
    options = {"nthreads": 1, "memory_limit": 0, "dashboard_address": None, "local_directory": scratch}
    worker = {"cls": Worker, "options": options}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None, "port": 0}}
    with SpecCluster({"alpha": worker, "beta": worker}, scheduler) as cluster, Client(cluster) as made:
        made.wait_for_workers(2)
        yield made


def where(items: Any = ()) -> list[str]:
    """The name of the worker that this runs on."""
    return [str(get_worker().name)]


def test_a_bag_has_every_line_once(store: outrigger.Store) -> None:
    store.write_files({"logs/a": TEXT, "logs/b": b"first\r\nlast without an end", "logs/none": b""})
    bag = outrigger.dask.bag(store, "logs", records="lines", size=10_000)
    assert bag.npartitions > 10
    assert bag.compute(scheduler="sync") == [*LINES, "first", "last without an end"]
    assert bag.filter(lambda line: "first" in line).count().compute(scheduler="sync") == 1


def test_other_records_and_what_a_program_makes_of_parts(store: outrigger.Store) -> None:
    store.write_bytes("numbers", bytes(range(200)))
    fixed = outrigger.dask.bag(store.location, "numbers", records="fixed:8", size=30)
    assert fixed.compute(scheduler="sync") == [bytes(range(at, at + 8)) for at in range(0, 200, 8)]
    store.write_bytes("text", b"one;two;three;")
    divided = outrigger.dask.bag(store, "text", records="delimiter:;", size=5)
    assert divided.compute(scheduler="sync") == [b"one", b"two", b"three"]
    parts = outrigger.dask.read(store, ["text", "numbers"], len)
    assert list(dask.compute(*parts, scheduler="sync")) == [14, 200]
    with pytest.raises(FileNotFoundError):
        outrigger.dask.bag(store, "nothing")


def test_workers_read_what_they_have(
    store: outrigger.Store, client: Client, spread: Callable[..., None]
) -> None:
    store.write_bytes("log", TEXT)
    spread("alpha", "beta.example.org", "beta")
    expected = ["alpha", "beta", "beta"] * 4
    parts = outrigger.dask.read(store, "log", where, records="lines", size=len(TEXT) // 12 + 1)
    assert [name for (name,) in dask.compute(*parts)] == expected
    bag = outrigger.dask.bag(store, "log", where, records="lines", size=len(TEXT) // 12 + 1)
    assert bag.compute() == expected
    assert bag.map(lambda name: name == str(get_worker().name)).compute() == [True] * 12
    assert dict(bag.frequencies().compute()) == {"alpha": 4, "beta": 8}
    assert bag.count().compute() == 12


def test_parts_of_unknown_hosts_are_read_anywhere(
    store: outrigger.Store, client: Client, spread: Callable[..., None]
) -> None:
    store.write_bytes("log", TEXT)
    spread("gamma")
    assert outrigger.dask.bag(store, "log", records="lines", size=20_000).compute() == LINES


def test_a_snapshot_is_read_as_it_was(store: outrigger.Store) -> None:
    store.write_bytes("logs/a", TEXT)
    store.snapshot("first")
    store.remove("logs/a")
    bag = outrigger.dask.bag(store, "logs", at="first", records="lines", size=50_000)
    assert bag.compute(scheduler="sync") == LINES
