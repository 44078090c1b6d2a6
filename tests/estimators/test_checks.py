"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")
from sklearn.utils.estimator_checks import parametrize_with_checks

from dask_sketch.estimators import SketchGaussianMixture, SketchKMeans

PILOT = (
    "the feature map is designed from pilot rows, which are drawn: by weights, others than of as "
    "many repeated rows. With one map the sketches are equal, see test_estimators.py"
)


def expected(estimator):
    """Checks that fail, and why."""
    wide = getattr(estimator, "n_components", 3) > 1
    return {"check_sample_weight_equivalence_on_dense_data": PILOT} if wide else {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [
        SketchKMeans(3),
        SketchGaussianMixture(1),
        SketchGaussianMixture(2),
    ],
    expected_failed_checks=expected,
    xfail_strict=True,
)
def test_checks(estimator, check):
    check(estimator)
