#!/usr/bin/env python3
"""Mounts that share a store on a cluster of this machine (`make cluster`), beside what the cluster gives itself.

    sudo bench/cluster.py --outrigger target/release/outrigger           everything: a quarter of an hour
    sudo bench/cluster.py --quick                                        small sizes, one round: does it still work?
    sudo bench/cluster.py --only pool,names --rounds 3 --json a.json     a part

| group | what |
| --- | --- |
| pool | metadata in PostgreSQL, packs in a pool of Ceph: new data of which half can be compressed, the same again under another name, read cold; beside `rados bench` write and seq of as many bytes, with objects as large as the packs |
| gateway | the same mount with packs in Ceph's gateway for S3, beside `rclone mount` and `s3fs` on that gateway: untar of a tree, 4 KiB writes here and there with an fsync; until all of it is in S3 |
| names | untar of a tree in a shared mount, beside a mount of a store in a directory; exclusive creations a second by 1 to 8 processes on 1 to 4 hosts, in one directory and in their own; beside commits of single rows by pgbench |
| twice | a tree that two hosts write, one after the other and at once: what is stored, beside once |
| wire | bytes that cross the hosts' interfaces for data that is different, similar (all stored already), and checkpoints |

Hosts are network namespaces: a client's mount runs in its own, and what crosses its interface is counted. Everything shares this machine's processors,
so their time is told, too: of clients (mounts, or `rados`, `rclone`, `s3fs`, and the programs that write), OSDs, gateway, PostgreSQL, and of the whole
machine, the kernel included. Printed: best and median of the rounds, and ratios
against the targets. What is written is read again and compared.
"""
import argparse
import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peers import REPOSITORY, machine, revision  # noqa: E402  the same words about the machine in all records

KIB, MIB = 1 << 10, 1 << 20
SCRIPT = REPOSITORY / "scripts/cluster.sh"
CLIENTS = ["c0", "c1", "c2", "c3"]
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 600


class Failed(Exception):
    """A measurement could not be made."""


class Missing(Failed):
    """Something that it needs is not to be had here."""


def run(command, **more):
    done = subprocess.run([str(word) for word in command], stdin=more.pop("stdin", subprocess.DEVNULL),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False,
                          timeout=PATIENCE, **more)
    if done.returncode:
        raise Failed(f"{' '.join(str(word) for word in command)}: exit {done.returncode}: "
                     f"{(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def need(program, package):
    found = shutil.which(program)
    if not found:
        raise Missing(f"{program} is missing: apt-get install {package}")
    return found


def wait_for(what, is_so, seconds=60, pause=0.02):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(pause)


def say(text):
    print(text, flush=True)


# --- the cluster -----------------------------------------------------------------------------------------------


class Cluster:
    """The one of scripts/cluster.sh, started if it is not up."""

    def __init__(self):
        self.started = False
        shown = subprocess.run([SCRIPT, "env"], capture_output=True, text=True, check=False)
        if shown.returncode:
            say("starting a cluster")
            started = subprocess.run([SCRIPT, "up"], capture_output=True, text=True, check=False)
            if started.returncode:
                raise Failed(f"no cluster: {started.stderr.strip()[-600:]}")
            self.started, shown = True, started
        self.variables = dict(re.findall(r"(\w+)=('[^']*'|\S+)", shown.stdout))
        self.variables = {name: value.strip("'") for name, value in self.variables.items()}
        if "OUTRIGGER_TEST_POSTGRES" not in self.variables:
            raise Missing("the cluster has no PostgreSQL: apt-get install postgresql")
        self.dir = Path(self.variables["OUTRIGGER_CLUSTER"])
        self.conf = self.dir / "ceph.conf"
        self.database = self.variables["OUTRIGGER_TEST_POSTGRES"]
        self.s3 = self.variables["OUTRIGGER_TEST_S3"]
        self.endpoint = re.search(r"endpoint=([^&]+)", self.s3)[1]
        self.bucket = re.match(r"s3://([^?/]+)", self.s3)[1]
        # Everything that is started here gets the database's password and the gateway's keys from the environment.
        os.environ.update(self.variables)
        # The gateway is plain HTTP, and rclone does not begin with an authority that somebody has set for other things.
        os.environ.pop("AWS_CA_BUNDLE", None)
        if not Path("/run/netns/outrigger-c0").exists():
            raise Failed("the cluster has no hosts for clients: it is an older one; scripts/cluster.sh down, and again")

    def on(self, host, *command):
        """A command, to be run on a host."""
        return ["nsenter", f"--net=/run/netns/outrigger-{host}", *command]

    def sql(self, text):
        return run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", f"{self.database}?sslmode=disable", "-c", text])

    def pids(self):
        """Kind of server -> its processes."""
        def of(pattern):
            return [int(file.read_text()) for file in self.dir.glob(f"run/{pattern}.pid")]

        postmaster = int((self.dir / "postgres/postmaster.pid").read_text().split()[0])
        return {"osds": of("osd.*"), "gateway": of("client.rgw*"), "monitors": of("m[og][nr].*"), "postgres": [postmaster]}

    def drop_caches(self):
        """Nothing that was stored is in anybody's memory."""
        os.sync()
        for file in self.dir.glob("run/osd.*.pid"):
            run(["ceph", "-c", self.conf, "tell", file.stem, "cache", "drop"])
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def end(self):
        if self.started:
            subprocess.run([SCRIPT, "down"], check=False)


def of_process(pid):
    """Processor seconds that a process and its children have taken, those that have ended among them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS + sum(of_process(child) for child in children)


def of_machine():
    """Processor seconds that were not idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / TICKS


def interface(host):
    """Bytes that a host has sent and received."""
    # The other end of its cable is here: what that received, the host has sent.
    statistics_ = Path(f"/sys/class/net/ov-{host}/statistics")
    return int((statistics_ / "rx_bytes").read_text()), int((statistics_ / "tx_bytes").read_text())


class Meter:
    """What something takes, from here to `taken`."""

    def __init__(self, cluster, clients=()):
        self.cluster, self.clients = cluster, clients
        self.before, self.begin = self.look(), time.monotonic()

    def look(self):
        seen = {kind: sum(of_process(pid) for pid in pids) for kind, pids in self.cluster.pids().items()}
        # One that ends meanwhile is among our own children then.
        own = os.times()
        seen["clients"] = sum(of_process(pid) for pid in self.clients) + own.children_user + own.children_system
        seen["machine"] = of_machine()
        for name, hosts in (("clients", CLIENTS), ("osds", ["h0", "h1", "h2"]), ("head", ["head"])):
            sent, received = zip(*(interface(host) for host in hosts))
            seen[f"{name} sent"], seen[f"{name} received"] = sum(sent), sum(received)
        return seen

    def taken(self):
        wall, after = time.monotonic() - self.begin, self.look()
        taken = {name: after[name] - self.before[name] for name in after}
        bytes_ = {name: value for name, value in taken.items() if name.endswith(("sent", "received"))}
        seconds = {name: round(value, 2) for name, value in taken.items() if name not in bytes_}
        return {"wall": wall, "processor": seconds, "wire": bytes_}


# --- what is mounted -------------------------------------------------------------------------------------------


class Mount:
    """A process that serves a mount on a host, a child of ours."""

    def __init__(self, cluster, host, base, command, environment=None, inside=""):
        self.point, self.log = base / "mnt", base / "log"
        self.point.mkdir(parents=True, exist_ok=True)
        command = [str(word) for word in cluster.on(host, *command, self.point)]
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env={**os.environ, **(environment or {})})
        self.pid, self.dir = self.child.pid, self.point / inside

        def is_there():
            if self.child.poll() is not None:
                raise Failed(f"{command[2]}: no mount: {self.log.read_text(errors='replace')[-600:]}")
            return os.path.ismount(self.point)

        wait_for("the mount", is_there, 120)
        self.dir.mkdir(exist_ok=True)

    def unmount(self):
        """Comes back when its process has ended."""
        if self.child is None:
            return
        run(["umount", self.point])
        code = self.child.wait(timeout=PATIENCE)
        self.child = None
        if code:
            raise Failed(f"a mount's process ended with {code}: {self.log.read_text(errors='replace')[-600:]}")

    def kill(self):
        """Whatever state it is in."""
        if self.child is not None:
            subprocess.run(["umount", "-l", self.point], stderr=subprocess.DEVNULL, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=5)
            if self.child.poll() is None:
                self.child.send_signal(signal.SIGKILL)
                self.child.wait()
            self.child = None


class Store:
    """A new store. With `packs` in "pool" or "bucket" its metadata is in PostgreSQL; without, it is a directory."""

    count = 0

    def __init__(self, bench, packs, pack_size=None):
        Store.count += 1
        self.bench, self.cluster = bench, bench.cluster
        self.name = f"bench_{os.getpid()}_{Store.count}"
        self.base = bench.work / self.name
        self.base.mkdir()
        self.packs, self.mounts = packs, []
        self.url = f"{self.cluster.database}?schema={self.name}&sslmode=disable" if packs else str(self.base / "store")
        where = {"pool": f"rados://packs/{self.name}?conf={self.cluster.conf}",
                 "bucket": self.cluster.s3.replace("?", f"/{self.name}?", 1)}.get(packs)
        self.run("c0", "init", *(["--packs", where] if where else []), *(["--pack-size", pack_size] if pack_size else []))

    def environment(self, host):
        return {"OUTRIGGER_STORE": self.url, "OUTRIGGER_CACHE": str(self.base / host / "cache")}

    def run(self, host, *words):
        command = self.cluster.on(host, self.bench.outrigger, *words)
        return run(command, env={**os.environ, **self.environment(host)})

    def mount(self, host):
        command = [self.bench.outrigger, "mount", "--foreground"]
        mount = Mount(self.cluster, host, self.base / host, command, self.environment(host))
        self.mounts.append(mount)
        return mount

    def cool(self, mount, host):
        """Mounted again, with nothing of it nearby or in memory."""
        mount.unmount()
        self.mounts.remove(mount)
        shutil.rmtree(self.base / host / "cache", ignore_errors=True)
        self.cluster.drop_caches()
        return self.mount(host)

    def stored(self):
        """Bytes of packs that count, and of chunks that are not packed yet."""
        status = json.loads(self.run("c0", "status", "--json"))
        packs = sum(of["bytes"] for of in status["packs"] if of["state"] in ("live", "condemned"))
        return packs + status["loose_bytes"]

    def end(self):
        for mount in self.mounts:
            mount.kill()
        if self.packs:
            self.cluster.sql(f"SET client_min_messages = warning; DROP SCHEMA IF EXISTS {self.name} CASCADE")
        if self.packs == "pool":
            forget(self.cluster, self.name)
        elif self.packs == "bucket":
            run(["rclone", "purge", f"gw:{self.cluster.bucket}/{self.name}"], env={**os.environ, **rclone_gateway(self.cluster)})
        run(["rm", "-rf", self.base])


@contextlib.contextmanager
def store(bench, *words):
    made = Store(bench, *words)
    try:
        yield made
        for mount in made.mounts:
            mount.unmount()
    finally:
        made.end()


def forget(cluster, namespace):
    """Removes all objects of a namespace of the pool."""
    pool = ["rados", "-c", cluster.conf, "-p", "packs", "-N", namespace]
    names = run([*pool, "ls"]).split()
    for some in (names[at:at + 100] for at in range(0, len(names), 100)):
        run([*pool, "rm", *some])


def rclone_gateway(cluster):
    return {"RCLONE_CONFIG_GW_TYPE": "s3", "RCLONE_CONFIG_GW_PROVIDER": "Ceph", "RCLONE_CONFIG_GW_ENV_AUTH": "true",
            "RCLONE_CONFIG_GW_ENDPOINT": cluster.endpoint, "RCLONE_CONFIG": "/dev/null"}


# --- data ------------------------------------------------------------------------------------------------------


class Data:
    """Files in memory, made from seeds."""

    def __init__(self, bench):
        self.bench, self.dir = bench, Path(tempfile.mkdtemp(prefix="outrigger-bench-", dir="/dev/shm"))

    def stream(self, seed, size):
        """New data, half of which can be compressed away."""
        path = self.dir / f"stream-{seed}-{size}"
        if not path.exists():
            with open(path, "wb") as out:
                subprocess.run([self.bench.workload, "stream", "--seed", str(seed), "--len", str(size), "--compress", "0.5"],
                               stdout=out, check=True)
        return path

    def forget(self, path):
        path.unlink()

    def tar(self):
        """The tree, files and directories only: not everybody here has symlinks. (path, files, bytes)"""
        path = self.dir / "tree.tar"
        if not path.exists():
            source = Path(self.bench.args.tree) if self.bench.args.tree else self.dir / "tree"
            if not self.bench.args.tree:
                run([self.bench.workload, "tree", source, "--files", self.bench.args.files, "--seed", 3])
            names = subprocess.run(["find", ".", "(", "-type", "f", "-o", "-type", "d", ")", "-print0"], cwd=source,
                                   stdout=subprocess.PIPE, check=True).stdout
            subprocess.run(["tar", "-cf", path, "--null", "--no-recursion", "-T", "-"], cwd=source, input=names, check=True)
            files = [size for size in run(["find", source, "-type", "f", "-printf", "%s\n"]).split()]
            self.tree = (path, len(files), sum(int(size) for size in files))
        return self.tree

    def unpacked(self):
        """The tree, to compare with."""
        path = self.dir / "unpacked"
        if not path.exists():
            path.mkdir()
            untar(self.tar()[0], path)
        return path

    def images(self):
        """Images of a computation, one after the other."""
        given = self.bench.args.cores
        if given:
            images = sorted(Path(given).glob("core.*"), key=lambda file: int(file.suffix[1:]))
            return images[1:] if len(images) > 4 else images
        made = [self.dir / f"core.{number}" for number in range(1, 5)]
        if not made[-1].exists():
            for number, path in enumerate(made):
                if number == 0:
                    run([self.bench.workload, "image", path, "--seed", 7, "--len", self.bench.args.size // 8])
                else:
                    shutil.copy(made[number - 1], path)
                    run([self.bench.workload, "update-image", path, "--seed", number, "--writes", 200])
        return made

    def end(self):
        run(["rm", "-rf", self.dir])


def write(source, target):
    """Bytes, made durable at the end."""
    run(["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"])


def read(source):
    run(["dd", f"if={source}", "of=/dev/null", "bs=1M", "status=none"])


def same(a, b):
    run(["cmp", a, b])


def untar(tar, directory):
    run(["tar", "-xf", tar, "-C", directory, "--no-same-owner"])


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


# --- the groups ------------------------------------------------------------------------------------------------


class Bench:
    """Arguments, data, and what was measured so far."""

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
        # Without the time that it takes to begin.
        taken["wall"] = float(seconds[1])
        bench.rate("pool", f"rados bench {what}, objects of {label}", objects * object_size, taken)

    try:
        measured("write", ["write", "-b", object_size, "--max-objects", objects, "--no-cleanup"], "writes")
        cluster.drop_caches()
        measured("seq", ["seq", "--no-verify"], "reads")
    finally:
        forget(cluster, name)


class Gateway:
    """A way to have files in the gateway's bucket: mounted, and a way to know when it is all there."""

    def __init__(self, bench, number):
        self.bench, self.cluster = bench, bench.cluster
        self.place = f"{self.name.replace(' ', '-')}-{os.getpid()}-{number}"
        self.base = bench.work / self.place
        self.mount = None

    def rclone(self, *words):
        return run(["rclone", *words], env={**os.environ, **rclone_gateway(self.cluster)})

    def has(self, files, size):
        """Whether so many files with so many bytes are in S3."""
        told = json.loads(self.rclone("size", "--json", f"gw:{self.cluster.bucket}/{self.place}"))
        return told["bytes"] == size and told["count"] >= files

    def etag(self, name):
        """What changes with the object's content."""
        path = f"{self.cluster.endpoint}/{self.cluster.bucket}/{self.place}/{name}"
        keys = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
        told = run(["curl", "-fsS", "-I", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", keys,
                    "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", path])
        return re.search(r"(?i)etag: *(\S+)", told)[1]

    def settled(self, files, size):
        wait_for(f"{self.name}: all of the tree in S3", lambda: self.has(files, size), PATIENCE, 0.3)

    def rewritten(self, name, before):
        wait_for(f"{self.name}: the file in S3", lambda: self.etag(name) != before, PATIENCE, 0.1)

    def in_bucket(self, name):
        """The digest of what is in S3."""
        return self.rclone("md5sum", "--download", f"gw:{self.cluster.bucket}/{self.place}/{name}").split()[0]

    def end(self):
        if self.mount:
            self.mount.kill()
        with contextlib.suppress(Failed):
            self.rclone("purge", f"gw:{self.cluster.bucket}/{self.place}")
        run(["rm", "-rf", self.base])


class Rclone(Gateway):
    name = "rclone mount"

    def start(self):
        command = ["rclone", "mount", f"gw:{self.cluster.bucket}/{self.place}", "--vfs-cache-mode", self.bench.args.rclone_mode,
                   "--vfs-write-back", "0s", "--cache-dir", self.base / "cache"]
        self.mount = Mount(self.cluster, "c0", self.base, command, rclone_gateway(self.cluster))


class S3fs(Gateway):
    name = "s3fs"

    def start(self):
        need("s3fs", "s3fs")
        command = ["s3fs", "-f", self.cluster.bucket, "-o", f"url={self.cluster.endpoint},use_path_request_style"]
        # Its process is told where to mount last, too.
        self.mount = Mount(self.cluster, "c0", self.base, command, inside=self.place)


class Ours(Gateway):
    name = "outrigger"

    def start(self):
        self.store = Store(self.bench, "bucket")
        self.mount = self.store.mount("c0")

    def settled(self, files, size):
        """All that closes have left in the database is packed when the mount has ended."""
        self.mount.unmount()

    def rewritten(self, name, before):
        self.mount.unmount()

    def etag(self, name):
        return None

    def in_bucket(self, name):
        # By another host, from S3.
        other = self.store.mount("c1")
        return digest(other.dir / name)

    def end(self):
        if hasattr(self, "store"):
            self.store.end()


def gateway(bench, number):
    tar, files, size = bench.data.tar()
    kinds = [Ours, Rclone, S3fs]
    turn = number % len(kinds)
    for kind in kinds[turn:] + kinds[:turn]:
        for measure in (gateway_tree, gateway_writes):
            place = kind(bench, f"{number}-{measure.__name__[8:]}")
            try:
                place.start()
                measure(bench, place)
            except Missing as why:
                say(f"gateway  {kind.name}: left out: {why}")
            except Failed as error:
                # The others are measured all the same.
                say(f"gateway  {kind.name} FAILED: {error}")
                bench.failed.append(f"gateway, {kind.name}, round {number + 1}: {error}")
            finally:
                place.end()


def gateway_tree(bench, place):
    tar, files, size = bench.data.tar()
    meter = Meter(bench.cluster, [place.mount.pid])
    untar(tar, place.mount.dir)
    returned = time.monotonic() - meter.begin
    place.settled(files, size)
    taken = meter.taken()
    bench.note("gateway", f"{place.name}, untar until all is in S3", taken["wall"], "s", taken)
    bench.note("gateway", f"{place.name}, untar until tar returns", returned, "s")
    if place.mount.child is not None:
        run(["diff", "-rq", bench.data.unpacked(), place.mount.dir])
    else:
        run(["diff", "-rq", bench.data.unpacked(), place.store.mount("c1").dir])


def gateway_writes(bench, place):
    size = bench.args.size // 8
    source, target = bench.data.stream(300, size), place.mount.dir / "r"
    write(source, target)
    if not isinstance(place, Ours):
        place.settled(1, size)
    before = place.etag("r")
    meter = Meter(bench.cluster, [place.mount.pid])
    random_writes(target, size, size // 4)
    returned = time.monotonic() - meter.begin
    place.rewritten("r", before)
    taken = meter.taken()
    written = size // 4
    bench.rate("gateway", f"{place.name}, 4 KiB writes until all is in S3", written, taken)
    bench.note("gateway", f"{place.name}, 4 KiB writes until fsync returns", written / returned / 1e6, "MB/s")
    # The same writes to a plain file.
    plain = bench.data.dir / "plain"
    shutil.copy(source, plain)
    random_writes(plain, size, size // 4)
    if place.in_bucket("r") != digest(plain):
        raise Failed(f"{place.name}: in S3 is not what was written")
    plain.unlink()


def random_writes(target, size, amount):
    run(["fio", "--name=job", f"--filename={target}", "--ioengine=psync", "--rw=randwrite", "--bs=4k", f"--size={size}",
         f"--io_size={amount}", "--end_fsync=1", "--overwrite=1", "--randseed=22", "--randrepeat=1", "--refill_buffers=1",
         "--buffer_compress_percentage=50", "--buffer_compress_chunk=4096", "--invalidate=0"])


CREATOR = """
import os, sys, time
directory, prefix, begin, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
end, number = begin + seconds, 0
time.sleep(max(begin - time.monotonic(), 0))
while time.monotonic() < end:
    os.close(os.open(f"{directory}/{prefix}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    number += 1
print(number)
"""


def names(bench, number):
    tar, _, _ = bench.data.tar()
    for kind, label in (("pool", "shared mount"), (None, "store in a directory")):
        with store(bench, kind) as made:
            mount = made.mount("c0")
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
    row_commits(bench)


def creations(bench, mounts, each, together):
    """So many processes on each of these mounts make files, in one directory or each in one of its own."""
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
    children = [subprocess.Popen([sys.executable, "-c", CREATOR, place, f"p{number}", str(begin), str(seconds)],
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
    """(what, value, the factor that holds, whether at least): those whose parts were measured."""
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
        rows = [f"{name}, 4 KiB writes until all is in S3" for name in ("outrigger", peer)]
        yield ratio(f"4 KiB writes: our rate / {peer}'s", "gateway", *rows, 3)
    yield ratio("untar: a shared mount's time / that of a store in a directory", "names", "shared mount, untar",
                "store in a directory, untar", 2, False)
    single = "creations, 1 host with 1 process each, one directory"
    yield ("exclusive creations a second, one process", of("names", single), 1500, True)
    yield ratio("creations, 8 processes of 4 hosts / PostgreSQL's commits of one row, 8 at once", "names",
                "creations, 4 hosts with 2 processes each, their own", "PostgreSQL, commits of one row, 8 at once", None)
    yield ratio("creations, 8 processes of 4 hosts: one directory / their own", "names",
                "creations, 4 hosts with 2 processes each, one directory", "creations, 4 hosts with 2 processes each, their own", None)
    for how in ("one host after the other", "both at once"):
        yield (f"stored bytes, {how} / once", of("twice", f"stored bytes, {how} / once"), 1.05, False)


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
    parser.add_argument("--json")
    parser.add_argument("--markdown")
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
    about = machine()
    bench = Bench(args)
    began = time.monotonic()
    try:
        _, files, size = bench.data.tar()
        results = {"date": datetime.date.today().isoformat(), "machine": about, "revision": revision(), "rounds": args.rounds,
                   "quick": args.quick, "size": args.size, "tree": f"{'/'.join(Path(args.tree).parts[-2:]) if args.tree else 'made'}, {files} files, {size / 1e6:.1f} MB",
                   "rclone_mode": args.rclone_mode, "at_once": args.at_once, "taken": bench.taken, "failed": bench.failed}
        for number in range(args.rounds):
            for group in chosen:
                say(f"-- {group}, round {number + 1} of {args.rounds}, after {time.monotonic() - began:.0f} s")
                try:
                    GROUPS[group](bench, number)
                except (Failed, subprocess.SubprocessError, OSError) as error:
                    # The others' time is not lost for it.
                    say(f"{group:8} FAILED: {error}")
                    bench.failed.append(f"{group}, round {number + 1}: {error}")
                results["load_at_end"] = os.getloadavg()[0]
                # After every group, so that an interrupted run leaves what it had.
                if args.json:
                    Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
                if args.markdown:
                    Path(args.markdown).write_text(markdown(results))
    finally:
        bench.end()
    print("\n" + markdown(results))
    say(f"{time.monotonic() - began:.0f} s")
    if bench.failed:
        raise Failed(f"{len(bench.failed)} measurements failed, see above")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
