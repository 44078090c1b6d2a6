from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import design, sketch
from dask_sketch.errors import InputError
from dask_sketch.features.scale import (
    N_BANDWIDTHS,
    clustering_scale,
    comparison_covariances,
    estimate_scale,
)


def mixture(rng, n_rows, n_features, n_components, spread):
    means = rng.normal(scale=spread, size=(n_components, n_features))
    return means[rng.integers(n_components, size=n_rows)] + rng.normal(size=(n_rows, n_features))


@pytest.mark.parametrize(("unit", "offset"), [(1e-3, 0.0), (1e-3, 1e3), (1e3, 1e3)])
def test_the_scale_follows_the_unit_of_the_data(unit, offset, rng):
    x = unit * (mixture(rng, 2000, 2, 3, 10.0) + offset)
    fit = estimate_scale(x)
    assert fit.scale == pytest.approx(unit, rel=0.2)


@pytest.mark.slow
def test_one_gaussian_is_found_exactly(rng):
    for n_features in (1, 5, 20):
        fit = estimate_scale(3.0 * rng.normal(size=(3000, n_features)))
        assert fit.scale == pytest.approx(3.0, rel=0.1)


def test_separated_components_are_told_from_the_spread_of_their_means(rng):
    x = mixture(rng, 3000, 10, 5, 8.0)
    assert x.std() > 5
    assert 0.9 < estimate_scale(x).scale < 1.4  # from above: the moduli stand over the envelope


def test_the_fit_shows_what_it_saw(rng):
    x = mixture(rng, 2000, 3, 3, 5.0)
    fit = estimate_scale(x)
    assert fit.path.shape == (5,)
    assert fit.path[-1] == fit.scale
    assert fit.radii.shape == fit.moduli.shape == (500,)
    assert (np.diff(fit.radii) >= 0).all()
    assert fit.peak_radii.shape == fit.peak_moduli.shape == (30,)
    assert set(fit.peak_radii) <= set(fit.radii)
    assert ((fit.moduli >= 0) & (fit.moduli <= 1 + 1e-12)).all()
    assert fit.n_samples == 2000
    np.testing.assert_allclose(fit.curve([0.0, 1 / fit.scale]), [1.0, np.exp(-0.5)])


def test_the_same_seed_gives_the_same_bits(rng):
    x = rng.normal(size=(1000, 2))
    assert estimate_scale(x, seed=3).scale == estimate_scale(x, seed=3).scale
    assert estimate_scale(x, seed=3).scale != estimate_scale(x, seed=4).scale


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(5), r"samples .*\(5,\)"),
        (np.zeros((1, 3)), r"samples .*\(1, 3\)"),
        (np.zeros((0, 3)), r"samples .*\(0, 3\)"),
        ([[np.nan, 1.0], [0.0, 1.0]], "samples .*NaN"),
        ([[np.inf, 1.0], [0.0, 1.0]], "samples .*NaN"),
        (np.ones((5, 3)), "samples"),
        (np.zeros((5, 0)), r"samples .*\(5, 0\)"),
        ([["a", "b"], ["c", "d"]], "samples"),
    ],
)
def test_bad_samples_are_refused(samples, message):
    with pytest.raises(InputError, match=message):
        estimate_scale(samples)


@pytest.mark.parametrize("name", ["n_frequencies", "n_blocks", "n_iterations"])
@pytest.mark.parametrize("value", [0, -1, 2.5, None])
def test_bad_sizes_are_refused(name, value, rng):
    with pytest.raises(InputError, match=f"{name}={value}"):
        estimate_scale(rng.normal(size=(10, 2)), **{name: value})


def pilot(d=4, deviation=0.3, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(5, d)) * 8
    return centers[rng.integers(5, size=5000)] + deviation * rng.normal(size=(5000, d))


@pytest.mark.parametrize("d", [2, 4, 20])
def test_the_clustering_scale_sees_the_width_of_separate_clusters(d):
    assert clustering_scale(pilot(d), 5) == pytest.approx(np.sqrt(2 * d) * 0.3, rel=0.03)


def test_the_clustering_scale_follows_the_unit_and_not_the_origin():
    x = pilot()
    assert clustering_scale(x * 1e3 + 7e4, 5) == pytest.approx(1e3 * clustering_scale(x, 5))


def test_the_seed_decides_the_clustering_scale():
    assert clustering_scale(pilot(), 7, seed=1) == clustering_scale(pilot(), 7, seed=1)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.0, 1.0, 5.0], 0.5), ([-4.0], 4.0), ([0.0], 1.0)]
)
def test_clusters_of_equal_rows_are_told_apart(values, expected):
    assert clustering_scale(np.tile(np.array([values]).T, (4, 2)), 3) == pytest.approx(
        expected * (np.sqrt(2) if len(values) > 1 else 1)
    )


def test_as_many_rows_as_clusters():
    assert clustering_scale([[0.0], [3.0], [1.0]], 3) == 0.5


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(5), r"pilot .*\(5,\)"),
        (np.zeros((2, 2)), r"\(2, 2\).* n_components=3"),
        (np.full((9, 2), np.nan), "pilot .*NaN"),
        (
            np.append(np.zeros((9, 2)), [[1.0, 0.0], [2.0, 0.0], [1e9, 0.0]], axis=0),
            "pilot .*1e\\+09",
        ),
        (["a", "b"], "pilot"),
    ],
)
def test_bad_pilots_are_refused(x, message):
    with pytest.raises(InputError, match=message):
        clustering_scale(x, 3)


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


@pytest.mark.slow
def test_design_for_comparison():
    x = np.random.default_rng(0).normal(size=(3000, 2)) * [1.0, 50.0]
    feature_map = design(x, task="comparison")
    assert feature_map.n_frequencies == 512
    assert feature_map.distribution == "gaussian-marginals"
    assert len(feature_map.covariances) == N_BANDWIDTHS
    assert ((feature_map.frequencies != 0).sum(axis=0) == 1).sum() == 32
    assert feature_map.pilot is not None
    assert len(feature_map.pilot.mixture.weights) == 8
    assert feature_map == design(x, task="comparison")
    assert design(x, task="comparison", n_frequencies=64).n_frequencies == 64
    assert design(x, task="comparison", n_frequencies=64, scale=2.0).covariances is None
    assert sketch(x, feature_map).count == 3000
    with pytest.raises(ValueError, match="task='compare'.*'comparison'"):
        design(x, n_components=2, task="compare")
