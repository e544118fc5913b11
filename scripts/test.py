#!/usr/bin/env python3
"""Builds the workspace's tests, runs them, and says in one line how many passed, failed and were skipped.

    test.py [--slow] [FILTER...]     the quick tests (`--slow`: only those marked `slow`) whose names contain a FILTER
    test.py --slowest [N]            the slowest tests of the last run

Cargo runs one executable after the other, each with a thread per processor. Many tests wait (for a server, a lease, a child), so this
runs the two largest executables, all others, and the documentation's examples side by side, each with two threads per processor.
Tests create and remove thousands of small files, for which ext4 takes a tenth of the processor. So they work in memory (/dev/shm)
if it has room. `TMPDIR=/var/tmp` gives them a disk. With `OUTRIGGER_REQUIRE=1` the run fails if a test was skipped for something
that could be installed (crates/workload/src/skip.rs). Times and skips are kept in target/tests/.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tests"
CARGO = ["cargo"]
THREADS = int(os.environ.get("TEST_THREADS", min(16, 2 * (os.cpu_count() or 1))))
LINE = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored.*?)(?: <([\d.]+)s>)?$")


# The free memory that tests need for files in memory.
MEMORY_MIN = 6 << 30


def in_memory():
    """A directory in memory for the tests' files, which everybody may enter like /tmp; None if
    there is none, or if TMPDIR names one."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not memory.is_dir():
        return None
    about = os.statvfs(memory)
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    free = min(about.f_bavail * about.f_frsize, int(available[1]) << 10 if available else 0)
    if about.f_flag & os.ST_NOEXEC or free < MEMORY_MIN or not os.access(memory, os.W_OK):
        return None
    made = tempfile.TemporaryDirectory(prefix="otr-", dir=memory, ignore_cleanup_errors=True)
    os.chmod(made.name, 0o1777)
    os.environ["TMPDIR"] = made.name
    return made


# Benchmarks that check their own answers when they run without arguments.
BENCHES = ["transport", "live", "index", "stages", "card", "puts", "staging"]


def keys_elsewhere():
    """A directory for the keys of the tests' stores, so that none come into the user's own."""
    made = tempfile.TemporaryDirectory(prefix="otr-keys-", ignore_cleanup_errors=True)
    os.environ["XDG_CONFIG_HOME"] = made.name
    return made


def executables(slow):
    """The executables to run: (crate, kind, name, path, working directory)."""
    build = ["test", "--workspace", "--all-features", "--no-run"]
    if slow:
        build += ["--tests", "--examples", *(f"--bench={name}" for name in BENCHES)]
    if subprocess.run([*CARGO, *build], cwd=ROOT).returncode:
        sys.exit("the tests could not be built")
    told = subprocess.run([*CARGO, *build, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in told.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            target = message["target"]
            yield folder.name, target["kind"][0], target["name"], message["executable"], folder


class Run:
    """All executables of one run, and the results of their tests."""

    def __init__(self, slow, filters):
        self.arguments = ["-Zunstable-options", "--report-time", f"--test-threads={THREADS}", *filters]
        if slow:
            # Tests on a cluster have a script that starts one.
            self.arguments += ["--ignored", "--skip=cluster"]
        self.slow, self.filters = slow, filters
        self.tests, self.broken, self.lock = [], [], threading.Lock()
        self.skips = KEPT / "skipped"
        self.skips.write_text("")

    def one(self, crate, kind, name, path, folder):
        env = dict(os.environ, CARGO_MANIFEST_DIR=str(folder), RUSTC_BOOTSTRAP="1", OUTRIGGER_SKIPPED=str(self.skips))
        bench = kind == "bench"
        if bench and self.filters:
            return
        began = time.monotonic()
        command = [path] if bench else [path, *self.arguments]
        # A test's standard error must not come between the words of a result line.
        child = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, errors="replace")
        label = f"{crate} {name}" if kind in ("test", "bench") else f"{crate} src"
        found = [] if bench else [(f"{label} {m[1]}", m[2], float(m[3] or 0)) for m in map(LINE.match, child.stdout.splitlines()) if m]
        if bench:
            found = [(label, "FAILED" if child.returncode else "ok", time.monotonic() - began)]
        passed = sum(how == "ok" for _, how, _ in found)
        with self.lock:
            self.tests += found
            print(f"{label}: {passed} passed in {time.monotonic() - began:.0f} s", flush=True)
            if child.returncode:
                self.broken.append(label)
                print(child.stdout, child.stderr, sep="\n", flush=True)

    def documentation(self):
        if self.slow or self.filters:
            return
        command = [*CARGO, "test", "--workspace", "--all-features", "--doc", "--quiet"]
        child = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        passed = sum(int(count) for count in re.findall(r"test result: \w+\. (\d+) passed", child.stdout))
        with self.lock:
            self.tests += [("documentation", "ok", 0.0)] * passed
            print(f"examples of the documentation: {passed} passed", flush=True)
            if child.returncode:
                self.broken.append("documentation")
                print(child.stdout, flush=True)

    def close(self):
        """Prints skipped tests and the closing line; returns true if all is well."""
        skipped = {"could": {}, "cannot": {}}
        for line in self.skips.read_text().splitlines():
            test, kind, why = line.split("\t", 2)
            skipped[kind].setdefault(why, set()).add(test)
        failed = [name for name, how, _ in self.tests if how == "FAILED"]
        for name in failed:
            print(f"failed: {name}")
        for label in self.broken:
            print(f"ended badly: {label}")
        for kind, what in [("cannot", "this machine cannot"), ("could", "skipped")]:
            for why, tests in sorted(skipped[kind].items(), key=lambda one: -len(one[1])):
                print(f"{what}, in {len(tests)} tests: {why}")
        KEPT.joinpath("times.json").write_text(json.dumps(self.tests))
        count = len(failed) or len(self.broken)
        left, beyond = (len(set().union(*skipped[kind].values())) for kind in ("could", "cannot"))
        # An executable counts a skipped test as passed.
        passed = sum(how == "ok" for _, how, _ in self.tests) - left
        cannot = f" ({beyond} of them not wholly: this machine cannot)" if beyond else ""
        print(f"{passed} passed{cannot}, {count} failed, {left} skipped", flush=True)
        return not self.broken and not failed and passed > 0


def slowest(count):
    tests = json.loads(KEPT.joinpath("times.json").read_text())
    for name, _, seconds in sorted(tests, key=lambda test: -test[2])[:count]:
        print(f"{seconds:8.2f} s  {name}")
    print(f"{sum(test[2] for test in tests):8.0f} s  all {len(tests)}, one after the other")


def main(arguments):
    if arguments[:1] == ["--slowest"]:
        return slowest(int(arguments[1]) if arguments[1:] else 30)
    KEPT.mkdir(parents=True, exist_ok=True)
    slow = "--slow" in arguments
    found = sorted(executables(slow), key=lambda one: one[1] == "test")
    memory, keys = in_memory(), keys_elsewhere()
    run = Run(slow, [argument for argument in arguments if argument != "--slow"])
    lanes = {"cli": [], "store": [], "others": []}
    for one in found:
        lanes[one[0] if one[0] in lanes else "others"].append(one)
    threads = [threading.Thread(target=lambda lane=lane: [run.one(*one) for one in lane]) for lane in lanes.values()]
    threads.append(threading.Thread(target=run.documentation))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_well = run.close()
    keys.cleanup()
    if memory:
        memory.cleanup()
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
