"""Second moments of any input in one pass."""

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
from distributed import Client, LocalCluster

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError, PlanError
from dask_sketch.graph.lazy import LazyResult

X = np.random.default_rng(0).normal(size=(1200, 3)) * [1.0, 20.0, 0.1] + 4.0
NAMES = ["a", "b", "c"]
FIRST = ds.second_moments(X)
COLUMNS = ds.second_moments(X, n_columns=2)


def inputs(place):
    zarr.create_array(str(place / "x.zarr"), data=X, chunks=(100, 3))
    frame = pd.DataFrame(X, columns=NAMES)
    frame.to_parquet(place / "x.parquet")
    return {
        "list": X.tolist(),
        "array": da.from_array(X, chunks=(77, 3)),
        "features": da.from_array(X, chunks=(500, 2)),
        "unknown": da.from_array(X, chunks=(200, 3))[da.ones(1200, chunks=200, dtype=bool)],
        "reversed": X[::-1],
        "pandas": frame,
        "frame": dd.from_pandas(frame, npartitions=3),
        "zarr": place / "x.zarr",
        "parquet": place / "x.parquet",
        "bag": db.from_sequence([X[:25], X[25:]]),
        "records": db.from_sequence(frame.to_dict("records"), npartitions=3),
        "labelled": xr.DataArray(X.reshape(12, 100, 3), dims=("t", "s", "band")).chunk(t=2, s=50),
    }  # fmt: skip


@pytest.mark.parametrize("like", [FIRST, COLUMNS], ids=["all", "columns"])
def test_the_same_bits_for_every_input(like, tmp_path):
    for name, x in inputs(tmp_path).items():
        found = ds.second_moments(x, like=like)
        lazy = isinstance(found, LazyResult)
        assert lazy == (name not in ("list", "reversed", "pandas"))
        assert (found.compute() if lazy else found) == like, name


def test_covariance_and_mean():
    np.testing.assert_allclose(FIRST.covariance, np.cov(X.T), rtol=1e-8)
    np.testing.assert_allclose(FIRST.mean, X.mean(axis=0), rtol=1e-9)
    # whatever the rows from which center and units are found
    for chunks in (5, 40, 700):
        other = ds.second_moments(da.from_array(X, chunks=(chunks, 3))).compute()
        np.testing.assert_allclose(other.covariance, FIRST.covariance, rtol=1e-7)


def test_chunks_in_which_nothing_varies():
    x = np.concatenate([np.full((300, 3), 7.0), np.zeros((100, 3)), 1e3 * X])
    found = ds.second_moments(da.from_array(x, chunks=(100, 3))).compute()
    np.testing.assert_allclose(found.covariance, np.cov(x.T), rtol=1e-7)
    found = ds.second_moments(da.from_array(1e-12 * x, chunks=(100, 3))).compute()
    np.testing.assert_allclose(found.covariance, np.cov(1e-12 * x.T), rtol=1e-7)


def test_weights_of_a_column():
    w = np.random.default_rng(1).uniform(0.0, 3.0, len(X))
    frame = pd.DataFrame(X, columns=NAMES).assign(w=w)
    found = ds.second_moments(dd.from_pandas(frame, npartitions=4), "w").compute()
    np.testing.assert_allclose(found.covariance, np.cov(X.T, aweights=w), rtol=1e-8)
    assert found.grid.feature_names == tuple(NAMES)


def test_one_pass():
    read = []

    def count(block):
        read.append(len(block))
        return block

    rows = da.from_array(X, chunks=(100, 3)).map_blocks(count, dtype=X.dtype, meta=np.empty((0, 0)))
    ds.second_moments(rows, like=FIRST).compute()
    assert sum(read) == len(X)
    read.clear()
    lazy = ds.second_moments(rows)
    assert sum(read) == 100  # for center and units; it is not read again
    assert lazy.compute() == ds.second_moments(X, like=lazy.compute())
    assert sum(read) == 100 + 2 * (len(X) - 100)


@pytest.mark.slow
def test_batches_and_a_cluster_have_the_same_bits():
    lazy = da.from_array(X, chunks=(50, 3))
    with dask.config.set({"sketch.task-limit": 4, "sketch.batch-tasks": 3}):
        assert ds.second_moments(lazy, like=FIRST).compute() == FIRST
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster):
        assert ds.second_moments(lazy, like=FIRST).compute() == FIRST
        assert ds.second_moments(lazy, like=COLUMNS).compute() == COLUMNS


def test_streams():
    blocks = [X[:0], X[:500], X[500:501], X[501:]]
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    assert ds.second_moments(iter(blocks), like=FIRST) == FIRST
    found = ds.second_moments(iter(blocks), iter(np.split(w, [0, 500, 501])))
    assert found == ds.second_moments(X, w, like=found)
    frames = (pd.DataFrame(x, columns=NAMES).assign(w=1.0) for x in blocks)
    found = ds.second_moments(frames, "w", n_columns=2)
    assert found.grid.feature_names == tuple(NAMES)
    assert found == ds.second_moments(pd.DataFrame(X, columns=NAMES), like=found)
    for stream, weights, message in (
        (iter([]), None, "the stream gave no samples"),
        (iter(blocks), w, "weights of type ndarray"),
        (iter([da.from_array(X)]), None, "block 0"),
        (iter([X, X[:, :2]]), None, "n_features=3"),
    ):
        with pytest.raises(InputError, match=message):
            ds.second_moments(stream, weights)


def test_groups(tmp_path):
    labels = np.random.default_rng(4).choice(["one", "three", "two"], len(X), p=[0.5, 0.2, 0.3])
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    found = ds.second_moments(X, w, groups=labels, like=FIRST)
    assert list(found) == ["one", "three", "two"]
    for name, moments in found.items():
        chosen = labels == name
        assert moments == ds.second_moments(X[chosen], w[chosen], like=FIRST)
    assert sum(found.values()) == ds.second_moments(X, w, like=FIRST)
    frame = pd.DataFrame(X, columns=NAMES).assign(w=w, group=labels)
    frame.to_parquet(tmp_path / "x.parquet")
    for x in (frame, dd.from_pandas(frame, npartitions=5), tmp_path / "x.parquet"):
        result = ds.second_moments(x, "w", groups="group", columns=NAMES)
        result = result if isinstance(result, dict) else result.compute()
        np.testing.assert_allclose(
            result["two"].covariance, found["two"].covariance, rtol=1e-7, atol=1e-9
        )
    days = np.array(["2026-01-01", "2026-01-02"], "M8[D]").repeat(600)
    lazy = ds.second_moments(da.from_array(X, chunks=(500, 3)), groups=days, n_columns=2)
    assert list(lazy.compute()) == list(np.unique(days))
    missing = np.where(labels == "two", None, labels)
    with pytest.raises(ChunkError, match="label"):
        ds.second_moments(X, groups=missing)
    kept = ds.second_moments(X, groups=missing, nan_policy="omit", like=FIRST)
    assert list(kept) == ["one", "three"]


def test_rows_with_nan():
    x = X.copy()
    x[5:1000:7, 1] = np.nan
    lazy = da.from_array(x, chunks=(100, 3))
    found = ds.second_moments(lazy, nan_policy="omit").compute()
    kept = np.isfinite(x).all(axis=1)
    assert (found.count, found.omitted) == (kept.sum(), (~kept).sum())
    np.testing.assert_allclose(found.covariance, np.cov(x[kept].T), rtol=1e-8)
    with pytest.raises(ChunkError, match="nan"):
        ds.second_moments(lazy, like=FIRST).compute()


def test_missing_values():
    x = np.where(np.random.default_rng(2).uniform(size=X.shape) < 0.2, np.nan, X)
    expected = pd.DataFrame(x).cov().to_numpy()
    found = ds.second_moments(x, nan_policy="available")
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-7, atol=1e-9)
    lazy = da.from_array(x, chunks=(100, 3))
    assert ds.second_moments(lazy, like=found, nan_policy="available").compute() == found
    other = ds.second_moments(lazy, nan_policy="available").compute()
    np.testing.assert_allclose(other.covariance, expected, rtol=1e-7, atol=1e-9)
    for arguments in ({"like": found}, {"like": FIRST, "nan_policy": "available"}):
        with pytest.raises(InputError, match="nan_policy="):
            ds.second_moments(X, **arguments)
    with pytest.raises(InputError, match="n_columns=2"):
        ds.second_moments(x, n_columns=2, nan_policy="available")


@pytest.mark.slow
def test_small_arrays_are_not_divided_into_many_large_results():
    x = np.random.default_rng(0).normal(size=(3000, 800)).astype(np.float32)
    lazy = ds.second_moments(da.from_array(x, chunks=(400, 800)), n_columns=None)
    assert lazy.split_every == 4  # 5 MB each
    found = ds.second_moments(x)
    expected = np.cov(x.T, dtype=np.float64)
    assert np.abs(found.covariance - expected).max() < 1e-9


def test_small_chunks_warn():
    lazy = da.zeros((6400, 1500), chunks=(40, 1500))
    with pytest.warns(UserWarning, match=r"160 chunks of at most .*n_columns"):
        ds.second_moments(lazy, like=_grid_of(1500))


def _grid_of(n_features):
    from dask_sketch.sketching.moment_grid import MomentGrid

    return MomentGrid(np.zeros(n_features), np.ones(n_features))


def test_memory_is_checked():
    lazy = ds.second_moments(da.zeros((6400, 4000), chunks=(3200, 4000)), like=_grid_of(4000))
    with dask.config.set({"sketch.memory-share": 1e-3}), pytest.raises(PlanError, match="memory"):
        lazy.compute()


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        (np.zeros((4, 6000)), {}, "n_columns=None"),
        (X, {"like": FIRST, "n_columns": 2}, "n_columns=2"),
        (X, {"like": X}, "ndarray"),
        (X[:, :2], {"like": FIRST}, "n_features=3"),
        (iter([X]), {"groups": np.zeros(1200)}, "groups"),
        (X, {"nan_policy": "skip"}, "nan_policy='skip'"),
        (X, {"seed": -1}, "seed=-1"),
        (X, {"n_columns": 4}, "n_columns=4"),
        (X, {"weights": np.zeros(1200)}, "usable rows"),
        (np.zeros((0, 3)), {}, "usable rows"),
    ],
)
def test_bad_arguments(x, arguments, message):
    with pytest.raises(InputError, match=message):
        ds.second_moments(x, **arguments)


def test_no_samples():
    typical = np.concatenate([np.full((300, 3), 7.0), np.zeros((100, 3)), 1e12 * X])
    with pytest.raises(ChunkError, match="like="):
        ds.second_moments(da.from_array(typical, chunks=(100, 3))).compute()
    with pytest.raises(InputError, match="1,200 rows of weight zero"):
        ds.second_moments(X, np.zeros(1200), like=FIRST)
    with pytest.raises(TypeError, match="columnz"):
        ds.second_moments(X, columnz=["a"])


def test_sketch_of_a_grid():
    grid = ds.design(X, task="pca")
    found = ds.sketch(da.from_array(X, chunks=(100, 3)), grid).compute()
    assert found.grid == grid
    assert found == ds.second_moments(X, like=grid) == ds.sketch(iter([X[:7], X[7:]]), grid)
    fitted = ds.SketchPCA(2).fit(found)
    expected = ds.SketchPCA(2).fit(X)
    np.testing.assert_allclose(fitted.components_, expected.components_, atol=1e-8)
    signs = X[:, 0] > 4.0
    groups = ds.sketch(X, grid, np.ones(len(X)), groups=signs, split_every=2)
    assert groups[True] + groups[False] == found


@pytest.mark.parametrize(
    "options", [{"sample": 10}, {"sample": True}, {"position": 3}, {"device": "cuda"}]
)
def test_sketch_of_a_grid_refuses_options_of_rows(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name}="):
        ds.sketch(X, FIRST.grid, **options)


def test_sketch_of_a_pairwise_grid_needs_its_policy():
    holes = np.where(X > 20.0, np.nan, X)
    grid = ds.design(holes, task="pca", nan_policy="available")
    found = ds.sketch(holes, grid, nan_policy="available", sample=0)
    np.testing.assert_allclose(found.covariance, pd.DataFrame(holes).cov(), rtol=1e-8)
    with pytest.raises(InputError, match="nan_policy='raise'"):
        ds.sketch(holes, grid)


def test_plan_of_a_grid():
    x = da.from_array(np.zeros((4000, 3)), chunks=(100, 3))
    made = ds.plan(x, FIRST.grid)
    assert (made.n_chunks, made.n_frequencies, made.sketch_bytes) == (40, 0, FIRST.grid.nbytes)
    assert made.memory_per_thread is not None
    with pytest.raises(PlanError, match="memory"):
        ds.plan(x, FIRST.grid, memory_per_thread="1kB")
    for option in ({"calibrate": True}, {"sample": 9}, {"groups": np.zeros(4000)}):
        (name,) = option
        with pytest.raises(InputError, match=f"{name}="):
            ds.plan(x, FIRST.grid, **option)
    with pytest.raises(InputError, match="n_features=3"):
        ds.plan(x[:, :2], FIRST.grid)
