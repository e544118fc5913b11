"""Reading with Ray Data: everything is read, no record is cut, and nodes read what they have."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import require

ray = require("ray")
require("ray.data")

import pyarrow
from ray.cluster_utils import Cluster

import outrigger
import outrigger.ray
from outrigger.ray import StoreDatasource

TEXT = "".join(f"line {number} of {'x' * (number % 50)}\n" for number in range(5000)).encode()
LINES = TEXT.decode().splitlines()


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, str]]:
    """Two nodes, which have the data of the hosts alpha and beta; their numbers."""
    options = {"num_cpus": 3, "object_store_memory": 80 << 20}
    cluster = Cluster()
    for host in ("alpha", "beta"):
        cluster.add_node(labels={outrigger.ray.LABEL: host}, include_dashboard=False, **options)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield {node["Labels"][outrigger.ray.LABEL]: node["NodeID"] for node in ray.nodes()}
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def store(program: str, tmp_path: Path) -> Iterator[outrigger.Store]:
    """A new store without encryption: the nodes have another home directory, and so no key."""
    path = str(tmp_path / "store")
    subprocess.run([program, "--store", path, "--quiet", "init", "--no-encryption"], check=True)
    with outrigger.Store(path) as opened:
        yield opened


def test_every_line_is_read_once(store: outrigger.Store, nodes: dict[str, str]) -> None:
    store.write_files({"logs/a": TEXT, "logs/b": b"first\r\nlast without an end", "logs/none": b""})
    found = outrigger.ray.read(store, "logs", records="lines", size=10_000)
    expected = sorted([*LINES, "first", "last without an end"])
    assert sorted(row["text"] for row in found.take_all()) == expected
    source = StoreDatasource(store.location, "logs", records="lines", size=10_000)
    assert ray.data.read_datasource(source).count() == len(expected)
    assert len(outrigger.ray.read(store, "logs", records="lines").take(7)) == 7


def test_other_records_and_what_a_program_makes_of_parts(store: outrigger.Store, nodes: dict[str, str]) -> None:
    store.write_files({"files/numbers": bytes(range(200)), "files/text": b"one;two"})
    rows = outrigger.ray.read(store, "files").take_all()
    assert {row["path"]: row["bytes"] for row in rows} == {
        "files/numbers": bytes(range(200)),
        "files/text": b"one;two",
    }
    fixed = outrigger.ray.read(store, "files/numbers", records="fixed:8", size=30).take_all()
    assert sorted(row["bytes"] for row in fixed) == [bytes(range(at, at + 8)) for at in range(0, 200, 8)]
    makers = (
        lambda data: {"size": [len(data)]},
        lambda data: [{"size": len(data)}],
        lambda data: pyarrow.table({"size": [len(data)]}),
    )
    for parse in makers:
        made = outrigger.ray.read(store, ["files/text", "files/numbers"], parse)
        assert sorted(row["size"] for row in made.take_all()) == [7, 200]
    store.mkdir("empty")
    with pytest.raises(FileNotFoundError):
        outrigger.ray.read(store, "empty")


def test_nodes_read_what_they_have(
    store: outrigger.Store, nodes: dict[str, str], spread: Callable[..., None]
) -> None:
    store.write_bytes("log", TEXT)
    spread("alpha", "beta.example.org", "beta", "alpha", "beta")

    def where(data: bytes) -> dict[str, list[Any]]:
        return {"node": [ray.get_runtime_context().get_node_id()], "size": [len(data)]}

    rows = outrigger.ray.read(store, "log", where, records="lines", size=len(TEXT) // 5 + 1).take_all()
    assert sum(row["size"] for row in rows) == len(TEXT)
    # Each node has a processor for each of its parts, so that none goes elsewhere.
    read = sorted(row["node"] for row in rows)
    assert read == sorted([nodes["alpha"]] * 2 + [nodes["beta"]] * 3)


def test_parts_of_unknown_hosts_are_read_anywhere(
    store: outrigger.Store, nodes: dict[str, str], spread: Callable[..., None]
) -> None:
    store.write_bytes("log", TEXT)
    spread("gamma", "alpha")
    rows = outrigger.ray.read(store, "log", records="lines", size=20_000).take_all()
    assert sorted(row["text"] for row in rows) == sorted(LINES)
