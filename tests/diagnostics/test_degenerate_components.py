"""Atoms where they should not be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, decode, partial_sketch
from dask_sketch.diagnostics.degenerate_components import (
    at_boundary,
    at_floor,
    coincident_pairs,
)
from dask_sketch.models import GaussianMixture, StandardErrors, random_mixture

X = np.random.default_rng(0).uniform(-5.0, 5.0, size=(1000, 2))
SKETCH = partial_sketch(X, FeatureMap(2, 20, scale=2.0))


def mixture(means: list[list[float]], variances: list[list[float]]) -> GaussianMixture:
    share = np.full(len(means), 1 / len(means))
    return GaussianMixture(share, means, variances)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("apart", "wider", "coincide"), [(0.4, 1, True), (0.6, 1, False), (0.0, 4, False)]
)
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
def test_gaussians_coincide_within_half_a_deviation(
    apart: float, wider: float, coincide: bool, unit: float
) -> None:
    means = [[0.0, 0.0], [3 * unit, 0.0], [0.0, apart * unit]]
    found = coincident_pairs(
        mixture(means, [[unit**2] * 2, [unit**2] * 2, [wider * unit**2] * 2]), SKETCH
    )
    assert found == (((0, 2),) if coincide else ())


@pytest.mark.parametrize(("apart", "coincide"), [(0.9, True), (1.1, False)])
def test_centroids_coincide_within_half_the_scale(apart: float, coincide: bool) -> None:
    centroids = Centroids([0.5, 0.5], [[0.0, 0.0], [0.0, apart]])  # type: ignore[arg-type]
    assert coincident_pairs(centroids, SKETCH) == (((0, 1),) if coincide else ())


def test_means_at_the_end_of_the_data() -> None:
    top = float(SKETCH.maximum[1])
    means = [[0.0, 0.0], [0.0, top], [0.0, 7.0], [float(SKETCH.minimum[0]), 0.0], [4.0, 4.0]]
    assert at_boundary(mixture(means, [[1.0, 1.0]] * 5), SKETCH) == (1, 2, 3)
    assert at_boundary(Centroids(np.full(5, 0.2), means), SKETCH) == (1, 2, 3)  # type: ignore[arg-type]
    # a value that many rows share is one of the data
    assert at_boundary(mixture(means[1:3], [[1.0, 1e-9], [1.0, 1e-9]]), SKETCH) == (1,)
    # a feature that does not vary has no end
    flat = partial_sketch(X * [1.0, 0.0], FeatureMap(2, 20, scale=2.0))
    assert at_boundary(mixture([[0.0, 0.0]], [[1.0, 1.0]]), flat) == ()


def test_components_without_width() -> None:
    thin = mixture([[0.0, 0.0], [1.0, 1.0]], [[1.0, 1e-6], [1.0, 1e-3]])
    assert at_floor(thin, SKETCH) == (0,)
    assert at_floor(random_mixture(4, 2, seed=0), SKETCH) == ()


@pytest.mark.parametrize("model", ["gaussian", "isotropic"])
@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_components_that_the_decoder_held_at_the_floor(model: str) -> None:
    means = [[0.0, 0.0], [3.0, 3.0]]
    x = np.concatenate([np.random.default_rng(1).normal(mean, 0.01, (500, 2)) for mean in means])
    sketch = partial_sketch(x, FeatureMap(2, 200, scale=0.5))
    assert at_floor(decode(sketch, 2, model=model, variance_floor=0.2), sketch) == (0, 1)
    assert at_floor(decode(sketch, 2, model=model, variance_floor=1e-6), sketch) == ()


def test_errors_of_zero_say_what_was_held() -> None:
    errors = StandardErrors([0.1, 0.1], [[0.1, 0.1]] * 2, [[0.1, 0.1], [0.1, 0.0]])  # type: ignore[arg-type]
    plain = mixture([[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0]] * 2)
    assert at_floor(replace(plain, stderr=errors), SKETCH) == (1,)
