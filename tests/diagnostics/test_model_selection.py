"""Choosing K and the method by a held-out sketch."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, Sketch, decode, partial_sketch, select_model
from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, random_mixture

MAP = FeatureMap(2, 150, scale=1.0)


def sketch_of(truth: GaussianMixture, n: int, seed: int) -> Sketch:
    return partial_sketch(truth.sample(n, seed=seed), MAP)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_three_components_are_chosen_for_three(seed: int) -> None:
    truth = random_mixture(3, 2, seed=seed)
    sketch, heldout = sketch_of(truth, 100_000, seed + 1000), sketch_of(truth, 50_000, seed + 2000)
    models = [decode(sketch, k, method="splitting") for k in (5, 4, 3, 2, 1)]
    choice = select_model(models, heldout)
    assert choice.model is models[2]
    assert choice.selected.index == 2
    costs = [entry.heldout.cost for entry in choice.ranking]
    assert costs == sorted(costs)
    by_index = {entry.index: entry for entry in choice.ranking}
    assert by_index[2].as_good
    assert not by_index[3].as_good
    assert not by_index[4].as_good


def test_the_noise_of_a_difference_is_what_repeated_draws_show() -> None:
    truth = random_mixture(3, 2, seed=1)
    models = [
        GaussianMixture(truth.weights, truth.means + by, truth.covariances) for by in (0.0, 0.05)
    ]
    behind, deviations = [], []
    for seed in range(60):
        first, second = sorted(
            select_model(models, sketch_of(truth, 1000, seed)).ranking,
            key=lambda entry: entry.index,
        )
        behind.append(second.heldout.cost - first.heldout.cost)
        deviations.append(max(first.excess_deviation, second.excess_deviation))
    assert np.mean(deviations) == pytest.approx(np.std(behind), rel=0.25)


def test_centroids_and_mixtures_are_held_against_each_other() -> None:
    truth = random_mixture(3, 2, seed=1)
    centroids = Centroids(truth.weights, truth.means)
    heldout = sketch_of(truth, 5000, 0)
    choice = select_model([centroids, truth], heldout)
    assert choice.model is truth
    assert select_model([centroids], heldout).model is centroids


def test_equal_models_are_equally_good_and_the_smaller_is_chosen() -> None:
    truth = random_mixture(2, 2, seed=1)
    weights = np.append(truth.weights[:1] / 2, [truth.weights[0] / 2, truth.weights[1]])
    twice = GaussianMixture(weights, truth.means[[0, 0, 1]], truth.covariances[[0, 0, 1]])
    assert select_model([twice, truth], sketch_of(truth, 1000, 0)).model is truth


def test_it_prints_as_a_table() -> None:
    truth = random_mixture(3, 2, seed=1)
    centroids = Centroids(truth.weights, truth.means)
    choice = select_model([centroids, truth], sketch_of(truth, 5000, 0))
    for text in (repr(choice), choice._repr_html_()):
        assert "selected" in text
        assert "worse" in text
        assert "Centroids of 3" in text


def test_bad_input() -> None:
    truth = random_mixture(3, 2, seed=1)
    with pytest.raises(InputError, match=r"models=\[\]"):
        select_model([], sketch_of(truth, 100, 0))
    with pytest.raises(InputError, match="heldout 2"):
        select_model([truth, random_mixture(2, 3)], sketch_of(truth, 100, 0))
    with pytest.raises(InputError, match="effective count"):
        select_model([truth], Sketch.empty(MAP))
