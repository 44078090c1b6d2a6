"""One chunk: what is taken, what is left out, and what is refused with its place named."""

from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import assert_same_sketch, draw_rows, feature_map

from dask_sketch import FeatureMap, Sketch, partial_sketch
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.features.scale import estimate_scale
from dask_sketch.sketching.accumulator import BLOCK_BYTES, block_rows


@given(data=st.data())
def test_omitted_rows_are_counted_and_leave_no_trace(data):
    n = data.draw(st.integers(1, 100))
    x = draw_rows(n, n, 3)
    w = np.random.default_rng(n).random(n)
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=n))
    dirty = x.copy()
    for row in bad:
        value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        dirty[row, data.draw(st.integers(0, 2))] = value
    fm = feature_map()
    keep = np.array([row not in bad for row in range(n)])
    for weights in (None, w):
        got = partial_sketch(dirty, fm, weights, nan_policy="omit")
        clean = partial_sketch(x[keep], fm, None if weights is None else weights[keep])
        assert got.omitted == len(bad)
        assert got.count == n - len(bad)
        if got.count:
            assert_same_sketch(replace(got, omitted=0), clean)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 7, 8, 4095, 4096, 9999])
def test_the_first_bad_row_is_named(value, row, rng):
    x = rng.normal(size=(10_000, 3))
    x[row, 1] = value
    x[row + 1 :, 0] = np.nan
    with pytest.raises(ChunkError, match=rf"chunk 3: row {row} of this chunk has {value} in feat"):
        partial_sketch(x, feature_map(), label="chunk 3")


@pytest.mark.parametrize("value", [-1e-3, np.nan, np.inf, -np.inf, 1e31, 2.0**33, 2.0**-33])
@pytest.mark.parametrize("row", [0, 5000])
@pytest.mark.parametrize("policy", ["raise", "omit"])
def test_bad_weights_are_named_under_both_policies(value, row, policy):
    w = np.ones(6000)
    w[row] = value
    with pytest.raises(ChunkError, match=f"weights of samples: row {row} has weight="):
        partial_sketch(np.zeros((6000, 3)), feature_map(), w, nan_policy=policy)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (np.zeros((5, 4)), None, r"shape=\(5, 4\): .* n_features=3"),
        (np.zeros(()), None, r"shape=\(\)"),
        (np.zeros(4), None, r"shape=\(4,\)"),
        ([], None, r"shape=\(0,\)"),
        (np.array([["a", "b", "c"]]), None, "not real numbers"),
        (np.zeros((2, 3), dtype=complex), None, "dtype=complex128"),
        (np.zeros((2, 3), dtype="M8[s]"), None, "dtype=datetime64"),
        (np.zeros((2, 3), dtype=object), None, "dtype=object"),
        (np.zeros((5, 3)), np.ones(4), "size=4: .* 5 rows"),
        (np.zeros((5, 3)), 1.0, "size=1: .* 5 rows"),
        (np.zeros((1, 3)), ["heavy"], "weights of samples have dtype="),
    ],
)
def test_what_does_not_fit_is_refused(x, w, message):
    with pytest.raises(InputError, match=message):
        partial_sketch(x, feature_map(), w)


@pytest.mark.parametrize("policy", ["skip", None, "Raise"])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(InputError, match="nan_policy="):
        partial_sketch(np.zeros((1, 3)), feature_map(), nan_policy=policy)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [1e39, -1e39, 3e38, 1e9])
def test_values_too_far_from_the_center_are_refused_by_row(value, dtype):
    x = np.zeros((20, 3))
    x[13, 1] = value
    fm = feature_map(dtype, scale=0.1)
    message = r"here: row 13 of this chunk has .* in feature 1, .* times the scale of the fea"
    for weights in (None, np.full(20, 0.3)):
        with pytest.raises(ChunkError, match=message):
            partial_sketch(x, fm, weights, label="here")
    assert partial_sketch(x, fm, np.arange(20) != 13).count == 20
    x[13, 1] = np.sign(value) * 5e6  # most that is taken: 2**26 of 0.125
    assert abs(partial_sketch(x, fm).mean[1]) == pytest.approx(5e6 / 20, rel=1e-15)


@pytest.mark.parametrize("value", [1e7, -1e7])
def test_phases_too_large_for_the_precision_are_refused(value):
    x = np.zeros((20, 3))
    x[13] = value
    mixed = {"scale": None, "covariances": [[1.0] * 3, [1e-66] * 3]}  # frequencies up to 1e33
    with pytest.raises(ChunkError, match="dtype='float32'"):
        partial_sketch(x, feature_map("float32", **mixed))
    without = partial_sketch(x, feature_map("float32", **mixed), np.arange(20) != 13)
    assert abs(without.moment_sum - 19).max() == 0
    assert np.isfinite(partial_sketch(x, feature_map("float64", **mixed)).z).all()


def test_no_rows_are_the_empty_sketch():
    fm = feature_map()
    for w in (None, np.zeros(0)):
        assert partial_sketch(np.zeros((0, 3)), fm, w).identical(Sketch.empty(fm))
    all_bad = partial_sketch(np.full((4, 3), np.nan), fm, nan_policy="omit")
    assert (all_bad.count, all_bad.omitted) == (0, 4)


def test_leading_axes_and_lists(rng):
    fm = feature_map()
    x, w = rng.normal(size=(4, 5, 3)), rng.random((4, 5))
    expected = partial_sketch(x.reshape(-1, 3), fm, w.ravel())
    assert partial_sketch(x, fm, w).identical(expected)
    assert partial_sketch(x.tolist(), fm, w.tolist()).identical(expected)
    assert partial_sketch(x[0, 0], fm).count == 1


def test_rows_of_weight_zero_count_but_do_not_bound():
    got = partial_sketch([[1.0] * 3, [99.0] * 3], feature_map(), [1.0, 0.0])
    assert got.count == 2
    assert got.maximum.max() == 1.0
    assert got.total_weight == 1.0


def test_the_samples_are_not_changed(rng):
    x, w = rng.normal(size=(50, 3)), rng.random(50)
    before = x.copy(), w.copy()
    partial_sketch(x, feature_map(center=[1.0, 2.0, 3.0]), w)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_features", [1, 12, 1000, 100_000])
def test_blocks_are_bounded(n_features, dtype):
    rows = block_rows(n_features, dtype)
    assert rows % 8 == 0
    assert 8 <= rows <= 4096
    assert rows == 8 or rows * n_features * np.dtype(dtype).itemsize <= BLOCK_BYTES


def test_a_chunk_is_never_copied(rng):
    import tracemalloc

    x = np.ones((400_000, 3), dtype=np.float64)[:, ::-1]
    fm = FeatureMap(3, 16, scale=1.0)
    partial_sketch(x[:100], fm)
    tracemalloc.start()
    try:
        partial_sketch(x, fm)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2e6 < x.nbytes


def test_float16_and_integers_keep_their_values(rng):
    fm = feature_map(scale=5.0)
    x = rng.integers(-100, 100, size=(60, 3))
    expected = partial_sketch(x.astype(float), fm)
    for dtype in ("i1", "i2", "i4", "i8", "f2", "f4"):
        assert_same_sketch(partial_sketch(x.astype(dtype), fm), expected)


def test_lazy_samples_are_not_gathered():
    lazy = da.zeros((10, 3), chunks=5)
    with pytest.raises(InputError, match=r"type Array is lazy.*sketch\(\)"):
        partial_sketch(lazy, feature_map())
    with pytest.raises(InputError, match=r"type Array is lazy.*design\(\)"):
        estimate_scale(lazy)


def test_a_feature_map_is_needed():
    with pytest.raises(InputError, match="feature_map of type str"):
        partial_sketch(np.zeros((1, 3)), "map.json")


@pytest.mark.parametrize("groups", [None, [0, 0, 1, 1]])
def test_weights_at_the_ends_of_their_range(groups):
    x, w = np.zeros((4, 2)), np.array([2.0**-32, 2.0**32, 1.0, 0.0])
    found = partial_sketch(x, FeatureMap(2, 5, scale=1.0), w, groups=groups)
    assert np.sum(found.total_weight) == 2.0**-32 + 2.0**32 + 1.0
    for wrong in (2.0**-33, 2.0**33):
        with pytest.raises(ChunkError, match=r"2\*\*32"):
            partial_sketch(x, FeatureMap(2, 5, scale=1.0), [wrong, *w[1:]], groups=groups)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalized_rows_are_summed_as_directions(dtype, rng):
    reach = 30.0 if dtype == "float32" else 300.0  # decades, beyond the range of squares
    x = (rng.normal(size=(3000, 3)) * 10.0 ** rng.uniform(-reach, reach, (3000, 1))).astype(dtype)
    unit = x / np.abs(x).max(axis=1)[:, None].astype(float)
    unit = (unit / np.linalg.norm(unit, axis=1)[:, None]).astype(dtype)
    options = {"n_features": 3, "n_frequencies": 20, "scale": 0.3}
    normalized = FeatureMap(**options, normalize=True)
    found = partial_sketch(x, normalized, sample=50)
    given = partial_sketch(unit, FeatureMap(**options), sample=50)
    np.testing.assert_allclose(found.characteristic, given.characteristic, atol=1e-6)
    np.testing.assert_allclose(found.mean, given.mean, atol=1e-6)
    np.testing.assert_allclose(found.sample.rows, given.sample.rows, atol=1e-6)
    halves = partial_sketch(x[:7], normalized) + partial_sketch(x[7:], normalized)
    assert halves.identical(replace(found, sample=None))
    labels = np.arange(len(x)) % 3
    groups = partial_sketch(x, normalized, groups=labels)
    assert groups[1].identical(partial_sketch(x[labels == 1], normalized))


@pytest.mark.parametrize("grouped", [False, True])
def test_rows_without_direction_are_refused_or_left_out(grouped, rng):
    x = rng.normal(size=(600, 3))
    x[[500, 501]] = 0.0
    normalized = FeatureMap(3, 20, scale=0.3, normalize=True)
    options = {"groups": np.zeros(600)} if grouped else {"sample": 1000}
    with pytest.raises(ChunkError, match="row 500 .* 0 in all features"):
        partial_sketch(x, normalized, **options)
    found = partial_sketch(x, normalized, nan_policy="omit", **options)
    assert np.sum(found.omitted) == 2
    assert np.sum(found.count) == 598
    x[500] = np.nan
    with pytest.raises(ChunkError, match="row 500 .* nan"):
        partial_sketch(x, normalized, **options)
    for refused in ({"nan_policy": "available"}, {"device": "cuda"}):
        with pytest.raises(InputError, match=str(next(iter(refused.values())))):
            partial_sketch(x, normalized, **(options | refused))


FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(8, 2)), columns=["b", "a"])
NAMED = FeatureMap(2, 20, scale=1.0, feature_names=("b", "a"))


@pytest.mark.parametrize("groups", [None, [0, 1] * 4])
def test_frames_with_other_names_are_refused(groups):
    assert partial_sketch(FRAME, NAMED, groups=groups).count is not None
    partial_sketch(FRAME[["a", "b"]], FeatureMap(2, 20, scale=1.0), groups=groups)
    with pytest.raises(InputError, match="feature 0 of samples is 'a'; .* 'b'") as caught:
        partial_sketch(FRAME[["a", "b"]], NAMED, groups=groups)
    assert caught.value.parameter == "samples"


@pytest.mark.parametrize("argument", ["weights", "groups"])
def test_series_of_another_index_are_refused(argument):
    series = pd.Series([1, 2] * 4)
    partial_sketch(FRAME, NAMED, **{argument: series})
    with pytest.raises(InputError, match=f"{argument}.*to_numpy") as caught:
        partial_sketch(FRAME, NAMED, **{argument: series[::-1]})
    assert caught.value.parameter == argument
