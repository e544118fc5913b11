#!/usr/bin/env python3
"""The five operations of the QZFS paper on genomic data, and sorting by threads: on one machine, and with clients and storage servers on separate hosts.

    bench/genomes.py --outrigger target/release/outrigger --work DIR            everything; with servers as root, and Debian's Ceph and PostgreSQL
    bench/genomes.py --outrigger ... --work DIR --local                         one machine only
    bench/genomes.py --outrigger ... --work DIR --record                        keeps a record from which the evaluation draws figures 9 and 10

| where | what |
| --- | --- |
| one machine | a store in a directory, mounted: figure 9, where one machine was client and server |
| 1 client, 2 servers | the client in a network namespace, with a mount of a store whose metadata are in PostgreSQL on a host and whose packs are in a Ceph pool, one OSD on each of two hosts: figure 10a |
| 2 clients, 2 servers | two clients of the same store, each with files of its own: figure 10b |

| operation | what samtools does | writes |
| --- | --- | --- |
| converting | FASTQ to BAM | yes |
| viewing | BAM to text on standard output | no |
| sorting | by place, with little memory, so that it makes temporary files in the mount | yes |
| merging | two sorted files to one | yes |
| indexing | a sorted file | little |

Each client runs --processes processes, each with its own files. It mounts again before each operation, with an empty cache, so that reads come from the
servers. BAM is written uncompressed, so that the file system has something to compress. An operation ends when its output is durable. A mount
compresses after that, so the time until all is in packs is reported, too, and processor time is counted until then. The first round checks that the
output has the same reads as the input, and that sorted output is sorted.

QZFS compresses on the storage servers, and the paper reports their load. Here clients compress. So processor time of clients and servers is reported
separately, with the bytes at the clients' interfaces: they are compressed here, and uncompressed with QZFS. All hosts share this machine's processors.
"""
import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from active_hosts import Cluster, Here, together
from cluster_hosts import of_process
from common import Failed, Missing, Record, enter, record_options, run, say, words_of

OPERATIONS = ["converting", "viewing", "sorting", "merging", "indexing"]
SERVERS = 2


# --- inputs ----------------------------------------------------------------------------------------------------


class Inputs:
    """Files for each process of each client, made once in a directory. All differ, so that nothing
    is stored already."""

    def __init__(self, args):
        self.dir = args.work / "inputs"
        self.dir.mkdir(parents=True, exist_ok=True)
        if not shutil.which("samtools"):
            raise Missing("samtools is not installed (package samtools)")
        self.args = args

    def of(self, client, process):
        """Maps names in the mount to files."""
        first = 1000 * (client * self.args.processes + process) + 1
        found = {"reads.fastq": self.made(first, "fastq")}
        for number, (name, form) in enumerate([("aligned.bam", "bam"), ("one.bam", "sorted"), ("two.bam", "sorted")]
                                              + [(f"threads-{count}.bam", "bam") for count in self.args.threads]):
            found[name] = self.made(first + 1 + number, form)
        return found

    def made(self, seed, form):
        path = self.dir / f"{seed}-{self.args.reads}.{form}"
        if path.exists():
            return path
        text = self.dir / "text"
        with open(text, "wb") as out:
            kind = "fastq" if form == "fastq" else "sam"
            command = [self.args.workload, "reads", "--seed", seed, "--count", self.args.reads, "--format", kind]
            subprocess.run(words_of(command), stdout=out, check=True)
        if form == "fastq":
            text.rename(path)
            return path
        plain = self.dir / "plain"
        run(["samtools", "view", "-u", "-o", plain, text])
        if form == "sorted":
            run(["samtools", "sort", "-l", "0", "-o", self.dir / "sorted", plain], cwd=self.dir)
            plain = self.dir / "sorted"
        plain.rename(path)
        text.unlink()
        return path


def reads_of(path):
    """A digest of its reads in any order, their number, and whether they are sorted by place."""
    together_, count, place, is_sorted = 0, 0, 0, True
    with subprocess.Popen(["samtools", "view", str(path)], stdout=subprocess.PIPE) as child:
        for line in child.stdout:
            fields = line.split(b"\t")
            # Name, letters and qualities only, because a conversion of FASTQ knows no places.
            digest = hashlib.blake2b(fields[0] + b"\t" + fields[9] + b"\t" + fields[10].rstrip(b"\n"), digest_size=8).digest()
            together_ = (together_ + int.from_bytes(digest, "big")) % (1 << 64)
            count += 1
            is_sorted = is_sorted and int(fields[3]) >= place
            place = int(fields[3])
    if child.returncode:
        raise Failed(f"samtools cannot read {path}")
    return together_, count, is_sorted


# --- one store, and its clients --------------------------------------------------------------------------------


class Client:
    """A host that has mounted the store and works in it."""

    def __init__(self, hosts, store, number):
        self.hosts, self.number = hosts, number
        self.host = f"c{number}"
        self.point, self.cache = hosts.base / f"mnt-{self.host}", hosts.base / f"cache-{self.host}"
        self.point.mkdir(parents=True, exist_ok=True)
        self.env = {**hosts.env(store, self.host), "OUTRIGGER_CACHE": str(self.cache)}
        self.child = None

    def mount(self):
        """Mounts again, with an empty cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        command = self.hosts.on(self.host, [self.hosts.outrigger, "mount", "--foreground", self.point])
        self.log = self.hosts.base / f"log-{self.host}"
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while not os.path.ismount(self.point):
            if self.child.poll() is not None or time.monotonic() > until:
                raise Failed(f"no mount: {self.log.read_text(errors='replace')[-600:]}")
            time.sleep(0.01)

    def unmount(self):
        """Returns when all data is in packs, with the total processor time of its process."""
        run(["umount", self.point])
        _, status, usage = os.wait4(self.child.pid, 0)
        self.child.returncode = os.waitstatus_to_exitcode(status)
        code, self.child = self.child.returncode, None
        if code:
            raise Failed(f"a mount's process ended with {code}: {self.log.read_text(errors='replace')[-600:]}")
        return usage.ru_utime + usage.ru_stime

    def kill(self):
        if self.child is not None:
            subprocess.run(["umount", "-l", self.point], stderr=subprocess.DEVNULL, check=False)
            self.child.kill()
            self.child.wait()
            self.child = None

    def processor(self):
        return of_process(self.child.pid)


def samtools(on_host, where, words, out):
    """Runs samtools in a directory, and makes `out` durable."""
    done = subprocess.run(on_host(["samtools", *words]), cwd=where, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise Failed(f"samtools {' '.join(map(str, words))}: {done.stderr.decode(errors='replace')[-600:]}")
    if out:
        with open(where / out, "rb") as file:
            os.fsync(file.fileno())


def command_of(operation, threads=1):
    """The arguments of samtools, and the file that has to be durable."""
    return {
        "converting": (["import", "-u", "-o", "converted.bam", "reads.fastq"], "converted.bam"),
        "viewing": (["view", "aligned.bam"], None),
        "sorting": (["sort", "-l", "0", "-m", "8M", "-T", "part", "-o", "sorted.bam", "aligned.bam"], "sorted.bam"),
        "merging": (["merge", "-u", "-f", "merged.bam", "one.bam", "two.bam"], "merged.bam"),
        "indexing": (["index", "one.bam"], "one.bam.bai"),
        "threads": (["sort", "-l", "0", "-m", "8M", "-@", threads - 1, "-T", f"part-{threads}", "-o", f"sorted-{threads}.bam",
                     f"threads-{threads}.bam"], f"sorted-{threads}.bam"),
    }[operation]


# The files whose reads the output of each operation must have.
SAME = {"converting": (["reads.fastq"], "converted.bam"), "sorting": (["aligned.bam"], "sorted.bam"), "merging": (["one.bam", "two.bam"], "merged.bam")}


class Site:
    """A new store with inputs, and its clients."""

    def __init__(self, hosts, servers, codec, clients, inputs):
        self.hosts, self.servers = hosts, servers
        self.store = hosts.store("--codec", codec)
        self.clients = [Client(hosts, self.store, number) for number in range(clients)]
        self.inputs = [[inputs.of(client, process) for process in range(inputs.args.processes)] for client in range(clients)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.kill()

    def stats(self):
        host = self.clients[0]
        return json.loads(run(self.hosts.on(host.host, [self.hosts.outrigger, "stats", "--json"]), env=host.env))

    def each(self, work):
        """Runs side by side, for each process of each client, with its directory and its inputs."""
        jobs = []
        for client, of_client in zip(self.clients, self.inputs):
            for number, files in enumerate(of_client):
                where = client.point / f"{client.host}-{number}"
                jobs.append(lambda client=client, where=where, files=files: work(client, where, files))
        together(jobs)

    def put(self):
        """Puts inputs into the store through the mounts; returns their ratio."""
        for client in self.clients:
            client.mount()

        def copy(_, where, files):
            where.mkdir()
            for name, path in files.items():
                shutil.copyfile(path, where / name)

        self.each(copy)
        for client in self.clients:
            client.unmount()
        stats = self.stats()
        return stats["unique_bytes"] / stats["stored_data_bytes"]

    def measure(self, operation, threads, check):
        """Seconds until the output is durable and until it is in packs, processor seconds of mounts
        and servers, and bytes at the clients' interfaces."""
        for client in self.clients:
            client.mount()
        words, out = command_of(operation, threads)
        before, begin = self.look(), time.monotonic()
        mounts = [client.processor() for client in self.clients]
        self.each(lambda client, where, _: samtools(lambda command: self.hosts.on(client.host, command), where, words, out))
        wall = time.monotonic() - begin
        # A mount compresses data after acknowledging it, so its processor time is known when it has
        # ended.
        spent = sum(client.unmount() for client in self.clients) - sum(mounts)
        stored, after = time.monotonic() - begin, self.look()
        if check and operation in SAME:
            self.compare(operation)
        found = {"wall_s": wall, "stored_s": stored, "client_cpu_s": spent, "server_cpu_s": after[0] - before[0]}
        if self.hosts.counts_bytes:
            found["wire_bytes"] = after[1] - before[1]
        return found

    def look(self):
        return sum(of_process(pid) for pid in self.servers()), sum(sum(self.hosts.sent(client.host)) for client in self.clients)

    def compare(self, operation):
        """Checks that the output has the reads of the input."""
        sources, made = SAME[operation]

        def one(_, where, files):
            wanted = [reads_of(files[name]) if name.endswith(".bam") else reads_of_fastq(files[name]) for name in sources]
            found = reads_of(where / made)
            if found[:2] != (sum(one[0] for one in wanted) % (1 << 64), sum(one[1] for one in wanted)):
                raise Failed(f"{operation}: other reads come out than go in")
            if operation != "converting" and not found[2]:
                raise Failed(f"{operation}: what comes out is not sorted")

        for client in self.clients:
            client.mount()
        self.each(one)
        for client in self.clients:
            client.unmount()


def reads_of_fastq(path):
    together_, count = 0, 0
    with open(path, "rb") as file:
        while name := file.readline():
            letters, _, qualities = file.readline(), file.readline(), file.readline()
            digest = hashlib.blake2b(b"\t".join([name[1:].rstrip(), letters.rstrip(), qualities.rstrip()]), digest_size=8).digest()
            together_ = (together_ + int.from_bytes(digest, "big")) % (1 << 64)
            count += 1
    return together_, count


def below(args, inputs):
    """The same by one client on the stores' own file system: a bound that no mount passes."""
    found = {"operations": {}, "threads": {}}
    for _ in range(args.rounds):
        places = [args.work / f"below-{process}" for process in range(args.processes)]
        for process, where in enumerate(places):
            where.mkdir()
            for name, path in inputs.of(0, process).items():
                shutil.copyfile(path, where / name)
        for operation, threads in [*((operation, 1) for operation in OPERATIONS), *(("threads", count) for count in args.threads)]:
            words, out = command_of(operation, threads)
            begin = time.monotonic()
            together([lambda where=where: samtools(words_of, where, words, out) for where in places])
            took = {"wall_s": time.monotonic() - begin}
            if operation == "threads":
                found["threads"].setdefault(str(threads), []).append(took)
            else:
                found["operations"].setdefault(operation, []).append(took)
        for where in places:
            shutil.rmtree(where)
    return found


# --- all of it -------------------------------------------------------------------------------------------------


def arrangement(hosts, servers, clients, args, inputs):
    """Each round runs all codecs, so that a machine that becomes slower slows all of them."""
    found = {codec: {"ratio": [], "operations": {}, "threads": {}} for codec in args.codecs}
    for round_ in range(args.rounds):
        for codec in args.codecs:
            with Site(hosts, servers, codec, clients, inputs) as site:
                of = found[codec]
                of["ratio"].append(site.put())
                for operation in OPERATIONS:
                    of["operations"].setdefault(operation, []).append(site.measure(operation, 1, round_ == 0))
                for count in args.threads:
                    of["threads"].setdefault(str(count), []).append(site.measure("threads", count, False))
            said = ", ".join(f"{name} {of['operations'][name][-1]['wall_s']:.2f}" for name in OPERATIONS)
            say(f"{clients} clients, {codec}: ratio {of['ratio'][-1]:.2f}; {said} s; sorting by threads "
                + ", ".join(f"{of['threads'][str(count)][-1]['wall_s']:.2f}" for count in args.threads) + " s")
    return found


def servers_of(hosts):
    """The storage servers' processes."""
    directory = Path(hosts.conf).parent

    def pids():
        osds = [int(file.read_text()) for file in directory.glob("run/osd.*.pid")]
        return [*osds, int((directory / "postgres/postmaster.pid").read_text().split()[0])]

    return pids


def middle(rounds, key="wall_s"):
    return statistics.median(one[key] for one in rounds)


def markdown(report):
    info = report["machine"]
    lines = [f"# Genomic operations with clients and servers, {report['date']}", "",
             f"`bench/genomes.py`, revision {report['revision']}, on {info['cpu']} with {info['cpus']} processors, which all hosts share, load {info['load'][0]:.2f} when it "
             f"began. {report['processes']} processes a client, {report['reads']} reads a file, {report['rounds']} rounds, medians. Seconds; behind the stroke until all is in packs; in "
             "brackets processor seconds of the mounts and of the servers. QZFS compresses on servers; here clients do.", ""]
    for name, one in report["arrangements"].items():
        codecs = list(one)
        lines += [f"## {name}", "", "| | " + " | ".join(codecs) + " |", "| --- |" + " ---: |" * len(codecs)]
        lines.append("| stored at 1 / | " + " | ".join(f"{statistics.median(one[codec]['ratio']):.2f}" for codec in codecs) + " |")

        def cell(rounds):
            return f"{middle(rounds):.2f} / {middle(rounds, 'stored_s'):.2f} ({middle(rounds, 'client_cpu_s'):.2f} + {middle(rounds, 'server_cpu_s'):.2f})"

        lines.append("| file system below, all five | " + f"{sum(middle(rounds) for rounds in report['below']['operations'].values()):.2f} |" + " |" * (len(codecs) - 1))
        for operation in OPERATIONS:
            lines.append(f"| {operation} | " + " | ".join(cell(one[codec]["operations"][operation]) for codec in codecs) + " |")
        for count in one[codecs[0]]["threads"]:
            lines.append(f"| sorting, threads: {count} | " + " | ".join(cell(one[codec]["threads"][count]) for codec in codecs) + " |")
        if "wire_bytes" in one[codecs[0]]["operations"]["converting"][0]:
            wire = [sum(middle(one[codec]["operations"][operation], "wire_bytes") for operation in OPERATIONS) / 1e6 for codec in codecs]
            lines.append("| at the clients' interfaces, all five, MB | " + " | ".join(f"{mb:.0f}" for mb in wire) + " |")
        lines.append("")
    lines += [f"Left out: {part} ({why})." for part, why in report["left_out"].items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", required=True, type=Path, help="the program, a release build")
    parser.add_argument("--workload", type=Path, help="outrigger-workload [default: beside it]")
    parser.add_argument("--work", required=True, type=Path, help="a directory for stores and inputs")
    parser.add_argument("--local", action="store_true", help="one machine only, no cluster")
    parser.add_argument("--reads", type=int, default=100_000, help="in each file: a quarter of a KB each")
    parser.add_argument("--processes", type=int, default=2, help="of each client")
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["none", "gzip:6", "zstd:1", "auto"])
    parser.add_argument("--threads", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4, 8], help="of each sorting process")
    parser.add_argument("--rounds", type=int, default=3)
    record_options(parser)
    args = parser.parse_args()
    args.outrigger, args.work = args.outrigger.absolute(), args.work.absolute()
    args.workload = (args.workload or args.outrigger.with_name("outrigger-workload")).absolute()
    args.hosts = [SERVERS]  # for a cluster that is begun
    args.work.mkdir(parents=True, exist_ok=True)
    record = Record("genomes", args, markdown, local=args.local, reads=args.reads, processes=args.processes, servers=SERVERS, arrangements={}, left_out={})
    report = record.said

    def keep(name, found):
        report["arrangements"][name] = found
        record.keep()

    inputs = Inputs(args)
    report["below"] = below(args, inputs)
    here = Here(args)
    try:
        keep("one machine", arrangement(here, lambda: [], 1, args, inputs))
    finally:
        here.end()
    if not args.local:
        try:
            hosts = Cluster(args)
        except Missing as missing:
            report["left_out"]["clients and servers"] = str(missing)
        else:
            try:
                hosts.take_part(SERVERS)
                for clients in (1, 2):
                    name = f"{clients} {'client' if clients == 1 else 'clients'}, {SERVERS} servers"
                    keep(name, arrangement(hosts, servers_of(hosts), clients, args, inputs))
            finally:
                hosts.end()
    record.end()


if __name__ == "__main__":
    enter(main)
