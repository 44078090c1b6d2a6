import math

import numpy as np
import pytest

from dask_sketch.distributions.testing.permutations import (
    adjusted_p_values,
    combined_p_value,
    contrasts,
    default_number,
    p_values,
    permutations_of,
    shifts_of,
)
from dask_sketch.errors import InputError


def sides_of(*counts):
    """Sides and strata of units: (number on the first side, on the second) of each stratum."""
    first = [np.repeat([True, False], pair) for pair in counts]
    return np.concatenate(first), np.repeat(np.arange(len(counts)), [sum(p) for p in counts])


@pytest.mark.parametrize(
    ("counts", "total", "alike"),
    [([(3, 3)], 20, 2), ([(2, 4)], 15, 1), ([(2, 2), (1, 1)], 12, 2), ([(2, 2), (1, 2)], 18, 1)],
)
def test_all_assignments_are_listed_where_they_are_few(counts, total, alike):
    first, strata = sides_of(*counts)
    found = permutations_of(first, strata, 50, seed=0)
    assert found.is_complete
    assert len(found.sides) == len(np.unique(found.sides, axis=0)) == total
    np.testing.assert_array_equal(found.sides[0], first)
    assert found.smallest == alike / total
    for code, (a, _) in enumerate(counts):
        assert (found.sides[:, strata == code].sum(axis=1) == a).all()


def test_random_ones_keep_the_strata_and_depend_on_the_seed_alone():
    first, strata = sides_of((10, 10), (3, 7))
    found = permutations_of(first, strata, 99, seed=1)
    assert not found.is_complete
    assert len(found.sides) == 100
    np.testing.assert_array_equal(found.sides[0], first)
    assert (found.sides[:, strata == 0].sum(axis=1) == 10).all()
    assert (found.sides[:, strata == 1].sum(axis=1) == 3).all()
    np.testing.assert_array_equal(found.sides, permutations_of(first, strata, 99, seed=1).sides)
    assert (found.sides != permutations_of(first, strata, 99, seed=2).sides).any()
    assert found.smallest == 0.01


@pytest.mark.parametrize("level", [1e-12, 5e-324])
def test_more_permutations_than_the_memory_holds_are_refused(level):
    first, strata = sides_of((40, 40))
    with pytest.raises(InputError, match=r"n_permutations=\d.* GB"):
        permutations_of(first, strata, default_number(level), seed=0)


def test_shifts_keep_neighbours_together():
    first = np.repeat([True, False], [3, 5])
    found = shifts_of(first)
    assert found.sides.shape == (8, 8)
    np.testing.assert_array_equal(found.sides[0], first)
    assert len({side.tobytes() for side in found.sides}) == 8
    edges = np.count_nonzero(found.sides != np.roll(found.sides, 1, axis=1), axis=1)
    assert (edges == 2).all()
    assert (found.smallest, found.is_complete) == (1 / 8, True)
    assert shifts_of(np.repeat([True, False], 4)).smallest == 2 / 8


def test_contrasts_are_scaled_differences_of_means():
    rng = np.random.default_rng(0)
    masses, values = rng.uniform(1, 5, 9), rng.normal(size=9)
    side = np.arange(9) < 4
    a, b = masses[side].sum(), masses[~side].sum()
    difference = np.average(values[side], weights=masses[side])
    difference -= np.average(values[~side], weights=masses[~side])
    found = contrasts(side[None], masses) @ values
    np.testing.assert_allclose(found, math.sqrt(a * b / (a + b)) * difference)


def test_p_values_count_ties():
    statistics = np.array([[2.0, 2.0 * (1 + 1e-13), 1.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(p_values(statistics), [[0.75, 0.75, 1.0, 0.25], [1.0] * 4])


def test_combined_and_adjusted_p_values_keep_their_level():
    rng = np.random.default_rng(0)
    combined, adjusted = [], []
    for _ in range(300):
        statistics = rng.normal(size=(3, 1)) + rng.normal(size=(3, 100))
        statistics += 3.0 * rng.normal(size=100)  # dependent
        combined.append(combined_p_value(statistics) <= 0.1)
        adjusted.append(adjusted_p_values(p_values(statistics)).min() <= 0.1)
    # three standard errors of a binomial share
    assert abs(np.mean(combined) - 0.1) < 0.052
    assert abs(np.mean(adjusted) - 0.1) < 0.052


def test_a_difference_that_one_statistic_sees_is_found_at_a_small_level():
    statistics = np.random.default_rng(0).chisquare(3.0, size=(16, 1826))
    assert combined_p_value(statistics) > 0.01
    statistics[3, 0] = 100.0
    assert combined_p_value(statistics) == 1 / 1826
    alike = np.concatenate([statistics, statistics * (1.0 + 1e-12)], axis=1)  # sides exchanged
    assert combined_p_value(alike) == 2 / (2 * 1826)


def test_adjusted_p_values_step_down():
    # the second hypothesis is compared with itself alone, once the first one is found
    p = np.array([[0.25, 0.5, 0.75, 1.0], [0.5, 0.25, 1.0, 0.75]])
    np.testing.assert_array_equal(adjusted_p_values(p), [0.5, 0.5])
    np.testing.assert_array_equal(adjusted_p_values(p[:1]), [0.25])
