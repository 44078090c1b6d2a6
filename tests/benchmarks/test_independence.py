import numpy as np

from tests.benchmarks import independence


def test_shares_are_counted():
    assert independence.rejections(independence.circle, 1)[1] == 1.0
    x, units = independence.CASES["AR(1) rows, 20 units of 5 to 50 rows"](np.random.default_rng(0))
    assert len(x) == len(units) < 20 * independence.N_ROWS
