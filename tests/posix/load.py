"""Load by other programs, each on a new store that is checked afterwards: fsx, fsstress (both from
xfstests) and stress-ng's file system stressors."""
import subprocess

# These mount their own file systems, or work on devices.
NOT_OURS = "binderfs,bind-mount,chattr,loop,mknod,ramfs"


def run(built, stores, options):
    commands = {
        "fsx": [built / "xfstests/ltp/fsx", "-q", "-N", options.operations, "-S", options.seed, "-l", "8m", "-P", stores.work, "{point}/fsx"],
        "fsstress": [built / "xfstests/ltp/fsstress", "-d", "{point}/fsstress", "-n", options.operations // 100, "-p", "4", "-s",
                     options.seed],
        "stress-ng": ["stress-ng", "--class", "filesystem", "-x", NOT_OURS, "--sequential", "2", "--timeout", f"{options.seconds}s",
                      "--temp-path", "{point}", "--verify", "--seed", options.seed],
    }
    sizes = {"fsx": f"{options.operations} operations", "fsstress": f"4 processes, {options.operations // 100} operations each",
             "stress-ng": f"{options.seconds} s for each stressor"}
    results = {}
    for name, command in commands.items():
        store = stores.make(name.replace("-", ""))
        point = stores.mount(store)
        (point / "fsstress").mkdir()
        log = stores.work / f"{name}.log"
        with open(log, "w", encoding="utf-8") as out:
            words = [str(word).format(point=point) for word in command]
            done = subprocess.run(words, cwd=point, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        said = [line for line in log.read_text(errors="replace").splitlines() if "fail" in line.lower() or name == "fsx"]
        results[f"{name}, {sizes[name]}"] = ("failed", f"exit code {done.returncode}: {' / '.join(said[-12:])}") if done.returncode else ("passed", "")
        stores.unmount(point)
        found = stores.check(store)
        results[f"{name}, check --read-data"] = ("failed", found) if found else ("passed", "")
    return results
