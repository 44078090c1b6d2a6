"""Mixtures of factor analysers from sketches, with random rows and without."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.decoders.factor_descent import FactorObjective, data_factors, descend_factors
from dask_sketch.errors import DecodeError, InputError
from dask_sketch.models import GaussianMixture
from dask_sketch.validation.threads import SERIAL, Threads

D, K, RANK = 8, 2, 1
RNG = np.random.default_rng(5)
FACTORS = np.concatenate(
    [RNG.uniform(0.3, 1.0, (K, D, 1)), 0.8 * RNG.normal(size=(K, D, RANK))], axis=2
)
TRUTH = GaussianMixture(
    [0.6, 0.4], 2.0 * RNG.normal(size=(K, D)), FACTORS, covariance_type=("low-rank", RANK)
)
X, HELDOUT = TRUTH.sample(30_000, seed=1), TRUTH.sample(5000, seed=2)


@pytest.fixture(scope="module")
def sketch():
    feature_map = ds.design(X, n_components=K, n_frequencies=300, seed=0)
    return ds.sketch(X, feature_map, sample=4000)


@pytest.fixture(scope="module")
def objective(sketch):
    return FactorObjective(sketch, "low-rank:1", variance_floor=0.1, threads=SERIAL)


def test_atoms_are_the_characteristic_functions(sketch, objective):
    theta = objective.space.from_factors(TRUTH.means, TRUTH.covariances)
    np.testing.assert_allclose(data_factors(objective, theta), TRUTH.covariances)
    np.testing.assert_allclose(objective.space.matrices(theta), TRUTH.covariance_matrices)
    atoms = objective.atoms(theta).reshape(K, 2, -1)
    moduli = np.hypot(*np.swapaxes(atoms, 0, 1)) * np.sqrt(sketch.feature_map.n_frequencies)
    one = GaussianMixture(
        [1.0], TRUTH.means[:1], TRUTH.covariances[:1], covariance_type="low-rank:1"
    )
    expected = np.abs(one.characteristic(sketch.feature_map.frequencies))
    np.testing.assert_allclose(moduli[0], expected, atol=1e-10)
    assert objective.cost(TRUTH.weights, theta) < 2.0 * objective.noise_level


@pytest.mark.parametrize("distribution", ["sparse-sums", "adapted-radius"])
@pytest.mark.parametrize("n_atoms", [K, 9])
def test_gradients_and_jacobian_are_derivatives(distribution, n_atoms):
    # frequencies of the second distribution touch all features
    feature_map = ds.design(
        X[:2000], n_components=K, n_frequencies=1100, distribution=distribution, seed=0
    )
    sketched = ds.sketch(X[:2000], feature_map, sample=False)
    objective = FactorObjective(sketched, "low-rank:1", variance_floor=0.1, threads=SERIAL)
    rng = np.random.default_rng(0)
    chosen = np.arange(n_atoms) % K
    theta = objective.space.from_factors(TRUTH.means[chosen], TRUTH.covariances[chosen])
    theta = objective.space.clip(theta + 0.05 * rng.normal(size=theta.shape))
    weights = TRUTH.weights[chosen] * K / n_atoms
    direction, step = rng.normal(size=theta.shape), 1e-6
    ends = [objective.cost(weights, theta + sign * step * direction) for sign in (1.0, -1.0)]
    cost, by_weight, by_theta = objective.cost_gradient(weights, theta)
    assert cost == pytest.approx(objective.cost(weights, theta), rel=1e-12)
    assert np.sum(by_theta * direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)
    residual = np.concatenate(objective.residual(weights, theta))
    products = -2.0 * objective.jacobian(weights, theta) @ residual
    np.testing.assert_allclose(products, np.r_[by_weight, by_theta.ravel()], atol=1e-12)
    with Threads(2) as threads:
        other = FactorObjective(sketched, "low-rank:1", variance_floor=0.1, threads=threads)
        assert np.array_equal(other.cost_gradient(weights, theta)[2], by_theta)
    part = objective.subsample(500)
    products = -2.0 * part.jacobian(weights, theta) @ np.concatenate(part.residual(weights, theta))
    np.testing.assert_allclose(part.cost_gradient(weights, theta)[1], products[:n_atoms])


@pytest.mark.slow
@pytest.mark.parametrize("has_rows", [True, False])
def test_fits_are_near_the_truth(sketch, has_rows):
    given = sketch if has_rows else sketch.without_sample()
    found = ds.decode(given, K, covariance_type=("low-rank", RANK), seed=1)
    assert found.covariance_type == "low-rank:1"
    assert found.covariances.shape == FACTORS.shape
    assert found.stderr is None
    loss = TRUTH.score(HELDOUT) - found.score(HELDOUT)
    # 47 parameters: maximum likelihood loses 0.0008 nats on average
    assert abs(loss) < 0.004
    assert found.decoding.overidentification < found.decoding.freedom + 200
    diagonal = ds.decode(given, K, seed=1)
    assert found.score(HELDOUT) > diagonal.score(HELDOUT) + 0.3


@pytest.mark.slow
def test_a_model_is_diagnosed_and_polished(sketch):
    found = ds.decode(sketch, K, covariance_type="low-rank:1")
    quality = ds.diagnose(found, sketch)
    assert quality.overidentification.excess < 5.0
    # errors of variances by two ways: those of full matrices are hardly larger
    full = ds.decode(sketch, K, covariance_type="full", refine="efficient")
    ratio = (
        quality.linearization.variance_errors
        / ds.diagnose(full, sketch).linearization.variance_errors
    )
    assert 0.3 < np.median(ratio) < 3.0
    better = ds.polish(found, X, passes=1)
    assert better.covariance_type == "low-rank:1"
    assert better.score(X) >= found.score(X)


@pytest.mark.slow
def test_types_are_selected_by_name_or_pair(sketch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few frequencies for full matrices
        found = ds.select_model(
            sketch, n_components=[K], covariance_types=["diag", ("low-rank", 1), "full"]
        )
    assert found.model.covariance_type == "low-rank:1"


def test_a_start_is_taken(sketch):
    found = ds.decode(sketch, start=TRUTH, covariance_type="low-rank:1")
    assert abs(TRUTH.score(HELDOUT) - found.score(HELDOUT)) < 0.004


def test_estimators_take_a_pair():
    estimator = ds.SketchGaussianMixture(
        K, covariance_type=("low-rank", 1), n_frequencies=200, random_state=0
    )
    estimator.fit(X[:3000])
    assert estimator.covariances_.shape == FACTORS.shape
    identity = estimator.precisions_ @ estimator.model_.covariance_matrices
    np.testing.assert_allclose(identity, np.broadcast_to(np.eye(D), identity.shape), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"covariance_type": "low-rank"}, "covariance_type='low-rank'"),
        ({"covariance_type": ("low-rank", 0)}, "covariance_type='low-rank:0'"),
        ({"covariance_type": ("low-rank", 8)}, "covariance_type='low-rank:8'.*n_features=8"),
        ({"covariance_type": "low-rank:1", "method": "density"}, "method='density'"),
    ],
)
def test_arguments_that_do_not_suit_are_refused(sketch, options, match):
    with pytest.raises(DecodeError, match=match):
        ds.decode(sketch, K, **options)


def correlated_rows():
    """Rows of a Gaussian whose correlations no three factors explain."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(3000, 6)) @ rng.normal(size=(6, 6))


@pytest.mark.slow
def test_factors_that_explain_features_whole_are_named():
    x = correlated_rows()
    sketched = ds.sketch(x, ds.design(x, n_components=2, seed=0))
    kind = ("low-rank", 3)
    alone_with = {"covariance_type": kind, "method": "cl-ompr"}  # the fit to the sketch
    with pytest.warns(UserWarning, match=r"feature .*lower rank|overidentification") as caught:
        alone = ds.decode(sketched.without_sample(), 2, **alone_with)
    assert any("lower rank" in str(each.message) for each in caught)
    with pytest.warns(UserWarning, match=r"simulated rows, .* nat a sample likelier"):
        likelier = ds.decode(sketched.without_sample(), 2, covariance_type=kind)
    assert likelier.score(x) > alone.score(x)
    fitted = ds.decode(sketched, 2, covariance_type=kind)
    assert fitted.score(x) > alone.score(x)
    # with rows, a start that maximum likelihood beats is left out
    started = ds.decode(sketched, start=alone, covariance_type=kind)
    np.testing.assert_array_equal(started.means, fitted.means)
    with pytest.raises(InputError, match="refine='efficient'"):
        fitted.interval()


@pytest.mark.parametrize("kind", [{}, np.zeros(2), {"low-rank": 2}, 3])
def test_types_that_are_no_names_are_refused(kind):
    x = correlated_rows()
    sketched = ds.sketch(x, ds.design(x, n_components=2, seed=0))
    with pytest.raises(DecodeError, match="covariance_type="):
        ds.decode(sketched, 2, covariance_type=kind)
    with pytest.raises(DecodeError, match=r"covariance=.*covariance_type="):
        ds.decode(sketched, 2, covariance_type="low-rank:2", covariance=np.ones(6))
    with pytest.raises(InputError, match="covariance_types=None"):
        ds.select_model(sketched, covariance_types=None)


def test_variables_have_units_of_their_curvature(objective):
    rng = np.random.default_rng(1)
    theta = objective.space.from_factors(TRUTH.means, TRUTH.covariances)
    by_weight, by_theta = objective.curvatures(TRUTH.weights, theta)
    squares = (objective.jacobian(TRUTH.weights, theta) ** 2).sum(axis=1)
    np.testing.assert_allclose(np.r_[by_weight, by_theta.ravel()], squares)
    # few steps are enough for a component that the sketch hardly sees
    weights = np.array([0.98, 0.02])
    rare = GaussianMixture(weights, TRUTH.means, FACTORS, covariance_type="low-rank:1")
    x = rare.sample(30_000, seed=3)
    sketched = ds.sketch(x, ds.design(x, n_components=K, n_frequencies=300, seed=0), sample=False)
    of_rare = FactorObjective(sketched, "low-rank:1", variance_floor=0.1, threads=SERIAL)
    start = of_rare.space.from_factors(rare.means, rare.covariances * [0.5, 0.5])
    start += 0.1 * rng.normal(size=start.shape)
    few, many = (descend_factors(of_rare, weights, start, n) for n in (60, 2000))
    assert few.cost < 1.1 * many.cost < of_rare.noise_level


@pytest.mark.slow
def test_components_that_the_pilot_misses_are_found():
    third = GaussianMixture(
        [1.0], TRUTH.means[:1] + 6.0, FACTORS[1:], covariance_type="low-rank:1"
    ).sample(1500, seed=4)
    feature_map = ds.design(X[:4000], n_components=K + 1, n_frequencies=400, seed=0)
    sketched = ds.sketch(np.concatenate([X, third]), feature_map, sample=False)
    found = ds.decode(sketched, K + 1, covariance_type="low-rank:1", seed=1)
    np.testing.assert_allclose(found.means[2], TRUTH.means[0] + 6.0, atol=0.3)
    assert found.weights[2] == pytest.approx(1500 / 31_500, rel=0.1)
    assert found.decoding.cost < found.decoding.noise_level


@pytest.mark.slow
def test_standard_errors_are_those_of_many_fits():
    d, rank = 5, 2
    rng = np.random.default_rng(0)
    factors = np.concatenate(
        [rng.uniform(0.3, 1.0, (2, d, 1)), 0.7 * rng.normal(size=(2, d, rank))], axis=2
    )
    kind = ("low-rank", rank)
    truth = GaussianMixture([0.6, 0.4], [[-3.0] * d, [3.0] * d], factors, covariance_type=kind)
    feature_map = ds.design(truth.sample(5000, seed=0), n_components=2, covariance_type=kind)
    away = {"weights": [], "means": [], "matrices": [], "noise": []}
    for seed in range(12):
        sketched = ds.sketch(truth.sample(8000, seed=seed + 1), feature_map, sample=False)
        found = ds.decode(sketched, covariance_type=kind, start=truth, refine="efficient")
        errors = found.stderr
        away["weights"].append((found.weights - truth.weights) / errors.weights)
        away["means"].append((found.means - truth.means) / errors.means)
        gap = found.covariance_matrices - truth.covariance_matrices
        away["matrices"].append(gap / errors.covariances)
        gap = found.covariances[..., 0] - truth.covariances[..., 0]
        away["noise"].append(gap / errors.noise_variances)
    for name, values in away.items():
        assert 0.7 < np.sqrt(np.mean(np.square(values))) < 1.35, name
    by_entry = np.sqrt(np.mean(np.square(away["matrices"]), axis=0))
    assert 0.5 < by_entry.min() < by_entry.max() < 2.0


def test_standard_errors_have_the_units_of_the_data():
    kind, unit = ("low-rank", 1), np.array([1.0, 10.0, 0.1, 1000.0])
    loadings = np.array([0.5, -0.4, 0.6, 0.3])
    factors = np.stack([np.full((1, 4), 0.5), loadings[None]], axis=2)
    truth = GaussianMixture([1.0], np.zeros((1, 4)), factors, covariance_type=kind)
    x = truth.sample(20_000, seed=0)
    errors = []
    for rows in (x, x * unit):
        feature_map = ds.design(rows, n_components=1, covariance_type=kind)
        sketched = ds.sketch(rows, feature_map, sample=False)
        errors.append(ds.decode(sketched, 1, covariance_type=kind, refine="efficient").stderr)
    # other frequencies, whose errors are nearly the same ones
    np.testing.assert_allclose(errors[1].means / unit, errors[0].means, rtol=0.1)
    np.testing.assert_allclose(errors[0].means, np.sqrt(x.var(axis=0) / len(x))[None], rtol=0.1)
    squares = np.outer(unit, unit)
    np.testing.assert_allclose(errors[1].covariances / squares, errors[0].covariances, rtol=0.2)
    np.testing.assert_allclose(
        errors[1].noise_variances / unit**2, errors[0].noise_variances, rtol=0.2
    )


@pytest.mark.parametrize("has_rows", [True, False])
def test_noise_at_its_bound_is_warned_of_where_errors_are_asked_for(has_rows):
    # a Heywood case: in this draw the factor explains the third feature whole
    loadings = np.array([0.13, -0.13, 0.64, 0.1])
    root = np.linalg.cholesky(np.diag([0.5, 0.73, 0.97, 1.2]) + np.outer(loadings, loadings))
    pilot = np.random.default_rng(9).normal(size=(5000, 4)) @ root.T
    feature_map = ds.design(pilot, n_components=1, covariance_type=("low-rank", 1))
    x = np.random.default_rng(9).normal(size=(1700, 4)) @ root.T
    sketched = ds.sketch(x, feature_map, sample=has_rows)
    named = "standard errors" if has_rows else "sample=True"
    with pytest.warns(UserWarning, match=rf"1 feature\(s\), such as feature 2.* {named}"):
        found = ds.decode(sketched, 1, covariance_type=("low-rank", 1), refine="efficient")
    assert found.stderr.noise_variances[0, 2] == 0.0


def test_a_refined_fit_is_diagnosed(sketch):
    found = ds.decode(sketch, K, covariance_type=("low-rank", RANK), refine="efficient")
    assert found.stderr.noise_variances.shape == (K, D)
    assert ds.diagnose(found, sketch).cost < 3.0 * sketch.noise_level
