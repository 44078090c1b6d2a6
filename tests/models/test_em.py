from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, random_mixture
from dask_sketch.models.em import fit_rows


def test_the_fit_is_rough_but_near():
    truth = random_mixture(5, 4, seed=0)
    rows, others = truth.sample(5000, seed=1), truth.sample(20_000, seed=3)
    mixture = fit_rows(rows, 5, seed=2)
    assert mixture.score(rows) > truth.score(rows) - 0.02
    assert mixture.score(others) > truth.score(others) - 0.05
    single = fit_rows(rows, 1)
    np.testing.assert_allclose(single.covariances[0], rows.var(axis=0), rtol=1e-3)


def test_units_do_not_matter():
    rows = random_mixture(3, 2, seed=4).sample(2000, seed=5)
    unit, offset = np.array([1e-3, 1e6]), np.array([1e4, -7.0])
    plain, moved = fit_rows(rows, 3), fit_rows(rows * unit + offset, 3)
    np.testing.assert_allclose(moved.covariances, plain.covariances * unit**2, rtol=1e-3)
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-3)


def test_the_seed_decides():
    rows = random_mixture(3, 2, seed=4).sample(500, seed=5)
    np.testing.assert_array_equal(fit_rows(rows, 8, seed=1).means, fit_rows(rows, 8, seed=1).means)
    assert not np.array_equal(fit_rows(rows, 8, seed=1).means, fit_rows(rows, 8, seed=2).means)


def test_more_components_than_distinct_rows():
    rows = np.repeat([[0.0, 1.0], [1.0, 0.0]], 20, axis=0)
    mixture = fit_rows(rows, 5)
    assert isinstance(mixture, GaussianMixture)
    assert np.isfinite(mixture.score(rows))


def test_refusals():
    with pytest.raises(InputError, match=r"features \[1\] do not vary"):
        fit_rows(np.array([[0.0, 1.0], [1.0, 1.0]]), 1)
    with pytest.raises(InputError, match="n_clusters=3"):
        fit_rows(np.array([[0.0], [1.0]]), 3)
