"""Mixtures by way of a finer density, for data that is not a mixture of so few Gaussians."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import decode, partial_sketch
from dask_sketch.decoders.greedy import n_levels
from dask_sketch.decoders.mixture_reduction import max_atoms
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.features.pilot_fit import fit_pilot
from dask_sketch.models import GaussianMixture, random_mixture


def tails(n, seed):
    """Eight clusters in three features, of different sizes, with long tails on one side."""
    means = 3.0 * np.random.default_rng(0).normal(size=(8, 3))
    rng = np.random.default_rng(seed)
    labels = rng.integers(8, size=n)
    reach = np.array([0.1, 0.2, 0.4, 0.8, 1.0, 0.3, 0.5, 1.5])[labels, None]
    return means[labels] + reach * rng.exponential(size=(n, 3))


@pytest.fixture(scope="module")
def tailed():
    x = tails(20_000, 1)
    return partial_sketch(x, ds.design(x, n_frequencies=600, n_components=4, seed=0))


@pytest.fixture(scope="module")
def found(tailed):
    with pytest.warns(UserWarning, match="nats a sample below"):  # tails are never quite a mixture
        return decode(tailed, 4, method="density", model="gaussian", replicates=2)


@pytest.mark.slow
def test_likelihood_is_near_the_greatest_where_least_squares_is_far_from_it(tailed, found):
    heldout = tails(20_000, 2)
    best = fit_pilot(tails(20_000, 1), 4)
    reference = GaussianMixture(best.weights, best.means, best.variances).score(heldout)
    with pytest.warns(UserWarning, match="nats a sample below"):
        squares = decode(tailed, 4, method="splitting").score(heldout)
    assert squares < reference - 0.5
    assert found.score(heldout) > reference - 0.25


@pytest.mark.slow
def test_atoms_are_doubled_until_noise_explains_the_sketch(tailed, found):
    record = found.decoding
    first = n_levels(4)  # entries of the trace up to four atoms
    assert len(record.trace) > first + 1
    assert record.trace[first] > record.noise_level
    doubled = 4 * 2 ** (len(record.trace) - first)
    assert record.trace[-1] <= record.noise_level or doubled > max_atoms(3, 600)
    assert (record.method, record.model, record.replicates) == ("density", "gaussian", 2)
    np.testing.assert_allclose(found.weights.sum(), 1.0)
    assert (np.diff(found.weights) <= 0).all()


@pytest.mark.slow
def test_a_mixture_is_found_as_such():
    truth = random_mixture(n_components=3, n_features=2, seed=1)
    x = truth.sample(20_000, seed=2)
    sketch = partial_sketch(x, ds.design(x, n_frequencies=120, n_components=3, seed=3))
    mixture = decode(sketch, 3, method="density", model="gaussian")
    assert mixture.score(x) > truth.score(x) - 0.03


@pytest.mark.filterwarnings("ignore:the mixture is")
@pytest.mark.slow
def test_threads_and_executors_change_no_bit(tailed, found):
    with ThreadPoolExecutor(2) as executor:
        options = {"threads": 2, "executor": executor}
        again = decode(tailed, 4, method="density", model="gaussian", replicates=2, **options)
    np.testing.assert_array_equal(again.means, found.means)
    np.testing.assert_array_equal(again.covariances, found.covariances)


@pytest.mark.slow
def test_one_component_has_the_moments_of_the_data(tailed):
    one = decode(tailed, 1, method="density", model="gaussian")
    away = (one.means[0] - tailed.mean) / np.sqrt(tailed.variance)
    np.testing.assert_allclose(away, 0.0, atol=0.1)
    np.testing.assert_allclose(one.covariances[0], tailed.variance, rtol=0.15)


def test_refuses_arguments_of_other_methods(tailed):
    with pytest.raises(DecodeError, match="merge=True"):
        decode(tailed, 4, method="density", model="gaussian", merge=True)
    short = partial_sketch(tails(100, 3), FeatureMap(3, 5, scale=1.0, seed=0))
    with pytest.raises(DecodeError, match="n_components=4"):
        decode(short, 4, method="density", model="gaussian")
