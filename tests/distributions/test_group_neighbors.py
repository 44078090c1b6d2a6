"""Nearest neighbours among groups are those of the matrix of all discrepancies."""

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, mmd, partial_sketch
from dask_sketch.distributions import nearest_groups
from dask_sketch.errors import InputError, MergeError

MAP = FeatureMap(2, 40, scale=1.0)


def sketches(n_groups, seed=0, feature_map=MAP):
    """Groups of 2 to 59 rows around means of their own."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_groups), rng.integers(2, 60, n_groups))
    x = rng.normal(size=(len(labels), 2)) + 0.7 * rng.normal(size=(n_groups, 2))[labels]
    return partial_sketch(x, feature_map, groups=[f"g{k:04}" for k in labels], dim="day")


@pytest.mark.parametrize(("n_groups", "n_neighbors"), [(5, 4), (12, 3), (700, 1), (1400, 7)])
def test_neighbours_are_those_of_all_pairs(n_groups, n_neighbors):
    group = sketches(n_groups)
    found = nearest_groups(group, n_neighbors=n_neighbors)
    matrix = np.array(mmd(group, squared=True))
    np.fill_diagonal(matrix, np.inf)
    order = np.argsort(matrix, axis=1, kind="stable")[:, :n_neighbors]
    expected = np.take_along_axis(matrix, order, axis=1)
    np.testing.assert_allclose(found["squared_mmd"], expected, atol=1e-7)
    np.testing.assert_array_equal(found["neighbor"], group.labels[order])
    assert found["neighbor"].dims == ("day", "rank")
    np.testing.assert_array_equal(found["day"], group.labels)


@pytest.mark.slow
def test_other_groups_are_searched():
    group, other = sketches(100), sketches(200, seed=1)
    found = nearest_groups(group, other, n_neighbors=2)
    nearest = [
        min(other.labels, key=lambda label: mmd(group[one], other[label], squared=True))
        for one in ("g0000", "g0099")
    ]
    assert list(found["neighbor"][[0, 99], 0]) == nearest
    assert nearest_groups(group, group, n_neighbors=1)["squared_mmd"].max() < 0  # themselves


def test_equal_groups_are_all_as_near():
    x = np.random.default_rng(0).normal(size=(20, 2))
    group = partial_sketch(np.tile(x, (200, 1)), MAP, groups=np.repeat(np.arange(200), 20))
    found = nearest_groups(group, n_neighbors=3)
    assert np.ptp(found["squared_mmd"].to_numpy()) < 1e-7
    assert all(len({k, *row}) == 4 for k, row in enumerate(found["neighbor"].to_numpy()))


def test_a_lazy_group():
    x, labels = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 6
    lazy = ds.sketch(ds.open_samples(x, groups=labels).blocks, MAP, groups=labels)
    expected = nearest_groups(partial_sketch(x, MAP, groups=labels), n_neighbors=2)
    assert nearest_groups(lazy, n_neighbors=2).equals(expected)


def test_bad_arguments_are_named():
    group = sketches(4)
    with pytest.raises(InputError, match="n_neighbors=4"):
        nearest_groups(group, n_neighbors=4)
    with pytest.raises(InputError, match="other of type Sketch"):
        nearest_groups(group, group["g0000"])
    with pytest.raises(MergeError, match="seed"):
        nearest_groups(group, sketches(4, feature_map=FeatureMap(2, 40, scale=1.0, seed=1)))
    single = partial_sketch(np.eye(2), MAP, groups=["a", "b"], dim="day")
    with pytest.raises(InputError, match="groups: day=a"):
        nearest_groups(single)
