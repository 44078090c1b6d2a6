from __future__ import annotations

import itertools

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders import decode, efficient
from dask_sketch.decoders.efficient import refine_efficiently
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit
from dask_sketch.errors import InputError
from dask_sketch.features import FeatureMap
from dask_sketch.models import GaussianMixture, random_mixture, symmetric_kl


def in_order_of(truth, mixture):
    """Components of a mixture in the order of the truth's."""
    orders = itertools.permutations(range(truth.n_components))
    return list(min(orders, key=lambda o: np.abs(mixture.means[list(o)] - truth.means).sum()))


def divergences(n_features, n_components, seeds, n_frequencies, n_samples, **options):
    """ln KL of least squares and of efficient refinement, in turn."""
    out = []
    for seed in seeds:
        truth = random_mixture(n_components, n_features, seed=seed)
        feature_map = FeatureMap(
            n_features, n_frequencies, scale=1.0, seed=seed, distribution="sparse-radius"
        )
        sketch = partial_sketch(truth.sample(n_samples, seed=100 + seed), feature_map)
        fits = [decode(sketch, n_components, refine=refine) for refine in (None, "efficient")]
        out.append([np.log(symmetric_kl(truth, fit, 100_000)) for fit in fits])
    return np.array(out).mean(axis=0)


def test_is_as_precise_as_the_limit():
    plain, refined = divergences(2, 3, range(6), 150, 100_000)
    limit = np.log(14 / 100_000)  # an efficient estimate of 14 parameters, on average
    assert refined < plain - 0.1
    assert refined < limit + 0.3


def test_in_ten_features():
    plain, refined = divergences(10, 5, range(2), 525, 100_000)
    assert refined < plain - 0.2
    assert refined < np.log(104 / 100_000) + 0.5


def test_a_float64_sketch_of_many_samples(exact_sketch):
    # as if of infinitely many: what is left is the truth, and the error that the count tells
    truth = random_mixture(3, 2, seed=9)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6, dtype="float64")
    found = decode(exact_sketch(truth, feature_map, 10**12), 3, refine="efficient")
    order = in_order_of(truth, found)
    np.testing.assert_allclose(found.means[order], truth.means, atol=1e-6)
    assert found.stderr.means.max() < 1e-4


@pytest.mark.parametrize("model", ["gaussian", "isotropic", "known"])
def test_standard_errors_are_the_spread_of_estimates(model):
    place = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    truth = GaussianMixture([0.5, 0.3, 0.2], place, np.full((3, 2), 0.7))
    feature_map = FeatureMap(2, 150, scale=1.0, seed=1)
    known = {"covariance": [0.7, 0.7]} if model == "known" else {}
    found, errors = [], []
    for seed in range(30):
        sketch = partial_sketch(truth.sample(20_000, seed=seed), feature_map)
        mixture = decode(sketch, 3, model=model, refine="efficient", **known)
        order = in_order_of(truth, mixture)
        parts = ("weights", "means", "covariances")
        found.append(np.concatenate([getattr(mixture, p)[order].ravel() for p in parts]))
        errors.append(np.concatenate([getattr(mixture.stderr, p)[order].ravel() for p in parts]))
    spread, told = np.std(found, axis=0), np.mean(errors, axis=0)
    free = np.ones(15, dtype=bool)
    if model == "known":
        free[9:] = False
        assert (told[9:] == 0).all()
    ratio = spread[free] / told[free]
    assert ratio.mean() == pytest.approx(1.0, abs=0.12)
    assert (ratio < 1.6).all()
    assert (ratio > 0.6).all()


def test_intervals_hold_the_truth_as_often_as_they_say():
    truth = random_mixture(3, 2, seed=9)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6)
    hits = []
    for seed in range(40):
        sketch = partial_sketch(truth.sample(20_000, seed=seed), feature_map)
        mixture = decode(sketch, 3, refine="efficient")
        order = in_order_of(truth, mixture)
        for name, ends in mixture.interval(0.9).items():
            low, high = np.moveaxis(ends[order], -1, 0)
            value = getattr(truth, name)
            hits.append(((low <= value) & (value <= high)).ravel())
    assert np.concatenate(hits).mean() == pytest.approx(0.9, abs=0.03)


def test_blocks_of_frequencies_agree(monkeypatch):
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    whole = decode(sketch, 3, refine="efficient")
    monkeypatch.setattr(efficient, "BLOCK", 60)
    blocks = decode(sketch, 3, refine="efficient")
    np.testing.assert_allclose(blocks.means, whole.means, atol=3 * whole.stderr.means.max())
    # a bound on the errors, not far above them
    ratio = blocks.stderr.means / whole.stderr.means
    assert (ratio > 0.99).all()
    assert (ratio < 1.3).all()


def test_weights_of_features_do_not_matter():
    truth = random_mixture(3, 2, seed=9)
    x = truth.sample(50_000, seed=1)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6, distribution="clustering")
    mixture = decode(partial_sketch(x, feature_map), 3, refine="efficient")
    assert symmetric_kl(truth, mixture) < 5 * 14 / 50_000


def test_parameters_on_bounds_stay_there():
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    objective = Objective(sketch, variance_floor=0.2)
    order = np.argsort(truth.means[:, 0])
    theta = objective.from_data_units(truth.means[order], truth.covariances[order])
    theta[0, 2] = objective.lower[2]
    weights = np.append(truth.weights[order], 0.0)
    theta = np.vstack([theta, theta[2]])
    refined = refine_efficiently(objective, Fit(weights, theta, 0.0, True, ""), lambda cost: None)
    fit, errors = refined.fit, refined.standard_errors
    assert fit.theta[0, 2] == objective.lower[2]
    assert errors[2][0, 0] == 0.0
    assert fit.weights[3] == 0.0
    assert errors[0][3] == 0.0
    assert (errors[1][3] == 0.0).all()
    assert fit.weights.sum() == pytest.approx(1.0)


def test_coincident_components_do_no_harm():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1))
    twice = GaussianMixture([0.5, 0.5], np.zeros((2, 2)), np.ones((2, 2)))
    mixture = decode(sketch, 2, start=twice, refine="efficient")
    assert np.isfinite(mixture.stderr.means).all()
    assert mixture.score(x) == pytest.approx(-1.0 - np.log(2 * np.pi), abs=0.01)


def test_a_single_point_is_no_noise():
    sketch = partial_sketch([[2.0, -1.0]], FeatureMap(2, 40, scale=1.0, dtype="float64"))
    mixture = decode(sketch, 1, refine="efficient", variance_floor=1e-15)
    np.testing.assert_allclose(mixture.means, [[2.0, -1.0]], atol=1e-6)


def test_same_bits(sketch):
    a, b = (decode(sketch, 3, refine="efficient", seed=2) for _ in range(2))
    np.testing.assert_array_equal(a.means, b.means)
    np.testing.assert_array_equal(a.stderr.covariances, b.stderr.covariances)
    assert a.decoding.refine == "efficient"


def test_a_mixture_without_errors_has_no_intervals(sketch):
    with pytest.raises(InputError, match="decode it with refine='efficient'"):
        decode(sketch, 3).interval()
    with pytest.raises(InputError, match="level=95"):
        decode(sketch, 3, refine="efficient").interval(95)
