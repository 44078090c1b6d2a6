"""Groups of one chunk have the bits of separate sketches."""

from __future__ import annotations

import datetime
import pickle

import numpy as np
import pandas as pd
import pytest
from strategies import feature_map

import dask_sketch as ds
from dask_sketch import (
    FeatureMap,
    Sketch,
    SketchGroup,
    partial_sketch,
)
from dask_sketch.errors import (
    ChunkError,
    InputError,
)
from dask_sketch.validation.labels import codes_of

DISTRIBUTIONS = ["adapted-radius", "sparse-sums"]


DTYPES = ["float32", "float64"]


def weights_of(kind, n, rng):
    return {
        "none": lambda: None,
        "mild": lambda: rng.uniform(0.3, 20.0, n) * (rng.random(n) < 0.9),
        "wild": lambda: 2.0 ** rng.uniform(-32, 8, n),
    }[kind]()


def assert_bits(group, x, labels, fm, w=None, nan_policy="omit"):
    """Every group has the bits of the sketch of its rows alone."""
    labels = np.asarray(labels)
    assert list(group) == list(np.unique(labels))
    for label in group:
        rows = labels == label
        weights = None if w is None else w[rows]
        alone = partial_sketch(x[rows], fm, weights, nan_policy=nan_policy)
        assert group[label].identical(alone), label


def with_missing(rng, n=3000, d=5):
    x = rng.normal(size=(n, d))
    x[rng.random((n, d)) < 0.2], x[5], x[9, 0] = np.nan, np.nan, np.inf
    labels = rng.integers(0, 7, n)
    x[labels == 3] = 0.5  # without missing values
    return x, labels


def missing_map(**options):
    return FeatureMap(5, 40, scale=1.0, distribution="sparse-sums", center=[0.3] * 5, **options)


@pytest.mark.parametrize("kind", ["none", "mild", "wild"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.few_cases(3)
def test_groups_with_missing_values_have_the_bits_of_separate_sketches(dtype, kind, rng):
    fm = missing_map(dtype=dtype)
    x, labels = with_missing(rng)
    x, w = x.astype(dtype), weights_of(kind, len(x), rng)

    def part(rows):
        weights = None if w is None else w[rows]
        return partial_sketch(x[rows], fm, weights, groups=labels[rows], nan_policy="available")

    group = part(slice(None))
    assert_bits(group, x, labels, fm, w, "available")
    parts = [part(slice(*ends)) for ends in ((0, 1), (1, 900), (900, None))]
    assert ds.merge(parts[::-1]).identical(group)
    assert part(rng.permutation(len(x))).identical(group)
    assert group.merged().identical(partial_sketch(x, fm, w, nan_policy="available"))
    assert group.select([3]).missing is None
    assert ds.open(group.to_bytes()).identical(group)
    assert SketchGroup.from_sketches(dict(group.items())).identical(group)


@pytest.mark.parametrize(
    ("options", "factor"),
    [({"distribution": "sparse-radius"}, 1.0), ({"dtype": "float64"}, 1e6)],
    ids=["no-sums-of-frequencies", "distant-rows"],
)
def test_other_sums_of_rows_with_missing_values_have_the_same_bits(options, factor, rng):
    fm = FeatureMap(5, 41, **{"scale": 1.0, "distribution": "sparse-sums", "seed": 1} | options)
    x, labels = with_missing(rng, 600)
    x[::7] *= factor
    for w in (None, weights_of("mild", len(x), rng)):
        group = partial_sketch(x, fm, w, groups=labels, nan_policy="available")
        assert_bits(group, x, labels, fm, w, "available")


def test_averages_of_groups_are_over_the_values_that_are_observed(rng):
    x, labels = with_missing(rng)
    group = partial_sketch(x, missing_map(), groups=labels, nan_policy="available")
    for name in ("z", "mean", "variance"):
        alone = [getattr(sketch, name) for _, sketch in group.items()]
        np.testing.assert_allclose(getattr(group, name), alone, rtol=1e-12)
    seen = np.isfinite(x)
    expected = seen.mean(axis=0) * len(x) / seen.any(axis=1).sum()
    np.testing.assert_allclose(group.as_dict()["observed_features"], expected, rtol=1e-12)


def test_rows_of_groups_with_missing_values_can_be_refused(rng):
    x, labels = with_missing(rng)
    x[2000] = [np.nan, 0.0, 1e12, 0.0, 0.0]
    with pytest.raises(ChunkError, match="row 2000 .* 1000000000000.0 in feature 2"):
        partial_sketch(x, missing_map(), groups=labels, nan_policy="available")
    x[2000, 2], w = 0.0, np.ones(len(x))
    w[2000] = -1.0
    with pytest.raises(ChunkError, match="row 2000 has weight=-1"):
        partial_sketch(x, missing_map(), w, groups=labels, nan_policy="available")


@pytest.mark.parametrize("weight", [None, 1.0, 2.0**20])
def test_moments_of_groups_have_the_limit_of_one_sketch(weight):
    fm, x = feature_map(), np.full((400, 3), 6e7)  # the sum of squares has 61 bits
    w = None if weight is None else np.full(400, weight)
    for groups in (None, np.zeros(400, int)):
        with pytest.raises(ChunkError, match="^here: "):
            partial_sketch(x, fm, w, groups=groups, label="here")
    assert partial_sketch(x[:10], fm, groups=np.zeros(10, int)).mean == pytest.approx(6e7)


def test_rows_without_a_label_are_left_out_where_values_may_be_missing():
    x, labels = np.array([[0.0] * 5, [np.nan, *[1.0] * 4], [1.0] * 5]), ["a", None, "a"]
    group = partial_sketch(x, missing_map(), groups=labels, nan_policy="available")
    assert (group.unlabelled, group["a"].count, group.missing) == (1, 2, None)
    with pytest.raises(InputError, match="nan_policy='available'.*sparse-sums"):
        partial_sketch(x, FeatureMap(5, 40, scale=1.0), groups=labels, nan_policy="available")


@pytest.mark.parametrize("kind", ["none", "mild", "wild"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_groups_have_the_bits_of_separate_sketches(distribution, dtype, kind, rng):
    n, d = 2500, 3
    fm = feature_map(
        dtype, n_features=d, n_frequencies=70, distribution=distribution, center=np.full(d, 0.3)
    )
    x = rng.normal(size=(n, d))
    x[3, 1], x[700] = np.nan, -np.inf  # left out
    x[[9, 1200]] *= 1e5  # beyond what float64 sums exactly
    x[10], x[11] = 0.0, -0.0
    labels = rng.integers(0, 40, n) * 7 - 50
    labels[: n // 2] = 6  # one group of many segments
    w = weights_of(kind, n, rng)
    group = partial_sketch(x, fm, w, groups=labels, nan_policy="omit")
    assert_bits(group, x, labels, fm, w)
    assert (group.omitted.sum(), group.count.sum()) == (2, n - 2)
    assert group.merged().identical(partial_sketch(x, fm, w, nan_policy="omit"))


def test_bounds_of_zero_have_no_sign():
    x, fm = np.full((4, 2), -0.0), feature_map("float64", n_features=2)
    for found in (partial_sketch(x, fm, groups=[0, 0, 1, 1]), partial_sketch(x, fm)):
        assert not np.signbit(found.minimum).any()
        assert not np.signbit(found.maximum).any()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("raw", ["float32", "float16", "int64", "uint8", "bool"])
def test_rows_of_any_type_and_layout(raw, distribution, rng):
    fm = feature_map("float32", distribution=distribution)
    x = (8 * rng.normal(size=(300, 6))).astype(raw)
    labels = rng.integers(0, 5, 300)
    for rows in (x[:, ::2], np.asfortranarray(x[:, :3])):
        assert_bits(partial_sketch(rows, fm, groups=labels), rows, labels, fm)
    stacked = partial_sketch(x[:, :3].reshape(30, 10, 3), fm, groups=labels.reshape(30, 10))
    assert stacked.identical(partial_sketch(x[:, :3], fm, groups=labels))


@pytest.mark.parametrize("d", [1, pytest.param(12, marks=pytest.mark.slow), 65])  # each is compiled
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_any_number_of_features_and_of_frequencies(distribution, d, rng):
    x = rng.normal(size=(90, d)).astype(np.float32)
    labels = rng.integers(0, 3, 90)
    for m in (1, 33):
        fm = feature_map("float32", n_features=d, n_frequencies=m, distribution=distribution)
        assert_bits(partial_sketch(x, fm, groups=labels), x, labels, fm)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_whitened_maps(kind, distribution, rng):
    d = 3
    white = np.diag(rng.uniform(0.5, 2, d)) + (0.2 if kind == "full" else 0.0)
    x = rng.normal(size=(400, d))
    labels = rng.integers(0, 9, 400)
    for dtype in DTYPES:
        fm = feature_map(dtype, n_features=d, distribution=distribution, whitening=white)
        assert_bits(partial_sketch(x, fm, groups=labels), x, labels, fm)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_sizes_of_groups_may_be_anything(distribution, rng):
    fm = feature_map("float32", distribution=distribution)
    sizes = [1, 1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 3000]
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = rng.normal(size=(len(labels), 3)).astype(np.float32)
    w = rng.uniform(0.5, 2.0, len(labels))
    for weights in (None, w):
        for order in (np.arange(len(x)), np.argsort(labels, kind="stable")):
            share = None if weights is None else weights[order]
            group = partial_sketch(x[order], fm, share, groups=labels[order])
            assert_bits(group, x, labels, fm, weights)


def test_sums_beyond_one_word_have_the_same_bits(rng):
    x = rng.normal(size=(9000, 3))
    for distribution in DISTRIBUTIONS:
        fm = feature_map("float64", distribution=distribution)
        group = partial_sketch(x, fm, groups=np.zeros(len(x), int))  # 2**50 steps each: over 2**62
        assert len(group.moment_quanta.words) == 2
        assert group[0].identical(partial_sketch(x, fm))


LABELS = {
    "whole": [5, -3, 5, 2**40],
    "bytes": np.array([1, 0, 1, 200], dtype=np.uint8),
    "strings": ["bob", "ann", "bob", "Ünal"],
    "objects": np.array(["bob", "ann", "bob", ""], dtype=object),
    "new strings": np.array(["bob", "ann", "bob", "eve"], dtype=np.dtypes.StringDType()),
    "ascii": np.array([b"x", b"a", b"x", b"z"]),
    "days": np.array(["2020-05-01", "2019-01-01", "2020-05-01", "2021-01-01"], dtype="M8[D]"),
    "durations": np.array([5, 1, 5, 9], dtype="m8[s]"),
    "dates": [datetime.date(2020, 5, d) for d in (2, 1, 2, 3)],
    "real": [0.5, -0.0, 0.5, 1.5],
    "booleans": [True, False, True, True],
    "series": pd.Series(["b", "a", "b", "c"], index=[9, 8, 7, 6]),
    "categories": pd.Categorical(["b", "a", "b", "c"], categories=["c", "b", "a", "unused"]),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.few_cases(6)
def test_labels_of_many_kinds(kind, rng, tmp_path):
    fm = feature_map(n_frequencies=10)
    x = rng.normal(size=(4, 3))
    group = partial_sketch(x, fm, groups=LABELS[kind])
    labels, codes = codes_of(LABELS[kind], 4)
    assert len(group) == len(labels) == (2 if kind == "booleans" else 3)
    assert (labels[1:] > labels[:-1]).all()
    for code, label in enumerate(group):
        assert group[label].identical(partial_sketch(x[codes == code], fm))
        assert label in group
    group.to_zarr(tmp_path / "groups.zarr")
    again = ds.open(tmp_path / "groups.zarr")
    assert again.identical(group)
    assert again.labels.dtype == group.labels.dtype
    again = pickle.loads(pickle.dumps(group))
    assert again.identical(group)
    assert not again.labels.flags.writeable
    assert not again.moment_quanta.words.flags.writeable
    assert group.to_xarray().sizes["group"] == len(group)


@pytest.mark.slow
def test_many_labels_are_numbered_as_by_sorting(rng):
    numbers = rng.integers(0, 1500, 5000)
    for labels in (
        numbers,
        numbers * 10**15,
        numbers / 7,
        np.array([f"label {k}" for k in numbers]),
        np.array([f"{k}".encode() for k in numbers]),
        numbers.astype("M8[s]"),
    ):
        found, codes = codes_of(labels, len(labels))
        expected, numbered = np.unique(labels, return_inverse=True)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(codes, numbered)


@pytest.mark.parametrize(
    "labels",
    [
        ["a", None, "b", "a"],
        [1.0, np.nan, 2.0, 1.0],
        np.array(["2020", "NaT", "2021", "2020"], dtype="M8[Y]"),
        pd.Series([1, None, 2, 1], dtype="Int64"),
    ],
)
def test_rows_without_a_label_are_refused_or_left_out(labels, rng):
    fm = feature_map()
    x = rng.normal(size=(4, 3))
    with pytest.raises(ChunkError, match="chunk 3: row 1 "):
        partial_sketch(x, fm, groups=labels, label="chunk 3")
    group = partial_sketch(x, fm, groups=labels, nan_policy="omit")
    assert (group.unlabelled, group.omitted.sum()) == (1, 0)
    np.testing.assert_array_equal(group.count, [2, 1])
    assert group.merged().identical(partial_sketch(x[[0, 2, 3]], fm))
    assert (group + group).unlabelled == 2
    nobody = partial_sketch(x[:2], fm, groups=[None, None], nan_policy="omit")
    assert (len(nobody), nobody.unlabelled) == (0, 2)
    assert (nobody + group).unlabelled == 3


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], "2 labels, the samples have 3 rows"),
        ([1, "a", 2.5], r"types .*float, int, str"),
        ([1j, 2j, 3j], "complex"),
        ([(1, 2), (3, 4), (5, 6)], "6 labels"),
        (np.array([2**63, 1, 2], dtype=np.uint64), r"2\*\*63"),
    ],
)
def test_labels_that_cannot_be_sorted_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        partial_sketch(np.zeros((3, 3)), feature_map(), groups=labels)


NEVER = datetime.date(9999, 12, 31)  # of many a table; 1816 in nanoseconds


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([NEVER, datetime.date(2020, 5, 1)], ["2020-05-01", "9999-12-31"]),
        ([pd.Timestamp(1), pd.Timestamp(2)], ["1970-01-01T00:00:00.000000001"]),
        ([datetime.timedelta(1), datetime.timedelta(0)], [np.timedelta64(0, "s")]),
        (pd.Series(pd.period_range("2020-01", periods=2, freq="M")), ["2020-01-01", "2020-02-01"]),
    ],
)
def test_times_are_what_they_were(labels, expected, rng):
    group = partial_sketch(rng.normal(size=(2, 3)), feature_map(), groups=labels)
    kind = group.labels.dtype
    np.testing.assert_array_equal(group.labels[: len(expected)], np.array(expected, dtype=kind))
    assert group[labels[0]].count == group[labels[1]].count == 1


@pytest.mark.parametrize(
    "labels", [[pd.Timestamp(1, tz="UTC")], pd.date_range("2020", "2020", tz="CET")]
)
def test_times_with_a_zone_are_refused(labels, rng):
    with pytest.raises(InputError, match="time zone"):
        partial_sketch(rng.normal(size=(1, 3)), feature_map(), groups=labels)


def test_the_first_bad_row_is_named(rng):
    fm = feature_map("float32")
    x = rng.normal(size=(5000, 3))
    labels = rng.integers(0, 50, 5000)
    for value, message in ((np.nan, "has nan in feature 1"), (1e30, "times the scale of the feat")):
        bad = x.copy()
        bad[[1234, 4000], 1] = value
        for w in (None, np.ones(5000)):
            with pytest.raises(ChunkError, match=f"here: row 1234 of this chunk.*{message}"):
                partial_sketch(bad, fm, w, groups=labels, label="here")
    w = np.ones(5000)
    w[77] = -1.0
    with pytest.raises(ChunkError, match=r"weights of here: row 77 has weight=-1\.0"):
        partial_sketch(x, fm, w, groups=labels, nan_policy="omit", label="here")
    x[77] = np.nan  # is left out, whatever its weight
    assert partial_sketch(x, fm, w, groups=labels, nan_policy="omit").omitted.sum() == 1
    w[5], x[5] = 0.0, np.inf
    with pytest.raises(ChunkError, match=r"row 5 .* inf "):
        partial_sketch(x, fm, np.abs(w), groups=labels)
    w[77] = 1.0
    assert partial_sketch(x, fm, w, groups=labels, nan_policy="omit").omitted.sum() == 2


def test_phases_too_large_for_the_precision_name_the_group():
    mixed = {"scale": None, "covariances": [[1.0] * 3, [1e-66] * 3]}
    fm = feature_map("float32", **mixed)
    x = np.zeros((4, 3))
    x[2] = 1e7
    with pytest.raises(ChunkError, match=r"group=b, .* dtype='float32'"):
        partial_sketch(x, fm, groups=list("aabb"))
    x[2, 0], fm = np.nan, feature_map("float32", distribution="sparse-sums", **mixed)
    with pytest.raises(ChunkError, match=r"group=b, .* dtype='float32'"):
        partial_sketch(x, fm, groups=list("aabb"), nan_policy="available")


def test_arguments_are_checked():
    fm = feature_map()
    for wrong in ({"nan_policy": "skip"}, {"device": "cuda"}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}="):
            partial_sketch(np.zeros((1, 3)), fm, groups=[1], **wrong)
    for wrong in ([Sketch.empty(fm)], {"a": 3}):
        with pytest.raises(InputError, match="sketch"):
            SketchGroup.from_sketches(wrong)
    nothing = partial_sketch(np.zeros((0, 3)), fm, groups=[])
    assert not nothing.identical(Sketch.empty(fm))
    assert not Sketch.empty(fm).identical(nothing)
    assert nothing.identical(SketchGroup.empty(fm))
    assert nothing.merged().identical(Sketch.empty(fm))


def test_many_groups_are_compact(rng):
    n = 40_000
    fm = FeatureMap(12, 200, scale=1.0, distribution="sparse-sums")
    x = rng.normal(size=(n, 12)).astype(np.float32)
    labels = np.arange(n) % 20_000
    group = partial_sketch(x, fm, groups=labels)
    assert len(group) == 20_000
    # sums in 32 bits, and bounds and moments of the features
    assert group.nbytes <= 20_000 * (8 * 200 + 40 * 12 + 60)
    assert group[17_777].identical(partial_sketch(x[[17_777, 37_777]], fm))
    both = group + group
    assert both.nbytes == group.nbytes
    assert both[5].count == 4
