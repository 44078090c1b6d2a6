"""Feature maps of kernels that are mixtures of Gaussian kernels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import kernels

from dask_sketch import FeatureMap
from dask_sketch.distributions import kernel_covariances, random_features
from dask_sketch.errors import InputError

LENGTHS = np.array([0.5, 1.0, 3.0])
KERNELS = {
    "gaussian": ("gaussian", 1.0, kernels.RBF(LENGTHS)),
    "laplace": ("laplace", 1.0, kernels.Matern(LENGTHS, nu=0.5)),
    "matern-1.5": ("matern", 1.5, kernels.Matern(LENGTHS, nu=1.5)),
    "matern-2.5": ("matern", 2.5, kernels.Matern(LENGTHS, nu=2.5)),
    "rational-quadratic": ("rational-quadratic", 0.7, kernels.RationalQuadratic(1.0, 0.7)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_products_of_features_are_values_of_the_kernel(name):
    kernel, order, exact = KERNELS[name]
    lengths = np.ones(3) if name == "rational-quadratic" else LENGTHS  # which has one for all
    covariances = kernel_covariances(kernel, lengths, order=order)
    feature_map = FeatureMap(3, 40_000, covariances=covariances, distribution="gaussian", seed=1)
    x = np.random.default_rng(0).normal(size=(12, 3)) * lengths
    features = random_features(x, feature_map.frequencies)
    # the values have standard deviations of at most 0.004, and widths are quantiles
    np.testing.assert_allclose(features @ features.T, exact(x), atol=0.02)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("cubic", LENGTHS), {}),
        (("matern", [1.0, 0.0]), {}),
        (("matern", 1.0), {}),
        (("matern", LENGTHS), {"order": 0.0}),
        (("laplace", LENGTHS), {"n_scales": 0}),
    ],
)
def test_bad_arguments_are_refused(arguments, options):
    with pytest.raises(InputError, match=r"(kernel|length_scale|order|n_scales)="):
        kernel_covariances(*arguments, **options)
