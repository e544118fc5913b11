"""Jobs: programs that run over stored files, where the data lies.

Jobs are started by the program ``outrigger``, which is found on the path or named in
``OUTRIGGER_PROGRAM``: their processes must not be children of a Python with threads. With agents
(``outrigger node``) they run there, without any in a background process here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

#: States in which nothing more happens.
OVER = frozenset({"done", "failed", "cancelled"})
#: Seconds between looks at a job that is waited for: at first, and at most.
LOOK_EVERY, LOOK_AT_LEAST = 0.05, 1.0


class JobError(RuntimeError):
    """A job failed or was cancelled. `job` is the job, and `logs` has its standard error."""

    def __init__(self, job: Job, why: str, logs: str) -> None:
        super().__init__(f"job {job.number} {why}" + (f"\n{logs}" if logs else ""))
        self.job, self.logs = job, logs


def program() -> str:
    """Return the path of the program ``outrigger``.

    Raises
    ------
    FileNotFoundError
        If it is not installed.
    """
    found = os.environ.get("OUTRIGGER_PROGRAM") or shutil.which("outrigger")
    if not found:
        raise FileNotFoundError(2, "the program `outrigger` is not on the path; install it, or set OUTRIGGER_PROGRAM")
    return found


def command(location: str, *words: str) -> Any:
    """Run a command of ``outrigger`` on a store, and return what it prints, parsed from JSON."""
    done = subprocess.run(
        [program(), "--store", location, "--json", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 2:
        raise ValueError(done.stderr.strip().removeprefix("outrigger: "))
    if done.returncode != 0 and not done.stdout.strip():
        raise RuntimeError(done.stderr.strip().removeprefix("outrigger: "))
    return json.loads(done.stdout) if done.stdout.strip() else None


def run(
    location: str,
    program: Sequence[str],
    *,
    inputs: str | Sequence[str],
    out: str | Sequence[str] = (),
    pattern: str = "1R->1W",
    records: str = "whole",
    splits: str | int = "auto",
    env: Mapping[str, str] | Sequence[str] = (),
    limits: str | None = None,
    reads: Sequence[str] = (),
    net: bool | Sequence[str] = False,
    tries: int = 2,
    keep_going: bool = False,
    slots: int | None = None,
    sandbox: str = "strict",
) -> Job:
    """Start a program over stored files.

    Parameters
    ----------
    program : list of str
        The program and its arguments; ``@NAME`` is a component of the store.
    inputs : str or list of str
        Globs of stored files.
    out : str or list of str
        Where outputs go: ``errors/{stem}``.
    pattern : str
        What is read and written, as ``outrigger run --help`` explains.
    records : str
        "whole", "lines", "fixed:BYTES", "delimiter:TEXT", "bam" or "plugin:PROGRAM".
    splits : str or int
        "auto", "hosts", or a number.
    env : mapping or list of str
        Variables; a name alone takes its value where the program runs.
    limits : str, optional
        Of one attempt: ``memory=1G,time=10m``.
    reads : list of str
        Globs of other stored files that the program may read.
    net : bool or list of str
        True allows all of the network; a list names HOST:PORT.
    tries, keep_going, slots, sandbox
        As the options of ``outrigger run``.

    Returns
    -------
    Job
        It runs already; `Job.wait` waits for it.
    """
    words = ["run", "--detach", "--pattern", pattern, "--records", records]
    words += ["--splits", str(splits), "--tries", str(tries), "--sandbox", sandbox]
    given = [f"{key}={value}" for key, value in env.items()] if isinstance(env, Mapping) else list(env)
    for option, values in (("--in", inputs), ("--out", out), ("--env", given), ("--with", reads)):
        for value in [values] if isinstance(values, str) else values:
            words += [option, value]
    words += [] if limits is None else ["--limits", limits]
    words += ["--net"] if net is True else [word for place in net or () for word in ("--net", place)]
    words += ["--keep-going"] if keep_going else []
    words += [] if slots is None else ["--slots", str(slots)]
    return Job(location, command(location, *words, "--", *program)["job"])


class Job:
    """A job of a store.

    Attributes
    ----------
    number : int
        Its number, as ``outrigger job`` takes it.
    """

    def __init__(self, location: str, number: int) -> None:
        self.location, self.number = location, number

    def show(self) -> dict[str, Any]:
        """Return all that is known of it, as ``outrigger job show --json`` prints it."""
        return command(self.location, "job", "show", str(self.number))

    @property
    def state(self) -> str:
        """"waiting", "running", "done", "failed" or "cancelled"."""
        return self.show()["state"]

    def progress(self) -> tuple[int, int]:
        """Return how many splits are done, and how many there are."""
        return _progress(self.show())

    def wait(self, timeout: float | None = None, progress: Callable[[int, int], None] | None = None) -> Job:
        """Wait until it has ended, and return it.

        Parameters
        ----------
        timeout : float, optional
            Seconds.
        progress : callable, optional
            Called with the splits that are done, and all, whenever that changes.

        Raises
        ------
        JobError
            If it failed or was cancelled.
        TimeoutError
            If it still runs; it goes on.
        """
        until = None if timeout is None else time.monotonic() + timeout
        last, pause = None, LOOK_EVERY
        while True:
            shown = self.show()
            now = _progress(shown)
            if progress is not None and now != last:
                progress(*now)
            last = now
            if shown["state"] == "done":
                return self
            if shown["state"] in OVER:
                raise JobError(self, f"{shown['state']}: {shown['why']}", self.logs())
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"job {self.number} still runs after {timeout} s")
            time.sleep(pause)
            pause = min(pause * 1.5, LOOK_AT_LEAST)

    def watch(self, timeout: float | None = None) -> Job:
        """Show it with its progress in a notebook until it has ended, and return it.

        The argument and the errors are those of `wait`.
        """
        from IPython.display import display

        shown = display(self, display_id=True)
        try:
            return self.wait(timeout, lambda done, of: shown.update(self))
        finally:
            shown.update(self)

    def logs(self) -> str:
        """Return the standard error of its programs."""
        splits = command(self.location, "job", "logs", str(self.number))["splits"]
        return "\n".join(split["log"].rstrip() for split in splits if split["log"])

    def cancel(self) -> None:
        """Cancel it: no output appears."""
        command(self.location, "job", "cancel", str(self.number))

    def __repr__(self) -> str:
        return f"Job({self.location!r}, {self.number})"

    def _repr_html_(self) -> str:
        shown = self.show()
        done, of = _progress(shown)
        words = escape(" ".join(shown.get("program") or []))
        bar = f"<progress value='{done}' max='{max(of, 1)}'></progress> {done} of {of}"
        return f"<div>Job {self.number} <b>{escape(shown['state'])}</b> {bar}<br><code>{words}</code></div>"


def _progress(shown: Mapping[str, Any]) -> tuple[int, int]:
    counts = [shown[f"splits_{state}"] for state in ("waiting", "running", "done", "set_aside")]
    return counts[2] + counts[3], sum(counts)
