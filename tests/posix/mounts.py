"""Stores to test in: local (a directory), or shared (PostgreSQL, and packs in a directory)."""
import os
import shutil
import subprocess
import time
from pathlib import Path

HELPER = Path("/sbin/mount.fuse.outrigger")
# mount(8) drops `suid` and `dev`: it passes only what differs from its own defaults. A mount that
# has just ended is still storing.
SCRIPT = """#!/bin/sh
store=$1 dir=$2 options=suid,dev
shift 2
while [ $# -gt 0 ]; do
    case $1 in -o) options=$options,$2; shift 2 ;; -t | -N) shift 2 ;; *) shift ;; esac
done
# The kernel alone does that.
case ,$options, in *,remount,*) exec mount -i -o "$options" "$dir" ;; esac
export OUTRIGGER_CACHE={cache}
for try in $(seq 240); do
    said=$('{outrigger}' -s "$store" mount "$dir" -o "$options" 2>&1) && exit 0
    case $said in *'try again in a moment'*) sleep 0.5 ;; *) break ;; esac
done
echo "$said" >&2
exit 32
"""


def output(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


class Stores:
    """Makes stores. While it lives, `mount -t fuse.outrigger STORE DIR` works."""

    def __init__(self, kind, outrigger, work):
        self.kind, self.outrigger, self.work = kind, Path(outrigger).resolve(), Path(work) / kind
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.env = os.environ | {"OUTRIGGER_CACHE": str(self.work / "cache")}
        self.server = Server(self.work / "postgres") if kind == "shared" else None
        self.mounted = []
        if HELPER.exists() or HELPER.is_symlink():
            raise SystemExit(f"{HELPER} is there already: it would be replaced; remove it first")
        HELPER.write_text(SCRIPT.format(outrigger=self.outrigger, cache=self.work / "cache"))
        HELPER.chmod(0o755)

    def make(self, name):
        """Makes a store; returns its name for `outrigger -s` and `mount`."""
        if self.server is None:
            store, more = str(self.work / name), []
        else:
            self.server.sql(f"CREATE DATABASE {name}")
            (self.work / f"{name}-packs").mkdir()
            store, more = self.server.url(name), ["--packs", f"file:{self.work}/{name}-packs"]
        output([self.outrigger, "-s", store, "init", *more], env=self.env)
        return store

    def mount(self, store, options="allow_other"):
        """Mounts a store, and returns the mount point."""
        point = self.work / "mnt" / str(len(self.mounted))
        point.mkdir(parents=True, exist_ok=True)
        output(["mount", "-t", "fuse.outrigger", "-o", options, store, point])
        self.mounted.append(point)
        return point

    def unmount(self, point):
        output([self.outrigger, "unmount", point], env=self.env)

    def check(self, store):
        """The findings of `check --read-data`; empty if there are none."""
        done = subprocess.run([self.outrigger, "-s", store, "check", "--read-data"], env=self.env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        return "" if done.returncode == 0 else f"check --read-data: exit code {done.returncode}: {done.stdout.strip()}"

    def close(self):
        for point in self.work.glob("mnt/*"):
            subprocess.run(["umount", "-l", point], stderr=subprocess.DEVNULL, check=False)
        if self.server:
            self.server.stop()
        HELPER.unlink()
        shutil.rmtree(self.work, ignore_errors=True)


class Server:
    """A separate PostgreSQL, which runs as user `postgres` because it refuses root."""

    def __init__(self, data):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        if not found:
            raise SystemExit("PostgreSQL is missing: apt-get install postgresql")
        self.bin, self.data, self.port = found[-1], data, 20000 + os.getpid() % 20000
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        for above in data.parents:
            os.chmod(above, above.stat().st_mode | 0o011) if above.stat().st_mode & 0o011 != 0o011 else None
        self.run("initdb", "-D", data / "d", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        with open(data / "d" / "postgresql.conf", "a", encoding="utf-8") as config:
            config.write(f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = '{data}'\n"
                         "max_connections = 200\n")
        self.run("pg_ctl", "-D", data / "d", "-w", "-l", data / "log", "start")

    def run(self, program, *words):
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", self.bin / program, *words]
        return subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def sql(self, text):
        self.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.data, "-p", str(self.port), "-c", text)

    def url(self, database):
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    def stop(self):
        try:
            self.run("pg_ctl", "-D", self.data / "d", "-m", "immediate", "stop")
        except subprocess.CalledProcessError:
            time.sleep(1)
