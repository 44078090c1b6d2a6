from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.greedy import (
    IHT_ITERATIONS,
    cl_omp,
    cl_ompr,
    grow_until_explained,
    hard_thresholding,
    hierarchical_splitting,
    n_levels,
    n_resolvable,
)
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("algorithm", "n_reports"), [(cl_omp, 3), (cl_ompr, 6)])
def test_atoms_are_found(objective, truth, rng, algorithm, n_reports):
    trace = []
    fit = algorithm(objective, 3, rng, trace.append)
    assert len(trace) == n_reports
    assert trace[-1] == fit.cost < objective.noise_level
    true_theta = objective.space.from_data_units(truth.means, truth.covariances)
    order = [int(np.abs(fit.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(fit.theta[order], true_theta, atol=0.1)


def test_replacement_never_raises_the_cost(rng):
    truth = random_mixture(5, 2, seed=8)
    sketch = partial_sketch(truth.sample(20_000, seed=1), FeatureMap(2, 300, scale=1.0))
    trace = []
    cl_ompr(Objective(sketch), 5, rng, trace.append)
    assert (np.diff(trace[4:]) <= 0).all()


def test_replacement_leaves_a_minimum_in_which_growth_ends():
    # two overlapping pairs: growth alone covers one pair with one atom
    truth = random_mixture(3, 2, seed=13)
    feature_map = FeatureMap(2, 150, scale=1.0, seed=13)
    objective = Objective(partial_sketch(truth.sample(300_000, seed=1013), feature_map))
    grown, replaced = (
        algorithm(objective, 3, np.random.default_rng((0, 0)), lambda cost: None)
        for algorithm in (cl_omp, cl_ompr)
    )
    assert replaced.cost < 0.5 * grown.cost
    assert replaced.cost < objective.noise_level


@pytest.mark.parametrize("n_components", [1, 4])
@pytest.mark.slow
def test_growth_stops_at_the_number_of_components(n_components, rng):
    truth = random_mixture(n_components, 4, seed=n_components)
    feature_map = FeatureMap(4, 400, scale=1.0, seed=1)
    objective = Objective(partial_sketch(truth.sample(100_000, seed=2), feature_map))
    trace = []
    fit = grow_until_explained(objective, 9, rng, trace.append)
    assert len(fit.theta) == n_components
    assert trace[-1] == fit.cost


def test_growth_stops_at_the_largest_number(objective, rng):
    fit = grow_until_explained(objective, 2, rng, lambda cost: None)
    assert len(fit.theta) == 2
    assert fit.cost > objective.noise_level
    assert n_resolvable(5, 12) == 1
    assert n_resolvable(100_000, 2) > n_resolvable(100_000, 12) > 10


def test_hard_thresholding_reports_ten_iterations(objective, rng):
    trace = []
    fit = hard_thresholding(objective, 3, rng, trace.append)
    assert len(trace) == IHT_ITERATIONS
    assert fit.theta.shape == (3, 4)
    assert fit.cost == trace[-1]
    assert fit.cost < objective.cost(np.array([1.0]), np.array([[0.0, 0.0, 3.0, 3.0]]))


def test_hard_thresholding_finds_one_component(rng):
    x = rng.normal(size=(20_000, 2)) + 3.0
    objective = Objective(partial_sketch(x, FeatureMap(2, 60, scale=1.0, seed=1)))
    fit = hard_thresholding(objective, 1, rng, lambda cost: None)
    np.testing.assert_allclose(fit.theta, [[0.0, 0.0, 1.0, 1.0]], atol=0.1)


@pytest.mark.parametrize(
    ("n_components", "levels"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6)]
)
def test_number_of_levels(n_components, levels):
    assert n_levels(n_components) == levels


@pytest.mark.parametrize("n_components", [1, 2, 3, 5])
def test_as_many_atoms_as_asked_for(sketch, n_components):
    objective, trace = Objective(sketch), []
    fit = hierarchical_splitting(objective, n_components, np.random.default_rng(0), trace.append)
    assert fit.theta.shape == (n_components, 4)
    assert len(trace) == n_levels(n_components)
    assert trace[-1] == fit.cost
    assert (fit.cost < objective.noise_level) == (n_components >= 3)
