"""A client that works in a mount while programs run on the same host: the papers' competing application.

The client reads blocks of a stored file at random places, none of them in the kernel's memory, and after each read writes a block to a file of its own, for as long as the job runs. There are three ways:

| way | what runs beside the client |
| --- | --- |
| alone | nothing, for --foreground-s seconds |
| beside | a job of an agent that never yields (`node --yield-above 0`) |
| yielding | the same job of an agent that yields (`node --yield-above 5 --idle`) |

`job` is the job without a client. For each way: median and 95th percentile of the latency of reads and of writes, the client's rate, and the job's. Only the ratios matter; the numbers are this machine's.
"""
import json
import os
import random
import statistics
import subprocess
import threading
import time

from common import MIB, Failed, Missing, run

BLOCK = 64 << 10
WAYS = {"alone": None, "beside": ["--yield-above", "0"], "yielding": ["--yield-above", "5", "--idle"]}


def at(values, part):
    """A quantile of a list."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


class Client(threading.Thread):
    """Reads and writes in the mount until it is told to stop."""

    def __init__(self, mount, size):
        super().__init__(daemon=True)
        self.mount, self.size, self.stop = mount, size, threading.Event()
        self.reads, self.writes, self.failed, self.secs = [], [], None, 0

    def run(self):
        try:
            self.work()
        except OSError as error:
            self.failed = error

    def work(self):
        rng, block = random.Random(11), os.urandom(BLOCK)
        source = os.open(self.mount / "theirs", os.O_RDONLY)
        own = os.open(self.mount / "own", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        begin = time.monotonic()
        try:
            while not self.stop.is_set():
                place = rng.randrange(max(1, self.size // BLOCK)) * BLOCK
                os.posix_fadvise(source, place, BLOCK, os.POSIX_FADV_DONTNEED)
                before = time.monotonic()
                os.pread(source, BLOCK, place)
                between = time.monotonic()
                # It rewrites 64 MiB again and again, so that the file does not grow with the job's
                # time.
                os.pwrite(own, block, len(self.writes) * BLOCK % (64 * MIB))
                self.reads.append(between - before)
                self.writes.append(time.monotonic() - between)
                time.sleep(0.002)
        finally:
            self.secs = time.monotonic() - begin
            os.close(own)
            os.close(source)

    def end(self):
        self.stop.set()
        self.join()
        if self.failed or not self.reads:
            raise Failed(f"the client in the mount failed: {self.failed}")
        of = lambda times: {"median_ms": statistics.median(times) * 1000, "p95_ms": at(times, 0.95) * 1000}  # noqa: E731
        return {"reads": of(self.reads), "writes": of(self.writes), "bytes_per_s": 2 * BLOCK * len(self.reads) / self.secs, "secs": self.secs}


class Mounted:
    """A mounted store with the job's input, and with a file that the client reads."""

    def __init__(self, args):
        base = args.work / "foreground"
        base.mkdir(parents=True, exist_ok=True)
        self.point, self.env = base / "mnt", {**os.environ, "OUTRIGGER_STORE": str(base / "store"), "OUTRIGGER_CACHE": str(base / "cache")}
        self.outrigger, self.size = args.outrigger, args.numbers.stat().st_size
        self("init")
        self("put", args.numbers, "--to", "numbers")
        theirs = base / "theirs"
        rng = random.Random(12)
        theirs.write_bytes(rng.randbytes(self.size))
        self("put", theirs, "--to", "theirs")
        self.point.mkdir(exist_ok=True)
        self("mount", self.point)

    def __call__(self, *words):
        return run([self.outrigger, *words], env=self.env)

    def end(self):
        self("unmount", self.point)

    def job(self, options, client):
        """The job's rate, run by its own agent, beside the client if there is one; and the client's
        numbers."""
        agent = subprocess.Popen([self.outrigger, "node", "--allow-root", "--name", "fg", *options], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not json.loads(self("node", "list", "--json"))["nodes"]:
                time.sleep(0.05)
            if client:
                client.start()
            begin = time.monotonic()
            # Enough splits to give each processor a few, whatever the size.
            job = self("run", "--detach", "--sandbox", "off", "--in", "numbers", "--out", "sum", "--records", "lines", "--splits", "16",
                       "--", "awk", '{s+=$1*2} END {printf "%.3f\\n", s}').strip()
            self("job", "wait", job)
            secs = time.monotonic() - begin
            found = {"job_s": secs, "job_bytes_per_s": self.size / secs}
            if client:
                found |= client.end()
            return found
        finally:
            agent.terminate()
            agent.wait()


def foreground(args, report):
    if not os.access("/dev/fuse", os.W_OK):
        raise Missing("this user cannot open /dev/fuse")
    mounted = Mounted(args)
    try:
        for _ in range(args.rounds):
            for way, options in WAYS.items():
                client = Client(mounted.point, mounted.size)
                if options is None:
                    client.start()
                    time.sleep(args.foreground_s)
                    found = client.end()
                else:
                    found = mounted.job(options, client)
                report.setdefault(way, []).append(found)
            report.setdefault("job", []).append(mounted.job(WAYS["beside"], None))
    finally:
        mounted.end()


def rows_of(found, middle):
    """Rows of the table: ratios to the client alone, and to the job alone."""
    alone = found["alone"][0]
    for way in ("beside", "yielding"):
        for what in ("reads", "writes"):
            for key, name in (("median_ms", "median"), ("p95_ms", "95th percentile")):
                of = lambda ones: statistics.median(one[what][key] for one in ones)  # noqa: E731
                yield f"a client's {what}, {name}, with a job {way}: over alone ({of(found['alone']):.2f} ms)", of(found[way]) / of(found["alone"])
        yield f"the client's rate with a job {way}: over alone ({alone['bytes_per_s'] / 1e6:.1f} MB/s)", middle(found[way], "bytes_per_s") / middle(found["alone"], "bytes_per_s")
        yield f"the job's rate {way}: over without a client ({middle(found['job'], 'job_bytes_per_s') / 1e6:.1f} MB/s)", middle(found[way], "job_bytes_per_s") / middle(found["job"], "job_bytes_per_s")
