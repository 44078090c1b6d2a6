"""Second moments of chunks, against NumPy."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, ChunkError, InputError, MergeError
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.partial_moments import partial_moments
from dask_sketch.sketching.second_moments import SecondMoments

RNG = np.random.default_rng(0)
X = RNG.normal(size=(700, 5)) @ RNG.normal(size=(5, 5)) * [1e-3, 1.0, 50.0, 2.0, 1.0] + 30.0
W = np.exp(RNG.normal(size=700))
GRID = MomentGrid.of_rows(X[:200])
COLUMNS = MomentGrid.of_rows(X[:200], 3, seed=7)
grids = pytest.mark.parametrize("grid", [GRID, COLUMNS], ids=["all", "columns"])


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "bool"])
def test_covariance_of_numpy(dtype):
    x = X.astype(dtype)
    found = partial_moments(x, GRID)
    expected = np.cov(x.astype(float).T)
    deviation = np.sqrt(np.diag(expected)) + 1e-12
    np.testing.assert_allclose(
        found.covariance / np.outer(deviation, deviation),
        expected / np.outer(deviation, deviation),
        atol=1e-9,
    )
    np.testing.assert_allclose(found.mean, x.mean(axis=0, dtype=float), rtol=1e-9)
    np.testing.assert_allclose(found.variance, np.diag(found.covariance), rtol=1e-12)
    assert (found.count, found.total_weight, found.effective_count) == (700, 700, 700)


def test_weights():
    found = partial_moments(X, GRID, W)
    expected = np.cov(X.T, aweights=W)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-7)
    np.testing.assert_allclose(found.mean, np.average(X, axis=0, weights=W), rtol=1e-8)
    assert found.total_weight == pytest.approx(W.sum(), rel=1e-8)
    assert found.effective_count == pytest.approx(W.sum() ** 2 / (W**2).sum(), rel=1e-8)
    assert partial_moments(X, GRID, np.ones(700)) == partial_moments(X, GRID)
    # one factor changes nothing, whatever it is
    for factor in (1e-8, 1e8):
        other = partial_moments(X, GRID, factor * W)
        np.testing.assert_allclose(other.covariance, expected, rtol=1e-4 if factor < 1 else 1e-7)
    zeros = np.where(np.arange(700) < 50, 0.0, W)
    found = partial_moments(X, GRID, zeros)
    np.testing.assert_allclose(found.covariance, np.cov(X[50:].T, aweights=W[50:]), rtol=1e-7)
    assert found.count == 700


@grids
def test_products_with_a_test_matrix_and_variances(grid):
    found = partial_moments(X, grid, W)
    covariance = np.cov(X.T, aweights=W)
    np.testing.assert_allclose(found.variance, np.diag(covariance), rtol=1e-4)
    np.testing.assert_allclose(found.mean, np.average(X, axis=0, weights=W), rtol=1e-8)
    if grid is COLUMNS:
        products, test = found.covariance_products()
        assert products.shape == test.shape == (5, 3)
        expected = covariance @ test
        np.testing.assert_allclose(products, expected, atol=1e-7 * np.abs(expected).max())
        with pytest.raises(InputError, match="n_columns=3"):
            _ = found.covariance
    else:
        with pytest.raises(InputError, match="n_columns=None"):
            found.covariance_products()


def test_matrices_are_the_same_in_all_versions():
    # the same integers for ever: stored products depend on them
    grid = MomentGrid(np.zeros(1000), np.ones(1000), 40, seed=3)
    matrix = grid.test_matrix()
    assert matrix[:2, :5].tolist() == [[6, -8, -7, 2, -2], [-3, 8, 1, -5, 0]]
    assert abs(matrix.mean()) < 0.1
    assert matrix.var() == pytest.approx(16.0, rel=0.05)
    assert np.abs(np.corrcoef(matrix.T) - np.eye(40)).max() < 0.15


def missing(rng, fraction=0.3):
    """Rows of which values are missing, and the covariances of pandas."""
    x = np.where(rng.uniform(size=X.shape) < fraction, np.nan, X)
    x[5:9] = np.nan
    return x, pd.DataFrame(x).cov().to_numpy()


def test_values_that_are_available():
    x, expected = missing(np.random.default_rng(3))
    grid = MomentGrid.of_rows(x[:200], pairwise=True)
    found = partial_moments(x, grid)
    deviation = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        found.covariance / np.outer(deviation, deviation),
        expected / np.outer(deviation, deviation),
        atol=1e-8,
    )
    np.testing.assert_allclose(found.mean, np.nanmean(x, axis=0), rtol=1e-8)
    np.testing.assert_allclose(found.variance, np.nanvar(x, axis=0, ddof=1), rtol=1e-8)
    empty = np.isnan(x).all(axis=1)
    assert (found.count, found.omitted) == ((~empty).sum(), empty.sum())
    # without missing values they are those of all rows
    whole = partial_moments(X, grid, W)
    np.testing.assert_allclose(whole.covariance, np.cov(X.T, aweights=W), rtol=1e-7)
    parts = [partial_moments(x[::-1][a : a + 130], grid) for a in range(0, 700, 130)]
    assert ds.merge(parts) == found
    assert found - parts[2] == ds.merge(parts[:2] + parts[3:])


def test_features_that_are_never_together():
    x = X.copy()
    x[:350, 0] = x[350:, 2] = np.nan
    found = partial_moments(x, MomentGrid.of_rows(X, pairwise=True))
    with pytest.raises(InputError, match="features 0 and 2"):
        _ = found.covariance
    x[:, 1] = np.inf
    found = partial_moments(x, MomentGrid.of_rows(X, pairwise=True))
    with pytest.raises(InputError, match="feature 1"):
        _ = found.mean


@grids
@given(
    cuts=st.lists(st.integers(0, 707), max_size=4),
    seed=st.integers(0, 100),
    weighted=st.booleans(),
)
def test_the_bits_depend_on_no_chunking_and_no_order(grid, cuts, seed, weighted):
    rng = np.random.default_rng(seed)
    far = np.concatenate([X, GRID.center + 1e6 * GRID.unit * rng.normal(size=(7, 5))])
    w = np.exp2(rng.uniform(-9, 9, len(far))) if weighted else None
    order = rng.permutation(len(far))
    edges = [0, *sorted(cuts), len(far)]
    parts = [
        partial_moments(far[order[a:b]], grid, None if w is None else w[order[a:b]])
        for a, b in itertools.pairwise(edges)
    ]
    whole = partial_moments(far, grid, w)
    assert ds.merge(parts) == sum(parts) == whole
    rest = whole - parts[0]
    assert rest == sum(parts[1:], SecondMoments.empty(grid))


@grids
def test_files_and_pickles(grid, tmp_path):
    found = partial_moments(X, grid, W)
    found.to_zarr(tmp_path / "x.zarr")
    assert ds.open(tmp_path / "x.zarr") == found
    assert pickle.loads(pickle.dumps(found)) == found
    named = MomentGrid(GRID.center, GRID.unit, feature_names=tuple("abcde"), pairwise=True)
    partial_moments(X, named).to_zarr(tmp_path / "x.zarr", overwrite=True)
    again = ds.open(tmp_path / "x.zarr")
    assert again.grid.feature_names == tuple("abcde")
    assert again == partial_moments(X, named)
    assert ds.open(found.to_bytes()) == found


@pytest.mark.parametrize(
    "change",
    [
        {"count": -1},
        {"squared_weight_steps": "-5"},
        {"n_columns": 2},
        {"n_columns": 3, "test_scale": 0.5},
        {"seed": "x"},
        {"feature_names": '["a"]'},
    ],
    ids=str,
)
def test_impossible_files_are_refused(change, tmp_path):
    from dask_sketch.sketching.artifact import MOMENTS, stored_moments
    from dask_sketch.storage.artifact import write_dataset

    found = partial_moments(X, COLUMNS if "test_scale" in change else GRID)
    write_dataset(stored_moments(found).assign_attrs(change), tmp_path / "x.zarr", MOMENTS, 1)
    with pytest.raises(ArtifactError, match=r"x\.zarr"):
        ds.open(tmp_path / "x.zarr")


def test_descriptions():
    found = partial_moments(X, GRID)
    assert found.as_dict()["count"] == 700
    assert "count=700" in repr(found)
    assert "700 samples of 5 features" in found._repr_html_()
    assert found.__sizeof__() > 16 * 21


def test_refused_rows():
    x = X.copy()
    x[17, 2] = np.nan
    with pytest.raises(ChunkError, match=r"row 17 .* nan in feature 2"):
        partial_moments(x, GRID)
    found = partial_moments(x, GRID, nan_policy="omit")
    assert (found.count, found.omitted) == (699, 1)
    assert found == partial_moments(np.delete(x, 17, axis=0), GRID) + SecondMoments(
        GRID, SecondMoments.empty(GRID).sums, 0, 0, 1
    )
    x[17, 2] = 1e12
    with pytest.raises(ChunkError, match="row 17 .* 1000000000000"):
        partial_moments(x, GRID)
    with pytest.raises(ChunkError, match="row 3 has weight=-1"):
        partial_moments(X, GRID, np.where(np.arange(700) == 3, -1.0, 1.0))
    with pytest.raises(InputError, match="n_features=5"):
        partial_moments(X[:, :4], GRID)


def test_refused_merges_and_differences():
    one = partial_moments(X, GRID)
    for other in (
        partial_moments(X, COLUMNS),
        partial_moments(X, MomentGrid(GRID.center, GRID.unit, feature_names=tuple("abcde"))),
    ):
        with pytest.raises(MergeError, match="grids"):
            one + other
    with pytest.raises(MergeError, match="count=700"):
        partial_moments(X[:600], GRID) - one
    with pytest.raises(MergeError):
        partial_moments(X[:1], GRID) - partial_moments(X[1:2] + 9.0, GRID)


def test_a_single_row_has_no_variance():
    found = ds.second_moments([[1.0, 2.0]])
    assert np.isnan(found.variance).all()
    assert np.isnan(found.covariance).all()


def test_empty():
    found = partial_moments(X[:0], GRID)
    assert found == SecondMoments.empty(GRID)
    with pytest.raises(InputError, match="total_weight=0"):
        _ = found.mean
    assert found.as_dict()["mean"] is None


@pytest.mark.parametrize(
    ("rows", "unit"),
    [
        (np.array([[1e300, 0.0], [3e300, 2.0]]), 2.0**400),
        (np.array([[5.0, 0.0], [5.0, 0.0]]), 2.0**-8),
        (np.array([[1e-310, 0.0], [3e-310, 2.0]]), 2.0**-400),
    ],
    ids=["huge", "constant", "tiny"],
)
def test_units_of_extreme_rows(rows, unit):
    grid = MomentGrid.of_rows(rows)
    assert grid.unit[0] == unit
    assert np.isfinite(grid.center).all()


def test_integers_lose_nothing():
    """Of pixels, all sums are those of Python's integers."""
    x = RNG.integers(0, 256, (300, 3))
    grid = MomentGrid.of_rows(x)
    found = partial_moments(x, grid)
    exact = [[int(a @ b) for b in x.T] for a in x.T]
    second = found.covariance * 299 / 300 + np.outer(found.mean, found.mean)
    np.testing.assert_allclose(second, np.array(exact) / 300, rtol=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_columns": 9}, "n_columns=9"),
        ({"n_columns": 1, "pairwise": True}, "n_columns=1"),
        ({"n_columns": 0}, "n_columns=0"),
        ({"unit": np.array([1.0, 3.0])}, "unit="),
        ({"unit": np.array([1.0, 2.0]), "n_columns": 1}, "n_columns"),
        ({"center": np.array([np.nan, 0.0])}, "center"),
        ({"seed": -1}, "seed=-1"),
    ],
    ids=str,
)
def test_bad_grids(changes, message):
    with pytest.raises(InputError, match=message):
        MomentGrid(**({"center": np.zeros(2), "unit": np.ones(2)} | changes))
