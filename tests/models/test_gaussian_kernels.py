"""Compiled loops of Gaussians beside NumPy, for numbers of rows around those of a block."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.models.gaussian_kernels import add_second_moments, squared_distances


@pytest.mark.parametrize("n_rows", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("n_features", [1, 2, 4, 5, 9])
def test_distances_and_moments_are_those_of_numpy(rng, n_rows, n_features):
    rows, means = rng.normal(size=(n_rows, n_features)), rng.normal(size=(3, n_features))
    roots = rng.normal(size=(3, n_features, 2 * n_features))
    covariances = roots @ np.swapaxes(roots, 1, 2)
    found = squared_distances(rows, means, np.linalg.cholesky(covariances))
    away = rows - means[:, None]
    expected = np.einsum("kni,kij,knj->kn", away, np.linalg.inv(covariances), away)
    np.testing.assert_allclose(found, expected, rtol=1e-9)

    weights = rng.uniform(size=(3, n_rows)) * (rng.uniform(size=(3, n_rows)) > 0.3)
    weights[1] = 0.0
    before = np.broadcast_to(np.eye(n_features), covariances.shape).copy()
    moments = before.copy()
    add_second_moments(moments, weights, rows)
    expected = before + np.einsum("kn,ni,nj->kij", weights, rows, rows)
    np.testing.assert_allclose(moments, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(moments, np.swapaxes(moments, 1, 2))


def test_one_row_with_missing_values_changes_no_other(rng):
    rows, lower = rng.normal(size=(70, 3)), np.eye(3)[None]
    expected = squared_distances(rows, np.zeros((1, 3)), lower)
    rows[5, 1] = np.nan
    found = squared_distances(rows, np.zeros((1, 3)), lower)
    assert np.isnan(found[0, 5])
    np.testing.assert_array_equal(np.delete(found, 5, axis=1), np.delete(expected, 5, axis=1))


def test_rows_and_means_may_have_any_layout(rng):
    rows, means = rng.normal(size=(4, 100)).T, rng.normal(size=(4, 2)).T
    lower = np.broadcast_to(np.tril(np.ones((4, 4))), (2, 4, 4))
    expected = squared_distances(rows.copy(), means.copy(), lower.copy())
    np.testing.assert_array_equal(squared_distances(rows, means, lower), expected)
