"""The decoder in plain NumPy has the cost of ours, a correct gradient, and finds the mixture."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.models import random_mixture, symmetric_kl
from tests.benchmarks.decoding import Case
from tests.benchmarks.plain import PlainSplitting


@pytest.fixture(scope="module")
def truth():
    return random_mixture(3, 2, seed=9)


@pytest.fixture(scope="module")
def sketch(truth):
    return partial_sketch(truth.sample(60_000, seed=5), FeatureMap(2, 150, scale=1.3, seed=6))


def test_plain_cost_and_gradient(sketch, truth):
    plain = PlainSplitting(sketch, 3, limit=60.0)
    plain.deadline, plain.best = float("inf"), (float("inf"), np.empty(0))
    objective = Objective(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances) * 1.1
    x = np.concatenate([truth.weights, theta[:, :2].ravel(), theta[:, 2:].ravel()])
    cost, gradient = plain.cost_gradient(x, 3)
    ours, by_weight, by_theta = objective.cost_gradient(truth.weights, theta)
    assert cost == pytest.approx(ours / objective.noise_level, rel=1e-9)
    expected = np.concatenate([by_weight, by_theta[:, :2].ravel(), by_theta[:, 2:].ravel()])
    np.testing.assert_allclose(gradient, expected / objective.noise_level, rtol=1e-6, atol=1e-6)


def test_plain_splitting_finds_the_mixture(sketch, truth):
    plain = PlainSplitting(sketch, 3, limit=60.0).run()
    assert plain.ended
    assert plain.cost < 1.0
    found = type(truth)(plain.weights, plain.means, plain.variances)
    assert symmetric_kl(truth, found, n_samples=50_000) < 0.01


def test_uneven_mixtures_have_other_weights_and_deviations():
    uneven = Case(3, 8, 400, ("splitting",), uneven=True, refine="efficient")
    deviations = np.sqrt(uneven.truth().covariances)
    assert 0.3 <= deviations.min() < 0.6
    assert 1.5 < deviations.max() <= 3.0
    assert uneven.truth().weights.std() > 0.05
    assert str(uneven) == "d=3 K=8 m=400 uneven refined"
    assert str(Case(3, 8, 400, ())) == "d=3 K=8 m=400"


def test_plain_splitting_stops_in_time(sketch):
    plain = PlainSplitting(sketch, 50, limit=0.05).run()
    assert not plain.ended
    assert len(plain.weights) < 50
    assert plain.cost > 0
