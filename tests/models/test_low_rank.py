"""Mixtures of factor analysers: their arithmetic, and their steps of EM."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import FactorAnalysis

import dask_sketch as ds
from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, StandardErrors
from dask_sketch.models.covariances import COVARIANCES, Components
from dask_sketch.models.low_rank import covariances_of, factor_analysis
from dask_sketch.models.weighted_em import fit_mixture
from dask_sketch.sketching.expectation import ExpectationStep

RNG = np.random.default_rng(0)
D, RANK = 8, 2
MEANS = np.stack([np.zeros(D), np.full(D, 4.0)])
FACTORS = np.concatenate([RNG.uniform(0.3, 1.0, (2, D, 1)), RNG.normal(size=(2, D, RANK))], axis=2)
MIXTURE = GaussianMixture([0.4, 0.6], MEANS, FACTORS, covariance_type=("low-rank", RANK))
FULL = GaussianMixture(MIXTURE.weights, MEANS, MIXTURE.covariance_matrices, covariance_type="full")
X = MIXTURE.sample(2000, seed=1)


def test_analysis_is_that_of_scikit_learn():
    x = X[MIXTURE.predict(X) == 1]
    found = factor_analysis(np.cov(x.T, bias=True)[None], RANK, n_steps=2000, tolerance=1e-10)
    other = FactorAnalysis(RANK, tol=1e-10, max_iter=5000, svd_method="lapack").fit(x)
    family = covariances_of(f"low-rank:{RANK}")
    np.testing.assert_allclose(family.matrices(found, 1, D)[0], other.get_covariance(), atol=1e-4)
    np.testing.assert_allclose(found[0, :, 0], other.noise_variance_, atol=1e-3)


def test_no_step_reduces_the_likelihood():
    matrix = np.cov((RNG.normal(size=(50, D)) @ RNG.normal(size=(D, D))).T)
    family = covariances_of("low-rank:3")
    found = factor_analysis(matrix[None], 3, n_steps=1, floor=0.5)
    values = []
    for _ in range(30):
        sigma = family.matrices(found, 1, D)[0]
        values.append(-np.linalg.slogdet(sigma)[1] - np.trace(np.linalg.solve(sigma, matrix)))
        found = family.constrained(matrix[None], found, np.full(D, 0.5))
        assert found[..., 0].min() >= 0.5
    assert (np.diff(values) > -1e-9).all()


def test_densities_are_those_of_the_matrices():
    assert MIXTURE.covariance_type == "low-rank:2"
    np.testing.assert_allclose(MIXTURE.logpdf(X), FULL.logpdf(X))
    np.testing.assert_allclose(MIXTURE.sample(5, seed=2), FULL.sample(5, seed=2))
    np.testing.assert_allclose(MIXTURE.variance, FULL.variance)
    missing = np.where(RNG.uniform(size=X[:50].shape) < 0.3, np.nan, X[:50])
    np.testing.assert_allclose(MIXTURE.logpdf(missing), FULL.logpdf(missing))
    np.testing.assert_allclose(MIXTURE.impute(missing), FULL.impute(missing))
    other = MIXTURE.to_sklearn()
    assert other.covariance_type == "full"
    np.testing.assert_allclose(MIXTURE.logpdf(X), other.score_samples(X))
    # two loadings of 8 features less one rotation
    assert MIXTURE.n_parameters == 2 * (1 + D + D + 2 * D - 1) - 1


def test_the_family_agrees_with_that_of_full_matrices():
    family, full = covariances_of(MIXTURE.covariance_type), COVARIANCES["full"]
    mine = Components(MIXTURE.weights, MEANS, FACTORS)
    theirs = Components(MIXTURE.weights, MEANS, FULL.covariances)
    np.testing.assert_allclose(family.joint(mine, X), full.joint(theirs, X))
    for a, b in zip(family.merged(mine, 0), full.merged(theirs, 0), strict=True):
        np.testing.assert_allclose(a, b)
    np.testing.assert_allclose(
        family.log_determinants(FACTORS, D), full.log_determinants(FULL.covariances, D)
    )
    factor = np.linspace(0.5, 2.0, D)
    np.testing.assert_allclose(
        family.matrices(family.rescaled(FACTORS, factor), 2, D),
        full.rescaled(FULL.covariances, factor),
    )
    again = family.from_matrices(MIXTURE.weights, FULL.covariances)
    np.testing.assert_allclose(family.matrices(again, 2, D), FULL.covariances, atol=1e-3)


def test_em_is_as_good_as_the_truth_and_better_than_other_types():
    heldout = MIXTURE.sample(2000, seed=3)
    score = {}
    for kind in ("low-rank:2", "full", "diag"):
        found = fit_mixture(X, None, 2, covariance_type=kind, n_starts=1, n_moves=0)
        mixture = GaussianMixture(
            found.weights, found.means, found.covariances, covariance_type=kind
        )
        score[kind] = mixture.score(heldout)
    assert score["low-rank:2"] > MIXTURE.score(heldout) - 0.03
    assert score["low-rank:2"] > score["full"] > score["diag"]


def test_a_polishing_step_is_monotone_and_keeps_the_type():
    poor = GaussianMixture(
        [0.5, 0.5], MEANS + 0.5, 2.0 * FACTORS, covariance_type=MIXTURE.covariance_type
    )
    before = -np.inf
    for _ in range(4):
        step = ExpectationStep(poor)
        statistics = step.statistics(X)
        assert step.objective(statistics) > before
        before = step.objective(statistics)
        poor = step.maximize(statistics)
    assert poor.covariance_type == MIXTURE.covariance_type
    assert before > MIXTURE.score(X) - 0.05


def test_stored_mixtures_come_back_with_the_same_bits(tmp_path):
    MIXTURE.to_zarr(tmp_path / "m.zarr")
    back = ds.open(tmp_path / "m.zarr")
    assert back.covariance_type == MIXTURE.covariance_type
    np.testing.assert_array_equal(back.covariances, FACTORS)
    assert "low-rank:2" in repr(back)


@pytest.mark.parametrize(
    ("kind", "covariances", "match"),
    [
        ("low-rank", FACTORS, "covariance_type='low-rank'"),
        ("low-rank:0", FACTORS, "covariance_type='low-rank:0'"),
        (("low-rank", 1.5), FACTORS, "covariance_type='low-rank:1.5'"),
        ("low-rank:8", np.ones((2, D, 9)), "covariance_type='low-rank:8'.*at most 7"),
        ("low-rank:3", FACTORS, "covariances has shape"),
        ("low-rank:2", -FACTORS, "noise variance"),
    ],
)
def test_invalid_covariances_are_refused(kind, covariances, match):
    with pytest.raises(InputError, match=match):
        GaussianMixture([0.4, 0.6], MEANS, covariances, covariance_type=kind)


def test_standard_errors_are_those_of_matrices_and_noise_variances(tmp_path):
    matrices, noise = 0.1 + 0 * FULL.covariances, 0.2 + 0 * MEANS
    errors = StandardErrors([0.1, 0.1], 0.1 + 0 * MEANS, matrices, noise)
    given = {"covariance_type": "low-rank:2", "stderr": errors}
    mixture = GaussianMixture([0.4, 0.6], MEANS, FACTORS, **given)
    ends = mixture.interval(0.95)
    np.testing.assert_allclose(
        ends["covariances"].mean(axis=-1)[..., 0, 1], FULL.covariances[..., 0, 1]
    )
    widths = ends["noise_variances"][..., 1] - FACTORS[..., 0]
    np.testing.assert_allclose(widths, 1.96 * 0.2, rtol=1e-3)
    assert mixture.as_dict()["stderr"]["max_covariance_error"] == 0.1
    mixture.to_zarr(tmp_path / "mixture.zarr")
    loaded = ds.open(tmp_path / "mixture.zarr")
    np.testing.assert_array_equal(loaded.stderr.covariances, matrices)
    np.testing.assert_array_equal(loaded.stderr.noise_variances, noise)
    assert "noise_variances" not in FULL.as_dict()


@pytest.mark.parametrize(
    "errors",
    [
        StandardErrors([0.1, 0.1], 0.1 + 0 * MEANS, 0.1 + 0 * FULL.covariances),
        StandardErrors([0.1, 0.1], 0.1 + 0 * MEANS, 0.1 + 0 * MEANS, 0.1 + 0 * MEANS),
    ],
)
def test_standard_errors_of_another_type_are_refused(errors):
    with pytest.raises(InputError, match="stderr .*covariance_type='low-rank:2'"):
        GaussianMixture([0.4, 0.6], MEANS, FACTORS, covariance_type="low-rank:2", stderr=errors)


def test_noise_variances_have_the_shape_of_the_means():
    with pytest.raises(InputError, match="noise_variances"):
        StandardErrors([0.1, 0.1], 0.1 + 0 * MEANS, 0.1 + 0 * FULL.covariances, [0.1, 0.1])
