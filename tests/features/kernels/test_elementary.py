from __future__ import annotations

import math

import numpy as np

from dask_sketch.features.kernels.elementary import log_to_base_two, power_of_two


def test_power_of_two():
    exponents = np.random.default_rng(0).uniform(-1000.0, 1000.0, 2000)
    found = np.array([power_of_two(e) for e in exponents])
    np.testing.assert_allclose(found, np.exp2(exponents), rtol=6e-16)
    assert power_of_two(3.0) == 8.0
    assert 0.0 < power_of_two(-1e300) < 1e-300


def test_logarithm():
    x = np.exp(np.random.default_rng(0).uniform(-300.0, 300.0, 2000))
    found = np.array([log_to_base_two(value) for value in x])
    np.testing.assert_allclose(found, np.log2(x), rtol=4e-16)
    near = 1.0 + np.random.default_rng(1).uniform(-0.1, 0.1, 2000)
    exact = [math.log1p(value - 1.0) / math.log(2.0) for value in near]
    np.testing.assert_allclose([log_to_base_two(value) for value in near], exact, rtol=1e-15)
    assert [log_to_base_two(value) for value in (1.0, 8.0, 2.0**-60)] == [0.0, 3.0, -60.0]
