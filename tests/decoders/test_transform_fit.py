"""Descent, weights and tests of mixtures that are known by their characteristic functions."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders import direction_search, stable_search
from dask_sketch.decoders.checks.misfit import is_suspect
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.transform_fit import (
    Target,
    descend,
    refine,
    swap_components,
)
from dask_sketch.models import AlphaStableMixture

CASES = {
    "von-mises-fisher": (
        direction_search.DirectionTransforms(), np.array([[3.0, -1.0, 2.0], [0.0, 40.0, 1.0]])
    ),
    "alpha-stable": (
        stable_search.TRANSFORMS,
        np.array([[1.0, -2.0, 0.5, 0.1, -0.3, 0.2, 1.3], [0.0, 1.0, 0.0, 0.4, 0.1, 0.0, 1.9]]),
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def silent(cost):
    pass


def test_derivatives_are_those_of_the_residual(case):
    transforms, theta = case
    omega = np.random.default_rng(1).normal(size=(3, 12))
    target = Target(transforms, omega, np.zeros(24))
    weights = np.array([0.6, 0.4])
    _, found = target.linearised(weights, theta)
    step, columns = 1e-6, []
    logits = np.log(weights)
    for k in range(2):
        ends = []
        for sign in (1.0, -1.0):
            moved = np.exp(logits + sign * step * np.eye(2)[k])
            ends.append(target.residual(moved / moved.sum(), theta))
        columns.append((ends[1] - ends[0]) / (2 * step))
    for index in np.ndindex(theta.shape):
        ends = []
        for sign in (1.0, -1.0):
            other = theta.copy()
            other[index] += sign * step
            ends.append(target.residual(weights, other))
        columns.append((ends[1] - ends[0]) / (2 * step))
    np.testing.assert_allclose(found, np.stack(columns, axis=1), atol=1e-7)


def test_descent_finds_the_parameters_of_exact_values(case):
    transforms, theta = case
    omega = np.random.default_rng(2).normal(size=(3, 80))
    weights = np.array([0.6, 0.4])
    psi = weights @ transforms.values(theta, omega)
    target = Target(transforms, omega, np.concatenate([psi.real, psi.imag]))
    fit = descend(target, np.full(2, 0.5), 0.9 * theta + 0.05)
    assert fit.converged
    assert fit.cost < 1e-15
    np.testing.assert_allclose(fit.theta, theta, atol=1e-4)
    np.testing.assert_allclose(fit.weights, weights, atol=1e-6)


@pytest.mark.slow
def test_swaps_leave_a_poor_minimum():
    transforms = direction_search.DirectionTransforms()
    theta = 30.0 * np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, -1.0]])
    omega = 3.0 * np.random.default_rng(3).normal(size=(3, 80))
    weights = np.array([0.4, 0.3, 0.3])
    psi = weights @ transforms.values(theta, omega)
    target = Target(transforms, omega, np.concatenate([psi.real, psi.imag]))
    equal = np.array([[20.0, 10.0, 0.0], [0.0, 2.0, -30.0], [0.0, 2.0, -30.0]])
    poor = descend(target, weights, equal)
    assert poor.cost > 1e-5

    def parts(theta, rng):
        away = 0.4 * np.linalg.norm(theta) * rng.standard_normal(3)
        return theta + away, theta - away

    found = swap_components(target, poor, parts, np.random.default_rng(0), silent)
    assert found.cost < 1e-12


def test_statistic_of_the_refined_fit_is_that_of_noise_only_for_such_data():
    truth = AlphaStableMixture([1.0], [[1.0, 0.0]], [[1.0, 2.0]], [1.5])
    feature_map = FeatureMap(2, 60, scale=1.0, seed=6)
    sketch = partial_sketch(truth.sample(20_000, seed=1), feature_map)
    start = Fit(np.ones(1), np.array([[0.8, 0.2, 0.1, 0.5, 1.4]]), np.inf, False, "")
    target = Target.of(stable_search.TRANSFORMS, sketch)
    fit, test = refine(target, sketch, start, silent)
    assert abs(test[0] - test[1]) < 5.0 * test[2]
    assert not is_suspect(sketch, test)
    np.testing.assert_allclose(fit.theta[0, -1], 1.5, atol=0.05)
    uniform = np.random.default_rng(0).uniform(-2.0, 2.0, (20_000, 2))
    other = partial_sketch(uniform, feature_map)
    _, test = refine(Target.of(stable_search.TRANSFORMS, other), other, start, silent)
    assert is_suspect(other, test)


def test_entries_of_rounded_sketches_are_not_weighted():
    x = np.random.default_rng(0).normal(size=(500, 2))
    sketch = partial_sketch(x, FeatureMap(2, 20, scale=1.0)).rounded()
    start = Fit(np.ones(1), np.array([[0.0, 0.0, 0.0, 0.0, 1.9]]), 1.0, False, "")
    target = Target.of(stable_search.TRANSFORMS, sketch)
    assert refine(target, sketch, start, silent) == (start, None)
