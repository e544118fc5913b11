"""What users of `Store` rely on."""

import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

import outrigger


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "a.txt").write_text("one\ntwo\n")
    (top / "sub" / "big").write_bytes(os.urandom(5 << 20))
    (top / "link").symlink_to("a.txt")
    (top / os.fsdecode(b"odd\xff")).write_bytes(b"x")
    os.chmod(top / "a.txt", 0o640)
    return top


def test_a_tree_comes_back_as_it_was(store, tree, tmp_path):
    seen = []
    moved = store.put(tree, "tree", progress=lambda *counts: seen.append(counts))
    assert (moved.files, moved.skipped, moved.snapshot_before) == (3, (), None)
    store.get("tree", tmp_path / "back")
    subprocess.run(["diff", "-r", "--no-dereference", tree, tmp_path / "back"], check=True)
    assert os.stat(tmp_path / "back/a.txt").st_mode & 0o777 == 0o640
    store.get("tree/a.txt", tmp_path / "single")
    assert (tmp_path / "single").read_text() == "one\ntwo\n"
    # Again nothing is read, and what exists here is not replaced unless that is asked for.
    again = store.put(tree, "tree")
    assert (again.files, again.bytes_read) == (3, 0)
    (tmp_path / "single").write_text("mine")
    assert store.get("tree/a.txt", tmp_path / "single").skipped
    assert (tmp_path / "single").read_text() == "mine"
    store.get("tree/a.txt", tmp_path / "single", overwrite=True)
    assert (tmp_path / "single").read_text() == "one\ntwo\n"


def test_a_put_mirrors_and_its_snapshot_has_what_went(store, tree):
    store.put(tree, "tree", exclude=["link"])
    assert not store.exists("tree/link")
    (tree / "a.txt").unlink()
    moved = store.put(tree, "tree", tag=["nightly", "weekly"])
    assert moved.entries_removed == 1 and not store.exists("tree/a.txt")
    assert store.read_bytes("tree/a.txt", at=moved.snapshot_before) == b"one\ntwo\n"
    assert store.exists("tree/sub/big", at="nightly")
    (tree / "sub" / "big").unlink()
    store.put(tree, "tree", keep_missing=True)
    assert store.exists("tree/sub/big")
    with pytest.raises(ValueError, match="allow-empty"):
        store.put(tree / "sub", "tree")
    (tree / "sub" / "other").write_text("other")
    with pytest.raises(ValueError, match="replace-source"):
        store.put(tree / "sub", "tree")
    store.put(tree / "sub", "tree", replace_source=True)
    assert [entry.name for entry in store.ls("tree")] == ["other"]


def test_entries_tell_what_they_are(store, tree):
    store.put(tree, "tree")
    entries = {entry.name: entry for entry in store.ls("tree")}
    assert [entry.kind for entry in entries.values()] == ["file", "symlink", "file", "directory"]
    assert entries["link"].target == "a.txt"
    assert entries["a.txt"].size == 8 and entries["a.txt"].mode == 0o640
    assert entries["a.txt"].mtime_ns == os.stat(tree / "a.txt").st_mtime_ns
    assert os.fsencode(entries[os.fsdecode(b"odd\xff")].path) == b"tree/odd\xff"
    assert [entry.path for entry in store.ls("tree", recursive=True)][-1] == "tree/sub/big"
    assert store.stat("tree/sub").is_dir and store.stat(b"tree/odd\xff").size == 1
    assert [entry.path for entry in store.ls("tree/a.txt")] == ["tree/a.txt"]


def test_files_read_like_files(store):
    data = os.urandom(20 << 20)
    store.write_bytes("f", data)
    with store.open("f") as file:
        assert file.read(10) == data[:10]
        assert file.seek(-7, io.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:] and file.read() == b""
        file.seek(1 << 20)
        buffer = bytearray(9 << 20)
        assert file.readinto(buffer) == len(buffer) and buffer == data[1 << 20 : 10 << 20]
    with store.open("f", buffering=0) as raw:
        assert raw.readall() == data and raw.size == len(data)
        assert raw.read_at(19 << 20, 1 << 30) == data[19 << 20 :]
        with pytest.raises(ValueError):
            raw.seek(-1)
        with pytest.raises(BufferError):
            raw.readinto(b"constant")
    with pytest.raises(ValueError):
        raw.read(1)
    assert store.read_bytes("f", 5, 3) == data[5:8]
    store.write_bytes("lines", "ä\nb\n".encode())
    with store.open("lines", "rt", encoding="utf-8") as text:
        assert list(text) == ["ä\n", "b\n"]


def test_an_open_file_keeps_its_content(store):
    store.write_bytes("f", b"first" * 1000)
    with store.open("f", buffering=0) as file:
        store.write_bytes("f", b"second")
        store.undo = False
        store.remove("f")
        subprocess.run([os.environ["OUTRIGGER_PROGRAM"], "-s", store.location, "-q", "gc"], check=True)
        assert file.readall() == b"first" * 1000


def test_a_written_file_appears_when_it_is_closed_or_not_at_all(store):
    store.write_bytes("f", b"earlier")
    with store.open("f", "w") as file:
        file.write("text ")
        file.write("and more")
        assert store.read_bytes("f") == b"earlier"
    assert store.read_bytes("f") == b"text and more"
    data = os.urandom(9 << 20)
    with store.open("new/dir/big", "wb") as file:
        for start in range(0, len(data), 100_001):
            file.write(data[start : start + 100_001])
    assert file.moved["bytes"] == len(data) and store.read_bytes("new/dir/big") == data
    for mode in ("w", "wb"):
        with pytest.raises(KeyError), store.open("f", mode) as file:
            file.write("x" if mode == "w" else b"x" * (3 << 20))
            raise KeyError
    file = store.open("g", "wb")
    file.write(b"never closed")
    del file
    file = store.open("h", "wb")
    file.write(b"x" * (3 << 20))
    file.discard()
    assert store.read_bytes("f") == b"text and more"
    assert not store.exists("g") and not store.exists("h")
    with pytest.raises(FileExistsError):
        store.open("f", "xb")
    for mode in ("a", "r+", "rbt"):
        with pytest.raises(ValueError):
            store.open("f", mode)


def test_several_files_are_one_commit(store):
    files = {f"d/{number}": str(number).encode() * number for number in range(300)}
    moved = store.write_files(files)
    assert moved.files == 300
    assert {entry.path: store.read_bytes(entry.path) for entry in store.ls("d")} == files


def test_errors_are_those_of_python(store, tmp_path, location):
    store.mkdir("d/e")
    store.write_bytes("d/f", b"x")
    with pytest.raises(FileNotFoundError):
        store.stat("nothing")
    with pytest.raises(FileNotFoundError):
        store.open("d/f", at="no-such-snapshot")
    with pytest.raises(IsADirectoryError):
        store.open("d")
    with pytest.raises(IsADirectoryError):
        store.remove("d")
    for write in (lambda: store.write_bytes("d", b"x"), lambda: store.open("d", "wb")):
        with pytest.raises(IsADirectoryError):
            write()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a directory in the store"):
        store.put(tmp_path / "file", "d")
    assert store.read_bytes("d/f") == b"x"
    with pytest.raises(FileExistsError):
        store.mkdir("d/e", exist_ok=False)
    with pytest.raises(FileExistsError):
        store.mkdir("d/f")
    with pytest.raises(FileNotFoundError):
        store.mkdir("no/such", parents=False)
    with pytest.raises(ValueError):
        store.stat("d/../f")
    with pytest.raises(FileNotFoundError):
        store.put(tmp_path / "missing", "x")
    with pytest.raises(FileNotFoundError, match="makes a new store"):
        outrigger.Store(tmp_path / "no-store")
    with pytest.raises(PermissionError):
        outrigger.Store(location, read_only=True).write_bytes("x", b"")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.stat("d")


@pytest.mark.parametrize(
    ("right", "writes", "reads"), [("--read-only", False, True), ("--put-only", True, False)]
)
def test_a_key_gives_the_right_that_it_was_made_with(program, location, tmp_path, right, writes, reads):
    with outrigger.Store(location) as store:
        store.write_bytes("f", b"text")
    add = ["key", "add", right, "--file", tmp_path / "fewer.key"]
    subprocess.run([program, "--store", location, "--quiet", *add], check=True)
    script = """
import sys, outrigger
def tries(what):
    try:
        what()
        return True
    except PermissionError:
        return False
with outrigger.Store(sys.argv[1], read_only=sys.argv[2] == "r") as store:
    print(store.exists("f"), tries(lambda: store.read_bytes("f")), tries(lambda: store.write_bytes("g", b"x")))
"""
    # Somebody else, who has this key alone.
    home = str(tmp_path / "somebody")
    environment = os.environ | {"HOME": home, "XDG_CONFIG_HOME": home, "OUTRIGGER_KEY_FILE": str(tmp_path / "fewer.key")}
    command = [sys.executable, "-c", script, location, "w" if writes else "r"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert said.split() == [str(each) for each in (True, reads, writes)]


def test_damage_is_never_returned(store):
    data = os.urandom(3 << 20)
    store.write_bytes("f", data)
    store.close()
    packs = [os.path.join(above, name) for above, _, names in os.walk(f"{store.location}/packs") for name in names]
    largest = max(packs, key=os.path.getsize)
    with open(largest, "r+b") as pack:
        pack.seek(os.path.getsize(largest) // 2)
        pack.write(b"\0" * 100)
    with outrigger.Store(store.location) as damaged, pytest.raises(outrigger.DamagedError):
        damaged.read_bytes("f")


def test_a_wrong_key_says_so(location, tmp_path, monkeypatch):
    code = f"import outrigger; outrigger.Store({location!r}, key_file={str(tmp_path / 'no.key')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no.key" in done.stderr


def test_snapshots_versions_and_policies(store):
    store.mkdir("d")
    store.set_policy("d", versions=2)
    assert store.policies("d") == {"versions": "2"}
    for text in ("one", "two", "three", "four"):
        store.write_bytes("d/f", text.encode())
    versions = store.versions("d/f")
    assert [version.size for version in versions] == [5, 3]
    assert store.open("d/f", version=versions[0].number).read() == b"three"
    store.set_policy("d", versions=None)
    assert store.policies("d") == {}
    with pytest.raises(ValueError):
        store.set_policy("d", versions="many")
    before = datetime.now(timezone.utc)
    first = store.snapshot("first", tags=["keep"])
    assert abs(first.time - before) < timedelta(minutes=1)
    store.write_bytes("d/f", b"later")
    for when in ("first", "keep", datetime.now(timezone.utc), datetime.now()):
        assert store.read_bytes("d/f", at=when) in (b"four", b"later")
    assert store.read_bytes("d/f", at="keep") == b"four"
    assert "first" in [snapshot.name for snapshot in store.snapshots()]
    with pytest.raises(FileExistsError):
        store.snapshot("first")
    store.delete_snapshot("first")
    with pytest.raises(FileNotFoundError):
        store.stat("d/f", at="first")
    with pytest.raises(FileNotFoundError):
        store.stat("d/f", at=before - timedelta(days=1))


def test_names_change_and_undo_takes_it_back(store):
    store.write_files({"a/x": b"x", "a/y": b"y"})
    store.rename("a", "b")
    store.copy("b", "c")
    store.remove("b", recursive=True)
    assert [entry.path for entry in store.ls(recursive=True)] == ["c", "c/x", "c/y"]
    subprocess.run([os.environ["OUTRIGGER_PROGRAM"], "-s", store.location, "-q", "undo"], check=True)
    assert store.read_bytes("b/x") == b"x"


def test_splits_cover_a_file_between_records(store):
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    store.write_bytes("d/lines", lines)
    store.write_bytes("d/marks", b"<>".join(b"r%d" % number for number in range(50_000)))
    store.write_bytes("d/empty", b"")
    parts = store.splits("d/lines", records="lines", size=50_000)
    assert len(parts) > 5
    assert b"".join(store.read_bytes(path, at, length) for path, at, length, _ in parts) == lines
    assert all(store.read_bytes(part.path, part.offset + part.length - 1, 1) == b"\n" for part in parts)
    parts = store.splits("d/marks", records="delimiter:<>", size=20_000)
    assert all(store.read_bytes(p.path, p.offset, p.length).endswith(b"<>") for p in parts[:-1])
    assert sum(part.length for part in parts) == store.stat("d/marks").size
    parts = store.splits("d/lines", records="fixed:700", size=50_000)
    assert all(part.length % 700 == 0 for part in parts[:-1])
    whole = store.splits(["d"])
    assert [(part.path, part.length) for part in whole] == [
        ("d/empty", 0),
        ("d/lines", len(lines)),
        ("d/marks", store.stat("d/marks").size),
    ]
    for bad in ("words", "fixed:0", "delimiter:"):
        with pytest.raises(ValueError):
            store.splits("d/lines", records=bad, size=50_000)


def test_splits_of_a_snapshot_are_those_of_then(store):
    then = b"".join(b"%d\n" % number for number in range(20_000))
    store.write_bytes("d/f", then)
    store.snapshot("first", tags=["v"])
    store.write_bytes("d/f", b"now\n")
    store.write_bytes("d/new", b"now\n")
    assert store.find_snapshot("v").name == "first"
    parts = store.splits("d", at="v", records="lines", size=30_000)
    assert {part.path for part in parts} == {"d/f"}
    assert b"".join(store.read_bytes(path, at, length, at="v") for path, at, length, _ in parts) == then
    with pytest.raises(FileNotFoundError):
        store.splits("d", at="none")


def _child(store, queue):
    queue.put(store.read_bytes("f"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_open_the_store_anew(store, method):
    store.write_bytes("f", b"content")
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_child, args=(store, queue))
    child.start()
    assert queue.get(timeout=60) == b"content"
    child.join()
    store.write_bytes("f", b"the parent goes on")
    assert pickle.loads(pickle.dumps(store)).read_bytes("f") == b"the parent goes on"


def test_a_store_with_open_files_is_not_used_in_a_child(store):
    store.write_bytes("f", b"content")
    with store.open("f") as file:
        child = os.fork()
        if child == 0:
            try:
                store.read_bytes("f")
                os._exit(1)
            except RuntimeError:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert file.read() == b"content"
    assert store.read_bytes("f") == b"content"


def test_threads_share_a_store_and_calls_release_the_lock(store):
    data = os.urandom(8 << 20)
    store.write_bytes("f", data)
    ran, stop, failed = [0], threading.Event(), []

    def count():
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    def read():
        for number in range(5):
            if store.read_bytes("f") != data or store.write_bytes(f"t/{threading.get_ident()}-{number}", b"x").files != 1:
                failed.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    counter = threading.Thread(target=count)
    for thread in [counter, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    counter.join()
    assert not failed and ran[0] > 10 and len(store.ls("t")) == 20


def test_an_interrupted_put_ends_and_can_go_on(location, tmp_path):
    source = tmp_path / "pipe"
    os.mkfifo(source)
    (tmp_path / "many").mkdir()
    for number in range(3000):
        (tmp_path / "many" / str(number)).write_bytes(os.urandom(40_000))
    code = (
        "import outrigger, sys\n"
        f"store = outrigger.Store({location!r})\n"
        "try:\n"
        f"    store.put({str(tmp_path / 'many')!r}, 'many', progress=lambda *_: (print('now', flush=True)))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(77)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    if child.stdout.readline():
        child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) in (0, 77)
    with outrigger.Store(location) as store:
        assert store.put(tmp_path / "many", "many").files == 3000
        assert len(store.ls("many")) == 3000


def test_a_mount_and_python_see_what_the_other_does(store, tmp_path):
    point = tmp_path / "mount"
    point.mkdir()
    program = os.environ["OUTRIGGER_PROGRAM"]
    subprocess.run([program, "-s", store.location, "-q", "mount", point], check=True)
    try:
        (point / "of-mount").write_text("staged")
        assert store.read_bytes("of-mount") == b"staged"
        store.write_bytes("of-python", b"stored")
        assert (point / "of-python").read_bytes() == b"stored"
    finally:
        subprocess.run([program, "-q", "unmount", point], check=True)


def test_jobs_run_and_say_how_they_ended(store):
    store.write_files({"in/a": b"b\na\n", "in/b": b"d\nc\n"})
    seen = []
    job = store.run(["sort"], inputs="in/*", out="out/{name}", sandbox="best", env={"LC_ALL": "C"})
    assert job.wait(120, progress=lambda *counts: seen.append(counts)) is job
    assert (store.read_bytes("out/a"), store.read_bytes("out/b")) == (b"a\nb\n", b"c\nd\n")
    assert seen[-1] == (2, 2) and store.job(job.number).state == "done"
    assert "sort" in job._repr_html_() and "done" in job._repr_html_()
    bad = store.run(["sh", "-c", "echo broken >&2; exit 3"], inputs="in/a", out="bad", sandbox="best", tries=1)
    with pytest.raises(outrigger.JobError, match="broken"):
        bad.wait(120)
    assert not store.exists("bad")
    slow = store.run(["sleep", "600"], inputs="in/a", out="slow", sandbox="best")
    with pytest.raises(TimeoutError):
        slow.wait(0.1)
    slow.cancel()
    with pytest.raises(outrigger.JobError, match="cancelled"):
        slow.wait(120)
    with pytest.raises(ValueError):
        store.run(["sort"], inputs="in/a", out="x", pattern="nonsense")


def test_a_store_shows_itself(store):
    store.write_bytes("f", b"x")
    assert store.location in store._repr_html_() and store.location in repr(store)
    info, stats = store.info(), store.stats()
    assert (info["files"], info["encrypted"], info["shared"]) == (1, True, False)
    assert stats["bytes"] == 1 and stats["bytes_stored"] > 0
