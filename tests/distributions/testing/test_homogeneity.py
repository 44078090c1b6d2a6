"""Test whether many groups of sketches are of one distribution."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, SketchGroup, partial_sketch
from dask_sketch.distributions import compare, compare_all
from dask_sketch.errors import InputError

MAP = FeatureMap(2, 40, scale=1.0)


def files(
    n: int, shifts: np.ndarray | None = None, *, seed: int = 0, n_rows: int = 40
) -> SketchGroup:
    """Rows of each file around a mean of that file, whose second feature is shifted."""
    rng = np.random.default_rng(seed)
    file = np.arange(n_rows * n) % n
    x = rng.normal(size=(len(file), 2)) + 0.2 * rng.normal(size=(n, 2))[file]
    if shifts is not None:
        x[:, 1] += shifts[file]
    return partial_sketch(x, MAP, groups=file, dim="file")


def test_small_differences_of_many_groups_are_found() -> None:
    machine = np.arange(60) % 12
    shifts = np.r_[-0.7, np.linspace(-0.2, 0.2, 10), 0.7]
    found = compare_all(files(60, shifts[machine]), machine)
    assert found.is_different
    assert (found.features[0], found.dim) == ("feature 1", "file")
    assert found.feature_p_values[0] <= 0.05 < found.feature_p_values[1]
    assert set(found.labels[:2]) == {0, 11}  # the farthest from all
    assert list(found.discrepancies) == sorted(found.discrepancies, reverse=True)
    assert found.n_units == (5,) * 12
    for text in (repr(found), found._repr_html_()):
        assert "12 groups are not of one distribution" in text
    assert found.as_dict()["is_different"]


def test_groups_of_one_distribution() -> None:
    names = np.array([f"m{k % 6}" for k in range(48)], dtype=object)
    names[:2] = None
    found = compare_all(files(48), names)
    assert not found.is_different
    assert sum(found.n_units) == 46
    assert set(found.labels) == {f"m{k}" for k in range(6)}
    assert "No difference among 6 groups" in found.sentence


def test_two_groups_are_those_of_the_test_of_two() -> None:
    side = np.arange(30) % 3 == 0
    units = files(30, 0.3 * side)
    pair = compare(units.select(side), units.select(~side))
    found = compare_all(units, side)
    part = side.mean()
    assert found.squared == pytest.approx(part * (1.0 - part) * pair.squared)
    error = np.sqrt(pair.p_value * (1.0 - pair.p_value) / 1000)
    assert found.p_value == pytest.approx(pair.p_value, abs=6 * error)  # of other permutations
    names = [one.name for one in pair.features]
    assert list(found.features) == names


@pytest.mark.slow
def test_discrepancies_are_without_noise() -> None:
    """The mean over repeats is that of the distributions; one unit is alone in its group."""
    machine = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    shifts = np.array([0.0, 0.5, 1.0, 1.5])
    found = [
        compare_all(files(9, shifts[machine], seed=seed), machine, level=0.1, n_permutations=19)
        for seed in range(80)
    ]
    means = np.column_stack([np.zeros(4), shifts])
    spread = 1.0 + 0.2**2  # of rows, and of the means of files
    transforms = np.exp(
        -1j * means @ MAP.frequencies - 0.5 * spread * np.sum(MAP.frequencies**2, 0)
    )
    part = np.bincount(machine) / len(machine)
    exact = np.mean(np.abs(transforms - part @ transforms) ** 2, axis=1)
    squares = np.array([one.squared for one in found])
    assert squares.mean() == pytest.approx(part @ exact, abs=4 * squares.std() / np.sqrt(80))
    for group in range(4):
        places = [one.labels.index(group) for one in found]
        of_group = [one.discrepancies[k] for one, k in zip(found, places, strict=True)]
        assert np.median(of_group) == pytest.approx(np.sqrt(exact[group]), rel=0.3)
    root = np.sqrt(part @ exact)
    covered = np.mean([one.interval[0] <= root <= one.interval[1] for one in found])
    assert covered >= 0.8  # 0.9 but for three deviations of a binomial share


@pytest.mark.slow
def test_intervals_contain_zero_where_groups_are_alike() -> None:
    machine = np.arange(24) % 6
    found = [compare_all(files(24, seed=seed), machine, n_permutations=19) for seed in range(60)]
    assert np.mean([one.interval[0] == 0.0 for one in found]) >= 0.87
    assert max(one.interval[1] for one in found) < 0.2
    alone = compare_all(files(7), np.r_[np.arange(6), 0], level=0.5, n_permutations=19)
    assert alone.interval == (0.0, 2.0)  # one distance says nothing of its variance


@pytest.mark.slow
def test_level() -> None:
    p = []
    by = np.repeat(np.arange(4), [2, 3, 4, 6])
    for seed in range(120):
        rng = np.random.default_rng(seed)
        unit = np.repeat(np.arange(15), rng.integers(10, 40, 15))
        x = rng.normal(size=(len(unit), 2)) + 0.3 * rng.normal(size=(15, 2))[unit]
        units = partial_sketch(x, FeatureMap(2, 16, scale=1.0), groups=unit)
        p.append(compare_all(units, by, n_permutations=99, seed=seed).p_value)
    share = np.mean(np.array(p) <= 0.1)
    assert 0.02 < share < 0.2  # three deviations of a binomial share


def test_strata_are_no_difference() -> None:
    stratum, machine = np.repeat([0, 1], 12), np.repeat([0, 1, 0, 1], [10, 2, 2, 10])
    units = files(24, 3.0 * stratum)
    assert compare_all(units, machine).is_different
    within = compare_all(units, machine, strata=stratum)
    assert not within.is_different
    assert within.n_strata == 2


def test_unlike_units_warn() -> None:
    unit = np.repeat(np.arange(8), np.repeat([200, 20], 4))
    units = partial_sketch(np.random.default_rng(0).normal(size=(len(unit), 2)), MAP, groups=unit)
    with pytest.warns(UserWarning, match="20 rows, .* 200"):
        compare_all(units, np.arange(8) // 4)


def test_what_has_no_level_is_refused() -> None:
    units, machine = files(16), np.arange(16) % 8
    with pytest.raises(InputError, match=r"level=0\.05 with 16 units \(file\) in 16 groups") as one:
        compare_all(units, np.arange(16))
    assert one.value.parameter == "level"
    with pytest.raises(InputError, match=r"level=0\.05 with 4 units .* under 0\.33"):
        compare_all(units.select([0, 1, 2, 3]), [0, 0, 1, 1])
    with pytest.raises(InputError, match="level=0.01.* n_permutations=100"):
        compare_all(units, machine, level=0.01, n_permutations=50)
    with pytest.raises(InputError, match="fewer strata"):
        compare_all(units, machine, strata=np.arange(16))
    with pytest.raises(InputError, match=r"by has shape \(15,\)"):
        compare_all(units, machine[1:])
    with pytest.raises(InputError, match=r"by has shape \(16, "):
        compare_all(units, ["a", []] * 8)
    with pytest.raises(InputError, match="by has 1 labels"):
        compare_all(units, machine * 0)
    with pytest.raises(InputError, match="units of type list"):
        compare_all([units], machine)
