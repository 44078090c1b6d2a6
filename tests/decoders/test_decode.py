from __future__ import annotations

import itertools
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import dask_sketch as ds
from dask_sketch import decode, partial_sketch
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import Centroids, GaussianMixture

MIXTURE_METHODS = ("cl-ompr", "cl-omp", "splitting")  # methods that find mixtures reliably

# components beyond those of the data may have no width, of which decode warns
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
    ("method", "scale", "offset"),
    [("cl-ompr", 1e3, 1e4), ("cl-omp", 1e-3, 1e4), ("splitting", 1e3, 0.0)],
)
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
@pytest.mark.slow
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


def test_weighted_samples():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-4, 1, (5000, 1)), rng.normal(4, 1, (5000, 1))])
    weights = np.repeat([3.0, 1.0], 5000)
    mixture = decode(partial_sketch(x, FeatureMap(1, 40, scale=1.0), weights), 2)
    np.testing.assert_allclose(mixture.weights, [0.75, 0.25], atol=0.01)
    np.testing.assert_allclose(mixture.means[:, 0], [-4, 4], atol=0.1)


@thin_is_fine
@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
@pytest.mark.slow
def test_bounds_hold_means_in(sketch, truth):
    free = decode(sketch, 3, method="cl-ompr")
    data = decode(sketch, 3, bounds="data")
    np.testing.assert_allclose(matched(data, free).means, free.means, atol=1e-2)
    box = np.array([[-0.5, -np.inf], [0.5, np.inf]])
    boxed = decode(sketch, 3, bounds=box)
    assert (boxed.means[:, 0] >= -0.5).all()
    assert (boxed.means[:, 0] <= 0.5).all()
    with pytest.warns(UserWarning, match="feature 0 has values"):
        away = decode(sketch, 2, bounds=[[50.0, 50.0], [60.0, 60.0]], method="splitting")
    assert (away.means >= 50).all()


@pytest.mark.slow
def test_variance_floor(sketch, samples):
    with pytest.warns(UserWarning, match="noise levels"):
        mixture = decode(sketch, 3, variance_floor=0.5)  # wider than the components
    assert mixture.covariances.min() == pytest.approx(0.5)
    wide = partial_sketch(samples, FeatureMap(2, 150, scale=10.0, seed=6, dtype="float64"))
    mixture = decode(wide, 3, method="cl-ompr", variance_floor=0.5)
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
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("method", "model"),
    [("cl-ompr", "isotropic"), ("splitting", "known"), ("cl-omp", "dirac"), ("splitting", "dirac")],
)
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


def test_the_number_of_components_can_be_left_to_the_sketch(truth):
    sketch = partial_sketch(truth.sample(200_000, seed=3), FeatureMap(2, 300, scale=1.0, seed=1))
    mixture = decode(sketch)
    assert mixture.n_components == 3
    assert mixture.decoding.method == "cl-omp"


@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
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


def test_a_group_is_decoded_label_by_label(rng):
    labels = np.arange(6000) % 3
    x = rng.normal(size=(6000, 2)) + 6.0 * labels[:, None]
    group = partial_sketch(x, FeatureMap(2, 60, scale=1.0), groups=labels, dim="file")
    models = decode(group, 1, seed=3)
    assert list(models) == [0, 1, 2]
    for label, model in models.items():
        assert abs(model.means[0] - 6.0 * label).max() < 0.2
        np.testing.assert_array_equal(model.means, decode(group[label], 1, seed=3).means)
    with ThreadPoolExecutor(2) as executor:
        again = decode(group, 1, seed=3, executor=executor)
    assert list(again) == [0, 1, 2]
    assert all(np.array_equal(again[label].means, models[label].means) for label in models)


@pytest.mark.slow
def test_the_expected_time_of_many_groups_is_logged_once(rng, monkeypatch, caplog):
    group = partial_sketch(
        rng.normal(size=(1000, 2)), FeatureMap(2, 20, scale=1.0), groups=np.arange(1000) % 10
    )
    ticks = itertools.count(step=2.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    decode(group, 1)
    (text,) = [one.message for one in caplog.records if "groups" in one.message]
    assert "10 groups" in text
    assert "executor" in text


def test_warnings_of_a_group_state_the_label(rng):
    x, labels = rng.normal(size=(405, 2)), np.repeat([4, 7], [400, 5])
    group = partial_sketch(x, FeatureMap(2, 60, scale=1.0), groups=labels, dim="file")
    with pytest.warns(UserWarning, match=r"file 7: 5 rows .*n_components=2.*merge_by"):
        assert decode(group, 2)[7].n_components == 2
    with (
        ThreadPoolExecutor(2) as executor,
        pytest.warns(UserWarning, match=r"file 7: 5 rows") as caught,
    ):
        decode(group, np.int64(2), executor=executor)
    assert {warning.filename for warning in caught} == {__file__}


def test_threads_of_an_executor_leave_warnings_and_blas_as_they_were(rng):
    x, labels = rng.normal(size=(2000, 3)), np.arange(2000) % 8
    group = ds.sketch(x, ds.design(x, n_components=2), groups=labels)
    before = warnings.filters.copy(), warnings.showwarning, threadpool_info()
    with ThreadPoolExecutor(4) as executor:
        decode(group, 2, executor=executor)
        decode(group[0], 2, replicates=4, executor=executor)
    assert (warnings.filters, warnings.showwarning, threadpool_info()) == before


def test_small_groups_are_refused_before_others_are_decoded(rng):
    """The models of all other groups were lost."""
    x, labels = rng.normal(size=(403, 2)), np.repeat([4, 7, 8], [400, 2, 1])
    group = partial_sketch(x, FeatureMap(2, 60, scale=1.0), groups=labels, dim="file")
    seen = []
    with pytest.raises(DecodeError, match=r"file 7, file 8: .*n_components=3.*count >= 3"):
        decode(group, np.int64(3), progress=lambda *step: seen.append(step))
    assert not seen
    assert list(decode(group.select(group.count >= 3), 3)) == [4]


def test_the_way_out_of_groups_without_weight_leaves_them_out(rng):
    x, labels = rng.normal(size=(420, 2)), np.repeat([4, 7], [400, 20])
    group = partial_sketch(
        x, FeatureMap(2, 60, scale=1.0), np.repeat([1.0, 0.0], [400, 20]), groups=labels, dim="file"
    )
    with pytest.raises(DecodeError, match=r"file 7: .*total_weight > 0"):
        decode(group, 3)
    chosen = group.select((group.count >= 3) & (group.total_weight > 0))
    assert list(decode(chosen, 3)) == [4]


def test_errors_of_a_group_state_the_label(rng):
    x = rng.normal(size=(1, 2))
    empty = partial_sketch(x, FeatureMap(2, 60, scale=1.0), np.zeros(1), groups=[5], dim="file")
    with pytest.raises(DecodeError, match=r"file 5: .*total weight 0"):
        decode(empty, 1)
