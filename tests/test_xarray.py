"""Sketches as methods of xarray's objects."""

from __future__ import annotations

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
import dask_sketch.xarray
from dask_sketch import partial_sketch
from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult

FM = feature_map(n_frequencies=40)
X = draw_rows(0, 300, 3)
SPEAKER = np.array(["ann", "bob", "eve"])[np.random.default_rng(0).integers(3, size=300)]


def dataset():
    columns = {name: ("frame", X[:, i]) for i, name in enumerate("abc")}
    return xr.Dataset(columns | {"speaker": ("frame", SPEAKER), "w": ("frame", np.ones(300))})


def array():
    return xr.DataArray(X, dims=("frame", "feature"), coords={"speaker": ("frame", SPEAKER)})


@pytest.mark.parametrize("make", [dataset, array])
@pytest.mark.parametrize("lazy", [False, True])
def test_one_sketch_for_each_group(make, lazy):
    x = make().chunk(frame=70) if lazy else make()
    weights = "w" if make is dataset else None
    group = x.sketch.by("speaker", FM, weights)
    assert isinstance(group, LazyResult if lazy else ds.SketchGroup)
    if lazy:
        group = group.compute(scheduler="sync")
    assert (group.dim, list(group)) == ("speaker", ["ann", "bob", "eve"])
    shares = None if weights is None else np.ones(300)
    for name in group:
        rows = name == SPEAKER
        share = None if shares is None else shares[rows]
        assert_same_sketch(group[name], partial_sketch(X[rows], FM, share))


@pytest.mark.parametrize("make", [dataset, array])
def test_a_map_is_designed_where_none_is_given(make):
    options = {"columns": list("abc")} if make is dataset else {"feature_dim": "feature"}
    x = make().chunk(frame=70)
    group = x.sketch.by("speaker", n_components=2, seed=3, **options).compute(scheduler="sync")
    designed = x.sketch.design(n_components=2, seed=3, groups="speaker", **options)
    assert group.feature_map == designed
    assert x.sketch.plan(designed, groups="speaker", **options).groups == "speaker"
    if make is array:
        lazy = x.sketch(designed)
        assert lazy.compute(scheduler="sync").identical(group.merged())


def test_a_map_or_its_size():
    with pytest.raises(InputError, match="feature_map="):
        array().sketch.by("speaker")
    with pytest.raises(InputError, match="not both"):
        array().sketch.by("speaker", FM, n_components=2)


@pytest.mark.parametrize("make", [dataset, array])
def test_two_sides_are_compared_by_whole_units(make):
    options = {"columns": list("abc")} if make is dataset else {"feature_dim": "feature"}
    day = ("frame", np.arange(300) // 20)
    early = make().assign_coords(day=day, frame=np.arange(300)).chunk(frame=70)
    late = make().assign_coords(day=day, frame=np.arange(300, 600))
    assert not late.sketch.compare(early, "day", n_frequencies=40, **options).is_different
    later = 4.0 * late if make is array else late.assign(a=4.0 * late["a"])
    found = later.sketch.compare(early, "day", FM, level=0.01, **options)
    assert found.is_different
    assert (found.dim, found.n_units, found.level) == ("day", (15, 15), 0.01)
    with pytest.raises(InputError, match="n_frequencies=40"):
        late.sketch.compare(early, "day", FM, n_frequencies=40)
    with pytest.raises(InputError, match="by='night'"):
        late.sketch.compare(early, "night")
    with pytest.raises(InputError, match="type list"):
        late.sketch.compare([1.0], "day")


@pytest.mark.parametrize("make", ["array", "dataset"])
def test_units_along_a_dimension_of_their_own(make):
    rng = np.random.default_rng(0)
    first, second = (
        xr.DataArray(
            rng.normal(size=(12, 30, 3)),
            dims=("day", "time", "feature"),
            coords={"day": days, "feature": list("abc")},
        )
        for days in (np.arange(12), np.arange(12, 24))
    )
    if make == "dataset":
        first, second = first.to_dataset("feature"), second.to_dataset("feature")
    found = first.sketch.compare(second, "day", n_frequencies=40)
    assert (found.dim, found.n_units) == ("day", (12, 12))
    assert not found.is_different


def test_labels_of_a_type_of_pandas():
    labels = pd.Series(SPEAKER, dtype="str")
    x = xr.DataArray(X, dims=("frame", "feature"), coords={"speaker": ("frame", labels)})
    assert x.sketch.by("speaker", FM).identical(array().sketch.by("speaker", FM))
    assert x.sketch(FM).count == 300


@pytest.fixture(params=[False, True], ids=["in memory", "lazy"])
def tree(request):
    nodes = {"/": xr.Dataset(attrs={"title": "frames"}), "/ann": dataset(), "/eve/late": dataset()}
    nodes["/ann"] = nodes["/ann"].isel(frame=slice(100))
    nodes["/eve/late"] = nodes["/eve/late"].isel(frame=slice(100, None))
    if request.param:
        nodes = {path: node.chunk() for path, node in nodes.items()}
    return xr.DataTree.from_dict(nodes)


def test_a_group_of_the_nodes_of_a_tree(tree):
    sketches = {
        node.path: ds.sketch(node.to_dataset(), FM, "w", columns=list("abc"))
        for node in tree.subtree
        if node.has_data
    }
    (found,) = dask.compute(sketches, scheduler="sync")
    group = ds.SketchGroup.from_sketches(found, dim="node")
    assert list(group.labels) == ["/ann", "/eve/late"]
    w = np.ones(300)
    assert_same_sketch(group["/ann"], partial_sketch(X[:100], FM, w[:100]))
    assert_same_sketch(group["/eve/late"], partial_sketch(X[100:], FM, w[100:]))


def test_a_tree_of_the_sketches_of_a_tree(tree):
    def sums(node):
        if not node.data_vars:
            return node
        found = ds.sketch(node, FM, columns=list("abc"), sample=False)
        return dask.compute(found, scheduler="sync")[0].to_xarray()

    found = tree.map_over_datasets(sums)
    assert [node.path for node in found.leaves] == ["/ann", "/eve/late"]
    for path, rows in {"/ann": X[:100], "/eve/late": X[100:]}.items():
        xr.testing.assert_identical(found[path].to_dataset(), partial_sketch(rows, FM).to_xarray())
    assert found.attrs == {"title": "frames"}


def test_views_and_subclasses_are_datasets():
    class Frames(xr.Dataset):
        __slots__ = ()

    own = Frames({name: ("frame", X[:, i]) for i, name in enumerate("abc")})
    assert_same_sketch(ds.sketch(own, FM), partial_sketch(X, FM))


def test_a_tree_itself_is_refused_with_the_recipe(tree):
    with pytest.raises(InputError, match=r"DataTree, with 2 datasets: .*from_sketches"):
        ds.sketch(tree, FM)
