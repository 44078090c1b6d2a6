import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import compare
from dask_sketch.errors import InputError, MergeError

MAP = FeatureMap(3, 128, scale=1.0)


def frames(rng, n_units, n=40, change=lambda x: x):
    """Sketches of units of dependent rows: autoregressive, around a mean of the unit."""
    x = rng.normal(size=(n_units, n, 3))
    for t in range(1, n):
        x[:, t] = 0.9 * x[:, t - 1] + np.sqrt(1 - 0.9**2) * x[:, t]
    x = change(x + 0.3 * rng.normal(size=(n_units, 1, 3)))
    return partial_sketch(x.reshape(-1, 3), MAP, groups=np.repeat(np.arange(n_units), n))


@pytest.mark.slow
def test_the_level_holds_for_dependent_rows():
    rng = np.random.default_rng(0)
    pairs = [(frames(rng, 8), frames(rng, 12)) for _ in range(80)]
    found = [compare(*pair, n_permutations=99) for pair in pairs]
    # four standard errors of a binomial share
    assert np.mean([one.p_value <= 0.05 for one in found]) < 0.15
    assert np.mean([one.features[0].p_value <= 0.05 for one in found]) < 0.15
    # a noise level of independent rows is exceeded in nearly every case
    assert np.mean([ds.mmd(a.merged(), b.merged(), squared=True) > 0 for a, b in pairs]) > 0.8


@pytest.mark.slow
def test_nights_that_have_grown_and_depend_on_their_neighbours():
    feature_map, p = FeatureMap(2, 40, scale=1.0, seed=1), []
    labels = np.repeat(np.arange(88), np.repeat([20, 200], [80, 8]))
    for seed in range(100):
        rng = np.random.default_rng(seed)
        means = 0.3 * rng.normal(size=(88, 2))
        for k in range(1, 88):
            means[k] = 0.5 * means[k - 1] + np.sqrt(0.75) * means[k]
        x = means[labels] + rng.normal(size=(len(labels), 2))
        units = partial_sketch(x, feature_map, groups=labels)
        sides = units.select(np.arange(88) >= 80), units.select(np.arange(88) < 80)
        p.append(compare(*sides, serial=True, n_permutations=199, seed=seed).p_value)
    assert np.mean(np.array(p) <= 0.1) <= 0.14  # 0.2 without the dependence in the noise


@pytest.mark.slow
def test_few_units_of_unequal_sizes_are_crossed_with_fewer_degrees_of_freedom():
    feature_map, p = FeatureMap(2, 40, scale=1.0, seed=1), []
    labels = np.repeat(np.arange(12), np.repeat([50, 500], 6))
    for seed in range(300):
        x = np.random.default_rng(5_000_000 + seed).normal(size=(len(labels), 2))
        units = partial_sketch(x, feature_map, groups=labels)
        sides = units.select(np.arange(12) >= 6), units.select(np.arange(12) < 6)
        p.append(compare(*sides, method="cross", seed=seed).p_value)
    # 0.09 and 0.03 with the degrees of freedom of equal sizes
    assert np.mean(np.array(p) <= 0.05) <= 0.07
    assert np.mean(np.array(p) <= 0.01) <= 0.015


@pytest.mark.slow
def test_nights_that_depend_on_their_neighbours():
    rng, found = np.random.default_rng(0), {False: [], True: []}
    for _ in range(30):
        offset = 0.5 * rng.normal(size=(60, 1, 3))
        for t in range(1, 60):
            offset[t] = 0.8 * offset[t - 1] + 0.6 * offset[t]
        x = offset + rng.normal(size=(60, 20, 3))
        nights = partial_sketch(x.reshape(-1, 3), MAP, groups=np.repeat(np.arange(60), 20))
        sides = nights.select(nights.labels >= 50), nights.select(nights.labels < 50)
        for serial, p in found.items():
            p.append(compare(*sides, serial=serial, n_permutations=99).p_value)
    rejected = {serial: np.mean(np.array(p) <= 0.1) for serial, p in found.items()}
    assert rejected[True] <= 0.3 < 0.5 < rejected[False]
    assert min(found[True]) >= 1 / 60


def test_a_change_is_found_among_nights_that_depend():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 20, 3)) + 1.5 * (np.arange(60) >= 50)[:, None, None]
    nights = partial_sketch(x.reshape(-1, 3), MAP, groups=np.repeat(np.arange(60), 20))
    sides = nights.select(nights.labels >= 50), nights.select(nights.labels < 50)
    found = compare(*sides, serial=True, strata=np.arange(60) % 7)
    assert (found.p_value, found.n_permutations, found.n_strata) == (1 / 60, 60, 7)
    with pytest.raises(InputError, match=r"level=0\.01 with 10 and 50"):
        compare(*sides, serial=True, level=0.01)


def test_a_wider_feature_is_found_and_named():
    rng = np.random.default_rng(0)
    found = compare(frames(rng, 20), frames(rng, 20, change=lambda x: x * [1.0, 1.0, 2.5]))
    assert found.is_different
    assert found.p_value <= 0.005
    assert found.features[0].name == "feature 2"
    assert found.features[0].p_value <= 0.005
    assert found.features[1].p_value > 0.05
    assert found.features[0].deviations[1] > 2 * found.features[0].deviations[0]
    assert "feature 2" in found.sentence
    low, high = found.interval
    assert 0 < low < found.discrepancy < high


def test_a_tolerance_asks_for_differences_that_matter():
    rng = np.random.default_rng(0)
    sides = frames(rng, 20), frames(rng, 20, change=lambda x: x * 1.5)
    found = compare(*sides)
    assert found.is_different
    accepted = compare(*sides, tolerance=2.0 * found.interval[1])
    assert not accepted.is_different
    assert accepted.p_value == found.p_value
    assert accepted.tolerance_p_value > 0.9
    assert "tolerance" in accepted.sentence


def test_the_sides_may_change_places():
    rng = np.random.default_rng(0)
    a, b = frames(rng, 4), frames(rng, 5, change=lambda x: x + 0.2)
    one, other = compare(a, b), compare(b, a)
    assert one.is_complete
    assert one.n_permutations == 126
    assert (one.p_value, one.n_units) == (other.p_value, other.n_units[::-1])
    np.testing.assert_allclose(one.squared, other.squared)


def test_weekends_are_permuted_with_weekends():
    rng = np.random.default_rng(0)
    weekend = np.array([0, 0, 0, 0, 0, 1, 1] * 2)
    later = np.array([0, 1, 1, 1, 1, 1, 1] * 2)

    def nights(days):
        x = 3.0 * days[:, None, None] + rng.normal(size=(len(days), 50, 3))
        return partial_sketch(x.reshape(-1, 3), MAP, groups=np.repeat(np.arange(len(days)), 50))

    sides = nights(weekend), nights(later)
    assert compare(*sides).is_different
    kinds = np.concatenate([weekend, later])
    found = compare(*sides, strata=kinds)
    assert found == compare(*sides, strata=pd.Series(kinds))
    assert not found.is_different
    assert found.n_strata == 2


def test_results_depend_on_the_seed_alone():
    rng = np.random.default_rng(0)
    sides = frames(rng, 10), frames(rng, 10, change=lambda x: x + 0.3)
    assert compare(*sides, seed=3) == compare(*sides, seed=3)
    assert compare(*sides, seed=3).p_value != compare(*sides, seed=4).p_value


def test_units_without_samples_are_left_out():
    rng = np.random.default_rng(0)
    a, b = frames(rng, 6), frames(rng, 6)
    more = ds.SketchGroup.from_sketches(dict(b.items()) | {99: ds.Sketch.empty(MAP)})
    strata = ["x"] * 13
    assert compare(a, more, strata=strata) == compare(a, b)


def of_sizes(rng, sizes, weights=None):
    """Sketches of units of independent rows, in which each unit has a weight."""
    label = np.repeat(np.arange(len(sizes)), sizes)
    weights = None if weights is None else np.asarray(weights)[label]
    return partial_sketch(rng.normal(size=(len(label), 3)), MAP, weights, groups=label)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[(8, 30), (24, 6)], [(6, 5), (18, 35)]])
@pytest.mark.parametrize("equalised", [False, True])
def test_the_level_holds_for_units_of_other_sizes_and_weights(sizes, equalised):
    rng, found = np.random.default_rng(0), []
    for _ in range(40):
        sides = [np.full(n, size) for n, size in sizes]
        sides = [of_sizes(rng, one, 1.0 / one if equalised else None) for one in sides]
        found.append(compare(*sides, n_permutations=39).p_value <= 0.05)
    # four standard errors of a binomial share
    assert np.mean(found) < 0.19


def test_a_common_factor_of_the_weights_of_a_side_changes_nothing():
    rng, sizes = np.random.default_rng(0), [20, 60] * 4
    label = np.repeat(np.arange(8), sizes)
    x, other = rng.normal(size=(2, len(label), 3))
    first = partial_sketch(x, MAP, np.ones(len(label)), groups=label)
    found = []
    for factor in (1.0, 1024.0):
        second = partial_sketch(other, MAP, np.full(len(label), factor), groups=label)
        found.append(compare(first, second, n_permutations=99))
    assert found[0].p_value == found[1].p_value
    np.testing.assert_allclose(found[0].interval, found[1].interval, rtol=1e-6)


def test_weights_that_hide_the_sizes_of_units_are_named():
    rng = np.random.default_rng(0)
    small, large = of_sizes(rng, [40] * 12), of_sizes(rng, [400] * 12)
    compare(small, large, n_permutations=99)
    heavy = of_sizes(rng, [40] * 12, [10.0] * 12)
    with pytest.warns(UserWarning, match=r"units .* of 40 rows.* of 400"):
        compare(heavy, large, n_permutations=99)
    compare(of_sizes(rng, [120] * 12, [3.3] * 12), large, n_permutations=99)


def test_equal_data_is_not_different():
    group = partial_sketch(np.ones((8, 3)), MAP, groups=np.arange(8))
    found = compare(group, group)
    assert found.p_value == 1.0
    assert found.discrepancy < 1e-12
    assert [one.p_value for one in found.features] == [1.0] * 3


def test_units_of_the_same_rows_have_no_discrepancy_to_find():
    x = np.tile(np.random.default_rng(0).normal(size=(40, 3)), (10, 1))
    group = partial_sketch(x, MAP, groups=np.repeat(np.arange(10), 40))
    found = compare(group, group)
    assert found.interval[1] < 1e-7
    assert "discrepancy" not in found.sentence


def test_it_describes_itself():
    rng = np.random.default_rng(0)
    found = compare(frames(rng, 6), frames(rng, 6))
    assert json.loads(json.dumps(found.as_dict()))["n_units"] == [6, 6]
    assert found.sentence in repr(found)
    assert "feature 0" in repr(found)
    assert "feature 0" in found._repr_html_()


def test_too_few_units_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"level=0\.05 with 3 and 3 units .*0\.1"):
        compare(frames(rng, 3), frames(rng, 3))
    assert compare(frames(rng, 3), frames(rng, 3), level=0.1).smallest_p_value == 0.1
    with pytest.raises(InputError, match="n_permutations=100"):
        compare(frames(rng, 20), frames(rng, 20), level=0.01, n_permutations=50)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"level": 1.0}, r"level=1\.0"),
        ({"level": "5 %"}, "level='5 %'"),
        ({"tolerance": -0.1}, r"tolerance=-0\.1"),
        ({"n_permutations": 0}, "n_permutations=0"),
        ({"seed": -1}, "seed=-1"),
        ({"strata": [1, 2]}, "strata has 2 .* 12 units"),
        ({"strata": "week"}, "strata of type str"),
        ({"strata": [None, *range(11)]}, r"strata\[0\]"),
    ],
)
def test_bad_arguments(arguments, named):
    group = frames(np.random.default_rng(0), 6)
    with pytest.raises(InputError, match=named):
        compare(group, group, **arguments)


def test_bad_sides():
    group = frames(np.random.default_rng(0), 6)
    with pytest.raises(InputError, match="second of type Sketch"):
        compare(group, group.merged())
    with pytest.raises(InputError, match="first has no samples"):
        compare(ds.SketchGroup.empty(MAP), group)
    other = partial_sketch(np.ones((6, 3)), FeatureMap(3, 64, scale=1.0), groups=np.arange(6))
    with pytest.raises(MergeError):
        compare(group, other)


def four_clusters(rng, n, deviation):
    """Four normal distributions 40 apart, one of them of another deviation."""
    cluster = rng.integers(0, 4, n)
    means = np.array([[20.0, 20.0], [-20.0, 20.0], [20.0, -20.0], [-20.0, -20.0]])
    width = np.array([1.0, 1.0, 1.0, deviation])
    return means[cluster] + rng.normal(size=(n, 2)) * width[cluster][:, None]


@pytest.mark.slow
def test_the_pilot_mixture_makes_small_differences_visible():
    def p_values(deviation, pilots):
        """P-values with the mixture of the pilot rows, or without."""
        found = []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            rows = four_clusters(rng, 2000, 1.0), four_clusters(rng, 2000, deviation)
            designed = ds.design(np.concatenate(rows), task="comparison", n_pilot=2000)
            units = np.arange(2000) % 16
            for has_pilot in pilots:
                feature_map = designed if has_pilot else designed.with_pilot(None)
                sides = [partial_sketch(x, feature_map, groups=units) for x in rows]
                found.append(compare(*sides, n_permutations=99).p_value)
        return np.reshape(found, (-1, len(pilots))).T

    assert np.mean(p_values(1.0, [True])[0] <= 0.05) <= 0.25
    with_pilot, without = p_values(1.25, [True, False])
    assert (with_pilot <= 0.05).all()
    assert with_pilot.mean() < 0.6 * without.mean()


def test_a_change_of_shape_is_named():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(2, 1200, 3))
    # two values with noise, of the same mean and variance
    sides[1, :, 1] = 0.9 * np.sign(sides[1, :, 1]) + np.sqrt(0.19) * rng.normal(size=1200)
    designed = ds.design(np.concatenate(sides), task="comparison", n_pilot=1000)
    groups = [partial_sketch(x, designed, groups=np.arange(1200) % 12) for x in sides]
    found = compare(*groups, n_permutations=199)
    assert found.is_different
    assert found.features[0].name == "feature 1"
    assert found.features[0].p_value <= 0.05
    assert found.features[1].p_value > 0.05


def test_too_few_units_to_find_anything():
    x = np.random.default_rng(0).normal(size=(60, 3))
    units = partial_sketch(x, MAP, groups=np.repeat(np.arange(6), 10))
    found = compare(units.select(np.arange(6) < 3), units.select(np.arange(6) >= 3), level=0.2)
    unlimited = replace(found, interval=(0.0, 2.0))
    assert "too few units" in unlimited.sentence
    assert "above 0.5 would" in replace(found, interval=(0.0, 0.5)).sentence
