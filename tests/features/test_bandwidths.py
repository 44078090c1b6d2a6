import numpy as np
import pytest

from dask_sketch import design, sketch
from dask_sketch.features.bandwidths import N_BANDWIDTHS, comparison_covariances


def test_bandwidths_go_from_small_distances_to_large_ones():
    rng = np.random.default_rng(0)
    # clusters of width 1 that are 100 apart
    rows = rng.normal(size=(3000, 2)) + 100.0 * rng.integers(0, 2, (3000, 2))
    bandwidths = np.sqrt(comparison_covariances(rows, seed=0)[:, 0])
    assert bandwidths[0] < 1.5
    assert bandwidths[-1] > 100.0
    np.testing.assert_allclose(bandwidths[1:] / bandwidths[:-1], bandwidths[1] / bandwidths[0], 0.1)


def test_units_and_outliers_change_nothing():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3))
    found = comparison_covariances(rows, seed=0)
    other = comparison_covariances(rows * [1.0, 1e-3, 1e6], seed=0)
    np.testing.assert_allclose(other, found * [1.0, 1e-6, 1e12], rtol=1e-3)
    rows[:4] = 1e5
    np.testing.assert_allclose(comparison_covariances(rows, seed=0), found, rtol=0.2)


def test_constant_and_nearly_constant_features():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=500), np.ones(500), rng.random(500) < 0.05])
    found = comparison_covariances(rows.astype(float), seed=0)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (comparison_covariances(np.ones((20, 2)), seed=0) > 0).all()


def test_design_for_comparison():
    x = np.random.default_rng(0).normal(size=(3000, 2)) * [1.0, 50.0]
    feature_map = design(x, task="comparison")
    assert feature_map.n_frequencies == 512
    assert feature_map.distribution == "gaussian"
    assert len(feature_map.covariances) == N_BANDWIDTHS
    assert feature_map.pilot is not None
    assert len(feature_map.pilot.mixture.weights) == 8
    assert feature_map == design(x, task="comparison")
    assert design(x, task="comparison", n_frequencies=64).n_frequencies == 64
    assert design(x, task="comparison", n_frequencies=64, scale=2.0).covariances is None
    assert sketch(x, feature_map).count == 3000
    with pytest.raises(ValueError, match="task='compare'.*'comparison'"):
        design(x, n_components=2, task="compare")
