#!/usr/bin/env python3
"""Kills a mount's process again and again under load, and checks that all acknowledged data is there.

    tests/posix/kill.py --outrigger BINARY --work DIR [--rounds 20] [--writers ack,untar,sqlite,fio,fsx]
    tests/posix/kill.py --self-test --work DIR      the same with bindfs; and damage done by hand must be noticed (root)

A round: mount, start writers, SIGKILL to the mount's process after a random time, wait for the writers to fail, unmount
lazily, mount again, verify, unmount, `outrigger check --read-data`. Every round runs `ack` and one of the others. At
the end the files of all rounds are verified once more.

| writer | what must be there |
| --- | --- |
| ack | the state after all acknowledged operations, byte by byte (outrigger-workload ackwrite, ackverify) |
| untar | every file whose rename was acknowledged: content, mode, time |
| sqlite | every committed transaction; integrity_check |
| fio | every block that was written, by fio's own state of verification |
| fsx | load only: mmap, truncations, holes; it must not find a difference before the kill |

--promise acked: everything that returned (the default); names: data only after a flush by close or fsync (a mount behind
the kernel's write-back cache); durable: only synced data. Exit code: 0 all is there, 1 something is missing, 2 usage.
"""
import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True,
         "errors": "replace"}


class Failed(Exception):
    """The test itself cannot go on."""


def output(command, **more):
    done = subprocess.run([str(word) for word in command], check=False, **{**QUIET, **more})
    return done.returncode, done.stdout


# --- file systems ----------------------------------------------------------------------------------------------


class Mount:
    """A FUSE file system whose process is a child of this one."""

    def __init__(self, work):
        self.point, self.child, self.log = work / "mnt", None, work / "mount.log"
        self.point.mkdir(parents=True)

    def mount(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while not os.path.ismount(self.point):
            if self.child.poll() is not None or time.monotonic() > end:
                raise Failed(f"no mount (exit {self.child.poll()}): {self.log.read_text()[-1000:]}")
            time.sleep(0.02)

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def unmount_dead(self):
        if output(["umount", "-l", self.point])[0] != 0 and output(["fusermount3", "-uz", self.point])[0] != 0:
            raise Failed("the dead mount could not be unmounted")

    def unmount(self):
        for _ in range(50):
            if output(["umount", self.point])[0] == 0 or output(["fusermount3", "-u", self.point])[0] == 0:
                break
            time.sleep(0.1)
        try:
            if code := self.child.wait(timeout=120):
                raise Failed(f"the mount ended with {code}: {self.log.read_text()[-1000:]}")
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed("the mount's process did not end within 120 s after unmounting") from None

    def check(self):
        return []


class Outrigger(Mount):
    def __init__(self, work, binary, options):
        super().__init__(work)
        self.binary, self.store, self.options = str(Path(binary).resolve()), work / "store", options
        code, text = output([self.binary, "-s", self.store, "init"])
        if code:
            raise Failed(f"init: {text}")

    def command(self):
        return [self.binary, "-s", str(self.store), "mount", "--foreground", *self.options, str(self.point)]

    def check(self):
        code, text = output([self.binary, "-s", self.store, "check", "--read-data"])
        return [f"check --read-data: exit {code}: {text.strip()[-500:]}"] if code else []


class Bindfs(Mount):
    def __init__(self, work):
        super().__init__(work)
        self.below = work / "below"
        self.below.mkdir()

    def command(self):
        return ["bindfs", "-f", str(self.below), str(self.point)]


# --- writers ---------------------------------------------------------------------------------------------------


class Writer:
    """A program that writes until its file system dies. `side` is a directory elsewhere, for its
    log."""

    missing = None

    def __init__(self, args, directory, side, seed):
        self.args, self.directory, self.side, self.seed = args, directory, side, seed
        side.mkdir(parents=True)
        self.child = None

    def start(self):
        with open(self.side / "output", "wb") as log:
            self.child = subprocess.Popen([str(word) for word in self.command()], cwd=self.side, stdout=log, stderr=log,
                                          stdin=subprocess.DEVNULL)

    def ended_early(self):
        if self.child.poll() is None:
            return []
        return [f"ended before the kill, exit {self.child.returncode}: {self.text()}"]

    def wait(self):
        try:
            self.child.wait(timeout=60)
            return []
        except subprocess.TimeoutExpired:
            self.child.kill()
            return ["hung for 60 s after the kill"]

    def text(self):
        return (self.side / "output").read_text(errors="replace").strip()[-400:]

    def worker(self, *words):
        return [sys.executable, __file__, "--worker", self.name, self.directory, self.side / "log", *words]


class Ack(Writer):
    name = "ack"

    def command(self):
        return [self.args.workload, "ackwrite", self.directory, self.side / "log", "--seed", self.seed, "--ops", 10**12,
                # The path-based interface of libfuse, which bindfs uses, hides an open target
                # before a rename. Then a rename between two links of one file removes a name.
                "--links", int(not self.args.self_test)]

    def verify(self):
        flag = {"acked": [], "names": ["--names"], "durable": ["--durable"]}[self.args.promise]
        code, text = output([self.args.workload, "ackverify", self.directory, self.side / "log", *flag])
        self.count = (self.side / "log").read_bytes().count(b"\n<")
        return text.splitlines() or [f"ackverify: exit {code}"] if code else []

    def damage(self, below):
        # The largest file gets bytes that no operation wrote, under any promise.
        file = max((path for path in below.rglob("f*") if path.is_file()), key=lambda path: path.stat().st_size)
        with open(file, "r+b") as data:
            head = data.read(4096)
            data.seek(0)
            data.write(bytes(byte ^ 0x55 for byte in head))


class Untar(Writer):
    name = "untar"

    def command(self):
        return self.worker(self.args.tree, "sync" if self.args.promise == "durable" else "nosync")

    @staticmethod
    def work(directory, log, tree, sync):
        """Unpacks `tree` again and again, each file under a temporary name that is then renamed.
        Logs the name after that."""
        with open(log, "a", buffering=1) as out:
            for turn in range(10**6):
                for root, _, names in os.walk(tree):
                    target = Path(directory, str(turn), os.path.relpath(root, tree))
                    target.mkdir(parents=True, exist_ok=True)
                    for name in names:
                        source = Path(root, name)
                        if source.is_symlink() or not source.is_file():
                            continue
                        with open(target / f".{name}.part", "wb") as file:
                            file.write(source.read_bytes())
                            file.flush()
                            os.fchmod(file.fileno(), source.stat().st_mode & 0o777)
                            os.utime(file.fileno(), ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
                            if sync == "sync":
                                os.fsync(file.fileno())
                        os.rename(target / f".{name}.part", target / name)
                        if sync == "sync":
                            where = os.open(target, os.O_RDONLY)
                            os.fsync(where)
                            os.close(where)
                        out.write(os.path.relpath(target / name, directory) + "\n")

    def verify(self):
        problems, self.count = [], 0
        for line in (self.side / "log").read_text().split("\n")[:-1]:
            source, copy = Path(self.args.tree, *Path(line).parts[1:]), self.directory / line
            try:
                same = source.read_bytes() == copy.read_bytes()
                a, b = source.stat(), copy.stat()
            except OSError as error:
                problems.append(f"{line}: {error}")
                continue
            if not same:
                problems.append(f"{line}: other bytes ({b.st_size} of {a.st_size})")
            elif a.st_mode != b.st_mode or a.st_mtime_ns != b.st_mtime_ns:
                problems.append(f"{line}: mode {b.st_mode:o}, time {b.st_mtime_ns}; not {a.st_mode:o}, {a.st_mtime_ns}")
            self.count += 1
        return problems

    def damage(self, below):
        line = (self.side / "log").read_text().split("\n")[0]
        os.utime(below / line, ns=(0, 1))


class Sqlite(Writer):
    name = "sqlite"

    def command(self):
        return self.worker("wal" if self.seed % 2 else "delete")

    @staticmethod
    def work(directory, log, mode):
        """Commits rows, and logs the number of rows after each commit."""
        base = sqlite3.connect(os.path.join(directory, "base"), isolation_level=None)
        base.execute(f"pragma journal_mode={mode}")
        base.execute("pragma synchronous=full")
        base.execute("create table row (id integer primary key, body text)")
        with open(log, "a", buffering=1) as out:
            count = 0
            while True:
                base.execute("begin")
                for _ in range(random.randint(1, 30)):
                    base.execute("insert into row values (?, ?)", (count, str(count) * random.randint(1, 300)))
                    count += 1
                base.execute("commit")
                out.write(f"{count}\n")

    def verify(self):
        log = self.side / "log"
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        committed = int(lines[-1]) if lines else 0
        self.count = len(lines)
        if not committed:
            return []
        try:
            base = sqlite3.connect(self.directory / "base")
            found = base.execute("pragma integrity_check").fetchall()
            problems = [] if found == [("ok",)] else [f"integrity_check: {found[:5]}"]
            rows = base.execute("select id, body from row order by id").fetchall()
            base.close()
        except sqlite3.Error as error:
            return [f"sqlite: {error}"]
        # The transaction in flight may be there, as a whole; it has 30 rows at most.
        if not committed <= len(rows) <= committed + 30:
            problems.append(f"{len(rows)} rows, {committed} were committed")
        if any(id != at or body != str(at) * (len(body) // len(str(at))) for at, (id, body) in enumerate(rows)):
            problems.append("a row differs from what was committed")
        return problems

    def damage(self, below):
        base = sqlite3.connect(below / "base")
        base.execute("delete from row where id > (select max(id) - 30 from row)")
        base.commit()
        base.close()


class Fio(Writer):
    name, missing = "fio", "fio"

    def options(self):
        sync = [] if self.args.promise == "acked" else ["--sync=1"]
        return ["fio", "--name=fio", f"--filename={self.directory}/data", "--size=256m", "--rw=randwrite", "--bs=4k",
                "--ioengine=psync", "--verify=crc32c", f"--randseed={self.seed}", "--allrandrepeat=1",
                "--verify_fatal=1", "--fallocate=truncate", *sync]

    def command(self):
        # Slow enough that it does not end before the kill.
        return [*self.options(), "--do_verify=0", "--verify_state_save=1", "--rate_iops=15000"]

    def verify(self):
        state = self.side / "local-fio-0-verify.state"
        self.count = 0
        if not state.exists() and "failed to create dir" in self.text():
            # The mount was killed before fio began: nothing was acknowledged.
            return []
        if not state.exists():
            return [f"fio kept no state of verification: {self.text()}"]
        # A copy, because some versions of fio remove the state when they read it.
        again = self.side / "again"
        again.mkdir(exist_ok=True)
        shutil.copy(state, again)
        code, text = output([*self.options(), "--verify_only=1", "--verify_state_load=1", "--output-format=terse"],
                            cwd=again)
        for line in text.splitlines():
            if line.startswith("3;"):
                self.count = int(line.split(";")[5]) // 4
        if code == 0 and not self.count:
            return ["fio verified nothing"]
        said = [line for line in text.splitlines() if "verify" in line or "error" in line] or [text.strip()[-400:]]
        return [f"exit {code}: {said[0]}"] if code else []

    def damage(self, below):
        with open(below / "data", "r+b") as data:
            # Every block with data, because only fio knows which came first.
            for block in range(0, os.fstat(data.fileno()).st_size, 4096):
                data.seek(block + 100)
                if byte := data.read(1):
                    data.seek(block + 100)
                    data.write(bytes([byte[0] ^ 1]))


class Fsx(Writer):
    name, missing = "fsx", "fsx"

    def command(self):
        return ["fsx", "-q", "-S", self.seed, "-P", self.side, self.directory / "file"]

    def verify(self):
        self.count = 0
        # Its errors about a dead file system are no difference in the data.
        text = (self.side / "output").read_text(errors="replace")
        return [f"fsx: {text[-400:]}"] if "READ BAD DATA" in text or "miscompare" in text else []

    damage = None


WRITERS = {kind.name: kind for kind in (Ack, Untar, Sqlite, Fio, Fsx)}


# --- rounds ----------------------------------------------------------------------------------------------------


def one_round(mount, writers, chance, args):
    """Problems after one kill. The mount is mounted again afterwards."""
    problems = []
    for writer in writers:
        writer.directory.mkdir()
        writer.start()
    delay = args.least + chance.random() * (args.most - args.least)
    time.sleep(delay)
    for writer in writers:
        problems += [f"{writer.name}: {line}" for line in writer.ended_early()]
    mount.kill()
    for writer in writers:
        problems += [f"{writer.name}: {line}" for line in writer.wait()]
    mount.unmount_dead()
    mount.mount()
    for writer in writers:
        problems += [f"{writer.name}: {line}" for line in writer.verify()]
    mount.unmount()
    problems += mount.check()
    mount.mount()
    print(f"killed after {delay:.2f} s: " + ", ".join(f"{w.name} {w.count} acknowledged" for w in writers), flush=True)
    return problems


def report(problems, limit=20):
    for line in problems[:limit]:
        print(f"  WRONG: {line}", flush=True)
    if len(problems) > limit:
        print(f"  ... and {len(problems) - limit} more", flush=True)


def loop(args, work, kinds):
    mount = Bindfs(work) if args.self_test else Outrigger(work, args.outrigger, args.mount_option)
    chance, wrong, all_writers = random.Random(args.seed), 0, []
    mount.mount()
    try:
        others = [kind for kind in kinds if kind is not Ack] or [None]
        for number in range(args.rounds):
            chosen = [kind for kind in (Ack if Ack in kinds else None, others[number % len(others)]) if kind]
            writers = [kind(args, mount.point / f"{number}-{kind.name}", work / "side" / f"{number}-{kind.name}",
                            args.seed + number) for kind in chosen]
            problems = one_round(mount, writers, chance, args)
            report(problems)
            wrong += bool(problems)
            all_writers += writers
        again = [f"{w.directory.name}: {line}" for w in all_writers for line in w.verify()]
        report(again)
        wrong += bool(again)
        unnoticed = []
        if args.self_test:
            damaged = set()
            for writer in all_writers:
                if writer.damage and writer.count > 20:
                    damaged.add(writer.name)
                    writer.damage(mount.below / writer.directory.name)
                    found = writer.verify()
                    print(f"damaged {writer.directory.name}: {found[0] if found else 'NOT NOTICED'}")
                    unnoticed += [] if found else [writer.name]
                elif writer.damage:
                    print(f"not damaged: {writer.directory.name}, which had written too little")
            unnoticed += sorted({kind.name for kind in kinds if kind.damage} - damaged)
        mount.unmount()
    except BaseException:
        for writer in all_writers:
            if writer.child and writer.child.poll() is None:
                writer.child.kill()
        if mount.child.poll() is None:
            mount.kill()
        output(["umount", "-l", mount.point])
        raise
    print(f"{args.rounds} kills, {wrong} with something missing" + (f"; damage not noticed: {unnoticed}" if unnoticed else ""))
    return 1 if wrong or unnoticed else 0


def main():
    if sys.argv[1:2] == ["--worker"]:
        WRITERS[sys.argv[2]].work(*sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", default="target/release/outrigger")
    parser.add_argument("--workload", help="outrigger-workload [beside outrigger]")
    parser.add_argument("--work", required=True, help="a directory for the store, the mount and the logs; made, and removed when all is well")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000, help="printed; repeats the choices, not the timing")
    parser.add_argument("--writers", default="ack,untar,sqlite,fio,fsx")
    parser.add_argument("--promise", choices=["acked", "names", "durable"], default="acked")
    parser.add_argument("--least", type=float, default=0.2, help="seconds before the kill, at least")
    parser.add_argument("--most", type=float, default=4.0, help="at most")
    parser.add_argument("--mount-option", action="append", default=[], help="a word for `outrigger mount`, say -oOPTION")
    parser.add_argument("--self-test", action="store_true", help="bindfs instead of outrigger, and damage by hand")
    args = parser.parse_args()
    args.workload = args.workload or str(Path(args.outrigger).parent / "outrigger-workload")
    args.workload = shutil.which(args.workload) or shutil.which("outrigger-workload")
    if not args.workload:
        print("outrigger-workload is missing: cargo build --release -p outrigger-workload, or --workload", file=sys.stderr)
        return 2
    args.workload = str(Path(args.workload).resolve())
    if args.self_test and not shutil.which("bindfs"):
        print("bindfs is missing: apt-get install bindfs", file=sys.stderr)
        return 2
    kinds = []
    for name in args.writers.split(","):
        if name not in WRITERS:
            print(f"no writer {name}; there are {', '.join(WRITERS)}", file=sys.stderr)
            return 2
        if WRITERS[name].missing and not shutil.which(WRITERS[name].missing):
            print(f"left out: {name}, which is not installed ({'cargo install fsx' if name == 'fsx' else 'apt-get install fio'})")
        else:
            kinds.append(WRITERS[name])
    work = Path(args.work).resolve()
    if work.exists() and any(work.iterdir()):
        print(f"{work} is not empty", file=sys.stderr)
        return 2
    args.tree = str(work / "tree")
    code, text = output([args.workload, "tree", args.tree, "--files", 2000, "--seed", args.seed, "--max", "100k"])
    if code:
        print(text, file=sys.stderr)
        return 2
    print(f"seed {args.seed}, promise: {args.promise}, writers: {', '.join(kind.name for kind in kinds)}", flush=True)
    try:
        code = loop(args, work, kinds)
    except Failed as error:
        print(f"WRONG: {error}")
        code = 1
    if code == 0:
        shutil.rmtree(work)
    else:
        print(f"all of it is left in {work}")
    return code


if __name__ == "__main__":
    sys.exit(main())
