"""Components that only the pilot rows show are kept, unless the sketch contradicts."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import GaussianMixture, Sketch, decode, design, partial_sketch
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.rare_components import keep_rare_components, lost_components
from dask_sketch.decoders.starts import Start

MEANS = np.zeros((3, 6))
MEANS[1, 0], MEANS[2, 1] = 30.0, 20.0


def mixture_with_rare(rare: float) -> GaussianMixture:
    return GaussianMixture([0.6 - rare, 0.4, rare], MEANS, np.ones((3, 6)))


@pytest.fixture(scope="module")
def rare_sketch() -> Sketch:
    x = mixture_with_rare(0.005).sample(6000, seed=0)
    return partial_sketch(x, design(x, n_components=3, seed=0))


def test_lost_component_is_held_unless_the_sketch_contradicts(rare_sketch: Sketch) -> None:
    mixture, objective = mixture_with_rare(0.005), Objective(rare_sketch)
    start = Start(mixture.weights, mixture.means, mixture.covariances)
    away = np.array([[0.0], [0.0], [5.0]])
    moved = Start(mixture.weights, mixture.means + away, mixture.covariances)
    fits = []
    for each in (start, moved):
        theta = each.atoms(objective)
        cost = objective.cost(each.weights, theta)
        fits.append(Fit(each.weights, theta, cost, True, ""))
    assert lost_components(objective, fits[0], start, 5000).tolist() == [False] * 3
    assert lost_components(objective, fits[1], start, 5000).tolist() == [False, False, True]
    assert keep_rare_components(objective, fits[0], start, 5000) is fits[0]
    kept = keep_rare_components(objective, fits[1], start, 5000)
    assert kept.theta[2] == pytest.approx(start.atoms(objective)[2])
    # a heavy component that is not there costs more than noise
    false = Start(np.array([0.4, 0.3, 0.3]), moved.means, mixture.covariances)
    assert keep_rare_components(objective, fits[0], false, 5000) is fits[0]


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "d", "k"), [(1e4, 3, 3), (100.0, 2, 2)])
@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_few_rows_far_out_are_a_component_without_rows_in_the_sketch(
    scale: float, d: int, k: int, covariance_type: str
) -> None:
    rng = np.random.default_rng(1)
    wide = np.where(rng.random((12_000, 1)) < 0.001, scale, 1.0)
    x, heldout = np.split(wide * rng.normal(size=(12_000, d)), 2)
    sketch = partial_sketch(x, design(x, n_components=k, covariance_type=covariance_type))
    found = decode(sketch, k, covariance_type=covariance_type)
    truth = GaussianMixture([0.999, 0.001], np.zeros((2, d)), [[1.0] * d, [scale**2] * d])
    assert found.score(heldout) > truth.score(heldout) - 0.03
