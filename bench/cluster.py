#!/usr/bin/env python3
"""Mounts that share a store on a cluster of this machine (`make cluster`), beside the cluster's own limits.

    sudo bench/cluster.py --outrigger target/release/outrigger           everything: a quarter of an hour
    sudo bench/cluster.py --quick                                        small sizes, one round: does it still work?
    sudo bench/cluster.py --only pool,names --rounds 3 --json a.json     a part

| group | what it measures |
| --- | --- |
| pool | metadata in PostgreSQL, packs in a pool of Ceph: new data, half of it compressible, the same again under another name, and a cold read; beside `rados bench` write and seq of as many bytes, with objects as large as the packs |
| gateway | the same mount with packs in Ceph's gateway for S3, beside `rclone mount` and `s3fs` on that gateway: untar of a tree, 4 KiB writes in random places with an fsync; until all of it is in S3. Ours runs with its defaults, with names kept for 1 s (rclone keeps them for 5 minutes), and, for the writes, in a directory whose policy cuts blocks of 4 KiB |
| names | untar of a tree in a shared mount, with defaults and with `--names-for 1 --closes-within 0.01`, beside a mount of a store in a directory; exclusive creations per second by 1 to 8 processes on 1 to 4 hosts, in one directory and in separate ones, from inside them and by a path from the mount's root; beside commits of single rows by pgbench |
| twice | a tree that two hosts write, one after the other and at once: the stored bytes, beside one write |
| wire | bytes on the hosts' interfaces for data that is different, similar (all stored already), and checkpoints |

Hosts are network namespaces. A client's mount runs in its own, and the bytes at its interface are counted. All share this machine's processors, so processor time
is reported, too: of clients (mounts, or `rados`, `rclone`, `s3fs`, and the programs that write), OSDs, gateway, PostgreSQL, and of the whole machine, the kernel
included. Prints best and median of the rounds, and ratios against the targets. All written data is read again and compared.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster_data import Data, read, same, untar, write
from cluster_gateway import Blocks, Kept, gateway
from cluster_hosts import CLIENTS, PATIENCE, Cluster, Meter, forget, store
from common import MIB, Failed, Missing, Record, enter, need, record_options, run, say


# --- the groups ------------------------------------------------------------------------------------------------


class Bench:
    """Arguments, data, and the measurements so far."""

    def __init__(self, args):
        self.args = args
        self.outrigger = str(Path(args.outrigger).resolve())
        self.workload = str(Path(args.workload or Path(args.outrigger).parent / "outrigger-workload").resolve())
        for program in (self.outrigger, self.workload):
            if not os.access(program, os.X_OK):
                raise Failed(f"no binary {program}: cargo build --release -p outrigger -p outrigger-workload")
        for program, package in (("rados", "ceph-common"), ("nsenter", "util-linux"), ("psql", "postgresql"), ("rclone", "rclone")):
            need(program, package)
        self.work = Path(tempfile.mkdtemp(prefix="outrigger-bench-", dir=args.work))
        self.data = Data(self)
        self.cluster = Cluster()
        self.taken, self.failed = {}, []

    def note(self, group, name, value, unit, meter=None, size=None):
        entry = self.taken.setdefault(group, {}).setdefault(name, {"unit": unit, "values": [], "meters": []})
        entry["values"].append(value)
        if meter:
            entry["meters"].append(meter)
        if size:
            entry["bytes"] = size
        digits = 2 if abs(value) < 100 else 0
        say(f"{group:8} {name:58} {value:10.{digits}f} {unit}")

    def rate(self, group, name, size, meter):
        self.note(group, name, size / meter["wall"] / 1e6, "MB/s", meter, size)

    def end(self):
        self.cluster.end()
        self.data.end()
        run(["rm", "-rf", self.work])


def pool(bench, number):
    size = bench.args.size
    for megabytes in (16, 4):
        label = f"{megabytes} MiB"
        rados_bench(bench, size, megabytes * MIB, label)
        source = bench.data.stream(100 + number, size)
        with store(bench, "pool", f"{megabytes}M") as made:
            mount = made.mount("c0")

            def measured(name, action):
                meter = Meter(bench.cluster, [mount.pid])
                action()
                bench.rate("pool", f"{name}, packs of {label}", size, meter.taken())

            measured("mount, new data", lambda: write(source, mount.dir / "a"))
            measured("mount, stored already", lambda: write(source, mount.dir / "b"))
            mount = made.cool(mount, "c0")
            measured("mount, read cold", lambda: read(mount.dir / "a"))
            same(source, mount.dir / "b")
            same(source, mount.dir / "a")
    bench.data.forget(source)


def rados_bench(bench, size, object_size, label):
    """As many bytes, written and read by the cluster's own benchmark, from a client's host."""
    cluster, name = bench.cluster, f"rados-{os.getpid()}"
    command = cluster.on("c0", "rados", "-c", cluster.conf, "-p", "packs", "-N", name, "bench", "600")
    objects = max(size // object_size, 1)
    more = ["-t", min(bench.args.at_once, objects), "--run-name", name]

    def measured(what, words, counted):
        meter = Meter(cluster)
        child = subprocess.Popen([str(word) for word in [*command, *words, *more]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told, _ = child.communicate(timeout=PATIENCE)
        taken = meter.taken()
        done, seconds = re.search(rf"Total {counted} made:\s+(\d+)", told), re.search(r"Total time run:\s+([0-9.]+)", told)
        if child.returncode or not done or not seconds:
            raise Failed(f"rados bench {what}: {told[-600:]}")
        if int(done[1]) != objects:
            raise Failed(f"rados bench {what}: {done[1]} of {objects} objects")
        # Without its start-up time.
        taken["wall"] = float(seconds[1])
        bench.rate("pool", f"rados bench {what}, objects of {label}", objects * object_size, taken)

    try:
        measured("write", ["write", "-b", object_size, "--max-objects", objects, "--no-cleanup"], "writes")
        cluster.drop_caches()
        measured("seq", ["seq", "--no-verify"], "reads")
    finally:
        forget(cluster, name)


CREATOR = """
import os, sys, time
directory, prefix, begin, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
end, number = begin + seconds, 0
time.sleep(max(begin - time.monotonic(), 0))
if sys.argv[5] == "handle":
    # As tar and cp do: the way to the directory is not walked again for each file.
    os.chdir(directory)
    directory = "."
while time.monotonic() < end:
    os.close(os.open(f"{directory}/{prefix}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    number += 1
print(number)
"""


LAZY = "shared mount that keeps names 1 s and closes within 10 ms"


def names(bench, number):
    tar, _, _ = bench.data.tar()
    for kind, label, options in (("pool", "shared mount", []), ("pool", LAZY, Kept.options), (None, "store in a directory", [])):
        with store(bench, kind) as made:
            mount = made.mount("c0", *options)
            meter = Meter(bench.cluster, [mount.pid])
            untar(tar, mount.dir)
            bench.note("names", f"{label}, untar", (taken := meter.taken())["wall"], "s", taken)
            run(["diff", "-rq", bench.data.unpacked(), mount.dir])
            meter = Meter(bench.cluster)
            mount.unmount()
            bench.note("names", f"{label}, unmount after it", meter.taken()["wall"], "s")
    with store(bench, "pool") as made:
        mounts = [made.mount(host) for host in CLIENTS]
        (mounts[0].dir / "base").mkdir()
        for hosts, each in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (4, 2)):
            for together in (True, False):
                creations(bench, mounts[:hosts], each, together)
        creations(bench, mounts[:1], 1, True, by="path")
    row_commits(bench)


def creations(bench, mounts, each, together, by="handle"):
    """So many processes on each of these mounts create files, in one directory or in separate ones:
    from inside them, or by paths from the mount's root."""
    count = len(mounts) * each
    where = f"n{len(mounts)}-{each}-{int(together)}-{time.monotonic_ns()}"
    base = mounts[0].dir / "base" / where
    base.mkdir()
    places = []
    for number in range(count):
        mount = mounts[number % len(mounts)]
        directory = mount.dir / "base" / where
        if not together:
            directory /= str(number)
            directory.mkdir()
        places.append(directory)
    begin, seconds = time.monotonic() + 0.5, bench.args.seconds
    children = [subprocess.Popen([sys.executable, "-c", CREATOR, place, f"p{number}", str(begin), str(seconds), by],
                                 stdout=subprocess.PIPE, text=True) for number, place in enumerate(places)]
    time.sleep(max(begin - time.monotonic(), 0))
    meter = Meter(bench.cluster, [mount.pid for mount in mounts])
    told = [child.communicate(timeout=PATIENCE)[0] for child in children]
    taken = meter.taken()
    if any(child.returncode for child in children):
        raise Failed("creating files failed")
    made = sum(int(one) for one in told)
    found = sum(len(files) for _, _, files in os.walk(base))
    if found != made:
        raise Failed(f"{made} files were made, {found} are there")
    hosts, processes = len(mounts), "process" if each == 1 else "processes"
    name = f"creations, {hosts} {'host' if hosts == 1 else 'hosts'} with {each} {processes} each, {'one directory' if together else 'their own'}"
    name += ", by a path of three directories" if by == "path" else ""
    bench.note("names", name, made / seconds, "/s", taken)


def row_commits(bench):
    """PostgreSQL's own limit: transactions of one row, from a client's host."""
    cluster, table = bench.cluster, f"bench_{os.getpid()}"
    pgbench = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    if not pgbench:
        raise Missing("pgbench is missing: apt-get install postgresql")
    script = bench.work / "insert.sql"
    script.write_text(f"\\set parent random(1, 1000)\nINSERT INTO {table} (parent, name, number) "
                      "VALUES (:parent, gen_random_uuid()::text::bytea, :client_id);\n")
    cluster.sql(f"CREATE TABLE {table} (parent bigint, name bytea, number bigint, PRIMARY KEY (parent, name))")
    try:
        for clients in (1, 2, 4, 8):
            meter = Meter(cluster)
            told = run(cluster.on("c0", pgbench[-1], "-n", "-f", script, "-M", "prepared", "-c", clients, "-j", min(clients, 2),
                                  "-T", max(round(bench.args.seconds), 1), f"{cluster.database}?sslmode=disable"))
            tps = re.search(r"tps = ([0-9.]+)", told)
            if not tps:
                raise Failed(f"pgbench: {told[-600:]}")
            bench.note("names", f"PostgreSQL, commits of one row, {clients} at once", float(tps[1]), "/s", meter.taken())
    finally:
        cluster.sql(f"DROP TABLE {table}")


def twice(bench, number):
    tar, _, _ = bench.data.tar()
    tree = bench.work / "twice"
    tree.mkdir()
    untar(tar, tree)
    shutil.copy(bench.data.stream(400, bench.args.size // 4), tree / "large")
    try:
        with store(bench, "pool") as made:
            one, two = made.mount("c0"), made.mount("c1")
            run(["cp", "-r", tree, one.dir / "a"])
            one.unmount()
            once = made.stored()
            meter = Meter(bench.cluster, [two.pid])
            run(["cp", "-r", tree, two.dir / "b"])
            taken = meter.taken()
            two.unmount()
            bench.note("twice", "stored bytes, one host after the other / once", made.stored() / once, "x", taken)
            run(["diff", "-rq", tree, made.mount("c2").dir / "b"])
        with store(bench, "pool") as made:
            mounts = [made.mount("c0"), made.mount("c1")]
            meter = Meter(bench.cluster, [mount.pid for mount in mounts])
            children = [subprocess.Popen(["cp", "-r", tree, mount.dir / name]) for mount, name in zip(mounts, "ab")]
            if any(child.wait(timeout=PATIENCE) for child in children):
                raise Failed("cp failed")
            taken = meter.taken()
            for mount in mounts:
                mount.unmount()
            bench.note("twice", "stored bytes, both at once / once", made.stored() / once, "x", taken)
            made.run("c0", "gc")
            bench.note("twice", "stored bytes, both at once / once, after gc", made.stored() / once, "x")
            other = made.mount("c2")
            for name in "ab":
                run(["diff", "-rq", tree, other.dir / name])
    finally:
        run(["rm", "-rf", tree])


def wire(bench, number):
    size = bench.args.size // 4
    with store(bench, "pool") as made:
        mount = made.mount("c0")

        def written(name, sources):
            bytes_ = sum(source.stat().st_size for source in sources)
            meter = Meter(bench.cluster, [mount.pid])
            for at, source in enumerate(sources):
                write(source, mount.dir / f"{name}-{at}")
            taken = meter.taken()
            crossed = taken["wire"]["clients sent"] + taken["wire"]["clients received"]
            bench.note("wire", f"{name}: bytes at the client's interface / bytes written", crossed / bytes_, "x", taken, bytes_)
            bench.note("wire", f"{name}: bytes that OSDs receive / bytes written", taken["wire"]["osds received"] / bytes_, "x")
            for at, source in enumerate(sources):
                same(source, mount.dir / f"{name}-{at}")

        sources = [bench.data.stream(500 + at, size) for at in range(3)]
        written("different", sources)
        written("similar", [sources[0]] * 3)
        first, *images = bench.data.images()
        write(first, mount.dir / "first")
        written("checkpoint", images)
    for source in sources:
        bench.data.forget(source)


GROUPS = {"pool": pool, "gateway": gateway, "names": names, "twice": twice, "wire": wire}


# --- the record ------------------------------------------------------------------------------------------------


def median(bench_taken, group, name):
    entry = bench_taken.get(group, {}).get(name)
    return statistics.median(entry["values"]) if entry else None


def targets(taken):
    """(name, value, required factor, true for "at least") of the targets whose parts were
    measured."""
    def of(group, name):
        return median(taken, group, name)

    def ratio(what, group, ours, theirs, wanted, at_least=True):
        a, b = of(group, ours), of(group, theirs)
        return (what, a / b if a is not None and b else None, wanted, at_least)

    for label in ("16 MiB", "4 MiB"):
        write_, seq = f"rados bench write, objects of {label}", f"rados bench seq, objects of {label}"
        yield ratio(f"stored already / rados bench write, {label}", "pool", f"mount, stored already, packs of {label}", write_, 2)
        yield ratio(f"new data / rados bench write, {label}", "pool", f"mount, new data, packs of {label}", write_, 0.8)
        yield ratio(f"read cold / rados bench seq, {label}", "pool", f"mount, read cold, packs of {label}", seq, 0.7)
    for peer in ("rclone mount", "s3fs"):
        rows = [f"{name}, untar until all is in S3" for name in (peer, "outrigger")]
        yield ratio(f"untar: time of {peer} / ours", "gateway", *rows, 3)
        rows = [f"{name}, untar until all is in S3" for name in (peer, f"outrigger, {Kept.how}")]
        yield ratio(f"untar: time of {peer} / ours, {Kept.how}", "gateway", *rows, 3)
        for ours in ("outrigger", f"outrigger, {Blocks.how}"):
            rows = [f"{name}, 4 KiB writes until all is in S3" for name in (ours, peer)]
            yield ratio(f"4 KiB writes: our rate / {peer}'s{ours.removeprefix('outrigger')}", "gateway", *rows, 3)
    yield ratio("untar: a shared mount's time / that of a store in a directory", "names", "shared mount, untar",
                "store in a directory, untar", 2, False)
    yield ratio("untar: the same, with names for 1 s and closes within 10 ms", "names", f"{LAZY}, untar", "store in a directory, untar", 2, False)
    single = "creations, 1 host with 1 process each, one directory"
    yield ("exclusive creations a second, one process", of("names", single), 1500, True)
    yield ratio("creations, 8 processes of 4 hosts / PostgreSQL's commits of one row, 8 at once", "names",
                "creations, 4 hosts with 2 processes each, their own", "PostgreSQL, commits of one row, 8 at once", None)
    yield ratio("creations, 8 processes of 4 hosts: one directory / their own", "names",
                "creations, 4 hosts with 2 processes each, one directory", "creations, 4 hosts with 2 processes each, their own", None)
    by_path = of("names", f"{single}, by a path of three directories")
    yield ("the same, by a path of three directories", by_path, None, True)
    for how in ("one host after the other", "both at once", "both at once / once, after gc"):
        name = f"stored bytes, {how}" if how.endswith("gc") else f"stored bytes, {how} / once"
        yield (name, of("twice", name), 1.05, False)


SERVERS = ["clients", "osds", "gateway", "postgres", "monitors", "machine"]


def markdown(results):
    info = results["machine"]
    lines = [f"# Shared mounts on a cluster, {results['date']}", "",
             f"{info['cpu']}, {info['cpus']} CPUs, {info['memory'] / 2**30:.0f} GB, kernel {info['kernel']}, revision {results['revision']}; all hosts are namespaces of this machine. "
             f"{results['rounds']} round(s); load average at the start {info['load'][0]:.1f}, at the end {results['load_at_end']:.1f}. "
             f"{results['size'] / MIB:.0f} MiB of data; the tree: {results['tree']}; rclone's cache mode: {results['rclone_mode']}; rados bench: {results['at_once']} operations at once.", ""]
    if results["quick"]:
        lines += ["**A quick run: the sizes are too small for the numbers to mean anything.**", ""]
    elif info["load"][0] > 0.7:
        lines += ["**The machine was not quiet: read these as orders of magnitude.**", ""]
    lines += ["Made by `bench/cluster.py`. Processor seconds are means of the rounds; `clients` are mounts, or what stands in their place, and the programs that write and read. "
              "Bytes at interfaces are counted before they are cut into packets.", ""]
    lines += ["| target, by medians | is | wanted | |", "| --- | ---: | ---: | --- |"]
    for what, value, wanted, at_least in targets(results["taken"]):
        if value is None:
            continue
        digits = 0 if value > 100 else 2
        if wanted is None:
            lines.append(f"| {what} | {value:.{digits}f} | | |")
            continue
        is_met = value >= wanted if at_least else value <= wanted
        lines.append(f"| {what} | {value:.{digits}f} | {'>=' if at_least else '<='} {wanted} | {'met' if is_met else '**missed**'} |")
    for group, rows in results["taken"].items():
        lines += ["", f"## {group}", "", "| | median | best | unit | processor s: " + " | ".join(SERVERS) + " | MB at clients' interfaces |",
                  "| --- | ---: | ---: | --- |" + " ---: |" * (len(SERVERS) + 1)]
        for name, entry in rows.items():
            values, unit = entry["values"], entry["unit"]
            best = max(values) if unit in ("MB/s", "/s") else min(values)
            middle = statistics.median(values)
            digits = 2 if abs(middle) < 100 else 0
            cells = [f"{middle:.{digits}f}", f"{best:.{digits}f}", unit]
            meters = entry["meters"]
            for server in SERVERS:
                seconds = [meter["processor"][server] for meter in meters if server in meter["processor"]]
                cells.append(f"{statistics.mean(seconds):.2f}" if seconds else "")
            crossed = [meter["wire"]["clients sent"] + meter["wire"]["clients received"] for meter in meters]
            cells.append(f"{statistics.mean(crossed) / 1e6:.1f}" if crossed else "")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [""] + [f"- **failed**: {line}" for line in results["failed"]]
    return "\n".join(lines) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", default="target/release/outrigger")
    parser.add_argument("--workload", help="outrigger-workload, which makes data [beside outrigger]")
    parser.add_argument("--work", default="/var/tmp", help="where caches and staging logs lie [/var/tmp]")
    parser.add_argument("--only", default=",".join(GROUPS), metavar="GROUPS", help=f"which [{','.join(GROUPS)}]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", type=int, default=512, help="MiB of the large file [512]")
    parser.add_argument("--tree", help="a source tree to pack and unpack, say linux/kernel [one that is made]")
    parser.add_argument("--files", type=int, default=600, help="files of the tree that is made [600]")
    parser.add_argument("--cores", help="a directory with core.1, core.2 ..., images for the checkpoints [images that are made]")
    parser.add_argument("--seconds", type=float, default=3, help="for which files are made, and rows committed [3]")
    parser.add_argument("--at-once", type=int, default=16, help="operations of rados bench [16, as its own default]")
    parser.add_argument("--rclone-mode", default="writes", choices=["writes", "full"], help="its --vfs-cache-mode [writes]")
    record_options(parser)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.size *= MIB
    if args.quick:
        args.rounds, args.size, args.files, args.seconds = 1, 32 * MIB, 60, 1
    return args


def main():
    args = arguments()
    if os.geteuid() != 0:
        raise Failed("needs root: it mounts, in network namespaces")
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(GROUPS):
        raise Failed(f"no such group: {', '.join(sorted(unknown))}")
    need("fio", "fio")
    record = Record("cluster", args, markdown, quick=args.quick, size=args.size, rclone_mode=args.rclone_mode, at_once=args.at_once)
    bench = Bench(args)
    try:
        _, files, size = bench.data.tar()
        tree = "/".join(Path(args.tree).parts[-2:]) if args.tree else "made"
        record.said.update(tree=f"{tree}, {files} files, {size / 1e6:.1f} MB", taken=bench.taken, failed=bench.failed)
        for number in range(args.rounds):
            for group in chosen:
                say(f"-- {group}, round {number + 1} of {args.rounds}")
                try:
                    GROUPS[group](bench, number)
                except (Failed, subprocess.SubprocessError, OSError) as error:
                    # The time spent on the other groups is not lost.
                    say(f"{group:8} FAILED: {error}")
                    bench.failed.append(f"{group}, round {number + 1}: {error}")
                record.keep()
    finally:
        bench.end()
    record.end()
    if bench.failed:
        raise Failed(f"{len(bench.failed)} measurements failed, see above")


if __name__ == "__main__":
    enter(main)
