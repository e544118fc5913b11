"""Storage hosts with an agent each, and one client: the measurements of active.py on them.

A host is a network namespace (scripts/cluster.sh). Metadata is in PostgreSQL on a separate host, packs are in a Ceph pool of one copy. Each host that
takes part has one OSD, and an agent with one slot. The client has a namespace, too, and a mount there. Bytes are counted at its interface, both ways,
headers included. Each measurement has a new store, so that no data is stored already.

| way | what the client does | who runs the program |
| --- | --- | --- |
| plain | copies the input into its mount, one file per host, side by side, each synced | nobody |
| none | copies the input into its mount, runs the program there, and writes its output there | the client |
| stream | sends a part of the input to each host (`run --in -`), which passes it to program and store as it comes, at the rate of the slower one | the hosts, while it comes |
| path | as plain; a rule for these files was made before (`rule add --on write --attach path`), and the mount serves followers | the hosts' agents: each file goes from the mount to one of them, and from there to program and store |
| beside | as plain; a rule for these files was made before (`rule add --on write --attach beside`) | the hosts' agents, over the stored part of each file while it is written |

Without a cluster `Here` stands in: one store in a directory, one agent, and no interface to count bytes at.
"""
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from common import MIB, REPOSITORY, Failed, Missing, of_machine, run, words_of

CLUSTER = REPOSITORY / "scripts/cluster.sh"
WAYS = ["plain", "none", "stream", "path", "beside"]
FOLLOWED = ["path", "beside"]
PORT = 7700


def together(jobs):
    """Runs functions side by side. The first failure fails all of them."""
    failures = []

    def one(job):
        try:
            job()
        except Exception as error:  # handed on below, whatever it is
            failures.append(error)

    threads = [threading.Thread(target=one, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# --- where it runs ---------------------------------------------------------------------------------------------


class Here:
    """Everything on this machine, without namespaces."""

    counts_bytes = False

    def __init__(self, args):
        self.outrigger, self.base = args.outrigger, args.work / "hosts"
        self.stores = 0

    def most(self):
        return 1

    def take_part(self, count):
        """From now on only these hosts store packs."""

    def store(self, *options):
        """Makes a new store with these options of `init`, and returns the environment for programs
        that use it."""
        self.stores += 1
        where = self.base / f"store-{self.stores}"
        where.parent.mkdir(parents=True, exist_ok=True)
        env = {"OUTRIGGER_STORE": str(where)}
        run(self.on("client", [self.outrigger, "init", *options]), env=self.env(env, "client"))
        return env

    def env(self, store, host):
        return {**os.environ, **store, "OUTRIGGER_CACHE": str(self.base / f"cache-{host}")}

    def on(self, host, command):
        """The command line that runs a command on a host."""
        return words_of(command)

    def address(self, host):
        return "127.0.0.1"

    def sent(self, host):
        """Bytes that a host has sent and received."""
        return 0, 0

    def end(self):
        shutil.rmtree(self.base, ignore_errors=True)


class Cluster(Here):
    """Hosts in network namespaces; see scripts/cluster.sh. A cluster that is not up is started, and
    ended later."""

    counts_bytes = True

    def __init__(self, args):
        super().__init__(args)
        if os.geteuid() != 0:
            raise Missing("hosts in network namespaces need root")
        self.began = subprocess.run([CLUSTER, "env"], capture_output=True, check=False).returncode != 0
        if self.began:
            osds = " ".join(str(number) for number in range(max(args.hosts)))
            done = subprocess.run([CLUSTER, "up"], env={**os.environ, "OUTRIGGER_OSDS": osds}, capture_output=True, check=False)
            if done.returncode == 3:
                raise Missing(done.stderr.decode().strip())
            if done.returncode:
                raise Failed(f"the cluster does not start: {done.stderr.decode()[-800:]}")
        script = f'eval "$({CLUSTER} env)" && env -0'
        lines = run(["bash", "-c", script]).split("\0")
        self.found = dict(line.split("=", 1) for line in lines if line.startswith(("OUTRIGGER_", "PG")))
        if "OUTRIGGER_TEST_POSTGRES" not in self.found:
            raise Missing("the cluster has no PostgreSQL (package postgresql)")
        self.conf = self.found["OUTRIGGER_TEST_RADOS"].split("conf=", 1)[1]
        self.osds = sorted(int(path.name.removeprefix("outrigger-h")) for path in Path("/run/netns").glob("outrigger-h[0-9]*"))
        self.stamp = f"{int(time.time())}_{os.getpid()}"
        self.client_up()
        self.ceph("config", "set", "global", "mon_allow_pool_size_one", "true")

    def ceph(self, *words):
        return run(["ceph", "-c", self.conf, "--connect-timeout", "30", *words])

    def client_up(self):
        if Path("/run/netns/outrigger-client").exists():
            return
        inside = ["ip", "-n", "outrigger-client"]
        run(["ip", "netns", "add", "outrigger-client"])
        run(["ip", "link", "add", "ov-client", "type", "veth", "peer", "name", "eth0", "netns", "outrigger-client"])
        run(["ip", "link", "set", "ov-client", "master", "outrigger0", "up"])
        run([*inside, "addr", "add", f"{self.address('client')}/24", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "link", "set", "lo", "up"])

    def most(self):
        return len(self.osds)

    def take_part(self, count):
        for osd in self.osds:
            self.ceph("osd", "in" if osd < count else "out", str(osd))
        self.drop_pool()
        self.ceph("osd", "pool", "create", "active", "32")
        # One copy, as on the paper's servers: traffic for a second copy is not the program's.
        self.ceph("osd", "pool", "set", "active", "size", "1", "--yes-i-really-mean-it")
        self.ceph("osd", "pool", "application", "enable", "active", "outrigger")
        # OSDs that come or go move other pools' objects. That traffic is not the program's either.
        until = time.monotonic() + 120
        while self.is_moving():
            if time.monotonic() > until:
                raise Failed("the cluster does not come to rest")
            time.sleep(0.5)

    def is_moving(self):
        states = json.loads(self.ceph("status", "--format", "json"))["pgmap"]["pgs_by_state"]
        passing = ("backfill", "recover", "peering", "creating", "activating", "unknown")
        return any(word in state["state_name"] for state in states for word in passing)

    def drop_pool(self):
        if "active" in self.ceph("osd", "pool", "ls").split():
            self.ceph("osd", "pool", "rm", "active", "active", "--yes-i-really-really-mean-it")

    def store(self, *options):
        self.stores += 1
        schema = f"active_{self.stamp}_{self.stores}"
        env = {"OUTRIGGER_STORE": f"{self.found['OUTRIGGER_TEST_POSTGRES']}?schema={schema}&sslmode=disable",
               "PGPASSWORD": self.found.get("PGPASSWORD", "")}
        packs = f"rados://active/{schema}?conf={self.conf}"
        run(self.on("client", [self.outrigger, "init", "--packs", packs, *options]), env=self.env(env, "client"))
        return env

    def on(self, host, command):
        # Each host has a name of its own, by which agents know which packs are local.
        named = 'echo "$1" >/proc/sys/kernel/hostname; shift; exec "$@"'
        return ["nsenter", f"--net=/run/netns/outrigger-{host}", "unshare", "--uts", "sh", "-c", named, "sh", host, *words_of(command)]

    def address(self, host):
        return "10.77.0.60" if host == "client" else f"10.77.0.{11 + int(host[1:])}"

    def sent(self, host):
        # This is the other end of the cable: bytes that the host sends are received here.
        at = Path(f"/sys/class/net/ov-{host}/statistics")
        return int((at / "rx_bytes").read_text()), int((at / "tx_bytes").read_text())

    def end(self):
        super().end()
        if self.began:
            subprocess.run([CLUSTER, "down"], capture_output=True, check=False)
        else:
            # Restores the state before this run.
            for osd in self.osds:
                self.ceph("osd", "in", str(osd))
            self.drop_pool()
        subprocess.run(["ip", "netns", "del", "outrigger-client"], capture_output=True, check=False)


# --- programs and their inputs ---------------------------------------------------------------------------------


class Work:
    """A program, its input as a file, and its output."""

    def __init__(self, name, program, arguments, source):
        self.name, self.program, self.arguments, self.source = name, program, arguments, source
        self.expected = None

    def own(self):
        return [self.program, *self.arguments]

    def component(self):
        return [f"@{self.name}", *self.arguments]

    def parts(self, count):
        """The input in so many files of whole lines, the same ones each time."""
        whole = self.source.read_bytes()
        parts, begin = [], 0
        for number in range(count):
            end = len(whole) * (number + 1) // count
            end = len(whole) if number + 1 == count else whole.rfind(b"\n", 0, max(end, begin + 1)) + 1
            end = max(end, begin)
            part = self.source.with_name(f"{self.source.name}.{count}.{number}")
            part.write_bytes(whole[begin:end])
            parts.append(part)
            begin = end
        return parts

    def expect(self):
        """Hash and length of the program's output."""
        if self.expected is None:
            with open(self.source, "rb") as stdin, subprocess.Popen(words_of(self.own()), stdin=stdin, stdout=subprocess.PIPE) as child:
                self.expected = hashed(child.stdout)
            if child.returncode:
                raise Failed(f"{self.name} itself fails")
        return self.expected


def hashed(stream):
    digest, length = hashlib.sha256(), 0
    while block := stream.read(MIB):
        digest.update(block)
        length += len(block)
    return digest.hexdigest(), length


# --- one store, with a client and agents -----------------------------------------------------------------------


class Site:
    """A new store with agents on so many hosts, mounted by the client."""

    def __init__(self, hosts, count, works, agents=True, mounted=True, serves=False):
        self.hosts, self.names = hosts, [f"h{number}" for number in range(count)]
        self.env, self.agents = hosts.store(), []
        self.point = hosts.base / "mnt"
        self.mounted = False
        self.log = open(hosts.base / "agents.log", "ab")
        for work in works:
            self("client", "component", "add", work.program)
        if agents:
            for name in self.names:
                command = hosts.on(name, [hosts.outrigger, "--quiet", "node", "--allow-root", "--name", name, "--slots", "1"])
                self.agents.append(subprocess.Popen(command, env=hosts.env(self.env, name), stdin=subprocess.DEVNULL,
                                                    stdout=self.log, stderr=self.log))
            self.until(lambda: all(name in self("h0", "node", "list") for name in self.names), "the agents")
        if mounted:
            self.point.mkdir(parents=True, exist_ok=True)
            # In a store of one machine the followers are local.
            serving = ["--serve-followers", f"{hosts.address('client')}:0"] if serves and hosts.counts_bytes else []
            self("client", "mount", *serving, self.point)
            self.mounted = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unmount()
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait()
        self.log.close()

    def __call__(self, host, *words):
        return run(self.hosts.on(host, [self.hosts.outrigger, *words]), env=self.hosts.env(self.env, host))

    def until(self, done, what, seconds=60):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise Failed(f"{what} did not come")
            time.sleep(0.1)

    def unmount(self):
        if self.mounted:
            self.mounted = False
            self("client", "unmount", self.point)

    def write(self, parts):
        """The client writes files side by side. Each is durable when this returns."""
        (self.point / "raw").mkdir(exist_ok=True)

        def one(part, number):
            with open(part, "rb") as source, open(self.point / f"raw/{number}", "wb") as target:
                shutil.copyfileobj(source, target, MIB)
                target.flush()
                os.fsync(target.fileno())

        together([lambda part=part, number=number: one(part, number) for number, part in enumerate(parts)])

    def check(self, work, paths):
        """Checks that the stored output is the program's."""
        wanted = work.expect()
        command = self.hosts.on("h0", [self.hosts.outrigger, "cat", *paths])
        with subprocess.Popen(command, env=self.hosts.env(self.env, "h0"), stdout=subprocess.PIPE) as child:
            found = hashed(child.stdout)
        if found != wanted:
            raise Failed(f"{work.name}: {found[1]} bytes that are not what it writes ({wanted[1]} bytes)")


def copy_of(site, work, count, _):
    begin = time.monotonic()
    site.write(work.parts(count))
    took = time.monotonic() - begin
    return took, took, None


def by_client(site, work, *_):
    begin = time.monotonic()
    site.write([work.source])
    with open(site.point / "raw/0", "rb") as stdin, open(site.point / "done", "wb") as stdout:
        if subprocess.run(words_of(work.own()), stdin=stdin, stdout=stdout, check=False).returncode:
            raise Failed(f"{work.name} failed in the mount")
        os.fsync(stdout.fileno())
    took = time.monotonic() - begin
    return took, took, ["done"]


def streamed(site, work, count, _):
    parts, hosts = work.parts(count), site.hosts
    takers = []
    for number, name in enumerate(site.names):
        words = [hosts.outrigger, "--quiet", "run", "--pattern", "1W->2W", "--in", "-", "--to", f"raw/{number}", "--out", f"done/{number}"]
        taker = [sys.executable, __file__, "take", PORT + number, *words, "--", *work.component()]
        takers.append(subprocess.Popen(hosts.on(name, taker), env=hosts.env(site.env, name), stdout=subprocess.PIPE))
    for taker in takers:
        taker.stdout.readline()
    begin = time.monotonic()
    together([lambda number=number, name=name: run(hosts.on("client", [sys.executable, __file__, "give", hosts.address(name), PORT + number, parts[number]]))
              for number, name in enumerate(site.names)])
    client = time.monotonic() - begin
    codes = [taker.wait() for taker in takers]
    if any(codes):
        raise Failed(f"{work.name} over streams: exit codes {codes}")
    return client, time.monotonic() - begin, [f"done/{number}" for number in range(count)]


def followed(site, work, count, attach):
    site("client", "rule", "add", "work", "--on", "write", "--attach", attach, "--pattern", "1W->2W", "--in", "raw/*", "--out", "done/{name}",
         "--", *work.component())
    # The mount reads the rules once a second.
    time.sleep(2)
    parts, begin = work.parts(count), time.monotonic()
    site.write(parts)
    client = time.monotonic() - begin
    site.until(lambda: len(json.loads(site("h0", "jobs", "--json"))["jobs"]) == count, "the jobs")
    for job in range(1, count + 1):
        site("h0", "job", "wait", job)
    return client, time.monotonic() - begin, [f"done/{number}" for number in range(count)]


HOW = {"plain": copy_of, "none": by_client, "stream": streamed, "path": followed, "beside": followed}


def measure(hosts, work, way, count):
    """Runs `work` in one way with `count` hosts: seconds of the client and of the whole, processor
    seconds of the machine, and bytes at the client's interface."""
    follows = HOW[way] is followed
    with Site(hosts, count, [work], agents=follows, mounted=way != "stream", serves=way == "path") as site:
        before, busy = hosts.sent("client"), of_machine()
        client, overall, paths = HOW[way](site, work, count, way)
        busy = of_machine() - busy
        site.unmount()
        after = hosts.sent("client")
        if paths:
            site.check(work, paths)
    found = {"client_s": client, "overall_s": overall, "machine_cpu_s": busy}
    if hosts.counts_bytes:
        found["client_bytes"] = sum(after) - sum(before)
    return found


def scale(hosts, work, limited, count, rate):
    """Programs that read at a limited rate, so that more hosts can add up than this machine has
    processors; and how much they read from other hosts."""
    with Site(hosts, count, [limited], mounted=False) as site:
        for number, part in enumerate(work.parts(count)):
            # One input for each host, stored on it if the engine can choose the host.
            placed = ["--place", site.names[number]] if hosts.counts_bytes else []
            site("client", "put", part, "--to", f"raw/{number}", *placed)
        stored = [hosts.sent(name)[1] for name in site.names]
        begin = time.monotonic()
        job = site("client", "run", "--detach", "--pattern", "1R->0", "--in", "raw/*", "--records", "lines", "--splits", max(1, 8 // count),
                   "--", f"@{limited.name}", str(rate)).strip()
        site("h0", "job", "wait", job)
        took = time.monotonic() - begin
        got = [hosts.sent(name)[1] - before for name, before in zip(site.names, stored)]
        packed = packed_bytes(site)
        told = json.loads(site("h0", "job", "show", job, "--json"))
    found = {"seconds": took, "bytes_per_s": work.source.stat().st_size / took, "limit_bytes_per_s": rate * 1e6 * count}
    if hosts.counts_bytes:
        # The programs' input, and all bytes that came to their hosts: also the data for the index,
        # the database's answers and Ceph's own traffic.
        found.update(fed_elsewhere=told["bytes_elsewhere"], fed=told["bytes_here"] + told["bytes_elsewhere"], remote_bytes=sum(got), packed_bytes=packed)
    return found


def packed_bytes(site):
    return json.loads(site("h0", "stats", "--json"))["stored_data_bytes"]


# --- the two ends of a stream ----------------------------------------------------------------------------------


def take(port, command):
    """Replaces this process by `command`, with the first client's data as its input."""
    with socket.create_server(("", int(port))) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    # The parent reads only one line.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(connection.fileno(), 0)
    os.execvp(command[0], command)


def give(address, port, path):
    """Sends a file, and ends when the other host has all of it."""
    with socket.create_connection((address, int(port))) as connection, open(path, "rb") as source:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        connection.sendfile(source)


if __name__ == "__main__":
    {"take": lambda words: take(words[0], words[1:]), "give": lambda words: give(*words)}[sys.argv[1]](sys.argv[2:])
