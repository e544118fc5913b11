#!/usr/bin/env python3
"""Finds import cycles between the top modules of each crate.

    scripts/cycles.py [--layers] [--all] [CRATE ...]   of crates/*, or of those that are named
    scripts/cycles.py --self-test

A top module is a file or a directory directly below src/. It imports another one where its code names that
in a path: `crate::x::...`, `super::...` that climbs to the crate's root, or `crate::Y` where lib.rs says
`use x::Y`. Comments and strings do not count. Neither does test code: items under `#[cfg(test)]`, the files
that such a `mod` names, tests.rs, testing/. lib.rs and main.rs are no modules: what they define themselves
is in no graph.

The modules of each cycle are printed, and three places of each import inside it (--all: every one).
--layers prints which modules each one builds on, the lowest first. Exits 1 if there is a cycle.
"""
import os
import re
import sys
import tempfile
from pathlib import Path

ROOTS = ("lib.rs", "main.rs")
ITEMS = set("async const enum extern fn impl mod pub static struct trait type unsafe use".split())
TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*)"
    r'|(?:br|cr|r)(?P<hash>#*)".*?"(?P=hash)|[bc]?"(?:\\.|[^"\\])*"'  # strings
    r"|b?'(?:\\[^\n]+?|[^\\'\n])'|'\w+"  # characters, lifetimes
    r"|(?:r#)?\w+|::|.",
    re.S,
)


def tokens(source):
    """Each token that is no comment, with its line. A string is one token."""
    at, line = 0, 1
    while at < len(source):
        found = TOKEN.match(source, at)
        end = found.end()
        if found.group() == "/*":  # these nest
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(source, end)):
                depth, end = depth + (1 if mark.group() == "/*" else -1), mark.end()
        elif not found.group("skip"):
            yield found.group(), line
        line, at = line + source.count("\n", at, end), end


def closing(words, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(words)):
        depth += (words[i][0] in "([{") - (words[i][0] in ")]}")
        if not depth:
            return i
    return len(words) - 1


def item_end(words, at):
    """The index of the last token of the item, statement, field or arm that begins at `at`."""
    is_item = words[at][0] in ITEMS
    while at < len(words):
        word = words[at][0]
        if word == ";" or (word == "," and not is_item):
            return at
        if word == "}":
            return at - 1
        if word in ("(", "[", "{"):
            at = closing(words, at)
            if word == "{" and words[at + 1][0] not in (";", ",", ".", "?"):
                return at
        at += 1
    return at


def paths(words, at):
    """The paths of the use tree or path that begins at `at`, as (names, alias), and the index behind it."""
    names = []
    while True:
        if words[at][0] == "{":
            found, end = [], closing(words, at)
            at += 1
            while at < end:
                inner, at = paths(words, at)
                found += [(names + more, alias) for more, alias in inner]
                at += words[at][0] == ","
            return found, end + 1
        names.append(words[at][0].removeprefix("r#"))
        at += 1
        if words[at][0] != "::" or not re.match(r"[\w*{]", words[at + 1][0]):
            break
        at += 1
    if words[at][0] == "as":
        return [(names, words[at + 1][0])], at + 2
    return [(names, names[-2] if names[-1] == "self" and len(names) > 1 else names[-1])], at


class Crate:
    """`edges[a][b]`: the places where module `a` imports `b`, each as "file:line path"."""

    def __init__(self, root):
        self.src = root / "src"
        is_module = lambda path: path.is_dir() or (path.suffix == ".rs" and path.name not in ROOTS)
        self.tops = {path.stem for path in self.src.iterdir() if is_module(path)} - {"tests", "testing"}
        self.tests, self.at_root, self.edges = {self.src / "testing"}, {}, {}
        # First the roots, and files before those below them: the file above says which ones are
        # tests.
        is_root = lambda file: file.parent == self.src and file.name in ROOTS
        order = lambda file: (not is_root(file), len(file.parts), file)
        for file in sorted(self.src.rglob("*.rs"), key=order):
            if file.name != "tests.rs" and not self.tests.intersection((file, *file.parents)):
                below = file.relative_to(self.src).with_suffix("").parts
                self.read(file, [] if is_root(file) else [part for part in below if part != "mod"])

    def read(self, file, here):
        """Reads the file of the module `here`."""
        words = [("", 0), *tokens(file.read_text()), ("", 0), ("", 0)]
        depth, ends = len(here), []  # `ends`: where the inline modules that surround `at` end
        at, is_test, attribute_end, named = 1, False, 0, None
        while at < len(words) - 2:
            word, line = words[at]
            while ends and at > ends[-1]:
                ends.pop(), here.pop()
            if word == "#" and words[at + 1][0] == "[":
                attribute_end = closing(words, at + 1)
                attribute = [word for word, _ in words[at + 2 : attribute_end]]
                is_test |= attribute[0] == "cfg" and "test" in attribute and "not" not in attribute
                named = attribute[2].strip('"') if attribute[0] == "path" else named
            elif at > attribute_end and is_test:
                end = item_end(words, at)
                item = [word for word, _ in words[at : end + 1]]
                if "mod" in item[:5] and item[-1] == ";":
                    own = file.parent if not here or file.name == "mod.rs" else file.with_suffix("")
                    self.tests |= {file.parent / named} if named else {own / item[-2], own / f"{item[-2]}.rs"}
                at, is_test, named = end, False, None
            elif word == "mod" and words[at + 2][0] == "{":
                ends.append(closing(words, at + 2))
                here.append(words[at + 1][0])
                at += 2
            elif word == "use" and depth == len(here) == 0:
                found, at = paths(words, at + 1)
                for names, alias in found:
                    names = names[1:] if names[0] in ("crate", "self") else names
                    if names[0] in self.tops and len(names) > 1:
                        self.at_root[alias] = names[0]
            elif word in ("crate", "super", "self") and words[at + 1][0] == "::" != words[at - 1][0]:
                found, at = paths(words, at)
                self.count(here, found, f"{file}:{line}")
                at -= 1
            named = named if at <= attribute_end or is_test else None
            at += 1

    def count(self, here, found, place):
        """Counts the paths in the module `here` that lead to the crate's root and into another module."""
        for names, _ in found:
            up = next((i for i, name in enumerate(names) if name not in ("super", "self")), len(names))
            climbed = names[:up].count("super")
            if names[0] == "crate":
                up, climbed = 1, len(here)
            if not here or names[0] not in ("crate", "super") or climbed < len(here) or up == len(names):
                continue
            if names[up] == "*":
                sys.exit(f"{place}: name what `{'::'.join(names)}` imports: from here it cannot be told")
            to = names[up] if names[up] in self.tops else self.at_root.get(names[up])
            if to and to != here[0]:
                places = self.edges.setdefault(here[0], {}).setdefault(to, [])
                places.append(f"{place} {'::'.join(names)}")

    def layers(self):
        """Groups of modules that import each other, each after all that it builds on (Tarjan's
        algorithm)."""
        number, low, stack, groups = {}, {}, [], []

        def visit(module):
            number[module] = low[module] = len(number)
            stack.append(module)
            for to in sorted(self.edges.get(module, ())):
                if to not in number:
                    visit(to)
                if to in stack:
                    low[module] = min(low[module], low[to])
            if low[module] == number[module]:
                at = stack.index(module)
                groups.append(sorted(stack[at:]))
                del stack[at:]

        for module in sorted(self.tops):
            if module not in number:
                visit(module)
        return groups


def report(crate, every):
    """Prints the cycles of a crate, and returns how many there are."""
    cycles = [group for group in crate.layers() if len(group) > 1]
    for group in cycles:
        print(f"{crate.src}: {len(group)} of {len(crate.tops)} modules import each other: {', '.join(group)}")
        for module in group:
            for to, places in sorted(crate.edges[module].items()):
                if to in group:
                    few = every or len(places) <= 3
                    shown = places if few else [*places[:3], f"and {len(places) - 3} more"]
                    print(f"    {module} -> {to}", *shown, sep="\n        ")
    return len(cycles)


# Code of a module `a` in a crate that also has a module `b`, and whether `a` imports `b`.
CASES = [
    ("use crate::b::X;", True),
    ("use crate::{a::Y, b};", True),
    ("use {crate::b::X};", True),
    ("use super::b;", True),
    ("use other::crate_::b;", False),
    ("fn f() { crate::b::f() }", True),
    ("fn f(x: Vec<crate::b::X>) -> impl crate::b::T {}", True),
    ("macro_rules! m { () => { $crate::b::f() } }", True),
    ("#[derive(crate::b::D)]\n#[other]\nstruct S;", True),
    ("pub(crate) fn f() {}\npub(in crate::a) fn g() {}", False),
    ("mod m { use super::super::b; }", True),
    ("mod m { use super::b; }", False),
    ("mod m { mod n {} fn f() { super::super::b::f() } }", True),
    ("mod m {} use super::b::X;", True),
    ("// crate::b::f()\n/* crate::b /* */ crate::b */", False),
    ('const S: &str = "\\" crate::b::f()"; const R: &str = r#"" crate::b::f() "#;', False),
    ("fn f<'a>(x: &'a u8) { let q = ('\"', '\\'', b'\"', '\\u{22}'); crate::b::f() }", True),
    ("#[cfg(test)] mod tests { use crate::b; }", False),
    ("#[cfg(test)] mod tests { fn f() {} } fn g() { crate::b::g() }", True),
    ("#[cfg(test)] use crate::b::X;\nfn f() {}", False),
    ("#[cfg(not(test))] use crate::b::X;", True),
    ("#[cfg(test)]\n#[allow(x)]\nfn f<A, B>() where A: X { crate::b::f() }\nfn g() {}", False),
    ('#[cfg(any(test, feature = "testing"))] fn f() { crate::b::f() }', False),
    ("struct S { #[cfg(test)] x: crate::b::X, y: u8 }", False),
    ("struct S { #[cfg(test)] x: u8, y: crate::b::X }", True),
    ("#[cfg(test)] mod probe;", False),  # a/probe.rs imports `b`
    ("mod probe;", True),
    ('#[cfg(test)]\n#[path = "a/probe.rs"]\nmod tests;', False),
]


def self_test():
    """Draws the graphs of small crates and compares them with the known ones."""

    def graph(files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in {"lib.rs": "", **files}.items():
                file = Path(root, "src", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            crate = Crate(Path(root))
            edges = {(module, to) for module in crate.edges for to in crate.edges[module]}
            return edges, [group for group in crate.layers() if len(group) > 1]

    def edges(**files):
        return graph({f"{name}.rs": text for name, text in files.items()})[0]

    for code, imports in CASES:
        probe = {"a/probe.rs": "use crate::b::X;"} if "probe" in code else {}
        assert graph({"a.rs": code, "b.rs": "", **probe})[0] == ({("a", "b")} if imports else set()), code
    reexports = "mod a; pub use b::{X as Z, c::W, self as q}; pub(crate) use crate::c::V; fn own() {}"
    assert edges(lib=reexports, a="use crate::{Z, W};", b="", c="") == {("a", "b")}
    assert edges(lib=reexports, a="use crate::V;", b="", c="") == {("a", "c")}
    assert edges(lib=reexports, a="use crate::{X, own};", b="", c="") == set()
    below = {"a/mod.rs": "mod c;", "a/c.rs": "use super::super::b;", "b.rs": ""}
    below["testing/mod.rs"] = "use crate::b;"
    assert graph(below)[0] == {("a", "b")}
    assert graph({**below, "a/c.rs": "use super::b;", "a/tests.rs": "use crate::b;"})[0] == set()
    three = {"a.rs": "use crate::b;", "b.rs": "use crate::c;", "d.rs": "use crate::a;"}
    assert graph({**three, "c.rs": "use crate::a;"})[1] == [["a", "b", "c"]]
    assert graph({**three, "c.rs": ""})[1] == []
    try:
        edges(a="use super::*;", b="")
        raise AssertionError("it cannot be told what that imports")
    except SystemExit:
        pass


def main(arguments):
    if "--help" in arguments or "-h" in arguments:
        return print(__doc__)
    if "--self-test" in arguments:
        return self_test()
    crates = Path(os.path.relpath(Path(__file__).resolve().parent.parent / "crates"))
    named = [word for word in arguments if not word.startswith("-")]
    cycles = 0
    for root in [crates / name for name in named] or sorted(crates.iterdir()):
        crate = Crate(root)
        cycles += report(crate, "--all" in arguments)
        for module in sum(crate.layers(), []) if "--layers" in arguments else ():
            print(f"{crate.src}/{module}: {', '.join(sorted(crate.edges.get(module, ()))) or 'nothing'}")
    sys.exit(1 if cycles else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
