"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from dask_sketch.distributions import (
    DistanceKernel,
    DistributionClassifier,
    DistributionFeatures,
    DistributionRegressor,
    NystroemKernel,
)
from dask_sketch.estimators.decomposition import SketchPCA
from dask_sketch.estimators.sketch_estimators import (
    SketchGaussianMixture,
    SketchKMeans,
    SketchKMedians,
)

PILOT = (
    "the feature map is designed from pilot rows, which are drawn: by weights, others than of as "
    "many repeated rows. With one map the sketches are equal, see test_estimators.py"
)

OF_WEIGHTS = "check_sample_weight_equivalence_on_dense_data"

SCALE = (
    "variances do not depend on a common factor of all weights, and are those of numpy.cov with "
    "aweights, not with fweights"
)

DISTANCES = (
    "landmarks and bandwidths are chosen from the points, each of them once, and an error without "
    "one of several equal points is another one"
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks([SketchKMeans(3)])
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.slow  # all of them share the code that is checked
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [SketchKMedians(3)],
    expected_failed_checks=lambda estimator: {OF_WEIGHTS: PILOT},
    xfail_strict=True,
)
def test_checks_of_medians(estimator, check):
    check(estimator)


@pytest.mark.slow  # all of them share the code that is checked
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [SketchGaussianMixture(2)],
    expected_failed_checks=lambda estimator: {OF_WEIGHTS: PILOT},
    xfail_strict=True,
)
def test_checks_of_mixtures(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(
            estimator,
            check,
            marks=() if check.func.__name__ == OF_WEIGHTS else pytest.mark.slow,
            id=check.func.__name__,
        )
        for estimator, check in estimator_checks_generator(SketchGaussianMixture(1))
    ],
)
def test_checks_of_one_component(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [SketchPCA(2), SketchPCA(2, whiten=True), SketchPCA(1, n_columns=1)],
    expected_failed_checks=lambda estimator: {OF_WEIGHTS: SCALE} if estimator.whiten else {},
    xfail_strict=True,
)
@pytest.mark.filterwarnings("ignore:n_columns=1:UserWarning")
def test_checks_of_components(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [DistributionFeatures(20), DistributionRegressor(20)],
    expected_failed_checks=lambda estimator: (
        {} if isinstance(estimator, DistributionFeatures) else {OF_WEIGHTS: DISTANCES}
    ),
    xfail_strict=True,
)
def test_checks_of_learning_on_groups(estimator, check):
    check(estimator)


@pytest.mark.slow  # it shares most of its code with the regressor
@parametrize_with_checks(
    [DistributionClassifier(20)],
    expected_failed_checks=lambda estimator: {OF_WEIGHTS: DISTANCES},
    xfail_strict=True,
)
def test_checks_of_classifiers_of_groups(estimator, check):
    check(estimator)


@parametrize_with_checks([DistanceKernel(), NystroemKernel()])
def test_checks_of_kernels(estimator, check):
    check(estimator)
