"""Sketch-and-shift: local covariances, maxima of the correlation, and Algorithm 2."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dask_sketch import Sketch, partial_sketch
from dask_sketch.decoders.names import MAXIMA
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.sketch_and_shift import (
    find_maxima,
    kernel_bandwidth,
    local_covariance,
    sketch_and_shift,
)
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import Centroids


@pytest.fixture(autouse=True)
def one_blas_thread():
    """As in decode: more threads are slower, much more so on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


# -- local covariance: Definition 2, with its errata -------------------------------------


COVARIANCE = np.array([[0.5, 0.3, 0.0], [0.3, 0.6, -0.1], [0.0, -0.1, 0.4]])
MEAN = np.array([1.0, -2.0, 0.5])


def cluster_sketch(m=100_000, distribution="gaussian", **options):
    """The sketch that infinitely many samples would have."""
    feature_map = FeatureMap(3, m, distribution=distribution, seed=1, dtype="float64", **options)
    omega = feature_map.frequencies
    psi = np.exp(-1j * MEAN @ omega - 0.5 * np.einsum("ij,ij->j", omega, COVARIANCE @ omega))
    return Sketch.from_sums(
        feature_map,
        moment_sum=1e8 * psi,
        total_weight=1e8,
        squared_weight=1e8,
        count=10**8,
        first_moment=1e8 * MEAN,
        second_moment=1e8 * (COVARIANCE.diagonal() + MEAN**2),
        minimum=np.full(3, -np.inf),
        maximum=np.full(3, np.inf),
    )


def estimate(sketch, point):
    objective = Objective(sketch, "dirac")
    scale = objective.space.scale
    unit = np.outer(scale, scale)
    bandwidth = kernel_bandwidth(sketch.feature_map) / unit
    return local_covariance(objective, normalised(objective, point), bandwidth) * unit


def normalised(objective, points):
    return (points - objective.space.shift) / objective.space.scale


MATRIX = np.array([[2.0, 0.3, 0.0], [0.1, 0.7, 0.2], [0.0, 0.0, 1.3]])


@pytest.mark.parametrize(
    "options",
    [{"scale": 0.8}, {"covariances": [0.5, 1.0, 0.3]}, {"scale": 1.0, "whitening": MATRIX}],
)
def test_sees_the_covariance_of_a_gaussian(options):
    np.testing.assert_allclose(estimate(cluster_sketch(**options), MEAN), COVARIANCE, atol=0.04)


def test_beside_the_mean_too():
    # the outer product of the gradient in (13) is what makes the estimate the same off the peak
    off = MEAN + np.array([0.3, -0.2, 0.2])
    np.testing.assert_allclose(estimate(cluster_sketch(scale=0.8), off), COVARIANCE, atol=0.06)


def test_is_the_hessian_of_minus_log_f_and_sees_no_factor():
    sketch = cluster_sketch(m=300, scale=0.8)
    objective = Objective(sketch, "dirac")
    point = np.array([0.1, -0.1, 0.05])

    def log_f(c):
        return float(np.log(objective.correlations(c[None], objective.target)[0]))

    step, eye = 1e-3, np.eye(3)
    hessian = np.array(
        [
            [
                log_f(point + step * (a + b))
                - log_f(point + step * (a - b))
                - log_f(point - step * (a - b))
                + log_f(point - step * (a + b))
                for b in eye
            ]
            for a in eye
        ]
    ) / (4 * step**2)
    bandwidth = 0.01 * np.eye(3)
    found = local_covariance(objective, point, bandwidth)
    np.testing.assert_allclose(found, np.linalg.inv(-hessian) - bandwidth, rtol=1e-4, atol=1e-5)
    larger = objective.with_target((3.0 * objective.target[0], 3.0 * objective.target[1]))
    np.testing.assert_allclose(local_covariance(larger, point, bandwidth), found, rtol=1e-9)


def test_falls_back_to_a_point():
    sketch = cluster_sketch(m=300, scale=0.8)
    objective = Objective(sketch, "dirac")
    origin, nothing = np.zeros(3), np.zeros((3, 3))
    # a bandwidth larger than the peak: the difference is not positive
    np.testing.assert_array_equal(local_covariance(objective, origin, 100 * np.eye(3)), nothing)
    # a correlation that is not positive, and a point that is no maximum
    negative = objective.with_target((-objective.target[0], -objective.target[1]))
    np.testing.assert_array_equal(local_covariance(negative, origin, np.eye(3)), nothing)
    far = np.array([30.0, 0.0, 0.0])
    found = [local_covariance(objective, far + shift, np.eye(3)) for shift in np.eye(3)]
    assert not any(matrix.any() for matrix in found)


@pytest.mark.parametrize(
    "feature_map",
    [
        FeatureMap(3, 10, scale=1.0),
        FeatureMap(3, 10, covariances=np.ones((2, 3)), distribution="gaussian"),
    ],
)
def test_needs_a_gaussian_kernel(feature_map):
    with pytest.raises(DecodeError, match="distribution='gaussian'"):
        kernel_bandwidth(feature_map)


def test_weighted_features_will_do():
    sketch = cluster_sketch(distribution="clustering", scale=0.8)
    np.testing.assert_allclose(estimate(sketch, MEAN), COVARIANCE, atol=0.04)


# -- maxima: eq. (9), beside mean shift on the samples --------------------------------------

SIGMA = 0.2


@pytest.fixture
def scattered() -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = np.array([[-0.6, -0.5], [0.6, -0.4], [0.0, 0.7]])
    return centers[rng.integers(3, size=3000)] + 0.07 * rng.normal(size=(3000, 2))


def objective_of(scattered, m, distribution="gaussian", seed=1):
    feature_map = FeatureMap(
        2, m, scale=SIGMA, distribution=distribution, seed=seed, dtype="float64"
    )
    box = np.array([[-1.0, -1.0], [1.0, 1.0]])
    return Objective(partial_sketch(scattered, feature_map), "dirac", box=box)


def kde(points, samples):
    """Eq. (7), with its mean-shift step."""
    kernel = np.exp(-0.5 * np.square(points[:, None] - samples).sum(axis=2) / SIGMA**2)
    return kernel.mean(axis=1), kernel @ samples / kernel.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("distribution", ["gaussian", "clustering"])
@pytest.mark.slow
def test_the_correlation_estimates_the_density(scattered, distribution):
    # eq. (8); unbiased, with a deviation of less than 1 / sqrt(m)
    objective = objective_of(scattered, 50_000, distribution)
    points = np.random.default_rng(2).uniform(-1, 1, (200, 2))
    theta = normalised(objective, points)
    found = objective.correlations(theta, objective.target)
    np.testing.assert_allclose(found, kde(points, scattered)[0], atol=5 / np.sqrt(50_000))


@pytest.mark.slow
def test_one_step_is_one_step_of_mean_shift(scattered):
    objective = objective_of(scattered, 100_000)
    points = np.random.default_rng(2).uniform(-0.8, 0.8, (100, 2))
    density, expected = kde(points, scattered)
    known = (density > 0.15) & (np.linalg.norm(expected - points, axis=1) < SIGMA)
    starts = normalised(objective, points)
    ends, _ = find_maxima(objective, objective.target, starts, n_steps=1)
    found = objective.space.to_data_units(ends)[0]
    assert known.sum() > 15
    np.testing.assert_allclose(found[known], expected[known], atol=0.02)


def test_paths_end_at_local_maxima(scattered):
    objective = objective_of(scattered, 500)
    starts = np.random.default_rng(3).uniform(objective.space.lower, objective.space.upper, (60, 2))
    before = objective.correlations(starts, objective.target)
    ends, values = find_maxima(objective, objective.target, starts)
    assert (values >= before - 1e-9).mean() > 0.9
    np.testing.assert_allclose(values, objective.correlations(ends, objective.target))
    inside = ((ends > objective.space.lower) & (ends < objective.space.upper)).all(axis=1) & (
        values > 0.05
    )
    assert inside.sum() > 10
    slopes = objective.correlation_gradients(ends[inside], objective.target)[1]
    assert np.abs(slopes).max() < 0.02 * values.max()


def test_plain_ascent_hardly_moves_where_the_density_is_low(scattered):
    # the paper's Figure 3: gradients vanish away from the clusters, gradients over values do not
    objective = objective_of(scattered, 8000)
    points = np.random.default_rng(4).uniform(-1, 1, (400, 2))
    density = kde(points, scattered)[0]
    starts = points[(density > 0.01) & (density < 0.05)]
    assert len(starts) > 20
    starts = normalised(objective, starts)
    far = {}
    for kind in ("shift", "ascent"):
        ends, _ = find_maxima(objective, objective.target, starts, kind, n_steps=10)
        far[kind] = np.median(np.linalg.norm(ends - starts, axis=1))
    assert far["shift"] > 1.0
    assert far["ascent"] < 0.5 * far["shift"]


def test_discrete_points_stay(scattered):
    objective = objective_of(scattered, 100)
    starts = np.random.default_rng(5).uniform(-1, 1, (20, 2))
    ends, values = find_maxima(objective, objective.target, starts, "discrete")
    np.testing.assert_array_equal(ends, starts)
    np.testing.assert_allclose(values, objective.correlations(starts, objective.target))


@pytest.mark.parametrize("kind", MAXIMA)
def test_a_residual_of_nothing_moves_nothing(scattered, kind):
    objective = objective_of(scattered, 50)
    nothing = (np.zeros(50), np.zeros(50))
    starts = np.clip(np.ones((3, 2)), objective.space.lower, objective.space.upper)
    ends, values = find_maxima(objective, nothing, starts, kind)
    np.testing.assert_array_equal(ends, starts)
    np.testing.assert_array_equal(values, np.zeros(3))


def test_paths_stay_in_the_box(scattered):
    objective = objective_of(scattered, 30)
    starts = np.random.default_rng(6).uniform(
        objective.space.lower, objective.space.upper, (100, 2)
    )
    ends, _ = find_maxima(objective, objective.target, starts)
    assert (ends >= objective.space.lower).all()
    assert (ends <= objective.space.upper).all()


def test_refuses_unknown_maxima(scattered):
    objective = objective_of(scattered, 10)
    with pytest.raises(DecodeError, match=r"maxima='newton'.* shift"):
        find_maxima(objective, objective.target, np.zeros((1, 2)), "newton")


# -- Algorithm 2: its claims and its errata ----------------------------------------------

CENTERS = np.array([[-0.5, -0.4], [0.5, -0.4], [0.0, 0.5]])
DEVIATION = 0.07


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    rng = np.random.default_rng(0)
    return CENTERS[rng.integers(3, size=20_000)] + DEVIATION * rng.normal(size=(20_000, 2))


def sketch_of(samples, m=1000, scale=0.1, seed=1, distribution="gaussian"):
    return partial_sketch(
        samples, FeatureMap(2, m, scale=scale, distribution=distribution, seed=seed)
    )


def decoded(sketch, n_components=3, seed=0, **options):
    trace: list[float] = []
    found = sketch_and_shift(
        sketch, n_components, np.random.default_rng(seed), trace.append, **options
    )
    return found, trace


def risk(found, samples):
    return Centroids(np.full(len(found.means), 1 / len(found.means)), found.means).inertia(samples)


BEST = 2 * DEVIATION**2


@pytest.mark.parametrize(
    ("model", "scale"), [("dirac", 0.05), ("dirac", 0.2), ("gaussian", 0.1), ("gaussian", 0.2)]
)
def test_three_separated_clusters(samples, model, scale):
    found, _ = decoded(sketch_of(samples, scale=scale), model=model)
    assert risk(found, samples) < 1.05 * BEST


@pytest.mark.slow
@pytest.mark.parametrize("maxima", ["shift", "discrete", "ascent"])
def test_every_way_to_find_maxima_in_two_dimensions(samples, maxima):
    found, _ = decoded(sketch_of(samples), maxima=maxima, n_starts=300)
    assert risk(found, samples) < 1.5 * BEST


def test_keeps_the_heaviest_of_twice_as_many(samples):
    found, trace = decoded(sketch_of(samples))
    assert len(trace) == 6
    assert found.means.shape == (3, 2)
    assert (np.diff(found.weights) <= 0).all()
    assert found.cost == trace[-1]
    _, trace = decoded(sketch_of(samples), n_candidates=4)
    assert len(trace) == 4


def test_weights_are_those_of_all_candidates(samples):
    # pruning fits nothing again: with Dirac atoms some weight went to the ones that were dropped
    sketch = sketch_of(samples, scale=0.05)
    few, _ = decoded(sketch, n_candidates=3)
    many, _ = decoded(sketch, n_candidates=6)
    assert many.weights.sum() < few.weights.sum()


def test_the_residual_never_grows(samples):
    for model in ("dirac", "gaussian"):
        _, trace = decoded(sketch_of(samples, m=100), model=model)
        assert (np.diff(trace) <= 1e-12).all()


def test_the_gaussian_model_removes_a_found_cluster_from_the_residual(samples):
    # the paper's Figure 4, and its swapped branches: with points the cost after three atoms is
    # that of three clusters without width
    sketch = sketch_of(samples)
    points, _ = decoded(sketch, n_candidates=3)
    gaussians, _ = decoded(sketch, n_candidates=3, model="gaussian")
    assert gaussians.cost < 0.05 * points.cost
    assert not points.covariances.any()
    for covariance in gaussians.covariances:
        np.testing.assert_allclose(covariance, DEVIATION**2 * np.eye(2), atol=0.004)
    np.testing.assert_allclose(gaussians.weights, 1 / 3, atol=0.03)


def test_the_cost_is_that_of_the_atoms(samples):
    sketch = sketch_of(samples, m=200)
    found, _ = decoded(sketch, n_candidates=3, model="gaussian")
    omega = sketch.feature_map.frequencies
    atoms = np.exp(
        -1j * found.means @ omega
        - 0.5 * np.einsum("ij,kil,lj->kj", omega, found.covariances, omega)
    ) / np.sqrt(200)
    cost = np.linalg.norm(sketch.z - found.weights @ atoms) ** 2
    assert found.cost == pytest.approx(cost, rel=1e-9)


def test_a_peak_narrower_than_the_kernel_is_a_point():
    # three points without width: the estimates are noise about zero, here not positive
    samples = np.repeat(CENTERS, 100, axis=0)
    found, _ = decoded(sketch_of(samples, m=300, seed=0), model="gaussian", n_candidates=3)
    assert not found.covariances.any()
    np.testing.assert_allclose(np.sort(found.means, axis=0), np.sort(CENTERS, axis=0), atol=0.02)


@pytest.mark.slow
def test_other_distributions_have_points_only(samples):
    sketch = sketch_of(samples, distribution="adapted-radius", scale=0.15)
    found, _ = decoded(sketch)
    assert risk(found, samples) < 1.1 * BEST
    with pytest.raises(DecodeError, match="distribution='adapted-radius'"):
        decoded(sketch, model="gaussian")
    weighted, _ = decoded(sketch_of(samples, distribution="clustering"), model="gaussian")
    assert risk(weighted, samples) < 1.05 * BEST


def test_centres_stay_in_the_box(samples):
    box = np.array([[-1.0, -1.0], [0.2, 0.0]])
    found, _ = decoded(sketch_of(samples), box=box)
    assert (found.means >= box[0] - 1e-12).all()
    assert (found.means <= box[1] + 1e-12).all()


def test_the_seed_decides(samples):
    sketch = sketch_of(samples)
    np.testing.assert_array_equal(decoded(sketch)[0].means, decoded(sketch)[0].means)
    other = decoded(sketch, n_starts=3, seed=1)[0].means
    assert not np.array_equal(decoded(sketch, n_starts=3)[0].means, other)


def test_units_do_not_matter(samples):
    found, _ = decoded(sketch_of(samples, scale=0.1))
    moved, _ = decoded(sketch_of(1000 * samples + 5e5, scale=100.0))
    np.testing.assert_allclose((moved.means - 5e5) / 1000, found.means, atol=0.002)


def test_counts_its_evaluations(samples):
    sketch = sketch_of(samples, m=20)
    found, _ = decoded(sketch, maxima="discrete", n_starts=10)
    assert found.n_evaluations == 60
    assert isinstance(Objective(sketch, "dirac").n_evaluations, int)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "isotropic"}, "model='isotropic'"),
        ({"n_starts": 0}, "n_starts=0"),
        ({"n_candidates": 2}, "n_candidates=2.*n_components=3"),
        ({"maxima": "newton"}, "maxima='newton'"),
    ],
)
def test_refuses_arguments_out_of_range(samples, options, message):
    with pytest.raises(DecodeError, match=message):
        decoded(sketch_of(samples[:100], m=10), **options)
