"""Stores for tests: each test has one of its own."""

import dataclasses
import itertools
import os
import shutil
import subprocess

import pytest

import outrigger


def require(package):
    """Return a package; without it the test fails where all are required, and else is skipped."""
    if os.environ.get("OUTRIGGER_REQUIRE") == "1":
        return __import__(package, fromlist=["_"])
    return pytest.importorskip(package)


@pytest.fixture(scope="session")
def program():
    found = os.environ.get("OUTRIGGER_PROGRAM") or shutil.which("outrigger")
    assert found, "the program `outrigger` is not on the path; name it in OUTRIGGER_PROGRAM"
    return found


@pytest.fixture
def location(program, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OUTRIGGER_PROGRAM", program)
    where = tmp_path / "store"
    subprocess.run([program, "--store", where, "--quiet", "init"], check=True)
    return str(where)


@pytest.fixture
def store(location):
    with outrigger.Store(location) as opened:
        yield opened


@pytest.fixture
def spread(monkeypatch):
    """A function that lets the parts of files lie on the hosts that it is given, in turn."""

    def onto(*hosts):
        splits = outrigger.Store.splits

        def placed(self, *arguments, **options):
            found = splits(self, *arguments, **options)
            return [dataclasses.replace(part, hosts=(host,)) for part, host in zip(found, itertools.cycle(hosts))]

        monkeypatch.setattr(outrigger.Store, "splits", placed)

    return onto
