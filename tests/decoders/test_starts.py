from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.names import MODELS
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.starts import Start, find_atom


@pytest.mark.parametrize("model", MODELS)
def test_a_lone_component_is_found(sketch, truth, model):
    covariance = truth.covariances[1] if model == "known" else None
    objective = Objective(sketch, model, covariance=covariance)
    component = objective.space.from_data_units(truth.means[1:2], truth.covariances[1:2])
    residual = tuple(objective.atoms(component).reshape(2, -1))
    atom = find_atom(objective, residual, np.random.default_rng(0))
    np.testing.assert_allclose(atom, component[0], atol=0.02)


def test_without_a_residual_the_atom_is_at_the_centre(sketch):
    objective = Objective(sketch)
    nothing = (np.zeros(objective.n_frequencies), np.zeros(objective.n_frequencies))
    atom = find_atom(objective, nothing, np.random.default_rng(0))
    expected = objective.space.random_atoms(np.random.default_rng(0), 1)[0]
    np.testing.assert_array_equal(atom, expected)


def test_a_start_has_the_nearest_atoms(sketch, truth):
    start = Start(truth.weights, truth.means, truth.covariances)
    space = Objective(sketch, "isotropic").space
    means, variances = space.to_data_units(start.atoms(Objective(sketch, "isotropic")))
    np.testing.assert_allclose(means, truth.means)
    expected = np.repeat(truth.covariances.mean(axis=1, keepdims=True), 2, axis=1)
    np.testing.assert_allclose(variances, expected)
