#!/usr/bin/env python3
"""What a command on a small store takes: plain, with the key in the kernel's keyring, and with a key file.

    bench/opens.py --outrigger target/release/outrigger --work DIR

Each command runs once on each store in turn, `--rounds` times. Printed: medians in milliseconds, and the median of
the differences to the plain store's run in the same round.
"""
import argparse
import os
import statistics
import time
from pathlib import Path

from common import Failed, alone, enter, lock_option, run

COMMANDS = [["ls"], ["status"], ["cat", "b/3"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", default="target/release/outrigger")
    parser.add_argument("--work", type=Path, required=True, help="a directory for the stores; made, and removed at the end")
    parser.add_argument("--rounds", type=int, default=41)
    lock_option(parser)
    args = parser.parse_args()
    if args.work.exists():
        raise Failed(f"{args.work} is there")
    binary, work = Path(args.outrigger).resolve(), args.work.resolve()
    (work / "b").mkdir(parents=True)
    for number in range(10):
        (work / "b" / str(number)).write_bytes(os.urandom(10_000))
    stores = {}
    for name, options in (("plain", ["--no-encryption"]), ("keyring", []), ("key file", [])):
        store = work / name
        env = {**os.environ, "XDG_CONFIG_HOME": str(work / "config")}
        stores[name] = lambda *words, store=store, env=env: run([binary, "-s", store, *words], env=env, cwd=work)
        stores[name]("init", *options)
        stores[name]("put", "b", "--to", "b")
    stores["keyring"]("key", "unlock", "--for", "1h")
    try:
        taken = {(name, word[0]): [] for name in stores for word in COMMANDS}
        with alone(args.lock):
            for word in COMMANDS:
                for store in stores.values():
                    store(*word)
            for _ in range(args.rounds):
                for word in COMMANDS:
                    for name, store in stores.items():
                        begin = time.perf_counter()
                        store(*word)
                        taken[name, word[0]].append(1000 * (time.perf_counter() - begin))
    finally:
        stores["keyring"]("key", "lock")
        run(["rm", "-rf", work])
    print(f"Medians of {args.rounds} rounds in turns, ms; in brackets the median difference to the plain store.\n")
    print("| | " + " | ".join(stores) + " |\n| --- |" + " ---: |" * len(stores))
    for word in COMMANDS:
        plain = taken["plain", word[0]]
        cells = []
        for name in stores:
            more = statistics.median(a - b for a, b in zip(taken[name, word[0]], plain))
            cells.append(f"{statistics.median(taken[name, word[0]]):.2f}" + (f" ({more:+.2f})" if name != "plain" else ""))
        print(f"| `{' '.join(word)}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    enter(main)
