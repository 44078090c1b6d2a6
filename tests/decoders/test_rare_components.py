from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import GaussianMixture, Sketch, decode, design, partial_sketch
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.expected_loss import expected_loss
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.rare_components import keep_rare_components, lost_components
from dask_sketch.decoders.starts import Start

MEANS = np.zeros((3, 6))
MEANS[1, 0], MEANS[2, 1] = 30.0, 20.0


def truth(rare: float) -> GaussianMixture:
    return GaussianMixture([0.6 - rare, 0.4, rare], MEANS, np.ones((3, 6)))


@pytest.fixture(scope="module")
def rare_sketch() -> Sketch:
    x = truth(0.005).sample(6000, seed=0)
    return partial_sketch(x, design(x, n_components=3, seed=0))


def test_rare_cluster_of_the_pilot_is_kept(rare_sketch: Sketch) -> None:
    mixture = truth(0.005)
    found = decode(rare_sketch, 3)
    heldout = mixture.sample(6000, seed=1)
    assert mixture.score(heldout) - found.score(heldout) < 0.02
    assert found.decoding.cost < found.decoding.noise_level


def test_lost_component_is_held_unless_the_sketch_contradicts(rare_sketch: Sketch) -> None:
    mixture, objective = truth(0.005), Objective(rare_sketch)
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


def test_expected_loss_grows_with_noise() -> None:
    mixture = truth(0.1)
    losses = []
    for n in (2000, 20_000):
        x = mixture.sample(n, seed=0)
        sketch = partial_sketch(x, design(x, n_components=3, seed=0))
        pilot = sketch.feature_map.pilot
        given = mixture.weights, mixture.means, mixture.covariances
        losses.append(expected_loss(sketch, given, pilot.mixture, pilot.n_rows, 0.0))
    assert losses[0] > 5.0 * losses[1] > 0.0
    assert losses[1] < 0.02


def test_components_that_noise_hides_are_warned_of() -> None:
    means = np.random.default_rng(0).uniform(-40.0, 40.0, (6, 12))
    for weights, warned in (([1.0] * 6, False), ([1.0, 0.003] * 3, True)):
        mixture = GaussianMixture(np.array(weights) / sum(weights), means, np.ones((6, 12)))
        x = mixture.sample(6000, seed=0)
        sketch = partial_sketch(x, design(x, n_components=6, seed=0))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            decode(sketch, 6)
        assert any("nats" in str(each.message) for each in caught) == warned
