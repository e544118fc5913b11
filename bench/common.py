"""Shared by the benchmarks: running commands, and the machine's part of a record."""
import contextlib
import datetime
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
RECORDS = REPOSITORY / "docs/evaluation/records"
KIB, MIB = 1 << 10, 1 << 20


class Failed(Exception):
    """A measurement failed, or an answer is wrong."""


class Missing(Failed):
    """This machine lacks something that the measurement needs."""


def words_of(command):
    return [str(word) for word in command]


def run(command, **more):
    """Runs a command that must succeed, and returns its output."""
    text = more.pop("text", True)
    done = subprocess.run(words_of(command), stdin=more.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False, **more)
    if done.returncode:
        raise Failed(f"{' '.join(words_of(command))}: exit code {done.returncode}: "
                     f"{(done.stderr or done.stdout).decode(errors='replace').strip()[-800:]}")
    return done.stdout.decode(errors="replace") if text else done.stdout


def need(program, package):
    found = shutil.which(program)
    if not found:
        raise Missing(f"{program} is missing: apt-get install {package}")
    return found


def say(text):
    """Prints progress, which is not part of the record."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(lock):
    """Holds a lock (flock) that other jobs of this machine take too, and lets them have their turn before."""
    if not lock:
        yield
        return
    time.sleep(10)
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(3)
        yield


def lock_option(parser):
    parser.add_argument("--lock", help="a file that is locked (flock) while one thing is measured, with 10 s between")


# --- records ---------------------------------------------------------------------------------------------------


def machine():
    model, flags = platform.machine(), []
    memory = 0
    try:
        info = Path("/proc/cpuinfo").read_text()
        model = re.search(r"model name\s*:\s*(.*)", info).group(1)
        present = set(re.search(r"flags\s*:\s*(.*)", info).group(1).split())
        flags = [flag for flag in ("avx2", "avx512f", "gfni", "vaes", "sha_ni") if flag in present]
        memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()).group(1)) * 1024
    except (OSError, AttributeError):
        pass
    return {"cpu": model, "cpus": len(os.sched_getaffinity(0)), "flags": flags, "memory": memory,
            "kernel": platform.release(), "python": platform.python_version(), "load": list(os.getloadavg())}


def of_machine():
    """Processor seconds that were not idle, since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / TICKS


def slug(info):
    words = re.findall(r"xeon|epyc|ryzen|core|neoverse|apple|graviton", info["cpu"].lower())
    # Processors of one name differ most in their instructions.
    simd = "-avx512" if "avx512f" in info["flags"] else "-avx2" if "avx2" in info["flags"] else ""
    return f"{words[0] if words else platform.machine()}-{info['cpus']}cpu-{round(info['memory'] / 2**30)}gb{simd}"


def revision():
    out = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return out.stdout.strip() if out.returncode == 0 else None


def record_options(parser):
    """Options for the places of a record."""
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--record", action="store_true", help="both into docs/evaluation/records, for the evaluation")


class Record:
    """The measurements, saved as they grow, so that an interrupted run leaves what it had."""

    def __init__(self, kind, args, show, **first):
        self.show, self.began = show, time.monotonic()
        self.json, self.markdown = args.json, args.markdown
        self.said = {"date": datetime.date.today().isoformat(), "revision": revision(), "machine": machine(), "rounds": args.rounds, **first}
        if args.record:
            stem = RECORDS / f"{self.said['date']}-{kind}-{slug(self.said['machine'])}"
            self.json, self.markdown = stem.with_suffix(".json"), stem.with_suffix(".md")

    def keep(self):
        self.said["seconds"] = time.monotonic() - self.began
        self.said["load_at_end"] = os.getloadavg()[0]
        if self.json:
            self.json.write_text(json.dumps(self.said, indent=1) + "\n")

    def end(self):
        self.keep()
        if self.markdown:
            self.markdown.write_text(self.show(self.said))
        print(self.show(self.said))


def enter(main):
    """Runs a script's `main`. A failure prints one line, an interruption nothing."""
    try:
        main()
    except Failed as failed:
        sys.exit(f"{Path(sys.argv[0]).name}: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)
