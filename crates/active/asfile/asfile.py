"""How a component in Python reads its input and writes its outputs: the module of the C library libasfile.

>>> import asfile
>>> with asfile.open() as records, asfile.open(mode="w") as out:      # doctest: +SKIP
...     for record in records:
...         out.write(record.upper())

Files are binary. Outside of a job, standard input and output, and files in the current directory, take the places of inputs and outputs.
"""

import errno
import io
import os
import sys

__all__ = ["open", "job", "split", "splits", "attempt", "task_id"]


def open(name=None, mode="r"):  # noqa: A001: it is to this module what it is to Python
    """Opens the component's input or another stored file (mode "r"), or one of its outputs (mode "w").

    Parameters
    ----------
    name : str, optional
        Reading: the path of a stored file to look at (``--with``), or of another input if inputs are files (``{in}``). Writing:
        an output's name (``--out NAME=TEMPLATE``), or the name of a file of a directory output. Default: the component's input,
        or its unnamed output.
    mode : {"r", "w"}

    Returns
    -------
    io.BufferedReader or io.BufferedWriter
        Reading waits for a writer that is still writing, and ends when that has closed the file. ``seek`` works on the
        component's input if the job asks for its input as a file; otherwise it is a stream.
    """
    if mode not in ("r", "w"):
        raise ValueError(f"mode {mode!r}: use 'r' or 'w'")
    own = name in (None, "", "-")
    if mode == "r":
        if own:
            path = os.environ.get("AS_INPUT_FILE")
            return io.open(path, "rb") if path else sys.stdin.buffer
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} cannot be the path of a stored file")
        files = os.environ.get("AS_IN")
        if files is None and "AS_JOB" in os.environ:
            raise FileNotFoundError(errno.ENOENT, "this job has no files to look at (--with, {in})", name)
        return io.open(os.path.join(files or ".", name), "rb")
    if own:
        return sys.stdout.buffer
    if "/" in name or name == "..":
        raise ValueError(f"{name!r} cannot be the name of an output")
    path = os.environ.get(f"AS_OUTPUT_{name}") or os.path.join(os.environ.get("AS_WORK", "."), name)
    return io.open(path, "wb")


def _number(name, default):
    return int(os.environ.get(name, default))


def job():
    """This component's job; 0 outside of one."""
    return _number("AS_JOB", 0)


def split():
    """Which split of the input it has, from 0."""
    return _number("AS_SPLIT", 0)


def splits():
    """How many splits there are."""
    return _number("AS_SPLITS", 1)


def attempt():
    """Counts the attempts at this split, from 1."""
    return _number("AS_ATTEMPT", 1)


def task_id():
    """A text that is the same for every attempt at this split and differs from that of all others; "" outside of a job."""
    return os.environ.get("AS_TASK_ID", "")
