"""Drift of a distribution, of its features and of its components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, GaussianMixture, Sketch, partial_sketch
from dask_sketch.diagnostics.drift import (
    Drift,
    component_changes,
    drift,
    drifts_between,
)
from dask_sketch.errors import InputError, MergeError
from dask_sketch.models import random_mixture

MIXTURE = random_mixture(5, 3, seed=1)
MAP = FeatureMap(3, 150, scale=1.0, seed=2)
SPARSE = FeatureMap(3, 150, scale=1.0, seed=2, distribution="sparse-sums")


def sketch_of(n: int, seed: int, shift: float = 0.0, weights: object = None) -> Sketch:
    return partial_sketch(MIXTURE.sample(n, seed=seed) + shift, MAP, weights)


def lacking(n: int, seed: int) -> Sketch:
    """A sketch of rows with missing values: more of them in small data sets."""
    x = MIXTURE.sample(n, seed=seed)
    x[np.random.default_rng(seed).random(x.shape) < (0.1 if n > 500 else 0.3)] = np.nan
    return partial_sketch(x, SPARSE, nan_policy="available")


def null(kind: str, n_draws: int = 80) -> list[Drift]:
    """Drifts where there is none."""
    found = []
    for i in range(n_draws):
        a, b = sketch_of(1000, 2 * i), sketch_of(150, 2 * i + 1)
        shared = 0.0
        if kind == "state that has grown":
            b, shared = a + b, a.squared_weight
        elif kind == "state of which a part was replaced":
            kept = sketch_of(400, 1000 + i)
            a, b, shared = kept + a, kept + b, kept.squared_weight
        elif kind == "missing values":
            a, b = (lacking(n, seed) for n, seed in ((1000, 2 * i), (150, 2 * i + 1)))
            if i % 2:
                b, shared = a + b, a.squared_weight
        elif kind == "weights":
            w = np.random.default_rng(i).uniform(0.2, 3.0, size=150)
            b = partial_sketch(MIXTURE.sample(150, seed=2 * i + 1), MAP, w)
        found.append(drift(a, b, shared=shared, model=MIXTURE, seed=i))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "batches",
        "state that has grown",
        "state of which a part was replaced",
        "weights",
        "missing values",
    ],
)
def test_noise_is_as_large_as_it_says(kind: str) -> None:
    found = null(kind)
    squared = np.array([one.squared for one in found])
    deviation = np.mean([one.deviation for one in found])
    assert abs(squared.mean()) < 4 * deviation / np.sqrt(len(found))
    # the deviation of a deviation, of squares with a long tail: about an eighth
    assert squared.std() == pytest.approx(deviation, rel=0.4)
    assert sum(one.is_alarm(5.0) for one in found) <= 1


def test_it_estimates_the_discrepancy() -> None:
    far = 0.3
    moved = GaussianMixture(MIXTURE.weights, MIXTURE.means + far, MIXTURE.covariances)
    distribution = MIXTURE.characteristic(MAP.frequencies), moved.characteristic(MAP.frequencies)
    expected = np.mean(np.abs(distribution[0] - distribution[1]) ** 2)
    found = [
        drift(sketch_of(1000, 2 * i), sketch_of(500, 2 * i + 1, far), model=MIXTURE).squared
        for i in range(40)
    ]
    assert np.mean(found) == pytest.approx(expected, rel=0.1)


def test_a_shift_is_an_alarm_and_the_tolerance_takes_it_back() -> None:
    found = drift(sketch_of(5000, 1), sketch_of(1000, 2, 0.3), model=MIXTURE)
    assert found.is_alarm(5.0)
    assert found.deviations > 20
    assert not found.is_alarm(5.0, tolerance=1.5 * found.discrepancy)
    assert not found.is_alarm(2.0 * found.deviations)


def test_a_state_that_has_grown_shows_what_the_batch_does() -> None:
    state, batch = sketch_of(5000, 1), sketch_of(500, 2, 0.3)
    alone = drift(state, batch, model=MIXTURE)
    grown = drift(state, state + batch, shared=state.squared_weight, model=MIXTURE)
    assert grown.discrepancy == pytest.approx(alone.discrepancy * 500 / 5500, rel=0.01)
    assert grown.deviations == pytest.approx(alone.deviations, rel=0.05)
    # not knowing what is shared, there seems to be far more noise than there is
    assert drift(state, state + batch, model=MIXTURE).deviations < 0.1 * grown.deviations


def test_without_a_model_it_is_near() -> None:
    a, b = sketch_of(1000, 1), sketch_of(300, 2)
    with_model, without = drift(a, b, model=MIXTURE), drift(a, b)
    assert without.cost == with_model.cost
    assert without.noise_level == with_model.noise_level
    assert without.deviation == pytest.approx(with_model.deviation, rel=0.3)


def test_the_same_is_no_drift() -> None:
    a = sketch_of(100, 1)
    found = drift(a, a, shared=a.squared_weight)
    assert (found.cost, found.noise_level, found.deviations) == (0.0, 0.0, 0.0)
    assert not found.is_alarm(0.0)


def test_constant_samples() -> None:
    one = partial_sketch(np.zeros((50, 3)), MAP)
    other = partial_sketch(np.ones((50, 3)), MAP)
    assert drift(one, other).is_alarm(5.0)
    assert not drift(one, one).is_alarm(5.0)


def test_a_single_sample_is_compared_too() -> None:
    assert not drift(sketch_of(1000, 1), sketch_of(1, 3), model=MIXTURE).is_alarm(5.0)


def test_between_all() -> None:
    parts = {"a": sketch_of(500, 1), "b": sketch_of(500, 2), "c": sketch_of(500, 3, 0.5)}
    found = drifts_between(parts | {"none": Sketch.empty(MAP)}, model=MIXTURE)
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.is_alarm(5.0) for one in found.values()] == [False, True, True]
    assert found["a", "b"].cost == drift(parts["a"], parts["b"]).cost


def test_what_cannot_be_compared() -> None:
    a = sketch_of(10, 1)
    for pair in ((a, Sketch.empty(MAP)), (Sketch.empty(MAP), a)):
        with pytest.raises(InputError, match="a sketch is empty"):
            drift(*pair)
    with pytest.raises(InputError, match=r"shared=11\.0"):
        drift(a, a, shared=11.0)
    other = partial_sketch(np.zeros((5, 3)), FeatureMap(3, 150, scale=1.0, seed=3))
    with pytest.raises(MergeError, match="seed"):
        drift(a, other)


PLANE = FeatureMap(2, 40, scale=1.0)


def test_components_are_paired_whatever_their_order() -> None:
    rng = np.random.default_rng(3)
    means, order = 10.0 * rng.normal(size=(6, 2)), rng.permutation(6)
    weights = rng.dirichlet(np.ones(6))
    before = GaussianMixture(weights, means, np.ones((6, 2)))
    after = GaussianMixture(weights[order], means[order] + 0.3, np.ones((6, 2)))
    found = component_changes(before, after, Sketch.empty(PLANE))
    assert [one.earlier for one in found] == list(order)
    assert [one.weight for one in found] == pytest.approx([one.weight_before for one in found])
    assert [one.distance for one in found] == pytest.approx([0.3] * 6)


def test_components_that_came_and_went() -> None:
    one = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    two = GaussianMixture([0.5, 0.5], [[9.0, 9.0], [0.1, 0.1]], [[1.0, 1.0]] * 2)
    came = component_changes(one, two, Sketch.empty(PLANE))
    assert [(part.number, part.earlier) for part in came] == [(0, -1), (1, 0)]
    assert np.isnan(came[0].distance)
    gone = component_changes(two, one, Sketch.empty(PLANE))
    assert [(part.number, part.earlier, part.weight) for part in gone] == [(0, 1, 1.0), (-1, 0, 0)]


def test_centroids_move_in_deviations_of_the_samples() -> None:
    sketch = partial_sketch(np.array([[0.0, 0.0], [4.0, 4.0]]), PLANE)  # deviation 2
    a, b = Centroids([1.0], [[0.0, 0.0]]), Centroids([1.0], [[1.0, 1.0]])
    assert component_changes(a, b, sketch)[0].distance == pytest.approx(0.5)


def test_features_of_other_names_are_refused():
    names = ("a", "b", "c")
    a, b = (
        partial_sketch(MIXTURE.sample(500, seed=0), replace(MAP, feature_names=given))
        for given in (names, names[::-1])
    )
    one, other = (replace(MIXTURE, feature_names=given) for given in (names, names[::-1]))
    assert drift(a, a, model=one) == drift(a, a, model=MIXTURE)
    for run, argument in (
        (lambda: drift(a, a, model=other), "model"),
        (lambda: drifts_between({"x": a, "y": a}, model=other), "model"),
        (lambda: component_changes(one, other, a), "after"),
        (lambda: component_changes(one, one, b), "sketch"),
    ):
        with pytest.raises(InputError, match=f"feature 0 of {argument} is 'c'; .* 'a'") as caught:
            run()
        assert caught.value.parameter == argument
