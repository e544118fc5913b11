"""The cluster that `cluster.py` measures, the mounts on its hosts, and their use of resources."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from common import REPOSITORY, TICKS, Failed, Missing, of_machine, run, say

SCRIPT = REPOSITORY / "scripts/cluster.sh"
CLIENTS = ["c0", "c1", "c2", "c3"]
PATIENCE = 600


def wait_for(what, is_so, seconds=60, pause=0.02):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(pause)


# --- the cluster -----------------------------------------------------------------------------------------------


class Cluster:
    """The cluster of scripts/cluster.sh, started if it is not up."""

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
        # All processes started here get the database's password and the gateway's keys from the
        # environment.
        os.environ.update(self.variables)
        # The gateway is plain HTTP, and rclone does not start with a certificate authority that is
        # set for other servers.
        os.environ.pop("AWS_CA_BUNDLE", None)
        if not Path("/run/netns/outrigger-c0").exists():
            raise Failed("the cluster has no hosts for clients: it is an older one; scripts/cluster.sh down, and again")

    def on(self, host, *command):
        """The command line that runs a command on a host."""
        return ["nsenter", f"--net=/run/netns/outrigger-{host}", *command]

    def sql(self, text):
        return run(["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", f"{self.database}?sslmode=disable", "-c", text])

    def pids(self):
        """Maps each kind of server to its processes."""
        def of(pattern):
            return [int(file.read_text()) for file in self.dir.glob(f"run/{pattern}.pid")]

        postmaster = int((self.dir / "postgres/postmaster.pid").read_text().split()[0])
        return {"osds": of("osd.*"), "gateway": of("client.rgw*"), "monitors": of("m[og][nr].*"), "postgres": [postmaster]}

    def drop_caches(self):
        """Drops stored data from all caches."""
        os.sync()
        for file in self.dir.glob("run/osd.*.pid"):
            run(["ceph", "-c", self.conf, "tell", file.stem, "cache", "drop"])
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def end(self):
        if self.started:
            subprocess.run([SCRIPT, "down"], check=False)


def of_process(pid):
    """Processor seconds of a process and its children, including those that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS + sum(of_process(child) for child in children)


def interface(host):
    """Bytes that a host has sent and received."""
    # This is the other end of the cable: bytes received here were sent by the host.
    statistics_ = Path(f"/sys/class/net/ov-{host}/statistics")
    return int((statistics_ / "rx_bytes").read_text()), int((statistics_ / "tx_bytes").read_text())


class Meter:
    """Measures the use of resources, from here to `taken`."""

    def __init__(self, cluster, clients=()):
        self.cluster, self.clients = cluster, clients
        self.before, self.begin = self.look(), time.monotonic()

    def look(self):
        seen = {kind: sum(of_process(pid) for pid in pids) for kind, pids in self.cluster.pids().items()}
        # A client that ends meanwhile counts among our own children then.
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
    """A child process that serves a mount on a host."""

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
        """Returns when its process has ended."""
        if self.child is None:
            return
        run(["umount", self.point])
        code = self.child.wait(timeout=PATIENCE)
        self.child = None
        if code:
            raise Failed(f"a mount's process ended with {code}: {self.log.read_text(errors='replace')[-600:]}")

    def kill(self):
        """Ends it in any state."""
        if self.child is not None:
            subprocess.run(["umount", "-l", self.point], stderr=subprocess.DEVNULL, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=5)
            if self.child.poll() is None:
                self.child.send_signal(signal.SIGKILL)
                self.child.wait()
            self.child = None


class Store:
    """A new store. With `packs` in "pool" or "bucket" its metadata is in PostgreSQL; otherwise it
    is a directory."""

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

    def mount(self, host, *options):
        command = [self.bench.outrigger, "mount", "--foreground", *options]
        mount = Mount(self.cluster, host, self.base / host, command, self.environment(host))
        self.mounts.append(mount)
        return mount

    def cool(self, mount, host):
        """Mounts again, with no data in a cache or in memory."""
        mount.unmount()
        self.mounts.remove(mount)
        shutil.rmtree(self.base / host / "cache", ignore_errors=True)
        self.cluster.drop_caches()
        return self.mount(host)

    def stored(self):
        """Bytes of packs in use, and of chunks that are not packed yet."""
        status = json.loads(self.run("c0", "status", "--json"))
        packs = sum(of["bytes"] for of in status["packs"] if of["state"] in ("live", "candidate"))
        return packs + status["inline_bytes"]

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
