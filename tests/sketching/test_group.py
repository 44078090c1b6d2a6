"""Groups of sketches: merges, selection, averages and decoding."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import draw_rows, feature_map, wild_rows

from dask_sketch import (
    FeatureMap,
    Sketch,
    SketchGroup,
    merge,
    partial_sketch,
)
from dask_sketch.errors import (
    CapacityError,
    InputError,
    MergeError,
)
from dask_sketch.sketching.privatise import privatise
from dask_sketch.validation.labels import union

DISTRIBUTIONS = ["adapted-radius", "sparse-sums"]


DTYPES = ["float32", "float64"]


def assert_bits(group, x, labels, fm, w=None):
    """Every group has the bits of the sketch of its rows alone."""
    labels = np.asarray(labels)
    assert list(group) == list(np.unique(labels))
    for label in group:
        rows = labels == label
        alone = partial_sketch(x[rows], fm, None if w is None else w[rows], nan_policy="omit")
        assert group[label].identical(alone), label


@settings(max_examples=12)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(data=st.data())
@pytest.mark.slow
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
    with pytest.raises(MergeError, match="dates"):
        finer + never
    with pytest.raises(MergeError, match="years or months"):
        merge(
            [partial_sketch(x, feature_map(), groups=np.array([1], dtype=f"m8[{u}]")) for u in "Ys"]
        )


def test_several_labels_are_not_one(speakers):
    for several in (slice(0, 1), ["ann"], np.array(["ann", "kim"])):
        with pytest.raises(InputError, match=r"use select\(\) or merged\(\)"):
            speakers[-1][several]


def test_union_of_no_labels():
    nothing = np.zeros(0, dtype=np.int64)
    labels, places = union([nothing, np.array(["a"]), nothing])
    assert labels.tolist() == ["a"]
    assert [len(place) for place in places] == [0, 1, 0]


@pytest.fixture
def speakers(rng):
    x = draw_rows(0, 600, 3)
    names = np.array(["ann", "bob", "eve", "kim"])[rng.integers(0, 4, 600)]
    fm = feature_map("float32")
    return x, names, fm, partial_sketch(x, fm, groups=names, dim="speaker")


def test_groups_hold_as_much_as_sketches():
    fm = feature_map()
    d, m = fm.n_features, fm.n_frequencies
    sums = {"moment_sum": np.ones(m), "total_weight": 1, "squared_weight": 1, "count": 1}
    bounds = dict.fromkeys(("minimum", "maximum", "first_moment"), np.zeros(d))
    smallest = next(  # second moment that one sketch cannot hold twice
        2.0**e for e in range(40, 70) if not addable(fm, np.full(d, 2.0**e), sums | bounds)
    )
    for size, fits in ((smallest / 2, True), (smallest, False)):
        sketch = Sketch.from_sums(fm, second_moment=np.full(d, size), **sums, **bounds)
        group = SketchGroup.from_sketches({"a": sketch})
        if fits:
            assert (group + group)["a"].identical(sketch + sketch)
        else:
            with pytest.raises(CapacityError, match="smaller factor"):
                merge([group, group])


def addable(fm, second_moment, others):
    sketch = Sketch.from_sums(fm, second_moment=second_moment, **others)
    try:
        return bool(sketch + sketch)
    except CapacityError:
        return False


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
    mask = pd.Series([True, False, True, False], index=["kim", "eve", "ann", "bob"])
    for chosen in (
        ["ann", "kim"],
        mask.loc[list(group)].to_numpy(),
        mask,
        lambda s: s in "ann kim",
    ):
        assert group.select(chosen).identical(some)
        assert group.merged(chosen).identical(partial_sketch(x[np.isin(names, ["ann", "kim"])], fm))
    assert list(group.select("bob")) == ["bob"]
    assert not len(group.select([]))
    language = {"ann": "en", "bob": "fr", "eve": "en", "kim": "fr"}
    by_array = group.merge_by(["en", "fr", "en", "fr"], dim="language")
    assert by_array.dim == "language"
    series = pd.Series(language).iloc[::-1]
    for labels in (language, language.get, series):
        assert group.merge_by(labels).identical(by_array)
    spoken = np.array([language[name] for name in names])
    assert_bits(by_array, x, spoken, fm)
    for wrong, message in (
        (dict(zip(language, (1, "fr", 2, "fr"), strict=True)), "labels"),
        ({"ann": "en"}, "labels .* bob and 2 more"),
        (lambda s: None, "speaker=ann"),
        (["en", "fr", None, "fr"], "speaker=eve"),
        (["en"], "labels has 1 new label for 4"),
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
    for sketches in (dict(group), dict(zip(group.keys(), group.values(), strict=True))):
        assert SketchGroup.from_sketches(sketches, dim="speaker").identical(group)
    empty = SketchGroup.from_sketches({1: Sketch.empty(fm)})
    assert np.isnan(empty.z).all()
    assert empty.effective_count == 0


def test_moments_of_a_map_of_another_scale(rng):
    x, labels = 40.0 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    group = partial_sketch(x, FeatureMap(3, 5, scale=50.0, center=np.ones(3)), groups=labels)
    for row, label in enumerate(group):
        mine = x[labels == label]
        np.testing.assert_allclose(group.mean[row], mine.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(group.variance[row], mine.var(axis=0), rtol=1e-9)


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


def test_an_xarray_of_groups_can_be_picked_from(speakers):
    data = speakers[3].to_xarray()
    assert isinstance(data, xr.Dataset)
    assert data.sel(speaker=["ann", "eve"]).sizes["speaker"] == 2
