"""Principal components from second moments, against singular value decompositions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.decomposition import PCA

from dask_sketch.decoders.leading_components import principal_components
from dask_sketch.errors import DecodeError, InputError
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.partial_moments import partial_moments
from dask_sketch.sketching.second_moments import SecondMoments


def rows_of(spectrum, n=900, seed=0):
    """Rows whose covariance has nearly this spectrum, in random directions."""
    rng = np.random.default_rng(seed)
    d = len(spectrum)
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (rng.normal(size=(n, d)) * np.sqrt(spectrum)) @ axes.T + 3.0


def moments_of(x, n_columns=None, seed=0):
    return partial_moments(x, MomentGrid.of_rows(x[:200], n_columns, seed))


def risk(x, components):
    """Excess of the variance that is not explained over the smallest, as a fraction of it."""
    centered = x - x.mean(axis=0)
    values = np.linalg.svd(centered, compute_uv=False) ** 2
    best = values[len(components) :].sum()
    return ((centered**2).sum() - ((centered @ components.T) ** 2).sum()) / best - 1.0


X = rows_of(1.0 / np.arange(1.0, 13.0))
INVERSE = rows_of(1.0 / np.arange(1.0, 401.0), 2000)


@pytest.mark.parametrize("n_components", [1, 4, 12, None, 0.5, 0.95])
def test_all_moments_give_scikit_learns_components(n_components):
    found, expected = principal_components(moments_of(X), n_components), PCA(n_components).fit(X)
    np.testing.assert_allclose(found.components, expected.components_, atol=1e-8)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(
        found.explained_variance_ratio, expected.explained_variance_ratio_, rtol=1e-9
    )
    np.testing.assert_allclose(found.mean, expected.mean_, rtol=1e-9)
    assert found.noise_variance == pytest.approx(expected.noise_variance_, rel=1e-8)
    assert found.excess_risk == 0.0


def test_fewer_samples_than_features():
    x = rows_of(np.ones(30), n=8)
    found, expected = principal_components(moments_of(x), 3), PCA(3, svd_solver="full").fit(x)
    np.testing.assert_allclose(found.components, expected.components_, atol=1e-7)
    assert found.noise_variance == pytest.approx(expected.noise_variance_, rel=1e-8)
    assert len(principal_components(moments_of(x)).components) == 8
    with pytest.raises(InputError, match=r"n_components=9 .*=8"):
        principal_components(moments_of(x), 9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_eight_columns_for_each_component_suffice(power):
    x = rows_of(np.arange(1.0, 401.0) ** -power, 2000)
    moments = moments_of(x, 80)
    found, expected = principal_components(moments, 10), PCA(10, svd_solver="full").fit(x)
    assert 0.0 <= risk(x, found.components) < 0.01
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(10), atol=1e-12)
    # without the correction they are up to 12 % too small
    np.testing.assert_allclose(
        found.explained_variance.sum(), expected.explained_variance_.sum(), rtol=0.01
    )
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance_, rtol=0.1)
    assert found.total_variance == pytest.approx(x.var(axis=0, ddof=1).sum(), rel=1e-9)
    assert found.excess_risk < 0.02


@pytest.mark.slow
def test_the_estimated_excess_risk_is_of_the_size_of_the_true_one():
    for seed in range(4):
        moments = moments_of(INVERSE, 60, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = principal_components(moments, 15)
        true = risk(INVERSE, found.components)
        assert 0.4 * true < found.excess_risk < 4.0 * true


@pytest.mark.filterwarnings("error")
def test_low_rank_is_exact():
    x = rows_of(np.r_[4.0, 2.0, 1.0, np.zeros(97)], 300)
    found, expected = principal_components(moments_of(x, 20), 3), PCA(3).fit(x)
    np.testing.assert_allclose(found.components, expected.components_, atol=1e-6)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance_, rtol=1e-6)
    assert found.noise_variance < 1e-9
    assert found.excess_risk == 0.0


@pytest.mark.filterwarnings("error")
def test_as_many_columns_as_features_are_all_moments():
    found, expected = principal_components(moments_of(X, 12), 4), PCA(4).fit(X)
    np.testing.assert_allclose(found.components, expected.components_, atol=1e-5)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance_, rtol=1e-5)


@pytest.mark.parametrize(
    ("spectrum", "n_columns", "message"),
    [
        (1.0 / np.arange(1.0, 401.0), 15, "n_columns=15.*n_columns=80"),
        (1.0 / np.arange(1.0, 401.0), 24, "n_columns=24.*n_columns=80"),
        (np.ones(400), 80, "10 of 10 components.*n_columns=160"),
        (np.arange(1.0, 401.0) ** -0.5, 80, "n_columns=80.*n_columns=160"),
    ],
    ids=["few", "twice", "flat", "heavy"],
)
def test_too_few_columns_warn(spectrum, n_columns, message):
    moments = moments_of(rows_of(spectrum, 2000), n_columns)
    with pytest.warns(UserWarning, match=message):
        principal_components(moments, 10)


def test_a_better_size_is_possible():
    with pytest.warns(UserWarning, match=r"n_columns=8: .*n_columns=None"):
        principal_components(moments_of(X, 8), 6)


@pytest.mark.parametrize(
    ("n_components", "n_columns", "message"),
    [
        (0, None, "n_components=0"),
        (1.0, None, "n_components=1.0"),
        ("mle", None, "n_components='mle'"),
        (None, 5, "n_components=None"),
        (0.5, 5, "n_components=0.5"),
        (6, 5, "n_columns=5"),
    ],
)
def test_bad_arguments(n_components, n_columns, message):
    with pytest.raises(InputError, match=message):
        principal_components(moments_of(X, n_columns), n_components)


def test_missing_values_by_pairs():
    x = INVERSE[:, :40].copy()
    x[np.random.default_rng(0).uniform(size=x.shape) < 0.1] = np.nan
    found = principal_components(partial_moments(x, MomentGrid.of_rows(x[:200], pairwise=True)), 3)
    expected = principal_components(moments_of(INVERSE[:, :40]), 3)
    assert (np.abs(np.diag(found.components @ expected.components.T)) > 0.95).all()
    few = np.where(np.random.default_rng(0).uniform(size=(60, 40)) < 0.6, np.nan, INVERSE[:60, :40])
    with pytest.warns(UserWarning, match="nan_policy='omit'"):
        principal_components(partial_moments(few, MomentGrid.of_rows(few, pairwise=True)), 3)


def test_other_objects_and_single_samples_are_refused():
    with pytest.raises(InputError, match="ndarray"):
        principal_components(X, 2)
    with pytest.raises(InputError, match="1 samples"):
        principal_components(partial_moments(X[:1], MomentGrid.of_rows(X)), 1)


def test_sums_of_no_samples_are_refused():
    """A difference in which the products are those of no samples."""
    whole = moments_of(INVERSE, 40)
    sums = whole.sums.times(1.0)
    high = sums.high.copy()
    high[41:-400] *= -1
    broken = SecondMoments(
        whole.grid, type(sums)(high, sums.low.copy()), whole.squared_weight_quanta, whole.count, 0
    )
    with pytest.raises(DecodeError, match="moments: .*covariance matrix"):
        principal_components(broken, 5)
