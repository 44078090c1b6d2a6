"""Rows with missing values under mixtures: marginals and conditional means, against SciPy."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from scipy.stats import multivariate_normal, norm

from dask_sketch import GaussianMixture
from dask_sketch.errors import InputError
from dask_sketch.features.pilot_fit import filled_pilot, rough_mixture
from dask_sketch.graph.apply import apply
from dask_sketch.models import random_mixture
from dask_sketch.models.missing_values import fill_from_near, fit_observed

TYPES = ("diag", "spherical", "tied", "full")


def mixture(kind, rng):
    roots = rng.normal(size=(3, 4, 4))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(4)
    covariances = {
        "diag": np.diagonal(matrices, axis1=1, axis2=2),
        "spherical": matrices[:, 0, 0],
        "tied": matrices[0],
        "full": matrices,
    }[kind]
    means = rng.normal(size=(3, 4))
    return GaussianMixture([0.2, 0.3, 0.5], means, covariances, covariance_type=kind)


def rows_with_missing(rng, n=60):
    x = rng.normal(size=(n, 4))
    x[rng.random(x.shape) < 0.4] = np.nan
    x[0], x[1] = np.nan, 0.5
    return x


def by_hand(model, row):
    """Log-density of the observed values, probabilities of the components, and filled row."""
    seen = ~np.isnan(row)
    if not seen.any():
        return 0.0, model.weights, model.mean
    joint = np.empty(3)
    filled = np.tile(row, (3, 1))
    for k, (mean, matrix) in enumerate(zip(model.means, model.covariance_matrices, strict=True)):
        inner = matrix[np.ix_(seen, seen)]
        joint[k] = model.weights[k] * multivariate_normal(mean[seen], inner).pdf(row[seen])
        slope = matrix[np.ix_(~seen, seen)] @ np.linalg.inv(inner)
        filled[k, ~seen] = mean[~seen] + slope @ (row[seen] - mean[seen])
    return np.log(joint.sum()), joint / joint.sum(), (joint / joint.sum()) @ filled


@pytest.mark.parametrize("kind", TYPES)
def test_rows_with_missing_values_have_the_marginal(kind, rng):
    model, x = mixture(kind, rng), rows_with_missing(rng)
    densities, shares, filled = map(np.array, zip(*(by_hand(model, row) for row in x), strict=True))
    np.testing.assert_allclose(model.logpdf(x), densities, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.score(x), densities.mean(), rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(x), shares, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(x), shares.argmax(axis=1))
    imputed = model.impute(x)
    np.testing.assert_allclose(imputed, filled, rtol=1e-9, atol=1e-12)
    seen = ~np.isnan(x)
    np.testing.assert_array_equal(imputed[seen], x[seen])


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_lazy_rows_are_filled_lazily(kind, rng):
    model, x = mixture(kind, rng), rows_with_missing(rng)
    lazy = model.impute(da.from_array(x, chunks=(25, 3)))
    assert isinstance(lazy, da.Array)
    assert lazy.shape == x.shape
    np.testing.assert_allclose(lazy.compute(), model.impute(x), rtol=1e-12)
    labelled = xr.DataArray(x.reshape(6, 10, 4), dims=("month", "place", "band")).chunk(month=2)
    found = model.impute(labelled)
    assert found.dims == ("month", "place", "feature")
    np.testing.assert_allclose(found.values.reshape(x.shape), model.impute(x), rtol=1e-12)
    np.testing.assert_allclose(apply(model, "impute", x), model.impute(x))


def test_infinite_values_are_refused(rng):
    model = mixture("diag", rng)
    for method in (model.logpdf, model.predict, model.impute):
        with pytest.raises(InputError, match="row 1 .* inf in feature 2"):
            method([[np.nan, 0.0, 0.0, 0.0], [0.0, 0.0, np.inf, 0.0]])


def test_rows_without_missing_values_are_unchanged(rng):
    model, x = mixture("full", rng), rng.normal(size=(20, 4))
    np.testing.assert_array_equal(model.impute(x), x)
    assert model.impute(np.empty((0, 4))).shape == (0, 4)


def test_em_finds_the_mixture_from_observed_values(rng):
    truth = random_mixture(2, 5, seed=1)
    x = truth.sample(20_000, seed=2)
    y = np.where(rng.random(x.shape) < 0.3, np.nan, x)
    start = truth.weights, truth.means + 0.3, truth.covariances * 1.5
    weights, means, variances = fit_observed(y, *start, 40)
    found = GaussianMixture(weights / weights.sum(), means, variances)
    assert truth.score(x) - found.score(x) < 0.002
    once = fit_observed(y, weights, means, variances, 1)
    np.testing.assert_allclose(once[1], means, atol=1e-3)  # a fixed point


def test_a_feature_without_values_keeps_its_mean():
    x = np.column_stack([np.arange(8.0), np.full(8, np.nan)])
    weights, means, variances = fit_observed(x, np.ones(1), np.ones((1, 2)), np.ones((1, 2)), 3)
    assert (weights[0], means[0, 1], variances[0, 1]) == (1.0, 1.0, 1.0)
    np.testing.assert_allclose([means[0, 0], variances[0, 0]], [x[:, 0].mean(), x[:, 0].var()])


def test_drawn_values_have_the_distribution_of_the_missing(rng):
    truth = GaussianMixture([0.5, 0.5], [[-4.0, -4.0, 0.0], [4.0, 4.0, 1.0]], np.ones((2, 3)))
    x = truth.sample(4000, seed=3)
    missing = rng.random(x.shape) < 0.3
    filled = filled_pilot(np.where(missing, np.nan, x), 2, seed=1)
    np.testing.assert_array_equal(filled[~missing], x[~missing])
    # the component follows from the other values
    known = missing[:, 0] & ~missing[:, 1]
    assert (np.sign(filled[known, 0]) == np.sign(x[known, 1])).mean() > 0.99
    away = np.abs(filled[known, 0]) - 4.0
    assert abs(away.mean()) < 0.15
    assert abs(norm.logpdf(away).mean() - norm.logpdf(rng.normal(size=len(away))).mean()) < 0.15


def test_missing_values_come_from_a_near_row(rng):
    centers = np.array([[-20.0, 5.0, 1e6], [20.0, -5.0, 1e6], [0.0, 30.0, 1e6]])
    kind = rng.integers(3, size=600)
    x = centers[kind] + rng.normal(size=(600, 3))
    y = x.copy()
    y[np.arange(600), rng.integers(3, size=600)] = np.nan
    y[:100] = x[:100]
    filled = fill_from_near(y, rng)
    np.testing.assert_array_equal(filled[~np.isnan(y)], y[~np.isnan(y)])
    assert np.abs(filled - centers[kind]).max() < 5.0
    assert np.isin(filled, y).all()


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_pilot_finds_the_likeliest_mixture_of_observed_values(seed):
    """Data that is not a mixture of such components, where one start often fails."""
    rng = np.random.default_rng(1)
    weights, means = rng.dirichlet(np.full(4, 5.0)), 2.5 * rng.normal(size=(4, 5))
    roots = rng.normal(size=(4, 5, 5))
    matrices = roots @ roots.transpose(0, 2, 1) / 5 + 0.1 * np.eye(5)
    truth = GaussianMixture(weights, means, matrices, covariance_type="full")
    x = truth.sample(5000, seed=1)
    y = np.where(np.random.default_rng(seed).random(x.shape) < 0.4, np.nan, x)
    y = y[~np.isnan(y).all(axis=1)]

    def score(rows):
        rough = rough_mixture(rows, 4, seed)
        fitted = fit_observed(y, rough.weights, rough.means, rough.variances, 50)
        return GaussianMixture(*fitted).score(y)

    assert score(filled_pilot(y, 4, seed=seed)) > score(x) - 0.02


def test_a_pilot_without_values_of_a_feature_is_refused():
    rows = np.zeros((10, 2))
    rows[1:, 1] = np.nan
    with pytest.raises(InputError, match="feature 1 has 1 "):
        filled_pilot(rows, 2)
    with pytest.raises(InputError, match="'b'"):
        filled_pilot(rows, 2, feature_names=("a", "b"))
