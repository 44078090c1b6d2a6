from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from dask_sketch import Sketch, partial_sketch
from dask_sketch.decoders import decode
from dask_sketch.decoders.greedy import N_ITERATIONS
from dask_sketch.decoders.splitting import n_levels
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import Centroids, GaussianMixture, random_mixture, symmetric_kl

MIXTURE_METHODS = ("cl-ompr", "cl-omp", "splitting")  # of METHODS, those that are reliable at that

# components beyond those of the data may collapse, and decode says so
thin_is_fine = pytest.mark.filterwarnings("ignore:.* components are thinner")


def matched(mixture: GaussianMixture, truth: GaussianMixture) -> GaussianMixture:
    """The same mixture, components in the order of the truth's."""
    orders = itertools.permutations(range(truth.n_components))
    best = list(min(orders, key=lambda o: np.abs(mixture.means[list(o)] - truth.means).sum()))
    return GaussianMixture(mixture.weights[best], mixture.means[best], mixture.covariances[best])


@pytest.mark.parametrize("method", MIXTURE_METHODS)
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


def test_finds_an_exactly_known_distribution_to_many_digits(exact_sketch, truth):
    sketch = exact_sketch(truth, FeatureMap(2, 150, scale=1.0, seed=6, dtype="float64"), 10**14)
    found = matched(decode(sketch, 3), truth)
    np.testing.assert_allclose(found.means, truth.means, atol=1e-5)
    np.testing.assert_allclose(found.covariances, truth.covariances, atol=1e-5)


@pytest.mark.parametrize("method", MIXTURE_METHODS)
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


@pytest.mark.parametrize("method", MIXTURE_METHODS)
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
    mixture = decode(sketch, 3, variance_floor=0.5)  # of the scale, which is less than the data's
    assert mixture.covariances.min() == pytest.approx(0.5)
    wide = partial_sketch(samples, FeatureMap(2, 150, scale=10.0, seed=6, dtype="float64"))
    mixture = decode(wide, 3, variance_floor=0.5)
    assert (mixture.covariances >= 0.5 * samples.var(axis=0) * (1 - 1e-9)).all()
    assert mixture.decoding.variance_floor == 0.5


@pytest.mark.parametrize("method", MIXTURE_METHODS)
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


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True])
def test_refuses_a_bad_number_of_components(sketch, value):
    with pytest.raises(DecodeError, match=r"n_components=.*at least 1"):
        decode(sketch, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "em"}, "method='em' is unknown; choose one of cl-ompr, cl-omp, splitting"),
        ({"model": "cauchy"}, "model='cauchy' is unknown; choose one of gaussian, isotropic"),
        ({"refine": "fast"}, "refine='fast' is unknown; give 'efficient'"),
        ({"refine": "efficient", "model": "dirac", "method": "cl-omp"}, "points say nothing"),
        ({"refine": "efficient", "method": "density"}, "takes no merge, refine or covariance"),
        ({"method": "density", "model": "isotropic"}, "finds centroids: give model='dirac'"),
        ({"method": "density", "maxima": "newton"}, "maxima='newton' is unknown"),
        ({"model": "known"}, "needs covariance"),
        ({"covariance": [1.0, 1.0]}, "no use for it"),
        (
            {"model": "known", "covariance": [[1.0, 0.5], [0.5, 1.0]], "refine": "efficient"},
            "knows diagonal covariances only",
        ),
        ({"start": 3}, "start of type int: give an earlier model"),
        ({"start": random_mixture(2, 3)}, "start has 3 features, the sketch 2"),
        ({"start": random_mixture(2, 2), "method": "cl-omp"}, "method='cl-omp' and start"),
        ({"replicates": 0}, "replicates=0: give a whole number of at least 1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, r"seed=0\.5"),
        ({"variance_floor": 0.0}, r"variance_floor=0\.0"),
        ({"variance_floor": 2.0}, r"variance_floor=2\.0"),
        ({"variance_floor": "0.1"}, "variance_floor='0.1'"),
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
    with pytest.warns(
        UserWarning, match=r"14 parameters.* 10 frequencies are few: .* with 70 freq"
    ):
        assert decode(sketch, 2).n_components == 2
    with pytest.raises(DecodeError, match=r"21 parameters, more than the 20 .* at most 2 comp"):
        decode(sketch, 3)


@pytest.mark.parametrize("model", ["gaussian", "dirac"])
def test_refuses_more_components_than_samples(model):
    sketch = partial_sketch(np.eye(3), FeatureMap(3, 150, scale=1.0))
    with pytest.raises(DecodeError, match=r"n_components=4 from a sketch of 3 samples"):
        decode(sketch, 4, model=model)


def test_warns_of_components_without_width():
    x = np.repeat([[0.0, 0.0], [5.0, 5.0]], 500, axis=0)  # two points: the best width is none
    sketch = partial_sketch(x, FeatureMap(2, 60, scale=1.0))
    with pytest.warns(UserWarning, match="2 of 2 components are thinner .* variance_floor=0.1"):
        decode(sketch, 2, variance_floor=1e-15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(sketch, 2)


def test_hard_thresholding_is_the_baseline(sketch, truth):
    mixture = decode(sketch, 3, method="iht")
    assert mixture.n_components == 3
    assert len(mixture.decoding.trace) == N_ITERATIONS
    x = truth.sample(20_000, seed=1) @ [[0.0], [1.0]]
    single = decode(partial_sketch(x, FeatureMap(1, 50, scale=1.5)), 1, method="iht")
    assert single.means[0, 0] == pytest.approx(x.mean(), abs=0.5)


@pytest.mark.parametrize("model", ["isotropic", "known", "dirac"])
@pytest.mark.parametrize("method", MIXTURE_METHODS)
def test_other_models(method, model):
    place = np.array([[-5.0, 0.0], [0.0, 5.0], [5.0, 0.0]])
    truth = GaussianMixture([0.5, 0.3, 0.2], place, np.full((3, 2), 0.25))
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 200, scale=0.8, seed=2))
    known = {"covariance": [0.25, 0.25]} if model == "known" else {}
    found = decode(sketch, 3, method=method, model=model, **known)
    centers = found.centers if model == "dirac" else found.means
    order = centers[:, 0].argsort()
    # points are biased by the width of the clusters
    np.testing.assert_allclose(centers[order], place, atol=0.15 if model == "dirac" else 0.05)
    np.testing.assert_allclose(found.weights[order], truth.weights, atol=0.05)
    if model != "dirac":
        np.testing.assert_allclose(found.covariances, 0.25, atol=0.02)
    assert found.decoding.model == model


def test_a_known_covariance_matrix_gives_centroids():
    rng = np.random.default_rng(0)
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    x = rng.multivariate_normal([0.0, 0.0], covariance, 40_000)
    x[::2] += [3.0, -3.0]
    sketch = partial_sketch(x, FeatureMap(2, 200, scale=1.0, seed=2))
    found = decode(sketch, 2, model="known", covariance=covariance)
    assert isinstance(found, Centroids)
    order = found.centers[:, 0].argsort()
    np.testing.assert_allclose(found.centers[order], [[0.0, 0.0], [3.0, -3.0]], atol=0.05)


@pytest.mark.parametrize("method", ["sketch-shift", "density"])
def test_centroid_methods(method):
    place = np.array([[-5.0, 0.0], [0.0, 5.0], [5.0, 0.0]])
    x = GaussianMixture([0.5, 0.3, 0.2], place, np.full((3, 2), 0.25)).sample(50_000, seed=1)
    sketch = partial_sketch(x, FeatureMap(2, 200, scale=1.0, distribution="gaussian", seed=2))
    found = decode(sketch, 3, method=method, replicates=2)
    assert isinstance(found, Centroids)
    np.testing.assert_allclose(found.centers[found.centers[:, 0].argsort()], place, atol=0.2)
    assert found.inertia(x) < 1.1 * 0.5
    assert (np.diff(found.weights) <= 0).all()
    assert (found.decoding.method, found.decoding.model) == (method, "dirac")
    again = decode(sketch, 3, method=method, replicates=2)
    np.testing.assert_array_equal(again.centers, found.centers)


def test_points_are_found_by_way_of_a_density_unless_said_otherwise(sketch):
    assert decode(sketch, 3, model="dirac").decoding.method == "density"


def test_the_number_of_components_can_be_left_to_the_sketch(truth):
    sketch = partial_sketch(truth.sample(200_000, seed=3), FeatureMap(2, 300, scale=1.0, seed=1))
    mixture = decode(sketch)
    assert mixture.n_components == 3
    assert mixture.decoding.method == "cl-omp"
    with pytest.raises(DecodeError, match="n_components=None with method='splitting'"):
        decode(sketch, method="splitting")


def test_a_warm_start_continues(truth):
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6)
    first = partial_sketch(truth.sample(20_000, seed=1), feature_map)
    grown = first + partial_sketch(truth.sample(200_000, seed=2), feature_map)
    earlier, cold = decode(first, 3), decode(grown, 3)
    warm = decode(grown, start=earlier)
    assert warm.decoding.method == "start"
    assert warm.decoding.cost <= 1.05 * cold.decoding.cost
    assert warm.decoding.n_evaluations < cold.decoding.n_evaluations
    assert decode(grown, 4, start=earlier).n_components == 4
    assert decode(grown, 2, start=earlier).n_components == 2
    centroids = decode(grown, start=decode(first, 3, model="dirac"))
    assert isinstance(centroids, Centroids)
    assert centroids.n_components == 3


def test_a_warm_start_looks_for_other_components_when_there_is_reason(truth):
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6)
    first = partial_sketch(truth.sample(100_000, seed=1), feature_map)
    night = partial_sketch(truth.sample(1000, seed=2), feature_map)
    earlier = decode(first, 3)
    assert earlier.decoding.searched is None
    warm = decode(first + night, start=earlier)
    assert warm.decoding.searched == earlier.decoding.noise_level
    assert warm.decoding.cost <= 1.01 * decode(first + night, 3).decoding.cost
    # nights add up: the search that counts is the last one
    total, model = first, earlier
    for seed in range(30):
        total = total + partial_sketch(truth.sample(1000, seed=seed), feature_map)
        model = decode(total, start=model)
    assert model.decoding.searched is not None
    assert model.decoding.searched > 0.8 * earlier.decoding.noise_level / 1.3
    moments = {model.decoding.searched, earlier.decoding.noise_level}
    assert len(moments) == 2  # there was a search on the way
    # other data: one of the components has gone elsewhere
    moved = GaussianMixture(
        truth.weights, truth.means + np.array([[0], [0], [9]]), truth.covariances
    )
    other = partial_sketch(moved.sample(100_000, seed=1), feature_map)
    found = decode(other, start=earlier)
    assert found.decoding.cost <= 1.05 * decode(other, 3).decoding.cost


def test_coincident_components_are_merged_when_asked():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1, dtype="float64"))
    split = decode(
        sketch, 2, start=GaussianMixture([0.5, 0.5], [[0.0, 0.1], [0.1, 0.0]], np.ones((2, 2)))
    )
    assert split.n_components == 2
    merged = decode(
        sketch,
        2,
        start=GaussianMixture([0.5, 0.5], [[0.0, 0.1], [0.1, 0.0]], np.ones((2, 2))),
        merge=True,
    )
    assert merged.n_components in (1, 2)
    np.testing.assert_allclose(merged.mean, 0.0, atol=0.02)


def test_a_lazy_sketch_is_refused():
    with pytest.raises(DecodeError, match=r"sketch of type dict: .* call .compute\(\)"):
        decode({}, 2)


@pytest.mark.parametrize("method", ["cl-ompr", "splitting"])
def test_more_parameters_than_can_be_solved_for(sketch, truth, method, monkeypatch):
    monkeypatch.setattr("dask_sketch.decoders.descent.SOLVABLE", 10)
    monkeypatch.setattr("dask_sketch.decoders.descent.converge", None)
    mixture = decode(sketch, 3, method=method)
    np.testing.assert_allclose(matched(mixture, truth).means, truth.means, atol=0.1)


def test_refinement_that_does_not_fit_is_refused(sketch, monkeypatch):
    class Memory:
        available = 10**6

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(DecodeError, match=r"n_components=60 needs .* GiB of memory, and 0\.0 GiB"):
        decode(sketch, 60, refine="efficient")
