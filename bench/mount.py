#!/usr/bin/env python3
"""A mounted store beside ext4, btrfs with compression and bindfs, on one disk, in turns.

    bench/mount.py --outrigger target/release/outrigger --work DIR       everything (an hour or so); needs root
    bench/mount.py --quick --work DIR                                    small sizes, one round: does it still work?
    bench/mount.py --fs ext4,btrfs,bindfs --groups seq,rand ...          a part
    bench/mount.py --fs outrigger,outrigger-plain --groups seq,tree ...  what encryption costs

| group | what |
| --- | --- |
| seq | 1 MiB writes of one file, fsync at the end, half of it compressible: new data, the same again under another name; read cold and warm |
| rand | 4 KiB writes with an fsync at the end; 4 KiB reads, warm and cold |
| tree | `tar x` of --tar (or a generated tree), `find` warm, `tar x` of --tar2, the space of both, `rm -rf` |
| sqlite | single inserts with synchronous=FULL, and one large transaction |
| pgbench | transactions/s of PostgreSQL with its data there |
| rewrites | ours only: 4 KiB rewrites of a file at random, 3.5 times as many bytes as it has, and `gc` beside the mount: the store's size against what is in use |
| flat | 4 KiB files in directories of 1,000: the rate of the first tenth and of the last |

ext4 stands for whatever file system --work is on. btrfs is on a loop device in a file there, compress=zstd:1, mounted
anew before cold reads; bindfs lies over a directory there; ours is a new store there, and `outrigger-plain` one that
is not encrypted. All get `sync` before and, for
cold measurements, a remount where they are one and `echo 3 > drop_caches`. The file systems take turns within a round,
which rotate. Printed: best and median, and ratios against the targets in TARGETS.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import KIB, MIB, Failed, Missing, alone, enter, lock_option, machine, need, revision, run
from mount_kinds import KINDS, Outrigger

SETTLE = 90  # see peers.py: ext4 reuses freed inodes late, and creating files is slow until then
GROUPS = ["seq", "rand", "tree", "sqlite", "pgbench", "rewrites", "flat"]


def timed(command, **more):
    begin = time.monotonic()
    run(command, **more)
    return time.monotonic() - begin


# --- measurements: each returns {name: value} ------------------------------------------------------------------


def fio(directory, name, **options):
    """Bytes per second of one fio job."""
    options = {"filename": directory / name, "name": "job", "ioengine": "psync", "output-format": "json", **options}
    out = run(["fio", *(f"--{key}={value}" for key, value in options.items())])
    job = json.loads(out[out.index("{"):])["jobs"][0]
    if job["error"]:
        raise Failed(f"fio: error {job['error']}")
    side = job["read" if "read" in options["rw"] else "write"]
    # The whole job with its fsync at the end; fio's own rate leaves that out in some versions.
    return side["io_bytes"] / (job["job_runtime"] / 1000)


HALF = {"buffer_compress_percentage": 50, "buffer_compress_chunk": 4096, "refill_buffers": 1, "randrepeat": 1}


def seq(fs, args):
    size, out = args.size, {}
    write = {"rw": "write", "bs": "1m", "size": size, "end_fsync": 1, **HALF}
    out["seq write, new"] = fio(fs.point, "a", randseed=11, **write)
    fs.settle()
    # fio makes its buffers from the seed: the same one, the same bytes.
    out["seq write, again"] = fio(fs.point, "b", randseed=11, **write)
    fs.settle()
    run(["cmp", fs.point / "a", fs.point / "b"])  # it has to be
    fs.cool()
    read = {"rw": "read", "bs": "1m", "size": size}
    out["seq read, cold"] = fio(fs.point, "a", invalidate=0, **read)
    # It is read once before: the best case of the page cache.
    fio(fs.point, "a", invalidate=0, **read)
    out["seq read, warm"] = fio(fs.point, "a", invalidate=0, **read)
    return out


def rand(fs, args):
    size, out = args.size // 2, {}
    fio(fs.point, "r", rw="write", bs="1m", size=size, end_fsync=1, randseed=21, **HALF)
    fs.settle()
    out["random write 4k"] = fio(fs.point, "r", rw="randwrite", bs="4k", size=size, io_size=size // 4, end_fsync=1,
                                 randseed=22, **HALF)
    fs.settle()
    fio(fs.point, "r", rw="read", bs="1m", size=size, invalidate=0)
    out["random read 4k, warm"] = fio(fs.point, "r", rw="randread", bs="4k", size=size, invalidate=0, randseed=23)
    fs.cool()
    out["random read 4k, cold"] = fio(fs.point, "r", rw="randread", bs="4k", size=size, io_size=size // 16,
                                      invalidate=0, randseed=24)
    return out


def tree(fs, args):
    out = {}
    tars = [tar for tar in (args.tar, args.tar2) if tar]
    for number, tar in enumerate(tars):
        with open(tar, "rb") as data:  # the input comes out of memory
            while data.read(16 * MIB):
                pass
        (fs.point / f"tree{number}").mkdir()
        os.sync()
        begin = time.monotonic()
        run(["tar", "-xf", tar, "-C", fs.point / f"tree{number}", "--no-same-owner"])
        if number == 0:
            out["untar"] = time.monotonic() - begin
            run(["find", fs.point / "tree0", "-printf", "%s"])
            out["find, warm"] = min(timed(["find", fs.point / "tree0", "-printf", "%s"]) for _ in range(3))
        fs.settle()
    out["space of two trees"] = fs.space()
    fs.settle()
    out["rm -rf"] = timed(["rm", "-rf", fs.point / "tree0"])
    return out


def sqlite(fs, args):
    base = sqlite3.connect(fs.point / "base", isolation_level=None)
    base.execute("pragma synchronous=full")
    base.execute("create table t (id integer primary key, body text)")
    count = 50 if args.quick else 1000
    begin = time.monotonic()
    for n in range(count):
        base.execute("insert into t values (?, ?)", (n, f"row {n} " * 10))
    single = count / (time.monotonic() - begin)
    bulk = 10_000 if args.quick else 300_000
    begin = time.monotonic()
    base.execute("begin")
    base.executemany("insert into t values (?, ?)", ((n, f"row {n} " * 10) for n in range(count, count + bulk)))
    base.execute("commit")
    out = {"sqlite single inserts": single, "sqlite bulk": bulk / (time.monotonic() - begin)}
    if base.execute("pragma integrity_check").fetchall() != [("ok",)]:
        raise Failed("sqlite: integrity_check")
    base.close()
    return out


def pgbench(fs, args):
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    if not found:
        raise Missing("pgbench is missing: apt-get install postgresql")
    programs = found[-1].parent
    data = fs.point / "pg"
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    with tempfile.TemporaryDirectory() as socket:
        shutil.chown(socket, "postgres", "postgres")
        env = {**os.environ, "PGHOST": socket, "PGPORT": "54330"}

        def pg(program, *words):
            return run(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", programs / program, *words],
                       cwd="/", env=env)

        pg("initdb", "-D", data / "base", "-A", "trust", "-U", "postgres")
        pg("pg_ctl", "-D", data / "base", "-w", "-t", "120", "-l", f"{socket}/log", "-o",
           f"-k {socket} -p 54330 -c listen_addresses=", "start")
        try:
            pg("pgbench", "-i", "-q", "-s", 1 if args.quick else 10, "postgres")
            text = pg("pgbench", "-c", "4", "-j", "2", "-T", 3 if args.quick else 20, "postgres")
        finally:
            pg("pg_ctl", "-D", data / "base", "-w", "-t", "120", "-m", "fast", "stop")
    return {"pgbench": float(re.search(r"tps = ([0-9.]+)", text)[1])}


def rewrites(fs, args):
    if not isinstance(fs, Outrigger):
        raise Missing("there is nothing to reclaim")
    fio(fs.point, "r", rw="write", bs="1m", size=args.size, end_fsync=1, randseed=31, **HALF)
    fs.settle()
    rate = fio(fs.point, "r", rw="randwrite", bs="4k", size=args.size, io_size=args.size * 7 // 2, end_fsync=1,
               norandommap=1, randseed=32, **HALF)
    fs.settle()
    told = json.loads(run([fs.binary, "-s", fs.base / "store", "gc", "--json"]))
    # Data in use includes the version from the file's first close, under the default policy.
    store = int(run(["du", "-s", "-B1", fs.base / "store"]).split()[0])
    fs.cool()
    # Reads from the store are verified.
    fio(fs.point, "r", rw="read", bs="1m", size=args.size)
    return {"rewrites 4k, for long": rate, "store / in use after gc": store / told["live_bytes"]}


def flat(fs, args):
    """The rate of creation in the first tenth and in the last."""
    files, marks = args.files, []
    tenth = max(files // 10, 1)
    body = os.urandom(2 * KIB) + bytes(2 * KIB)
    begin = time.monotonic()
    for n in range(files):
        if n % 1000 == 0:
            where = os.path.join(fs.point, f"d{n // 1000}")
            os.mkdir(where)
        if n % tenth == 0:
            marks.append(time.monotonic())
        # Each file is different.
        handle = os.open(os.path.join(where, f"f{n}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(handle, n.to_bytes(8, "little") + body[8:])
        os.close(handle)
    marks.append(time.monotonic())
    rates = [tenth / (b - a) for a, b in zip(marks, marks[1:])][:10]
    return {"small files, first tenth": rates[0], "small files, last tenth": rates[-1],
            "small files, all": files / (marks[-1] - begin)}


MEASURE = {"seq": seq, "rand": rand, "tree": tree, "sqlite": sqlite, "pgbench": pgbench,
           "rewrites": rewrites, "flat": flat}
# Groups that free many inodes of the disk's file system.
MANY_FILES = {"tree", "flat"}

# name: (unit, divisor, higher is better)
ROWS = {
    "seq write, new": ("MB/s", 1e6, True), "seq write, again": ("MB/s", 1e6, True),
    "seq read, cold": ("MB/s", 1e6, True), "seq read, warm": ("MB/s", 1e6, True),
    "random write 4k": ("MB/s", 1e6, True), "random read 4k, warm": ("MB/s", 1e6, True),
    "random read 4k, cold": ("MB/s", 1e6, True), "untar": ("s", 1, False), "find, warm": ("s", 1, False),
    "rm -rf": ("s", 1, False), "space of two trees": ("MB", 1e6, False), "sqlite single inserts": ("/s", 1, True),
    "sqlite bulk": ("/s", 1, True), "pgbench": ("/s", 1, True), "rewrites 4k, for long": ("MB/s", 1e6, True),
    "store / in use after gc": ("%", 0.01, False), "small files, first tenth": ("/s", 1, True),
    "small files, last tenth": ("/s", 1, True), "small files, all": ("/s", 1, True), "peak memory": ("MB", 1e6, False),
}
# (row, compared with, the required factor: at least if higher is better, else at most); None: absolute.
TARGETS = [
    ("seq write, new", "btrfs", 0.8), ("seq write, again", "btrfs", 1.5), ("seq read, cold", "btrfs", 0.8),
    ("seq read, warm", "ext4", 0.8), ("random write 4k", "btrfs", 1.0), ("random read 4k, warm", "ext4", 0.6),
    ("random read 4k, cold", "btrfs", 0.5), ("untar", "btrfs", 2.3), ("untar", "bindfs", 1 / 3),
    ("find, warm", None, 0.5), ("rm -rf", "btrfs", 3.0), ("space of two trees", "btrfs", 0.75),
    ("sqlite single inserts", "ext4", 0.3), ("sqlite bulk", "ext4", 0.3), ("pgbench", "ext4", 0.3),
    ("store / in use after gc", None, 2), ("peak memory", None, 400e6),
    *((row, "outrigger-plain", 1 / 1.05) for row in ("seq write, new", "seq write, again", "seq read, cold", "seq read, warm")),
    ("untar", "outrigger-plain", 1.05), ("space of two trees", "outrigger-plain", 1.002),
]


# --- the run ---------------------------------------------------------------------------------------------------


def measure(fs, group, args):
    """One group on one file system, freshly made; None, with a line printed, if it is missing."""
    try:
        fs.start()
        taken = MEASURE[group](fs, args)
        if (memory := fs.memory()) is not None:
            taken["peak memory"] = memory
        fs.stop()
        return taken
    except Missing as why:
        print(f"{group:8} {fs.name:10} left out: {why}", flush=True)
        return None
    finally:
        try:
            fs.end()
        except Failed as error:  # after another failure, which is the one to tell
            print(f"{fs.name}: {error}", file=sys.stderr)
            subprocess.run(["umount", "-l", fs.point], stderr=subprocess.DEVNULL, check=False)
            if getattr(fs, "child", None):
                fs.child.kill()
            subprocess.run(["rm", "-rf", fs.base], check=False)


def summary(results):
    """{row: {fs: (best, median)}}"""
    out = {}
    for fs, rows in results["taken"].items():
        for row, values in rows.items():
            best = max(values) if ROWS[row][2] else min(values)
            if row == "peak memory":  # of all groups and rounds
                best = max(values)
            out.setdefault(row, {})[fs] = (best, statistics.median(values))
    return {row: out[row] for row in ROWS if row in out}


def markdown(results):
    info, taken = results["machine"], summary(results)
    names = [name for name in KINDS if any(name in row for row in taken.values())]
    lines = [f"# File systems side by side, {results['date']}", "",
             f"{info['cpu']}, {info['cpus']} CPUs, {info['memory'] / 2**30:.0f} GB, kernel {info['kernel']}; "
             f"{results['rounds']} round(s), best / median; load average at the start {info['load'][0]:.1f}, "
             f"at the end {results['load_at_end']:.1f}.", ""]
    if results["quick"]:
        lines += ["**A quick run: the sizes are too small for the numbers to mean anything.**", ""]
    elif info["load"][0] > 0.5:
        lines += ["**The machine was not quiet: read these as orders of magnitude.**", ""]
    lines += ["| | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for row, values in taken.items():
        unit, divisor, _ = ROWS[row]
        digits = 2 if unit == "s" else 0

        def cell(name):
            if name not in values:
                return "-"
            best, median = (value / divisor for value in values[name])
            return f"{best:.{digits}f} / {median:.{digits}f}"

        lines.append(f"| {row}, {unit} | " + " | ".join(cell(name) for name in names) + " |")
    lines += [""] + [f"- **failed**: {line}" for line in results["failed"]]
    lines += ["", "| outrigger's target (by medians) | is | wanted | |", "| --- | ---: | ---: | --- |"]
    for row, peer, factor in TARGETS:
        unit, divisor, higher = ROWS[row]
        ours, theirs = taken.get(row, {}).get("outrigger"), taken.get(row, {}).get(peer)
        label, digits = f"{row} / {peer}" if peer else f"{row}, {unit}", 3 if peer == "outrigger-plain" else 2
        wanted = f"{'>=' if higher else '<='} {factor / (1 if peer else divisor):.{digits}f}"
        if ours is None or (peer and theirs is None):
            lines.append(f"| {label} | - | {wanted} | not measured |")
            continue
        # Memory's best is its largest.
        value = ours[1] / theirs[1] if peer else (ours[0] if row == "peak memory" else ours[1])
        met = value >= factor if higher else value <= factor
        lines.append(f"| {label} | {value / (1 if peer else divisor):.{digits}f} | {wanted} | {'met' if met else '**missed**'} |")
    return "\n".join(lines) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", default="target/release/outrigger")
    parser.add_argument("--workload", help="outrigger-workload, which makes a tree where --tar is not given [beside outrigger]")
    parser.add_argument("--work", required=True, help="a directory on the disk to measure; made, and emptied at the end")
    parser.add_argument("--fs", default="ext4,btrfs,bindfs,outrigger")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1000 * MIB, help="bytes of the sequential file [1000 MiB]")
    parser.add_argument("--files", type=int, default=200_000, help="small files [200000]")
    parser.add_argument("--tar", help="a source tree as tar; a generated one otherwise")
    parser.add_argument("--tar2", help="its next version")
    parser.add_argument("--btrfs-size", type=int, default=24 << 30, help="of the loop device's file, which is sparse")
    parser.add_argument("--mount-option", action="append", default=[], help="a word for `outrigger mount`, say -oOPTION")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("--quick", action="store_true")
    lock_option(parser)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.size, args.files = 1, 32 * MIB, 3000
    return args


def generated(args, work):
    """Two versions of a generated tree as tars, with names relative to its top."""
    workload = args.workload or str(Path(args.outrigger).parent / "outrigger-workload")
    workload = shutil.which(workload) or shutil.which("outrigger-workload")
    if not workload:
        raise Failed("--tar, or outrigger-workload to make one: cargo build --release -p outrigger-workload")
    source = work / "source"
    run([workload, "tree", source, "--files", 1000 if args.quick else 60_000, "--seed", 3])
    run(["tar", "-cf", work / "1.tar", "-C", source, "."])
    run([workload, "mutate", source, "--seed", 4])
    run(["tar", "-cf", work / "2.tar", "-C", source, "."])
    run(["rm", "-rf", source])
    return work / "1.tar", work / "2.tar"


def main():
    args = arguments()
    if os.geteuid() != 0:
        raise Failed("needs root: it mounts, and drops the kernel's caches")
    need("fio", "fio")
    names, groups = args.fs.split(","), args.groups.split(",")
    if unknown := (set(names) - set(KINDS)) | (set(groups) - set(GROUPS)):
        raise Failed(f"no such file system or group: {', '.join(sorted(unknown))}")
    work = Path(args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        raise Failed(f"{work} is not empty")
    os.environ["XDG_CONFIG_HOME"] = str(work / "config")  # keys go with the stores
    os.chmod(work, 0o755)  # PostgreSQL's user passes through
    kind = run(["df", "--output=fstype", work]).split()[-1]
    if kind != "ext4" and "ext4" in names:
        print(f"the disk's file system is {kind}: that stands under the name ext4", file=sys.stderr)
    if "tree" in groups and not args.tar:
        args.tar, args.tar2 = generated(args, work)
    results = {"date": datetime.date.today().isoformat(), "machine": machine(), "revision": revision(), "disk": kind,
               "rounds": args.rounds, "quick": args.quick, "size": args.size, "files": args.files,
               "failed": [], "taken": {name: {} for name in names}}
    for group in groups:
        for number in range(args.rounds):
            turn = number % len(names)
            with alone(args.lock):
                for name in names[turn:] + names[:turn]:
                    try:
                        taken = measure(KINDS[name](args, work), group, args)
                    except Failed as error:
                        # The time spent on the other file systems is not lost.
                        print(f"{group:8} {number + 1} {name:10} FAILED: {error}", flush=True)
                        results["failed"].append(f"{group} on {name}: {error}")
                        taken = None
                    for row, value in (taken or {}).items():
                        results["taken"][name].setdefault(row, []).append(value)
                    if taken:
                        print(f"{group:8} {number + 1} {name:10} " + "  ".join(
                            f"{row} {value / ROWS[row][1]:.{2 if ROWS[row][0] == 's' else 0}f} {ROWS[row][0]}"
                            for row, value in taken.items()), flush=True)
                    if group in MANY_FILES and not args.quick and kind.startswith("ext"):
                        time.sleep(SETTLE)
        results["load_at_end"] = os.getloadavg()[0]
        # After every group, so that an interrupted run leaves what it had.
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
        if args.markdown:
            Path(args.markdown).write_text(markdown(results))
    run(["rm", "-rf", work / "1.tar", work / "2.tar", work / "config"])
    print("\n" + markdown(results))
    if results["failed"]:
        raise Failed(f"{len(results['failed'])} measurements failed, see above")


if __name__ == "__main__":
    enter(main)
