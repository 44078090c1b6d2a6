"""Parquet files: sizes, damage, and files of untrusted authors."""

from __future__ import annotations

import decimal
import errno
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError, SketchError
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch.sources.parquet import list_parquet_files

FM = feature_map()


X = draw_rows(0, 60, 3)


NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize("how", ["truncated", "flipped", "other columns"])
def test_a_corrupt_parquet_file_is_named(how, tmp_path):
    for i in range(3):
        pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / f"{i}.parquet")
    file: Path = tmp_path / "1.parquet"
    raw = bytearray(file.read_bytes())
    if how == "truncated":
        file.write_bytes(raw[: len(raw) // 2])
    elif how == "flipped":
        raw[4:200] = bytes(196)
        file.write_bytes(raw)
    else:
        pd.DataFrame(X, columns=["a", "b", "z"]).to_parquet(file)
    with pytest.raises(ChunkError, match=r"1\.parquet.* could not be read"):
        run(tmp_path)


def test_checksums_of_pages_are_verified(tmp_path):
    """A bit that flips in a page without compression changes a value only."""
    path = tmp_path / "x.parquet"
    rows = pa.table({name: draw_rows(1, 500, 1)[:, 0] for name in "abc"})
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(rows, path, **options)
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ChunkError, match=r"x\.parquet.*(CRC|checksum)"):
        ds.sketch(path, FM).compute(scheduler="sync")


def test_a_corrupt_parquet_file_is_named_when_it_is_to_be_split(tmp_path):
    for i in range(3):
        pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / f"{i}.parquet")
    (tmp_path / "2.parquet").write_bytes((tmp_path / "2.parquet").read_bytes()[:-20])
    samples = ds.open_samples(tmp_path, chunk_size=10)
    done = dict(sketch_partitions(samples, range(samples.n_chunks), FM, attempts=1))
    (failure,) = [one for one in done.values() if isinstance(one, ChunkError)]
    assert re.search(r"2\.parquet could not be read", str(failure))
    assert sum(one.count for one in done.values() if one is not failure) == 2 * len(X)
    with pytest.raises(ChunkError, match=r"2\.parquet could not be read"):
        run(tmp_path, chunk_size=10)


def test_damaged_files_need_not_be_the_largest_that_can_be_read(tmp_path):
    parquet(X, np.ones(len(X)), tmp_path / "good.parquet")
    for i in range(5):
        (tmp_path / f"{i}.parquet").write_bytes(b"PAR1" + bytes(10**5))
    assert ds.open_samples(tmp_path, columns=NAMES).n_chunks == 6


def frame(x, w):
    return pd.DataFrame(x, columns=NAMES).assign(w=w)


def parquet(x, w, path, **options):
    pq.write_table(pa.Table.from_pandas(frame(x, w), preserve_index=False), path, **options)
    return path


def computed(found):
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize("second", ["int with nulls", "float", "bool with nulls"])
def test_a_later_parquet_file_may_have_another_type_but_not_other_values(second, tmp_path):
    # whole numbers in the first file; the type of the block must not be taken for all of them
    first = {name: [0, 1, 1] for name in NAMES}
    later = {
        "int with nulls": pa.table({n: pa.array([1, None, 3]) for n in NAMES}),
        "float": pa.table({n: pa.array([0.5, 1.5, 2.5]) for n in NAMES}),
        "bool with nulls": pa.table({n: pa.array([True, None, False]) for n in NAMES}),
    }[second]
    if "bool" in second:
        first = {name: [False, True, True] for name in NAMES}
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    pq.write_table(later, tmp_path / "b.parquet")
    values = np.concatenate(
        [
            np.array(list(first.values()), dtype=float).T,
            later.to_pandas().astype(float).to_numpy(),
        ]
    )
    got = computed(ds.sketch(tmp_path, feature_map(), nan_policy="omit"))
    assert_same_sketch(partial_sketch(values, feature_map(), nan_policy="omit"), got)


DECIMALS = ["1.25", None, "-3.10", "1234567.01"]


@pytest.mark.parametrize("kind", [pa.decimal128(9, 2), pa.decimal128(38, 18), pa.decimal256(60, 9)])
def test_decimals_are_numbers(kind, tmp_path):
    given = [decimal.Decimal(text) if text else None for text in DECIMALS]
    values = np.array([[float(value) if value else np.nan] * 3 for value in given])
    pq.write_table(pa.table({n: pa.array(given, kind) for n in NAMES}), tmp_path / "x.parquet")
    got = computed(ds.sketch(tmp_path, FM, nan_policy="omit"))
    assert_same_sketch(partial_sketch(values, FM, nan_policy="omit"), got)


def test_a_later_file_without_any_value_has_missing_ones(tmp_path):
    pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / "0.parquet")
    nothing = pa.table({"a": pa.nulls(2), "b": [0.0, 1.0], "c": [0.0, 1.0]})
    pq.write_table(nothing, tmp_path / "1.parquet")
    got = computed(ds.sketch(tmp_path, FM, nan_policy="omit"))
    assert (got.count, got.omitted) == (len(X), 2)


@pytest.mark.parametrize("values", [["x", "y"], ["1.5", "2"]])
def test_a_column_that_is_text_in_a_later_file_is_named(values, tmp_path):
    pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / "0.parquet")
    text = pa.table({"a": [0.0, 1.0], "b": values, "c": [0.0, 1.0]})
    pq.write_table(text, tmp_path / "1.parquet")
    with pytest.raises(ChunkError, match=r"1\.parquet are not numeric: b \("):
        run(tmp_path)


@pytest.mark.parametrize("columns", [["a", "b", "sea"], ["a", "b"]])
def test_a_column_that_a_later_file_lacks_is_named(columns, tmp_path):
    pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / "0.parquet")
    table = pd.DataFrame(X[:5, : len(columns)], columns=columns)
    table.to_parquet(tmp_path / "1.parquet", index=False)
    with pytest.raises(ChunkError, match=r"1\.parquet .* lacks the columns 'c'") as caught:
        run(tmp_path)
    assert ("'sea'" in str(caught.value)) == ("sea" in columns)


DAMAGES = [
    b"", b"3", b'"a"', b"[" * 100_000, b'{"columns": [{"pandas_type": "categorical"}]}',
    b'{"columns": [], "index_columns": [{"kind": "range"}]}',
    b'{"columns": [{"name": "a", "field_name": "a", "pandas_type": "datetimetz", '
    b'"metadata": {"timezone": "X/Y"}}], "index_columns": [], "column_indexes": []}',
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGES)
@pytest.mark.parametrize("later", [False, True])
def test_damaged_metadata_of_pandas_is_named(text, later, tmp_path):
    table = pa.table(dict(zip(NAMES, X.T, strict=True)))
    damaged = table.replace_schema_metadata({b"pandas": text})
    pq.write_table(damaged, tmp_path / ("1.parquet" if later else "0.parquet"))
    if later:
        pq.write_table(pa.concat_tables([table] * 2), tmp_path / "0.parquet")
    with pytest.raises(ChunkError, match=rf"{later:d}\.parquet.* could not be read"):
        run(tmp_path)


def test_an_empty_first_file_says_nothing_of_the_sizes(tmp_path):
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    parquet(x[:0], x[:0, 0], tmp_path / "0.parquet")
    parquet(x, x[:, 0], tmp_path / "1.parquet", row_group_size=1000)
    samples = ds.open_samples(tmp_path, columns=NAMES, chunk_size="64KiB")
    assert samples.n_chunks > 5
    assert samples.largest_chunk > 24_000  # bytes of one row group


def test_the_largest_run_of_row_groups_is_known(tmp_path):
    x = np.random.default_rng(0).normal(size=(10_000, 3))
    parquet(x, x[:, 0], tmp_path / "x.parquet", row_group_size=8000)
    samples = ds.open_samples(tmp_path / "x.parquet", columns=NAMES, chunk_size="64KiB")
    assert samples.n_chunks == 2
    assert samples.largest_chunk == 8000 * 3 * 8


def test_the_largest_chunk_of_well_compressed_parquet_is_known(tmp_path):
    parquet(np.zeros((200_000, 3)), np.zeros(200_000), tmp_path / "x.parquet")
    samples = ds.open_samples(tmp_path / "x.parquet", columns=NAMES)
    assert samples.largest_chunk >= 200_000 * 3 * 8


class Marks:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


FEATURES = ds.FeatureMap(2, 20, scale=1.0)


def test_parquet_of_extension_types(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    mark = tmp_path / "ran"
    field = pa.field("x", pa.float64(), metadata={
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Marks(mark), protocol=0),
    })  # fmt: skip
    table = pa.table({"x": np.arange(4.0), "y": np.arange(4.0)})
    table = table.cast(pa.schema([field, pa.field("y", pa.float64())]))
    pq.write_table(table, tmp_path / "a.parquet")
    assert ds.sketch(str(tmp_path / "a.parquet"), FEATURES).compute().count == 4  # plain numbers
    assert not mark.exists()
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float64(), (2,)),
        pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8.0)), 2),
    )
    pq.write_table(pa.table({"x": tensor, "y": np.arange(4.0)}), tmp_path / "b.parquet")
    with pytest.raises(SketchError, match="x"):
        ds.sketch(str(tmp_path / "b.parquet"), FEATURES).compute()


def test_parquet_that_is_small_on_disk_only(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for number, n in enumerate((10, 10**6)):
        table = pa.table({"x": np.zeros(n), "y": np.zeros(n)})
        pq.write_table(table, tmp_path / f"{number}.parquet", compression="zstd")
    size = max(p.stat().st_size for p in tmp_path.iterdir())
    assert size < 10**5
    monkeypatch.setattr("dask_sketch.sources.parquet.MAX_BYTES", 10**7)
    with pytest.raises(ChunkError, match="16,000,000 bytes"):
        ds.sketch(str(tmp_path), FEATURES).compute(scheduler="sync")


@pytest.mark.parametrize("link", ["file", "folder", "dangling", "pipe"])
@pytest.mark.parametrize("pattern", ["", "*.parquet", "**/*.parquet"])
def test_links_and_pipes_are_refused_and_not_left_out(link, pattern, tmp_path):
    folder = tmp_path / "days"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    for place in (folder / "a.parquet", tmp_path / "elsewhere" / "b.parquet"):
        pd.DataFrame(X, columns=NAMES).to_parquet(place)
    name = "day=2" if link == "folder" else "b.parquet"
    if link == "pipe":
        os.mkfifo(folder / name)
    else:
        to = {"file": "elsewhere/b.parquet", "folder": "elsewhere", "dangling": "nowhere"}[link]
        (folder / name).symlink_to(tmp_path / to)
    if (link, pattern) == ("folder", "*.parquet"):  # which does not match it
        assert run(folder / pattern).count == 60
        return
    with pytest.raises(InputError, match=rf"{name}.* symbolic link"):
        ds.open_samples(f"{folder}/{pattern}")


def test_links_to_other_files_do_no_harm(tmp_path):
    pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "README.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "_latest").symlink_to(tmp_path)
    assert run(tmp_path).count == 60


def test_a_link_that_is_given_is_followed(tmp_path):
    (tmp_path / "days").mkdir()
    pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / "days" / "a.parquet")
    (tmp_path / "latest.parquet").symlink_to(tmp_path / "days" / "a.parquet")
    (tmp_path / "all").symlink_to(tmp_path / "days")
    assert run(tmp_path / "latest.parquet").count == run(tmp_path / "all").count == 60


def test_large_files_of_another_schema_are_errors_of_their_own(tmp_path):
    """Columns are compared with those of a file that has them, and the others are read."""
    long = np.random.default_rng(0).random(1000)
    for name, frame in {
        "a": pd.DataFrame({"x": long[:10], "y": long[:10]}),
        "b": pd.DataFrame({"x": long, "z": long}),
        "c": pd.DataFrame({"x": long, "y": list(map(str, long))}),
    }.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    samples = ds.open_samples(str(tmp_path), columns=["x", "y"])
    options = {"attempts": 1, "backoff": 0.0}
    found = dict(sketch_partitions(samples, range(3), ds.FeatureMap(2, 10, scale=1.0), **options))
    assert found[0].count == 10
    for number, name in ((1, "b"), (2, "c")):
        assert isinstance(found[number], ChunkError)
        assert re.search(rf"{name}\.parquet.*y", str(found[number]))


class Remote(MemoryFileSystem):
    """A file system that keeps its listings, and denies those of some folders."""

    cachable = False
    denied = ""
    error = PermissionError

    def __init__(self):
        super().__init__()
        self.store = {}
        self.pseudo_dirs = [""]
        self.listings = {}

    def ls(self, path, detail=True, **options):
        if self.denied and path.rstrip("/").endswith(self.denied):
            raise self.error(errno.EIO, f"no listing of {path}")
        if path not in self.listings:
            self.listings[path] = super().ls(path, detail=True, **options)
        return self.listings[path]

    def invalidate_cache(self, path=None):
        self.listings.clear()


@pytest.fixture
def remote():
    fs = Remote()
    fs.pipe({f"/days/day={day}/part={part}/0.parquet": b"x" for day in "12" for part in "ab"})
    fs.pipe({"/days/_metadata": b"x", "/days/day=1/about.txt": b"x"})
    return fs


ALL = [f"/days/day={day}/part={part}/0.parquet" for day in "12" for part in "ab"]
PATHS = ["/days", "/days/*/*/*.parquet", "/days/**/*.parquet", "/days/day=[12]/part=?/0.parquet"]


@pytest.mark.parametrize("path", PATHS)
def test_files_at_all_depths(path, remote):
    assert list_parquet_files(remote, path) == dict.fromkeys(ALL, 1)


def test_patterns_choose_among_folders(remote):
    remote.denied = "day=2"  # no step of the pattern needs it
    assert list(list_parquet_files(remote, "/days/day=1/*/0.parquet")) == ALL[:2]
    assert list(list_parquet_files(remote, "/days/*1/part=b/*")) == ALL[1:2]
    assert list_parquet_files(remote, "/days/day=3*/*/0.parquet") == {}


@pytest.mark.parametrize("error", [PermissionError, OSError, TimeoutError])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("denied", ["day=1", "day=2/part=b"])
def test_a_folder_that_cannot_be_listed_is_an_error(denied, path, error, remote):
    remote.denied, remote.error = denied, error
    with pytest.raises(error, match=denied):
        list_parquet_files(remote, path)


@pytest.mark.parametrize("path", PATHS)
def test_files_that_were_added_are_listed(path, remote):
    list_parquet_files(remote, path)
    remote.pipe("/days/day=2/part=c/0.parquet", b"xyz")
    assert list_parquet_files(remote, path)["/days/day=2/part=c/0.parquet"] == 3


HIDDEN = ["/days/.a.parquet", "/days/_a.parquet", "/days/.old/a.parquet", "/days/_delta_log/1/a.pq"]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("path", ["/days", "/days/**/*.p*"])
def test_hidden_files_are_left_out_with_a_warning(path, hidden, remote):
    remote.pipe(hidden, b"x")
    with pytest.warns(UserWarning, match=rf"1 of 5 Parquet files .*{hidden}"):
        assert list_parquet_files(remote, path) == dict.fromkeys(ALL, 1)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_files_are_found_where_they_are_named(hidden, remote):
    remote.pipe(hidden, b"xy")
    folder = hidden.rpartition("/")[0]
    assert list_parquet_files(remote, hidden) == {hidden: 2}
    step = hidden.split("/")[2]
    assert list_parquet_files(remote, f"/days/{step[0]}*{hidden[len('/days/') + len(step) :]}") == {
        hidden: 2
    }
    if folder != "/days":
        assert list_parquet_files(remote, folder) == {hidden: 2}


def test_folders_of_partitions_may_begin_with_an_underscore(remote):
    remote.pipe("/days/day=1/_hour=3/0.parquet", b"x")
    assert "/days/day=1/_hour=3/0.parquet" in list_parquet_files(remote, "/days")
