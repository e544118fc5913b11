"""What a notebook shows of stores and jobs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from conftest import require

require("IPython")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import outrigger


@pytest.fixture(scope="module")
def shell() -> Any:
    """A shell that shows what a notebook shows."""
    made = InteractiveShell.instance()
    made.display_formatter.active_types = ["text/plain", "text/html"]
    yield made
    InteractiveShell.clear_instance()


def html(outputs: Any) -> list[str]:
    return [output.data["text/html"] for output in outputs]


def test_a_store_shows_what_it_has(shell: Any, store: outrigger.Store) -> None:
    store.write_bytes("a", b"x" * 2048)
    shown, _ = shell.display_formatter.format(store)
    assert "1 in 1 directories, 2.00 KiB" in shown["text/html"]
    assert store.location in shown["text/plain"]


def test_a_job_shows_its_progress(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()

    def command(location: str, *words: str) -> dict[str, Any]:
        number = min(next(looks) // 2, 3)
        counts = {"splits_waiting": 3 - number, "splits_running": 0, "splits_done": number, "splits_set_aside": 0}
        return {"state": "done" if number == 3 else "running", "program": ["<cat>"], **counts}

    monkeypatch.setattr("outrigger.jobs.command", command)
    with capture_output() as shown:
        assert outrigger.Job("/store", 7).watch().number == 7
    pages = html(shown.outputs)
    assert all("Job 7" in page and "<code>&lt;cat&gt;</code>" in page for page in pages)
    assert "<b>running</b>" in pages[0]
    assert "<b>done</b> <progress value='3' max='3'></progress> 3 of 3" in pages[-1]
