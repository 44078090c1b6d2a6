from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dask_sketch import Sketch, partial_sketch
from dask_sketch.features import FeatureMap
from dask_sketch.models import GaussianMixture, random_mixture


def _exact_sketch(mixture: GaussianMixture, feature_map: FeatureMap, count: int = 10**8) -> Sketch:
    """The sketch that infinitely many samples of the mixture would have, with a stated count."""
    center, omega = feature_map.center, feature_map.frequencies
    mean = mixture.mean - center
    return Sketch.from_sums(
        feature_map,
        moment_sum=count * np.exp(1j * (center @ omega)) * mixture.characteristic(omega),
        total_weight=float(count),
        squared_weight=float(count),
        count=count,
        first_moment=count * mean,
        second_moment=count * (mixture.variance + mean**2),
        minimum=mixture.means.min(axis=0) - 5.0,
        maximum=mixture.means.max(axis=0) + 5.0,
    )


@pytest.fixture
def exact_sketch() -> Callable[..., Sketch]:
    return _exact_sketch


@pytest.fixture
def truth() -> GaussianMixture:
    return random_mixture(3, 2, seed=9)


@pytest.fixture
def samples(truth: GaussianMixture) -> np.ndarray:
    return truth.sample(60_000, seed=5)


@pytest.fixture
def sketch(samples: np.ndarray) -> Sketch:
    return partial_sketch(samples, FeatureMap(2, 150, scale=1.0, seed=6, dtype="float64"))
