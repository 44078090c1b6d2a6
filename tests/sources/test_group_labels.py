"""Labels of groups in the way that each input has them; what does not fit is refused."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from inputs import Tensor
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError

FM = feature_map(n_frequencies=20)
NAMES = list("abc")
N = 90
X = draw_rows(1, N, 3)
W = np.random.default_rng(2).random(N) + 0.1
SPEAKERS = np.array(["ann", "bob", "christina"])
CODES = np.random.default_rng(3).integers(3, size=N)
LABELS = SPEAKERS[CODES]


def frame():
    return pd.DataFrame(X, columns=NAMES).assign(w=W, speaker=LABELS)


def lazy(values, rows=20):
    return da.from_array(values, chunks=(rows, *values.shape[1:]))


def records(**more):
    return [
        dict(zip(NAMES, row, strict=True)) | {"w": w, "speaker": label}
        for row, w, label in zip(X, W, LABELS, strict=True)
    ]


# Each builder gives (input, weights, groups); ``place`` is an empty folder. Groups are the names of
# SPEAKERS, or the numbers CODES where the builder is in NUMBERED.
BUILDERS, NUMBERED = (
    {},
    {"dask array of numbers", "zarr numbers", "numbers in memory", "tensors"},
)


def builder(function):
    BUILDERS[function.__name__.replace("_", " ")] = function
    return function


@builder
def numpy_array(place):
    return X, W, LABELS


@builder
def numbers_in_memory(place):
    return X, W, CODES.astype(np.uint8)


@builder
def tensors(place):
    return Tensor(X), Tensor(W), Tensor(CODES)


@builder
def series_of_polars(place):
    polars = pytest.importorskip("polars")
    return X, polars.Series(W), polars.Series(LABELS)


@builder
def list_of_labels(place):
    return lazy(X), W, LABELS.tolist()


@builder
def pandas_series(place):
    return X, W, pd.Series(LABELS, index=range(1000, 1000 + N))


@builder
def pandas_categorical(place):
    return lazy(X), W, pd.Series(LABELS).astype("category")


@builder
def data_array_for_an_array(place):
    return lazy(X), W, xr.DataArray(LABELS, dims="frame")


@builder
def dask_array_of_numbers(place):
    return lazy(X), lazy(W), lazy(CODES, 7)


@builder
def dask_array_of_text(place):
    return lazy(X), lazy(W), lazy(LABELS.astype(object), 33)


@builder
def dask_array_feature_chunks(place):
    return da.from_array(X, chunks=(13, 2)), W, LABELS


@builder
def dask_array_unknown_chunks(place):
    keep = lazy(np.ones(N, dtype=bool))
    return lazy(X)[keep], lazy(W)[keep], lazy(LABELS)[keep]


@builder
def dask_series(place):
    table = dd.from_pandas(frame(), npartitions=4)
    return table[NAMES], table["w"], table["speaker"]


@builder
def pandas_column(place):
    return frame(), "w", "speaker"


@builder
def dask_column(place):
    return dd.from_pandas(frame(), npartitions=4), "w", "speaker"


@builder
def dask_categorical_column(place):
    table = frame().astype({"speaker": "category"})
    return dd.from_pandas(table, npartitions=4), "w", "speaker"


@builder
def csv_column(place):
    frame().to_csv(place / "x.csv", index=False)
    return dd.read_csv(str(place / "x.csv"), blocksize=1000), "w", "speaker"


@builder
def parquet_column(place):
    for i in range(0, N, 25):
        frame()[i : i + 25].to_parquet(place / f"{i:03}.parquet", index=False)
    return str(place), "w", "speaker"


@builder
def bag_field(place):
    return db.from_sequence(records(), npartitions=4), "w", "speaker"


@builder
def bag_of_blocks(place):
    edges = range(0, N, 7)
    bags = [
        db.from_sequence([values[i : i + 7] for i in edges], npartitions=4)
        for values in (X, W, LABELS)
    ]
    return tuple(bags)


@builder
def bag_of_rows(place):
    return tuple(db.from_sequence(v.tolist(), npartitions=4) for v in (X, W, LABELS))


@builder
def data_array_coordinate(place):
    array = xr.DataArray(X, dims=("frame", "feature")).assign_coords(
        speaker=("frame", LABELS), w=("frame", W)
    )
    return array.chunk(frame=20), "w", "speaker"


@builder
def data_array_lazy_coordinate(place):
    array = xr.DataArray(lazy(X), dims=("frame", "feature"))
    return array.assign_coords(speaker=("frame", lazy(LABELS, 33))), W, "speaker"


@builder
def dataset_variable(place):
    columns = {name: ("frame", X[:, i]) for i, name in enumerate(NAMES)}
    dataset = xr.Dataset(columns | {"w": ("frame", W), "speaker": ("frame", LABELS)})
    return dataset.chunk(frame=20), "w", "speaker"


def files_of(numbers, place):
    """Frames of files, of which there is a number each: a speaker for each file."""
    dataset = xr.Dataset(
        {"x": (("frame", "feature"), X), "w": ("frame", W)},
        coords={
            "file": ("frame", numbers, {"instance_dimension": "recording"}),
            "speaker": ("recording", np.array([*SPEAKERS, "ann"], dtype=object)),
        },
    )
    dataset.to_zarr(place / "x.zarr", consolidated=False, encoding={"x": {"chunks": (20, 3)}})
    return place / "x.zarr"


@builder
def zarr_label_of_each_file(place):
    numbers = np.where((CODES == 0) & (np.arange(N) > 40), 3, CODES)
    return str(files_of(numbers, place)), "w", "speaker"


@builder
def xarray_label_of_each_file(place):
    numbers = np.where((CODES == 0) & (np.arange(N) > 40), 3, CODES)
    opened = xr.open_zarr(files_of(numbers, place), consolidated=False)
    return opened, "w", "speaker"


def with_names(place):
    group = zarr.open_group(str(place / "x.zarr"), mode="w")
    group.create_array("x", data=X, chunks=(20, 3))
    group.create_array("w", data=W, chunks=(20,))
    numbers = group.create_array("speaker", data=CODES.astype(np.int32), chunks=(33,))
    return group, numbers


@builder
def zarr_numbers(place):
    with_names(place)
    return place / "x.zarr", "w", "speaker"


@builder
def zarr_numbers_of_names(place):
    with_names(place)[1].attrs["names"] = SPEAKERS.tolist()
    return place / "x.zarr", "w", "speaker"


@builder
def zarr_array_of_labels(place):
    with_names(place)
    return place / "x.zarr", "w", LABELS


CASES = [(name, True) for name in BUILDERS] + [
    (name, False)
    for name in ("dask array of numbers", "parquet column", "bag field", "dataset variable")
]


@pytest.mark.parametrize(("name", "weighted"), CASES)
@pytest.mark.few_cases(8)
def test_every_input_gives_the_sketches_of_its_groups(name, weighted, tmp_path):
    x, weights, groups = BUILDERS[name](tmp_path)
    options = {}
    if not weighted:
        if isinstance(weights, str):  # they are no features either way
            weights, options = (None, {"columns": NAMES}) if has_columns(x) else (None, {})
            if isinstance(x, xr.Dataset) and "x" in x:
                options = {"columns": ["x"]}
        else:
            weights = None
    group = ds.sketch(x, FM, weights, groups=groups, **options)
    group = group if isinstance(group, ds.SketchGroup) else group.compute(scheduler="sync")
    wanted = np.arange(3) if name in NUMBERED else SPEAKERS
    np.testing.assert_array_equal(group.labels, wanted)
    assert group.labels.dtype.kind == wanted.dtype.kind
    assert group.dim == (groups if isinstance(groups, str) else "group")
    for code, label in enumerate(wanted):
        rows = code == CODES
        alone = partial_sketch(X[rows], FM, W[rows] if weighted else None)
        assert_same_sketch(group[label], alone)


def has_columns(x):
    path = isinstance(x, str) and not x.endswith(".zarr")
    return path or (hasattr(x, "columns") or isinstance(x, (db.Bag, xr.Dataset)))


@pytest.mark.parametrize("lazy", [False, True])
def test_labels_along_one_of_two_dimensions(lazy):
    x = xr.DataArray(X.reshape(9, 10, 3), dims=("time", "place", "feature")).chunk(time=2, place=4)
    month = np.array([1, 1, 2, 2, 2, 3, 3, 3, 3])
    x = x.assign_coords(month=("time", month), region=("place", list("nnnssseeww")))
    if lazy:
        x = x.chunk(time=2, place=4)
    for name, labels in (("month", month[:, None]), ("region", x.region.values[None])):
        rows = np.broadcast_to(labels, (9, 10)).reshape(-1)
        group = ds.sketch(x, FM, groups=name).compute(scheduler="sync")
        assert list(group) == sorted(set(rows.tolist()))
        for label in group:
            assert_same_sketch(group[label], partial_sketch(X[rows == label], FM))
    both = ds.sketch(x, FM, groups=x.month + 10 * (x.region == "n")).compute(scheduler="sync")
    assert list(both) == [1, 2, 3, 11, 12, 13]
    with pytest.raises(InputError, match=r"groups has dims=\('day',\).*instance_dimension"):
        ds.sketch(x, FM, groups=xr.DataArray([1, 2], dims="day"))


@pytest.mark.parametrize("days", [("2", "10"), ("mon", "tue")])
def test_labels_in_the_paths_of_files(days, tmp_path):
    for day, rows in zip(days, (slice(0, 40), slice(40, None)), strict=True):
        (tmp_path / f"day={day}").mkdir()
        frame()[NAMES][rows].to_parquet(tmp_path / f"day={day}" / "0.parquet", row_group_size=15)
    lazy_group = ds.sketch(tmp_path, FM, groups="day", chunk_size=300)
    assert lazy_group.samples.n_chunks > 2
    group = lazy_group.compute(scheduler="sync")
    assert (list(group), group.dim) == ([2, 10] if days[0] == "2" else ["mon", "tue"], "day")
    assert_same_sketch(group[group.labels[0]], partial_sketch(X[:40], FM))
    assert_same_sketch(group[group.labels[1]], partial_sketch(X[40:], FM))
    with pytest.raises(InputError, match="groups='da'"):
        ds.sketch(tmp_path, FM, groups="da")


@pytest.mark.slow
def test_speech_stores_have_speakers_and_files(tmp_path):
    from dask_sketch.speech.feature_store import Shard, complete_store, create_store, write_rows
    from dask_sketch.speech.mfcc import FrontEnd

    fm = feature_map("float32", n_frequencies=20)
    path, files = str(tmp_path / "x.zarr"), np.repeat([0, 1, 2], 30)
    speakers = np.array([1, 0, 1], dtype=np.int32)[files]
    create_store(
        path, n_frames=N, files=["0_bob.wav", "0_ann.wav", "1_bob.wav"], speakers=["ann", "bob"],
        front_end=FrontEnd(8000, 0.023, 3, 30.0), chunk_frames=20, shard_frames=40,
    )  # fmt: skip
    x = X.astype(np.float32)
    for start in range(0, N, 40):
        rows = slice(start, min(start + 40, N))
        shard = Shard(rows.start, rows.stop, ())
        write_rows(path, shard, x[rows], files[rows].astype(np.int32), speakers[rows])
    complete_store(path)
    wanted = {
        "speaker": np.array(["ann", "bob"])[speakers],
        "file": files,
        "file_name": np.array(["0_bob.wav", "0_ann.wav", "1_bob.wav"])[files],
    }
    for source in (path, xr.open_zarr(path)):
        for name, labels in wanted.items():
            group = ds.sketch(source, fm, groups=name).compute(scheduler="sync")
            assert group.dim == name
            assert list(group) == sorted(set(labels.tolist()))
            for label in group:
                assert_same_sketch(group[label], partial_sketch(x[labels == label], fm))


def test_numbers_of_no_name_are_refused(tmp_path):
    _, numbers = with_names(tmp_path)
    numbers.attrs["names"] = ["ann", "bob"]
    lazy_group = ds.sketch(tmp_path / "x.zarr", FM, groups="speaker", array="x")
    with pytest.raises(ChunkError, match=r"groups 'speaker' of .*: 2 "):
        lazy_group.compute(scheduler="sync")
    numbers[3] = -1
    with pytest.raises(ChunkError, match=r": -1 .* 2 names"):
        lazy_group.compute(scheduler="sync")


BAD = {
    "short": (lambda: (X, LABELS[:80]), r"groups has shape=\(80,\): .*\(90,\)"),
    "short lazy": (
        lambda: (lazy(X), lazy(CODES[:80])),
        r"groups has shape=\(80,\): .*\(90,\)",
    ),
    "of two axes": (lambda: (X, CODES[:, None]), r"groups has shape=\(90, 1\)"),
    "in memory for unknown chunks": (
        lambda: (lazy(X)[lazy(np.ones(N, dtype=bool))], LABELS),
        "groups is in memory, but .* chunks of unknown length",
    ),
    "unlike chunks": (
        lambda: (
            lazy(X)[lazy(np.ones(N, dtype=bool))],
            lazy(CODES, 45)[lazy(np.ones(N, dtype=bool), 45)],
        ),
        r"groups has \(2,\) chunks, .* has \(5,\)",
    ),
    "a name for an array": (lambda: (X, "speaker"), "groups='speaker' is a name, but the array"),
    "no column": (lambda: (frame(), "speakers"), "groups='speakers'"),
    "no lazy column": (
        lambda: (dd.from_pandas(frame(), npartitions=2), "x"),
        "groups='x'",
    ),
    "no coordinate": (
        lambda: (xr.DataArray(X, dims=("t", "f")), "speaker"),
        "groups='speaker'",
    ),
    "mixed": (lambda: (X[:2], ["a", 1]), "labels of types int, str"),
    "with zero bytes": (lambda: (X[:2], ["a", "a\0"]), "groups of .* zero byte"),
    "of no kind": (lambda: (X[:2], [1j, 2j]), "of type complex128|types complex"),
    "bags of other partitions": (
        lambda: (db.from_sequence(X.tolist(), npartitions=3), db.from_sequence([1, 2])),
        "groups of type Bag with npartitions=2: .* npartitions=3",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_labels_that_do_not_fit(name):
    make, message = BAD[name]
    x, groups = make()
    with pytest.raises(InputError, match=message):
        ds.sketch(x, FM, groups=groups, **({"columns": NAMES} if has_columns(x) else {}))


def test_labels_that_do_not_fit_a_store(tmp_path):
    group, _ = with_names(tmp_path)
    group.create_array("short", data=CODES[:80])
    table = frame()
    table.to_parquet(tmp_path / "x.parquet")
    for path, groups, message in (
        ("x.zarr", "short", r"groups='short' has shape=\(80,\): .* 90 rows"),
        ("x.zarr", "no", "groups='no'"),
        ("x.zarr", CODES[:80], r"groups has shape=\(80,\): .*\(90,\)"),
        ("x.parquet", "no", "groups='no'"),
        ("x.parquet", CODES, "groups of type ndarray cannot be matched"),
    ):
        with pytest.raises(InputError, match=message):
            ds.open_samples(tmp_path / path, groups=groups)


def test_records_without_a_label(tmp_path):
    items = records()
    del items[50]["speaker"]
    bag = db.from_sequence(items, npartitions=2)
    with pytest.raises(InputError, match="has no field 'speaker'"):
        ds.sketch(bag, FM, "w", groups="speaker").compute(scheduler="sync")
    with pytest.raises(InputError, match=r"groups='speaker' .* type list"):
        ds.sketch(db.from_sequence(X.tolist()), FM, groups="speaker").compute(scheduler="sync")
    some = db.from_sequence(LABELS.tolist()[:-1], npartitions=3)
    with pytest.raises(InputError, match="groups of "):
        ds.sketch(db.from_sequence(X.tolist(), npartitions=3), FM, groups=some).compute(
            scheduler="sync"
        )


@pytest.mark.parametrize("kind", ["array", "frame", "numbers"])
def test_rows_without_a_label(kind):
    labels = LABELS.astype(object)
    labels[[5, 70]] = None
    x = {
        "array": (lazy(X), labels),
        "frame": (dd.from_pandas(frame().assign(speaker=labels), npartitions=3), "speaker"),
        "numbers": (lazy(X), np.where(np.isin(np.arange(N), [5, 70]), np.nan, CODES)),
    }[kind]
    options = {"columns": NAMES} if kind == "frame" else {}
    with pytest.raises(ChunkError, match=r"row (5|10) "):
        ds.sketch(x[0], FM, groups=x[1], **options).compute(scheduler="sync")
    left = ds.sketch(x[0], FM, groups=x[1], nan_policy="omit", **options).compute(scheduler="sync")
    assert (left.unlabelled, int(left.count.sum()), len(left)) == (2, N - 2, 3)


@pytest.mark.parametrize("kind", ["frame", "dask frame", "bag", "dataset", "parquet"])
def test_a_label_is_no_feature(kind, tmp_path):
    table = frame().drop(columns="w").assign(speaker=CODES)
    table.to_parquet(tmp_path / "x.parquet", index=False)
    x = {
        "frame": table,
        "dask frame": dd.from_pandas(table, npartitions=2),
        "bag": db.from_sequence(table.to_dict("records"), npartitions=2),
        "dataset": xr.Dataset.from_dataframe(table).chunk(index=20),
        "parquet": tmp_path / "x.parquet",
    }[kind]
    samples = ds.open_samples(x, groups="speaker")
    assert samples.n_features in (3, None)
    assert samples.groups.dim == "speaker"
    model = ds.GaussianMixture(
        weights=np.ones(1), means=np.zeros((1, 3)), covariances=np.ones((1, 3))
    )
    assert ds.design(samples, n_components=1).n_features == 3
    (scores,) = dask.compute(model.logpdf(samples), scheduler="sync")
    scores = list(scores)
    np.testing.assert_allclose(scores, model.logpdf(X))
    (score,) = dask.compute(model.score(samples), scheduler="sync")
    assert score == pytest.approx(model.score(X))
