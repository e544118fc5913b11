"""Files in the gateway's bucket, by three ways of mounting it."""
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
    """A way to have files in the gateway's bucket: mounted, and a way to know when it is all there."""

    def __init__(self, bench, number):
        self.bench, self.cluster = bench, bench.cluster
        self.place = f"{self.name.replace(',', '').replace(' ', '-')}-{os.getpid()}-{number}"
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
    options = ()

    def start(self):
        self.store = Store(self.bench, "bucket")
        self.prepare()
        self.mount = self.store.mount("c0", *self.options)

    def prepare(self):
        """What is set in the new store before it is mounted."""

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


class Kept(Ours):
    """Names are believed for a second, and closing a file does not wait: what other mounts of buckets do for longer."""
    how = "names kept for 1 s"
    name = f"outrigger, {how}"
    options = ("--names-for", "1", "--closes-within", "0.01")


class Blocks(Ours):
    """For files that are written here and there: data that did not change are not stored again with those beside them."""
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
    # Long enough that what fio does before its first write, some tenths of a second, is little of it.
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
