from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.pilot import fit_pilot
from dask_sketch.models import GaussianMixture, random_mixture


def test_the_fit_is_rough_but_near():
    truth = random_mixture(5, 4, seed=0)
    rows, others = truth.sample(5000, seed=1), truth.sample(20_000, seed=3)
    found = fit_pilot(rows, 5, seed=2)
    mixture = GaussianMixture(found.weights, found.means, found.variances)
    assert mixture.score(rows) > truth.score(rows) - 0.02
    assert mixture.score(others) > truth.score(others) - 0.05
    assert found.score == pytest.approx(mixture.score(rows), abs=1e-3)
    single = fit_pilot(rows, 1)
    np.testing.assert_allclose(single.variances[0], rows.var(axis=0), rtol=1e-3)


def test_units_do_not_matter():
    rows = random_mixture(3, 2, seed=4).sample(2000, seed=5)
    unit, offset = np.array([1e-3, 1e6]), np.array([1e4, -7.0])
    plain, moved = fit_pilot(rows, 3), fit_pilot(rows * unit + offset, 3)
    np.testing.assert_allclose(moved.variances, plain.variances * unit**2, rtol=1e-3)
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-3)


def test_the_seed_decides():
    rows = random_mixture(3, 2, seed=4).sample(500, seed=5)
    np.testing.assert_array_equal(
        fit_pilot(rows, 8, seed=1).means, fit_pilot(rows, 8, seed=1).means
    )
    assert not np.array_equal(fit_pilot(rows, 8, seed=1).means, fit_pilot(rows, 8, seed=2).means)


def test_more_components_than_distinct_rows():
    found = fit_pilot(np.repeat([[0.0, 1.0], [1.0, 0.0]], 20, axis=0), 5)
    assert np.isfinite(found.means).all()
    assert (found.variances > 0).all()
    assert found.weights.sum() == pytest.approx(1.0)


def test_refusals():
    with pytest.raises(InputError, match=r"features \[1\] do not vary"):
        fit_pilot(np.array([[0.0, 1.0], [1.0, 1.0]]), 1)
    with pytest.raises(InputError, match="n_clusters=3"):
        fit_pilot(np.array([[0.0], [1.0]]), 3)
