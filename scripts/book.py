#!/usr/bin/env python3
"""Builds the book of the documents: a site in TARGET/book, with a search.

    scripts/book.py OUTRIGGER TARGET   needs TARGET/tools/bin/mdbook, as `make docs` installs it, or `mdbook` in the PATH

The documents lie in docs/ and, some of them, beside it. mdBook wants all of them in one folder. So
this script copies those that docs/SUMMARY.md names into TARGET/book-source, adds the reference of
the commands (scripts/reference.py), and changes links: to where a document lies in the copy, or to
the repository's site for everything that is not in the book.
"""
import re
import shutil
import subprocess
import sys
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\(<?)([^()\s>#]+)(#[^()\s>]*)?(?=>?(?:\s+\"[^\"]*\")?\))")


def in_book(path):
    """Where a file of the tree lies in the book."""
    place = path.relative_to(DOCS) if path.is_relative_to(DOCS) else path.relative_to(ROOT)
    # mdBook makes pages of this name of README.md, and does not change links to it.
    return place.with_name("index.md") if place.name == "README.md" else place


def chapters(summary):
    return [(DOCS / target).resolve() for _, target, _ in LINK.findall(summary)]


def links_changed(text, path, book, site):
    """A document's text with the links that hold in the book."""

    def change(found):
        start, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"[a-z]+:", target):
            return found[0]
        to = (path.parent / target).resolve()
        if to in book:
            return start + relpath(in_book(to), in_book(path).parent) + anchor
        return f"{start}{site}/blob/main/{to.relative_to(ROOT)}{anchor}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(change, part) for part in parts)


def main(program, target):
    target = Path(target).resolve()
    source = target / "book-source"
    site = re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    summary = (DOCS / "SUMMARY.md").read_text()
    pictures = sorted(DOCS.glob("*.svg"))
    book = set(chapters(summary)) | set(pictures)
    generated = DOCS / "reference/cli.md"
    shutil.rmtree(source, ignore_errors=True)
    for path in [DOCS / "SUMMARY.md", *book - {generated} - set(pictures)]:
        place = source / in_book(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(links_changed(path.read_text(), path, book, site))
    for path in [DOCS / "book.toml", *pictures]:
        shutil.copy(path, source / in_book(path))
    subprocess.run([ROOT / "scripts/reference.py", program, source / in_book(generated)], check=True)
    tool = shutil.which("mdbook", path=str(target / "tools/bin")) or shutil.which("mdbook")
    if not tool:
        sys.exit("mdbook is not installed; `make docs` installs it")
    subprocess.run([tool, "build", source, "--dest-dir", target / "book"], check=True)
    print(f"the book: {target / 'book/index.html'}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
