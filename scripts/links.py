#!/usr/bin/env python3
"""Checks the links of the documents: that each relative link leads to a file of the tree, and each
#anchor to a heading.

    scripts/links.py [FILE.md ...]   all *.md that git knows, or those that are named
    scripts/links.py --self-test

Links to other sites are not followed. Prints FILE:LINE and what is missing, and exits 1 if
something is.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Made by `make docs`.
GENERATED = {ROOT / "docs/reference/cli.md"}
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^()\s>]*(?:\([^()]*\)[^()\s>]*)*)>?(?:\s+\"[^\"]*\")?\)")
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
FENCE = re.compile(r"\s*(```+|~~~+)")


def prose(text):
    """Each line that lies outside of fences, with its number; other lines are empty."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
            line = ""
        yield number, "" if fence else line


def links(text):
    """Each link's line and target. Code has none, and a link's text may be broken over lines."""
    whole = "\n".join(line for _, line in prose(text))
    for code in reversed(list(CODE.finditer(whole))):
        # The same length, so that lines keep their numbers.
        blank = re.sub(r"[^\n]", "x", code[0])
        whole = whole[: code.start()] + blank + whole[code.end() :]
    for found in LINK.finditer(whole):
        yield whole.count("\n", 0, found.end()) + 1, found[1]
    for number, line in enumerate(whole.split("\n"), 1):
        if found := DEFINITION.match(line):
            yield number, found[1]


def anchors(path):
    """The anchors of a document's headings, as GitHub and mdBook make them."""
    found, seen = set(), {}
    for _, line in prose(path.read_text()):
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = "".join(c for c in text.lower() if c.isalnum() or c in " -_").replace(" ", "-")
            count = seen[slug] = seen.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def wrong(path):
    """What is wrong with each link of a document: its line, and a sentence."""
    for line, target in links(path.read_text()):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists():
            if to not in GENERATED:
                yield line, f"there is no {name}"
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            yield line, f"{name or path.name} has no heading #{anchor}"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, "a.md")
        document.write_text(
            "# One `two`: three\n[a](#one-two-three) [b](b.md) [c](#no) `[d](d.md)`\n"
            "```\n[e](e.md)\n```\n[f\ng](a.md#one-two-three) ![h](<h.svg>)\n# One `two`: three\n[i](#one-two-three-1)\n"
        )
        found = list(wrong(document))
        assert [line for line, _ in found] == [2, 2, 7], found
        assert [why.split()[-1] for _, why in found] == ["b.md", "#no", "h.svg"], found


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    documents = [Path(name).resolve() for name in sys.argv[1:]] or [ROOT / name for name in sorted(set(listed.stdout.split()))]
    faults = [f"{path.relative_to(ROOT)}:{line}: {why}" for path in documents if path.exists() for line, why in wrong(path)]
    print("\n".join(faults) or f"{len(documents)} documents: every link leads somewhere")
    sys.exit(bool(faults))
