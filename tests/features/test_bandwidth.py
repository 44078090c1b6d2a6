from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.scale import clustering_scale


def pilot(d=4, deviation=0.3, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(5, d)) * 8
    return centers[rng.integers(5, size=5000)] + deviation * rng.normal(size=(5000, d))


@pytest.mark.parametrize("d", [2, 4, 20])
def test_sees_the_width_of_separate_clusters(d):
    assert clustering_scale(pilot(d), 5) == pytest.approx(np.sqrt(2 * d) * 0.3, rel=0.03)


def test_follows_the_unit_and_not_the_origin():
    x = pilot()
    assert clustering_scale(x * 1e3 + 7e4, 5) == pytest.approx(1e3 * clustering_scale(x, 5))


def test_the_seed_decides():
    assert clustering_scale(pilot(), 7, seed=1) == clustering_scale(pilot(), 7, seed=1)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(5), r"pilot has shape \(5,\)"),
        (np.zeros((3, 2)), r"pilot has shape \(3, 2\): for n_components=3 more than 3 rows"),
        (np.full((9, 2), np.nan), "NaN or infinite"),
        (np.tile([[0.0], [1.0], [5.0]], (4, 1)), "no more than n_components=3 distinct rows"),
        (["a", "b"], "not an array of numbers"),
    ],
)
def test_refuses_bad_pilots(x, message):
    with pytest.raises(InputError, match=message):
        clustering_scale(x, 3)
