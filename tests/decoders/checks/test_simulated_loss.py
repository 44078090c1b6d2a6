"""Losses by the noise of a sketch that simulations state, beside those of fits to other rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, partial_sketch
from dask_sketch.decoders.checks.simulated_loss import simulated_loss, warn_of_noise
from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.problem import Problem
from dask_sketch.validation.threads import SERIAL

TRUTH = GaussianMixture(
    [0.5, 0.3, 0.2],
    np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 3.0], [0.0, -8.0, 8.0]]),
    np.ones((3, 3)),
)


def fitted(n_rows, seed=0, weights=None):
    """Problem, objective and the minimum near the truth."""
    feature_map = FeatureMap.from_scales(3, 300, smallest=1.0, largest=16.0)
    sketch = partial_sketch(TRUTH.sample(n_rows, seed=seed), feature_map, weights)
    problem = Problem(sketch, 3, "cl-ompr", "gaussian")
    objective = problem.objective(SERIAL)
    theta = objective.space.from_data_units(TRUTH.means, TRUTH.variances)
    return problem, objective, descend_fully(objective, theta, TRUTH.weights)


def true_loss(objective, fit):
    means, variances = objective.space.to_data_units(fit.theta)
    found = GaussianMixture(fit.weights / fit.weights.sum(), means, variances)
    heldout = TRUTH.sample(50_000, seed=99)
    return TRUTH.score(heldout) - found.score(heldout)


def test_simulated_losses_are_those_of_fits_to_the_truth():
    problem, objective, fit = fitted(2_000)
    losses = [true_loss(*fitted(2_000, seed)[1:]) for seed in range(8)]
    loss, cost = simulated_loss(problem, objective, fit, SERIAL)
    assert np.mean(losses) / 4 < loss < 4 * np.mean(losses)
    assert cost / 2 < fit.cost / objective.noise_level < 2 * cost


def test_the_loss_falls_with_the_number_of_rows():
    few, many = (simulated_loss(*fitted(n), SERIAL)[0] for n in (500, 400_000))
    assert 0.0 < many < few / 50  # rows are simulated up to a number


def test_few_rows_are_warned_of():
    problem, objective, fit = fitted(100)
    with pytest.warns(UserWarning, match=r"about 0\.\d+ nats .* of a sketch of 100 samples"):
        warn_of_noise(problem, objective, fit, SERIAL)


def test_a_poor_minimum_is_warned_of():
    problem, objective, fit = fitted(20_000)
    moved = fit.theta.copy()
    while objective.cost(fit.weights, moved) < 2.0 * objective.noise_level:
        moved[2, 0] += 1e-3
    poor = Fit(fit.weights, moved, objective.cost(fit.weights, moved), converged=False)
    with pytest.warns(
        UserWarning, match="noise levels, and that of a simulation of such a mixture is"
    ):
        warn_of_noise(problem, objective, poor, SERIAL)


def test_a_cost_that_every_decoding_warns_of_is_left_out():
    problem, objective, fit = fitted(20_000)
    moved = fit.theta + 1.0
    poor = Fit(fit.weights, moved, objective.cost(fit.weights, moved), converged=False)
    assert poor.cost > 100.0 * objective.noise_level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_noise(problem, objective, poor, SERIAL)


def test_a_mixture_that_the_sketch_determines_is_not_warned_of():
    problem, objective, fit = fitted(20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_noise(problem, objective, fit, SERIAL)
