"""The record of a run of the suites, as JSON and as a page."""
import collections
import json
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))
import common  # noqa: E402  pylint: disable=wrong-import-position

NAMES = {"pjdfstest": "pjdfstest (assertions)", "rs": "pjdfstest, the crate", "xfstests": "xfstests, generic/quick", "load": "fsx, fsstress, stress-ng"}
HEAD = ("| suite | mount | passed | failed | our fault, listed | not applicable | of what applies | revision | minutes |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n")


def counts(tests):
    count = collections.Counter(state for state, _ in tests.values())
    applies = count["passed"] + count["failed"] + count["ours"]
    return count, 100 * count["passed"] / applies if applies else 0


def line(tests):
    count, share = counts(tests)
    return (f"passed {count['passed']}, failed {count['failed']}, our fault and listed {count['ours']}, "
            f"not applicable {count['na']}: {share:.2f} %")


def short(text):
    """Shortens a text to fit a cell."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) < 240 else text[:237] + "..."


def grouped(outcome, state):
    """[(suite, reason, {mount: tests})]"""
    groups = {}
    for part, found in outcome.items():
        suite, kind = part.split()
        for name, (is_state, reason) in found["tests"].items():
            if is_state == state:
                groups.setdefault((suite, generalised(reason)), {}).setdefault(kind, []).append(name)
    return [(suite, reason, kinds) for (suite, reason), kinds in sorted(groups.items())]


def generalised(reason):
    """The reason in words that are the same for both kinds of stores."""
    words = ["PATH" if word.startswith(("/", "postgres://")) else word for word in reason.split()]
    return " ".join(words)


def table(outcome, state):
    rows = ["| suite | why | tests |\n| --- | --- | --- |\n"]
    for suite, reason, kinds in grouped(outcome, state):
        lists = {kind: sorted(names) for kind, names in kinds.items()}
        same = len(lists) > 1 and len({tuple(names) for names in lists.values()}) == 1
        text = "; ".join(f"{'both' if same else kind}: {tests(names)}" for kind, names in list(lists.items())[:1 if same else None])
        rows.append(f"| {suite} | {short(reason) or 'no reason given'} | {text} |\n")
    return "".join(rows) if len(rows) > 1 else "None.\n"


def tests(names):
    return " ".join(name.removeprefix("generic/") for name in names) if len(names) < 60 else f"{len(names)} tests"


def brief(outcome):
    """Counts, and the names of tests that did not pass."""
    return {part: {"revision": found["revision"], "again": found["again"], "seconds": found["seconds"], "counts": dict(counts(found["tests"])[0]),
                   "others": {name: [state, generalised(reason)] for name, (state, reason) in found["tests"].items() if state != "passed"}}
            for part, found in outcome.items()}


def write(where, built):
    info, where = common.machine(), Path(where)
    parts = {path.stem: json.loads(path.read_text()) for path in (built / "outcome").glob("*.json")}
    outcome = {part: parts[part] for suite in NAMES for kind in ("local", "shared") if (part := f"{suite} {kind}") in parts}
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{time.strftime('%Y-%m-%d')}-posix.md"
    revisions = {name: (built / f"{name}.built").read_text().strip() for name in ("pjdfstest", "rs", "xfstests")}
    facts = {"date": time.strftime("%Y-%m-%d"), "revision": common.revision(), "machine": info, "suites": revisions}
    path.with_suffix(".json").write_text(json.dumps(facts | {"outcome": brief(outcome)}, indent=1) + "\n")
    text = [f"# Suites of others on both kinds of mounts, {facts['date']}\n\n",
            f"`make posix`, {info['cpu']}, {info['cpus']} CPUs, Linux {info['kernel']}. ",
            f"pjdfstest {revisions['pjdfstest'][:10]}, its crate {revisions['rs']}, xfstests {revisions['xfstests'][:10]}. ",
            "*local*: a store in a directory; *shared*: PostgreSQL on the same machine, packs in a directory. ",
            f"Stores lie in memory (`/dev/shm`). Load of the machine at the end: {info['load'][1]:.0f}.\n\n", HEAD]
    for part, found in outcome.items():
        (suite, kind), (count, share) = part.split(), counts(found["tests"])
        text.append(f"| {NAMES[suite]} | {kind} | {count['passed']} | {count['failed']} | {count['ours']} | {count['na']} | {share:.2f} % | "
                    f"{found['revision']} | {found['seconds'] / 60:.0f} |\n")
    for part, found in outcome.items():
        revisions_again = sorted(set(found["again"].values()))
        for again in revisions_again:
            names = sorted(name for name, revision in found["again"].items() if revision == again)
            text.append(f"\n{part}: at revision {found['revision']}; of these at {again}, after changes: {tests(names)}.\n")
    for part in (part for part in outcome if part.startswith("load")):
        text.append(f"\n{part}: {'; '.join(outcome[part]['tests'])}.\n")
    for title, state in (("Failed", "failed"), ("Our fault, listed", "ours"), ("Not applicable", "na")):
        text.append(f"\n## {title}\n\n{table(outcome, state)}")
    path.write_text("".join(text))
    return path
