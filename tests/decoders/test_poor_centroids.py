"""Centroids that k-means on rows beats come with a warning."""

from __future__ import annotations

import warnings

import numpy as np

from dask_sketch import decode, design, sketch
from dask_sketch.decoders.poor_centroids import warn_of_poor_centroids


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
