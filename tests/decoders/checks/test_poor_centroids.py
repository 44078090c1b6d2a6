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
