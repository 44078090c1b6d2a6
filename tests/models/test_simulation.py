from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import random_mixture, symmetric_kl


def test_laws_of_the_parameters():
    mixture = random_mixture(2000, 2, seed=0)
    assert mixture.covariances.min() >= 0.25
    assert mixture.covariances.max() <= 1.75
    assert mixture.covariances.mean() == pytest.approx(1.0, abs=0.02)
    assert mixture.means.std() == pytest.approx(2000**0.5, rel=0.05)
    np.testing.assert_array_equal(mixture.weights, 1 / 2000)


def test_seeds_and_weights():
    one, two = random_mixture(5, 3, seed=1), random_mixture(5, 3, seed=1, weights="dirichlet")
    np.testing.assert_array_equal(one.means, two.means)
    assert np.ptp(two.weights) > 0.01
    assert (random_mixture(5, 3, seed=2).means != one.means).all()


def test_anisotropy_divides_half_of_the_features():
    one, two = random_mixture(5, 10, seed=1), random_mixture(5, 10, seed=1, anisotropy=4.0)
    np.testing.assert_allclose(two.means[:, :5], one.means[:, :5] / 4)
    np.testing.assert_allclose(two.covariances[:, :5], one.covariances[:, :5] / 16)
    np.testing.assert_array_equal(two.means[:, 5:], one.means[:, 5:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": 0}, "n_components=0"),
        ({"n_features": 1.5}, r"n_features=1\.5"),
        ({"weights": "equal"}, "weights='equal' is unknown"),
        ({"anisotropy": 0.0}, r"anisotropy=0\.0"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        random_mixture(**({"n_components": 2, "n_features": 2} | arguments))


def test_divergence_of_mixtures_with_other_names():
    p = random_mixture(2, 2, seed=0)
    p, q = (replace(p, feature_names=names) for names in (("a", "b"), ("b", "a")))
    with pytest.raises(InputError, match="feature 0 of q is 'b'; p .* 'a'"):
        symmetric_kl(p, q)
