from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from dask_sketch.decoders import METHODS, decode
from dask_sketch.decoders.splitting import n_levels
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import GaussianMixture, random_mixture, symmetric_kl
from dask_sketch.sketching import Sketch, partial_sketch

# components beyond those of the data may collapse, and decode says so
thin_is_fine = pytest.mark.filterwarnings("ignore:.* components are thinner")


def matched(mixture: GaussianMixture, truth: GaussianMixture) -> GaussianMixture:
    """The same mixture, components in the order of the truth's."""
    orders = itertools.permutations(range(truth.n_components))
    best = list(min(orders, key=lambda o: np.abs(mixture.means[list(o)] - truth.means).sum()))
    return GaussianMixture(mixture.weights[best], mixture.means[best], mixture.covariances[best])


@pytest.mark.parametrize("method", METHODS)
def test_finds_the_mixture(sketch, truth, method):
    mixture = decode(sketch, 3, method=method, seed=0)
    found = matched(mixture, truth)
    np.testing.assert_allclose(found.weights, truth.weights, atol=0.02)
    np.testing.assert_allclose(found.means, truth.means, atol=0.1)
    np.testing.assert_allclose(found.covariances, truth.covariances, atol=0.1)
    assert mixture.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(mixture.weights) <= 0).all()
    how = mixture.decoding
    assert (how.method, how.model, how.seed, how.replicates) == (method, "gaussian", 0, 1)
    assert how.noise_level == pytest.approx(sketch.noise_level)
    assert 0 < how.cost < how.noise_level
    assert how.trace[-1] == pytest.approx(how.cost, rel=0.5)
    assert len(how.trace) == {"cl-omp": 3, "cl-ompr": 6, "splitting": 2}[method]
    assert how.converged
    assert how.message
    assert how.n_evaluations > 10
    assert how.seconds > 0


def test_finds_an_exactly_known_law_to_many_digits(exact_sketch, truth):
    sketch = exact_sketch(truth, FeatureMap(2, 150, scale=1.0, seed=6, dtype="float64"), 10**14)
    found = matched(decode(sketch, 3), truth)
    np.testing.assert_allclose(found.means, truth.means, atol=1e-5)
    np.testing.assert_allclose(found.covariances, truth.covariances, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_one_component(method):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3)) * [1.0, 0.5, 2.0] + [1.0, -2.0, 7.0]
    sketch = partial_sketch(x, FeatureMap(3, 100, scale=1.0, dtype="float64"))
    mixture = decode(sketch, 1, method=method)
    np.testing.assert_allclose(mixture.weights, [1.0])
    np.testing.assert_allclose(mixture.means[0], x.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(mixture.covariances[0], x.var(axis=0), rtol=0.06)
    assert len(mixture.decoding.trace) == (2 if method == "cl-ompr" else 1)


@pytest.mark.parametrize(
    ("n_components", "levels"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6)]
)
def test_number_of_levels(n_components, levels):
    assert n_levels(n_components) == levels


@thin_is_fine
@pytest.mark.parametrize("n_components", [2, 4, 5])
def test_splitting_returns_as_many_as_asked(sketch, n_components):
    mixture = decode(sketch, n_components, method="splitting")
    assert mixture.n_components == n_components
    assert len(mixture.decoding.trace) == n_levels(n_components)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("scale", "offset"), [(1e3, 1e4), (1e-3, 1e4), (1e3, 0.0)])
def test_other_units_and_origin_give_the_equivalent_model(samples, sketch, method, scale, offset):
    # a center as `design` would choose it: round, near the data, not its mean
    center = np.full(2, offset + 0.25 * scale)
    feature_map = FeatureMap(2, 150, scale=scale, seed=6, dtype="float64", center=center)
    moved = decode(partial_sketch(samples * scale + offset, feature_map), 3, method=method)
    here = decode(sketch, 3, method=method)
    there = matched(
        GaussianMixture(
            moved.weights, (moved.means - offset) / scale, moved.covariances / scale**2
        ),
        here,
    )
    # frequencies are rounded to float32 anew for each scale, so the sketches are not the same
    np.testing.assert_allclose(there.weights, here.weights, atol=2e-4)
    np.testing.assert_allclose(there.means, here.means, atol=2e-3)
    np.testing.assert_allclose(there.covariances, here.covariances, atol=2e-3)


def test_same_seed_same_bits(sketch):
    one, two = decode(sketch, 3, seed=7), decode(sketch, 3, seed=7)
    for name in ("weights", "means", "covariances"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.decoding.trace == two.decoding.trace


@thin_is_fine
def test_replicates_keep_the_lowest_cost(sketch):
    costs = []

    def progress(done, total, cost):
        costs.append((done, total, cost))

    mixture = decode(sketch, 4, method="cl-omp", replicates=3, progress=progress)
    assert [done for done, _, _ in costs] == list(range(1, 13))
    assert {total for _, total, _ in costs} == {12}
    lasts = [cost for done, _, cost in costs if done % 4 == 0]
    assert mixture.decoding.trace[-1] == min(lasts)
    assert mixture.decoding.replicates == 3
    single = decode(sketch, 4, method="cl-omp")
    assert single.decoding.trace[-1] == lasts[0]  # the first replicate is the lone fit


def test_replacement_never_raises_the_cost():
    truth = random_mixture(5, 2, seed=8)
    sketch = partial_sketch(truth.sample(20_000, seed=1), FeatureMap(2, 300, scale=1.0))
    trace = decode(sketch, 5).decoding.trace
    assert (np.diff(trace[4:]) <= 0).all()


def test_replacement_leaves_a_minimum_that_growth_ends_in():
    # two overlapping pairs: growth alone covers one pair with one atom
    truth = random_mixture(3, 2, seed=13)
    sketch = partial_sketch(
        truth.sample(300_000, seed=1013), FeatureMap(2, 150, scale=1.0, seed=13)
    )
    grown, replaced = (decode(sketch, 3, method=method) for method in ("cl-omp", "cl-ompr"))
    assert replaced.decoding.cost < 0.5 * grown.decoding.cost
    assert np.log(symmetric_kl(truth, replaced, 100_000)) < -9


def test_float32_features_decode_alike(samples, truth):
    mixture = decode(partial_sketch(samples, FeatureMap(2, 150, scale=1.0, seed=6)), 3)
    np.testing.assert_allclose(matched(mixture, truth).means, truth.means, atol=0.1)


def test_weighted_samples():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-4, 1, (5000, 1)), rng.normal(4, 1, (5000, 1))])
    weights = np.repeat([3.0, 1.0], 5000)
    mixture = decode(partial_sketch(x, FeatureMap(1, 40, scale=1.0), weights), 2)
    np.testing.assert_allclose(mixture.weights, [0.75, 0.25], atol=0.01)
    np.testing.assert_allclose(mixture.means[:, 0], [-4, 4], atol=0.1)


@thin_is_fine
def test_bounds_hold_means_in(sketch, truth):
    free = decode(sketch, 3)
    data = decode(sketch, 3, bounds="data")
    np.testing.assert_allclose(matched(data, free).means, free.means, atol=1e-2)
    box = np.array([[-0.5, -np.inf], [0.5, np.inf]])
    boxed = decode(sketch, 3, bounds=box)
    assert (boxed.means[:, 0] >= -0.5).all()
    assert (boxed.means[:, 0] <= 0.5).all()
    away = decode(sketch, 2, bounds=[[50.0, 50.0], [60.0, 60.0]], method="splitting")
    assert (away.means >= 50).all()


def test_variance_floor(sketch, samples):
    mixture = decode(sketch, 3, variance_floor=0.5)
    assert (mixture.covariances >= 0.5 * samples.var(axis=0) * (1 - 1e-9)).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_single_point(method):
    sketch = partial_sketch([[2.0, -1.0]], FeatureMap(2, 40, scale=1.0, dtype="float64"))
    mixture = decode(sketch, 1, method=method)
    np.testing.assert_allclose(mixture.means, [[2.0, -1.0]], atol=1e-6)
    assert (mixture.covariances < 1e-6).all()


@thin_is_fine
def test_a_feature_that_does_not_vary():
    x = np.random.default_rng(0).normal(size=(5000, 2))
    x[:, 1] = 3.0
    mixture = decode(partial_sketch(x, FeatureMap(2, 80, scale=1.0)), 2, bounds="data")
    np.testing.assert_allclose(mixture.means[:, 1], 3.0)
    assert np.isfinite(mixture.logpdf(x)).all()


@thin_is_fine
def test_more_components_than_the_data_has(sketch, samples, truth):
    mixture = decode(sketch, 8)
    assert mixture.n_components == 8
    assert mixture.score(samples) > truth.score(samples) - 0.05


def test_finds_clusters_far_apart():
    # further from the centre of the data than a climb from there can see
    truth = GaussianMixture(
        [0.6, 0.3, 0.1], [[-9.0, 0.0], [9.0, 9.0], [0.0, -20.0]], np.ones((3, 2))
    )
    sketch = partial_sketch(truth.sample(20_000, seed=0), FeatureMap(2, 150, scale=1.0))
    found = matched(decode(sketch, 3), truth)
    np.testing.assert_allclose(found.weights, truth.weights, atol=0.02)
    np.testing.assert_allclose(found.means, truth.means, atol=0.15)


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, True])
def test_refuses_a_bad_number_of_components(sketch, value):
    with pytest.raises(DecodeError, match=r"n_components=.*at least 1"):
        decode(sketch, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "em"}, "method='em' is unknown; choose one of cl-ompr, cl-omp, splitting"),
        ({"model": "dirac"}, "model='dirac' is unknown; choose one of gaussian"),
        ({"replicates": 0}, "replicates=0: give a whole number of at least 1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, r"seed=0\.5"),
        ({"variance_floor": 0.0}, r"variance_floor=0\.0"),
        ({"variance_floor": 2.0}, r"variance_floor=2\.0"),
        ({"bounds": "box"}, "bounds='box': give None, 'data'"),
        ({"bounds": [[0.0, 0.0]]}, r"bounds has shape \(1, 2\).*give \(2, 2\)"),
        ({"bounds": [["a", "b"], ["c", "d"]]}, "not an array of numbers"),
        ({"bounds": [[0.0, 1.0], [1.0, 1.0]]}, "bounds of feature 1 are 1 and 1"),
        ({"bounds": [[0.0, np.nan], [1.0, 1.0]]}, "bounds of feature 1 are nan and 1"),
    ],
)
def test_refuses_bad_arguments(sketch, arguments, message):
    with pytest.raises(DecodeError, match=message):
        decode(sketch, 2, **arguments)


def test_refuses_an_empty_sketch():
    with pytest.raises(DecodeError, match="the sketch is empty: total weight 0, 0 samples"):
        decode(Sketch.empty(FeatureMap(2, 50, scale=1.0)), 2)


@thin_is_fine
def test_refuses_more_parameters_than_numbers():
    sketch = partial_sketch(np.eye(3), FeatureMap(3, 10, scale=1.0))
    assert decode(sketch, 2).n_components == 2
    with pytest.raises(DecodeError, match=r"21 parameters, more than the 20 .* at most 2 comp"):
        decode(sketch, 3)


def test_warns_of_components_without_width():
    x = np.repeat([[0.0, 0.0], [5.0, 5.0]], 500, axis=0)  # two points: the best width is none
    sketch = partial_sketch(x, FeatureMap(2, 60, scale=1.0))
    with pytest.warns(UserWarning, match="2 of 2 components are thinner .* variance_floor=0.01"):
        decode(sketch, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(sketch, 2, variance_floor=0.01)


def test_a_lazy_sketch_is_refused():
    with pytest.raises(DecodeError, match=r"sketch of type dict: .* call .compute\(\)"):
        decode({}, 2)
