#!/usr/bin/env python3
"""Runs pjdfstest (the suite of shell scripts) in a directory and compares its results with a list of exclusions.

    pjdfstest.py SUITE DIR EXCLUSIONS [FILE ...]      SUITE: where the program and tests/ lie; FILE: chmod/00.t, chmod, ...

An unlisted failure is an error. So is a listed test that passes or does not exist, a script that ends early, and one
that hangs.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

LINE = re.compile(r"^(not ok|ok)\b\s*(\d+)?(.*)$")
TIMEOUT = 600


def exclusions(path):
    """{file: {number or '*': reason}}"""
    listed = {}
    for at, line in enumerate(Path(path).read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        words = line.split(None, 2)
        if len(words) < 3:
            sys.exit(f"{path}:{at}: FILE NUMBERS REASON expected")
        for part in words[1].split(","):
            first, _, last = part.partition("-")
            for number in ["*"] if part == "*" else range(int(first), int(last or first) + 1):
                listed.setdefault(words[0], {})[number] = words[2]
    return listed


def run(script, directory):
    """{number: (passed, text)}, and the errors of the script as a whole."""
    child = subprocess.Popen(["sh", str(script)], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        out, _ = child.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return {}, f"hung for {TIMEOUT} s", False
    results, plan, skipped = {}, None, False
    for line in out.splitlines():
        if match := re.match(r"^1\.\.(\d+)(.*)", line):
            plan = int(match[1])
            skipped = plan == 0 or "skip" in match[2].lower()
        elif match := LINE.match(line):
            number = int(match[2] or len(results) + 1)
            todo = "# TODO" in match[3] or "# SKIP" in match[3]
            results[number] = (match[1] == "ok" or todo, match[3].strip(" -"))
    wrong = None
    if plan is None:
        wrong = f"no plan: {out.strip()[-300:]}"
    elif not skipped and set(results) != set(range(1, plan + 1)):
        wrong = f"{len(results)} of {plan} tests ran"
    elif child.returncode != 0:
        wrong = f"exit code {child.returncode}"
    return results, wrong, skipped


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    suite, directory, listed = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), exclusions(sys.argv[3])
    scripts = sorted((suite / "tests").rglob("*.t"))
    names = {str(script.relative_to(suite / "tests")): script for script in scripts}
    if wanted := sys.argv[4:]:
        names = {name: script for name, script in names.items() if name in wanted or name.split("/")[0] in wanted}
        listed = {name: numbers for name, numbers in listed.items() if name in names}
    if not names:
        sys.exit("no test scripts")
    begin, passed, accepted, errors, skips = time.monotonic(), 0, 0, [], []
    for name, script in names.items():
        results, wrong, skipped = run(script, directory)
        excluded = listed.pop(name, {})
        failures = {number for number, (good, _) in results.items() if not good}
        if skipped:
            skips.append(name)
        if wrong:
            errors.append(f"{name}: {wrong}")
        for number in sorted(failures):
            if number in excluded or "*" in excluded:
                accepted += 1
            else:
                errors.append(f"{name} {number}: {results[number][1]}")
        for number, reason in excluded.items():
            if number == "*" and not failures:
                errors.append(f"{name}: all passed, but it is excluded ({reason})")
            elif number != "*" and number not in failures:
                state = "passed" if number in results else "does not exist"
                errors.append(f"{name} {number}: {state}, but is excluded ({reason})")
        passed += len(results) - len(failures)
    errors.extend(f"{name}: excluded, but there is no such file" for name in listed)
    for error in errors:
        # Many tests have names of the greatest length.
        print(re.sub(r"\S{90,}", lambda word: f"{word[0][:60]}...({len(word[0])} characters)", error))
    if skips:
        print(f"left out by the suite itself on this system: {' '.join(skips)}")
    print(f"pjdfstest: {len(names)} files, {passed} tests passed, {accepted} failed as listed, {len(errors)} errors, "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(1 if errors or not passed else 0)


if __name__ == "__main__":
    main()
