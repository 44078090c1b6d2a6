"""The components of the pilot are a start where the sketch is of the data of the pilot."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders.pilot_start import pilot_mixture, pilot_start
from dask_sketch.features.design import design_from_pilot

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4000, 2)) + 20.0 * RNG.integers(0, 3, (4000, 1))
MAP = design_from_pilot(X, n_components=3)
SKETCH = partial_sketch(X, MAP)


@pytest.mark.parametrize("n_components", [2, 3, 5])
def test_any_number_of_components(n_components):
    start = pilot_start(SKETCH, n_components)
    assert start.means.shape == start.variances.shape == (n_components, 2)
    assert start.weights.sum() == pytest.approx(1.0)
    if n_components == 3:
        np.testing.assert_allclose(np.sort(start.means[:, 0]), [0, 20, 40], atol=0.3)


def test_no_start_without_a_pilot_or_a_number():
    assert pilot_start(SKETCH, None) is None
    assert pilot_start(partial_sketch(X, FeatureMap(2, 60, scale=1.0)), 3) is None


def test_no_start_for_the_sketch_of_other_data():
    assert pilot_mixture(SKETCH) is not None
    for other in (X[X[:, 0] < 10], 3.0 * X, X + 30.0):
        assert pilot_mixture(partial_sketch(other, MAP)) is None
