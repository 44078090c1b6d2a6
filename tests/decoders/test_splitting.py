from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels


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
