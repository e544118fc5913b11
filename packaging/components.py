#!/usr/bin/env python3
"""Lists what a program is made of.

    packaging/components.py TARGET bom [CRATE]        a CycloneDX bill of materials
    packaging/components.py TARGET notices [CRATE]    the licences' texts, which go with the program

TARGET is Rust's name of a platform, such as x86_64-unknown-linux-gnu. SOURCE_DATE_EPOCH is the time
that the bill names. Its number comes from its content, so the same sources give the same bytes.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Crates that bring sources of C, and the versions of these in the crate's own version.
BROUGHT = {
    "sqlcipher-src": (r"\+sqlcipher-(?P<sqlcipher>[\d.]+)-sqlite-(?P<sqlite>[\d.]+)", "BSD-3-Clause AND blessing"),
    "openssl-src": (r"\+(?P<openssl>[\d.]+)", "Apache-2.0"),
    "zstd-sys": (r"\+zstd\.(?P<zstd>[\d.]+)", "BSD-3-Clause"),
}


def cargo(*words):
    return subprocess.run(["cargo", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def names_of(crate, target, edges):
    """The crates that the program needs for this target, as (name, version)."""
    tree = cargo("tree", "--locked", "-p", crate, "-e", edges, "--target", target, "--prefix", "none", "-f", "{p}")
    return {(line.split()[0], line.split()[1].lstrip("v")) for line in tree.splitlines() if line}


class Crates:
    """The crates of a program, in the order of their names."""

    def __init__(self, target, crate):
        self.program = crate
        metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
        self.linked = names_of(crate, target, "normal")
        wanted = self.linked | names_of(crate, target, "normal,build")
        self.all = sorted((p for p in metadata["packages"] if (p["name"], p["version"]) in wanted), key=lambda p: (p["name"], p["version"]))
        self.by_id = {p["id"]: p for p in self.all}
        self.edges = {node["id"]: [d["pkg"] for d in node["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])] for node in metadata["resolve"]["nodes"]}
        lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
        self.sums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}

    def is_in_program(self, package):
        return (package["name"], package["version"]) in self.linked or package["name"] in BROUGHT


def licence(package):
    return (package["license"] or "").replace("/", " OR ")


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version'].replace('+', '%2B')}"


def component(crates, package):
    kind = "application" if package["name"] == crates.program else "library"
    entry = {"type": kind, "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package)}
    entry["licenses"] = [{"expression": licence(package)}]
    entry["scope"] = "required" if crates.is_in_program(package) else "excluded"
    if checksum := crates.sums.get((package["name"], package["version"])):
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    pattern, terms = BROUGHT.get(package["name"], ("$^", ""))
    if found := re.search(pattern, package["version"]):
        entry["components"] = [
            {"type": "library", "bom-ref": f"pkg:generic/{name}@{version}", "name": name, "version": version,
             "purl": f"pkg:generic/{name}@{version}", "licenses": [{"expression": terms}]}
            for name, version in found.groupdict().items()
        ]
    return entry


def bom(crates, target):
    components = [component(crates, package) for package in crates.all]
    program = next(c for c in components if c["type"] == "application")
    components.remove(program)
    depends = [
        {"ref": purl(p), "dependsOn": sorted({purl(crates.by_id[d]) for d in crates.edges[p["id"]] if d in crates.by_id})} for p in crates.all
    ]
    program["properties"] = [{"name": "target", "value": target}]
    # The schema knows a scope of parts only.
    del program["scope"]
    when = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
    page = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": program},
        "components": components,
        "dependencies": depends,
    }
    page["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(page))}"
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def texts(package):
    """The licences' texts that lie in a crate's folder, or with the C sources below it."""
    folder = Path(package["manifest_path"]).parent
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        if re.match(r"(?i)(licen[cs]e|copying|notice|copyright|unlicense)", path.name) and path.is_file():
            yield path.read_text(errors="replace").strip()


def notices(crates, target):
    where = {}
    yield f"Outrigger for {target} has parts of these crates, and of Rust's standard library (MIT OR Apache-2.0).\n"
    if "musl" in target:
        yield "It is linked with musl (MIT), https://musl.libc.org.\n"
    for package in crates.all:
        if not crates.is_in_program(package) or package["source"] is None:
            continue
        yield f"{package['name']} {package['version']}: {licence(package)}\n    {package['repository'] or ''}\n"
        for text in texts(package):
            where.setdefault(hashlib.sha256(" ".join(text.split()).encode()).digest(), (text, []))[1].append(package["name"])
    for text, names in where.values():
        yield f"\n{'=' * 78}\n{', '.join(dict.fromkeys(names))}\n{'=' * 78}\n\n{text}\n"


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[2] not in ("bom", "notices"):
        sys.exit(__doc__)
    os.environ["PATH"] = f"{Path.home()}/.cargo/bin:{os.environ['PATH']}"
    crates = Crates(sys.argv[1], sys.argv[3] if len(sys.argv) == 4 else "outrigger")
    sys.stdout.write(bom(crates, sys.argv[1]) if sys.argv[2] == "bom" else "".join(notices(crates, sys.argv[1])))
