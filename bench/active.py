#!/usr/bin/env python3
"""Programs over stored data, beside the same programs over plain files.

    bench/active.py --outrigger target/release/outrigger --work DIR [--mib 512] [--splits 10000] [--rounds 3]

Three questions: what a split costs beside the program that it runs (many tiny splits, kept in and not, less what starting the program alone
costs); at which rate a program is fed (the same program over the stored file, and over the plain file it was put from); what joining
files costs. Every result is compared with what the plain program says. Prints one JSON object.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path


def run(words, **more):
    began = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{words}: exit code {done.returncode}\n{done.stderr.decode()}")
    return time.monotonic() - began, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    outrigger = os.path.abspath(args.outrigger)
    store = args.work / "store"
    base = [outrigger, "-s", str(store)]
    if not store.exists():
        run(base + ["init"])
    numbers = args.work / "numbers"
    rng = random.Random(7)
    block = "".join(f"{rng.uniform(-1e6, 1e6):.9f}\n" for _ in range(60_000))
    with numbers.open("w") as out:
        for part in range(args.mib << 20 >> 20):
            out.write(f"{part}\n" + block[part * 31 % 1000:][: (1 << 20)])
            out.write("\n")
    run(base + ["put", str(numbers), "--to", "numbers"])
    small = args.work / "small"
    small.write_text("".join(f"{number}\n" for number in range(args.splits * 4)))
    run(base + ["put", str(small), "--to", "small"])
    report = {"mib": numbers.stat().st_size / (1 << 20), "splits": args.splits, "cpus": os.cpu_count()}

    # What a split costs.
    for mode in ("off", "strict"):
        words = base + ["run", "--json", "--sandbox", mode, "--in", "small", "--out", "copy", "--records", "lines"]
        secs, said = run(words + ["--splits", str(args.splits), "--", "cat"])
        assert run(base + ["cat", "copy"])[1] == small.read_bytes(), "joined outputs differ"
        assert json.loads(said)["splits"] == args.splits
        report[f"split_ms_{mode}"] = secs * 1000 / args.splits
    began = time.monotonic()
    for _ in range(200):
        subprocess.run(["cat"], stdin=subprocess.DEVNULL, check=True)
    report["start_alone_ms"] = (time.monotonic() - began) * 1000 / 200

    # At which rate programs are fed; the file is read once before, so that both come from memory.
    programs = {"awk": ["awk", "{s+=$1*2} END {printf \"%.3f\\n\", s}"], "wc": ["wc", "-l"], "sha256sum": ["sha256sum"]}
    for name, program in programs.items():
        plain, stored = [], []
        for _ in range(args.rounds):
            with numbers.open("rb") as stdin:
                secs, wanted = run(program, stdin=stdin)
            plain.append(secs)
            words = base + ["-q", "run", "--sandbox", "off", "--in", "numbers", "--out", f"out-{name}", "--"]
            secs, _ = run(words + program)
            stored.append(secs)
            assert run(base + ["cat", f"out-{name}"])[1] == wanted, f"{name} says something else"
        report[f"{name}_plain_s"], report[f"{name}_stored_s"] = min(plain), min(stored)
        report[f"{name}_ratio"] = min(stored) / min(plain)

    # Joining.
    secs, _ = run(base + ["-q", "run", "--pattern", "#W->1W"] + ["--in", "numbers"] * 10 + ["--out", "joined"])
    report["join_10_s"] = secs
    print(json.dumps(report))


main()
