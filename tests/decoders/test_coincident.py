from __future__ import annotations

import numpy as np

from dask_sketch import partial_sketch
from dask_sketch.decoders.exchange import coincident, merge_coincident
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit
from dask_sketch.features import FeatureMap


def test_half_a_deviation_is_where_two_become_one():
    means = np.array([[0.0, 0.0], [0.45, 0.0], [0.55, 0.0]])
    found = coincident(means, np.ones((3, 2)))
    assert found[0, 1]
    assert not found[0, 2]
    wide = coincident(np.zeros((2, 2)), np.array([[1.0, 1.0], [9.0, 9.0]]))
    assert not wide[0, 1]  # one inside the other is no coincidence
    points = coincident(means, np.zeros((3, 2)))
    assert points[0, 1]
    assert not points[0, 2]


def test_a_pair_becomes_one_with_its_moments():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1, dtype="float64"))
    objective = Objective(sketch)
    theta = np.array([[0.2, 0.0, 1.0, 1.0], [-0.2, 0.0, 1.0, 1.0], [6.0, 6.0, 1.0, 1.0]])
    weights = np.array([0.5, 0.5, 0.0])
    fit = Fit(weights, theta, objective.cost(weights, theta), True, "")
    merged = merge_coincident(objective, fit)
    assert len(merged.theta) == 2
    heavy = merged.weights.argmax()
    np.testing.assert_allclose(merged.theta[heavy], [0.0, 0.0, 1.0, 1.0], atol=0.03)
    assert merged.cost < fit.cost
    alone = Fit(weights[:1], theta[:1], 1.0, True, "")
    assert merge_coincident(objective, alone) is alone
