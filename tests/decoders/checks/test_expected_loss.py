from __future__ import annotations

import numpy as np

from dask_sketch import GaussianMixture, design, partial_sketch
from dask_sketch.decoders.checks.expected_loss import expected_loss


def test_expected_loss_grows_with_noise() -> None:
    means = np.zeros((3, 6))
    means[1, 0], means[2, 1] = 30.0, 20.0
    mixture = GaussianMixture([0.5, 0.4, 0.1], means, np.ones((3, 6)))
    losses = []
    for n in (2000, 20_000):
        x = mixture.sample(n, seed=0)
        sketch = partial_sketch(x, design(x, n_components=3, seed=0))
        pilot = sketch.feature_map.pilot
        given = mixture.weights, mixture.means, mixture.covariances
        losses.append(expected_loss(sketch, given, pilot.mixture, pilot.n_rows, 0.0))
    assert losses[0] > 5.0 * losses[1] > 0.0
    assert losses[1] < 0.02
