"""Models over lazy rows, with a model that is simple enough to check by hand."""

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

from dask_sketch.errors import InputError
from dask_sketch.graph.apply import apply


class Model:
    n_features, n_components, feature_names = 3, 2, None

    def logpdf(self, x):
        assert x.ndim == 2
        return x.sum(axis=1)

    def score(self, x):
        return float(self.logpdf(x).mean())

    def predict(self, x):
        return (self.logpdf(x) > 0).astype(np.intp)

    def predict_proba(self, x):
        share = 1 / (1 + np.exp(-self.logpdf(x)))
        return np.stack([share, 1 - share], axis=1)


MODEL = Model()
X = np.random.default_rng(0).normal(size=(60, 3))
NAMES = ["a", "b", "c"]
METHODS = ["logpdf", "predict", "predict_proba"]


def lazy_inputs(place):
    zarr.create_array(str(place / "x.zarr"), data=X, chunks=(20, 3))
    frame = pd.DataFrame(X, columns=NAMES)
    frame.to_parquet(place / "x.parquet")
    lazy = da.from_array(X, chunks=(20, 3))
    return {
        "array": lazy,
        "features": da.from_array(X, chunks=(20, 2)),
        "masked": lazy[da.from_array(np.ones(60, dtype=bool), chunks=20)],
        "frame": dd.from_pandas(frame, npartitions=3),
        "zarr": place / "x.zarr",
        "parquet": place / "x.parquet",
        "bag": db.from_sequence([X[:25], X[25:]]),
        "records": db.from_sequence(frame.to_dict("records"), npartitions=3),
        "labelled": xr.DataArray(X, dims=("t", "f")).chunk(t=20),
    }


KINDS = [
    "array", "features", "masked", "frame", "zarr", "parquet", "bag", "records", "labelled"
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.few_cases(10)
def test_every_row_gets_its_value(kind, method, tmp_path, counting):
    found = apply(MODEL, method, lazy_inputs(tmp_path)[kind])
    assert counting.computes == 0
    values = np.asarray(found.compute())
    np.testing.assert_allclose(values, getattr(MODEL, method)(X))
    if kind in ("array", "zarr", "labelled"):
        assert found.shape == values.shape
        assert found.dtype == values.dtype
    if kind == "labelled":
        assert found.dims == ("t", "component")[: values.ndim]


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_one_lazy_mean(kind, tmp_path, counting):
    score = apply(MODEL, "score", lazy_inputs(tmp_path)[kind])
    assert counting.computes == 0
    assert float(score.compute()) == pytest.approx(MODEL.score(X))
    assert counting.computes == 1


def test_the_score_is_weighted(tmp_path):
    w = np.random.default_rng(1).random(60)
    expected = np.average(MODEL.logpdf(X), weights=w)
    lazy = da.from_array(X, chunks=(20, 3))
    score = apply(MODEL, "score", lazy, weights=w)
    assert float(score.compute()) == pytest.approx(expected)
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES).assign(w=w), npartitions=3)
    assert float(apply(MODEL, "score", frame, weights="w").compute()) == pytest.approx(expected)
    values = apply(MODEL, "logpdf", frame, weights="w").compute()
    np.testing.assert_allclose(values, MODEL.logpdf(X))


def test_grids_keep_their_axes():
    cube = xr.DataArray(X.reshape(6, 10, 3), dims=("t", "s", "feature")).chunk(t=2, s=5)
    found = apply(MODEL, "predict_proba", cube)
    assert found.dims == ("t", "s", "component")
    np.testing.assert_allclose(found.compute(), MODEL.predict_proba(X).reshape(6, 10, 2))
    assert float(apply(MODEL, "score", cube).compute()) == pytest.approx(MODEL.score(X))


@pytest.mark.parametrize("method", [*METHODS, "score"])
def test_wrong_number_of_features(method):
    with pytest.raises(InputError, match="4 features.*n_features=3"):
        apply(MODEL, method, da.ones((5, 4)))


@pytest.mark.parametrize("method", [*METHODS, "score"])
def test_no_task_sees_more_than_its_own_partition(method):
    bag = db.from_sequence([X[i : i + 1] for i in range(60)], npartitions=60)
    (found,) = dask.optimize(apply(MODEL, method, bag))
    tasks = dict(found.__dask_graph__()).values()
    assert max(len(task.dependencies) for task in tasks) <= 16


def test_nothing_to_score():
    with pytest.raises(InputError, match="x has no samples"):
        apply(MODEL, "score", da.ones((0, 3))).compute(scheduler="sync")


def test_labels_of_the_rows_are_kept():
    times = np.arange(60) * 0.01
    labelled = xr.DataArray(X, dims=("t", "f"), coords={"t": times, "s": ("t", ["ada"] * 60)})
    found = apply(MODEL, "logpdf", labelled.chunk(t=20))
    np.testing.assert_array_equal(found.coords["t"], times)
    assert "s" in found.coords


@pytest.mark.parametrize("weights", [[-1.0] + [1.0] * 59, [np.nan] * 60])
def test_a_mean_takes_the_weights_that_it_would_take_in_memory(weights):
    lazy = da.from_array(X, chunks=(20, 3))
    with pytest.raises(InputError, match="weights"):
        apply(MODEL, "score", lazy, weights=np.array(weights)).compute()


def test_input_in_memory_gives_the_result_itself():
    np.testing.assert_allclose(apply(MODEL, "logpdf", X), MODEL.logpdf(X))
    assert float(apply(MODEL, "score", X)) == pytest.approx(MODEL.score(X))
    labelled = apply(MODEL, "logpdf", xr.DataArray(X, dims=("t", "f")))
    assert labelled.dims == ("t",)
    assert isinstance(labelled.data, np.ndarray)


@pytest.mark.parametrize("method", ["fit", "distances"])
def test_methods_that_a_model_has_not(method):
    with pytest.raises(InputError, match=f"method='{method}'"):
        apply(MODEL, method, X)
