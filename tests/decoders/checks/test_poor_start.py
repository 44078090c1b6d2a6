"""Earlier models from which a decode begins, where the data has moved away."""

from __future__ import annotations

import numpy as np
import pytest

import dask_sketch as ds


@pytest.fixture(scope="module")
def nights():
    """Rows of twelve nights; the means of four clusters move by half a deviation each night."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(4, 3)) * 5
    moves = 0.5 * np.arange(4)[:, None] * np.array([1, -1, 0.5])
    return [
        (means + night * moves)[rng.integers(4, size=1000)] + rng.normal(size=(1000, 3))
        for night in range(12)
    ]


@pytest.fixture(scope="module")
def feature_map(nights):
    return ds.design(nights[0], n_components=4)


@pytest.mark.parametrize("constant", [False, True])
def test_a_start_that_the_data_has_left_is_left_out(constant, nights, feature_map):
    """1.6 nats were lost, without a word."""
    rows = np.concatenate(nights)
    if constant:
        feature_map = ds.FeatureMap(4, 150, scale=2.0)
        rows = np.column_stack([rows, np.ones(len(rows))])
    first = ds.decode(ds.sketch(rows[:3000], feature_map), 4)
    sketch = ds.sketch(rows, feature_map)
    model = ds.decode(sketch, 4, start=first)
    np.testing.assert_array_equal(model.means, ds.decode(sketch, 4).means)


def test_a_start_near_the_data_is_kept(nights, feature_map):
    sketch = ds.sketch(nights[0], feature_map)
    model = ds.decode(sketch, 4)
    later = ds.decode(sketch + ds.sketch(nights[0][:500], feature_map, position=1000), start=model)
    assert later.decoding.method == "start"


def test_rows_that_are_not_kept_decide_nothing(nights, feature_map):
    sketch = ds.sketch(nights[0], feature_map, sample=False)
    model = ds.decode(sketch, 4)
    assert ds.decode(sketch, 4, start=model).decoding.method == "start"


def test_centroids_that_kmeans_on_rows_beats_are_left_out():
    """From k-means centroids, a descent in the distance of the sketch led away from them."""
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(5000, 4)) ** 2
    sketch = ds.sketch(rows, ds.design(rows, n_components=6, task="clustering"))
    first = ds.decode(sketch, 6, model="dirac")
    later = ds.decode(sketch, start=first)
    errors = [
        np.mean(((rows[:, None] - model.centers) ** 2).sum(axis=2).min(axis=1))
        for model in (first, later)
    ]
    assert errors[1] < 1.01 * errors[0]


def test_the_type_of_a_start_is_kept(nights, feature_map):
    """Matrices became variances: up to 1.2 nats were lost."""
    sketch = ds.sketch(nights[0], feature_map)
    for kind in ("full", "tied", "spherical", "diag"):
        model = ds.decode(sketch, 4, covariance_type=kind)
        assert ds.decode(sketch, start=model).covariance_type == kind
    assert ds.decode(sketch, start=model, covariance_type="full").covariance_type == "full"
