"""The sketch is a commutative monoid, whatever the chunks and the shape of the tree."""

from __future__ import annotations

import itertools

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
    weighted_rows,
)

import dask_sketch as ds
from dask_sketch import FeatureMap, Sketch, merge, partial_sketch
from dask_sketch.errors import InputError, MergeError

DTYPES = ["float32", "float64"]


def pieces(x, w, sizes):
    edges = np.cumsum([0, *sizes])
    for start, stop in itertools.pairwise(edges):
        yield x[start:stop], None if w is None else w[start:stop]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_split_order_and_tree_merge_to_the_same_sketch(dtype, data):
    x, w = data.draw(weighted_rows())
    fm = feature_map(dtype, center=x.mean(axis=0))
    whole = partial_sketch(x, fm, w)
    order = data.draw(st.permutations(range(len(x)))) if len(x) < 60 else range(len(x))[::-1]
    x, w = x[list(order)], None if w is None else w[list(order)]
    parts = [
        partial_sketch(a, fm, b) for a, b in pieces(x, w, data.draw(chunk_sizes(total=len(x))))
    ]
    parts = data.draw(st.permutations(parts))
    fan_in = data.draw(st.integers(2, 5))
    assert_same_sketch(whole, merge(parts))
    while len(parts) > 1:
        parts = [merge(parts[i : i + fan_in]) for i in range(0, len(parts), fan_in)]
    assert_same_sketch(whole, parts[0])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_chunking_of_a_dask_array_gives_the_same_sketch(dtype, data):
    x, w = data.draw(weighted_rows(n_features=3, max_rows=120))
    fm = feature_map(dtype)
    rows = data.draw(chunk_sizes(total=len(x)))
    columns = data.draw(st.sampled_from([(3,), (1, 2), (1, 1, 1)]))
    lazy = da.from_array(x, chunks=(rows, columns))
    weights = w
    if w is not None and data.draw(st.booleans()):
        weights = da.from_array(w, chunks=(data.draw(chunk_sizes(total=len(x))),))
    split_every = data.draw(st.integers(2, 6))
    got = ds.sketch(lazy, fm, weights, split_every=split_every)
    assert_same_sketch(partial_sketch(x, fm, w), got.compute(scheduler="sync"))


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_chunks_of_unknown_length_give_the_same_sketch(dtype, data):
    # two rows at least: Dask 2026.8 doubles a single row beside an empty chunk when it is masked
    x, w = data.draw(weighted_rows(min_rows=2, max_rows=120))
    fm = feature_map(dtype)
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
def test_a_weight_of_two_is_the_row_twice(dtype, data):
    x, _ = data.draw(weighted_rows(max_rows=60))
    fm = feature_map(dtype)
    repeats = data.draw(st.lists(st.integers(1, 3), min_size=len(x), max_size=len(x)))
    weighted = partial_sketch(x, fm, repeats)
    repeated = partial_sketch(np.repeat(x, repeats, axis=0), fm)
    np.testing.assert_allclose(weighted.z, repeated.z, rtol=0, atol=RELATIVE[dtype])
    np.testing.assert_allclose(weighted.mean, repeated.mean, atol=1e-12)
    np.testing.assert_allclose(weighted.variance, repeated.variance, atol=1e-11)
    assert weighted.total_weight == repeated.total_weight
    np.testing.assert_array_equal(weighted.maximum, repeated.maximum)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_subtraction_undoes_addition(dtype, data):
    (x, w), (y, v) = data.draw(weighted_rows()), data.draw(weighted_rows())
    fm = feature_map(dtype)
    a, b = partial_sketch(x, fm, w), partial_sketch(y, fm, v)
    back = (a + b) - b
    size = a.total_weight + b.total_weight
    assert (back.count, back.omitted) == (a.count, a.omitted)
    assert back.total_weight == pytest.approx(a.total_weight, abs=1e-14 * size)
    np.testing.assert_allclose(back.moment_sum, a.moment_sum, atol=4e-16 * size)
    np.testing.assert_allclose(back.first_moment, a.first_moment, atol=1e-14 * size)
    np.testing.assert_allclose(back.second_moment, a.second_moment, atol=1e-13 * size)
    assert not back.tight_bounds
    assert (back.minimum <= a.minimum).all()
    assert (back.maximum >= a.maximum).all()


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
    with pytest.raises(MergeError, match="30 samples"):
        _ = small - large
    omitted = partial_sketch([[np.nan] * 3], fm, nan_policy="omit")
    with pytest.raises(MergeError, match="1 omitted"):
        _ = large - omitted
    # fewer rows, but of more weight than there is
    with pytest.raises(MergeError, match="weight"):
        _ = large - partial_sketch(x[:10], fm, np.full(10, 50.0))
    # as many rows, but of another weight
    with pytest.raises(MergeError, match="weight"):
        _ = large.scale(2.0) - large


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
        a.moment_sum[0] = 0


@given(factor=st.one_of(st.just(0.0), st.floats(2.0**-32, 2.0**32)))
def test_scale_is_a_factor_on_every_weight(factor):
    x = draw_rows(1, 40, 3)
    fm = feature_map()
    a = partial_sketch(x, fm).scale(factor)
    b = partial_sketch(x, fm, np.full(40, factor))
    np.testing.assert_allclose(a.moment_sum, b.moment_sum, rtol=1e-10, atol=1e-10 * factor)
    np.testing.assert_allclose(a.total_weight, b.total_weight, rtol=1e-12)
    np.testing.assert_allclose(a.squared_weight, b.squared_weight, rtol=1e-12)
    np.testing.assert_allclose(a.second_moment, b.second_moment, rtol=1e-12)
    assert a.count == b.count


@pytest.mark.parametrize("factor", [-1, np.nan, np.inf, "twice", None, 1e-10, 1e10])
def test_scale_refuses(factor):
    with pytest.raises(InputError, match="factor="):
        Sketch.empty(feature_map()).scale(factor)


OTHER = {
    "n_features": {"n_features": 4, "center": np.zeros(4)},
    "n_frequencies": {"n_frequencies": 41},
    "scale": {"scale": 1.5},
    "law": {"law": "gaussian"},
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


def test_merging_mixtures_of_laws_names_their_weights():
    maps = [
        FeatureMap(1, 8, covariances=[[1.0], [4.0]], law_weights=w)
        for w in ([0.5, 0.5], [0.1, 0.9])
    ]
    with pytest.raises(MergeError, match="differ in law_weights"):
        merge(map(Sketch.empty, maps))


def test_merge_refuses_nothing_and_other_things():
    with pytest.raises(MergeError, match="at least one"):
        merge([])
    with pytest.raises(MergeError, match="not int"):
        merge([Sketch.empty(feature_map()), 3])
    for wrong in (lambda s: s + 1, lambda s: 1 + s, lambda s: s - 1):
        with pytest.raises(TypeError):
            wrong(Sketch.empty(feature_map()))
