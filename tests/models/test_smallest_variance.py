from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.models.smallest_variance import (
    MIN_VARIANCE,
    losses_by_floor,
    smallest_variances,
)
from dask_sketch.models.weighted_em import fit_mixture

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=2000)


@pytest.mark.parametrize(
    "values",
    [
        NORMAL,
        NORMAL.round(1),
        RNG.uniform(size=2000),
        RNG.exponential(size=2000),
        RNG.standard_t(4, size=2000),
        RNG.poisson(3.0, size=2000),
        np.repeat([0.0, 1.0], [1990, 10]),
        np.where(RNG.random(2000) < 0.5, 0.0, RNG.lognormal(size=2000)),
        NORMAL + 30.0 * (RNG.random(2000) < 0.1),
        NORMAL + 1e9,
    ],
    ids=[
        "normal", "rounded", "uniform", "exponential", "t4", "counts", "flags", "zeros",
        "two clusters", "offset",
    ],
)  # fmt: skip
def test_it_is_a_millionth_of_the_variance_of_most_data(values):
    rows = values[:, None].astype(np.float64)
    variance = rows.var(axis=0)
    np.testing.assert_array_equal(smallest_variances(rows, variance)[0], MIN_VARIANCE * variance)


def test_it_is_of_the_middle_where_some_rows_are_far_out():
    for share in (0.001, 0.02, 0.3):
        values = np.where(RNG.random(2000) < share, 999_999.0, 5.0 + NORMAL)
        rows = np.stack([values, NORMAL], axis=1)
        smallest, middle = smallest_variances(rows, rows.var(axis=0))
        assert 1e-5 < smallest[0] < 0.02  # 1e-14 of the squared distance of the code
        assert smallest[1] == pytest.approx(MIN_VARIANCE * NORMAL.var())
        assert abs(middle[0] - 5.0) < 0.5


def test_missing_values_are_left_out():
    values = np.where(RNG.random(2000) < 0.02, 999_999.0, NORMAL)
    values[::3] = np.nan
    smallest, _ = smallest_variances(values[:, None], np.nanvar(values[:, None], axis=0))
    assert smallest[0] < 0.02
    assert smallest_variances(np.full((3, 1), np.nan), np.zeros(1))[0] == [0.0]


def test_features_that_do_not_vary_have_none():
    rows = np.full((10, 1), 7.0)
    smallest, middle = smallest_variances(rows, np.zeros(1))
    assert smallest.tolist() == [0.0]
    assert middle.tolist() == [7.0]


@pytest.mark.parametrize("covariance_type", ["diag", "full", "tied", "spherical", "low-rank:1"])
def test_fits_beside_far_rows_are_as_fits_without_them(covariance_type):
    x = RNG.normal(size=(3000, 3)) * [1.0, 2.0, 3.0] + 4.0
    far = np.r_[x, RNG.normal(scale=[1e5, 1.0, 1.0], size=(30, 3))]
    options = {"covariance_type": covariance_type, "n_starts": 2}
    alone = fit_mixture(x, None, 2, **options)
    beside = fit_mixture(far, None, 2, **options)
    if covariance_type in ("tied", "spherical"):  # one scale for far rows and others, or features
        assert beside.smallest.max() <= MIN_VARIANCE * far.var()
        return
    order = np.argsort(-beside.weights)[0]
    widths = beside.covariances[order]
    widths = np.diagonal(widths) if covariance_type == "full" else widths
    if covariance_type == "low-rank:1":
        widths = widths[:, 0] + widths[:, 1] ** 2
    np.testing.assert_allclose(widths, [1.0, 4.0, 9.0], rtol=0.15)
    assert alone.smallest == pytest.approx(MIN_VARIANCE * x.var(axis=0))
    assert beside.smallest[0] < 2e-3 < MIN_VARIANCE * far[:, 0].var()


def test_losses_are_of_narrow_clusters_and_not_of_shared_values():
    x = np.r_[np.linspace(0.0, 1e-3, 50), np.full(50, 2.0), 10.0 + NORMAL[:50]][:, None]
    weights, variances = np.full(3, 1.0 / 3.0), np.array([[1e-2], [1e-2], [1.0]])
    labels = np.repeat([0, 1, 2], 50)
    losses, fractions, values = losses_by_floor(x, labels, weights, variances, np.array([1e-2]))
    expected = np.log(1e-2 / x[:50].var()) - 1.0 + x[:50].var() / 1e-2
    assert losses[0, 0] == pytest.approx(expected / 6.0)
    assert losses[1:].tolist() == [[0.0], [0.0]]
    assert fractions.ravel() == pytest.approx([0.0, 1.0 / 3.0, 0.0])
    assert values[1, 0] == 2.0
