#!/usr/bin/env python3
"""Programs over stored data: beside plain files, and on storage hosts beside a client that runs them.

    bench/active.py --outrigger target/release/outrigger --work DIR             everything, about a quarter of an hour; with hosts as root, and Debian's Ceph
    bench/active.py --outrigger ... --work DIR --only splits,feed               a part
    bench/active.py --outrigger ... --work DIR --local --mib 2 --splits 100     without a cluster: one store in a directory, one agent

| part | what it measures |
| --- | --- |
| splits | the cost of a split beyond that of its program: many tiny ones, with and without a sandbox, less the start of the program alone |
| feed | the rate at which a program is fed: the same program over a stored file, and over the plain file that was put |
| join | the cost of joining files |
| attach | a file that is written in a mount of this machine and read by a program there meanwhile: in-line, asynchronously, and not at all |
| foreground | a client that reads and writes in a mount, alone and beside a job, which yields or does not: latencies and rates of both (active_foreground.py) |
| dscal, aminogen | the paper's two programs with 1, 2 and 4 storage hosts: who runs them, when the client is free, bytes at its interface (active_hosts.py) |
| paced | files written in a mount and read by a program at a limited rate, in-line and asynchronously: which is done first when no program lacks a processor |
| scale | programs that read at a limited rate, on 1, 2 and 4 hosts: whether hosts add up, and how much they read from each other |

Every result is compared with the output of the plain program. --json and --markdown write a record (JSON with all numbers, Markdown beside the
requirements); the table is also printed. A part that lacks its means (root, Ceph, /dev/fuse, a C compiler) is left out, and the record says so.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from active_foreground import foreground, rows_of
from active_hosts import FOLLOWED, WAYS, Cluster, Here, Site, Work, measure, scale
from common import MIB, REPOSITORY, Failed, Missing, Record, enter, record_options, run, say

PARTS = ["splits", "feed", "join", "attach", "foreground", "dscal", "aminogen", "paced", "scale"]
LIMITED = """#!/usr/bin/python3
# Reads its input at so many MB/s at most, and keeps nothing.
import sys, time
rate, begin, read = float(sys.argv[1]) * 1e6, time.monotonic(), 0
while block := sys.stdin.buffer.read(262144):
    read += len(block)
    time.sleep(max(0, begin + read / rate - time.monotonic()))
"""
# Monoisotopic masses of residues, as in examples/active/aminogen.c, in hundredths of a dalton.
RESIDUES = [5702, 7104, 8703, 9705, 9907, 10105, 10301, 11308, 11404, 11503, 12806, 12809, 12904, 13104, 13706, 14707, 15610, 16306, 18608]
ENDS = 1902


def timed(words, **more):
    begin = time.monotonic()
    out = run(words, text=False, **more)
    return time.monotonic() - begin, out


# --- inputs and programs ---------------------------------------------------------------------------------------


def numbers(path, size):
    """So many bytes of numbers, one per line. None repeats within a block of 60,000 lines, and no
    two blocks are equal."""
    rng = random.Random(7)
    block = "".join(f"{rng.uniform(-1e6, 1e6):.9f}\n" for _ in range(60_000)).encode()
    lines = block.split(b"\n")[:-1]
    with open(path, "wb") as out:
        part = 0
        while out.tell() < size:
            # Each line ends in other digits: hard to compress, as numbers are, and nothing is
            # stored already.
            tail = f"{part:04d}\n".encode()
            out.write(tail.join(lines[: max(1, min(len(lines), (size - out.tell()) // 20 + 1))]) + tail)
            part += 1


def peaks(path, size):
    """Four peaks with tolerances, whose sequences take about `size` bytes as aminogen writes them."""
    top = 150_000
    ways = [0] * (top + 1)  # sequences by mass
    letters = [0] * (top + 1)  # and their letters together
    ways[0] = 1
    for mass in range(5702, top + 1):
        for residue in RESIDUES:
            if residue <= mass and ways[mass - residue]:
                ways[mass] += ways[mass - residue]
                letters[mass] += letters[mass - residue] + ways[mass - residue]

    def bytes_at(mass, tolerance=50):
        window = range(max(0, mass - tolerance - ENDS), min(top, mass + tolerance - ENDS) + 1)
        return sum(letters[at] + 12 * ways[at] for at in window)

    mass = next((mass for mass in range(20_000, top, 50) if bytes_at(mass) >= size / 4), top - 100)
    path.write_text("".join(f"{mass / 100:.2f} 0.5\n" for _ in range(4)))


def built(args, name):
    """A program of examples/active, compiled."""
    program = args.work / name
    command = ["cc", "-O2", "-o", program, REPOSITORY / f"examples/active/{name}.c", REPOSITORY / "crates/active/asfile/asfile.c",
               "-I", REPOSITORY / "crates/active/asfile"]
    try:
        run(command)
    except FileNotFoundError as error:
        raise Missing("there is no C compiler (package build-essential)") from error
    return program


# --- one machine -----------------------------------------------------------------------------------------------


class Embedded:
    """A store in a directory."""

    def __init__(self, args):
        self.store = args.work / "store"
        self.base = [args.outrigger, "-s", self.store]
        if not self.store.exists():
            run(self.base + ["init"])

    def __call__(self, *words):
        return run(self.base + list(words), text=False)


def splits(args, report):
    store, small = Embedded(args), args.work / "small"
    for mode, count in (("off", args.splits), ("strict", max(args.splits // 20, 20))):
        small.write_text("".join(f"{number}\n" for number in range(count * 4)))
        store("put", small, "--to", "small")
        secs, said = timed(store.base + ["run", "--json", "--sandbox", mode, "--in", "small", "--out", "copy", "--records", "lines",
                                         "--splits", count, "--", "cat"])
        if store("cat", "copy") != small.read_bytes() or json.loads(said)["splits"] != count:
            raise Failed("joined outputs differ")
        report[mode] = {"splits": count, "ms_a_split": secs * 1000 / count}
    begin = time.monotonic()
    for _ in range(200):
        subprocess.run(["cat"], stdin=subprocess.DEVNULL, check=True)
    report["start_alone_ms"] = (time.monotonic() - begin) * 1000 / 200


def feed(args, report):
    """Runs each program in turn over two sizes of stored data, and over the same plain files. Its
    rate follows from the extra time of the larger size, without a job's begin and end. Files are
    read once before, so that both come from memory."""
    store = Embedded(args)
    more = args.work / "more-numbers"
    numbers(more, args.feed_mib * MIB)
    programs = {"awk": (more, ["awk", '{s+=$1*2} END {printf "%.3f\\n", s}']), "wc": (more, ["wc", "-l"]), "sha256sum": (more, ["sha256sum"])}
    if args.dscal:
        programs["dscal"] = (args.numbers, [args.dscal.program, "2.5"])
    for name, (source, program) in programs.items():
        sizes = [source.stat().st_size // 8, source.stat().st_size]
        found = [fed(args, store, name, program, source, size) for size in sizes]
        (small_plain, small_stored), (plain, stored) = [[statistics.median(times) for times in one] for one in found]
        report[name] = {"bytes": sizes, "plain_s": [one[0] for one in found], "stored_s": [one[1] for one in found], "ratio": stored / plain,
                        "rate_ratio": (stored - small_stored) / max(plain - small_plain, 1e-9),
                        "fixed_s": max(0, small_stored - (stored - small_stored) / 7) - max(0, small_plain - (plain - small_plain) / 7)}


def fed(args, store, name, program, source, size):
    """Seconds of each round over a plain file of the first `size` bytes, and over the same data
    stored."""
    part = args.work / "part"
    with open(source, "rb") as whole, open(part, "wb") as out:
        while out.tell() < size and (block := whole.read(min(MIB, size - out.tell()))):
            out.write(block)
    store("put", part, "--to", "part")
    plain, stored = [], []
    for _ in range(max(3, args.rounds)):
        # Both write the same output to a file.
        with open(part, "rb") as stdin:
            secs, wanted = timed(program, stdin=stdin)
        plain.append(secs)
        secs, _ = timed(store.base + ["-q", "run", "--slots", "1", "--sandbox", "off", "--in", "part", "--out", f"out-{name}", "--", *program])
        stored.append(secs)
        if store("cat", f"out-{name}") != wanted:
            raise Failed(f"{name} says something else")
    return plain, stored


def join(args, report):
    store = Embedded(args)
    store("put", args.numbers, "--to", "numbers")
    report["join_10_s"], _ = timed(store.base + ["-q", "run", "--pattern", "#W->1W", *(["--in", "numbers"] * 10), "--out", "joined"])


def attach(args, report):
    """One process writes the file, and an agent on the same machine runs the program."""
    if not os.access("/dev/fuse", os.W_OK):
        raise Missing("this user cannot open /dev/fuse")
    here = Here(args)
    try:
        for way in ("plain", "path", "beside"):
            report[way] = [attached(here, args.dscal, way) for _ in range(args.rounds)]
    finally:
        here.end()


def attached(here, work, way):
    with Site(here, 1, [work]) as site:
        if way != "plain":
            site("h0", "rule", "add", "scale", "--on", "write", "--attach", way, "--pattern", "1W->2W", "--in", "raw/*", "--out", "done",
                 "--", *work.component())
        begin = time.monotonic()
        site.write([work.source])
        found = {"client_s": time.monotonic() - begin}
        if way != "plain":
            site("h0", "job", "wait", "1")
            found["overall_s"] = time.monotonic() - begin
            site.unmount()
            site.check(work, ["done"])
        return found


# --- hosts -----------------------------------------------------------------------------------------------------


def with_hosts(args, report, parts):
    hosts = (Here if args.local else Cluster)(args)
    try:
        counts = [count for count in ([1] if args.local else args.hosts) if count <= hosts.most()]
        report["hosts"] = counts
        if not args.local and counts != args.hosts:
            report["left_out"] = f"the cluster that is up has {hosts.most()} hosts"
        limited = args.work / "limited"
        limited.write_text(LIMITED)
        limited.chmod(0o755)
        for count in counts:
            hosts.take_part(count)
            # The total rate is the same, however many hosts read.
            paced = Work("limited", limited, [f"{args.paced / count:.3f}"], args.numbers)
            for part, work, ways in (("dscal", args.dscal, WAYS), ("aminogen", args.aminogen, WAYS), ("paced", paced, ["plain", *FOLLOWED])):
                if part not in parts:
                    continue
                # In turns, so that a slow phase of the machine affects all of them.
                for _ in range(args.rounds):
                    for way in ways:
                        found = measure(hosts, work, way, count)
                        say(f"{part}, {count} hosts, {way}: {found}")
                        report.setdefault(part, {}).setdefault(way, {}).setdefault(str(count), []).append(found)
            if "scale" in parts:
                found = scale(hosts, args.dscal, Work("limited", limited, [], None), count, args.rate)
                say(f"scale, {count} hosts: {found}")
                report.setdefault("scale", {})[str(count)] = found
        for work in [args.dscal, args.aminogen]:
            if work.name in report:
                report[work.name].update(input_bytes=work.source.stat().st_size, output_bytes=work.expect()[1])
    finally:
        hosts.end()


# --- the table -------------------------------------------------------------------------------------------------


def middle(found, key):
    values = [one[key] for one in found or [] if one.get(key) is not None]
    return statistics.median(values) if values else None


def figures(report):
    """Rows of the table: name, requirement, result."""
    rows = []

    def row(what, asked, value, form):
        if value is not None:
            rows.append((what, asked, form(value)))

    def shown(unit, factor=1, digits=2):
        return lambda value: f"{value * factor:.{digits}f} {unit}"

    def seconds(digits):
        return lambda all: " / ".join(f"{secs:.{digits}f}" for secs in all) + " s"

    def hosts_of(count):
        return f"{count} {'host' if count == '1' else 'hosts'}"

    part = report["parts"]
    for mode in ("off", "strict"):
        if one := part.get("splits", {}).get(mode):
            alone = part["splits"]["start_alone_ms"]
            row(f"a split beside its program, sandbox {mode}, {one['splits']} splits", "under 20 ms", one["ms_a_split"] - alone, shown("ms"))
    for name, one in part.get("feed", {}).items():
        row(f"{name} over the stored file, its time on a plain one", "", one["ratio"], shown("x"))
        row(f"{name}: of that, a byte more: its time over that of a plain one", "at most 1.05 x", one.get("rate_ratio"), shown("x"))
        row(f"{name}: of that, the begin and end of a job", "", one.get("fixed_s"), shown("ms", 1e3, 0))
    if way := part.get("attach"):
        plain = middle(way["plain"], "client_s")
        for name in ("path", "beside"):
            row(f"a writer in a mount, read {name}: its time over that of a plain write", "at most 1.10 x" if name == "beside" else "", middle(way[name], "client_s") / plain, shown("x"))
        row("overall in the mount: in the path over beside", "at least 1 x", middle(way["path"], "overall_s") / middle(way["beside"], "overall_s"), shown("x"))
    if found := part.get("foreground"):
        for what, value in rows_of(found, middle):
            row(what, "", value, shown("x"))
    hosts = part.get("with hosts", {})
    for name in ("dscal", "aminogen"):
        if name not in hosts:
            continue
        one = hosts[name]
        size, made = one["input_bytes"], one["output_bytes"]
        for count in map(str, hosts["hosts"]):
            of = lambda way, key: middle(one[way].get(count), key)  # noqa: E731
            label = f"{name}, {hosts_of(count)}"
            for way in ("none", "stream", "path", "beside"):
                if traffic := of(way, "client_bytes"):
                    limit = {"dscal": "at most 1.05 x the input", "aminogen": "at most 5 MB"}[name] if way != "none" else "input and output"
                    whole = size + made if way == "none" else size
                    times = f" ({traffic / whole:.2f} x)" if whole > 1e5 else ""
                    row(f"{label}: at the client, {way}", limit, traffic, lambda value, times=times: f"{value / 1e6:.2f} MB{times}")
            if name == "dscal":
                row(f"{label}: client free, beside, over a plain write", "at most 1.10 x", of("beside", "client_s") / of("plain", "client_s"), shown("x"))
            ways = ("none", "stream", "path", "beside")
            row(f"{label}: client free, {' / '.join(ways)}", "", [of(way, "client_s") for way in ways], seconds(2))
            row(f"{label}: overall, {' / '.join(ways)}", "beside first", [of(way, "overall_s") for way in ways], seconds(1))
            if of("path", "machine_cpu_s"):
                row(f"{label}: processor seconds of the machine, {' / '.join(ways)}", "", [of(way, "machine_cpu_s") for way in ways], seconds(1))
    if paced := hosts.get("paced"):
        for count in paced["path"]:
            path, beside = (middle(paced[way][count], "overall_s") for way in FOLLOWED)
            row(f"limited programs, {hosts_of(count)}: overall, path / beside", "beside first", [path, beside], seconds(2))
            if plain := middle(paced.get("plain", {}).get(count), "client_s"):
                row(f"limited programs, {hosts_of(count)}: client free, beside, over a plain write", "at most 1.10 x", middle(paced["beside"][count], "client_s") / plain, shown("x"))
    for count, one in hosts.get("scale", {}).items():
        row(f"limited programs, {count} hosts: rate of all, over {count} x the limit", "near 1 x", one["bytes_per_s"] / one["limit_bytes_per_s"], shown("x"))
        if one.get("remote_bytes") is not None:
            if one.get("fed"):
                row(f"limited programs, {count} hosts: fed from other hosts", "at most 2 % where placed", one["fed_elsewhere"] / one["fed"] * 100, shown("%", 1, 1))
            row(f"limited programs, {count} hosts: all that came to their hosts, over what they read as it is stored", "", one["remote_bytes"] / one["packed_bytes"] * 100, shown("%", 1, 1))
    return rows


def markdown(report):
    info = report["machine"]
    lines = [f"# Programs beside their data, {report['date']}", "",
             f"`bench/active.py`, revision {report['revision']}, on {info['cpu']} with {info['cpus']} processors, load {info['load'][0]:.2f} when it began. "
             f"All hosts share these processors: with more hosts the programs share them, too. {report['bytes'] / 1e6:.0f} MB of numbers, "
             f"{report['rounds']} rounds, medians.", "",
             "| | asked | found |", "| --- | --- | --- |"]
    lines += [f"| {what} | {asked} | {found} |" for what, asked, found in figures(report)]
    left_out = dict(report["left_out"])
    if why := report["parts"].get("with hosts", {}).get("left_out"):
        left_out["more hosts"] = why
    lines += [f"\nLeft out: {part} ({why})." for part, why in left_out.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", required=True, type=Path, help="the program, a release build")
    parser.add_argument("--work", required=True, type=Path, help="a directory for stores and inputs, about ten times --mib")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {','.join(PARTS)}")
    parser.add_argument("--local", action="store_true", help="no cluster: one host, this machine, and no traffic to count")
    parser.add_argument("--mib", type=int, default=192, help="MiB of numbers for dscal, awk and the like")
    parser.add_argument("--feed-mib", type=int, default=1024, help="MiB of numbers for programs that take them quickly (awk, wc, sha256sum)")
    parser.add_argument("--made-mib", type=int, default=512, help="MiB that aminogen writes, about")
    parser.add_argument("--splits", type=int, default=10_000, help="tiny splits of one job")
    parser.add_argument("--hosts", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4], help="numbers of storage hosts; a cluster that is up already may have less")
    parser.add_argument("--foreground-s", type=float, default=10, help="seconds that a client in a mount works alone")
    parser.add_argument("--rate", type=float, default=12, help="MB/s that a limited program reads")
    parser.add_argument("--paced", type=float, default=40, help="MB/s that all hosts' programs read together where they are paced")
    parser.add_argument("--rounds", type=int, default=1)
    record_options(parser)
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # A separate directory, so that the leftovers of an interrupted run can be removed.
    args.outrigger, args.work = args.outrigger.absolute(), args.work.absolute() / "active"
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    args.numbers, four = args.work / "numbers", args.work / "peaks"
    numbers(args.numbers, args.mib * MIB)
    peaks(four, args.made_mib * MIB)
    record = Record("active", args, markdown, local=args.local, bytes=args.numbers.stat().st_size, parts={}, left_out={})
    report = record.said
    args.dscal = args.aminogen = None
    try:
        args.dscal = Work("dscal", built(args, "dscal"), ["2.5"], args.numbers)
        args.aminogen = Work("aminogen", built(args, "aminogen"), [], four)
    except Missing as missing:
        report["left_out"]["attach, dscal, aminogen, paced, scale"] = str(missing)
        parts = [part for part in parts if part in ("splits", "feed", "join", "foreground")]
    ran = [(name, globals()[name]) for name in ("splits", "feed", "join", "attach", "foreground") if name in parts]
    if set(parts) & {"dscal", "aminogen", "paced", "scale"}:
        ran.append(("with hosts", lambda args, found: with_hosts(args, found, parts)))
    for name, part in ran:
        say(f"{name} ...")
        found = {}
        try:
            part(args, found)
        except Missing as missing:
            report["left_out"][name] = str(missing)
            say(f"{name} is left out: {missing}")
        if found:
            report["parts"][name] = found
        record.keep()
    record.end()
    # After a failure the directory stays, with the agents' log.
    shutil.rmtree(args.work, ignore_errors=True)


if __name__ == "__main__":
    enter(main)
