"""fsspec's own tests over a store, and the libraries that read through it."""

import pickle

import pytest
from conftest import require

fsspec = require("fsspec")
from fsspec.tests import abstract

from outrigger.fsspec import OutriggerFileSystem

# An installed package says this by its entry point.
fsspec.register_implementation("outrigger", OutriggerFileSystem, clobber=True)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, location):
        return OutriggerFileSystem(location, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self):
        return "area"

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def fs(location):
    return fsspec.filesystem("outrigger", store=location, skip_instance_cache=True)


@pytest.fixture
def options(location):
    return {"store": location, "skip_instance_cache": True}


def test_it_is_found_by_its_protocol(location, options, monkeypatch):
    with fsspec.open("outrigger://d/f.txt", "wt", **options) as file:
        file.write("text")
    monkeypatch.setenv("OUTRIGGER_STORE", location)
    with fsspec.open("outrigger://d/f.txt", "rt") as file:
        assert file.read() == "text"
    with fsspec.open("outrigger://d/f.txt.gz", "wt", compression="gzip", **options) as file:
        file.write("text")
    fs = fsspec.filesystem("outrigger", **options)
    assert sorted(fs.find("")) == ["d/f.txt", "d/f.txt.gz"]
    assert pickle.loads(pickle.dumps(fs)).cat("outrigger://d/f.txt") == b"text"
    assert fs.fsid.startswith("outrigger-")


def test_what_it_says_of_entries(fs):
    fs.pipe({"d/a": b"a", "d/b/c": b"ccc"})
    assert [(entry["name"], entry["type"], entry["size"]) for entry in fs.ls("/d")] == [
        ("d/a", "file", 1),
        ("d/b", "directory", 0),
    ]
    assert fs.du("") == 4 and fs.isdir("d") and fs.isfile("d/a") and not fs.exists("d/x")
    assert list(fs.walk("d")) == [("d", ["b"], ["a"]), ("d/b", [], ["c"])]
    assert fs.glob("d/**/c") == ["d/b/c"] and set(fs.find("d", withdirs=True)) == {"d", "d/a", "d/b", "d/b/c"}
    before = fs.ukey("d/a")
    fs.pipe("d/a", b"other")
    assert fs.ukey("d/a") != before and fs.modified("d/a").timestamp() > 0
    with pytest.raises(FileNotFoundError):
        fs.info("nothing")
    with pytest.raises(FileNotFoundError):
        fs.ls("nothing")
    with pytest.raises(IsADirectoryError):
        fs.cat_file("d")


def test_ranges(fs):
    fs.pipe("f", b"0123456789")
    assert fs.cat_file("f", 2, 5) == b"234" and fs.cat_file("f", -3) == b"789"
    assert fs.cat_file("f", 0, -8) == b"01" and fs.cat_file("f", 8, 100) == b"89"
    assert fs.cat_ranges(["f", "f"], [0, 5], [2, 7]) == [b"01", b"56"]
    assert fs.head("f", 3) == b"012" and fs.tail("f", 2) == b"89"


def test_files_are_appended_to_made_and_removed(fs):
    with fs.open("d/f", "wb") as file:
        file.write(b"one")
    with fs.open("d/f", "ab") as file:
        file.write(b" two")
    assert fs.cat("d/f") == b"one two"
    fs.touch("empty")
    assert fs.cat("empty") == b""
    fs.mkdir("e")
    with pytest.raises(FileExistsError):
        fs.mkdir("e")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("d")
    fs.rmdir("e")
    fs.mv("d", "moved", recursive=True)
    assert fs.find("") == ["empty", "moved/f"]
    fs.rm("moved", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.rm("moved", recursive=True)
    assert fs.find("") == ["empty"]


def test_a_transaction_is_all_or_nothing(fs):
    with pytest.raises(KeyError), fs.transaction:
        with fs.open("a", "wb") as file:
            file.write(b"x" * (3 << 20))
        fs.pipe("b", b"b")
        raise KeyError
    assert fs.find("") == []
    with fs.transaction:
        with fs.open("a", "wb") as file:
            file.write(b"a")
        fs.pipe("b", b"b")
        assert fs.find("") == []
    assert (fs.cat("a"), fs.cat("b")) == (b"a", b"b")


def test_a_snapshot_is_read_and_not_written(fs, location):
    fs.pipe("d/f", b"then")
    fs.store.snapshot("then")
    fs.pipe("d/f", b"now")
    past = fsspec.filesystem("outrigger", store=location, at="then", skip_instance_cache=True)
    assert past.cat("d/f") == b"then" and past.info("d/f")["size"] == 4 and past.find("") == ["d/f"]
    with pytest.raises(OSError, match="snapshot"):
        past.pipe("d/f", b"changed")
    with pytest.raises(OSError, match="snapshot"):
        past.rm("d/f")
    assert fs.cat("d/f") == b"now"


def test_pandas_and_pyarrow(options):
    pd, pq = require("pandas"), require("pyarrow.parquet")
    ds = require("pyarrow.dataset")
    frame = pd.DataFrame({"key": [1, 2, 3], "word": ["a", "b", "ä"]})
    frame.to_parquet("outrigger://t/a.parquet", storage_options=options)
    frame.to_csv("outrigger://t/a.csv", index=False, storage_options=options)
    assert pd.read_parquet("outrigger://t/a.parquet", storage_options=options).equals(frame)
    assert pd.read_csv("outrigger://t/a.csv", storage_options=options).equals(frame)
    fs = fsspec.filesystem("outrigger", **options)
    table = pq.read_table("t/a.parquet", filesystem=fs)
    ds.write_dataset(table, "set", format="parquet", partitioning=["key"], filesystem=fs)
    back = ds.dataset("set", format="parquet", partitioning=["key"], filesystem=fs).to_table()
    assert back.sort_by("key").to_pandas()["word"].tolist() == ["a", "b", "ä"]


def test_zarr_and_xarray(options):
    zarr, xr, np = require("zarr"), require("xarray"), require("numpy")
    data = np.arange(10_000).reshape(100, 100)
    array = zarr.create_array(
        "outrigger://z/a", shape=data.shape, chunks=(10, 100), dtype=data.dtype, storage_options=options
    )
    array[:] = data
    again = zarr.open_array("outrigger://z/a", mode="r", storage_options=options)
    assert (again[5:15, 3] == data[5:15, 3]).all()
    xr.Dataset({"v": (("x", "y"), data)}).to_zarr("outrigger://z/b", storage_options=options)
    assert (xr.open_zarr("outrigger://z/b", storage_options=options)["v"].values == data).all()


def test_duckdb(fs):
    duckdb = require("duckdb")
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    connection.sql("COPY (SELECT range AS n FROM range(1000)) TO 'outrigger://q/n.parquet'")
    assert connection.sql("SELECT sum(n) FROM 'outrigger://q/n.parquet'").fetchall() == [(499_500,)]
