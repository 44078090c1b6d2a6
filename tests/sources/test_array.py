"""Arrays: shapes, masks and weights."""

from __future__ import annotations

import pickle

import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import InputError

FM = feature_map()


X = draw_rows(0, 60, 3)


NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(5),
        np.zeros((2, 3, 4)),
        np.zeros((5, 0)),
        da.zeros(5),
        da.zeros((5, 0)),
        [1.0, 2.0],
        xr.DataArray(np.zeros(5), dims="t"),
    ],
)
def test_arrays_that_are_not_rows_of_features(x):
    with pytest.raises(InputError, match=r"shape=|dims="):
        ds.open_samples(x)


def test_named_fields_are_columns_of_a_table():
    x = np.zeros(5, dtype=[("age", "f8"), ("height", "f8")])
    for call in (ds.open_samples, lambda x: ds.design(x, n_components=1)):
        with pytest.raises(InputError, match=r"age, height.*pandas\.DataFrame\(x\)"):
            call(x)


def test_ragged_lists():
    with pytest.raises(InputError, match="x"):
        ds.open_samples([[1.0, 2.0], [3.0]])


def test_masked_arrays_are_not_read_through_their_mask():
    masked = np.ma.masked_array(X, mask=X > 1)
    with pytest.raises(InputError, match="mask"):
        ds.open_samples(masked)


def test_weights_of_unknown_length_are_checked_chunk_by_chunk():
    lazy = da.from_array(X, chunks=(20, 3))
    mask = da.from_array(np.arange(60) % 2 == 0, chunks=20)
    with pytest.raises(InputError, match="size=20"):
        run(lazy[mask], da.ones(60, chunks=20))


HIDDEN = np.ma.masked_array(X, mask=np.arange(180).reshape(60, 3) == 100)


ONE_HIDDEN = np.ma.masked_array(np.ones(60), mask=np.arange(60) == 33)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (HIDDEN, {}),
        (da.from_array(HIDDEN, chunks=(20, 3)), {}),
        (db.from_sequence([HIDDEN], npartitions=1), {}),
        (db.from_sequence(list(HIDDEN), npartitions=1), {}),
        (X, {"weights": ONE_HIDDEN}),
        (pd.DataFrame(X, columns=NAMES), {"weights": ONE_HIDDEN}),
        (da.from_array(X, chunks=(20, 3)), {"weights": da.from_array(ONE_HIDDEN, chunks=20)}),
        (X, {"groups": ONE_HIDDEN}),
        (da.from_array(X, chunks=(20, 3)), {"groups": da.from_array(ONE_HIDDEN, chunks=20)}),
    ],
)
def test_what_a_mask_hides_is_not_used(x, options):
    with pytest.raises(InputError, match="1 masked values"):
        run(x, **options)
    if "groups" not in options:
        with pytest.raises(InputError, match="1 masked values"):
            ds.design(x, n_frequencies=20, **options)


def test_a_mask_that_hides_nothing_is_fine():
    assert run(np.ma.masked_array(X)).identical(run(X))


def test_tasks_carry_the_path_of_a_numpy_file_and_not_its_rows(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    np.save(tmp_path / "x.npy", x)
    monkeypatch.chdir(tmp_path)
    samples = ds.open_samples("x.npy", chunk_size="64KiB")
    assert samples.label == f"the file {tmp_path / 'x.npy'}"
    assert samples.n_chunks > 5
    assert len(pickle.dumps(dict(samples.blocks.dask))) < 20_000
    monkeypatch.chdir(tmp_path.parent)  # the path is absolute
    assert run(samples).identical(ds.sketch(x, FM))
    with pytest.raises(InputError, match="storage_options"):
        ds.open_samples(tmp_path / "x.npy", storage_options={"anon": True})
