"""Dask on the hosts of a cluster, each with some of the data: `scripts/test-python.sh cluster`."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
from conftest import require

import outrigger

HOSTS = os.environ.get("OUTRIGGER_TEST_HOSTS", "").split()
FILES, LENGTH = 1000, 64 << 10

pytestmark = pytest.mark.skipif(not HOSTS, reason="no cluster: scripts/test-python.sh cluster")


def on(host, *command, **options):
    """Start a command in the network of a host."""
    return subprocess.Popen(["nsenter", f"--net=/run/netns/outrigger-{host}", *command], **options)


@pytest.fixture
def placed(program, tmp_path, monkeypatch):
    """A store in the cluster's pool, with files that each host holds a part of."""
    monkeypatch.setenv("HOME", str(tmp_path))
    schema = f"dask_{os.getpid()}"
    packs = os.environ["OUTRIGGER_TEST_RADOS"].replace("?", f"/{schema}?", 1)
    url = f"{os.environ['OUTRIGGER_TEST_POSTGRES']}?schema={schema}&sslmode=disable"
    run = [program, "--store", url, "--quiet"]
    subprocess.run([*run, "init", "--no-encryption", "--packs", packs], check=True)
    for number, host in enumerate(HOSTS):
        folder = tmp_path / host
        folder.mkdir()
        for file in range(number, FILES, len(HOSTS)):
            (folder / f"{file:04}").write_bytes(os.urandom(LENGTH))
        subprocess.run([*run, "put", folder, "--to", f"data/{host}", "--place", host], check=True)
    return url


@pytest.fixture
def workers(tmp_path):
    """Dask's scheduler, and a worker on each host, which is named after it."""
    require("distributed")
    scheduler = f"tcp://{os.environ['OUTRIGGER_TEST_BRIDGE']}:18786"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", scheduler, "--no-dashboard"]
    with contextlib.ExitStack() as started, open(tmp_path / "log", "wb") as log:
        options = {"stdout": log, "stderr": log, "cwd": tmp_path}
        started.callback(subprocess.Popen(dask, **options).kill)
        for host in HOSTS:
            words = ["--name", host, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
            worker = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *words]
            started.callback(on(host, *worker, **options).kill)
        yield scheduler


def test_files_are_read_on_the_hosts_that_have_them(placed, workers):
    from distributed import Client

    from outrigger.dask import bag

    # Inside, so that workers get it without this file.
    def where(data):
        from distributed import get_worker

        return [(str(get_worker().name), len(data))]

    with outrigger.Store(placed) as store, Client(workers, timeout=60) as client:
        client.wait_for_workers(len(HOSTS), timeout=60)
        splits = store.splits("data")
        assert len(splits) == FILES
        placed_on = {part.path: part.hosts[0] for part in splits}
        began = time.monotonic()
        read = bag(store, "data", parse=where, client=client).compute()
        seconds = time.monotonic() - began
    assert sum(length for _, length in read) == FILES * LENGTH
    # The order is that of the splits.
    elsewhere = sum(length for part, (host, length) in zip(splits, read) if placed_on[part.path] != host)
    share = elsewhere / (FILES * LENGTH)
    print(f"{FILES} files of {LENGTH} bytes on {len(HOSTS)} hosts in {seconds:.1f} s, {100 * share:.2f} % read elsewhere")
    assert share <= 0.05
