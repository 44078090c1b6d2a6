"""Definition 2 of the sketch-and-shift paper, with its errata."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import Sketch
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.sketch_and_shift import kernel_bandwidth, local_covariance
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap

COVARIANCE = np.array([[0.5, 0.3, 0.0], [0.3, 0.6, -0.1], [0.0, -0.1, 0.4]])
MEAN = np.array([1.0, -2.0, 0.5])


def sketch_of(m=100_000, distribution="gaussian", **options):
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
    unit = np.outer(objective.scale, objective.scale)
    bandwidth = kernel_bandwidth(sketch.feature_map) / unit
    return (
        local_covariance(objective, (point - objective.shift) / objective.scale, bandwidth) * unit
    )


MATRIX = np.array([[2.0, 0.3, 0.0], [0.1, 0.7, 0.2], [0.0, 0.0, 1.3]])


@pytest.mark.parametrize(
    "options",
    [{"scale": 0.8}, {"covariances": [0.5, 1.0, 0.3]}, {"scale": 1.0, "whitening": MATRIX}],
)
def test_sees_the_covariance_of_a_gaussian(options):
    np.testing.assert_allclose(estimate(sketch_of(**options), MEAN), COVARIANCE, atol=0.04)


def test_beside_the_mean_too():
    # the outer product of the gradient in (13) is what makes the estimate the same off the peak
    off = MEAN + np.array([0.3, -0.2, 0.2])
    np.testing.assert_allclose(estimate(sketch_of(scale=0.8), off), COVARIANCE, atol=0.06)


def test_is_the_hessian_of_minus_log_f_and_sees_no_factor():
    sketch = sketch_of(m=300, scale=0.8)
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
    objective.target = (3.0 * objective.target[0], 3.0 * objective.target[1])
    np.testing.assert_allclose(local_covariance(objective, point, bandwidth), found, rtol=1e-9)


def test_falls_back_to_a_point():
    sketch = sketch_of(m=300, scale=0.8)
    objective = Objective(sketch, "dirac")
    origin, nothing = np.zeros(3), np.zeros((3, 3))
    # a bandwidth larger than the peak: what is left is not positive
    np.testing.assert_array_equal(local_covariance(objective, origin, 100 * np.eye(3)), nothing)
    # a correlation that is not positive, and a point that is no maximum
    objective.target = (-objective.target[0], -objective.target[1])
    np.testing.assert_array_equal(local_covariance(objective, origin, np.eye(3)), nothing)
    objective.target = (-objective.target[0], -objective.target[1])
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
    with pytest.raises(DecodeError, match=r"Gaussian kernel. Sketch with distribution='gaussian'"):
        kernel_bandwidth(feature_map)


def test_weighted_features_will_do():
    sketch = sketch_of(distribution="clustering", scale=0.8)
    np.testing.assert_allclose(estimate(sketch, MEAN), COVARIANCE, atol=0.04)
