from __future__ import annotations

import numpy as np
from scipy.optimize import rosen, rosen_der

from dask_sketch.decoders.optimizers import StoppingRule, ascend_many, minimise_within

FREE = np.full(4, np.inf)


def hills(x):
    """Minus Rosenbrock's valley, for many points."""
    return -rosen(x.T), -np.array([rosen_der(row) for row in x])


def test_all_points_arrive():
    starts = np.random.default_rng(0).uniform(0.0, 2.0, (6, 4))
    points, values = ascend_many(hills, starts, -FREE, FREE, StoppingRule(1e-12, 500))
    np.testing.assert_allclose(points, 1.0, atol=1e-4)
    np.testing.assert_allclose(values, 0.0, atol=1e-8)


def test_an_ascent_does_not_depend_on_the_others():
    starts = np.random.default_rng(0).uniform(0.0, 2.0, (6, 4))
    together, _ = ascend_many(hills, starts, -FREE, FREE, StoppingRule(1e-9, 40))
    for start, point in zip(starts, together, strict=True):
        alone, _ = ascend_many(hills, start[None], -FREE, FREE, StoppingRule(1e-9, 40))
        np.testing.assert_allclose(alone[0], point, rtol=1e-6)


def test_ascents_stay_within_bounds_and_never_end_lower():
    starts = np.random.default_rng(1).uniform(-0.5, 0.5, (8, 4))
    low, high = np.full(4, -0.5), np.array([0.5, 0.5, np.inf, np.inf])
    points, values = ascend_many(hills, starts, low, high, StoppingRule(1e-10, 300))
    assert (points >= low).all()
    assert (points <= high).all()
    assert (values >= hills(starts)[0]).all()
    np.testing.assert_allclose(values, hills(points)[0])
    np.testing.assert_allclose(points[:, :2], [[0.5, 0.25]] * 8, atol=0.05)


def test_an_ascent_from_a_maximum_stays():
    points, _ = ascend_many(hills, np.ones((2, 4)), -FREE, FREE, StoppingRule(1e-9, 10))
    np.testing.assert_array_equal(points, 1.0)


def test_a_minimisation_stops_at_bounds():
    def bowl(x):
        return float(((x - 3.0) ** 2).sum()), 2 * (x - 3.0)

    low, high = np.array([-1.0, -np.inf]), np.array([1.0, np.inf])
    found = minimise_within(bowl, np.zeros(2), low, high, StoppingRule(1e-12, 50))
    np.testing.assert_allclose(found.x, [1.0, 3.0], atol=1e-6)
    assert found.converged
    short = StoppingRule(1e-12, 1)
    assert not minimise_within(bowl, np.full(2, -9.0), -FREE[:2], FREE[:2], short).converged
