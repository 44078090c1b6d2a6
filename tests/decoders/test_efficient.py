from __future__ import annotations

import itertools

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, design, partial_sketch, sketch
from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.efficient import N_ROUNDS, inverse_root, memory_needed, refine_efficiently
from dask_sketch.decoders.factor_descent import FactorSpace
from dask_sketch.decoders.objectives.atoms import ParameterSpace, unpacked
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.errors import DecodeError, InputError
from dask_sketch.models import GaussianMixture, random_mixture, symmetric_kl

PARTS = ("weights", "means", "covariances")
N_FEATURES = 3
SMALL = partial_sketch(
    np.random.default_rng(0).normal(size=(500, N_FEATURES)),
    FeatureMap(N_FEATURES, 20, scale=1.0, seed=1),
)


def in_order_of(truth, mixture):
    """Components of a mixture in the order of those of the truth."""
    orders = itertools.permutations(range(truth.n_components))
    return list(min(orders, key=lambda o: np.abs(mixture.means[list(o)] - truth.means).sum()))


def log_divergences(n_features, n_components, seeds, n_frequencies, n_samples):
    """Mean ln KL of least squares, and of efficient refinement."""
    out = []
    for seed in seeds:
        truth = random_mixture(n_components, n_features, seed=seed)
        feature_map = FeatureMap(
            n_features, n_frequencies, scale=1.0, seed=seed, distribution="sparse-radius"
        )
        sketch = partial_sketch(truth.sample(n_samples, seed=100 + seed), feature_map)
        arguments = ({"method": "cl-ompr"}, {"refine": "efficient"})
        fits = [decode(sketch, n_components, **each) for each in arguments]
        out.append([np.log(symmetric_kl(truth, fit, 50_000)) for fit in fits])
    return np.array(out).mean(axis=0)


@pytest.mark.slow
def test_is_as_precise_as_the_limit():
    plain, refined = log_divergences(2, 3, range(2), 150, 30_000)
    limit = np.log(14 / 30_000)  # mean of an efficient estimate of 14 parameters
    assert refined < plain - 0.1
    assert refined < limit + 0.3


@pytest.mark.slow
def test_in_ten_features():
    plain, refined = log_divergences(10, 5, range(2), 525, 100_000)
    assert refined < plain - 0.2
    assert refined < np.log(104 / 100_000) + 0.5


def test_a_float64_sketch_of_many_samples(exact_sketch):
    # as if of infinitely many: the estimate is the truth, and the errors those of the count
    truth = random_mixture(3, 2, seed=9)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6, dtype="float64")
    found = decode(exact_sketch(truth, feature_map, 10**12), 3, refine="efficient")
    order = in_order_of(truth, found)
    np.testing.assert_allclose(found.means[order], truth.means, atol=1e-6)
    assert found.stderr.means.max() < 1e-4


def estimates_of(truth, feature_map, seeds, model="gaussian", **options):
    """Refined mixtures of sketches of 5000 samples each, components in the order of the truth."""
    weights, theta = truth.weights, None
    for seed in seeds:
        sketch = partial_sketch(truth.sample(5000, seed=seed), feature_map)
        objective = Objective(sketch, model, **options)
        theta = objective.space.from_data_units(truth.means, truth.covariances)
        fit = descend_fully(objective, theta, weights)
        refined = refine_efficiently(objective, fit, lambda cost: None)
        means, variances = objective.space.to_data_units(refined.fit.theta)
        yield (refined.fit.weights, means, variances), refined.standard_errors


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gaussian", "isotropic", "known"])
def test_standard_errors_are_the_spread_of_estimates(model):
    place = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    truth = GaussianMixture([0.5, 0.3, 0.2], place, np.full((3, 2), 0.7))
    known = {"covariance": [0.7, 0.7]} if model == "known" else {}
    feature_map = FeatureMap(2, 100, scale=1.0, seed=1)
    found, errors = [], []
    for parts, spread in estimates_of(truth, feature_map, range(30), model, **known):
        found.append(np.concatenate([part.ravel() for part in parts]))
        errors.append(np.concatenate([part.ravel() for part in spread]))
    spread, stated = np.std(found, axis=0), np.mean(errors, axis=0)
    free = np.ones(15, dtype=bool)
    if model == "known":
        free[9:] = False
        assert (stated[9:] == 0).all()
    ratio = spread[free] / stated[free]
    assert ratio.mean() == pytest.approx(1.0, abs=0.12)
    assert (ratio < 1.6).all()
    assert (ratio > 0.6).all()


def test_intervals_contain_the_truth_as_often_as_stated():
    truth = random_mixture(3, 2, seed=9)
    feature_map = FeatureMap(2, 100, scale=1.0, seed=6)
    hits = []
    for parts, errors in estimates_of(truth, feature_map, range(40)):
        for name, part, error in zip(PARTS, parts, errors, strict=True):
            hits.append((np.abs(part - getattr(truth, name)) < 1.645 * error).ravel())
    assert np.concatenate(hits).mean() == pytest.approx(0.9, abs=0.03)


def test_blocks_of_frequencies_agree():
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    objective = Objective(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    whole, blocks = (
        refine_efficiently(objective, start, lambda cost: None, block_size=size)
        for size in (4096, 60)
    )
    errors = whole.standard_errors[1]
    np.testing.assert_allclose(
        blocks.fit.theta[:, :2], whole.fit.theta[:, :2], atol=3 * errors.max()
    )
    # a bound on the errors, not far above them
    ratio = blocks.standard_errors[1] / errors
    assert (ratio > 0.99).all()
    assert (ratio < 1.1).all()


def test_blocks_are_independent_given_the_scores_of_components():
    truth = random_mixture(2, 8, seed=9)
    feature_map = FeatureMap(8, 300, scale=1.0, seed=6, distribution="sparse-sums")
    objective = Objective(partial_sketch(truth.sample(50_000, seed=1), feature_map))
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    whole, blocks = (
        refine_efficiently(objective, start, lambda cost: None, block_size=size).standard_errors
        for size in (4096, 60)
    )
    # independent without that condition: 1.24
    assert (blocks[1] < 1.2 * whole[1]).all()


@pytest.mark.parametrize("size", [4096, 60])
def test_errors_are_computed_on_request(size):
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    objective = Objective(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    whole, fit = (
        refine_efficiently(
            objective, start, lambda cost: None,
            block_size=size, single=True, errors=errors, test=True,
        )
        for errors in (True, False)
    )  # fmt: skip
    assert fit.standard_errors is None
    np.testing.assert_allclose(fit.fit.theta, whole.fit.theta, atol=1e-4)
    one, other = whole.overidentification, fit.overidentification
    assert other.statistic == pytest.approx(one.statistic, rel=1e-3)
    assert other.freedom == pytest.approx(one.freedom, abs=0.1 * one.deviation)


@pytest.mark.slow
def test_the_last_round_uses_all_frequencies():
    used = []

    class Recording(Objective):
        def jacobian_blocks(self, weights, theta):
            used.append(self.n_frequencies)
            return super().jacobian_blocks(weights, theta)

    truth = random_mixture(2, 1, seed=4)
    sketch = partial_sketch(truth.sample(50_000, seed=0), FeatureMap(1, 2520, scale=1.0, seed=1))
    objective = Recording(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    trace = []
    refined = refine_efficiently(objective, start, trace.append, block_size=500)
    assert used[0] == 2000
    assert used[-1] == 2520
    assert len(trace) == len(used) <= N_ROUNDS
    assert refined.fit.cost == trace[-1]


def test_a_refined_fit_needs_one_more_round():
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    objective = Objective(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    first = refine_efficiently(objective, start, lambda cost: None)
    trace = []
    again = refine_efficiently(objective, first.fit, trace.append)
    assert len(trace) == 1
    assert (
        np.abs(again.fit.weights - first.fit.weights).max() < 0.1 * first.standard_errors[0].min()
    )


@pytest.mark.slow
def test_weights_of_features_do_not_matter():
    truth = random_mixture(3, 2, seed=9)
    x = truth.sample(50_000, seed=1)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=6, distribution="clustering")
    mixture = decode(partial_sketch(x, feature_map), 3, refine="efficient")
    assert symmetric_kl(truth, mixture) < 5 * 14 / 50_000


def test_errors_are_in_the_units_of_the_data():
    truth = random_mixture(2, 2, seed=9)
    x, errors = truth.sample(20_000, seed=1), []
    for unit in (1.0, 4.0):
        sketch = partial_sketch(unit * x, FeatureMap(2, 80, scale=unit, seed=6))
        start = GaussianMixture(truth.weights, unit * truth.means, unit**2 * truth.covariances)
        errors.append(decode(sketch, 2, start=start, refine="efficient").stderr)
    np.testing.assert_allclose(errors[1].weights, errors[0].weights, rtol=0.01)
    np.testing.assert_allclose(errors[1].means, 4.0 * errors[0].means, rtol=0.01)
    np.testing.assert_allclose(errors[1].covariances, 16.0 * errors[0].covariances, rtol=0.01)


def test_the_result_does_not_depend_on_the_start():
    truth = random_mixture(2, 2, seed=9)
    sketch, found = partial_sketch(truth.sample(20_000, seed=1), FeatureMap(2, 80, scale=1.0)), []
    for shift in (0.0, 0.1):
        objective = Objective(sketch)
        theta = objective.space.from_data_units(truth.means + shift, truth.covariances)
        fit = Fit(truth.weights, theta, 0.0, True, "")
        found.append(refine_efficiently(objective, fit, lambda cost: None))
    plain, shifted = (each.fit.theta for each in found)
    errors = np.hstack(found[0].standard_errors[1:])
    assert (np.abs(shifted - plain) < 0.02 * errors).all()


def test_parameters_on_bounds_stay_there():
    truth = random_mixture(3, 2, seed=9)
    sketch = partial_sketch(truth.sample(50_000, seed=1), FeatureMap(2, 150, scale=1.0, seed=6))
    objective = Objective(sketch, variance_floor=0.2)
    order = np.argsort(truth.means[:, 0])
    theta = objective.space.from_data_units(truth.means[order], truth.covariances[order])
    theta[0, 2] = objective.space.lower[2]
    weights = np.append(truth.weights[order], 0.0)
    theta = np.vstack([theta, theta[2]])
    refined = refine_efficiently(objective, Fit(weights, theta, 0.0, True, ""), lambda cost: None)
    fit, errors = refined.fit, refined.standard_errors
    assert fit.theta[0, 2] == objective.space.lower[2]
    assert errors[2][0, 0] == 0.0
    assert fit.weights[3] == 0.0
    assert errors[0][3] == 0.0
    assert (errors[1][3] == 0.0).all()
    assert fit.weights.sum() == pytest.approx(1.0)


def test_coincident_components_do_no_harm():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1))
    twice = GaussianMixture([0.5, 0.5], np.zeros((2, 2)), np.ones((2, 2)))
    mixture = decode(sketch, 2, start=twice, refine="efficient")
    assert np.isfinite(mixture.stderr.means).all()
    assert mixture.score(x) == pytest.approx(-1.0 - np.log(2 * np.pi), abs=0.01)


def test_a_single_point_has_no_noise():
    sketch = partial_sketch([[2.0, -1.0]], FeatureMap(2, 40, scale=1.0, dtype="float64"))
    mixture = decode(sketch, 1, refine="efficient", variance_floor=1e-15)
    np.testing.assert_allclose(mixture.means, [[2.0, -1.0]], atol=1e-6)


def test_memory_grows_with_the_frequencies_up_to_a_block():
    assert memory_needed(100, 2000) > 8 * 3 * 100 * 2 * 2000
    grown = memory_needed(100, 1_000_000) - memory_needed(100, 500_000)
    assert grown == 8 * 3 * 100 * 2 * 500_000
    grown = memory_needed(1000, 1_000_000) - memory_needed(1000, 500_000)
    assert grown == 4 * 3 * 1000 * 2 * 500_000  # many parameters: float32


def test_single_precision_is_as_accurate():
    truth = random_mixture(5, 5, seed=2)
    sketch = partial_sketch(truth.sample(200_000, seed=1), FeatureMap(5, 600, scale=1.0, seed=6))
    objective = Objective(sketch)
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    double, single = (
        refine_efficiently(objective, start, lambda cost: None, single=single)
        for single in (False, True)
    )
    for a, b in zip(single.standard_errors, double.standard_errors, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.15)
    errors = np.concatenate([double.standard_errors[1], double.standard_errors[2]], axis=1)
    assert (np.abs(single.fit.theta - double.fit.theta) < objective.space.scale[0] * errors).all()


@pytest.mark.slow
def test_same_bits(sketch):
    a, b = (decode(sketch, 3, refine="efficient", seed=2) for _ in range(2))
    np.testing.assert_array_equal(a.means, b.means)
    np.testing.assert_array_equal(a.stderr.covariances, b.stderr.covariances)
    assert a.decoding.refine == "efficient"
    assert a.decoding.trace[-1] == pytest.approx(a.decoding.cost)


@pytest.mark.slow
def test_a_mixture_without_errors_has_no_intervals(sketch):
    with pytest.raises(InputError, match="refine='efficient'"):
        decode(sketch, 3).interval()
    with pytest.raises(InputError, match="confidence=95"):
        decode(sketch, 3, refine="efficient").interval(95)


@pytest.mark.parametrize(("seed", "family"), [(9, "full"), (11, ("low-rank", 2))])
@pytest.mark.slow
def test_of_components_that_become_far_too_wide(seed, family):
    # of one of five values each: wide components explain the sketch, their matrices are singular
    x = np.eye(5)[np.random.default_rng(seed).integers(0, 5, 400)]
    with (
        pytest.warns(UserWarning, match="rows .* one value"),
        pytest.warns(UserWarning, match="linearly dependent"),
    ):
        found = decode(sketch(x, design(x, n_components=3)), 3, covariance_type=family)
    assert np.isfinite(found.covariances).all()
    np.testing.assert_allclose(found.weights @ found.means, x.mean(axis=0), atol=0.05)


def refine_three_components(widest, direction):
    """Refine a fit to rows of five values; one component has two variances of ``widest``."""
    x = np.eye(5)[np.random.default_rng(9).integers(0, 5, 400)]
    feature_map = FeatureMap(5, 165, scale=1.0, distribution="sparse-radius")
    objective = Objective(partial_sketch(x, feature_map), "full")
    basis = np.linalg.qr(np.random.default_rng(direction).normal(size=(5, 5)))[0]
    matrices = np.array([0.15 * np.eye(5)] * 3)
    matrices[0] += (widest - 0.15) * basis[:, :2] @ basis[:, :2].T
    theta = objective.space.from_data_units(np.eye(5)[:3], matrices)
    fit = Fit(np.array([0.1, 0.4, 0.5]), theta, 0.0, True, "")
    return fit, refine_efficiently(objective, fit, lambda cost: None)


def test_a_fit_that_cannot_be_refined_is_returned_with_a_warning():
    with pytest.warns(
        UserWarning, match=r"3 components.* to 7.8e\+03 scales.*covariance_type='diag'"
    ):
        start, found = refine_three_components(1e8, 0)
    np.testing.assert_array_equal(found.fit.theta, start.theta)
    np.testing.assert_array_equal(found.fit.weights, start.weights)
    assert all(np.isfinite(errors).all() for errors in found.standard_errors)


def test_a_fit_without_a_metric_is_refused():
    with pytest.raises(DecodeError, match=r"3 components.* from 0 to .*covariance_type='diag'"):
        refine_three_components(-1.0, 0)


def space_of(model):
    if model.startswith("low-rank"):
        return FactorSpace(SMALL, model, 0.1)
    covariance = np.array([0.5, 1.0, 2.0]) if model == "known" else None
    return ParameterSpace(SMALL, model, None, 0.1, covariance)


def divergence(space, one, other):
    """Divergence of Kullback and Leibler between two components."""
    first, second = (space.shapes(atom[None])[0] for atom in (one, other))
    if first.ndim == 1:
        first, second = np.diag(first), np.diag(second)
    away = one[:N_FEATURES] - other[:N_FEATURES]
    inverse = np.linalg.inv(second)
    ratio = np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1]
    return 0.5 * (np.trace(inverse @ first) + away @ inverse @ away - N_FEATURES + ratio)


@pytest.mark.parametrize(
    "model", ["gaussian", "isotropic", "known", "full", "low-rank:1", "low-rank:2"]
)
def test_complete_information_is_the_curvature_of_the_divergence(model):
    rng, space = np.random.default_rng(2), space_of(model)
    atom = np.r_[rng.normal(size=N_FEATURES), rng.uniform(0.5, 1.5, space.n_shapes)]
    if model == "full":
        atom[2 * N_FEATURES :] = [0.1, -0.2, 0.3]
    information = space.complete_information(atom)
    np.testing.assert_allclose(information, information.T)
    for _ in range(3):
        step = 1e-4 * rng.normal(size=len(atom))
        expected = divergence(space, atom, atom + step) + divergence(space, atom, atom - step)
        assert step @ information @ step == pytest.approx(expected, rel=1e-5)


def test_a_shared_matrix_has_no_complete_information():
    space = ParameterSpace(SMALL, "tied", None, 0.1, None)
    atom = np.r_[np.zeros(N_FEATURES), np.ones(N_FEATURES), np.zeros(N_FEATURES)]
    assert (unpacked(atom[N_FEATURES:], N_FEATURES) == np.eye(N_FEATURES)).all()
    assert space.complete_information(atom) is None


def test_rotations_of_factors_have_no_information():
    space = space_of("low-rank:2")
    atom = np.random.default_rng(3).uniform(0.5, 1.5, space.n_parameters)
    information = space.complete_information(atom)
    root = inverse_root(information)
    assert len(root) == space.n_parameters - 3  # a covariance matrix has six entries
    products = information @ root.T @ root @ information
    np.testing.assert_allclose(products, information, atol=1e-8)
