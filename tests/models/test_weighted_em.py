from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from dask_sketch.errors import InputError
from dask_sketch.models.density import RowDensity
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.models.weighted_em import (
    MIN_VARIANCE,
    FittedMixture,
    choose_prior,
    fit_centroids,
    fit_mixture,
    rounding_step,
)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    parts = [
        rng.normal([0.0, 0.0, 5.0], [1.0, 0.5, 2.0], (900, 3)),
        rng.normal([4.0, 1.0, 0.0], [0.5, 1.0, 1.0], (600, 3)),
        rng.normal([-3.0, 4.0, 2.0], [0.7, 0.7, 0.3], (500, 3)),
    ]
    x = np.concatenate(parts)
    x[:, 1] += 0.5 * x[:, 0]
    return 1000.0 + 10.0 * x


@pytest.mark.parametrize("covariance_type", ["diag", "spherical", "tied", "full"])
def test_agrees_with_scikit_learn(rows: np.ndarray, covariance_type: str) -> None:
    found = fit_mixture(rows, None, 3, covariance_type=covariance_type, n_starts=3, tolerance=1e-9)
    other = GaussianMixture(
        3, covariance_type=covariance_type, n_init=3, tol=1e-9, max_iter=1000, random_state=0
    ).fit(rows)
    order = np.argsort(-other.weights_)
    assert found.converged
    assert found.log_likelihood == pytest.approx(other.score(rows), abs=1e-4)
    np.testing.assert_allclose(found.weights, other.weights_[order], atol=1e-3)
    np.testing.assert_allclose(found.means, other.means_[order], atol=0.05)
    expected = other.covariances_ if covariance_type == "tied" else other.covariances_[order]
    assert found.covariances.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.covariances, expected, atol=5e-3 * scale)


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_weights_are_repetitions(rows: np.ndarray, covariance_type: str) -> None:
    times = np.random.default_rng(1).integers(0, 4, len(rows))
    start = fit_mixture(rows, None, 3, n_starts=1)
    options = {
        "starts": [(start.weights, start.means, start.covariances)],
        "n_starts": 0,
        "covariance_type": covariance_type,
        "tolerance": 1e-10,
    }
    weighted = fit_mixture(rows, times, 3, **options)
    repeated = fit_mixture(np.repeat(rows, times, axis=0), None, 3, **options)
    np.testing.assert_allclose(weighted.means, repeated.means, rtol=1e-5)
    np.testing.assert_allclose(weighted.covariances, repeated.covariances, rtol=1e-3, atol=1e-2)
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-6)


def test_results_do_not_depend_on_units(rows: np.ndarray) -> None:
    units = np.array([1e-3, 1.0, 1e4])
    found, scaled = (fit_mixture(x, None, 3, n_starts=2) for x in (rows, rows * units))
    np.testing.assert_allclose(scaled.means, found.means * units, rtol=1e-6)
    np.testing.assert_allclose(scaled.covariances, found.covariances * units**2, rtol=1e-4)
    shift = np.log(units).sum()
    assert scaled.log_likelihood == pytest.approx(found.log_likelihood - shift, abs=1e-6)


def test_likelihood_does_not_fall(rows: np.ndarray) -> None:
    values = [
        fit_mixture(
            rows, None, 6, n_starts=1, n_iterations=n, n_moves=0, tolerance=0.0
        ).log_likelihood
        for n in (1, 2, 5, 10, 40)
    ]
    assert (np.diff(values) > -1e-6).all()


def test_better_start_wins(rows: np.ndarray) -> None:
    good = fit_mixture(rows, None, 3, n_starts=3)
    poor = ([0.4, 0.3, 0.3], rows[:3], np.tile(rows.var(axis=0), (3, 1)))
    starts = [poor, (good.weights, good.means, good.covariances)]
    found = fit_mixture(rows, None, 3, starts=starts, n_starts=0, n_iterations=5)
    assert found.start == 1
    assert found.start_likelihoods.shape == (2,)
    assert found.log_likelihood == pytest.approx(good.log_likelihood, abs=1e-4)


def test_single_rows_and_constant_columns_do_not_win() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.normal(size=(2000, 3)), np.full(2000, 7.0)])
    x[0, 0] = 50.0
    start = (np.full(2, 0.5), x[:2], np.full((2, 4), 1e-9))  # one component on one row
    found = fit_mixture(x, None, 2, starts=[start], n_starts=0)
    assert np.isfinite(found.log_likelihood)
    wide = np.sqrt(found.covariances[:, 0])
    assert wide.min() > 0.5  # not that of one row
    assert (found.covariances > 0).all()


def test_far_clusters_are_found() -> None:
    rng = np.random.default_rng(4)
    centers = rng.normal(size=(8, 5)) * 100.0
    labels = rng.integers(8, size=4000)
    x = centers[labels] + rng.normal(size=(4000, 5))
    found = fit_mixture(x, None, 8)
    distance = np.linalg.norm(found.means[:, None] - centers, axis=2)
    assert distance.min(axis=0).max() < 0.5


def test_centroids_agree_with_scikit_learn(rows: np.ndarray) -> None:
    weights = np.random.default_rng(5).uniform(0.5, 2.0, len(rows))
    found = fit_centroids(rows, weights, 3)
    other = KMeans(3, n_init=5, random_state=0).fit(rows, sample_weight=weights)
    np.testing.assert_allclose(
        found.centers[np.argsort(found.weights)],
        other.cluster_centers_[np.argsort(np.bincount(other.labels_, weights=weights))],
        rtol=1e-3,
    )
    assert found.inertia == pytest.approx(other.inertia_ / weights.sum(), rel=1e-3)
    assert found.weights.sum() == pytest.approx(1.0)


def test_centroids_leave_a_local_minimum() -> None:
    rng = np.random.default_rng(6)
    centers = np.array([[0.0, 0.0], [50.0, 0.0], [80.0, 0.0]])
    rows = centers[rng.choice(3, size=3000, p=[0.98, 0.01, 0.01])] + rng.normal(size=(3000, 2))
    start = [[-0.5, 0.0], [0.5, 0.0], [65.0, 0.0]]  # two on the large cluster
    found = fit_centroids(rows, None, 3, starts=[start], n_starts=0)
    np.testing.assert_allclose(np.sort(found.centers[:, 0]), centers[:, 0], atol=1.0)


def test_centroids_from_a_given_start(rows: np.ndarray) -> None:
    best = fit_centroids(rows, None, 3)
    found = fit_centroids(rows, None, 3, starts=[rows[:3], best.centers], n_starts=0)
    assert found.inertia == pytest.approx(best.inertia, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"weights": np.ones(3)}, r"weights.*\(3,\)"),
        ({"weights": np.zeros(2000)}, "weights.*0"),
        ({"n_components": 0}, "n_components=0"),
        ({"n_components": 3000}, "n_components=3000"),
        ({"n_starts": 0}, "n_starts=0"),
        ({"covariance_type": "banded"}, "covariance_type='banded'"),
    ],
)
def test_invalid_arguments(rows: np.ndarray, arguments: dict, match: str) -> None:
    given = {"weights": None, "n_components": 3} | arguments
    with pytest.raises(InputError, match=match):
        fit_mixture(rows, **given)


@pytest.mark.parametrize("covariance_type", ["diag", "spherical"])
def test_clusters_far_apart_keep_their_width(covariance_type):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(side * 800.0, 1.0, (2000, 2)) for side in (-1, 1)])
    found = fit_mixture(rows, None, 2, covariance_type=covariance_type)
    np.testing.assert_allclose(found.covariances, 1.0, rtol=0.1)
    floor = fit_mixture(rows, None, 2, covariance_type=covariance_type, regularization=1e-5)
    np.testing.assert_allclose(floor.covariances, 1e-5 * 800**2, rtol=0.01)


def test_the_likelihood_is_finite_where_components_were_moved_last(rows: np.ndarray) -> None:
    means = np.concatenate([rows[:2], rows[:1] + 1e6])  # no row belongs to the last component
    start = np.full(3, 1 / 3), means, np.tile(rows.var(axis=0), (3, 1))
    options = {"starts": [start], "n_starts": 0, "n_moves": 0}
    found = fit_mixture(rows, None, 3, n_iterations=1, **options)
    further = fit_mixture(rows, None, 3, **options)
    assert -np.inf < found.log_likelihood < further.log_likelihood


@pytest.mark.parametrize("covariance_type", ["diag", "spherical", "tied", "full"])
def test_a_prior_draws_the_covariances_to_spheres(rows: np.ndarray, covariance_type: str) -> None:
    options = {"covariance_type": covariance_type, "n_starts": 1, "n_moves": 0}
    plain = fit_mixture(rows, None, 3, **options)
    slight = fit_mixture(rows, None, 3, prior=1e-9, **options)
    np.testing.assert_allclose(slight.covariances, plain.covariances, rtol=1e-4)
    ruled = fit_mixture(rows, None, 3, prior=1e12, **options)
    variance = rows.var(axis=0) if covariance_type != "spherical" else rows.var(axis=0).mean()
    spheres = 3 ** (-2 / 3) * variance
    expected = np.diag(spheres) if covariance_type == "full" else spheres
    if covariance_type == "tied":  # of the shape of all rows
        expected = 3 ** (-2 / 3) * np.cov(rows.T, bias=True)
    assert ruled.covariances.shape == plain.covariances.shape
    np.testing.assert_allclose(
        ruled.covariances, np.broadcast_to(expected, plain.covariances.shape), rtol=1e-6, atol=1e-6
    )


def test_a_prior_of_one_matrix_keeps_features_that_are_nearly_collinear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 1)) + 0.03 * rng.normal(size=(150, 6))
    x[:75] += 3.0
    plain, ruled = (fit_mixture(x, None, 2, covariance_type="tied", prior=each) for each in (0, 8))
    assert ruled.log_likelihood > plain.log_likelihood - 0.05


def _score(found: FittedMixture, rows: np.ndarray) -> float:
    """Mean log-likelihood of rows under a fit with variances."""
    density = RowDensity(found.weights, found.means, found.covariances)
    return float(density.log_total(rows).mean())


def test_rows_left_out_speak_for_a_prior_unless_values_are_repeated() -> None:
    rng = np.random.default_rng(0)
    few = rng.normal(size=(60, 5))
    weights = np.full(60, 1 / 60)
    prior, optimism = choose_prior(few, weights, 8, "diag", (0.0, 7.0))
    assert prior == 7.0
    others = rng.normal(size=(6000, 5))
    found = fit_mixture(few[15:], None, 8, prior=7.0, n_moves=0)
    assert optimism == pytest.approx(found.log_likelihood - _score(found, others), abs=0.5)
    repeated = few[np.arange(60) % 5]  # each of the five is in all parts
    prior, optimism = choose_prior(repeated, weights, 5, "diag", (0.0, 7.0))
    assert prior == 0.0
    # the mean of all rows left out, in any units
    _, doubled = choose_prior(2.0 * repeated, weights, 5, "diag", (0.0, 1.0))
    assert doubled == pytest.approx(optimism, abs=1e-6)


@pytest.mark.parametrize("seed", [3, 4])
def test_values_that_many_rows_share_speak_against_a_prior_where_only_moves_find_them(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3.0, size=(6120, 4))
    x[rng.random(6120) < 0.15, 0] = 0.3  # amid the others
    few, others = x[:120], x[120:]
    fits = {each: fit_mixture(few, None, 6, prior=each) for each in (0.0, 6.0)}
    assert _score(fits[0.0], others) > _score(fits[6.0], others)
    prior, _ = choose_prior(few, np.full(120, 1 / 120), 6, "diag", (0.0, 1.0, 6.0))
    assert prior == 0.0


def test_the_likelihood_of_a_prior_is_the_same_beside_others() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(60, 5)), rng.uniform(0.5, 1.5, 60)
    rows[0] = 8.0  # in the first part, whose rows are far less likely than the others
    found = choose_prior(rows, weights, 8, "diag", (0.0, 7.0))
    assert found == choose_prior(rows, weights, 8, "diag", (7.0,))


@pytest.mark.parametrize("covariance_type", ["diag", "full", "low-rank:1"])
def test_clusters_of_rounded_values_are_not_single_values(covariance_type: str) -> None:
    x, species = load_iris(return_X_y=True)
    # of the 50 flowers of one species, 29 have a petal width of .2
    found = fit_mixture(x, None, 3, covariance_type=covariance_type)
    assert adjusted_rand_score(species, _labels(found, x)) > 0.75
    np.testing.assert_allclose(found.rounding, 0.1**2 / (2 * np.pi), rtol=0.01)
    assert found.score < found.log_likelihood


def test_one_matrix_of_rounded_values() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 1)) + 0.1 * rng.normal(size=(400, 4))  # nearly collinear
    rows[:200] += 3.0
    rows[:, 0] = np.round(rows[:, 0], 1)
    found = fit_mixture(rows, None, 2, covariance_type="tied")
    wider = found.covariances + np.diag(found.rounding)
    assert found.rounding[0] > 0.0
    assert not found.rounding[1:].any()
    expected = logsumexp(
        [
            np.log(weight) + multivariate_normal(mean, wider).logpdf(rows)
            for weight, mean in zip(found.weights, found.means, strict=True)
        ],
        axis=0,
    ).mean()
    assert found.score == pytest.approx(expected)


def test_values_that_em_fits_are_fitted_as_closely() -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(2000, 2)) * [1.0, 5.0], 1)
    x[:1000, 0] = 20.0  # a cluster of its own, which has no width in one feature
    found = fit_mixture(x, None, 2)
    assert found.covariances[:, 0].min() == pytest.approx(MIN_VARIANCE * x[:, 0].var())
    assert found.rounding[0] == 0.0
    assert found.rounding[1] == pytest.approx(0.01 / (2 * np.pi))


def test_zeros_among_rounded_values_are_a_component() -> None:
    rng = np.random.default_rng(1)
    x = np.round(rng.normal([10.0, 0.0], [2.0, 1.0], (3000, 2)), 1)
    x[rng.random(3000) < 0.4, 0] = 0.0
    found = fit_mixture(x, None, 2)
    zero = int(np.argmin(found.means[:, 0]))
    assert found.means[zero, 0] == pytest.approx(0.0, abs=1e-6)
    assert found.weights[zero] == pytest.approx(0.4, abs=0.03)


def test_values_that_are_not_rounded_are_compared_by_their_likelihood(rows: np.ndarray) -> None:
    found = fit_mixture(rows, None, 3)
    assert not found.rounding.any()
    assert found.score == found.log_likelihood


def test_a_merged_mixture_may_be_the_only_start() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(m, 0.1, (100, 2)) for m in (0.0, 1.0, 10.0)])
    found = fit_mixture(x, None, 3, n_starts=0, merged=True)
    np.testing.assert_allclose(np.sort(found.means[:, 0]), [0.0, 1.0, 10.0], atol=0.05)
    assert len(fit_mixture(x, None, 3, n_starts=1).start_likelihoods) == 2
    assert len(fit_mixture(x, None, 3, n_starts=1, merged=False).start_likelihoods) == 1
    with pytest.raises(InputError, match="n_starts=0"):
        fit_mixture(x[:59], None, 3, n_starts=0, merged=True)  # 20 rows for each are 60


def test_variances_of_rounding_can_be_given() -> None:
    x, _ = load_iris(return_X_y=True)
    given = np.array([0.0, 0.0, 0.0, 1e-3])
    found = fit_mixture(x, None, 3, n_starts=1, rounding=given)
    np.testing.assert_allclose(found.rounding, given)
    family, shape = covariances_of("diag"), (found.weights, found.means)
    wider = RowDensity(*shape, family.plus_variances(found.covariances, given))
    assert found.score == pytest.approx(float(wider.log_total(x).mean()), abs=1e-5)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (np.repeat([0.1, 0.2, 0.7], 3), 0.1),
        (np.repeat([1e6, 1e6 + 2.0, 1e6 + 8.0], 3), 2.0),
        (np.repeat([0.0, 1.0, 2.5], 3), None),  # no multiples
        (np.arange(9.0), None),  # distinct
        (np.zeros(9), None),
    ],
)
def test_the_step_of_rounded_values(values: np.ndarray, step: float | None) -> None:
    found = rounding_step(values)
    assert found is None if step is None else found == pytest.approx(step)


def _labels(found: FittedMixture, rows: np.ndarray) -> np.ndarray:
    family = covariances_of(found.covariance_type)
    matrices = family.matrices(found.covariances, *found.means.shape)
    return RowDensity(found.weights, found.means, matrices).log_joint(rows).argmax(axis=1)
