"""The file systems that mount.py compares."""
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from common import KIB, Failed, Missing, need, run


class Ext4:
    """A plain directory on the file system of --work, which need not be ext4."""

    name = "ext4"

    def __init__(self, args, work):
        self.args, self.base = args, work / self.name
        self.point = self.base / "mnt"

    def start(self):
        run(["rm", "-rf", self.base])
        self.point.mkdir(parents=True)
        self.create()

    def create(self):
        pass

    def cool(self):
        """Drops its data from memory."""
        os.sync()
        self.remount()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def remount(self):
        pass

    def settle(self):
        """Waits for its background work."""
        os.sync()

    def stop(self):
        pass

    def end(self):
        self.stop()
        run(["rm", "-rf", self.base])

    def space(self):
        """Allocated bytes."""
        self.settle()
        return int(run(["du", "-s", "-B1", self.point]).split()[0])

    def memory(self):
        return None


class Btrfs(Ext4):
    name = "btrfs"

    def create(self):
        need("mkfs.btrfs", "btrfs-progs")
        image = self.base / "image"
        with open(image, "wb") as file:
            file.truncate(self.args.btrfs_size)
        run(["mkfs.btrfs", "-q", image])
        self.image = image
        self.mount()

    def mount(self):
        try:
            run(["mount", "-o", "loop,compress=zstd:1", self.image, self.point])
        except Failed as error:
            raise Missing(f"btrfs cannot be mounted: {error}") from None

    def remount(self):
        run(["umount", self.point])
        self.mount()

    def stop(self):
        if os.path.ismount(self.point):
            run(["umount", self.point])

    def space(self):
        self.settle()
        run(["btrfs", "filesystem", "sync", self.point])
        out = run(["btrfs", "filesystem", "usage", "-b", self.point])
        # Metadata counts once: DUP depends on the profile, not on the data.
        data = int(re.search(r"Data,\w+:\s*Size:\d+, Used:(\d+)", out)[1])
        metadata = int(re.search(r"Metadata,\w+:\s*Size:\d+, Used:(\d+)", out)[1])
        return data + metadata


class Fuse(Ext4):
    """A mount whose process is a child of this one."""

    child = None
    peak = 0

    def mount(self):
        with open(self.base / "log", "ab") as log:
            self.child = subprocess.Popen([str(word) for word in self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 120
        while not os.path.ismount(self.point):
            if self.child.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.name}: no mount: {(self.base / 'log').read_text()[-600:]}")
            time.sleep(0.01)

    def memory(self):
        if self.child and self.child.poll() is None:
            status = Path(f"/proc/{self.child.pid}/status").read_text()
            self.peak = max(self.peak, int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * KIB)
        return self.peak

    def remount(self):
        self.stop()
        self.mount()

    def stop(self):
        if self.child is None:
            return
        self.memory()
        if os.path.ismount(self.point):
            run(["umount", self.point])
        try:
            code = self.child.wait(timeout=600)
        except subprocess.TimeoutExpired:
            self.child.send_signal(signal.SIGKILL)
            raise Failed(f"{self.name}: the process did not end within 600 s after unmounting") from None
        self.child = None
        if code:
            raise Failed(f"{self.name}: the process ended with {code}: {(self.base / 'log').read_text()[-600:]}")


class Bindfs(Fuse):
    name = "bindfs"

    def create(self):
        need("bindfs", "bindfs")
        (self.base / "below").mkdir()
        self.mount()

    def command(self):
        return ["bindfs", "-f", self.base / "below", self.point]


class Outrigger(Fuse):
    name, options = "outrigger", []

    def create(self):
        self.binary = Path(self.args.outrigger).resolve()
        if not os.access(self.binary, os.X_OK):
            raise Failed(f"no binary {self.binary}: cargo build --release, or --fs without outrigger")
        run([self.binary, "-s", self.base / "store", "init", *self.options])
        self.mount()

    def command(self):
        # PostgreSQL's user needs access.
        return [self.binary, "-s", self.base / "store", "mount", "--foreground", "-o", "allow_other",
                *self.args.mount_option, self.point]

    def space(self):
        # The unmount stores all staged data at the latest.
        self.remount()
        return int(run(["du", "-s", "-B1", self.base / "store"]).split()[0])


class Plain(Outrigger):
    name, options = "outrigger-plain", ["--no-encryption"]


KINDS = {kind.name: kind for kind in (Ext4, Btrfs, Bindfs, Outrigger, Plain)}
