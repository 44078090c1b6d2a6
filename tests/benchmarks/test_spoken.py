import numpy as np

from tests.benchmarks import spoken


def test_shapes_that_moments_do_not_see_are_learnt():
    rng, y = np.random.default_rng(0), np.array(["a", "b"] * 18)
    frames = [rng.normal(size=(60, 1)) for _ in y]
    for k in range(0, len(y), 2):
        frames[k] = np.sign(frames[k]) * (0.95 + 0.3 * rng.normal(size=(60, 1)))
    moments, sketches = spoken.errors(frames, y, np.arange(len(y)) // 18, 20)
    assert sketches < 0.1 < 0.25 < moments
