from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from dask_sketch.models.density import RowDensity, uncovered_features

WEIGHTS = np.array([0.3, 0.7])
MEANS = np.array([[0.0, 1.0], [2.0, -1.0]])
MATRICES = np.array([[[2.0, 0.8], [0.8, 1.0]], [[0.5, -0.3], [-0.3, 0.4]]])


def joint(matrices, x):
    normals = [multivariate_normal(*each) for each in zip(MEANS, matrices, strict=True)]
    return np.log(WEIGHTS) + np.stack([normal.logpdf(x) for normal in normals], axis=1)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("given", [MATRICES, MATRICES[:1]], ids=["each", "shared"])
def test_density_of_covariance_matrices(given, offset):
    x = np.random.default_rng(0).normal(size=(500, 2)) * 2.0
    expected = joint(np.broadcast_to(given, MATRICES.shape), x)
    density = RowDensity(WEIGHTS, MEANS + offset, given)
    np.testing.assert_allclose(density.log_joint(x + offset), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        density.log_total(x + offset), logsumexp(expected, axis=1), rtol=1e-8
    )
    share = np.exp(expected - logsumexp(expected, axis=1, keepdims=True))
    np.testing.assert_allclose(density.posterior(x + offset), share, atol=1e-8)


def test_diagonal_matrices_are_variances():
    x = np.random.default_rng(1).normal(size=(50, 2))
    variances = np.array([[1.0, 2.0], [0.5, 0.1]])
    matrices = variances[:, :, None] * np.eye(2)
    expected = RowDensity(WEIGHTS, MEANS, variances).log_total(x)
    np.testing.assert_allclose(RowDensity(WEIGHTS, MEANS, matrices).log_total(x), expected)


def test_features_whose_combinations_no_component_covers():
    rng = np.random.default_rng(0)
    flags = (rng.random((400, 3)) < [0.4, 0.02, 0.02]) + 0.0
    rows = np.c_[flags[flags.sum(axis=1) < 2], rng.normal(size=(flags.sum(axis=1) < 2).sum())]
    means = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=float)
    variances = np.tile([1e-9, 1e-9, 1e-9, 1.0], (4, 1))
    np.testing.assert_array_equal(uncovered_features(rows, means, variances), [0, 1, 2])
    wide = variances.copy()
    wide[0, :3] = 0.1  # one component has a density for all combinations
    assert not len(uncovered_features(rows, means, wide))
    # all combinations of the two features are among the rows
    every = np.concatenate([rows, [[1, 1, 0, 0]]])[:, [0, 1, 3]]
    assert not len(uncovered_features(every, means[:, [0, 1, 3]], variances[:, [0, 1, 3]]))


def test_narrow_clusters_far_apart_are_no_features_of_few_values() -> None:
    rng = np.random.default_rng(0)
    centers = 1e4 * rng.normal(size=(6, 3))
    rows = centers[rng.integers(0, 6, 3000)] + rng.normal(size=(3000, 3))
    assert not len(uncovered_features(rows, centers, np.ones((6, 3))))
    rounded = np.repeat(centers[:, :2], 500, axis=0)
    assert uncovered_features(rounded, centers[:, :2], np.ones((6, 2))).tolist() == [0, 1]
