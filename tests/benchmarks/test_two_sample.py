import numpy as np

from tests.benchmarks import two_sample


def test_densities_are_perturbed_and_levels_are_counted():
    rng = np.random.default_rng(0)
    (x, units, _), (y, _, _) = two_sample.perturbed_uniforms(rng, 4000, 1, 0.3)
    assert x.min() > 0.0
    assert x.max() < 1.0
    counts, plain = (np.histogram(one, 8, (0.0, 1.0))[0] for one in (x, y))
    assert np.abs(counts - 500).max() > 2 * np.abs(plain - 500).max()
    assert len(np.unique(units)) == two_sample.N_UNITS
    assert two_sample.rejections(two_sample.powers(1)[4])[0] == 1.0
