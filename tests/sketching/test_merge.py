"""The sketch is a commutative monoid, whatever the chunks and the shape of the tree."""

from __future__ import annotations

import itertools
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    RELATIVE,
    assert_same_sketch,
    chunk_sizes,
    draw_rows,
    feature_map,
    reference_sums,
    weighted_rows,
    wild_rows,
)

import dask_sketch as ds
from dask_sketch import FeatureMap, Sketch, merge, partial_sketch
from dask_sketch.errors import CapacityError, InputError, MergeError
from dask_sketch.features.kernels.fixed_point import FixedPoint
from dask_sketch.features.kernels.llvm_vectors import FRACTION

DISTRIBUTIONS = ["adapted-radius", "sparse-sums"]  # of the two kernels
DTYPES = ["float32", "float64"]


def pieces(x, w, sizes):
    edges = np.cumsum([0, *sizes])
    for start, stop in itertools.pairwise(edges):
        yield x[start:stop], None if w is None else w[start:stop]


@st.composite
def partials(draw, x, w, fm):
    """Partial sketches of the rows in any order, cut anywhere."""
    order = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).permutation(len(x))
    x, w = x[order], None if w is None else w[order]
    sizes = draw(chunk_sizes(total=len(x)))
    return [partial_sketch(a, fm, b, nan_policy="omit") for a, b in pieces(x, w, sizes)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_split_order_and_tree_merge_to_the_same_bits(dtype, distribution, data):
    x, w = data.draw(wild_rows())
    fm = feature_map(dtype, center=[0.1, -0.2, 0.3], distribution=distribution)
    whole = partial_sketch(x, fm, w, nan_policy="omit")
    parts = data.draw(partials(x, w, fm))
    assert_same_sketch(whole, merge(parts))
    fan_in = data.draw(st.integers(2, 5))
    while len(parts) > 1:
        parts = [merge(parts[i : i + fan_in]) for i in range(0, len(parts), fan_in)]
        parts = data.draw(st.permutations(parts))
    assert_same_sketch(whole, parts[0])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_what_is_subtracted_leaves_the_bits_of_the_rest(dtype, distribution, data):
    x, w = data.draw(wild_rows())
    fm = feature_map(dtype, distribution=distribution)
    parts = data.draw(partials(x, w, fm))
    gone = data.draw(st.sets(st.integers(0, len(parts) - 1)))
    left = merge(parts)
    for number in data.draw(st.permutations(sorted(gone))):
        left = left - parts[number]
    kept = merge([Sketch.empty(fm)] + [part for k, part in enumerate(parts) if k not in gone])
    assert left.same_sums(kept)
    assert kept.same_sums(left)
    if kept.count:
        assert (left.minimum <= kept.minimum).all()
        assert (left.maximum >= kept.maximum).all()
    else:
        assert left.identical(kept)
    assert left.tight_bounds == (not any(parts[k].count for k in gone) or not kept.count)


def test_long_chunks_are_exact_too(rng):
    x = rng.normal(size=(20_000, 3)) * np.exp(rng.normal(size=(20_000, 1)))
    w = np.exp(rng.normal(0, 2, size=20_000))
    for dtype, distribution in itertools.product(DTYPES, DISTRIBUTIONS):
        fm = feature_map(dtype, distribution=distribution)
        for weights in (None, w):
            whole = partial_sketch(x, fm, weights)
            sizes = [1, 4095, 4096, 4097, 5000, 2711]
            for order in (np.arange(len(x)), rng.permutation(len(x))):
                share = None if weights is None else weights[order]
                parts = [partial_sketch(a, fm, b) for a, b in pieces(x[order], share, sizes)]
                assert_same_sketch(whole, merge(parts))


@given(data=st.data())
def test_any_chunking_of_a_dask_array_gives_the_same_sketch(data):
    x, w = data.draw(weighted_rows(n_features=3, max_rows=120))
    fm = feature_map(data.draw(st.sampled_from(DTYPES)))
    rows = data.draw(chunk_sizes(total=len(x)))
    columns = data.draw(st.sampled_from([(3,), (1, 2), (1, 1, 1)]))
    lazy = da.from_array(x, chunks=(rows, columns))
    weights = w
    if w is not None and data.draw(st.booleans()):
        weights = da.from_array(w, chunks=(data.draw(chunk_sizes(total=len(x))),))
    split_every = data.draw(st.integers(2, 6))
    got = ds.sketch(lazy, fm, weights, split_every=split_every)
    assert_same_sketch(partial_sketch(x, fm, w), got.compute(scheduler="sync"))


@given(data=st.data())
def test_chunks_of_unknown_length_give_the_same_sketch(data):
    # two rows at least: Dask 2026.8 doubles a single row beside an empty chunk when it is masked
    x, w = data.draw(weighted_rows(min_rows=2, max_rows=120))
    fm = feature_map(data.draw(st.sampled_from(DTYPES)))
    rows = data.draw(chunk_sizes(total=len(x)))
    keep = np.random.default_rng(len(x)).random(len(x)) < data.draw(st.floats(0, 1))
    keep[0] = True
    mask = da.from_array(keep, chunks=(rows,))
    lazy = da.from_array(x, chunks=(rows, 3))[mask]
    weights = None if w is None else da.from_array(w, chunks=(rows,))[mask]
    assert np.isnan(lazy.shape[0])
    got = ds.sketch(lazy, fm, weights, split_every=3).compute(scheduler="sync")
    assert_same_sketch(partial_sketch(x[keep], fm, None if w is None else w[keep]), got)


@pytest.mark.parametrize("split_every", [2, 3, 4, 16])
def test_leading_axes_are_all_samples(split_every):
    x = draw_rows(3, 6 * 5 * 4, 3).reshape(6, 5, 4, 3)
    w = np.random.default_rng(0).random((6, 5, 4))
    fm = feature_map()
    for chunks in [(2, 2, 1, 3), (6, 5, 4, 3), (1, 5, 2, 2)]:
        lazy = da.from_array(x, chunks=chunks)
        got = ds.sketch(lazy, fm, w, split_every=split_every).compute(scheduler="sync")
        assert_same_sketch(partial_sketch(x, fm, w), got)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_a_weight_of_a_power_of_16_is_the_row_so_often(dtype, data):
    x, _ = data.draw(weighted_rows(max_rows=60))
    fm = feature_map(dtype)
    powers = st.sampled_from([1, 16])
    repeats = data.draw(st.lists(powers, min_size=len(x), max_size=len(x)))
    weighted = partial_sketch(x, fm, repeats)
    repeated = partial_sketch(np.repeat(x, repeats, axis=0), fm)
    for name in ("moment_quanta", "weight_quanta", "first_quanta", "second_quanta"):
        assert getattr(weighted, name) == getattr(repeated, name)
    np.testing.assert_array_equal(weighted.maximum, repeated.maximum)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_a_weight_of_three_is_the_row_three_times_up_to_the_grid(dtype, data):
    x, _ = data.draw(weighted_rows(max_rows=60))
    fm = feature_map(dtype)
    repeats = data.draw(st.lists(st.integers(1, 7), min_size=len(x), max_size=len(x)))
    weighted = partial_sketch(x, fm, repeats)
    repeated = partial_sketch(np.repeat(x, repeats, axis=0), fm)
    step = 2.0 ** -FRACTION[dtype]
    np.testing.assert_allclose(weighted.z, repeated.z, rtol=0, atol=RELATIVE[dtype] + 8 * step)
    # two roundings of at most the half of a step, 16 of which are a step of weights over one
    grid = {"rtol": 1e-15, "atol": (8 + 0.5) * 2.0**-30 * sum(repeats)}
    np.testing.assert_allclose(weighted.first_moment, repeated.first_moment, **grid)
    np.testing.assert_allclose(weighted.second_moment, repeated.second_moment, **grid)
    assert weighted.total_weight == repeated.total_weight
    np.testing.assert_array_equal(weighted.maximum, repeated.maximum)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_subtraction_undoes_addition(dtype, data):
    (x, w), (y, v) = data.draw(wild_rows()), data.draw(wild_rows())
    fm = feature_map(dtype)
    a, b = (partial_sketch(*rows, nan_policy="omit") for rows in ((x, fm, w), (y, fm, v)))
    back = (a + b) - b
    assert back.same_sums(a)
    if a.count and b.count:
        assert not back.tight_bounds
    if a.count:
        assert (back.minimum <= a.minimum).all()
        assert (back.maximum >= a.maximum).all()
    assert (a - a).identical(Sketch.empty(fm))


def test_subtraction_flags_bounds_and_the_flag_travels(rng):
    fm = feature_map()
    a, b = (partial_sketch(rng.normal(size=(n, 3)), fm) for n in (30, 20))
    assert a.tight_bounds
    assert (a + b).tight_bounds
    loose = (a + b) - b
    assert not loose.tight_bounds
    assert not (loose + b).tight_bounds
    assert not loose.scale(2).tight_bounds
    nothing = Sketch.empty(fm)
    assert (a - nothing).tight_bounds
    assert (a - nothing).identical(a)
    assert (a - a).identical(nothing)


def test_subtraction_refuses_what_was_never_part_of_it(rng):
    fm = feature_map()
    x = rng.normal(size=(30, 3))
    small, large = partial_sketch(x[:10], fm), partial_sketch(x, fm)
    with pytest.raises(MergeError, match="count=30"):
        _ = small - large
    omitted = partial_sketch([[np.nan] * 3], fm, nan_policy="omit")
    with pytest.raises(MergeError, match="omitted=1"):
        _ = large - omitted
    # fewer rows, but of more weight than there is
    with pytest.raises(MergeError, match="total_weight="):
        _ = large - partial_sketch(x[:10], fm, np.full(10, 50.0))
    # as many rows, but of another weight
    with pytest.raises(MergeError, match="total_weight="):
        _ = large.scale(2.0) - large


def test_subtraction_refuses_more_missing_values_than_there_are(rng):
    x = rng.normal(size=(100, 3))
    whole, part = x.copy(), x[:50].copy()
    whole[70, 0], part[:10, 0] = np.nan, np.nan
    feature_map = FeatureMap(3, 20, scale=1.0, distribution="sparse-sums")
    whole, part, first = (
        partial_sketch(rows, feature_map, nan_policy="available") for rows in (whole, part, x[:50])
    )
    with pytest.raises(MergeError, match="count=50"):
        whole - part
    assert (whole - first).count == 50


def test_subtraction_tells_one_step_where_nothing_is_left(rng):
    fm = feature_map()
    x = rng.normal(size=(30, 3))
    large = partial_sketch(x, fm)
    names = [name for name in vars(large) if name.endswith("_quanta")]
    assert len(names) == 5
    for name in names:
        steps = getattr(large, name)
        one = 1
        if isinstance(steps, FixedPoint):
            last = np.zeros(steps.shape, dtype=np.int64)
            last.flat[-1] = 1
            one = FixedPoint.from_int64(last, 0)
        off = steps + one
        other = replace(large, **{name: off})
        for one, two in ((large, other), (other, large)):
            with pytest.raises(MergeError, match="cannot subtract"):
                _ = one - two
    assert (large - replace(large)).identical(Sketch.empty(fm))


def test_subtraction_tells_what_cannot_be_left(rng):
    fm = feature_map()
    x = rng.normal(size=(30, 3))
    large = partial_sketch(x, fm)
    # other rows: out of bounds; then within, but so alike that what is left has no modulus
    with pytest.raises(MergeError, match="cannot subtract"):
        _ = large - partial_sketch(x[:5] + 100.0, fm)
    with pytest.raises(MergeError, match="cannot subtract"):
        _ = large - partial_sketch(np.tile(x[:1], (29, 1)), fm)
    # squares under zero
    wide = partial_sketch([[5.0] * 3, [-5.0] * 3, [0.0] * 3], fm)
    bound = replace(partial_sketch([[5.0] * 3, [4.0] * 3], fm), tight_bounds=False)
    with pytest.raises(MergeError, match="cannot subtract"):
        _ = partial_sketch([[5.0] * 3, [0.0] * 3, [0.0] * 3], fm) - bound
    assert (wide - partial_sketch([[5.0] * 3], fm)).count == 2


def test_rows_without_weight_can_be_left(rng):
    fm = feature_map()
    x = rng.normal(size=(30, 3))
    w = np.arange(30) < 20
    left = partial_sketch(x, fm, w) - partial_sketch(x[:20], fm)
    assert (left.count, left.total_weight) == (10, 0.0)
    assert not left.moment_sum.any()


def test_more_than_fits_is_refused():
    fm = feature_map()
    part = partial_sketch(np.full((1000, 3), 0.5), fm)
    most = merge([part.scale(2.0**32)] * 32)
    assert 0.95 < most.total_weight / 2**47 < 1.0
    assert abs(most.z - part.z).max() < 1e-15
    for more in ([most] * 2, [most] * 1000):
        with pytest.raises(CapacityError, match="smaller factor"):
            merge(more)
    with pytest.raises(CapacityError, match="smaller factor"):
        most.scale(2.0)
    with pytest.raises(CapacityError, match=r"total_weight=1\.4\d*e\+14 .* 1\.40"):
        replace(most, weight_quanta=2**127)
    far = partial_sketch(np.full((1, 3), 2.0**25), fm).scale(2.0**5)
    with pytest.raises(CapacityError, match="smaller factor"):
        merge([far] * 3)


def test_empty_is_neutral_and_sum_starts_from_zero(rng):
    fm = feature_map()
    parts = [partial_sketch(rng.normal(size=(n, 3)), fm) for n in (5, 1, 17)]
    nothing = Sketch.empty(fm)
    assert (parts[0] + nothing).identical(parts[0])
    assert (nothing + parts[0]).identical(parts[0])
    assert sum(parts).identical(merge(parts))
    assert merge(iter(parts)).identical(parts[0] + parts[1] + parts[2])
    assert merge([nothing, nothing]).identical(nothing)


def test_merge_does_not_change_its_inputs(rng):
    fm = feature_map()
    a, b = (partial_sketch(rng.normal(size=(9, 3)), fm) for _ in range(2))
    before = a.moment_sum.copy()
    merge([a, b])
    np.testing.assert_array_equal(a.moment_sum, before)
    with pytest.raises(ValueError, match="read-only"):
        a.moment_quanta.low[0] = 0


@given(factor=st.one_of(st.just(0.0), st.floats(2.0**-32, 2.0**32)))
def test_scale_is_a_factor_on_every_weight(factor):
    x = draw_rows(1, 40, 3)
    fm = feature_map()
    a = partial_sketch(x, fm).scale(factor)
    b = partial_sketch(x, fm, np.full(40, factor))
    np.testing.assert_allclose(a.moment_sum, b.moment_sum, rtol=1e-10, atol=1e-10 * factor)
    np.testing.assert_allclose(a.total_weight, b.total_weight, rtol=1e-12)
    np.testing.assert_allclose(a.squared_weight, b.squared_weight, rtol=1e-12)
    # roundings of each row, of at most the half of a step, in units of one; the steps of the
    # smallest weights are those of 2**-21 in float64
    grid = {"rtol": 1e-12, "atol": 40 * (factor + max(factor, 2.0**-21)) * 2.0**-30}
    np.testing.assert_allclose(a.second_moment, b.second_moment, **grid)
    np.testing.assert_allclose(a.first_moment, b.first_moment, **grid)
    assert a.count == b.count


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_of_a_weighted_row_is_bounded_and_has_no_side(dtype, distribution, rng):
    fm = feature_map(dtype, distribution=distribution)
    step = 2.0 ** -FRACTION[dtype]
    products = 2 if distribution == "sparse-sums" else 1  # that are rounded, in a cosine or a sine
    features = {"float32": 1e-6, "float64": 1e-13}[dtype]  # of rounding that is not the grid's
    x = rng.normal(size=(2000, 3))
    for weight in (1.0, 1.000001, 1.7, 3.0, 12.0, 16.0, 0.3):
        for row in x[:20]:
            found = partial_sketch([row], fm, [weight]).characteristic
            error = found - reference_sums([row], fm)
            # half a step of the power of 16 at or above the weight, so at most eight of the weight
            assert abs(error.real).max() <= products * 8 * step + features
            assert abs(error.imag).max() <= products * 8 * step + features
        weighted = partial_sketch(x, fm, np.full(2000, weight))
        error = weighted.characteristic - partial_sketch(x, fm).characteristic
        # what is rounded is not the same in every row, though the weight is
        spread = 16 * step * np.sqrt(products / 12 / len(x))
        assert max(abs(error.real).max(), abs(error.imag).max()) <= 6 * spread + 0.02 * features


@pytest.mark.parametrize("dtype", DTYPES)
@given(power=st.integers(-4, 7), seed=st.integers(0, 100))
def test_scale_by_a_power_of_16_is_exact(dtype, power, seed):
    x, fm = draw_rows(seed, 40, 3), feature_map(dtype)
    w = np.random.default_rng(seed).uniform(0.1, 2.0, size=40)
    w[3] = 0.0
    scaled = partial_sketch(x, fm, w * 16.0**power)
    assert_same_sketch(scaled, partial_sketch(x, fm, w).scale(16.0**power))
    assert_same_sketch(scaled.scale(2.0**3).scale(2.0**-3), scaled)


@pytest.mark.parametrize("factor", [-1, np.nan, np.inf, "twice", None, 1e-10, 1e10])
def test_scale_refuses(factor):
    with pytest.raises(InputError, match="factor="):
        Sketch.empty(feature_map()).scale(factor)


OTHER = {
    "n_features": {"n_features": 4, "center": np.zeros(4)},
    "n_frequencies": {"n_frequencies": 41},
    "scale": {"scale": 1.5},
    "distribution": {"distribution": "gaussian"},
    "seed": {"seed": 1},
    "dtype": {"dtype": "float32"},
    "center": {"center": [0.0, 0.0, 1.0]},
    "whitening": {"whitening": 2 * np.eye(3)},
    "covariances": {"scale": None, "covariances": [1.0, 1.0, 4.0]},
}


@pytest.mark.parametrize("name", OTHER)
def test_merging_different_maps_names_the_field(name):
    base = {"n_features": 3, "n_frequencies": 40, "scale": 1.0, "dtype": "float64"}
    if name == "covariances":
        base |= {"scale": None, "covariances": [1.0, 1.0, 1.0]}
    fields = base | OTHER[name]
    a, b = Sketch.empty(FeatureMap(**base)), Sketch.empty(FeatureMap(**fields))
    for combine in (lambda: a + b, lambda: merge([a, a, b]), lambda: a - b):
        with pytest.raises(MergeError, match=rf"differ in {name}:"):
            combine()


def test_merging_mixtures_of_distributions_names_their_weights():
    maps = [
        FeatureMap(1, 8, covariances=[[1.0], [4.0]], covariance_weights=w)
        for w in ([0.5, 0.5], [0.1, 0.9])
    ]
    with pytest.raises(MergeError, match="differ in covariance_weights"):
        merge(map(Sketch.empty, maps))


def test_merge_refuses_nothing_and_other_things():
    with pytest.raises(MergeError, match=r"sketches=\[\]"):
        merge([])
    with pytest.raises(MergeError, match="type Sketch and int"):
        merge([Sketch.empty(feature_map()), 3])
    for wrong in (lambda s: s + 1, lambda s: 1 + s, lambda s: s - 1):
        with pytest.raises(TypeError):
            wrong(Sketch.empty(feature_map()))
