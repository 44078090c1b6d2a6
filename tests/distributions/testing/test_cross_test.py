import numpy as np
import pytest

from dask_sketch import FeatureMap, design, partial_sketch
from dask_sketch.distributions import compare
from dask_sketch.errors import InputError

MAP = FeatureMap(2, 64, scale=1.0)


def units(rng, sizes, feature_map=MAP, *, shift=0.0):
    """Sketches of units of rows around a mean of each."""
    label = np.repeat(np.arange(len(sizes)), sizes)
    means = 0.3 * rng.normal(size=(len(sizes), 2))
    x = means[label] + rng.normal(size=(len(label), 2)) + [0.0, shift]
    return partial_sketch(x, feature_map, groups=label)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [([40] * 3, [40] * 3), ([40] * 5, [40] * 8), ([9, 99] * 2,) * 2])
def test_the_level_holds(sizes):
    rng = np.random.default_rng(0)
    found = [compare(*(units(rng, n) for n in sizes), method="cross") for _ in range(50)]
    # four standard errors of a binomial share
    assert np.mean([one.p_value <= 0.05 for one in found]) < 0.18
    assert np.mean([one.features[0].p_value <= 0.05 for one in found]) < 0.18
    assert np.mean([one.p_value for one in found]) > 0.35


def test_a_difference_that_permutations_cannot_find():
    rng = np.random.default_rng(0)
    sides = units(rng, [400] * 4), units(rng, [400] * 4, shift=3.0)
    with pytest.raises(InputError, match=r"level=0\.01 with 4 and 4 .*method='cross'"):
        compare(*sides, level=0.01)
    found = compare(*sides, level=0.01, method="cross")
    assert found.is_different
    assert (found.method, found.smallest_p_value) == ("cross", 0.0)
    assert (found.features[0].name, found.features[1].p_value > 0.05) == ("feature 1", True)
    assert found.interval[0] > 0.0
    assert "cross" in repr(found)


def test_splits_are_all_or_random():
    rng = np.random.default_rng(0)
    few = [units(rng, [40] * 3) for _ in range(2)]
    found = compare(*few, method="cross", seed=1)
    assert (found.n_permutations, found.is_complete) == (9, True)
    assert found == compare(*few, method="cross", seed=2)
    many = [units(rng, [40] * 9) for _ in range(2)]
    found = compare(*many, method="cross", seed=1)
    assert (found.n_permutations, found.is_complete) == (50, False)
    assert found == compare(*many, method="cross", seed=1)
    assert found.p_value != compare(*many, method="cross", seed=2).p_value


def test_the_pilot_mixture_makes_small_differences_visible():
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, label = 40.0 * rng.integers(0, 2, (2, 1200, 2)), np.arange(1200) % 4
        x += rng.normal(size=x.shape) * np.array([1.0, 1.3])[:, None, None]
        designed = design(
            np.concatenate(x), n_frequencies=96, task="comparison", n_pilot=1000, seed=seed
        )
        for feature_map in (designed, designed.with_pilot(None)):
            sides = [partial_sketch(rows, feature_map, groups=label) for rows in x]
            found.append(compare(*sides, method="cross").p_value)
    assert np.mean(found[::2]) < 0.5 * np.mean(found[1::2])


def test_few_units_of_rare_values_hold_their_level():
    """Units are often equal by chance: before, 18 % were found different at a level of 5 %."""
    found = []
    for seed in range(200):
        x = (np.random.default_rng(seed).random((23 * 30, 2)) < 0.02).astype(float)
        days = partial_sketch(x, MAP, groups=np.repeat(np.arange(23), 30))
        sides = days.select(days.labels < 3), days.select(days.labels >= 3)
        found.append(compare(*sides, method="cross", seed=seed))
    assert np.mean([test.p_value <= 0.05 for test in found]) < 0.08
    assert np.mean([test.features[0].p_value <= 0.05 for test in found]) < 0.08


def test_units_that_do_not_vary():
    same, other = (partial_sketch(np.full((4, 2), v), MAP, groups=np.arange(4)) for v in (1, 2))
    found = compare(same, same, method="cross")
    assert [found.p_value, *(one.p_value for one in found.features)] == pytest.approx([1.0] * 3)
    assert compare(same, other, method="cross").p_value < 1e-9


@pytest.mark.parametrize(
    ("counts", "arguments", "named"),
    [
        ((2, 8), {}, "method='cross' with 2 and 8 units"),
        ((4, 4), {"strata": [0, 1] * 4}, "strata of type list with method='cross'"),
        ((4, 4), {"serial": True}, "serial=True with method='cross'"),
        ((4, 4), {"n_permutations": 99}, "n_permutations=99 with method='cross'"),
        ((4, 4), {"method": "split"}, "method='split'"),
    ],
)
def test_bad_arguments(counts, arguments, named):
    rng = np.random.default_rng(0)
    sides = [units(rng, [10] * n) for n in counts]
    with pytest.raises(InputError, match=named):
        compare(*sides, **{"method": "cross"} | arguments)
