"""Sketches of groups: the bits of separate sketches, whatever the labels, chunks and merges."""

from __future__ import annotations

import datetime
import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import draw_rows, feature_map, wild_rows

import dask_sketch as ds
from dask_sketch import (
    FeatureMap,
    Sketch,
    SketchGroup,
    merge,
    partial_sketch,
)
from dask_sketch.errors import (
    ArtifactError,
    CapacityError,
    ChunkError,
    InputError,
    MergeError,
)
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.privatise import privatise
from dask_sketch.storage.artifact import write_dataset
from dask_sketch.storage.artifact_reader import read_dataset
from dask_sketch.validation.labels import codes_of, union

DISTRIBUTIONS = ["adapted-radius", "sparse-sums"]
DTYPES = ["float32", "float64"]


def weights_of(kind, n, rng):
    return {
        "none": lambda: None,
        "mild": lambda: rng.uniform(0.3, 20.0, n) * (rng.random(n) < 0.9),
        "wild": lambda: 2.0 ** rng.uniform(-32, 8, n),
    }[kind]()


def assert_bits(group, x, labels, fm, w=None):
    """Every group has the bits of the sketch of its rows alone."""
    labels = np.asarray(labels)
    assert list(group) == list(np.unique(labels))
    for label in group:
        rows = labels == label
        alone = partial_sketch(x[rows], fm, None if w is None else w[rows], nan_policy="omit")
        assert group[label].identical(alone), label


@pytest.mark.parametrize("kind", ["none", "mild", "wild"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_groups_have_the_bits_of_separate_sketches(distribution, dtype, kind, rng):
    n, d = 2500, 5
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


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("raw", ["float32", "float16", "int64", "uint8", "bool"])
def test_rows_of_any_type_and_layout(raw, distribution, rng):
    fm = feature_map("float32", n_features=4, distribution=distribution)
    x = (8 * rng.normal(size=(300, 8))).astype(raw)
    labels = rng.integers(0, 5, 300)
    for rows in (x[:, ::2], np.asfortranarray(x[:, :4])):
        assert_bits(partial_sketch(rows, fm, groups=labels), rows, labels, fm)
    stacked = partial_sketch(x[:, :4].reshape(30, 10, 4), fm, groups=labels.reshape(30, 10))
    assert stacked.identical(partial_sketch(x[:, :4], fm, groups=labels))


@pytest.mark.parametrize("d", [1, 2, 12, 17, 40, 70])
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
    d = 6
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


@settings(max_examples=12)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(data=st.data())
def test_groups_are_a_commutative_monoid(distribution, data):
    x, w = data.draw(wild_rows())
    fm = feature_map(data.draw(st.sampled_from(DTYPES)), distribution=distribution)
    n = len(x)
    labels = np.random.default_rng(n).integers(0, data.draw(st.integers(1, 12)), n)
    whole = partial_sketch(x, fm, w, groups=labels, nan_policy="omit")
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    rows = np.split(np.random.default_rng(0).permutation(n), cuts)
    parts = [
        partial_sketch(x[r], fm, None if w is None else w[r], groups=labels[r], nan_policy="omit")
        for r in rows
    ]
    assert merge(parts).identical(whole)
    assert merge(parts[::-1]).identical(whole)
    assert sum(parts).identical(whole)
    half = len(parts) // 2
    tree = merge(parts[: half + 1]) + merge([SketchGroup.empty(fm), *parts[half + 1 :]])
    assert tree.identical(whole)
    assert whole.merged().identical(merge(sketch for _, sketch in whole.items()))
    assert_bits(whole, x, labels, fm, w)


def test_merging_keeps_groups_that_only_one_has(rng):
    fm = feature_map()
    a = partial_sketch(
        rng.normal(size=(4, 3)), fm, groups=["ann", "bob", "ann", "bob"], dim="speaker"
    )
    b = partial_sketch(rng.normal(size=(3, 3)), fm, groups=["catherine", "bob", "bob"])
    both = a + b
    assert (list(both), both.dim) == (["ann", "bob", "catherine"], "speaker")
    assert both["ann"].identical(a["ann"])
    assert both["bob"].identical(a["bob"] + b["bob"])
    assert merge([a]) is a


def test_merging_refuses_what_does_not_fit():
    fm = feature_map()
    a, b = (partial_sketch(np.zeros((1, 3)), fm, groups=[label]) for label in (1, "one"))
    with pytest.raises(MergeError, match="integers and strings"):
        _ = a + b
    with pytest.raises(MergeError, match="differ in seed"):
        _ = a + partial_sketch(np.zeros((1, 3)), feature_map(seed=1), groups=[1])
    with pytest.raises(MergeError, match=r"sketches=\[\]"):
        merge([])
    with pytest.raises(MergeError, match="sketches of type SketchGroup"):
        merge(a)
    with pytest.raises(MergeError, match="sketches of type Sketch:"):
        merge(a.merged())
    with pytest.raises(MergeError, match="type SketchGroup and Sketch:"):
        merge([a, a.merged()])
    with pytest.raises(TypeError):
        _ = a + 1
    heavy = SketchGroup.from_sketches({1: partial_sketch(np.ones((1500, 3)), fm).scale(2.0**32)})
    with pytest.raises(CapacityError, match="smaller factor"):
        merge([heavy] * 30)


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


def test_times_of_other_units_merge_exactly(rng):
    x = rng.normal(size=(1, 3))
    recent, never, fine = (
        partial_sketch(x, feature_map(), groups=np.array([time], dtype=f"M8[{unit}]"))
        for time, unit in (("2020-05-01", "ns"), ("9999-12-31", "D"), ("2020-05-01T00", "ns"))
    )
    assert (recent + never + fine).labels.astype("M8[D]").astype(str).tolist() == [
        "2020-05-01",
        "9999-12-31",
    ]
    finer = partial_sketch(x, feature_map(), groups=np.array([1], dtype="M8[ns]"))
    with pytest.raises(MergeError, match="dates: no unit holds all of them"):
        finer + never
    with pytest.raises(MergeError, match="years or months"):
        merge(
            [partial_sketch(x, feature_map(), groups=np.array([1], dtype=f"m8[{u}]")) for u in "Ys"]
        )


@pytest.mark.parametrize(
    "labels", [[pd.Timestamp(1, tz="UTC")], pd.date_range("2020", "2020", tz="CET")]
)
def test_times_with_a_zone_are_refused(labels, rng):
    with pytest.raises(InputError, match="time zone"):
        partial_sketch(rng.normal(size=(1, 3)), feature_map(), groups=labels)


def test_several_labels_are_not_one(speakers):
    for several in (slice(0, 1), ["ann"], np.array(["ann", "kim"])):
        with pytest.raises(InputError, match=r"use select\(\) or merged\(\)"):
            speakers[-1][several]


def test_union_of_no_labels():
    nothing = np.zeros(0, dtype=np.int64)
    labels, places = union([nothing, np.array(["a"]), nothing])
    assert labels.tolist() == ["a"]
    assert [len(place) for place in places] == [0, 1, 0]


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


@pytest.fixture
def speakers(rng):
    x = draw_rows(0, 600, 3)
    names = np.array(["ann", "bob", "eve", "kim"])[rng.integers(0, 4, 600)]
    fm = feature_map("float32")
    return x, names, fm, partial_sketch(x, fm, groups=names, dim="speaker")


def test_groups_hold_as_much_as_sketches():
    feature_map = FeatureMap(1, 3, scale=1.0)
    sums = {"moment_sum": np.ones(3), "total_weight": 1, "squared_weight": 1, "count": 1}
    bounds = {"minimum": [0.0], "maximum": [0.0], "first_moment": [0.0]}
    for largest, fits in ((2.0**54, True), (2.0**55, False)):
        sketch = Sketch.from_sums(feature_map, second_moment=[largest], **sums, **bounds)
        group = SketchGroup.from_sketches({"a": sketch})
        if fits:
            assert (group + group)["a"].identical(sketch + sketch)
            continue
        for part in (sketch, group):
            with pytest.raises(CapacityError, match="smaller factor"):
                merge([part, part])


def test_groups_are_added_to_groups_only(speakers):
    group = speakers[-1]
    assert sum([group, group]).identical(group + group)
    for other in (1, 0.0, "a"):
        with pytest.raises(TypeError):
            other + group
        with pytest.raises(TypeError):
            group + other


def test_select_and_merge(speakers):
    x, names, fm, group = speakers
    some = group.select(["kim", "ann"])
    assert list(some) == ["ann", "kim"]
    assert some["kim"].identical(group["kim"])
    for chosen in (["ann", "kim"], np.array([True, False, False, True]), lambda s: s in "ann kim"):
        assert group.select(chosen).identical(some)
        assert group.merged(chosen).identical(partial_sketch(x[np.isin(names, ["ann", "kim"])], fm))
    assert list(group.select("bob")) == ["bob"]
    assert not len(group.select([]))
    language = {"ann": "en", "bob": "fr", "eve": "en", "kim": "fr"}
    by_array = group.merge_by(["en", "fr", "en", "fr"], dim="language")
    assert by_array.dim == "language"
    for labels in (language, language.get):
        assert group.merge_by(labels).identical(by_array)
    spoken = np.array([language[name] for name in names])
    assert_bits(by_array, x, spoken, fm)
    for wrong, message in (
        ({"ann": "en"}, "speaker=bob and 2 more"),
        (lambda s: None, "speaker=ann"),
        (["en", "fr", None, "fr"], "speaker=eve"),
        (["en"], "1 labels"),
    ):
        with pytest.raises(InputError, match=message):
            group.merge_by(wrong)
    for wrong in ("zoe", ["ann", "zoe"]):
        with pytest.raises(InputError, match=r"speaker='zoe': .* ann, bob"):
            group.select(wrong)
    with pytest.raises(InputError, match="zoe"):
        _ = group["zoe"]
    with pytest.raises(InputError, match=r"shape \(1,\)"):
        group.select([True])
    assert "zoe" not in group
    assert 3 not in group


def test_views_are_those_of_the_sketches(speakers):
    _, _, fm, group = speakers
    for row, (_, sketch) in enumerate(group.items()):
        np.testing.assert_allclose(group.z[row], sketch.z, rtol=1e-14)
        for name in ("total_weight", "squared_weight", "effective_count", "mean", "variance"):
            np.testing.assert_allclose(getattr(group, name)[row], getattr(sketch, name), rtol=1e-14)
    data = group.to_xarray()
    np.testing.assert_array_equal(data.z.sel(speaker="eve"), group.z[2])
    assert data["mean"].dims == ("speaker", "feature")
    assert data.attrs["digest"] == fm.digest
    assert "n_groups=4" in repr(group)
    assert "speaker" in group._repr_html_()
    assert SketchGroup.from_sketches(dict(group.items()), dim="speaker").identical(group)
    empty = SketchGroup.from_sketches({1: Sketch.empty(fm)})
    assert np.isnan(empty.z).all()
    assert empty.effective_count == 0


def test_from_sketches_refuses(speakers):
    fm = speakers[2]
    one = Sketch.empty(fm)
    with pytest.raises(InputError, match=r"sketches=\{\}"):
        SketchGroup.from_sketches({})
    with pytest.raises(InputError, match="'a', None"):
        SketchGroup.from_sketches({"a": one, None: one})
    with pytest.raises(MergeError, match="differ"):
        SketchGroup.from_sketches({"a": one, "b": Sketch.empty(feature_map("float32", seed=3))})
    private = privatise(partial_sketch(np.zeros((50, 3)), fm), 1.0, 1e-6, seed=1)
    with pytest.raises(InputError, match="private"):
        SketchGroup.from_sketches({"a": private})


def test_discrepancies_are_unbiased_and_those_of_pairs(rng):
    fm = FeatureMap(2, 150, scale=1.0, distribution="gaussian")
    labels = np.arange(24_000) % 12
    x = rng.normal(size=(24_000, 2))
    x[labels == 11] += [3.0, 0.0]
    group = partial_sketch(x, fm, groups=labels)
    squared = ds.mmd(group, squared=True)
    a, b = group[0], group[11]
    level = sum((1 - np.vdot(s.z, s.z).real) / (s.count - 1) for s in (a, b))
    expected = np.linalg.norm(a.z - b.z) ** 2 - level
    np.testing.assert_allclose(squared.sel(group=0, other_group=11), expected, rtol=1e-10)
    np.testing.assert_array_equal(squared, squared.T)
    same = squared.values[:11, :11][np.triu_indices(11, 1)]
    assert abs(same.mean()) < 4 * same.std() / np.sqrt(len(same))
    assert (same < 0).any()
    mmd = ds.mmd(group)
    assert (mmd.name, mmd.dims) == ("mmd", ("group", "other_group"))
    np.testing.assert_allclose(mmd, np.sqrt(np.maximum(squared, 0.0)))
    assert mmd.sel(group=3).idxmax() == 11
    single = ds.mmd(partial_sketch(x[:3], fm, groups=[0, 1, 1]))
    assert np.isnan(single.sel(group=0)).all()
    assert single.sel(group=1, other_group=1) == 0.0


def test_discrepancies_in_blocks_and_with_weighted_features(rng, monkeypatch):
    fm = FeatureMap(2, 30, scale=1.0, distribution="clustering")
    group = partial_sketch(rng.normal(size=(700, 2)), fm, groups=np.arange(700) % 7)
    whole = ds.mmd(group, squared=True)
    z, w = group.z, fm.feature_weights
    noise = (np.mean(w**2) - (np.abs(w * z) ** 2).sum(axis=1)) / (group.count - 1)
    expected = np.linalg.norm(w * (z[1] - z[5])) ** 2 - noise[1] - noise[5]
    np.testing.assert_allclose(whole[1, 5], expected, rtol=1e-9)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("", (), {"available": 99}))
    with pytest.raises(InputError, match="7 by 7 "):
        ds.mmd(group)


def test_stored_groups_prove_themselves(speakers, tmp_path):
    group = speakers[3]
    place = tmp_path / "groups.zarr"
    group.to_zarr(place)
    again = ds.open(place)
    assert again.identical(group)
    assert (again.dim, again["bob"].z.tolist()) == ("speaker", group["bob"].z.tolist())
    with pytest.raises(ArtifactError, match="exists"):
        group.to_zarr(place)
    group.to_zarr(place, overwrite=True)
    zarr.open_group(place, mode="r+")["count"][0] = 5
    with pytest.raises(ArtifactError, match="checksum"):
        ds.open(place)
    with pytest.raises(ArtifactError, match="does not exist"):
        ds.open(tmp_path / "nothing.zarr")


@pytest.mark.parametrize(
    "change",
    [
        {"labels": lambda v: v[::-1]},
        {"labels": lambda v: v + np.uint32(0x110000)},
        {"count": lambda v: -v},
        {"count": lambda v: v.astype(np.int32)},
        {"weight_steps": lambda v: -v},
        {"moment_steps": lambda v: np.concatenate([v.astype(np.int64) - 1] * 2)},
        {"moment_steps": lambda v: np.full(v.shape, 2**62)},
        {"minimum": lambda v: v[:, :2]},
        {"unit": lambda v: 2 * v},
        {"shifts": lambda v: "{}"},
        {"shifts": lambda v: v.replace("49", "-1")},
        {"label_type": lambda v: "O"},
        {"unlabelled": lambda v: -1},
    ],
)
def test_what_no_groups_have_is_refused(change, speakers, tmp_path):
    schema = ("dask-sketch/sketch-group", 1)
    speakers[3].to_zarr(tmp_path / "fine.zarr")
    dataset = read_dataset(tmp_path / "fine.zarr", dict([schema]))
    for name, changed in change.items():
        if name in dataset.attrs:
            dataset.attrs[name] = changed(dataset.attrs[name])
        else:
            values = changed(dataset[name].values)
            dims = [f"{name}_new_{axis}" for axis in range(values.ndim)]
            dataset = dataset.drop_vars(name).assign({name: (dims, values)})
    write_dataset(dataset, tmp_path / "edited.zarr", *schema)
    with pytest.raises(ArtifactError, match=r"edited|damaged|unreadable"):
        ds.open(tmp_path / "edited.zarr")


def test_1e5_groups_are_compact(rng):
    n = 200_000
    fm = FeatureMap(12, 200, scale=1.0, distribution="sparse-sums")
    x = rng.normal(size=(n, 12)).astype(np.float32)
    labels = np.arange(n) % 100_000
    group = partial_sketch(x, fm, groups=labels)
    assert len(group) == 100_000
    # sums in 32 bits, and bounds and moments of the features
    assert group.nbytes <= 100_000 * (8 * 200 + 40 * 12 + 60)
    assert group[77_777].identical(partial_sketch(x[[77_777, 177_777]], fm))
    both = group + group
    assert both.nbytes == group.nbytes
    assert both[5].count == 4


def test_stacked_quanta_hold_any_integers():
    rng = np.random.default_rng(0)
    total = np.zeros((6, 3), dtype=object)
    parts, places = [], []
    for bits, shift in ((20, 0), (31, 49), (40, 3), (61, 21), (62, 56), (10, 100)):
        values = rng.integers(-(2**bits) + 1, 2**bits, size=(4, 3))
        place = np.sort(rng.integers(0, 6, 4))
        parts.append(StackedFixedPoint.of(values, shift))
        places.append(place)
        np.add.at(total, place, values.astype(object) << shift)
    summed = StackedFixedPoint.sum(parts, places, 6, max_bits=None)
    assert summed.integers() == total.tolist()
    again = StackedFixedPoint.sum(parts[::-1], places[::-1], 6, max_bits=None)
    assert again == summed
    assert again.rows(np.array([3, 1])).integers() == total[[3, 1]].tolist()
    assert summed.fixed_point(2).integers().tolist() == total[2].tolist()
    small = StackedFixedPoint.of(np.array([[1, -1]]), 5)
    assert small == StackedFixedPoint.of(np.array([[32, -32]]))
    assert small != StackedFixedPoint.of(np.array([[32, -31]]))
    shifted, plain = (
        StackedFixedPoint.of(np.array([3]), 112),
        StackedFixedPoint.from_integers([3 << 112]),
    )
    assert shifted == plain
    for parts in (
        [shifted, StackedFixedPoint.of(np.array([7]))],
        [StackedFixedPoint.of(np.array([7])), plain],
    ):
        added = StackedFixedPoint.sum(parts, [np.array([0])] * 2, 1)
        assert added.integers() == [3 * 2**112 + 7]
    with pytest.raises(CapacityError, match="smaller factor"):
        StackedFixedPoint.sum(
            [StackedFixedPoint.of(np.array([[2**61]]), 56)] * 3, [np.array([0])] * 3, 1
        )


def test_an_xarray_of_groups_can_be_picked_from(speakers):
    data = speakers[3].to_xarray()
    assert isinstance(data, xr.Dataset)
    assert data.sel(speaker=["ann", "eve"]).sizes["speaker"] == 2
