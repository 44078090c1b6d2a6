import warnings

import dask.array as da
import numpy as np
import pytest
from scipy import stats

from dask_sketch import design, merge, partial_sketch, privatise, sketch
from dask_sketch.distributions import compare, compare_rows
from dask_sketch.errors import InputError, MergeError
from dask_sketch.features.frequency_pairs import n_pairs


def paired_map(rows, n_bases=32, seed=0):
    return design(
        rows,
        task="comparison",
        distribution="gaussian-pairs",
        n_frequencies=n_pairs(n_bases),
        seed=seed,
    )


def sides(rng, n=4000, shift=0.0, width=1.0, d=3):
    first, second = rng.standard_t(4, size=(2, n, d))
    second[:, 1] = width * second[:, 1] + shift
    return first, second


def test_differences_are_found_without_random_rows(rng):
    first, second = sides(rng, width=1.4)
    feature_map = paired_map(np.concatenate([first, second]))
    a, b = (partial_sketch(x, feature_map) for x in (first, second))
    assert a.sample is None
    found = compare_rows(a, b)
    assert found.is_different
    assert found.p_value == found.smallest_p_value
    low, high = found.interval
    assert 0.0 < low < found.discrepancy < high
    assert found.n_units == (4000, 4000)


def test_a_shift_is_found_in_its_feature(rng):
    first, second = sides(rng, shift=0.3)
    feature_map = paired_map(np.concatenate([first, second]))
    found = compare_rows(*(partial_sketch(x, feature_map) for x in (first, second)))
    assert found.features[0].name == "feature 1"
    assert found.features[0].p_value < 1e-3
    assert min(one.p_value for one in found.features[1:]) > 0.01
    assert found.features[0].means == pytest.approx((first[:, 1].mean(), second[:, 1].mean()))


def test_single_frequencies_find_another_shape_in_its_feature(rng):
    first, second = sides(rng, width=1.5, d=2)
    feature_map = paired_map(np.concatenate([first, second]), n_bases=64)
    found = compare_rows(*(partial_sketch(x, feature_map) for x in (first, second)))
    assert found.features[0].name == "feature 1"
    assert found.features[0].p_value < 0.01


def test_units_are_whitened_by_the_covariance_of_rows(rng):
    first, second = sides(rng, width=1.4)
    feature_map = paired_map(np.concatenate([first, second]))
    unit = np.arange(4000) % 20
    a, b = (partial_sketch(x, feature_map, groups=unit) for x in (first, second))
    assert compare(a, b).is_different
    assert not compare(a.select(unit[:20] < 10), a.select(unit[:20] >= 10)).is_different


def test_chunks_and_order_change_nothing(rng):
    first, second = sides(rng, width=1.1)
    feature_map = paired_map(np.concatenate([first, second]))
    a, b = (partial_sketch(x, feature_map) for x in (first, second))
    parts = [partial_sketch(x, feature_map) for x in np.array_split(rng.permutation(first), 7)]
    assert compare_rows(merge(parts), b) == compare_rows(a, b)


def test_too_few_rows_are_refused(rng):
    first, second = sides(rng, n=1500)
    feature_map = paired_map(np.concatenate([first, second]))
    a, b = (partial_sketch(x, feature_map) for x in (first, second))
    with pytest.raises(InputError, match="1,500") as caught:
        compare_rows(a, b)
    assert caught.value.parameter == "first"


def test_weights_are_warned_of(rng):
    first, second = sides(rng)
    feature_map = paired_map(np.concatenate([first, second]))
    a = partial_sketch(first, feature_map, weights=rng.exponential(size=4000))
    with pytest.warns(UserWarning, match="first has rows with weights"):
        compare_rows(a, partial_sketch(second, feature_map))


def test_other_maps_and_kinds_are_refused(rng):
    first, second = sides(rng)
    a = partial_sketch(first, paired_map(first))
    with pytest.raises(MergeError):
        compare_rows(a, partial_sketch(second, paired_map(first, seed=1)))
    with pytest.raises(InputError, match="second of type"):
        compare_rows(a, second)


def private(rows, feature_map, seed):
    bounds = [[-20.0] * rows.shape[1], [20.0] * rows.shape[1]]
    return privatise(partial_sketch(rows, feature_map), 2.0, 1e-6, bounds=bounds, seed=seed)


def test_private_sketches_are_compared_with_their_noise(rng):
    first, second = (np.clip(x, -20.0, 20.0) for x in sides(rng, n=40_000, width=1.5, d=2))
    feature_map = paired_map(np.concatenate([first, second]))
    a, b = private(first, feature_map, 1), private(second, feature_map, 2)
    found = compare_rows(a, b)
    assert found.is_different
    assert found.features == ()
    halves = np.array_split(first, 2)
    same = compare_rows(*(private(x, feature_map, seed) for seed, x in enumerate(halves)))
    assert not same.is_different


@pytest.mark.slow
@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("n_bases", [32, 64])
def test_the_level_holds_for_heavy_tails(n_bases, is_private):
    hits, repeats = 0, 200
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        first = np.clip(rng.standard_t(3, size=(2_500, 3)), -20.0, 20.0)
        second = np.clip(rng.standard_t(3, size=(8_000, 3)), -20.0, 20.0)
        feature_map = paired_map(np.concatenate([first, second]), n_bases=n_bases, seed=seed)
        if is_private:
            both = private(first, feature_map, 2 * seed), private(second, feature_map, 2 * seed + 1)
        else:
            both = partial_sketch(first, feature_map), partial_sketch(second, feature_map)
        hits += compare_rows(*both, seed=seed).is_different
    assert stats.binomtest(hits, repeats, 0.05).pvalue > 1e-3


def test_lazy_sketches_have_pairs(rng):
    first, second = sides(rng, width=1.4)
    feature_map = paired_map(np.concatenate([first, second]))
    a, b = (
        sketch(da.from_array(x, chunks=(1000, -1)), feature_map, sample=False).compute()
        for x in (first, second)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare_rows(a, b).is_different
