from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import decode, design, sketch


@pytest.mark.parametrize(
    ("covariance_type", "sample"),
    [
        ("diag", None),
        pytest.param("full", None, marks=pytest.mark.slow),
        pytest.param("tied", None, marks=pytest.mark.slow),
        pytest.param("low-rank:1", None, marks=pytest.mark.slow),
        ("diag", False),
        ("full", False),
        ("tied", False),
        ("low-rank:1", False),
    ],
)
def test_components_have_the_value_of_a_feature_that_does_not_vary(covariance_type, sample):
    """Without rows, the log-likelihood fell to -500,000 nats a sample in silence."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 3)) + 4.0 * rng.integers(0, 3, (20_000, 1))
    rows[:, 1] = 7.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the feature, and of such fits without rows
        feature_map = design(rows, n_components=4)
        model = decode(sketch(rows, feature_map, sample=sample), 4, covariance_type=covariance_type)
        alone = design(rows[:, ::2], n_components=4)
        rival = decode(sketch(rows[:, ::2], alone), 4)
    assert (model.means[:, 1] == 7.0).all()
    assert np.ptp(model.variances[:, 1]) == 0.0
    assert model.variances[0, 1] == pytest.approx(1e-6 * rows[:, ::2].var(axis=0).mean(), rel=0.01)
    # the density of the value, beside that of the others
    value = -0.5 * np.log(2.0 * np.pi * model.variances[0, 1])
    assert model.score(rows[:2000]) - value > rival.score(rows[:2000, ::2]) - 0.1


def test_centroids_have_it_too():
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=(5000, 1)) + 8.0 * rng.integers(0, 2, (5000, 1)), np.full(5000, 7)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feature_map = design(rows, n_components=2, task="clustering")
        model = decode(sketch(rows, feature_map, sample=False), 2, model="dirac")
    assert (model.centers[:, 1] == 7.0).all()
