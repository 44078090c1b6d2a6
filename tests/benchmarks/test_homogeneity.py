import numpy as np
import pytest

from tests.benchmarks import homogeneity


@pytest.mark.slow
def test_shares_are_counted():
    def draw(rng: np.random.Generator) -> homogeneity.Case:
        return homogeneity.units_of(rng, homogeneity.SIX, 50, apart=2.0)

    assert homogeneity.rejections(draw, 1) == 1.0
    assert homogeneity.found_by_each(2.0, 1) == 1.0
    rows = homogeneity.LEVELS["6 groups of 5 units, of 10 to 320 rows by group"]
    units, by, strata = rows(np.random.default_rng(0))
    assert (units.count == 10 * 2**by).all()
    assert strata is None
