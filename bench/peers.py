#!/usr/bin/env python3
"""Outrigger beside its peers, in one run on one machine: restic, borg, rustic, kopia, vykar, and the limits of tar, cp
and zstd; and encrypted beside plain.

    bench/peers.py --outrigger target/release/outrigger        the whole comparison (an hour or so on two cores)
    bench/peers.py --tools outrigger,outrigger-plain           what encryption costs
    bench/peers.py --quick --outrigger target/debug/outrigger  small generated data, no peers: does it still work?

For each data set and tool, in a fresh store: put version 1, put version 2, restore version 2, and compare what was
restored with its source (once, in the first round). Inputs are read into the page cache before, and the disk is
synced before, every timed command. Tools take turns within a round, and the turns rotate; the numbers are medians
over the rounds. Each tool runs as its manual recommends: both versions lie at the same path (a private bind mount),
so that a tool which looks for the previous version finds it. All but `outrigger-plain` encrypt (borg: repokey).

| set | version 1 | version 2 | restored |
| --- | --- | --- | --- |
| trees | linux-a | linux-b, at the same path | linux-b |
| tars | linux-a.tar | linux-b.tar, beside it | linux-b.tar |
| cores | core.1 | core.2 .. core.8, one command each, times summed | core.8 |
| random | random.bin | the same bytes after 4,097 others, beside it | the second |

Prints a table with our ratio to each tool, and keeps a dated record (JSON with every single run, and Markdown) under
docs/evaluation/records/. Data comes from bench/data.sh, which is called if something is missing.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import RECORDS, Failed, alone, enter, lock_option, machine, of_machine, revision, slug
from peer_tools import TOOLS, Outrigger

HERE = Path(__file__).resolve().parent
SETS = ["trees", "tars", "cores", "random"]
PHASES = ["put 1", "put 2", "restore"]


# --- running and measuring -------------------------------------------------------------------------------------


class Runner:
    """Runs commands one at a time, measured, with their output in a log file."""

    def __init__(self, work):
        self.work = work
        self.log = work / "log"
        self.private_mounts = self._can_bind()

    def _can_bind(self):
        """True if a bind mount that only the command sees can put version 2 in version 1's place."""
        a, b = self.work / "bind-a", self.work / "bind-b"
        a.mkdir(exist_ok=True), b.mkdir(exist_ok=True)
        command = ["unshare", "-m", "mount", "--bind", str(a), str(b)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def __call__(self, command, cwd=None, env=None, bind=None, stdin=None):
        """Runs and measures `command`. `bind=(source, target)` mounts source there for it alone."""
        command = [str(word) for word in command]
        if bind:
            script = 'mount --bind "$1" "$2" && cd "$3" && shift 3 && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, "sh", str(bind[0]), str(bind[1]), str(cwd)] + command
        os.sync()
        with open(self.log, "ab") as log:
            log.write(("\n$ " + " ".join(command) + "\n").encode())
            log.flush()
            place = log.tell()
            begin, busy = time.monotonic(), of_machine()
            child = subprocess.Popen(command, cwd=None if bind else cwd, env={**os.environ, **(env or {})},
                                     stdin=stdin or subprocess.DEVNULL, stdout=log, stderr=log)
            _, status, usage = os.wait4(child.pid, 0)
            wall, busy = time.monotonic() - begin, of_machine() - busy
            child.returncode = os.waitstatus_to_exitcode(status)
        begin = time.monotonic()
        os.sync()
        if child.returncode != 0:
            with open(self.log, "rb") as log:
                log.seek(place)
                raise Failed(f"{' '.join(command)}: exit {child.returncode}\n{log.read()[-2000:].decode(errors='replace')}")
        cpu = usage.ru_utime + usage.ru_stime
        return {"wall": wall, "cpu": cpu, "peak": usage.ru_maxrss * 1024, "flush": time.monotonic() - begin,
                "others": max(busy - cpu, 0)}


def summed(runs):
    """Several commands as one: times added, the largest memory."""
    return {key: (max if key == "peak" else sum)(r[key] for r in runs) for key in runs[0]}


def preread(path):
    """Reads everything below `path` once, into the page cache."""
    buffer = bytearray(1 << 20)
    files = [path] if path.is_file() else (Path(d) / f for d, _, fs in os.walk(path) for f in fs)
    for file in files:
        if file.is_symlink() or not file.is_file():
            continue
        with open(file, "rb", buffering=0) as data:
            while data.readinto(buffer):
                pass


def du(path, *options):
    out = subprocess.run(["du", "-s", *options, str(path)], capture_output=True, text=True, check=True).stdout
    return int(out.split()[0])


# ext4 does not reuse an inode until about a minute after it was freed, and tries one after the other.
# A restore soon after removing a large tree takes up to ten times as long (`tar x`: 4.5 s, 45 s).
SETTLE = 90


def filesystem(path):
    out = subprocess.run(["df", "--output=fstype", path], capture_output=True, text=True, check=False)
    return out.stdout.split()[-1] if out.returncode == 0 else "unknown"


def reuses_inodes_late(path):
    return filesystem(path).startswith("ext")


def settle(removed):
    """Waits until a removal no longer slows down the creation of files."""
    if removed:
        print(f"waiting {SETTLE} s, so that the files just removed slow nobody down", file=sys.stderr, flush=True)
        time.sleep(SETTLE)


def remove(path):
    # rmtree is slow on 80,000 files, and gives up on read-only directories.
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


# --- the data sets ---------------------------------------------------------------------------------------------


class DataSet:
    """Steps of (phase, source, entry, name). The last step of version 2 is restored."""

    def __init__(self, name, steps, bytes_, work):
        self.name, self.steps, self.bytes = name, steps, bytes_
        # Whether restored copies are kept to the end of the set: see SETTLE.
        self.keeps_copies = any(step[1].is_dir() for step in steps) and reuses_inodes_late(work)


def data_sets(data, work, wanted):
    def file_steps(files, first):
        return [("put 1" if n < first else "put 2", f, f.name, f.name) for n, f in enumerate(files)]

    sets = []
    for name in wanted:
        if name == "trees":
            steps = [("put 1", data / "linux-a", "tree", "tree"), ("put 2", data / "linux-b", "tree", "tree")]
        elif name == "tars":
            steps = file_steps([data / "tars/linux-a.tar", data / "tars/linux-b.tar"], 1)
        elif name == "cores":
            steps = file_steps(sorted((data / "cores").glob("core.*"), key=lambda f: int(f.suffix[1:])), 1)
        else:
            again = work / "random-again.bin"
            with open(again, "wb") as out, open(data / "random.bin", "rb") as source:
                out.write(os.urandom(4097))
                shutil.copyfileobj(source, out, 1 << 20)
            steps = file_steps([data / "random.bin", again], 1)
        sets.append(DataSet(name, steps, sum(du(step[1], "-b") for step in steps), work))
    return sets


def complete(data, wanted):
    there = {"trees": ["linux-a", "linux-b"], "tars": ["tars/linux-a.tar", "tars/linux-b.tar"],
             "cores": ["cores/core.8"], "random": ["random.bin"]}
    return all((data / part).exists() for name in wanted for part in there[name])


def quick_data(data, workload):
    """A few megabytes of each kind, from fixed seeds."""
    make = lambda *words, **more: subprocess.run([str(w) for w in (workload, *words)], check=True, **more)
    remove(data)
    (data / "tars").mkdir(parents=True), (data / "cores").mkdir()
    make("tree", data / "linux-a", "--seed", 1, "--files", 300, stdout=subprocess.DEVNULL)
    make("tree", data / "linux-b", "--seed", 1, "--files", 300, stdout=subprocess.DEVNULL)
    make("mutate", data / "linux-b", "--seed", 2, stdout=subprocess.DEVNULL)
    for version in "ab":
        subprocess.run(["tar", "-cf", data / f"tars/linux-{version}.tar", "-C", data, f"linux-{version}"], check=True)
    make("image", data / "cores/core.1", "--seed", 3, "--len", "8m")
    for number in range(2, 9):
        shutil.copy(data / f"cores/core.{number - 1}", data / f"cores/core.{number}")
        make("update-image", data / f"cores/core.{number}", "--seed", number, "--writes", 50, stdout=subprocess.DEVNULL)
    with open(data / "random.bin", "wb") as out:
        make("stream", "--seed", 4, "--len", "8m", "--compress", 0, stdout=out)


# --- one measurement -------------------------------------------------------------------------------------------


def fresh_directory(work):
    """An empty directory for a copy, beside the earlier ones."""
    out = work / f"out-{len(list(work.glob('out-*')))}"
    out.mkdir()
    return out


def measure(run, tool, dataset, work, workload, verify):
    """One round of one tool and data set: times, stored bytes, and errors in the restored copy."""
    source_dir, out = work / "src", fresh_directory(work)
    remove(source_dir)
    source_dir.mkdir()
    tool.fresh()
    taken = {phase: [] for phase in PHASES}
    for number, (phase, source, entry, name) in enumerate(dataset.steps):
        preread(source)
        if number > 0:
            tool.between() if number == 1 else None
        if source.name == entry:
            taken[phase].append(tool.put(entry, name, source.parent))
        elif run.private_mounts:
            (source_dir / entry).mkdir(exist_ok=True)
            taken[phase].append(tool.put(entry, name, source_dir, bind=(source, source_dir / entry)))
        else:
            # Without root, both versions cannot share a path: this renames into place, and back.
            source.rename(source_dir / entry)
            try:
                taken[phase].append(tool.put(entry, name, source_dir))
            finally:
                (source_dir / entry).rename(source)
    _, source, entry, name = dataset.steps[-1]
    taken["restore"].append(tool.restore(entry, name, out))
    result = {phase: summed(runs) for phase, runs in taken.items()}
    result["stored"] = {"bytes": du(tool.store, "-b"), "allocated": du(tool.store, "-B1")}
    if verify:
        result["differences"] = differences(workload, source, out / entry)
    remove(tool.store), remove(tool.side)
    if not dataset.keeps_copies:
        remove(out)
    return result


def differences(workload, source, copy):
    """Counts differences between the copy and the source by kind. Empty if there are none."""
    if not copy.exists():
        raise Failed(f"nothing was restored at {copy.name}")
    found = subprocess.run([workload, "compare", source, copy], capture_output=True, text=True, check=False)
    if found.returncode not in (0, 1) or found.stderr:
        raise Failed(f"compare: {found.stderr}")
    kinds = {}
    for line in found.stdout.splitlines():
        kind = re.match(r'".*": (mode|xattr|only in [AB]|\w+)', line)
        kind = kind.group(1).lower() if kind else "other"
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def limits(run, dataset, work):
    """Times of simple tools: nothing restores a tree much faster than tar writes one."""
    source = dataset.steps[-1][1]
    taken = {}

    def timed(name, command, **more):
        preread(source)
        taken[name] = run(command, **more)

    timed("cp", ["cp", "-a", source, fresh_directory(work)])
    if dataset.name == "trees":
        tar = work / "limit.tar"
        subprocess.run(["tar", "-cf", tar, "-C", source, "."], check=True)
        timed("tar x", ["tar", "-xpf", tar, "-C", fresh_directory(work)])
        remove(tar)
    else:
        threads, out = f"-T{min(os.cpu_count() or 1, 2)}", fresh_directory(work)
        timed(f"zstd -1 {threads}", ["zstd", "-q", "-1", threads, source, "-o", out / "zst"])
        taken[f"zstd -1 {threads}"]["size"] = (out / "zst").stat().st_size
    return taken


# --- the record ------------------------------------------------------------------------------------------------


def medians(rounds):
    """The medians of several rounds of one tool."""
    value = {}
    for phase in PHASES:
        value[phase] = {key: statistics.median(r[phase][key] for r in rounds) for key in rounds[0][phase]}
    value["stored"] = {key: statistics.median(r["stored"][key] for r in rounds) for key in rounds[0]["stored"]}
    value["peak"] = max(value[phase]["peak"] for phase in PHASES)
    value["cpu"] = sum(value[phase]["cpu"] for phase in PHASES)
    return value


COLUMNS = [("put 1", "s", lambda v: v["put 1"]["wall"]), ("put 2", "s", lambda v: v["put 2"]["wall"]),
           ("restore", "s", lambda v: v["restore"]["wall"]), ("stored", "MB", lambda v: v["stored"]["bytes"] / 1e6),
           ("on disk", "MB", lambda v: v["stored"]["allocated"] / 1e6), ("peak memory", "MB", lambda v: v["peak"] / 1e6),
           ("processor", "s", lambda v: v["cpu"])]


def table(results, dataset):
    """Markdown: a row for each tool, and its values over ours."""
    tools = results["sets"][dataset]["tools"]
    value = {name: medians(rounds) for name, rounds in tools.items()}
    lines = ["| | " + " | ".join(f"{name}, {unit}" for name, unit, _ in COLUMNS) + " |",
             "| --- |" + " ---: |" * len(COLUMNS)]
    for name, v in value.items():
        lines.append(f"| {name} | " + " | ".join(f"{get(v):.1f}" for _, _, get in COLUMNS) + " |")
    ours = value.pop("outrigger", None)
    for name, v in value.items() if ours else ():
        # How many times as much a peer takes; for ourselves what encryption costs.
        over, under, label = (ours, v, "outrigger / plain") if name == "outrigger-plain" else (v, ours, f"{name} / outrigger")
        digits = 3 if under is v else 2
        lines.append(f"| **{label}** | " + " | ".join(f"**{get(over) / get(under):.{digits}f}**" for _, _, get in COLUMNS) + " |")
    for name, taken in results["sets"][dataset].get("limits", {}).items():
        size = f", {taken['size'] / 1e6:.0f} MB" if "size" in taken else ""
        lines.append(f"| limit: {name} | {taken['wall']:.1f} s{size} |" + " |" * (len(COLUMNS) - 1))
    return lines


def markdown(results):
    info = results["machine"]
    phases = [run[phase] for of_set in results["sets"].values() for tool in of_set["tools"].values() for run in tool for phase in PHASES]
    others = sum(phase["others"] for phase in phases) / max(sum(phase["wall"] for phase in phases), 1)
    rounds = f"Medians of {results['rounds']} rounds" if results["rounds"] > 1 else "Single runs"
    lines = [f"# Outrigger and its peers, {results['date']}", "",
             f"{info['cpu']}, {info['cpus']} CPUs ({', '.join(info['flags'])}), {info['memory'] / 2**30:.0f} GB, "
             f"kernel {info['kernel']}, stores on {results['filesystem']}. "
             f"{rounds}. Beside a tool, the rest of the machine used {100 * others:.0f} % of a processor.", ""]
    if others > 0.2:
        lines += ["**The machine was not quiet: read these as orders of magnitude.**", ""]
    lines += ["Made by `make bench`. Tools: " + "; ".join(f"{n} ({v})" for n, v in results["tools"].items()) + ".", ""]
    if results["dataset"]:
        lines += ["Data: " + "; ".join(f"{n} {v}" for n, v in results["dataset"].items()) + ".", ""]
    for name in results["sets"]:
        lines += [f"## {name}, {results['sets'][name]['bytes'] / 1e6:.0f} MB", ""] + table(results, name) + [""]
        for tool, rounds in results["sets"][name]["tools"].items():
            walls = ", ".join(f"{p} {min(r[p]['wall'] for r in rounds):.1f} to {max(r[p]['wall'] for r in rounds):.1f} s" for p in PHASES)
            differ = rounds[0].get("differences")
            copy = "" if differ is None else "; the copy is exact" if not differ else f"; the copy differs: {differ}"
            lines.append(f"- {tool}: {walls}{copy}")
        lines.append("")
    lines += ["*stored* is what `du -sb` says of the store, *on disk* its allocated blocks; *peak memory* is of the largest "
              "process in any phase (20 MB is the floor of the measurement); *processor* is user and system time of all phases together. Caches that peers "
              "keep outside of the store are not counted as stored.", ""]
    return "\n".join(lines)


def save(results, directory):
    """Replaces the record of the same day and machine; returns the path of its Markdown."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{results['date']}-peers-{slug(results['machine'])}"
    (directory / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / f"{stem}.md").write_text(markdown(results))
    return directory / f"{stem}.md"


# --- main ------------------------------------------------------------------------------------------------------


def find(given, name, data):
    """The binary of a tool: as given, on the PATH, or installed beside the data."""
    if given:
        return str(Path(given).resolve()) if os.access(given, os.X_OK) else None
    beside = data / "peers/bin" / name
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", default="target/release/outrigger", help="the binary [target/release/outrigger]")
    parser.add_argument("--workload", help="outrigger-workload, for comparing and --quick [beside outrigger]")
    parser.add_argument("--data", default=os.environ.get("BENCH_DATA", "bench-data"), help="inputs [$BENCH_DATA, bench-data]")
    parser.add_argument("--work", help="stores and restored copies are made and removed here [DATA/work]")
    parser.add_argument("--tools", help="which [all that are installed]")
    parser.add_argument("--sets", default=",".join(SETS), help=f"which [{','.join(SETS)}]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds [3]")
    parser.add_argument("--record", help="directory of the record [docs/evaluation/records]; 'none' keeps none")
    parser.add_argument("--quick", action="store_true", help="small generated data, one round, no peers, no record")
    parser.add_argument("--no-limits", action="store_true", help="leave cp, tar and zstd out")
    lock_option(parser)
    return parser.parse_args()


def main():
    args = arguments()
    wanted = [name for name in args.sets.split(",") if name]
    if unknown := set(wanted) - set(SETS):
        raise Failed(f"no such set: {', '.join(unknown)}")
    base = Path(args.data).resolve()
    data = base / "quick" if args.quick else base
    data.mkdir(parents=True, exist_ok=True)
    workload = find(args.workload or str(Path(args.outrigger).parent / "outrigger-workload"), "outrigger-workload", base)
    if not workload:
        raise Failed("no outrigger-workload: cargo build --release -p outrigger-workload, or --workload PATH")
    if args.quick:
        quick_data(data, workload)
    elif not complete(data, wanted):
        if subprocess.run([HERE / "data.sh"], env={**os.environ, "BENCH_DATA": str(data)}, check=False).returncode != 0:
            raise Failed("data is missing, see above")
    work = Path(args.work).resolve() if args.work else data / "work"
    left = work.exists() and any(work.iterdir())
    remove(work)
    work.mkdir(parents=True)
    settle(left and not args.quick and reuses_inodes_late(work))

    run, tools = Runner(work), []
    names = [kind.name for kind in TOOLS]
    chosen = args.tools.split(",") if args.tools else names[:1] if args.quick else names
    if unknown := set(chosen) - set(names):
        raise Failed(f"no such tool: {', '.join(unknown)}")
    for kind in TOOLS:
        if kind.name in chosen:
            ours = issubclass(kind, Outrigger)
            binary = find(args.outrigger if ours else None, kind.name, base)
            if binary:
                tools.append(kind(run, work, binary))
            elif ours:
                raise Failed(f"no binary {args.outrigger}: cargo build --release, or --tools without outrigger")
            else:
                print(f"not installed, left out: {kind.name} ({kind.install})", file=sys.stderr)
    if not run.private_mounts:
        print("no private bind mounts (not root?): trees are renamed into place", file=sys.stderr)

    rounds = 1 if args.quick else args.rounds
    info = data / "DATASET"
    results = {"date": datetime.date.today().isoformat(), "machine": machine(), "filesystem": filesystem(work),
               "revision": revision(), "rounds": rounds, "tools": {tool.name: tool.version() for tool in tools},
               "dataset": dict(line.split(" ", 1) for line in info.read_text().splitlines()) if info.exists() else {},
               "sets": {}}
    keep = args.record or ("none" if args.quick else str(RECORDS))
    exact = True
    sets = data_sets(data, work, wanted)
    last = sets[-1]
    for dataset in sets:
        of_set = results["sets"][dataset.name] = {"bytes": dataset.bytes, "tools": {tool.name: [] for tool in tools}}
        for number in range(rounds):
            turn = number % max(len(tools), 1)
            with alone(args.lock):
                for tool in tools[turn:] + tools[:turn]:
                    taken = measure(run, tool, dataset, work, workload, verify=number == 0)
                    of_set["tools"][tool.name].append(taken)
                    line = "  ".join(f"{phase} {taken[phase]['wall']:7.2f} s" for phase in PHASES)
                    differ = taken.get("differences")
                    note = f"  the copy differs: {differ}" if differ else ""
                    print(f"{dataset.name:7} round {number + 1} {tool.name:15} {line}  stored {taken['stored']['bytes'] / 1e6:8.1f} MB"
                          f"  peak {max(taken[p]['peak'] for p in PHASES) / 1e6:6.0f} MB"
                          f"  others {sum(taken[p]['others'] for p in PHASES):5.2f} s{note}", flush=True)
                    exact &= not (differ and isinstance(tool, Outrigger))
        if not args.no_limits and not args.quick:
            with alone(args.lock):
                of_set["limits"] = limits(run, dataset, work)
        for copy in work.glob("out-*"):
            remove(copy)
        if dataset is not last:
            settle(dataset.keeps_copies and not args.quick)
        print("\n" + "\n".join(table(results, dataset.name)) + "\n", flush=True)
        if keep != "none":
            # After every set, so that an interrupted run leaves what it had.
            save(results, Path(keep))
    if keep != "none":
        print(f"record: {os.path.relpath(save(results, Path(keep)))}, .json")
    remove(work)
    if not exact:
        raise Failed("outrigger's restored copy is not exact (see above)")


if __name__ == "__main__":
    enter(main)
