"""Opened samples: errors of features, values and weights name chunk and row; positions of rows."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError, MergeError
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Place, Positions

FM = feature_map()


X = draw_rows(0, 60, 3)


NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


def wrong_features(tmp_path):
    wide = np.zeros((6, 4))
    zarr.create_array(str(tmp_path / "x.zarr"), data=wide)
    pd.DataFrame(wide, columns=list("abcd")).to_parquet(tmp_path / "x.parquet")
    return {
        "numpy": wide,
        "dask": da.from_array(wide),
        "zarr": tmp_path / "x.zarr",
        "parquet": tmp_path / "x.parquet",
        "pandas": pd.DataFrame(wide),
        "bag": db.from_sequence([wide]),
        "labelled": xr.DataArray(wide, dims=("t", "f")).chunk(),
    }


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "parquet", "pandas", "bag", "labelled"])
def test_wrong_number_of_features(kind, tmp_path):
    x = wrong_features(tmp_path)[kind]
    with pytest.raises(InputError, match=r"4 features: .* n_features=3|n_features=3"):
        run(x)
    if kind != "bag":
        with pytest.raises(InputError, match=r"4 features: .* n_features=3|n_features=3"):
            ds.plan(x, FM)


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "labelled"])
@pytest.mark.parametrize("values", [np.array([["a", "b", "c"]]), np.zeros((4, 3), dtype=complex)])
def test_values_that_are_not_real_numbers(kind, values, tmp_path):
    if kind == "zarr" and values.dtype.kind == "U":
        values = values.astype("U1")
    sources = {
        "numpy": lambda: values,
        "dask": lambda: da.from_array(values),
        "labelled": lambda: xr.DataArray(values, dims=("t", "f")),
    }
    if kind == "zarr":
        if values.dtype.kind == "U":
            pytest.skip("Zarr warns of strings of fixed length")
        zarr.create_array(str(tmp_path / "x.zarr"), data=values)
        sources["zarr"] = lambda: tmp_path / "x.zarr"
    with pytest.raises(InputError, match="dtype="):
        ds.open_samples(sources[kind]())


def empty(tmp_path):
    none = np.zeros((0, 3))
    zarr.create_array(str(tmp_path / "x.zarr"), data=none, chunks=(5, 3))
    frame = pd.DataFrame(none, columns=NAMES)
    frame.to_parquet(tmp_path / "x.parquet")
    lazy = da.from_array(X, chunks=(20, 3))
    return {
        "numpy": none,
        "dask": da.from_array(none),
        "filtered": lazy[lazy[:, 0] > 1e9],
        "zarr": tmp_path / "x.zarr",
        "pandas": frame,
        "parquet": tmp_path / "x.parquet",
        "bag": db.from_sequence([1, 2, 3], npartitions=2).filter(lambda item: item > 5),
        "blocks": db.from_sequence([none, none]),
        "labelled": xr.DataArray(none, dims=("t", "f")),
    }


EMPTY = ["numpy", "dask", "filtered", "zarr", "pandas", "parquet", "bag", "blocks", "labelled"]


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_input(kind, tmp_path):
    with pytest.raises(InputError, match="no rows"):
        run(empty(tmp_path)[kind])


def bad_rows(kind, tmp_path, values):
    """Rows of which some are not finite, in chunks of 20, for each kind of input."""
    zarr.create_array(str(tmp_path / "x.zarr"), data=values, chunks=(20, 3))
    frame = pd.DataFrame(values, columns=NAMES)
    (tmp_path / "p").mkdir()
    for i in range(3):
        frame[20 * i : 20 * i + 20].to_parquet(tmp_path / "p" / f"{i}.parquet")
    return {
        "dask": lambda: (da.from_array(values, chunks=(20, 3)), {}),
        "joined features": lambda: (da.from_array(values, chunks=(20, 2)), {}),
        "zarr": lambda: (tmp_path / "x.zarr", {"chunk_size": 1}),
        "parquet": lambda: (tmp_path / "p", {}),
        "frame": lambda: (dd.from_pandas(frame, npartitions=3), {}),
        "bag": lambda: (db.from_sequence([values[:20], values[20:40], values[40:]]), {}),
        "labelled": lambda: (xr.DataArray(values, dims=("t", "f")).chunk(t=20), {}),
    }[kind]()


KINDS = ["dask", "joined features", "zarr", "parquet", "frame", "bag", "labelled"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_names_its_chunk_and_itself(kind, tmp_path):
    values = X.copy()
    values[47, 1] = np.nan
    source, options = bad_rows(kind, tmp_path, values)
    with pytest.raises(ChunkError, match=r"^chunk 2 .* row 7 .* nan in feature 1"):
        run(source, **options)
    got = run(source, nan_policy="omit", **options)
    assert (got.count, got.omitted) == (59, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_weight_names_its_chunk_and_row(kind, tmp_path):
    values = X.copy()
    source, options = bad_rows(kind, tmp_path, values)
    w = np.ones(60)
    w[47] = -1.0
    weights = w
    if kind == "bag":
        weights = db.from_sequence([w[:20], w[20:40], w[40:]])
    if kind == "frame":
        weights = da.from_array(w, chunks=20)
    if kind == "parquet":
        for i in range(3):
            path = tmp_path / "p" / f"{i}.parquet"
            part = slice(20 * i, 20 * i + 20)
            pd.DataFrame(X[part], columns=NAMES).assign(w=w[part]).to_parquet(path)
        weights = "w"
    with pytest.raises(ChunkError, match=r"chunk 2 .* row 7 .* weight=-1\.0"):
        run(source, weights, **options)


def test_all_rows_bad():
    bad = np.full((60, 3), np.nan)
    with pytest.raises(InputError, match="60 rows"):
        run(bad, nan_policy="omit")
    with pytest.raises(ChunkError, match=r"row 0 of .* nan"):
        run(bad)


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "labelled", "list"])
@pytest.mark.parametrize("n", [0, 1, 59, 61])
def test_weights_of_another_length(kind, n, tmp_path):
    w = np.ones(n)
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(20, 3))
    source = {
        "numpy": X,
        "dask": da.from_array(X, chunks=(20, 3)),
        "zarr": tmp_path / "x.zarr",
        "labelled": xr.DataArray(X, dims=("t", "f")),
        "list": X.tolist(),
    }[kind]
    for weights in (w, w.tolist(), da.from_array(w)):
        with pytest.raises(InputError, match=r"weights has shape=|weights of .* size="):
            ds.sketch(source, FM, weights)


def test_features_keep_their_names_and_order():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 3)), columns=list("abc"))
    feature_map = ds.design(frame, n_components=1)
    assert feature_map.feature_names == ("a", "b", "c")
    whole = ds.sketch(frame, feature_map)
    # what has no names is taken as it stands
    assert ds.sketch(frame.to_numpy(), feature_map).identical(whole)
    turned = frame[["c", "a", "b"]]
    assert ds.sketch(turned, feature_map, columns=["a", "b", "c"]).identical(whole)
    dataset = xr.Dataset({name: ("row", turned[name]) for name in turned})
    for given in (turned, dd.from_pandas(turned, npartitions=2), dataset):
        for use in (ds.sketch, ds.plan):
            with pytest.raises(InputError, match=r"feature 0 .* 'c'.* 'a'"):
                use(given, feature_map)
    model = ds.decode(whole, 1)
    assert model.feature_names == ("a", "b", "c")
    scores = [model.score(frame), float(model.score(dd.from_pandas(frame, npartitions=2)))]
    assert scores == pytest.approx([model.score(frame.to_numpy())] * 2)
    for given in (turned, dd.from_pandas(turned, npartitions=2)):
        with pytest.raises(InputError, match=r"'c'.* 'a'"):
            model.predict(given)
    # the features are found by name among others
    for more in (frame.assign(id="text"), frame.assign(id=1.0)[["id", "b", "c", "a"]]):
        forms = (more, dd.from_pandas(more, npartitions=2), pa.Table.from_pandas(more))
        variables = xr.Dataset({name: ("row", more[name]) for name in more})
        for given in (*forms, pl.from_pandas(more), variables):
            assert dask.compute(ds.sketch(given, feature_map))[0].identical(whole)
        for given in forms[:2]:
            found = dask.compute(model.predict(given))[0]
            np.testing.assert_array_equal(found, model.predict(frame))
        again = ds.polish(model, more, passes=1)
        np.testing.assert_array_equal(again.means, ds.polish(model, frame, passes=1).means)
    for use in (model.predict, lambda x: ds.sketch(x, feature_map)):
        with pytest.raises(InputError, match=r"3.* Add 'b'"):
            use(frame[["a", "c"]])
    named = {"n_features": 3, "n_frequencies": 10, "scale": 1.0}
    one = ds.sketch(turned, ds.FeatureMap(**named, feature_names=list("cab")))
    with pytest.raises(MergeError, match="differ in feature_names"):
        one + ds.sketch(frame, ds.FeatureMap(**named, feature_names=list("abc")))


NUMBERS = np.arange(60.0).reshape(5, 4, 3)  # rows of axes (5, 4) with three features


@pytest.mark.parametrize("chunks", [(5, 4), (2, 4), (2, 3), ((1, 3, 1), (1, 2, 1))])
def test_positions_over_several_axes(chunks):
    x = da.from_array(NUMBERS, chunks=(*chunks, 3))
    positions = Positions.in_source(open_samples(x))
    for number in np.ndindex(*x.numblocks[:2]):
        block = x.blocks[(*number, 0)].compute()
        place = positions.of(number, block)
        assert place.stream == ()
        np.testing.assert_array_equal(place.positions, block[..., 0].ravel() / 3)


@pytest.mark.parametrize(("chunks", "start"), [((7,), 14), (((5, 9, 6),), 14)])
def test_positions_along_one_axis(chunks, start):
    x = da.zeros((20, 2), chunks=(*chunks, 2))
    positions = Positions.in_source(open_samples(x), 100)
    assert positions.of((2,), np.zeros((6, 2))) == Place((), start + 100)


def test_chunks_of_unknown_size_have_positions_of_their_own():
    x = da.from_array(np.zeros((20, 2)), chunks=(5, 2))
    unknown = x[x[:, 0] >= 0]
    bag = db.from_sequence([np.zeros((5, 2))] * 4, npartitions=2)
    for source in (unknown, bag):
        positions = Positions.in_source(open_samples(source))
        assert positions.of((1,), np.zeros((5, 2)), row=3) == Place((1,), 3)
