"""Centroids of rows: the best of the replicates."""

from types import SimpleNamespace

import pytest

from dask_sketch.decoders.centroids_of_rows import conclude


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_replicate_without_error_is_the_best(order):
    scores = (-0.0, -1.5, None)
    results = [SimpleNamespace(score=scores[k]) for k in order]
    assert conclude(None, results, None, None).score == 0.0
