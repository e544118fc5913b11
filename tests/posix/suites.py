#!/usr/bin/env python3
"""Runs test suites of others on mounts of both kinds, compares them with lists of allowed failures, and writes a record.

    sudo tests/posix/suites.py --outrigger BINARY [--built DIR] [--mounts local,shared] [--suites pjdfstest,rs,xfstests,load]
                               [--xfstests "generic/001 ..."] [--record DIR] [--work DIR]

Run `tests/posix/fetch.sh DIR` first: it fetches and builds them. `load` is fsx, fsstress and stress-ng (load.py), and runs only if it is named.
Results of each suite on each kind of mount are kept in DIR/outcome; the record has all results there. In the lists (`pjdfstest.exclusions`,
`rs.exclusions`, `xfstests.exclusions`) each test that may fail has a reason: `na`, it needs something that such a mount does not offer, or `ours`, it is
our fault; `skip` is not run at all. An unlisted failure is an error, and so is a listed test that passes. Exit code: 0 as expected, 1 not, 2 usage.
"""
import argparse
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import load
import pjdfstest
import record
from mounts import Stores

HERE = Path(__file__).resolve().parent
# If a suite is silent for so long, its present test is ended, and has failed.
STUCK = 900
USERS = {"rs": ["tests", "pjdfstest"], "xfstests": ["fsgqa", "fsgqa2", "123456-fsgqa"]}


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def users(suite):
    """The users that a suite works as."""
    have = {user.pw_name for user in pwd.getpwall()}
    for name in USERS.get(suite, []):
        if name not in have:
            # One of the tests is about names that begin with a digit.
            subprocess.run(["useradd", "--badname", "-m", name], check=True)


def listed(suite, kind):
    """{test: (class, reason)} of allowed failures on this kind of mount."""
    if suite == "load":
        return {}
    if suite == "pjdfstest":
        files = pjdfstest.exclusions(HERE / "pjdfstest.exclusions")
        return {f"{file}:{number}": ("na", why) for file, numbers in files.items() for number, why in numbers.items()}
    found = {}
    for at, line in enumerate((HERE / f"{suite}.exclusions").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(None, 3)
        if len(words) < 4 or words[1] not in ("both", "local", "shared") or words[2] not in ("na", "ours", "skip"):
            sys.exit(f"{suite}.exclusions:{at}: TEST both|local|shared na|ours|skip REASON expected")
        if words[1] in ("both", kind):
            found[words[0]] = (words[2], words[3])
    return found


def judge(results, may_fail):
    """Each result as (state, reason), after a comparison with the list."""
    judged = {}
    for name, (state, reason) in results.items():
        match state, may_fail.get(name):
            case "failed", (kind, why) if kind in ("na", "ours"):
                judged[name] = (kind, why)
            case "passed", (kind, why) if kind in ("na", "ours"):
                judged[name] = ("failed", f"passes, but is listed: {why}")
            case _:
                judged[name] = (state, reason)
    for name, (kind, why) in may_fail.items():
        if kind == "skip":
            judged[name] = ("na", why)
        elif name not in results:
            judged[name] = ("failed", "is listed, but there is no such test")
    return judged


# --- the suites: each gives {test: (passed|failed|na, reason)} ---------------------------------------------------


def run_pjdfstest(built, stores, _options):
    point = stores.mount(stores.make("pjdfstest"))
    results = {}
    for script in sorted((built / "pjdfstest" / "tests").rglob("*.t")):
        file = str(script.relative_to(built / "pjdfstest" / "tests"))
        done, wrong, skipped = pjdfstest.run(script, point)
        if wrong:
            results[file] = ("failed", wrong)
        if skipped:
            results[file] = ("na", "the suite does not run it on this system")
        for number, (good, text) in done.items():
            results[f"{file}:{number}"] = ("passed" if good else "failed", text)
    stores.unmount(point)
    return results


def run_rs(built, stores, _options):
    point = stores.mount(stores.make("rs"))
    config = stores.work / "rs.toml"
    config.write_text("""
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"], ["pjdfstest", "pjdfstest"]]
""")
    second = Path("/dev/shm/posix-second")
    second.mkdir(exist_ok=True)
    command, results = [built / "rs" / "bin" / "pjdfstest", "-c", config, "-p", point, "-s", second], {}
    # Tests that remount read-only run last, because some other tests leave files open.
    for patterns in ([], ["erofs"]):
        last = None
        for line in lines_of([*command, *patterns], {"RUST_BACKTRACE": "0", "NO_COLOR": "1"}, stores.work / "rs.log"):
            if found := re.match(r"(\w+(?:::\w+)+)\s+(ok|FAILED|skipped)", line):
                last = found[1]
                results[last] = ({"ok": "passed", "skipped": "na"}.get(found[2], "failed"), "")
            elif last and line.startswith("\t") and not results[last][1]:
                results[last] = (results[last][0], line.strip())
    stores.unmount(point)
    second.rmdir()
    return results


def run_xfstests(built, stores, options):
    suite = built / "xfstests"
    test, scratch = stores.make("test"), stores.make("scratch")
    points = [stores.work / "mnt" / name for name in ("xfs-test", "xfs-scratch")]
    for point in points:
        point.mkdir(parents=True)
    rights = "allow_other,suid,dev"
    config = stores.work / "local.config"
    config.write_text(f"""
export FSTYP=fuse FUSE_SUBTYP=.outrigger
export TEST_DEV={test} TEST_DIR={points[0]} TEST_FS_MOUNT_OPTS=-o{rights}
export SCRATCH_DEV={scratch} SCRATCH_MNT={points[1]} MOUNT_OPTIONS=-o{rights}
export RESULT_BASE={stores.work}/results
""")
    left_out = [name for name, (kind, _) in listed("xfstests", stores.kind).items() if kind == "skip"]
    command = ["./check", "-fuse", *(["-e", " ".join(left_out)] if left_out else []), *(options.xfstests.split() or ["-g", "quick"])]
    results = results_of(lines_of(command, {"HOST_OPTIONS": str(config)}, stores.work / "xfstests.log", suite))
    for point in points:
        subprocess.run(["umount", point], stderr=subprocess.DEVNULL, check=False)
    return results


def results_of(lines):
    """The results of each test from xfstests' `check`."""
    results, last = {}, None
    for line in lines:
        if found := re.match(r"((?:generic|shared|fuse)/\d+)\s+(.*)", line):
            last, rest = found[1], found[2]
            if "[not run]" in rest:
                results[last] = ("na", rest.split("[not run]")[1].strip())
            elif "[expunged]" in rest:
                last = None
            elif re.search(r"\d+s$", rest):
                results[last] = ("passed", "")
            else:
                results[last] = ("failed", rest.strip(" -"))
        elif last and "cannot modify limit" in line:
            results[last] = ("na", "this machine lets not even root raise limits again")
        elif last and line.startswith("    +") and results[last][0] == "failed" and len(results[last][1]) < 400:
            results[last] = (results[last][0], results[last][1] + "; " + line.strip(" +"))
    return results


SUITES = {"pjdfstest": run_pjdfstest, "rs": run_rs, "xfstests": run_xfstests, "load": load.run}


def lines_of(command, env, log, cwd="/"):
    """A suite's lines as they come. If a test is silent for STUCK seconds, its processes are
    ended."""
    child = subprocess.Popen(command, cwd=cwd, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    heard = [time.monotonic()]

    def watch():
        while child.poll() is None:
            time.sleep(5)
            if time.monotonic() - heard[0] > STUCK:
                heard[0] = time.monotonic()
                say(f"nothing for {STUCK} s: its processes are ended")
                for pid in below(child.pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
    threading.Thread(target=watch, daemon=True).start()
    with open(log, "w", encoding="utf-8") as copy:
        for line in child.stdout:
            heard[0] = time.monotonic()
            copy.write(line)
            copy.flush()
            yield line.rstrip("\n")
    child.wait()


def keep(path, part, is_again):
    """Keeps the results of a suite. Results of tests that ran again go beside those of the
    others."""
    if is_again:
        if not path.exists():
            return
        new, part = part, json.loads(path.read_text())
        part["tests"].update(new["tests"])
        part["again"].update({name: new["revision"] for name in new["tests"]})
    path.write_text(json.dumps(part))


def below(root):
    """Processes that descend from `root`, without itself. Mounts have other parents."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, todo = [], [root]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrigger", required=True, type=Path)
    parser.add_argument("--built", type=Path, default=Path("/var/tmp/outrigger-posix"))
    parser.add_argument("--mounts", default="local,shared")
    parser.add_argument("--suites", default="pjdfstest,rs,xfstests")
    parser.add_argument("--xfstests", default="", help="tests or groups (-g NAME) in place of all quick ones")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of fsx; a hundredth of them of each process of fsstress")
    parser.add_argument("--seconds", type=int, default=5, help="for each stressor of stress-ng")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/outrigger-posix"))
    parser.add_argument("--record", type=Path, help="where the record is written")
    args = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("only root can run them")
    built, wrong = args.built.resolve(), False
    if closed := [str(above) for above in (built, *built.parents) if not above.stat().st_mode & 0o1]:
        sys.exit(f"{closed[-1]} is closed to other users, as whom tests run: fetch and build the suites elsewhere (--built)")
    (built / "outcome").mkdir(exist_ok=True)
    for kind in args.mounts.split(","):
        for suite in args.suites.split(","):
            users(suite)
            say(f"{suite} on a {kind} mount")
            stores, begin = Stores(kind, args.outrigger, args.work), time.monotonic()
            try:
                results = SUITES[suite](built, stores, args)
            finally:
                stores.close()
            may_fail = listed(suite, kind)
            if args.xfstests:
                may_fail = {name: why for name, why in may_fail.items() if name in results}
            judged = judge(results, may_fail)
            part = {"revision": record.common.revision(), "seconds": round(time.monotonic() - begin), "tests": judged, "again": {}}
            keep(built / "outcome" / f"{suite} {kind}.json", part, args.xfstests != "")
            wrong |= not judged or any(state == "failed" for state, _ in judged.values())
            say(record.line(judged))
            for name, (state, reason) in judged.items():
                if state == "failed":
                    print(f"  FAILED {name}: {reason[:300]}", flush=True)
    if args.record:
        say(f"record: {record.write(args.record, built)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
