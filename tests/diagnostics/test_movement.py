"""What has moved: features in standard errors, components paired by place."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, GaussianMixture, Sketch, partial_sketch
from dask_sketch.diagnostics.drift import moved_components, moved_features

MAP = FeatureMap(2, 40, scale=1.0)


def test_features_are_in_standard_errors() -> None:
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a = partial_sketch(rng.normal(scale=[1, 9], size=(300, 2)), MAP)
        b = partial_sketch(rng.normal(scale=[1, 9], size=(50, 2)), MAP)
        found.append(moved_features(a, b).errors)
    assert np.std(found, axis=0) == pytest.approx([1.0, 1.0], rel=0.2)


def test_features_that_moved() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1000, 2))
    found = moved_features(partial_sketch(a, MAP), partial_sketch(b * [1, 2] + [3, 0], MAP))
    assert found.after - found.before == pytest.approx([3, 0], abs=0.3)
    assert found.deviation_after / found.deviation_before == pytest.approx([1, 2], rel=0.1)
    assert found.errors[0] > 50
    assert abs(found.errors[1]) < 4
    same = partial_sketch(np.ones((5, 2)), MAP)
    assert list(moved_features(same, same).errors) == [0.0, 0.0]


def test_components_are_paired_whatever_their_order() -> None:
    rng = np.random.default_rng(3)
    means, order = 10.0 * rng.normal(size=(6, 2)), rng.permutation(6)
    weights = rng.dirichlet(np.ones(6))
    before = GaussianMixture(weights, means, np.ones((6, 2)))
    after = GaussianMixture(weights[order], means[order] + 0.3, np.ones((6, 2)))
    found = moved_components(before, after, Sketch.empty(MAP))
    assert [one.earlier for one in found] == list(order)
    assert [one.weight for one in found] == pytest.approx([one.weight_before for one in found])
    assert [one.distance for one in found] == pytest.approx([0.3] * 6)


def test_components_that_came_and_went() -> None:
    one = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    two = GaussianMixture([0.5, 0.5], [[9.0, 9.0], [0.1, 0.1]], [[1.0, 1.0]] * 2)
    came = moved_components(one, two, Sketch.empty(MAP))
    assert [(part.number, part.earlier) for part in came] == [(0, -1), (1, 0)]
    assert np.isnan(came[0].distance)
    gone = moved_components(two, one, Sketch.empty(MAP))
    assert [(part.number, part.earlier, part.weight) for part in gone] == [(0, 1, 1.0), (-1, 0, 0)]


def test_centroids_move_in_deviations_of_the_samples() -> None:
    sketch = partial_sketch(np.array([[0.0, 0.0], [4.0, 4.0]]), MAP)  # deviation 2
    a, b = Centroids([1.0], [[0.0, 0.0]]), Centroids([1.0], [[1.0, 1.0]])
    assert moved_components(a, b, sketch)[0].distance == pytest.approx(0.5)
