import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions.testing.row_noise import observe

MAP = FeatureMap(2, 40, scale=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("weigh", [None, np.ones_like, lambda x: np.exp(0.5 * x)])
def test_noise_is_the_variance_of_the_difference(weigh, pooled):
    """Importance weights on one side of fewer rows, whose variance depends on the values."""
    rng, observed = np.random.default_rng(0), []
    for repeat in range(60):
        x = rng.normal(size=(400, 2))
        weights = None if weigh is None else weigh(x[:, 0])
        shift = [0.5, 0.0] if weigh is not None and np.ptp(weights) else [0.0, 0.0]
        first = partial_sketch(x, MAP, weights, sample=300, position=2000 * repeat)
        second = partial_sketch(
            rng.normal(shift, size=(1000, 2)), MAP, sample=300, position=2000 * repeat + 1000
        )
        observed.append(observe(first, second, pooled=pooled))
    squares = np.array([one.difference @ one.difference for one in observed])
    noise = np.array([one.factor * np.sum(one.noise**2) for one in observed])
    error = np.hypot(squares.std(), noise.std()) / np.sqrt(len(squares))
    assert abs(squares.mean() - noise.mean()) < 4 * error
    assert error < 0.1 * noise.mean()
    unbiased = np.array([one.effect().squared for one in observed])
    assert abs(unbiased.mean()) < 4 * unbiased.std() / np.sqrt(len(unbiased))
