"""Centroids that k-means on rows beats come with a warning."""

from __future__ import annotations

import warnings

import numpy as np

from dask_sketch import decode, design, sketch
from dask_sketch.decoders.checks.poor_centroids import warn_of_poor_centroids


def caught(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [str(warning.message) for warning in found]


def test_bad_centroids_are_named_with_the_ratio():
    x = np.exp(0.8 * np.random.default_rng(0).normal(size=(20_000, 2)))
    found = sketch(x, design(x, n_components=3, task="clustering"))
    bad = np.tile(x.mean(axis=0), (3, 1))
    messages = caught(lambda: warn_of_poor_centroids(found, bad))
    assert len(messages) == 1
    assert "times that of k-means" in messages[0]


def test_outliers_are_named_where_no_row_is_kept():
    x = np.random.default_rng(0).normal(size=(20_000, 2))
    feature_map = design(x, n_components=2, task="clustering")
    x[7] = 1e4
    for sample, n_messages in ((1000, 0), (False, 1)):
        found = sketch(x, feature_map, sample=sample)
        messages = caught(lambda found=found: decode(found, 2, model="dirac"))
        assert sum("standard deviations" in text for text in messages) == n_messages


def test_centroids_of_too_few_far_rows_are_named():
    """A few far rows decide the error: before, up to 2.4 times that of k-means in silence."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20_000, 5)) + 4.0 * rng.integers(0, 3, 20_000)[:, None]
    far = x.copy()
    far[rng.random(len(x)) < 0.005] *= 200.0
    for rows, n_messages in ((x, 0), (far, 1)):
        found = sketch(rows, design(rows, n_components=20, task="clustering"), sample=False)
        messages = caught(lambda found=found: decode(found, 20, model="dirac"))
        assert sum("far rows of the data" in text for text in messages) == n_messages


def test_groups_narrower_than_the_frequencies_resolve_are_named():
    """Before, up to 3.9 times the squared error of k-means in silence."""
    rng = np.random.default_rng(0)
    centers = 6.0 * rng.normal(size=(5, 3, 2)) + 50.0 * rng.normal(size=(5, 1, 2))
    group, cluster = rng.integers(0, 5, 15_000), rng.integers(0, 3, 15_000)
    x = centers[group, cluster] + rng.normal(size=(15_000, 2))
    feature_map = design(x, n_components=3, task="clustering")
    for rows, is_named in ((x[group == 1], True), (x, False)):
        found = sketch(rows, feature_map, sample=False)
        messages = caught(lambda found=found: decode(found, 3, model="dirac"))
        assert any("unlike the pilot rows" in text for text in messages) == is_named
    own = sketch(x, design(x, n_components=15, task="clustering"), sample=False)
    assert caught(lambda: decode(own, 12, model="dirac")) == []


def test_drift_away_from_the_pilot_rows_is_named():
    """Before, 1.7 to 2.6 times the squared error of k-means in silence."""
    rng = np.random.default_rng(0)
    centers, widths = 8.0 * rng.normal(size=(6, 8)), np.exp(0.3 * rng.normal(size=(6, 8)))
    cluster = rng.integers(0, 6, (8, 3000))
    days = centers[cluster] + widths[cluster] * rng.normal(size=(8, 3000, 8))
    days += 4.0 * np.arange(8)[:, None, None]
    feature_map = design(days[0], n_components=6, task="clustering")
    found = sketch(days.reshape(-1, 8), feature_map, sample=False)
    messages = caught(lambda: decode(found, 6, model="dirac"))
    assert any("1.2 to 4 times that of k-means" in text for text in messages)


def test_centroids_of_directions_are_compared_with_those_of_length_one(rng):
    """Means of wide clusters, which are nearer to their rows, raised a false alarm."""
    means = rng.normal(size=(3, 5))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    rows = means[rng.integers(3, size=5000)] + 0.7 * rng.normal(size=(5000, 5))
    feature_map = design(rows, n_components=3, task="clustering", normalize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(sketch(rows, feature_map), 3, model="dirac")
