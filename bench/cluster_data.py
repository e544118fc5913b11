"""Data that `cluster.py` writes; writing, reading and comparing files."""
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from common import run


class Data:
    """Files in memory, made from seeds."""

    def __init__(self, bench):
        self.bench, self.dir = bench, Path(tempfile.mkdtemp(prefix="outrigger-bench-", dir="/dev/shm"))

    def stream(self, seed, size):
        """New data, half of which is compressible."""
        path = self.dir / f"stream-{seed}-{size}"
        if not path.exists():
            with open(path, "wb") as out:
                subprocess.run([self.bench.workload, "stream", "--seed", str(seed), "--len", str(size), "--compress", "0.5"],
                               stdout=out, check=True)
        return path

    def forget(self, path):
        path.unlink()

    def tar(self):
        """The tree with files and directories only, because some file systems here have no
        symlinks. (path, files, bytes)"""
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
        """The tree, for comparison."""
        path = self.dir / "unpacked"
        if not path.exists():
            path.mkdir()
            untar(self.tar()[0], path)
        return path

    def images(self):
        """Consecutive images of a computation."""
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
    """Writes bytes and makes them durable at the end."""
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
