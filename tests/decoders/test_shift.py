"""Algorithm 2 of the sketch-and-shift paper: its claims and its errata."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dask_sketch import partial_sketch
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.sketch_and_shift import sketch_and_shift
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import Centroids

CENTERS = np.array([[-0.5, -0.4], [0.5, -0.4], [0.0, 0.5]])
DEVIATION = 0.07


@pytest.fixture(autouse=True)
def one_blas_thread():
    """As under decode: more of them are slower, many times so on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


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
    return Centroids(np.full(len(found.centers), 1 / len(found.centers)), found.centers).inertia(
        samples
    )


BEST = 2 * DEVIATION**2


@pytest.mark.parametrize("model", ["dirac", "gaussian"])
@pytest.mark.parametrize("scale", [0.05, 0.1, 0.2])
def test_three_separated_clusters(samples, model, scale):
    found, _ = decoded(sketch_of(samples, scale=scale), model=model)
    assert risk(found, samples) < 1.05 * BEST


@pytest.mark.parametrize("maxima", ["shift", "discrete", "ascent"])
def test_every_way_to_find_maxima_in_two_dimensions(samples, maxima):
    found, _ = decoded(sketch_of(samples), maxima=maxima, n_starts=300)
    assert risk(found, samples) < 1.5 * BEST


def test_keeps_the_heaviest_of_twice_as_many(samples):
    found, trace = decoded(sketch_of(samples))
    assert len(trace) == 6
    assert found.centers.shape == (3, 2)
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


def test_the_gaussian_model_forgets_a_cluster_that_it_has(samples):
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
        -1j * found.centers @ omega
        - 0.5 * np.einsum("ij,kil,lj->kj", omega, found.covariances, omega)
    ) / np.sqrt(200)
    cost = np.linalg.norm(sketch.z - found.weights @ atoms) ** 2
    assert found.cost == pytest.approx(cost, rel=1e-9)


def test_a_peak_narrower_than_the_kernel_is_a_point():
    # three points, no width at all: the estimates are noise about zero, here not positive
    samples = np.repeat(CENTERS, 100, axis=0)
    found, _ = decoded(sketch_of(samples, m=300, seed=0), model="gaussian", n_candidates=3)
    assert not found.covariances.any()
    np.testing.assert_allclose(np.sort(found.centers, axis=0), np.sort(CENTERS, axis=0), atol=0.02)


def test_other_distributions_have_points_only(samples):
    sketch = sketch_of(samples, distribution="adapted-radius", scale=0.15)
    found, _ = decoded(sketch)
    assert risk(found, samples) < 1.1 * BEST
    with pytest.raises(DecodeError, match="Gaussian kernel"):
        decoded(sketch, model="gaussian")
    weighted, _ = decoded(sketch_of(samples, distribution="clustering"), model="gaussian")
    assert risk(weighted, samples) < 1.05 * BEST


def test_centres_stay_in_the_box(samples):
    box = np.array([[-1.0, -1.0], [0.2, 0.0]])
    found, _ = decoded(sketch_of(samples), box=box)
    assert (found.centers >= box[0] - 1e-12).all()
    assert (found.centers <= box[1] + 1e-12).all()


def test_the_seed_decides(samples):
    sketch = sketch_of(samples)
    np.testing.assert_array_equal(decoded(sketch)[0].centers, decoded(sketch)[0].centers)
    other = decoded(sketch, n_starts=3, seed=1)[0].centers
    assert not np.array_equal(decoded(sketch, n_starts=3)[0].centers, other)


def test_units_do_not_matter(samples):
    found, _ = decoded(sketch_of(samples, scale=0.1))
    moved, _ = decoded(sketch_of(1000 * samples + 5e5, scale=100.0))
    np.testing.assert_allclose((moved.centers - 5e5) / 1000, found.centers, atol=0.002)


def test_counts_its_evaluations(samples):
    sketch = sketch_of(samples, m=20)
    found, _ = decoded(sketch, maxima="discrete", n_starts=10)
    assert found.n_evaluations == 60
    assert isinstance(Objective(sketch, "dirac").n_evaluations, int)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "isotropic"}, "model='isotropic': sketch-and-shift fits 'dirac' or 'gaussian'"),
        ({"n_starts": 0}, "n_starts=0: give a whole number"),
        ({"n_candidates": 2}, "n_candidates=2: give at least n_components=3"),
        ({"maxima": "newton"}, "maxima='newton' is unknown"),
    ],
)
def test_refuses_arguments_out_of_range(samples, options, message):
    with pytest.raises(DecodeError, match=message):
        decoded(sketch_of(samples[:100], m=10), **options)
