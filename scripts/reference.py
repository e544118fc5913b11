#!/usr/bin/env python3
"""Writes the reference of the commands from the program's help.

    scripts/reference.py OUTRIGGER [FILE]   to standard output, or into FILE

Each command and its subcommands become a section, in the order and the groups of `outrigger
--help`. The options that every command has stand once, at the top.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

HEAD = """# Commands

This page is what `outrigger COMMAND --help` prints, made by `scripts/reference.py`. `outrigger man DIR` writes the same as manual pages.

"""
COMMON = "Options of every command:\n"


def help_of(program, words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTRIGGER_")}
    run = subprocess.run([program, *words, "--help"], stdout=subprocess.PIPE, text=True, check=True, env=environment | {"COLUMNS": "100", "LC_ALL": "C"})
    return run.stdout


def without_common(text):
    """A command's help, and its part that all commands share: a heading and what is indented below it."""
    before, heading, rest = text.partition(COMMON)
    lines = rest.splitlines(keepends=True)
    ends = next((at for at, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines))
    return before.rstrip() + "\n\n" + "".join(lines[ends:]), heading + "".join(lines[:ends])


def commands(text, heading="Commands"):
    """The names below a heading."""
    block = re.search(rf"^{heading}:\n((?:  .*\n|\n(?=  ))*)", text, re.M)
    return re.findall(r"^  ([a-z][a-z-]*)(?:\s|$)", block[1], re.M) if block else []


def section(program, words, depth):
    text, _ = without_common(help_of(program, words))
    about, usage, rest = text.partition("Usage: ")
    assert usage, f"{words}: its help has no usage"
    # A sentence may have what Markdown takes for a tag or for emphasis.
    about = re.sub(r"([<*_])", r"\\\1", about.strip())
    yield f"{'#' * depth} outrigger {' '.join(words)}\n\n{about}\n\n```text\n{usage}{rest.rstrip()}\n```\n"
    for name in commands(text):
        if name != "help":
            yield from section(program, [*words, name], depth + 1)


def reference(program):
    top = help_of(program, [])
    body, common = without_common(top)
    _, _, groups = body.partition("<COMMAND>\n\n")
    groups, examples, rest = groups.partition("Examples:\n")
    yield HEAD + f"```text\n{common.rstrip()}\n\n{examples}{rest.rstrip()}\n```\n"
    for group in re.findall(r"^(\S.*):$", groups, re.M):
        yield f"## {group}\n"
        for name in commands(groups, group):
            if name != "help":
                yield from section(program, [name], 3)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    page = "\n".join(reference(sys.argv[1]))
    assert page.count("\n### ") > 20, "the program's help is not as it was: no commands were found"
    Path(sys.argv[2]).write_text(page) if len(sys.argv) == 3 else print(page, end="")
