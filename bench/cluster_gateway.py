"""Files in the gateway's bucket, through three kinds of mounts."""
import contextlib
import json
import os
import re
import shutil
import time

from cluster_data import digest, untar, write
from cluster_hosts import PATIENCE, Meter, Mount, Store, rclone_gateway, wait_for
from common import Failed, Missing, need, run, say


class Gateway:
    """A mount of the gateway's bucket, with a test for when all data is in it."""

    def __init__(self, bench, number):
        self.bench, self.cluster = bench, bench.cluster
        self.place = f"{self.name.replace(',', '').replace(' ', '-')}-{os.getpid()}-{number}"
        self.base = bench.work / self.place
        self.mount = None

    def rclone(self, *words):
        return run(["rclone", *words], env={**os.environ, **rclone_gateway(self.cluster)})

    def has(self, files, size):
        """True if so many files with so many bytes are in S3."""
        told = json.loads(self.rclone("size", "--json", f"gw:{self.cluster.bucket}/{self.place}"))
        return told["bytes"] == size and told["count"] >= files

    def etag(self, name):
        """A value that changes with the object's content."""
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
        """The digest of the object in S3."""
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
        # Its process takes the mount point as its last argument, too.
        self.mount = Mount(self.cluster, "c0", self.base, command, inside=self.place)


class Ours(Gateway):
    name = "outrigger"
    options = ()

    def start(self):
        self.store = Store(self.bench, "bucket")
        self.prepare()
        self.mount = self.store.mount("c0", *self.options)

    def prepare(self):
        """Settings of the new store before it is mounted."""

    def settled(self, files, size):
        """All chunks that closes have left in the database are packed when the mount has ended."""
        self.mount.unmount()

    def rewritten(self, name, before):
        self.mount.unmount()

    def etag(self, name):
        return None

    def in_bucket(self, name):
        # Read by another host, from S3.
        other = self.store.mount("c1")
        return digest(other.dir / name)

    def end(self):
        if hasattr(self, "store"):
            self.store.end()


class Kept(Ours):
    """Names are cached for a second, and closing a file does not wait. Other mounts of buckets do
    so for longer."""
    how = "names kept for 1 s"
    name = f"outrigger, {how}"
    options = ("--names-for", "1", "--closes-within", "0.01")


class Blocks(Ours):
    """For files with random writes: unchanged data is not stored again with its neighbours."""
    how = "blocks of 4 KiB"
    name = f"outrigger, {how}"

    def prepare(self):
        self.store.run("c0", "policy", "set", "/", "chunker=fixed:4K")


def gateway(bench, number):
    kinds = [Ours, Kept, Blocks, Rclone, S3fs]
    turn = number % len(kinds)
    for kind in kinds[turn:] + kinds[:turn]:
        measures = {Kept: [gateway_tree], Blocks: [gateway_writes]}.get(kind, [gateway_tree, gateway_writes])
        for measure in measures:
            place = kind(bench, f"{number}-{measure.__name__[8:]}")
            try:
                place.start()
                measure(bench, place)
            except Missing as why:
                say(f"gateway  {kind.name}: left out: {why}")
            except Failed as error:
                # The other kinds are measured all the same.
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
    # Long enough that fio's preparation before its first write, some tenths of a second, is a small
    # part.
    size = bench.args.size // 2
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
