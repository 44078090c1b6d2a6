import re

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import compare
from dask_sketch.distributions.testing.power_criterion import fold_of
from dask_sketch.distributions.testing.units import units_of
from dask_sketch.errors import InputError

MAP = FeatureMap(1, 256, covariances=[[1.0], [0.0025]], distribution="gaussian")


def units(rng, n_units, *, shift=0.0, ripple=0.0):
    """Sketches of units of rows, which are shifted, or drawn to multiples of a half."""
    x = rng.normal(size=(n_units, 60)) + 0.1 * rng.normal(size=(n_units, 1)) + shift
    x = (1.0 - ripple) * x + ripple * np.round(2.0 * x) / 2.0
    return partial_sketch(x.reshape(-1, 1), MAP, groups=np.repeat(np.arange(n_units), 60))


@pytest.mark.slow
def test_the_level_holds():
    rng, p = np.random.default_rng(0), []
    for seed in range(40):
        sides = units(rng, 10), units(rng, 10)
        p.append(compare(*sides, fold=0.4, n_permutations=39, seed=seed).p_value)
    # four standard errors of a binomial share
    assert np.mean(np.array(p) <= 0.05) < 0.19
    assert 0.3 < np.mean(p) < 0.75


def test_the_statistic_has_the_size_of_the_difference():
    rng, lengths = np.random.default_rng(0), []
    for difference in ({"shift": 0.5}, {"ripple": 0.4}):
        found = compare(units(rng, 20), units(rng, 20, **difference), fold=0.3, n_permutations=99)
        assert found.p_value <= 0.02
        assert found.n_units == (20, 20)
        least = re.search(r"lengths ([\d.e+-]+) to", found.statistic)
        lengths.append(float(least[1]))
    assert lengths[0] < 2.0 < 5.0 < lengths[1]


def test_folds_are_of_all_strata_and_sides():
    rng = np.random.default_rng(0)
    strata = np.arange(30) % 2
    both = units_of(units(rng, 10), units(rng, 20), strata)
    chosen = fold_of(both, 0.4, seed=0)
    counts = [
        int((chosen & (both.first == first) & (both.strata == stratum)).sum())
        for first in (True, False)
        for stratum in (0, 1)
    ]
    assert counts == [2, 2, 4, 4]
    assert (chosen != fold_of(both, 0.4, seed=1)).any()
    first, second = units(rng, 10), units(rng, 20)
    found = compare(first, second, strata=strata, fold=0.4, n_permutations=99)
    assert found.n_strata == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"fold": 0.1}, r"fold=0\.1 has 1 and 1 units"),
        ({"fold": 1.0}, r"fold=1\.0"),
        ({"fold": 0.9999}, r"fold=0\.9999 .* leaves 0 and 0"),
        ({"fold": 0.7}, r"level=0\.05 with 3 and 3"),
        ({"fold": 0.4, "serial": True}, r"fold=0\.4 with serial=True"),
        ({"fold": 0.4, "method": "cross"}, r"fold=0\.4 with method='cross'"),
    ],
)
def test_bad_arguments(arguments, named):
    rng = np.random.default_rng(0)
    sides = units(rng, 10), units(rng, 10)
    with pytest.raises(InputError, match=named):
        compare(*sides, **arguments)
