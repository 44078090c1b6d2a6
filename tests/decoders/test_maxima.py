"""Sketched mean shift, eq. (9), against mean shift on the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders import sketch_and_shift as maxima
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.sketch_and_shift import climb
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap

SIGMA = 0.2


@pytest.fixture
def samples() -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = np.array([[-0.6, -0.5], [0.6, -0.4], [0.0, 0.7]])
    return centers[rng.integers(3, size=3000)] + 0.07 * rng.normal(size=(3000, 2))


def objective_of(samples, m, distribution="gaussian", seed=1):
    feature_map = FeatureMap(
        2, m, scale=SIGMA, distribution=distribution, seed=seed, dtype="float64"
    )
    box = np.array([[-1.0, -1.0], [1.0, 1.0]])
    return Objective(partial_sketch(samples, feature_map), "dirac", box=box)


def kde(points, samples):
    """Eq. (7), with its mean-shift step."""
    kernel = np.exp(-0.5 * np.square(points[:, None] - samples).sum(axis=2) / SIGMA**2)
    return kernel.mean(axis=1), kernel @ samples / kernel.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("distribution", ["gaussian", "clustering"])
def test_the_correlation_estimates_the_density(samples, distribution):
    # eq. (8); unbiased, with a deviation of less than 1 / sqrt(m)
    objective = objective_of(samples, 100_000, distribution)
    points = np.random.default_rng(2).uniform(-1, 1, (200, 2))
    theta = (points - objective.shift) / objective.scale
    found = objective.correlations(theta, objective.target)
    np.testing.assert_allclose(found, kde(points, samples)[0], atol=5 / np.sqrt(100_000))


def test_one_step_is_one_step_of_mean_shift(samples, monkeypatch):
    monkeypatch.setattr(maxima, "_N_ITERATIONS", 1)
    objective = objective_of(samples, 400_000)
    points = np.random.default_rng(2).uniform(-0.8, 0.8, (100, 2))
    density, expected = kde(points, samples)
    known = (density > 0.15) & (np.linalg.norm(expected - points, axis=1) < SIGMA)
    ends, _ = climb(objective, objective.target, (points - objective.shift) / objective.scale)
    found = objective.to_data_units(ends)[0]
    assert known.sum() > 20
    np.testing.assert_allclose(found[known], expected[known], atol=0.01)


def test_climbs_end_at_local_maxima(samples):
    objective = objective_of(samples, 500)
    starts = np.random.default_rng(3).uniform(objective.lower, objective.upper, (60, 2))
    before = objective.correlations(starts, objective.target)
    ends, values = climb(objective, objective.target, starts)
    assert (values >= before - 1e-9).mean() > 0.9
    np.testing.assert_allclose(values, objective.correlations(ends, objective.target))
    inside = ((ends > objective.lower) & (ends < objective.upper)).all(axis=1) & (values > 0.05)
    assert inside.sum() > 10
    slopes = objective.correlation_gradients(ends[inside], objective.target)[1]
    assert np.abs(slopes).max() < 0.02 * values.max()


def test_plain_ascent_hardly_moves_where_the_density_is_low(samples, monkeypatch):
    # the paper's Figure 3: gradients vanish away from the clusters, gradients over values do not
    monkeypatch.setattr(maxima, "_N_ITERATIONS", 10)
    objective = objective_of(samples, 100_000)
    points = np.random.default_rng(4).uniform(-1, 1, (400, 2))
    density = kde(points, samples)[0]
    starts = points[(density > 0.01) & (density < 0.05)]
    assert len(starts) > 20
    starts = (starts - objective.shift) / objective.scale
    far = {}
    for kind in ("shift", "ascent"):
        ends, _ = climb(objective, objective.target, starts, kind)
        far[kind] = np.median(np.linalg.norm(ends - starts, axis=1))
    assert far["shift"] > 1.0
    assert far["ascent"] < 0.5 * far["shift"]


def test_discrete_points_stay(samples):
    objective = objective_of(samples, 100)
    starts = np.random.default_rng(5).uniform(-1, 1, (20, 2))
    ends, values = climb(objective, objective.target, starts, "discrete")
    np.testing.assert_array_equal(ends, starts)
    np.testing.assert_allclose(values, objective.correlations(starts, objective.target))


@pytest.mark.parametrize("kind", maxima.MAXIMA)
def test_a_residual_of_nothing_moves_nothing(samples, kind):
    objective = objective_of(samples, 50)
    nothing = (np.zeros(50), np.zeros(50))
    starts = np.clip(np.ones((3, 2)), objective.lower, objective.upper)
    ends, values = climb(objective, nothing, starts, kind)
    np.testing.assert_array_equal(ends, starts)
    np.testing.assert_array_equal(values, np.zeros(3))


def test_climbs_stay_in_the_box(samples):
    objective = objective_of(samples, 30)
    starts = np.random.default_rng(6).uniform(objective.lower, objective.upper, (100, 2))
    ends, _ = climb(objective, objective.target, starts)
    assert (ends >= objective.lower).all()
    assert (ends <= objective.upper).all()


def test_an_unknown_way_is_named(samples):
    objective = objective_of(samples, 10)
    with pytest.raises(DecodeError, match="maxima='newton' is unknown; choose one of shift"):
        climb(objective, objective.target, np.zeros((1, 2)), "newton")
